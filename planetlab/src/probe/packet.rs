//! Packets between probe agents: a header of 48 bytes, then zeros up to the size that is probed.
//!
//! ```text
//! 0   4  "VPRB"           8   8  number of the probe       16  2  index of the sender
//! 18  1  kind             19  1  state of the sender       20  4  sequence number
//! 24  8  clock of the asker when it asked (ns of 1970)
//! 32  8  clock of the answerer when the ask came           40  8  when the answer left
//! ```
//!
//! Numbers are little-endian. An answer is as long as what it answers and repeats the sequence number, so nothing can be
//! made longer by an agent.

/// Bytes of a small packet.
pub const SMALL_BYTES: usize = 64;
/// Bytes of a large one: the longest value that Violet stores.
pub const LARGE_BYTES: usize = 10_000;

const MAGIC: [u8; 4] = *b"VPRB";
const HEADER_BYTES: usize = 48;
const _: () = assert!(HEADER_BYTES <= SMALL_BYTES);

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// "I am here"; not answered.
    Hello,
    /// To be answered.
    Ask,
    /// The answer to one.
    Answer,
}

/// How far the sender is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Waits for the others.
    Gathering,
    /// Measures.
    Measuring,
    /// Only answers.
    Done,
}

/// A packet without its zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Of the probe.
    pub run: u64,
    /// Index of the sender.
    pub from: u16,
    /// What it is for.
    pub kind: Kind,
    /// Of the sender.
    pub state: State,
    /// Counts the asks of one size to one peer.
    pub sequence: u32,
    /// Clock of the asker when it asked, in nanoseconds from 1970.
    pub asked: u64,
    /// Clock of the answerer when the ask came.
    pub came: u64,
    /// Clock of the answerer when the answer left.
    pub left: u64,
}

impl Packet {
    /// Writes the packet at the start of a buffer whose length is the packet's.
    pub fn write(&self, buffer: &mut [u8]) {
        buffer[..4].copy_from_slice(&MAGIC);
        buffer[4..8].fill(0);
        buffer[8..16].copy_from_slice(&self.run.to_le_bytes());
        buffer[16..18].copy_from_slice(&self.from.to_le_bytes());
        buffer[18] = match self.kind {
            Kind::Hello => 0,
            Kind::Ask => 1,
            Kind::Answer => 2,
        };
        buffer[19] = match self.state {
            State::Gathering => 0,
            State::Measuring => 1,
            State::Done => 2,
        };
        buffer[20..24].copy_from_slice(&self.sequence.to_le_bytes());
        buffer[24..32].copy_from_slice(&self.asked.to_le_bytes());
        buffer[32..40].copy_from_slice(&self.came.to_le_bytes());
        buffer[40..48].copy_from_slice(&self.left.to_le_bytes());
    }

    /// Reads a packet; nothing if it is none of ours.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < HEADER_BYTES || bytes[..4] != MAGIC {
            return None;
        }
        let number = |at: usize| {
            let eight = bytes[at..at + 8].try_into();
            u64::from_le_bytes(eight.expect("a range of eight bytes is eight bytes long"))
        };
        Some(Self {
            run: number(8),
            from: u16::from_le_bytes([bytes[16], bytes[17]]),
            kind: match bytes[18] {
                0 => Kind::Hello,
                1 => Kind::Ask,
                2 => Kind::Answer,
                _ => return None,
            },
            state: match bytes[19] {
                0 => State::Gathering,
                1 => State::Measuring,
                2 => State::Done,
                _ => return None,
            },
            sequence: u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]),
            asked: number(24),
            came: number(32),
            left: number(40),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_back_and_others_do_not() {
        let packet = Packet {
            run: 7,
            from: 3,
            kind: Kind::Answer,
            state: State::Done,
            sequence: 90_000,
            asked: 1,
            came: u64::MAX,
            left: 2,
        };
        let mut buffer = [0; SMALL_BYTES];
        packet.write(&mut buffer);
        assert_eq!(Packet::parse(&buffer), Some(packet));
        assert_eq!(Packet::parse(&buffer[..47]), None);
        for (at, byte) in [(0, b'X'), (18, 3), (19, 3)] {
            let mut other = buffer;
            other[at] = byte;
            assert_eq!(Packet::parse(&other), None, "byte {at}");
        }
    }
}
