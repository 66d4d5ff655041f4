//! The protocol of bulk transfers between members: greeting, frames and their proof, without any I/O.
//!
//! ```text
//! asker    ─▶ hello: magic(4) sender(8) receiver(8) generation(8) nonce(16)
//! answerer ◀─ hello
//! asker    ─▶ frame: length(4) tag(16) body      the first is empty: it only proves the asker
//! asker    ─▶ frame: a request
//! answerer ◀─ frame: its response                and so on, strictly in turn
//! ```
//!
//! Both hellos, under a key derived from the cluster's, make the session's key. The tag is a keyed
//! BLAKE3 hash, cut to 16 bytes, over direction, frame number and body. Both sides contribute a nonce,
//! so a recorded session opens nothing again; both names are in the hellos, so one that was meant for
//! another member opens nothing here; numbers and direction make a frame good for one place only.
//!
//! A [`Conversation`] is one end. It says how many bytes it [wants](Conversation::wanted) and is fed
//! no more than that, so whoever drives it stops reading simply by not asking. What a stranger says
//! takes no memory: its hello is short, and so is the empty frame by which it stops being one. From a
//! member a length is checked first, and memory grows with what has come, not with what was announced.
//!
//! Deliberately not here: encryption (nothing between members is secret), deadlines and limits on
//! connections (`server::bulk`), what requests mean.

use super::TAG_BYTES;
use super::fields::Reader;
use crate::ids::{Generation, MemberId};

/// First bytes of both sides.
pub const BULK_MAGIC: [u8; 4] = *b"VltB";
/// Random bytes that each side puts into the session's key.
pub const NONCE_BYTES: usize = 16;
/// A hello.
pub const HELLO_BYTES: usize = BULK_MAGIC.len() + 3 * 8 + NONCE_BYTES;
/// What goes before a frame's body.
pub const FRAME_HEAD_BYTES: usize = LENGTH_BYTES + TAG_BYTES;
/// Longest body of a frame: 256 KiB of entries, and 1 KiB for what is said about them.
pub const FRAME_BYTES_MAX: usize = 257 * 1024;

const LENGTH_BYTES: usize = 4;
const _: () = assert!(FRAME_HEAD_BYTES <= HELLO_BYTES, "hellos and heads are gathered in one place");
const _: () = assert!(FRAME_BYTES_MAX <= u32::MAX as usize);

/// The key that sessions of this cluster start from.
#[derive(Clone)]
pub struct BulkKey([u8; 32]);

impl BulkKey {
    /// The key for a cluster's bulk transfers.
    #[must_use]
    pub fn new(cluster_key: &[u8; 32]) -> Self {
        Self(blake3::derive_key("violet bulk session", cluster_key))
    }

    fn session(&self, asker: &Hello, answerer: &Hello) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&asker.encode());
        hasher.update(&answerer.encode());
        *hasher.finalize().as_bytes()
    }
}

impl std::fmt::Debug for BulkKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BulkKey")
    }
}

/// What a side says of itself before it has proven anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Who says it.
    pub sender: MemberId,
    /// To whom.
    pub receiver: MemberId,
    /// Which start of the sender.
    pub generation: Generation,
    /// Never the same twice.
    pub nonce: [u8; NONCE_BYTES],
}

impl Hello {
    fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        let (magic, rest) = bytes.split_at_mut(BULK_MAGIC.len());
        magic.copy_from_slice(&BULK_MAGIC);
        let (numbers, nonce) = rest.split_at_mut(3 * 8);
        let values = [self.sender.0, self.receiver.0, self.generation];
        for (place, value) in numbers.chunks_exact_mut(8).zip(values) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        nonce.copy_from_slice(&self.nonce);
        bytes
    }

    fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let mut reader = Reader(bytes.strip_prefix(&BULK_MAGIC)?);
        Some(Self {
            sender: MemberId(reader.u64()?),
            receiver: MemberId(reader.u64()?),
            generation: reader.u64()?,
            nonce: *reader.0.first_chunk()?,
        })
    }
}

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that connects, and asks.
    Asker,
    /// The one that answers.
    Answerer,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Asker => Self::Answerer,
            Self::Answerer => Self::Asker,
        }
    }

    /// The first byte under a tag.
    fn code(self) -> u8 {
        match self {
            Self::Asker => 0,
            Self::Answerer => 1,
        }
    }
}

/// What has come with the bytes that were fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A part of something.
    Part,
    /// The other side's hello, which proves nothing yet. Send [`Conversation::greet`].
    Hello,
    /// The asker has proven that it has the key (only the answerer hears this).
    Proof,
    /// A frame of a proven sender; [`Conversation::take_frame`] has its body.
    Frame,
}

/// Why a conversation is over. Whoever gets this closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// What was said is not of a member, or not for this one, or has been changed.
    Forged,
    /// A frame is, or would be, longer than [`FRAME_BYTES_MAX`].
    TooLarge,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Conversation {
    key: BulkKey,
    side: Side,
    own: Hello,
    peer: Option<Hello>,
    session: Session,
    /// The answerer hears nothing but a proof before this is set. (The asker needs none: whatever the
    /// answerer says first is a response, and proves it.)
    is_proven: bool,
    sealed: u64,
    opened: u64,
    /// A hello or a frame's head, as far as it has come.
    head: [u8; HELLO_BYTES],
    head_bytes: usize,
    /// Length of the body that is being received, once it is known.
    announced: Option<usize>,
    body: Vec<u8>,
}

/// A session's key; all zeros before there is one.
struct Session([u8; 32]);

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

impl Conversation {
    /// The asking end of a new connection; it begins by sending [`Conversation::hello`].
    #[must_use]
    pub fn ask(key: BulkKey, hello: Hello) -> Self {
        Self::new(key, Side::Asker, hello)
    }

    /// The answering end of a new connection; whom it talks to it will be told.
    #[must_use]
    pub fn answer(key: BulkKey, me: MemberId, generation: Generation, nonce: [u8; NONCE_BYTES]) -> Self {
        Self::new(key, Side::Answerer, Hello { sender: me, receiver: me, generation, nonce })
    }

    fn new(key: BulkKey, side: Side, own: Hello) -> Self {
        Self {
            key,
            side,
            own,
            peer: None,
            session: Session([0; 32]),
            is_proven: side == Side::Asker,
            sealed: 0,
            opened: 0,
            head: [0; HELLO_BYTES],
            head_bytes: 0,
            announced: None,
            body: Vec::new(),
        }
    }

    /// This side's hello.
    #[must_use]
    pub fn hello(&self) -> [u8; HELLO_BYTES] {
        self.own.encode()
    }

    /// The other side, as it has said itself.
    #[must_use]
    pub fn peer(&self) -> Option<&Hello> {
        self.peer.as_ref()
    }

    /// Appends what is due after [`Heard::Hello`]: the answerer's hello, or the asker's proof.
    pub fn greet(&mut self, out: &mut Vec<u8>) {
        match self.side {
            Side::Answerer => out.extend_from_slice(&self.hello()),
            Side::Asker => self.append_frame(&[], out),
        }
    }

    /// Appends a frame with this body.
    ///
    /// # Errors
    /// [`Fault::TooLarge`], and then nothing was appended.
    pub fn seal(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        if FRAME_BYTES_MAX < body.len() {
            return Err(Fault::TooLarge);
        }
        self.append_frame(body, out);
        Ok(())
    }

    fn append_frame(&mut self, body: &[u8], out: &mut Vec<u8>) {
        assert!(self.peer.is_some(), "no frame can be sealed before the hellos");
        let tag = tag(&self.session, self.side, self.sealed, body);
        self.sealed += 1;
        out.reserve_exact(FRAME_HEAD_BYTES + body.len());
        out.extend_from_slice(&(body.len() as u32).to_le_bytes());
        out.extend_from_slice(&tag);
        out.extend_from_slice(body);
    }

    /// How many more bytes make the thing whole that comes next; never zero.
    #[must_use]
    pub fn wanted(&self) -> usize {
        match self.announced {
            Some(bytes) => bytes - self.body.len(),
            None if self.peer.is_none() => HELLO_BYTES - self.head_bytes,
            None => FRAME_HEAD_BYTES - self.head_bytes,
        }
    }

    /// Takes in at most [`Conversation::wanted`] bytes.
    ///
    /// # Errors
    /// [`Fault`]: the connection is to be closed.
    ///
    /// # Panics
    /// When it is fed more.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Heard, Fault> {
        assert!(bytes.len() <= self.wanted(), "no more than is wanted");
        if let Some(announced) = self.announced {
            self.grow(announced, bytes);
        } else {
            self.head[self.head_bytes..][..bytes.len()].copy_from_slice(bytes);
            self.head_bytes += bytes.len();
            if self.peer.is_none() {
                return self.on_hello_bytes();
            }
            if self.head_bytes < FRAME_HEAD_BYTES {
                return Ok(Heard::Part);
            }
            self.announced = Some(self.checked_length()?);
        }
        if self.wanted() == 0 { self.open() } else { Ok(Heard::Part) }
    }

    /// The body of the frame that was just heard.
    pub fn take_frame(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.body)
    }

    fn on_hello_bytes(&mut self) -> Result<Heard, Fault> {
        let magic_bytes = self.head_bytes.min(BULK_MAGIC.len());
        if self.head[..magic_bytes] != BULK_MAGIC[..magic_bytes] {
            return Err(Fault::Forged);
        }
        if self.head_bytes < HELLO_BYTES {
            return Ok(Heard::Part);
        }
        self.head_bytes = 0;
        let peer = Hello::decode(&self.head).ok_or(Fault::Forged)?;
        let is_right = peer.receiver == self.own.sender && peer.sender != self.own.sender;
        self.session = match self.side {
            Side::Answerer if is_right => {
                self.own.receiver = peer.sender;
                Session(self.key.session(&peer, &self.own))
            }
            Side::Asker if is_right && peer.sender == self.own.receiver => {
                Session(self.key.session(&self.own, &peer))
            }
            Side::Answerer | Side::Asker => return Err(Fault::Forged),
        };
        self.peer = Some(peer);
        Ok(Heard::Hello)
    }

    fn checked_length(&self) -> Result<usize, Fault> {
        let length: [u8; LENGTH_BYTES] = *self.head.first_chunk().expect("a head has a length");
        let length = u32::from_le_bytes(length) as usize;
        if FRAME_BYTES_MAX < length {
            return Err(Fault::TooLarge);
        }
        // Whoever is not proven can make us keep nothing.
        if !self.is_proven && length != 0 {
            return Err(Fault::Forged);
        }
        Ok(length)
    }

    /// Doubles the memory as bytes come, and never takes more than the frame needs.
    fn grow(&mut self, announced: usize, bytes: &[u8]) {
        let needed = self.body.len() + bytes.len();
        if self.body.capacity() < needed {
            let capacity = needed.max(2 * self.body.capacity()).min(announced);
            self.body.reserve_exact(capacity - self.body.len());
        }
        self.body.extend_from_slice(bytes);
    }

    fn open(&mut self) -> Result<Heard, Fault> {
        let claimed = self.head[LENGTH_BYTES..].first_chunk::<TAG_BYTES>().expect("a head has a tag");
        let tag = tag(&self.session, self.side.other(), self.opened, &self.body);
        if !constant_time_eq::constant_time_eq_16(claimed, &tag) {
            return Err(Fault::Forged);
        }
        self.opened += 1;
        self.head_bytes = 0;
        self.announced = None;
        if !self.is_proven {
            self.is_proven = true;
            return Ok(Heard::Proof);
        }
        Ok(Heard::Frame)
    }
}

fn tag(session: &Session, sender: Side, number: u64, body: &[u8]) -> [u8; TAG_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(&session.0);
    hasher.update(&[sender.code()]);
    hasher.update(&number.to_le_bytes());
    hasher.update(body);
    *hasher.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MemberId = MemberId(0xa);
    const B: MemberId = MemberId(0xb);

    fn key() -> BulkKey {
        BulkKey::new(&[1; 32])
    }

    fn hello(nonce: u8) -> Hello {
        Hello { sender: A, receiver: B, generation: 7, nonce: [nonce; NONCE_BYTES] }
    }

    fn asker() -> Conversation {
        Conversation::ask(key(), hello(1))
    }

    fn answerer() -> Conversation {
        Conversation::answer(key(), B, 8, [2; NONCE_BYTES])
    }

    /// What a conversation hears in these bytes when they come in pieces of at most `piece`.
    fn hear(to: &mut Conversation, mut bytes: &[u8], piece: usize) -> Result<Vec<String>, Fault> {
        let mut heard = Vec::new();
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(to.wanted().min(piece).min(bytes.len()));
            match to.feed(now)? {
                Heard::Part => {}
                Heard::Frame => heard.push(format!("frame {}", to.take_frame().escape_ascii())),
                other => heard.push(format!("{other:?}")),
            }
            bytes = later;
        }
        Ok(heard)
    }

    /// Everything that `asker` would send to `answerer` for these requests.
    fn session(asker: &mut Conversation, answerer: &mut Conversation, requests: &[&[u8]]) -> Vec<u8> {
        let mut sent = asker.hello().to_vec();
        hear(answerer, &sent, usize::MAX).expect("a good hello");
        let mut back = Vec::new();
        answerer.greet(&mut back);
        assert_eq!(hear(asker, &back, usize::MAX), Ok(vec!["Hello".to_owned()]));
        asker.greet(&mut sent);
        for request in requests {
            asker.seal(request, &mut sent).expect("short enough");
        }
        sent
    }

    /// What a fresh answerer hears; it must be driven with the nonce that `session` saw.
    fn heard_anew(bytes: &[u8]) -> Result<Vec<String>, Fault> {
        hear(&mut answerer(), bytes, usize::MAX)
    }

    #[test]
    fn both_sides_hear_each_other_whatever_the_pieces() {
        for piece in [1, 3, 19, 20, 21, 44, 1_000] {
            let (mut a, mut b) = (asker(), answerer());
            let sent = session(&mut a, &mut b, &[b"one", b"", b"three"]);
            let heard = hear(&mut b, &sent[HELLO_BYTES..], piece);
            assert_eq!(heard.expect("authentic"), ["Proof", "frame one", "frame ", "frame three"]);
            assert_eq!(
                (b.peer().map(|hello| hello.sender), a.peer().map(|hello| hello.sender)),
                (Some(A), Some(B))
            );
            let mut back = Vec::new();
            b.seal(b"yes", &mut back).expect("short enough");
            b.seal(&[b'x'; 100], &mut back).expect("short enough");
            let heard = hear(&mut a, &back, piece).expect("authentic");
            assert_eq!(heard, ["frame yes".to_owned(), format!("frame {}", "x".repeat(100))]);
            assert_eq!((a.wanted(), b.wanted()), (FRAME_HEAD_BYTES, FRAME_HEAD_BYTES));
        }
    }

    #[test]
    fn no_changed_bit_is_heard() {
        let sent = session(&mut asker(), &mut answerer(), &[b"request"]);
        assert_eq!(heard_anew(&sent).expect("authentic").last().map(String::as_str), Some("frame request"));
        for bit in 0..sent.len() * 8 {
            let mut damaged = sent.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // A longer length makes a frame that never comes; everything else is noticed.
            let heard = heard_anew(&damaged).unwrap_or_default();
            assert!(!heard.contains(&"frame request".to_owned()), "bit {bit}: {heard:?}");
            let proof_ends = HELLO_BYTES + FRAME_HEAD_BYTES;
            assert!(proof_ends <= bit / 8 || !heard.contains(&"Proof".to_owned()), "bit {bit}: {heard:?}");
        }
    }

    #[test]
    fn no_cut_session_is_heard_to_its_end() {
        let sent = session(&mut asker(), &mut answerer(), &[b"request"]);
        for bytes in 0..sent.len() {
            let heard = heard_anew(&sent[..bytes]).expect("nothing wrong so far");
            assert!(!heard.contains(&"frame request".to_owned()), "{bytes} bytes: {heard:?}");
            assert_eq!(heard.contains(&"Proof".to_owned()), HELLO_BYTES + FRAME_HEAD_BYTES <= bytes);
        }
    }

    #[test]
    fn a_recorded_session_is_good_for_nothing() {
        let sent = session(&mut asker(), &mut answerer(), &[b"request"]);
        let mut fresh = Conversation::answer(key(), B, 8, [3; NONCE_BYTES]);
        assert_eq!(hear(&mut fresh, &sent, usize::MAX), Err(Fault::Forged), "another nonce");
        let mut other = Conversation::answer(key(), MemberId(0xc), 8, [2; NONCE_BYTES]);
        assert_eq!(hear(&mut other, &sent, usize::MAX), Err(Fault::Forged), "another member");
        let mut stranger = Conversation::answer(BulkKey::new(&[9; 32]), B, 8, [2; NONCE_BYTES]);
        assert_eq!(hear(&mut stranger, &sent, usize::MAX), Err(Fault::Forged), "another key");
        let mut other = Conversation::ask(key(), Hello { receiver: MemberId(0xc), ..hello(1) });
        let mut back = Vec::new();
        let mut b = answerer();
        hear(&mut b, &asker().hello(), 99).expect("a good hello");
        b.greet(&mut back);
        assert_eq!(hear(&mut other, &back, 99), Err(Fault::Forged), "another answerer than the one asked");
    }

    #[test]
    fn a_frame_is_good_for_one_place_and_one_direction() {
        let (mut a, mut b) = (asker(), answerer());
        let sent = session(&mut a, &mut b, &[b"one", b"two"]);
        let proof = HELLO_BYTES..HELLO_BYTES + FRAME_HEAD_BYTES;
        let one = proof.end..proof.end + FRAME_HEAD_BYTES + 3;
        let two = one.end..sent.len();
        let sessions = [
            vec![&proof, &two],
            vec![&one, &two],
            vec![&proof, &one, &one],
            vec![&proof, &proof],
            vec![&proof, &two, &one],
        ];
        for ranges in sessions {
            let mut frames: Vec<u8> = sent[..HELLO_BYTES].to_vec();
            ranges.iter().for_each(|range| frames.extend_from_slice(&sent[(*range).clone()]));
            assert_eq!(heard_anew(&frames), Err(Fault::Forged), "{ranges:?}");
        }
        // What the asker said, said to the asker.
        assert_eq!(hear(&mut a, &sent[proof], 99), Err(Fault::Forged));
        let mut mirror = asker();
        let own = mirror.hello();
        assert_eq!(hear(&mut mirror, &own, 99), Err(Fault::Forged));
    }

    #[test]
    fn an_announcement_takes_no_memory() {
        let mut b = answerer();
        let sent = session(&mut asker(), &mut b, &[&vec![7; FRAME_BYTES_MAX]]);
        let request = HELLO_BYTES + FRAME_HEAD_BYTES;
        hear(&mut b, &sent[HELLO_BYTES..request + FRAME_HEAD_BYTES], 99).expect("authentic");
        assert_eq!((b.wanted(), b.body.capacity()), (FRAME_BYTES_MAX, 0));
        for end in (request + FRAME_HEAD_BYTES..sent.len()).step_by(1_000) {
            let more = &sent[sent.len() - b.wanted()..end];
            assert_eq!(b.feed(more), Ok(Heard::Part));
            assert!(b.body.capacity() <= (2 * b.body.len()).min(FRAME_BYTES_MAX));
        }
        let rest = &sent[sent.len() - b.wanted()..];
        assert_eq!(b.feed(rest), Ok(Heard::Frame));
        assert_eq!(b.take_frame(), vec![7; FRAME_BYTES_MAX]);
        assert_eq!(b.body.capacity(), 0, "nothing is kept for the next one");
        for length in [FRAME_BYTES_MAX as u32 + 1, u32::MAX] {
            let mut b = answerer();
            let mut sent = session(&mut asker(), &mut b, &[]);
            sent.extend_from_slice(&length.to_le_bytes());
            sent.extend_from_slice(&[0; TAG_BYTES]);
            assert_eq!(hear(&mut b, &sent[HELLO_BYTES..], 99), Err(Fault::TooLarge));
        }
    }

    #[test]
    fn a_stranger_may_announce_nothing() {
        for (length, fault) in
            [(1, Fault::Forged), (FRAME_BYTES_MAX as u32, Fault::Forged), (u32::MAX, Fault::TooLarge)]
        {
            let mut sent = asker().hello().to_vec();
            sent.extend_from_slice(&length.to_le_bytes());
            sent.extend_from_slice(&[0; TAG_BYTES]);
            assert_eq!(heard_anew(&sent), Err(fault));
        }
        assert_eq!(hear(&mut answerer(), b"GET / HTTP/1.1", 1), Err(Fault::Forged), "at its first byte");
        assert_eq!(hear(&mut answerer(), b"VltP", 99), Err(Fault::Forged));
    }

    #[test]
    fn a_body_that_is_too_long_is_not_sealed() {
        let mut a = asker();
        session(&mut a, &mut answerer(), &[]);
        let mut out = Vec::new();
        assert_eq!(a.seal(&vec![0; FRAME_BYTES_MAX + 1], &mut out), Err(Fault::TooLarge));
        assert!(out.is_empty());
    }
}
