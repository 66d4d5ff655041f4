//! Random numbers that follow from a seed and from nothing else (SplitMix64, Steele et al. 2014).

use std::time::Duration;

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub struct Dice(u64);

/// What [`Dice::chance`] counts in.
pub const MILLION: u32 = 1_000_000;

impl Dice {
    /// The sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The sequence of one part of a run: independent of the sequences of all other parts, so that a
    /// new part does not change what the old ones do.
    #[must_use]
    pub fn of_part(seed: u64, part: &str, number: u64) -> Self {
        let name = xxhash_rust::xxh3::xxh3_64_with_seed(part.as_bytes(), seed);
        let mut dice = Self(name ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93));
        dice.roll();
        dice
    }

    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let number = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ number >> 31
    }

    /// A number below `limit`; 0 when there is none.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.roll()) * u128::from(limit)) >> 64) as u64
    }

    /// An index into something of this length.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True so many times in a million.
    pub fn chance(&mut self, per_million: u32) -> bool {
        self.below(u64::from(MILLION)) < u64::from(per_million)
    }

    /// A time of at least `min` and less than `max`.
    pub fn time(&mut self, min: Duration, max: Duration) -> Duration {
        let span = max.saturating_sub(min).as_nanos() as u64;
        min + Duration::from_nanos(self.below(span))
    }
}
