//! Keys and values of a measurement, made from numbers instead of being kept.
//!
//! A key is 32 hexadecimal digits that follow from its index, so every protocol can carry it and no table
//! of keys competes with the server for the cache. A value starts with its key's index and a running number
//! of the PUT; behind these eight bytes all values are alike, which makes them cheap to write and to check:
//! a value of another key, another length or with damaged bytes is seen. Deliberately not here: whether a
//! value is the *newest* one; the conformance stages and the fault scenarios judge that.

use crate::values::Random;

/// Bytes of every key.
pub const KEY_BYTES: usize = 32;
/// Bytes at the start of a value that differ between keys and PUTs; no value is shorter.
pub const HEAD_BYTES: usize = 8;

/// A key, as text.
pub type KeyText = [u8; KEY_BYTES];

/// The keys and values of one size.
#[derive(Clone, Debug)]
pub struct Contents {
    seed: u64,
    body: Vec<u8>,
}

impl Contents {
    /// Values of `value_bytes`, at least [`HEAD_BYTES`], and the keys that belong to `seed`.
    pub fn new(seed: u64, value_bytes: usize) -> Self {
        assert!(HEAD_BYTES <= value_bytes, "the caller chooses from sizes that hold a head");
        Self { seed, body: Random::new(seed).bytes(value_bytes) }
    }

    /// Bytes of every value.
    pub fn value_bytes(&self) -> usize {
        self.body.len()
    }

    /// The key of an index.
    pub fn key(&self, index: u32) -> KeyText {
        let mut words = Random::new(self.seed.wrapping_add(u64::from(index) << 20));
        let mut key = [0; KEY_BYTES];
        for (half, word) in key.chunks_exact_mut(16).zip([words.next(), words.next()]) {
            for (pair, byte) in half.chunks_exact_mut(2).zip(word.to_le_bytes()) {
                pair.copy_from_slice(&HEX[usize::from(byte)]);
            }
        }
        key
    }

    /// The bytes that make a value that of this key, and of this PUT.
    pub fn head(index: u32, put: u32) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&index.to_le_bytes());
        head[4..].copy_from_slice(&put.to_le_bytes());
        head
    }

    /// A whole value.
    pub fn value(&self, index: u32, put: u32) -> Vec<u8> {
        let mut value = self.body.clone();
        value[..HEAD_BYTES].copy_from_slice(&Self::head(index, put));
        value
    }

    /// Whether these bytes are a value of this key, of whatever PUT.
    pub fn is_value(&self, index: u32, bytes: &[u8]) -> bool {
        bytes.len() == self.body.len() && self.fits(index, 0, bytes)
    }

    /// Whether these bytes can stand at this place of a value of this key.
    pub fn fits(&self, index: u32, at: usize, bytes: &[u8]) -> bool {
        let Some(expected) = self.body.get(at..at + bytes.len()) else { return false };
        let key_part = index.to_le_bytes();
        let head_left = HEAD_BYTES.saturating_sub(at).min(bytes.len());
        let key_right = bytes.iter().zip(key_part.iter().skip(at)).all(|(byte, key)| byte == key);
        key_right && bytes[head_left..] == expected[head_left..]
    }
}

const HEX: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let mut table = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_text_and_differ() {
        let contents = Contents::new(7, 8);
        let mut keys: Vec<KeyText> = (0..10_000).map(|index| contents.key(index)).collect();
        assert!(keys.iter().flatten().all(u8::is_ascii_hexdigit));
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 10_000);
        assert_eq!(contents.key(3), Contents::new(7, 100).key(3), "the same whatever the values");
    }

    #[test]
    fn a_value_fits_its_key_whole_and_in_pieces_and_no_other() {
        for value_bytes in [8, 100, 10_000] {
            let contents = Contents::new(7, value_bytes);
            let value = contents.value(258, 9);
            assert!(contents.is_value(258, &value));
            assert!(!contents.is_value(259, &value));
            assert!(!contents.is_value(258, &value[1..]));
            for cut in [1, 3, 4, 7, 8, value_bytes / 2] {
                assert!(contents.fits(258, 0, &value[..cut]));
                assert!(contents.fits(258, cut, &value[cut..]), "{value_bytes} {cut}");
            }
            assert!(!contents.fits(259, 0, &value[..4]));
            assert!(!contents.fits(258, 1, &value), "beyond the end");
            if HEAD_BYTES < value_bytes {
                let mut damaged = value.clone();
                *damaged.last_mut().unwrap() ^= 1;
                assert!(!contents.is_value(258, &damaged));
            }
        }
    }
}
