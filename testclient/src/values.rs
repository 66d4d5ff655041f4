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
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sizes {
    /// All of this many bytes.
    Fixed(usize),
    /// From 1 byte to this many, as the 2019 clients draw them (to 1,000).
    UpTo(usize),
    /// From the first to the second.
    Between(usize, usize),
    /// Log-normal, cut off at both ends.
    LogNormal {
        /// Half of the values are shorter.
        median: f64,
        /// Deviation of the natural logarithm.
        sigma: f64,
        /// The longest; the shortest has one byte.
        bytes_max: usize,
    },
    /// One of these, read once for the length of the program.
    Listed(&'static [u16]),
}

impl Sizes {
    /// The longest that can occur.
    pub fn bytes_max(self) -> usize {
        match self {
            Self::Fixed(bytes) | Self::UpTo(bytes) | Self::Between(_, bytes) => bytes,
            Self::LogNormal { bytes_max, .. } => bytes_max,
            Self::Listed(sizes) => sizes.iter().copied().max().unwrap_or(1).into(),
        }
    }

    /// The same lengths where none may be longer than this, if that can be had: what is drawn from a distribution without
    /// an end is cut off there.
    pub fn up_to(self, bytes_max: usize) -> Option<Self> {
        match self {
            Self::LogNormal { median, sigma, .. } => Some(Self::LogNormal { median, sigma, bytes_max }),
            sizes => (sizes.bytes_max() <= bytes_max).then_some(sizes),
        }
    }

    /// The length that belongs to a drawn word.
    fn bytes_of(self, word: u64) -> usize {
        match self {
            Self::Fixed(bytes) => bytes,
            Self::UpTo(bytes_max) => 1 + (word % bytes_max as u64) as usize,
            Self::Between(from, to) => from + (word % (to - from + 1) as u64) as usize,
            Self::LogNormal { median, sigma, bytes_max } => {
                let bytes = median * (sigma * normal(word)).exp();
                (bytes.round() as usize).clamp(1, bytes_max)
            }
            Self::Listed(sizes) => usize::from(sizes[(word % sizes.len() as u64) as usize]),
        }
    }
}

/// A normal number (mean 0, deviation 1) from a drawn word, by the method of Box and Muller.
fn normal(word: u64) -> f64 {
    let scale = (1u64 << 32) as f64;
    let (radius, turn) = ((((word >> 32) + 1) as f64) / scale, (word & 0xffff_ffff) as f64 / scale);
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * turn).cos()
}

/// Makes and checks the values of one run.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    seed: u64,
    sizes: Sizes,
    /// What values are cut from, behind a first word that tells them apart; random words without it.
    text: Option<&'static [u8]>,
}

/// Bytes of a word.
const WORD: usize = size_of::<u64>();

impl Contents {
    /// The contents that belong to `seed`.
    pub fn new(seed: u64, sizes: Sizes) -> Self {
        Self { seed: mix(seed), sizes, text: None }
    }

    /// The same, cut from a text that is at least as long as the longest value.
    pub fn cut_from(self, text: &'static [u8]) -> Self {
        assert!(self.sizes.bytes_max() <= text.len(), "the caller takes texts that are long enough");
        Self { text: Some(text), ..self }
    }

    fn start(&self, key: u64, version: i32) -> u64 {
        mix(mix(self.seed ^ key).wrapping_add(u64::from(version as u32)))
    }

    /// How many bytes the value of this key and version has.
    pub fn value_bytes(&self, key: u64, version: i32) -> usize {
        match self.sizes {
            Sizes::Fixed(bytes) => bytes,
            sizes => sizes.bytes_of(self.start(key, version)),
        }
    }

    /// The longest value that can occur.
    pub fn value_bytes_max(&self) -> usize {
        self.sizes.bytes_max()
    }

    /// Appends the value.
    pub fn write(&self, key: u64, version: i32, out: &mut Vec<u8>) {
        let (start, from) = (self.start(key, version), out.len());
        out.resize(from + self.value_bytes(key, version), 0);
        let mut words = Random(start);
        let out = &mut out[from..];
        if let Some(piece) = self.piece(start, out.len()) {
            out.copy_from_slice(piece);
            let head = out.len().min(WORD);
            out[..head].copy_from_slice(&words.next().to_le_bytes()[..head]);
            return;
        }
        let mut chunks = out.chunks_exact_mut(WORD);
        chunks.by_ref().for_each(|chunk| chunk.copy_from_slice(&words.next().to_le_bytes()));
        let rest = chunks.into_remainder();
        rest.copy_from_slice(&words.next().to_le_bytes()[..rest.len()]);
    }

    /// The bytes of the text that belong to a value.
    fn piece(&self, start: u64, bytes: usize) -> Option<&'static [u8]> {
        let text = self.text?;
        let offset = Random(start ^ GAMMA).below(text.len() - bytes + 1);
        Some(&text[offset..offset + bytes])
    }

    /// The value as a vector of its own.
    pub fn make(&self, key: u64, version: i32) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(key, version, &mut bytes);
        bytes
    }

    /// Whether `bytes` are exactly the value of this key and version.
    pub fn matches(&self, key: u64, version: i32, bytes: &[u8]) -> bool {
        let start = self.start(key, version);
        let wanted = match self.sizes {
            Sizes::Fixed(bytes) => bytes,
            sizes => sizes.bytes_of(start),
        };
        if bytes.len() != wanted {
            return false;
        }
        let mut words = Random(start);
        if let Some(piece) = self.piece(start, bytes.len()) {
            let (head, rest) = bytes.split_at(bytes.len().min(WORD));
            return head == &words.next().to_le_bytes()[..head.len()] && rest == &piece[head.len()..];
        }
        let chunks = bytes.chunks_exact(WORD);
        let rest = chunks.remainder();
        let same = |chunk: &[u8]| chunk.first_chunk() == Some(&words.next().to_le_bytes());
        let whole = { chunks }.all(same);
        whole && rest == &words.next().to_le_bytes()[..rest.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_matches_itself_and_no_other() {
        let text: &'static [u8] = Vec::leak(Random::new(5).bytes(20_000));
        let kinds = [Sizes::Fixed(1), Sizes::Fixed(9), Sizes::Fixed(10_000), Sizes::UpTo(1_000)];
        let plain = kinds.iter().map(|&sizes| (sizes, Contents::new(7, sizes)));
        let cut = kinds.iter().map(|&sizes| (sizes, Contents::new(7, sizes).cut_from(text)));
        for (sizes, contents) in plain.chain(cut) {
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
    fn lengths_follow_their_distributions() {
        let lengths = |sizes| {
            let contents = Contents::new(3, sizes);
            let mut lengths: Vec<usize> = (0..20_000).map(|key| contents.value_bytes(key, 1)).collect();
            assert!(lengths.iter().all(|&bytes| 1 <= bytes && bytes <= sizes.bytes_max()));
            lengths.sort_unstable();
            lengths
        };
        let log_normal = lengths(Sizes::LogNormal { median: 300.0, sigma: 1.0, bytes_max: 10_000 });
        // One deviation below and above the median lie 15.9 and 84.1 of a hundred.
        for (share, expected) in [(0.159, 110.4), (0.5, 300.0), (0.841, 815.5)] {
            let seen = log_normal[(share * 20_000.0) as usize] as f64;
            assert!((seen / expected - 1.0).abs() < 0.05, "{share}: {seen} not {expected}");
        }
        let between = lengths(Sizes::Between(10, 19));
        assert_eq!((between[0], between[19_999], between[10_000]), (10, 19, 15));
        let listed = lengths(Sizes::Listed(&[5, 7, 7, 9]));
        assert_eq!((listed[0], listed[10_000], listed[19_999]), (5, 7, 9));
    }

    #[test]
    fn numbers_below_a_limit_reach_every_value() {
        let mut random = Random::new(3);
        let mut seen = [false; 5];
        (0..200).for_each(|_| seen[random.below(5)] = true);
        assert_eq!(seen, [true; 5]);
    }
}
