//! Requests written by patching a template, and replies checked, for every server on UDP that is measured.
//!
//! The client library writes one GET and one PUT; each request is a copy of that with another id, key,
//! value head and, in the envelope, checksum. So the bytes are right because the library's are (a test
//! compares them), and the generator does little for each. The id is four fixed bytes (so that it never looks
//! like a frame between members), a number of the load, and the request's running number, which finds its
//! entry when the reply comes. Deliberately not here: sockets and times.

use std::mem;

use violet_client::wire::protobuf::Envelope;
use violet_client::wire::{MESSAGE_ID_BYTES, decode_response, encode_request};
use violet_client::{Format, Key, MessageId, Operation, Request, Status, Value};

use super::contents::{Contents, HEAD_BYTES, KEY_BYTES, KeyText};
use super::memcached::{self, Frame, Piece};

/// How a server on UDP is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    /// Datagrams of the raw layout, which come back as they are.
    Echo,
    /// The fixed layout.
    Raw,
    /// The checksummed envelope.
    Protobuf,
    /// memcached's text commands in UDP frames.
    Memcached,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read a key.
    Get,
    /// Overwrite a key.
    Put,
}

/// What a reply must fit, and which of its datagrams have come.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// What was asked.
    pub kind: Kind,
    /// For which key.
    pub key: u32,
    /// A bit for each datagram of the reply that was seen.
    pub pieces_seen: u16,
}

/// How a datagram answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// As it must.
    Right,
    /// Rightly so far; more datagrams must follow.
    Partial,
    /// The server is overloaded and says so.
    Refused,
    /// With another status, length or value.
    Wrong,
}

/// Writes and checks for one dialect, one value size and one connection.
#[derive(Clone, Debug)]
pub struct Codec {
    dialect: Dialect,
    contents: Contents,
    /// Bytes in front of the running number in every id.
    prefix: [u8; 8],
    get: Template,
    put: Template,
}

/// A request with the places that differ.
#[derive(Clone, Debug)]
struct Template {
    bytes: Vec<u8>,
    key_at: usize,
    head_at: Option<usize>,
    /// Where the checked payload begins, in the envelope.
    payload_at: usize,
}

const MARK_ID: MessageId = MessageId(*b"vbeniiiiIIIIIIII");
/// Index and PUT of the value in a template, found again as `HEADhead`.
const MARK_VALUE: (u32, u32) = (u32::from_le_bytes(*b"HEAD"), u32::from_le_bytes(*b"head"));
const MARK_KEY: KeyText = *b"kkkkkkkkKKKKKKKKkkkkkkkkKKKKKKKK";

impl Template {
    fn find(bytes: Vec<u8>, contents: &Contents, kind: Kind, payload_at: usize) -> Self {
        let find = |part: &[u8]| bytes.windows(part.len()).position(|window| window == part);
        let key_at = find(&MARK_KEY).expect("the request holds its key");
        let head_at = match kind {
            Kind::Get => None,
            Kind::Put => find(&mark_value(contents)),
        };
        assert_eq!(head_at.is_some(), kind == Kind::Put, "a PUT holds its value");
        Self { bytes, key_at, head_at, payload_at }
    }
}

impl Codec {
    /// A codec whose ids differ from those of any other `run`.
    pub fn new(dialect: Dialect, contents: Contents, run: u32) -> Self {
        let mut prefix = *b"vben\0\0\0\0";
        prefix[4..].copy_from_slice(&run.to_le_bytes());
        let template = |kind| match dialect {
            Dialect::Echo | Dialect::Raw => course_template(Format::Raw, &contents, kind),
            Dialect::Protobuf => course_template(Format::Protobuf, &contents, kind),
            Dialect::Memcached => memcached_template(&contents, kind),
        };
        let (get, put) = (template(Kind::Get), template(Kind::Put));
        Self { dialect, contents, prefix, get, put }
    }

    fn template(&self, kind: Kind) -> &Template {
        match kind {
            Kind::Get => &self.get,
            Kind::Put => &self.put,
        }
    }

    /// Bytes of every request of this kind.
    pub fn request_bytes(&self, kind: Kind) -> usize {
        self.template(kind).bytes.len()
    }

    /// Bytes that a datagram with a reply has at most.
    pub fn reply_bytes_max(&self) -> usize {
        self.put.bytes.len() + 64
    }

    fn id(&self, number: u64) -> [u8; MESSAGE_ID_BYTES] {
        let mut id = [0; MESSAGE_ID_BYTES];
        id[..8].copy_from_slice(&self.prefix);
        id[8..].copy_from_slice(&number.to_le_bytes());
        id
    }

    /// Appends a request. `number` is the running number, of which memcached carries only 16 bits; `put`
    /// goes into the value.
    pub fn write(&self, kind: Kind, key: u32, number: u64, put: u32, out: &mut Vec<u8>) {
        let template = self.template(kind);
        let start = out.len();
        out.extend_from_slice(&template.bytes);
        let datagram = &mut out[start..];
        datagram[template.key_at..][..KEY_BYTES].copy_from_slice(&self.contents.key(key));
        if let Some(head_at) = template.head_at {
            datagram[head_at..][..HEAD_BYTES].copy_from_slice(&Contents::head(key, put));
        }
        match self.dialect {
            Dialect::Echo | Dialect::Raw => datagram[..MESSAGE_ID_BYTES].copy_from_slice(&self.id(number)),
            Dialect::Protobuf => {
                datagram[2..][..MESSAGE_ID_BYTES].copy_from_slice(&self.id(number));
                let sum_at = datagram.len() - mem::size_of::<u64>();
                let mut hasher = crc32fast::Hasher::new();
                hasher.update(&datagram[2..][..MESSAGE_ID_BYTES]);
                hasher.update(&datagram[template.payload_at..sum_at - 1]);
                datagram[sum_at..].copy_from_slice(&u64::from(hasher.finalize()).to_le_bytes());
            }
            Dialect::Memcached => {
                datagram[..memcached::FRAME_BYTES].copy_from_slice(&Frame::of_request(number as u16));
            }
        }
    }

    /// The running number in a reply, as many bits as the dialect carries; `None` when it is none of ours.
    pub fn number(&self, datagram: &[u8]) -> Option<u64> {
        let id_at = match self.dialect {
            Dialect::Memcached => return Frame::parse(datagram).map(|(frame, _)| frame.request.into()),
            Dialect::Echo | Dialect::Raw => 0,
            Dialect::Protobuf => 2,
        };
        let id: &[u8; MESSAGE_ID_BYTES] = datagram.get(id_at..)?.first_chunk()?;
        let (prefix, number) = id.split_first_chunk()?;
        (*prefix == self.prefix).then(|| number.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)))?
    }

    /// Whether a running number fits what a reply carries of it.
    pub fn is_number(&self, number: u64, carried: u64) -> bool {
        match self.dialect {
            Dialect::Memcached => u64::from(number as u16) == carried,
            Dialect::Echo | Dialect::Raw | Dialect::Protobuf => number == carried,
        }
    }

    /// Judges a reply whose number belongs to this request.
    pub fn check(&self, asked: &mut Asked, datagram: &[u8]) -> Answer {
        match self.dialect {
            Dialect::Echo => {
                let right = datagram.len() == self.request_bytes(asked.kind);
                if right { Answer::Right } else { Answer::Wrong }
            }
            Dialect::Raw => self.check_course(Format::Raw, asked, datagram),
            Dialect::Protobuf => self.check_course(Format::Protobuf, asked, datagram),
            Dialect::Memcached => self.check_memcached(asked, datagram),
        }
    }

    fn check_course(&self, format: Format, asked: &Asked, datagram: &[u8]) -> Answer {
        let command = match asked.kind {
            Kind::Put => 1,
            Kind::Get => 2,
        };
        let Ok(response) = decode_response(format, command, datagram) else { return Answer::Wrong };
        match (response.status, asked.kind, response.value) {
            (Status::Success, Kind::Get, Some(value)) if self.contents.is_value(asked.key, value.bytes) => {
                Answer::Right
            }
            (Status::Success, Kind::Put, None) => Answer::Right,
            (Status::Overload, _, _) => Answer::Refused,
            _ => Answer::Wrong,
        }
    }

    fn check_memcached(&self, asked: &mut Asked, datagram: &[u8]) -> Answer {
        let Some((frame, piece)) = Frame::parse(datagram) else { return Answer::Wrong };
        let judged = match asked.kind {
            Kind::Put if piece == b"STORED\r\n" => Piece::Complete,
            Kind::Put => Piece::Wrong,
            Kind::Get => {
                let key = self.contents.key(asked.key);
                memcached::check_get(&self.contents, asked.key, &key, frame, piece, &mut asked.pieces_seen)
            }
        };
        match judged {
            Piece::Complete => Answer::Right,
            Piece::Partial => Answer::Partial,
            Piece::Wrong => Answer::Wrong,
        }
    }
}

fn mark_value(contents: &Contents) -> Vec<u8> {
    contents.value(MARK_VALUE.0, MARK_VALUE.1)
}

fn course_template(format: Format, contents: &Contents, kind: Kind) -> Template {
    let key = Key::parse(&MARK_KEY).expect("a key of 32 bytes");
    let value = mark_value(contents);
    let operation = match kind {
        Kind::Get => Operation::Get { key },
        Kind::Put => Operation::Put { key, value: Value { bytes: &value, version: 0 } },
    };
    let mut bytes = Vec::new();
    encode_request(&Request { format, id: MARK_ID, operation }, &mut bytes);
    let payload_at = match Envelope::parse(&bytes) {
        // Behind the payload stand the checksum and its tag.
        Some(envelope) => bytes.len() - mem::size_of::<u64>() - 1 - envelope.payload.len(),
        None => 0,
    };
    Template::find(bytes, contents, kind, payload_at)
}

fn memcached_template(contents: &Contents, kind: Kind) -> Template {
    let text = match kind {
        Kind::Get => memcached::get_text(&MARK_KEY),
        Kind::Put => memcached::set_text(&MARK_KEY, &mark_value(contents)),
    };
    Template::find([&Frame::of_request(0)[..], &text].concat(), contents, kind, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use violet_client::Response;
    use violet_client::wire::encode_response;

    const SIZES: [usize; 4] = [8, 100, 1_000, 10_000];

    #[test]
    fn patched_requests_are_those_of_the_library() {
        for (dialect, format) in
            [(Dialect::Raw, Format::Raw), (Dialect::Echo, Format::Raw), (Dialect::Protobuf, Format::Protobuf)]
        {
            for value_bytes in SIZES {
                let contents = Contents::new(3, value_bytes);
                let codec = Codec::new(dialect, contents.clone(), 77);
                for (kind, index, number) in
                    [(Kind::Get, 0, 0), (Kind::Put, 9, u64::MAX), (Kind::Get, 70_000, 1 << 40)]
                {
                    let key = Key::parse(&contents.key(index)).unwrap();
                    let value = contents.value(index, 5);
                    let operation = match kind {
                        Kind::Get => Operation::Get { key },
                        Kind::Put => Operation::Put { key, value: Value { bytes: &value, version: 0 } },
                    };
                    let mut expected = Vec::new();
                    let id = MessageId(codec.id(number));
                    encode_request(&Request { format, id, operation }, &mut expected);
                    let mut written = Vec::new();
                    codec.write(kind, index, number, 5, &mut written);
                    assert_eq!(written, expected, "{dialect:?} {value_bytes} {kind:?}");
                    assert_eq!(written.len(), codec.request_bytes(kind));
                    assert_eq!(codec.number(&written), Some(number));
                }
            }
        }
    }

    #[test]
    fn memcached_requests_are_frames_with_text() {
        let contents = Contents::new(3, 100);
        let codec = Codec::new(Dialect::Memcached, contents.clone(), 0);
        let mut written = Vec::new();
        codec.write(Kind::Put, 4, 0x1_0203, 6, &mut written);
        let (frame, text) = Frame::parse(&written).unwrap();
        assert_eq!(frame, Frame { request: 0x0203, sequence: 0, datagrams: 1 });
        assert_eq!(text, memcached::set_text(&contents.key(4), &contents.value(4, 6)));
        assert!(codec.is_number(0x1_0203, codec.number(&written).unwrap()));
        assert!(!codec.is_number(0x1_0204, codec.number(&written).unwrap()));
    }

    fn asked(kind: Kind) -> Asked {
        Asked { kind, key: 9, pieces_seen: 0 }
    }

    #[test]
    fn replies_are_checked_for_status_length_and_value() {
        for (dialect, format) in [(Dialect::Raw, Format::Raw), (Dialect::Protobuf, Format::Protobuf)] {
            let contents = Contents::new(3, 100);
            let codec = Codec::new(dialect, contents.clone(), 1);
            let judge = |kind, status, value: Option<&[u8]>| {
                let id = MessageId(codec.id(12));
                let value = value.map(|bytes| Value { bytes, version: 0 });
                let mut reply = Vec::new();
                encode_response(format, &Response { value, ..Response::of_status(id, status) }, &mut reply);
                assert_eq!(codec.number(&reply), Some(12));
                codec.check(&mut asked(kind), &reply)
            };
            let (mine, other) = (contents.value(9, 3), contents.value(8, 3));
            assert_eq!(judge(Kind::Get, Status::Success, Some(&mine)), Answer::Right);
            assert_eq!(judge(Kind::Get, Status::Success, Some(&other)), Answer::Wrong);
            assert_eq!(judge(Kind::Get, Status::Success, Some(&mine[..99])), Answer::Wrong);
            assert_eq!(judge(Kind::Get, Status::NoSuchKey, None), Answer::Wrong);
            assert_eq!(judge(Kind::Put, Status::Success, None), Answer::Right);
            assert_eq!(judge(Kind::Put, Status::OutOfSpace, None), Answer::Wrong);
            assert_eq!(judge(Kind::Put, Status::Overload, None), Answer::Refused);
        }
        let echo = Codec::new(Dialect::Echo, Contents::new(3, 100), 1);
        assert_eq!(echo.check(&mut asked(Kind::Get), &[0; 49]), Answer::Right);
        assert_eq!(echo.check(&mut asked(Kind::Put), &[0; 49]), Answer::Wrong);
    }

    #[test]
    fn replies_of_another_run_are_none_of_ours() {
        let contents = Contents::new(3, 8);
        let (codec, other) =
            (Codec::new(Dialect::Raw, contents.clone(), 1), Codec::new(Dialect::Raw, contents, 2));
        let mut written = Vec::new();
        other.write(Kind::Get, 1, 1, 1, &mut written);
        assert_eq!(codec.number(&written), None);
        assert_eq!(codec.number(&written[..10]), None);
    }
}
