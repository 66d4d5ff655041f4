//! What one member asks of another over the bulk channel, to compare and copy partitions.
//!
//! Three questions, each answered in one piece: the digests of partitions, the keys in some leaves of
//! them, the records under some keys. An answer that would be too long stops early and says how far it
//! came; whoever asks goes on from there. Numbers are little endian. A request that is not one to the
//! last byte is none.

use super::bulk::FRAME_BYTES_MAX;
use super::fields::{Reader, push_content, push_key, push_u64, push_version};
use crate::ids::Version;
use violet_client::wire::siblings::SIBLINGS_BYTES_MAX;
use violet_client::{Key, Value};

/// Bytes after which an answer takes nothing more in.
pub const ANSWER_BYTES: usize = 160 * 1024;
const _: () = assert!(
    ANSWER_BYTES + SIBLINGS_BYTES_MAX + 1_024 <= FRAME_BYTES_MAX,
    "the largest record still fits when one byte more would have been too much"
);
/// Sums per digest.
pub const DIGEST_LEAVES: usize = 32;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The digests of these partitions.
    Digests(Vec<u16>),
    /// The keys in these leaves (a bit each) of these partitions.
    Keys(Vec<(u16, u32)>),
    /// The records under these keys.
    Records(Vec<(u16, Key)>),
}

impl Request {
    /// Appends the question.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Digests(partitions) => {
                out.push(1);
                partitions.iter().for_each(|partition| push_u16(out, *partition));
            }
            Self::Keys(leaves) => {
                out.push(2);
                for (partition, leaves) in leaves {
                    push_u16(out, *partition);
                    out.extend_from_slice(&leaves.to_le_bytes());
                }
            }
            Self::Records(keys) => {
                out.push(3);
                for (partition, key) in keys {
                    push_u16(out, *partition);
                    push_key(out, key);
                }
            }
        }
    }

    /// Reads a question; `None` when it is none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        Some(match reader.u8()? {
            1 => Self::Digests(all(reader, |reader| reader.u16())?),
            2 => Self::Keys(all(reader, |reader| Some((reader.u16()?, reader.u32()?)))?),
            3 => Self::Records(all(reader, |reader| Some((reader.u16()?, reader.key()?)))?),
            _ => return None,
        })
    }
}

fn all<T>(mut reader: Reader<'_>, mut one: impl FnMut(&mut Reader<'_>) -> Option<T>) -> Option<Vec<T>> {
    let mut list = Vec::new();
    while !reader.0.is_empty() {
        list.push(one(&mut reader)?);
    }
    Some(list)
}

fn push_u16(out: &mut Vec<u8>, number: u16) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// A key as it stands in an answer to [`Request::Keys`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its partition.
    pub partition: u16,
    /// The key.
    pub key: Key,
    /// Its version.
    pub version: Version,
    /// It is a tombstone.
    pub removed: bool,
    /// Stands for what it holds if it is a set of siblings; 0 if it is none.
    pub contents: u64,
}

/// A record as it stands in an answer to [`Request::Records`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied<'a> {
    /// Its partition.
    pub partition: u16,
    /// Its key.
    pub key: Key,
    /// Its version.
    pub version: Version,
    /// The value; `None` is a tombstone.
    pub value: Option<Value<'a>>,
    /// The value's bytes are those of a set of siblings.
    pub is_set: bool,
}

/// Appends the answer to [`Request::Digests`]: the sums of each partition, in the order asked.
pub fn push_digest(out: &mut Vec<u8>, leaves: &[u64; DIGEST_LEAVES]) {
    leaves.iter().for_each(|sum| push_u64(out, *sum));
}

/// Reads the answer to [`Request::Digests`].
#[must_use]
pub fn digests(bytes: &[u8]) -> Option<Vec<[u64; DIGEST_LEAVES]>> {
    all(Reader(bytes), |reader| {
        let mut leaves = [0; DIGEST_LEAVES];
        for sum in &mut leaves {
            *sum = reader.u64()?;
        }
        Some(leaves)
    })
}

/// An answer that may have stopped early: how many of the things asked for it covers, then the things.
#[derive(Debug)]
pub struct Answer<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    covered: u32,
}

impl<'a> Answer<'a> {
    /// An answer that covers nothing yet.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        Self { out, start, covered: 0 }
    }

    /// Whether nothing more should go in.
    #[must_use]
    pub fn is_full(&self) -> bool {
        ANSWER_BYTES <= self.out.len() - self.start
    }

    /// One more of the things asked for is covered.
    pub fn cover(&mut self) {
        self.covered += 1;
        self.out[self.start..self.start + 4].copy_from_slice(&self.covered.to_le_bytes());
    }

    /// Adds a key.
    pub fn list(&mut self, listed: &Listed) {
        push_u16(self.out, listed.partition);
        push_version(self.out, listed.version);
        self.out.push(match (listed.removed, listed.contents) {
            (true, _) => 1,
            (false, 0) => 0,
            (false, _) => 2,
        });
        if listed.contents != 0 {
            push_u64(self.out, listed.contents);
        }
        push_key(self.out, &listed.key);
    }

    /// Adds a record.
    pub fn copy(&mut self, copied: &Copied<'_>) {
        push_u16(self.out, copied.partition);
        push_version(self.out, copied.version);
        push_key(self.out, &copied.key);
        push_content(self.out, copied.value, copied.is_set);
    }
}

/// Reads the answer to [`Request::Keys`]: how many leaves it covers, and the keys.
#[must_use]
pub fn keys(bytes: &[u8]) -> Option<(usize, Vec<Listed>)> {
    let mut reader = Reader(bytes);
    let covered = reader.u32()? as usize;
    let one = |reader: &mut Reader<'_>| {
        let partition = reader.u16()?;
        let version = reader.version()?;
        let (removed, contents) = match reader.u8()? {
            0 => (false, 0),
            1 => (true, 0),
            2 => (false, reader.u64().filter(|contents| *contents != 0)?),
            _ => return None,
        };
        Some(Listed { partition, version, removed, contents, key: reader.key()? })
    };
    Some((covered, all(reader, one)?))
}

/// Reads the answer to [`Request::Records`]: how many keys it covers; `each` is given the records.
#[must_use]
pub fn records(bytes: &[u8], mut each: impl FnMut(&Copied<'_>)) -> Option<usize> {
    let mut reader = Reader(bytes);
    let covered = reader.u32()? as usize;
    while !reader.0.is_empty() {
        let partition = reader.u16()?;
        let version = reader.version()?;
        let key = reader.key()?;
        let (value, is_set) = reader.content()?;
        each(&Copied { partition, key, version, value, is_set });
    }
    Some(covered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &[u8]) -> Key {
        Key::parse(name).expect("short enough")
    }

    #[test]
    fn questions_survive_the_wire_and_cut_ones_do_not() {
        let requests = [
            Request::Digests(vec![1, 2_047]),
            Request::Keys(vec![(1, u32::MAX), (9, 1)]),
            Request::Records(vec![(1, key(b"a")), (3, key(b"another"))]),
        ];
        for request in requests {
            let mut bytes = Vec::new();
            request.encode(&mut bytes);
            assert_eq!(Request::decode(&bytes), Some(request));
            assert_eq!(Request::decode(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!((Request::decode(&[]), Request::decode(&[9])), (None, None));
    }

    #[test]
    fn answers_survive_the_wire() {
        let version = Version { time: 1, writer: 2 };
        let listed = Listed { partition: 3, key: key(b"k"), version, removed: true, contents: 0 };
        let set = Listed { removed: false, contents: 1 << 40, ..listed };
        let mut bytes = Vec::new();
        let mut answer = Answer::new(&mut bytes);
        answer.list(&listed);
        answer.list(&set);
        answer.cover();
        answer.cover();
        assert_eq!(keys(&bytes), Some((2, vec![listed, set])));

        let value = Some(Value { bytes: b"value", version: -1 });
        let copies = [
            Copied { partition: 3, key: key(b"k"), version, value, is_set: true },
            Copied { partition: 4, key: key(b"l"), version, value: None, is_set: false },
        ];
        let mut bytes = Vec::new();
        let mut answer = Answer::new(&mut bytes);
        copies.iter().for_each(|copied| answer.copy(copied));
        let mut seen = 0;
        let covered = records(&bytes, |copied| {
            assert_eq!(*copied, copies[seen]);
            seen += 1;
        });
        assert_eq!((covered, seen), (Some(0), 2));
        for end in 0..bytes.len() {
            let whole = records(&bytes[..end], |_| {}).is_some();
            assert_eq!(whole, end == 4 || end == 4 + 2 + 16 + 2 + 1 + 4 + 4 + 5, "cut at {end}");
        }

        let leaves = std::array::from_fn(|leaf| leaf as u64);
        let mut bytes = Vec::new();
        push_digest(&mut bytes, &leaves);
        assert_eq!(digests(&bytes), Some(vec![leaves]));
        assert_eq!(digests(&bytes[1..]), None);
    }
}
