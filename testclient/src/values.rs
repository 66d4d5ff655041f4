//! Contents that follow from a key and a version, and the small random generator behind them.
//!
//! A value is a stream of mixed words that starts from (seed, key, version), so the bytes that a GET
//! must return can be made again instead of being remembered: checking costs no memory and about a
//! nanosecond for eight bytes. A value under the wrong key or of another version differs from its
//! first byte. Deliberately not here: cryptographic strength, and any use of the clock.

use std::hash::{BuildHasher, RandomState};

/// Weyl increment of SplitMix64 (Steele, Lea, Flood 2014).
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// SplitMix64: small, fast, and the same sequence for the same seed on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that starts from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed ^ GAMMA))
    }

    /// A seed that no two runs share.
    pub fn fresh_seed() -> u64 {
        // Short enough to be typed again.
        u64::from(RandomState::new().hash_one(0) as u32)
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// A number below `limit`, which must not be zero.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    /// Random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.next() as u8).take(count).collect()
    }
}

/// How long the values of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// All of this many bytes.
    Fixed(usize),
    /// From 1 byte to this many, as the 2019 clients draw them (to 1,000).
    UpTo(usize),
}

/// Makes and checks the values of one run.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    seed: u64,
    sizes: Sizes,
}

impl Contents {
    /// The contents that belong to `seed`.
    pub fn new(seed: u64, sizes: Sizes) -> Self {
        Self { seed: mix(seed), sizes }
    }

    fn start(&self, key: u64, version: i32) -> u64 {
        mix(mix(self.seed ^ key).wrapping_add(u64::from(version as u32)))
    }

    /// How many bytes the value of this key and version has.
    pub fn value_bytes(&self, key: u64, version: i32) -> usize {
        match self.sizes {
            Sizes::Fixed(bytes) => bytes,
            Sizes::UpTo(bytes_max) => 1 + (self.start(key, version) % bytes_max as u64) as usize,
        }
    }

    /// Appends the value.
    pub fn write(&self, key: u64, version: i32, out: &mut Vec<u8>) {
        let count = self.value_bytes(key, version);
        let end = out.len() + count;
        out.reserve(count + 8);
        let mut words = Random(self.start(key, version));
        while out.len() < end {
            out.extend_from_slice(&words.next().to_le_bytes());
        }
        out.truncate(end);
    }

    /// The value as a vector of its own.
    pub fn make(&self, key: u64, version: i32) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(key, version, &mut bytes);
        bytes
    }

    /// Whether `bytes` are exactly the value of this key and version.
    pub fn matches(&self, key: u64, version: i32, bytes: &[u8]) -> bool {
        if bytes.len() != self.value_bytes(key, version) {
            return false;
        }
        let mut words = Random(self.start(key, version));
        bytes.chunks(8).all(|chunk| chunk == &words.next().to_le_bytes()[..chunk.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_matches_itself_and_no_other() {
        for sizes in [Sizes::Fixed(1), Sizes::Fixed(9), Sizes::Fixed(10_000), Sizes::UpTo(1_000)] {
            let contents = Contents::new(7, sizes);
            for key in 0..50 {
                let value = contents.make(key, -3);
                assert!(contents.matches(key, -3, &value));
                if 8 <= value.len() {
                    assert!(!contents.matches(key, -2, &value));
                    assert!(!contents.matches(key + 1, -3, &value));
                    assert!(!Contents::new(8, sizes).matches(key, -3, &value));
                }
                assert!(!contents.matches(key, -3, &value[1..]), "a shorter value never matches");
                let mut damaged = value.clone();
                *damaged.last_mut().unwrap() ^= 1;
                assert!(!contents.matches(key, -3, &damaged));
            }
        }
    }

    #[test]
    fn random_sizes_cover_the_range_and_stay_inside() {
        let contents = Contents::new(1, Sizes::UpTo(10));
        let mut seen = [0; 11];
        (0..2_000).for_each(|key| seen[contents.value_bytes(key, 0)] += 1);
        assert_eq!(seen[0], 0);
        assert!(seen[1..].iter().all(|&count| 100 < count), "{seen:?}");
    }

    #[test]
    fn numbers_below_a_limit_reach_every_value() {
        let mut random = Random::new(3);
        let mut seen = [false; 5];
        (0..200).for_each(|_| seen[random.below(5)] = true);
        assert_eq!(seen, [true; 5]);
    }
}
