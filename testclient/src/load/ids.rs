//! Ids of requests: whose they are, in which slot, and which.
//!
//! 16 bytes, opaque to servers: four of a nonce, four of the slot, eight of the running number, mixed with more of the
//! nonce. A reply of another run, or with a made-up id, fails one of the two checks but for one in 2^55 times. Some
//! clients of the course look for the first eight bytes only; these alone differ among requests under way.

use violet_client::MessageId;

/// Numbers of a run stay below this; the bits above must be zero when an id comes back.
const NUMBER_BITS: u32 = 40;

/// Makes and reads the ids of one run.
#[derive(Clone, Copy, Debug)]
pub struct Ids {
    first: u32,
    mask: u64,
}

impl Ids {
    /// The ids that belong to a nonce.
    pub fn new(nonce: u64) -> Self {
        // A raw datagram must not begin like the protobuf envelope (0x0a), so its first byte is kept above that.
        let first = nonce as u32 | 0x80;
        Self { first, mask: nonce.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15) }
    }

    /// The id of a request.
    pub fn of(&self, slot: usize, number: u64) -> MessageId {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&self.first.to_le_bytes());
        id[4..8].copy_from_slice(&(slot as u32).to_le_bytes());
        id[8..].copy_from_slice(&(number ^ self.mask).to_le_bytes());
        MessageId(id)
    }

    /// Slot and number of an id; `None` for one that is not of this run.
    pub fn read(&self, id: MessageId) -> Option<(usize, u64)> {
        let (first, rest) = id.0.split_first_chunk::<4>()?;
        let (slot, rest) = rest.split_first_chunk::<4>()?;
        let number = u64::from_le_bytes(*rest.first_chunk()?) ^ self.mask;
        let is_ours = u32::from_le_bytes(*first) == self.first && number >> NUMBER_BITS == 0;
        is_ours.then(|| (u32::from_le_bytes(*slot) as usize, number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back_and_others_are_refused() {
        for nonce in [0, 0x0a, u64::MAX, 0x1234_5678_9abc_def0] {
            let ids = Ids::new(nonce);
            for (slot, number) in [(0, 0), (65_536, 1), (7, (1 << NUMBER_BITS) - 1)] {
                let id = ids.of(slot, number);
                assert!(0x80 <= id.0[0]);
                assert_eq!(ids.read(id), Some((slot, number)));
                assert_eq!(Ids::new(nonce ^ 1 << 20).read(id), None, "another run");
                let mut damaged = id;
                damaged.0[15] ^= 0x40;
                assert_eq!(ids.read(damaged), None);
            }
        }
    }
}
