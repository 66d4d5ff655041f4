//! Frames between members: what they say, and the envelope that proves who said it.
//!
//! ```text
//! magic(4) length(2) tag(16) sender(8) generation(8) sequence(8) sent_at(8) standing(8) answered kind(1) body
//! ```
//!
//! A datagram of the peer lane holds one frame or several ([`frames`]): what goes to one member at a time
//! is joined, up to [`JOINED_BYTES_MAX`]. Each frame tells its length, everything included, and is sealed by
//! itself.
//!
//! The tag is SipHash-2-4-128 over the receiver's name (which is not sent: the receiver knows it) and
//! everything behind the tag, under a key derived by BLAKE3 from the cluster's key (one for each magic).
//! For frames of this size SipHash takes a third to a half of the time of a keyed BLAKE3, and that was a
//! twentieth of all that a busy node did. So a frame copied to another member opens nowhere. Sequence numbers run per sender and receiver; the
//! receiver's window ([`crate::cluster::Peer::accept`]) refuses what it has seen, and the send time
//! refuses what was on its way for too long. A client's address is only ever taken from here.
//!
//! Deliberately not here: compatibility. All members of a cluster run the same version.

pub mod bulk;
mod fields;
pub mod message;
pub mod transfer;

use crate::ids::{Generation, MemberId};
use crate::time::Instant;
use fields::Reader;
pub use message::{
    Answered, ClientAddress, MemberLists, Message, ReadRole, Recollection, Roots, Write, WriteOutcome,
};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;

/// First bytes of a frame of the peer lane; the kernel steers by them.
pub const PEER_MAGIC: [u8; 4] = *b"VltP";
/// First bytes of a frame of the gossip lane.
pub const GOSSIP_MAGIC: [u8; 4] = *b"VltG";

const TAG_BYTES: usize = 16;
const LENGTH_FROM: usize = PEER_MAGIC.len();
const TAG_FROM: usize = LENGTH_FROM + size_of::<u16>();
const SEALED_FROM: usize = TAG_FROM + TAG_BYTES;
/// Frames are joined up to this length, which fits the MTU of nearly every path, whatever is around it.
pub const JOINED_BYTES_MAX: usize = 1_400;
/// Bytes before the body.
pub const ENVELOPE_BYTES: usize = SEALED_FROM + 5 * 8;

/// The frames that a datagram of the peer lane holds. What is left over when it does not end with a frame
/// comes last, as it is; it opens nowhere.
pub fn frames(mut datagram: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = length_of(datagram).filter(|length| ENVELOPE_BYTES <= *length);
        let length = length.unwrap_or(usize::MAX).min(datagram.len());
        let (frame, rest) = datagram.split_at(length);
        datagram = rest;
        (!frame.is_empty()).then_some(frame)
    })
}

fn length_of(frame: &[u8]) -> Option<usize> {
    let bytes = frame.get(LENGTH_FROM..)?.first_chunk()?;
    Some(usize::from(u16::from_le_bytes(*bytes)))
}

/// What a frame says, without a look at who sealed it: for whoever watches the network.
#[must_use]
pub fn glance(frame: &[u8]) -> Option<(usize, Message<'_>)> {
    let (answered, message) = message::answered::split_answered(frame.get(ENVELOPE_BYTES..)?)?;
    Some((answered.count(), Message::decode(message)?))
}

/// What a member says of itself in every frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Hash of the layout that it uses; the low bits are zero.
    pub layout: u64,
    /// Everything that it owns in that layout it holds.
    pub full: bool,
    /// It is on its way out and must not be placed.
    pub leaving: bool,
    /// No replaced layout is in force with it.
    pub settled: bool,
    /// It gives way to others because it is late ([`crate::cluster::aside`]).
    pub aside: bool,
    /// It cannot hear most of the others ([`crate::cluster::isolation`]).
    pub cut_off: bool,
}

impl Standing {
    /// The bits that are not the layout's.
    pub const FLAGS: u64 = 31;

    /// As one number.
    #[must_use]
    pub fn pack(self) -> u64 {
        let flags = [self.full, self.leaving, self.settled, self.aside, self.cut_off];
        (0..).zip(flags).fold(self.layout, |number, (bit, flag)| number | u64::from(flag) << bit)
    }

    /// From one number.
    #[must_use]
    pub fn unpack(number: u64) -> Self {
        let flag = |bit: u32| number >> bit & 1 == 1;
        Self {
            layout: number & !Self::FLAGS,
            full: flag(0),
            leaving: flag(1),
            settled: flag(2),
            aside: flag(3),
            cut_off: flag(4),
        }
    }
}

/// The keys of one lane's frames.
#[derive(Clone)]
pub struct FrameKey {
    magic: [u8; 4],
    key: [u8; 16],
}

impl std::fmt::Debug for FrameKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FrameKey")
    }
}

/// Who sent a frame, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The sender's name.
    pub sender: MemberId,
    /// Which start of the sender.
    pub generation: Generation,
    /// Counts the frames from this sender to this receiver.
    pub sequence: u64,
    /// When it was sent, on the sender's clock.
    pub sent_at: Instant,
    /// What the sender says of itself.
    pub standing: Standing,
}

impl FrameKey {
    /// The key for frames of the peer lane.
    #[must_use]
    pub fn peer(cluster_key: &[u8; 32]) -> Self {
        Self::derive(PEER_MAGIC, "violet peer frames", cluster_key)
    }

    /// The key for frames of the gossip lane.
    #[must_use]
    pub fn gossip(cluster_key: &[u8; 32]) -> Self {
        Self::derive(GOSSIP_MAGIC, "violet gossip frames", cluster_key)
    }

    fn derive(magic: [u8; 4], context: &str, cluster_key: &[u8; 32]) -> Self {
        let key = blake3::derive_key(context, cluster_key);
        Self { magic, key: *key.first_chunk().expect("it has 32 bytes") }
    }

    /// Whether these bytes claim to be a frame of this lane.
    #[must_use]
    pub fn claims(&self, bytes: &[u8]) -> bool {
        bytes.starts_with(&self.magic)
    }

    /// Appends a frame for one receiver, whose body `body` appends.
    pub fn seal(
        &self,
        receiver: MemberId,
        envelope: &Envelope,
        out: &mut Vec<u8>,
        body: impl FnOnce(&mut Vec<u8>),
    ) {
        let start = out.len();
        out.extend_from_slice(&self.magic);
        out.extend_from_slice(&[0; SEALED_FROM - LENGTH_FROM]);
        let Envelope { sender, generation, sequence, sent_at, standing } = *envelope;
        for number in [sender.0, generation, sequence, sent_at.as_nanos(), standing.pack()] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        body(out);
        // What is longer than a datagram can be is refused by the network, and by this, too.
        let length = u16::try_from(out.len() - start).unwrap_or(0);
        let tag = self.tag(receiver, &out[start + SEALED_FROM..]);
        let frame = &mut out[start..];
        frame[LENGTH_FROM..TAG_FROM].copy_from_slice(&length.to_le_bytes());
        frame[TAG_FROM..SEALED_FROM].copy_from_slice(&tag);
    }

    /// Checks the tag and returns the envelope and the body; `None` when it is not authentic, or was
    /// sealed for somebody else.
    #[must_use]
    pub fn open<'a>(&self, receiver: MemberId, bytes: &'a [u8]) -> Option<(Envelope, &'a [u8])> {
        if bytes.len() < ENVELOPE_BYTES || !self.claims(bytes) || length_of(bytes) != Some(bytes.len()) {
            return None;
        }
        let claimed = bytes[TAG_FROM..].first_chunk::<TAG_BYTES>()?;
        if !constant_time_eq::constant_time_eq_16(claimed, &self.tag(receiver, &bytes[SEALED_FROM..])) {
            return None;
        }
        let mut reader = Reader(&bytes[SEALED_FROM..]);
        let envelope = Envelope {
            sender: MemberId(reader.u64()?),
            generation: reader.u64()?,
            sequence: reader.u64()?,
            sent_at: Instant::from_nanos(reader.u64()?),
            standing: Standing::unpack(reader.u64()?),
        };
        Some((envelope, reader.0))
    }

    fn tag(&self, receiver: MemberId, sealed: &[u8]) -> [u8; TAG_BYTES] {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(&receiver.0.to_le_bytes());
        hasher.write(sealed);
        hasher.finish128().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_opens_only_unchanged_and_under_its_own_key() {
        let (key, to) = (FrameKey::peer(&[1; 32]), MemberId(9));
        let standing =
            Standing { layout: 32, full: true, settled: true, cut_off: true, ..Standing::default() };
        let sent_at = Instant::from_nanos(4);
        let envelope = Envelope { sender: MemberId(1), generation: 2, sequence: 3, sent_at, standing };
        let mut frame = Vec::new();
        key.seal(to, &envelope, &mut frame, |out| out.extend_from_slice(b"body"));
        assert_eq!(key.open(to, &frame), Some((envelope, &b"body"[..])));
        assert_eq!(FrameKey::peer(&[2; 32]).open(to, &frame), None);
        assert_eq!(key.open(MemberId(8), &frame), None, "it is for somebody else");
        assert_eq!(FrameKey::gossip(&[1; 32]).open(to, &frame), None);
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.open(to, &damaged), None, "bit {bit}");
        }
        assert_eq!(key.open(to, &frame[..ENVELOPE_BYTES - 1]), None);
    }

    #[test]
    fn joined_frames_are_told_apart_and_what_is_no_frame_hides_none_before_it() {
        let key = FrameKey::peer(&[1; 32]);
        let standing = Standing::default();
        let (generation, sent_at) = (2, Instant::from_nanos(4));
        let mut joined = Vec::new();
        for (sequence, body) in [(1, &b"first"[..]), (2, b""), (3, b"third")] {
            let envelope = Envelope { sender: MemberId(1), generation, sequence, sent_at, standing };
            key.seal(MemberId(9), &envelope, &mut joined, |out| out.extend_from_slice(body));
        }
        let open = |bytes: &[u8]| -> Vec<Option<u64>> {
            frames(bytes)
                .map(|frame| key.open(MemberId(9), frame).map(|(envelope, _)| envelope.sequence))
                .collect()
        };
        assert_eq!(open(&joined), [Some(1), Some(2), Some(3)]);
        assert_eq!(open(&joined[..joined.len() - 1]), [Some(1), Some(2), None]);
        assert_eq!(open(&[&joined[..], b"VltP"].concat()), [Some(1), Some(2), Some(3), None]);
        for length in [0, ENVELOPE_BYTES as u16 - 1, u16::MAX] {
            joined[LENGTH_FROM..TAG_FROM].copy_from_slice(&length.to_le_bytes());
            assert_eq!(open(&joined), [None], "{length}");
        }
        assert_eq!(open(b"VltP"), [None]);
        assert_eq!(open(b""), []);
    }
}
