//! The names of numbered keys.
//!
//! A key is four bytes of its number, four that no other set of keys has, and as many more as its length asks for. Two
//! runs at once against the same servers must not write each other's keys, also with the same seed: so what tells sets
//! apart follows from the set *and* from a [`Mark`] that each run draws anew. Lengths and bytes of values follow from the
//! seed alone. Deliberately not here: order and choice of keys.

use std::hash::{BuildHasher, RandomState};

use serde::{Deserialize, Serialize};
use violet_client::Key;

use crate::values::Random;

/// Shortest key in bytes: number and mark.
pub const KEY_BYTES_MIN: usize = 8;
/// Longest key in bytes, that of the protocol.
pub const KEY_BYTES_MAX: usize = 32;

/// What a run's keys have and those of no other run, whatever their seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark(u64);

impl Mark {
    /// Of a run that begins.
    pub fn fresh() -> Self {
        Self(RandomState::new().hash_one(std::process::id()))
    }

    /// Draws of names that only this run makes.
    pub fn random(self, seed: u64) -> Random {
        Random::new(Random::new(seed).next() ^ self.0)
    }
}

/// The names of one set of keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyNames {
    tag: u32,
    bytes: usize,
}

impl KeyNames {
    /// The names of a set of a run; sets of different seeds have different keys. `bytes` is the length of each.
    ///
    /// # Panics
    /// If that is not 8 to 32: settings are checked before.
    pub fn new(mark: Mark, set_seed: u64, bytes: usize) -> Self {
        assert!((KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&bytes), "keys of {bytes} bytes");
        Self { tag: mark.random(set_seed).next() as u32, bytes }
    }

    /// The key of a number, of which the last four bytes count.
    pub fn key(&self, number: u64) -> Key {
        let mut bytes = [0; KEY_BYTES_MAX];
        bytes[..4].copy_from_slice(&(number as u32).to_le_bytes());
        bytes[4..KEY_BYTES_MIN].copy_from_slice(&self.tag.to_le_bytes());
        if KEY_BYTES_MIN < self.bytes {
            let mut random = Random::new(number << 32 | u64::from(self.tag));
            for word in bytes[KEY_BYTES_MIN..].chunks_mut(size_of::<u64>()) {
                word.copy_from_slice(&random.next().to_le_bytes());
            }
            // A raw key is padded with zeros, and a protobuf one is not: the last byte is never one.
            bytes[self.bytes - 1] |= 1;
        }
        Key::parse(&bytes[..self.bytes]).expect("8 to 32 bytes are a legal key")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn runs_and_sets_have_keys_of_their_own_also_with_the_same_seed() {
        for bytes in [8, 9, 20, 32] {
            let mut seen = BTreeSet::new();
            let mark = Mark::fresh();
            for names in [
                KeyNames::new(mark, 1, bytes),
                KeyNames::new(mark, 2, bytes),
                KeyNames::new(Mark::fresh(), 1, bytes),
            ] {
                for number in [0, 1, 1 << 20] {
                    let key = names.key(number);
                    assert_eq!(key.as_bytes().len(), bytes);
                    assert_eq!(key, names.key(number));
                    assert!(seen.insert(key.as_bytes().to_vec()));
                }
            }
        }
    }
}
