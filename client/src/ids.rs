//! Message ids that never repeat: half of each is random for this process and this sequence, the other
//! half counts.
//!
//! The randomness is what the standard library seeds its hash maps with, mixed with the time and the
//! process id. It is no secret-grade randomness: ids must be unique, not unguessable.

use std::hash::{BuildHasher, RandomState};
use std::time::SystemTime;

use crate::wire::{MESSAGE_ID_BYTES, MessageId};

/// The first byte of every protobuf request. A raw id that starts so could, with bad luck further on,
/// be taken for an envelope, so no id starts so.
const ENVELOPE_START: u8 = 0x0a;

/// A sequence of message ids.
#[derive(Clone, Debug)]
pub struct MessageIds {
    start: u64,
    count: u64,
}

impl MessageIds {
    /// A sequence of its own: two sequences meet with a chance of about one in 2^64.
    #[must_use]
    pub fn new() -> Self {
        let mut start = random_number().to_be_bytes();
        if start[0] == ENVELOPE_START {
            start[0] = !ENVELOPE_START;
        }
        Self { start: u64::from_be_bytes(start), count: random_number() }
    }

    /// The next id, different from all before it.
    pub fn draw(&mut self) -> MessageId {
        self.count = self.count.wrapping_add(1);
        let mut bytes = [0; MESSAGE_ID_BYTES];
        bytes[..8].copy_from_slice(&self.start.to_be_bytes());
        bytes[8..].copy_from_slice(&self.count.to_be_bytes());
        MessageId(bytes)
    }
}

impl Default for MessageIds {
    fn default() -> Self {
        Self::new()
    }
}

/// A number that is different each time and in each process.
pub(crate) fn random_number() -> u64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    RandomState::new().hash_one((since_epoch, std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_of_many_sequences_are_all_different() {
        let mut sequences: Vec<MessageIds> = (0..1000).map(|_| MessageIds::new()).collect();
        let mut seen = BTreeSet::new();
        for ids in &mut sequences {
            for _ in 0..10 {
                let id = ids.draw();
                assert_ne!(id.0[0], ENVELOPE_START);
                assert!(seen.insert(id), "{id:?} came twice");
            }
        }
    }

    #[test]
    fn the_count_may_wrap() {
        let mut ids = MessageIds { start: 1, count: u64::MAX - 1 };
        assert_ne!(ids.draw(), ids.draw());
    }
}
