//! Reads that a replica has answered to the client itself, told to their front end.
//!
//! The front end needs to know, but not at once: nobody waits for it. So the word travels at the head of
//! whatever frame goes to that member next, and only if none does for a while in a frame of its own. On a
//! busy cluster that spares one datagram of four for most reads.

use super::super::fields::{Reader, push_u64, push_version};
use crate::ids::{Token, Version};
use crate::time::Duration;

/// Most of them in one frame.
pub const ANSWERED_MAX: usize = 16;
/// Token, version, microseconds.
const ANSWERED_BYTES: usize = 8 + 16 + 4;

/// A read that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The front end's name for it.
    pub token: Token,
    /// Which version the client got.
    pub version: Version,
    /// For how long the word was held back; on the wire to the microsecond, at most 71 minutes.
    pub held: Duration,
}

/// Appends a list of at most [`ANSWERED_MAX`]; more would be left out.
pub fn push_answered(out: &mut Vec<u8>, answered: impl ExactSizeIterator<Item = Answered>) {
    out.push(answered.len().min(ANSWERED_MAX) as u8);
    for Answered { token, version, held } in answered.take(ANSWERED_MAX) {
        push_u64(out, token);
        push_version(out, version);
        out.extend_from_slice(&u32::try_from(held.as_micros()).unwrap_or(u32::MAX).to_le_bytes());
    }
}

/// Takes the list off the head of a body; `None` when that is no list.
#[must_use]
pub fn split_answered(body: &[u8]) -> Option<(impl Iterator<Item = Answered> + Clone, &[u8])> {
    let mut reader = Reader(body);
    let count = usize::from(reader.u8()?);
    if ANSWERED_MAX < count {
        return None;
    }
    let list = reader.bytes(count * ANSWERED_BYTES)?;
    let read = |bytes: &[u8]| {
        let mut reader = Reader(bytes);
        let (token, version) = (reader.u64()?, reader.version()?);
        Some(Answered { token, version, held: Duration::from_micros(reader.u32()?.into()) })
    };
    Some((list.chunks_exact(ANSWERED_BYTES).filter_map(read), reader.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_back_as_they_were_and_cut_ones_are_none() {
        for count in [0, 1, ANSWERED_MAX] {
            let one = |number: u64| Answered {
                token: number,
                version: Version { time: number + 1, writer: number + 2 },
                held: Duration::from_micros(number + 3),
            };
            let list: Vec<Answered> = (0..count as u64).map(one).collect();
            let mut body = Vec::new();
            push_answered(&mut body, list.iter().copied());
            let cut = body.len() - 1;
            assert!(split_answered(&body[..cut]).is_none());
            body.extend_from_slice(b"rest");
            let (read, rest) = split_answered(&body).expect("a list");
            assert_eq!((read.collect::<Vec<_>>(), rest), (list, &b"rest"[..]));
        }
        assert!(split_answered(&[ANSWERED_MAX as u8 + 1; 1_000]).is_none());
    }
}
