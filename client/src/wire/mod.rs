//! The public protocol: what a request and a response mean, whatever generation wrote them.
//!
//! Two layouts share one meaning. [`raw`] is the fixed layout of 2015 and 2016; [`protobuf`] is the
//! checksummed envelope of 2017 to 2025. [`decode_request`] tells them apart the way a server on one
//! port must: what parses as the envelope is protobuf, and a wrong checksum then means *drop*, never
//! "try the other layout" (the 17th byte of a damaged envelope would be run as a command). Damage that
//! leaves no envelope at all cannot be told from raw, so on such a port a raw SHUTDOWN, WIPEOUT or Leave
//! must also be clean: nothing, or only zeros, behind its command.
//!
//! Deliberately not here: sockets, clocks, retries (see [`crate::exchange`]), and any allocation
//! while decoding: a decoded request borrows from its datagram.

pub mod placement;
pub mod protobuf;
pub mod raw;
pub mod siblings;

use std::fmt;

pub use siblings::{Context, Siblings};

/// Bytes in a [`MessageId`]: 16 in every generation since 2015.
pub const MESSAGE_ID_BYTES: usize = 16;
/// Longest key: 32 bytes in every generation.
pub const KEY_BYTES_MAX: usize = 32;
/// Longest value that the protobuf generations may store (course hand-outs 2017 to 2025).
pub const PROTOBUF_VALUE_BYTES_MAX: usize = 10_000;
/// Longest value that the raw generations may store: 10,000 in 2016, 15,000 in 2015.
pub const RAW_VALUE_BYTES_MAX: usize = 15_000;
/// Longest value of any generation.
pub const VALUE_BYTES_MAX: usize = RAW_VALUE_BYTES_MAX;
/// Longest payload of a UDP datagram over IPv4.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Longest request that a server takes, padding and unknown fields included. Four times what a legal one
/// needs; a server that passes a request on must fit it, with a header of its own, into one datagram, so
/// without this limit the answer would depend on which server was asked.
pub const REQUEST_BYTES_MAX: usize = 60_000;
/// Longest datagram that a legal request needs, and any response but that to GetSiblings, with room for
/// unknown fields. See [`siblings::SIBLINGS_BYTES_MAX`] for the other.
pub const MESSAGE_BYTES_MAX: usize = VALUE_BYTES_MAX + 1_024;

const PUT_WITH_CONTEXT_COMMAND: u32 = 0x25;
const GET_SIBLINGS_COMMAND: u32 = 0x26;
const LOCATE_COMMAND: u32 = 0x27;
const GET_PLACEMENT_COMMAND: u32 = 0x28;

/// The unique id of a request, chosen by the client and echoed by the server; opaque.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub [u8; MESSAGE_ID_BYTES]);

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Which layout a datagram has. A reply uses the layout of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// The fixed layout of 2015 and 2016.
    Raw,
    /// The checksummed protobuf envelope of 2017 to 2025.
    Protobuf,
}

/// Which layouts a server accepts on its port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accept {
    /// Both: the envelope if it parses as one, else raw.
    #[default]
    Auto,
    /// Only the fixed layout.
    Raw,
    /// Only the envelope.
    Protobuf,
}

/// A key of 1 to [`KEY_BYTES_MAX`] bytes. Raw keys are always 32 bytes, zero padding included;
/// protobuf keys are as long as given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    len: u8,
}

impl Key {
    /// Takes a key as it stands on the wire.
    ///
    /// # Errors
    /// [`Status::InvalidKey`] when it is empty or longer than [`KEY_BYTES_MAX`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Status> {
        if bytes.is_empty() || KEY_BYTES_MAX < bytes.len() {
            return Err(Status::InvalidKey);
        }
        let mut key = Self { bytes: [0; KEY_BYTES_MAX], len: bytes.len() as u8 };
        key.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(key)
    }

    /// The key's bytes, 1 to [`KEY_BYTES_MAX`] of them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_bytes().escape_ascii())
    }
}

/// A stored value: its bytes and the opaque number that protobuf clients keep beside them.
/// The number is no clock: a smaller one may overwrite a larger one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Value<'a> {
    /// The bytes, at most [`VALUE_BYTES_MAX`].
    pub bytes: &'a [u8],
    /// The client's `version`; 0 in the raw generations.
    pub version: i32,
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.bytes[..self.bytes.len().min(24)];
        write!(f, "{} bytes \"{}\" version {}", self.bytes.len(), shown.escape_ascii(), self.version)
    }
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// 1: store a value under a key.
    Put {
        /// The key to store it under.
        key: Key,
        /// What to store.
        value: Value<'a>,
    },
    /// 2: return the value of a key.
    Get {
        /// The key asked for.
        key: Key,
    },
    /// 3: forget a key.
    Remove {
        /// The key asked for.
        key: Key,
    },
    /// 4: crash this node at once.
    Shutdown,
    /// 5: forget everything that this node holds.
    Wipeout,
    /// 6: answer success.
    IsAlive,
    /// 7: return the operating system's process id.
    GetPid,
    /// 8: return the number of live members, this one included.
    GetMembershipCount,
    /// 0x22 (private range): return the member list as text, one `address state` a line.
    GetMembershipList,
    /// 0x23 (private range): return the counters and the loss ledger as JSON text.
    GetStats,
    /// 0x24 (private range): hand this node's data to the others, then leave the cluster.
    Leave,
    /// 0x25 (private range): store a value that replaces what its writer has seen, and nothing else.
    PutWithContext {
        /// The key to store it under.
        key: Key,
        /// What the writer has seen of the key.
        context: Context<'a>,
        /// What to store; its length and the context's are limited together, see
        /// [`siblings::PUT_WITH_CONTEXT_BYTES_MAX`].
        value: Value<'a>,
    },
    /// 0x26 (private range): return all concurrent values of a key, and their context.
    GetSiblings {
        /// The key asked for.
        key: Key,
    },
    /// 0x27 (private range): return who answers for a key as text, one `address role` a line.
    Locate {
        /// The key asked for.
        key: Key,
    },
    /// 0x28 (private range): return a page of the table that says who holds which key ([`placement`]).
    GetPlacement {
        /// The first byte of the table that is wanted.
        offset: u32,
    },
    /// Anything else; answered with [`Status::UnknownCommand`].
    Unknown(u32),
}

impl<'a> Operation<'a> {
    /// The change that is asked for: a key and its new value, none to remove it; `None` for what changes
    /// no key.
    #[must_use]
    pub fn as_mutation(&self) -> Option<(Key, Option<Value<'a>>)> {
        match *self {
            Self::Put { key, value } => Some((key, Some(value))),
            Self::Remove { key } => Some((key, None)),
            _ => None,
        }
    }

    /// The command number on the wire, the same in all generations.
    #[must_use]
    pub fn command(&self) -> u32 {
        match self {
            Self::Put { .. } => 1,
            Self::Get { .. } => 2,
            Self::Remove { .. } => 3,
            Self::Shutdown => 4,
            Self::Wipeout => 5,
            Self::IsAlive => 6,
            Self::GetPid => 7,
            Self::GetMembershipCount => 8,
            Self::GetMembershipList => 0x22,
            Self::GetStats => 0x23,
            Self::Leave => 0x24,
            Self::PutWithContext { .. } => PUT_WITH_CONTEXT_COMMAND,
            Self::GetSiblings { .. } => GET_SIBLINGS_COMMAND,
            Self::Locate { .. } => LOCATE_COMMAND,
            Self::GetPlacement { .. } => GET_PLACEMENT_COMMAND,
            Self::Unknown(command) => *command,
        }
    }

    /// The key that is asked for; `None` for what concerns no key.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::Put { key, .. }
            | Self::Get { key }
            | Self::Remove { key }
            | Self::PutWithContext { key, .. }
            | Self::GetSiblings { key }
            | Self::Locate { key } => Some(key),
            Self::Shutdown
            | Self::Wipeout
            | Self::IsAlive
            | Self::GetPid
            | Self::GetMembershipCount
            | Self::GetMembershipList
            | Self::GetStats
            | Self::Leave
            | Self::GetPlacement { .. }
            | Self::Unknown(_) => None,
        }
    }

    /// The operation of a command number that needs no key; `None` for those that have one, or something else in its
    /// place.
    fn without_key(command: u32) -> Option<Self> {
        Some(match command {
            1..=3
            | PUT_WITH_CONTEXT_COMMAND
            | GET_SIBLINGS_COMMAND
            | LOCATE_COMMAND
            | GET_PLACEMENT_COMMAND => {
                return None;
            }
            4 => Self::Shutdown,
            5 => Self::Wipeout,
            6 => Self::IsAlive,
            7 => Self::GetPid,
            8 => Self::GetMembershipCount,
            0x22 => Self::GetMembershipList,
            0x23 => Self::GetStats,
            0x24 => Self::Leave,
            other => Self::Unknown(other),
        })
    }
}

/// One request, decoded; borrows from its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The layout it came in, and its reply must leave in.
    pub format: Format,
    /// The client's id for it.
    pub id: MessageId,
    /// What is asked.
    pub operation: Operation<'a>,
}

/// How an operation ended. Numbers differ by generation; see [`Status::code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// Done.
    Success,
    /// GET or REMOVE of a key that does not exist.
    NoSuchKey,
    /// PUT refused: no memory left.
    OutOfSpace,
    /// Try again later.
    Overload,
    /// The server failed.
    InternalFailure,
    /// The command number is not known.
    UnknownCommand,
    /// The key is empty or too long (protobuf only).
    InvalidKey,
    /// The value is too long, or empty in the raw generations.
    InvalidValue,
    /// The message can be answered but not understood (a private code, 0x21).
    Malformed,
    /// A code that this client does not know.
    Other(u32),
}

impl Status {
    /// The error code on the wire: 0 to 5 in all generations, 6 = bad value length in raw,
    /// 6 = bad key and 7 = bad value in protobuf, 0x21 = malformed (private range of both).
    #[must_use]
    pub fn code(self, format: Format) -> u32 {
        match (self, format) {
            (Self::Success, _) => 0,
            (Self::NoSuchKey, _) => 1,
            (Self::OutOfSpace, _) => 2,
            (Self::Overload, _) => 3,
            (Self::InternalFailure, _) => 4,
            (Self::UnknownCommand, _) => 5,
            (Self::InvalidValue, Format::Raw) | (Self::InvalidKey, Format::Protobuf) => 6,
            (Self::InvalidValue, Format::Protobuf) => 7,
            (Self::InvalidKey, Format::Raw) | (Self::Malformed, _) => 0x21,
            (Self::Other(code), _) => code,
        }
    }

    /// The meaning of a code in a generation.
    #[must_use]
    pub fn from_code(code: u32, format: Format) -> Self {
        match (code, format) {
            (0, _) => Self::Success,
            (1, _) => Self::NoSuchKey,
            (2, _) => Self::OutOfSpace,
            (3, _) => Self::Overload,
            (4, _) => Self::InternalFailure,
            (5, _) => Self::UnknownCommand,
            (6, Format::Raw) | (7, Format::Protobuf) => Self::InvalidValue,
            (6, Format::Protobuf) => Self::InvalidKey,
            (0x21, _) => Self::Malformed,
            (other, _) => Self::Other(other),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::NoSuchKey => "no such key",
            Self::OutOfSpace => "out of space",
            Self::Overload => "overloaded",
            Self::InternalFailure => "internal failure",
            Self::UnknownCommand => "unknown command",
            Self::InvalidKey => "invalid key length",
            Self::InvalidValue => "invalid value length",
            Self::Malformed => "malformed request",
            Self::Other(code) => return write!(f, "code {code}"),
        })
    }
}

/// One response; borrows its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// The id of the request that it answers.
    pub id: MessageId,
    /// How it ended.
    pub status: Status,
    /// The value, for a successful GET and for the private commands that return text, [`Siblings`] or a
    /// [`placement::Page`].
    pub value: Option<Value<'a>>,
    /// The process id, for GETPID.
    pub pid: Option<i32>,
    /// How long to wait before trying again, in milliseconds, for [`Status::Overload`].
    pub overload_wait_ms: Option<i32>,
    /// The number of live members, for GETMEMBERSHIPCOUNT.
    pub membership_count: Option<i32>,
}

impl Response<'_> {
    /// A response that carries nothing but its status.
    #[must_use]
    pub fn of_status(id: MessageId, status: Status) -> Self {
        Self { id, status, value: None, pid: None, overload_wait_ms: None, membership_count: None }
    }
}

/// Why a datagram got no answer at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// Shorter than the smallest request of the accepted layouts.
    TooShort,
    /// An envelope whose checksum is wrong.
    Checksum,
    /// Not an envelope, and the port accepts nothing else.
    NotProtobuf,
}

/// A datagram that is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// Nothing can or should be answered.
    Drop(DropReason),
    /// The sender can be told what is wrong.
    Answer {
        /// The layout to answer in.
        format: Format,
        /// The id to answer to.
        id: MessageId,
        /// What is wrong.
        status: Status,
    },
}

/// Decodes a request of whatever generation the datagram has.
///
/// # Errors
/// [`Rejected`] says whether the sender gets an answer and which. What would be a good request but for
/// more than [`REQUEST_BYTES_MAX`] bytes is [`Status::Malformed`]; whatever else is wrong with a long
/// datagram is said as usual.
pub fn decode_request(datagram: &[u8], accept: Accept) -> Result<Request<'_>, Rejected> {
    let request = decode_of_any_length(datagram, accept)?;
    if REQUEST_BYTES_MAX < datagram.len() {
        let Request { format, id, .. } = request;
        return Err(Rejected::Answer { format, id, status: Status::Malformed });
    }
    Ok(request)
}

fn decode_of_any_length(datagram: &[u8], accept: Accept) -> Result<Request<'_>, Rejected> {
    if accept != Accept::Raw {
        if let Some(envelope) = protobuf::Envelope::parse(datagram) {
            return envelope.decode_request();
        }
        if accept == Accept::Protobuf {
            return Err(Rejected::Drop(DropReason::NotProtobuf));
        }
        if raw::is_doubtful_destruction(datagram) {
            return Err(refused_destruction(datagram));
        }
    }
    raw::decode_request(datagram)
}

/// Tells the sender of a doubtful SHUTDOWN, WIPEOUT or Leave that it was not understood.
fn refused_destruction(datagram: &[u8]) -> Rejected {
    match datagram.first_chunk() {
        Some(id) => Rejected::Answer { format: Format::Raw, id: MessageId(*id), status: Status::Malformed },
        None => Rejected::Drop(DropReason::TooShort),
    }
}

/// Appends a request in its layout.
pub fn encode_request(request: &Request<'_>, out: &mut Vec<u8>) {
    match request.format {
        Format::Raw => raw::encode_request(request, out),
        Format::Protobuf => protobuf::encode_request(request, out),
    }
}

/// Puts another id into a request that [`encode_request`] wrote.
pub(crate) fn replace_id(format: Format, datagram: &mut [u8], id: MessageId) {
    match format {
        Format::Raw => raw::replace_id(datagram, id),
        Format::Protobuf => protobuf::replace_id(datagram, id),
    }
}

/// Appends a response in the given layout.
pub fn encode_response(format: Format, response: &Response<'_>, out: &mut Vec<u8>) {
    match format {
        Format::Raw => raw::encode_response(response, out),
        Format::Protobuf => protobuf::encode_response(response, out),
    }
}

/// Why a datagram is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseError {
    /// It ends too early or has no envelope.
    Malformed,
    /// Its checksum is wrong.
    Checksum,
}

impl fmt::Display for ResponseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the reply cannot be decoded",
            Self::Checksum => "the reply's checksum is wrong",
        })
    }
}

impl std::error::Error for ResponseError {}

/// Decodes a response. `command` is the command of the request it answers: a raw reply does not say
/// whether its trailing bytes are a value, a process id or a count.
///
/// # Errors
/// [`ResponseError`] when it is not a response of that layout.
pub fn decode_response(format: Format, command: u32, datagram: &[u8]) -> Result<Response<'_>, ResponseError> {
    match format {
        Format::Raw => raw::decode_response(command, datagram),
        Format::Protobuf => protobuf::decode_response(datagram),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: MessageId = MessageId([7; MESSAGE_ID_BYTES]);

    #[test]
    fn an_operation_knows_its_key_and_what_it_changes() {
        let (key, value) = (Key::parse(b"key").unwrap(), Value { bytes: b"value", version: 3 });
        for (operation, mutation) in [
            (Operation::Put { key, value }, Some((key, Some(value)))),
            (Operation::Remove { key }, Some((key, None))),
            (Operation::Get { key }, None),
        ] {
            assert_eq!(operation.key(), Some(&key), "{operation:?}");
            assert_eq!(operation.as_mutation(), mutation, "{operation:?}");
        }
        // A command that decodes without a key has none, or its request would not survive being written.
        for operation in (0..=u8::MAX).filter_map(|command| Operation::without_key(command.into())) {
            assert_eq!((operation.key(), operation.as_mutation()), (None, None), "{operation:?}");
        }
    }

    /// A request with padding behind it (raw) or an unknown field of its length (envelope) up to `bytes`.
    fn padded(format: Format, operation: Operation<'_>, bytes: usize) -> Vec<u8> {
        let mut datagram = Vec::new();
        encode_request(&Request { format, id: ID, operation }, &mut datagram);
        if format == Format::Protobuf {
            // Field 9 with a length of three varint bytes, which any two bytes of 16,384 and more need.
            let filler = bytes - datagram.len() - 4;
            datagram.extend([
                9 << 3 | 2,
                filler as u8 | 0x80,
                (filler >> 7) as u8 | 0x80,
                (filler >> 14) as u8,
            ]);
        }
        datagram.resize(bytes, 0);
        datagram
    }

    #[test]
    fn a_request_longer_than_can_be_passed_on_is_malformed_whatever_it_asks() {
        let key = Key::parse(&[1; KEY_BYTES_MAX]).unwrap();
        let value = Value { bytes: b"value", version: 0 };
        for format in [Format::Raw, Format::Protobuf] {
            for operation in [Operation::Put { key, value }, Operation::Get { key }, Operation::IsAlive] {
                let longest = padded(format, operation, REQUEST_BYTES_MAX);
                assert_eq!(decode_request(&longest, Accept::Auto), Ok(Request { format, id: ID, operation }));
                for bytes in [REQUEST_BYTES_MAX + 1, DATAGRAM_BYTES_MAX] {
                    assert_eq!(
                        decode_request(&padded(format, operation, bytes), Accept::Auto),
                        Err(Rejected::Answer { format, id: ID, status: Status::Malformed })
                    );
                }
            }
        }
    }

    #[test]
    fn a_long_datagram_with_another_fault_is_told_that_fault() {
        let key = Key::parse(b"key").unwrap();
        for format in [Format::Raw, Format::Protobuf] {
            let value = Value { bytes: &[0; 64_000], version: 0 };
            let mut datagram = Vec::new();
            encode_request(
                &Request { format, id: ID, operation: Operation::Put { key, value } },
                &mut datagram,
            );
            assert_eq!(
                decode_request(&datagram, Accept::Auto),
                Err(Rejected::Answer { format, id: ID, status: Status::InvalidValue })
            );
        }
        // Nobody can be told when the id may be what is damaged.
        let mut damaged = padded(Format::Protobuf, Operation::Get { key }, DATAGRAM_BYTES_MAX);
        damaged[5] ^= 1;
        assert_eq!(decode_request(&damaged, Accept::Auto), Err(Rejected::Drop(DropReason::Checksum)));
    }
}
