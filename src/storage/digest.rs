//! A short summary of a partition's records, by which two holders find out where they differ.
//!
//! A partition's keys fall into [`LEAVES`] leaves, by the low bits of the hash whose top bits choose the
//! partition. A leaf's sum adds up one number per record, tombstones included: a hash of its key, its
//! version and whether it is a tombstone. The value's bytes are not in it, for a version is given to one
//! write only; but sets of siblings of one version may differ, so theirs are. So the sum can be kept while records come and go, at the price of two short hashes per
//! change, and does not depend on their order.
//!
//! The sum wraps around and is not an exclusive or. With the latter a contribution that is counted twice
//! counts for nothing, so a record held twice, or two with equal contents, would look like none; and any
//! 65 records have a part whose contributions cancel, which is found by plain elimination. Neither is
//! proof against someone who picks keys to make sums collide, as the hash is not: then a difference
//! stays unseen until one of the keys is written again.
//!
//! All hashes are xxh3 over little-endian numbers and the same on every machine, because members
//! exchange sums. Not here: which records differ ([`Engine::scan`](super::Engine::scan) tells) and what
//! to do about it.

use super::Meta;
use violet_client::Key;
use xxhash_rust::xxh3::xxh3_64;

/// Parts of a partition that are compared one by one; a set of them fits a `u32`.
pub const LEAVES: usize = 32;

/// The set of all leaves.
pub const ALL_LEAVES: u32 = u32::MAX;

const _: () = assert!(LEAVES == u32::BITS as usize, "a set of leaves is a u32");

/// The leaf of a key.
#[must_use]
pub fn leaf_of(key: &Key) -> usize {
    leaf_of_hash(xxh3_64(key.as_bytes()))
}

fn leaf_of_hash(key_hash: u64) -> usize {
    key_hash as usize % LEAVES
}

/// One sum per leaf; see the module's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    leaves: [u64; LEAVES],
}

impl Digest {
    /// A digest from its sums, as [`leaves`](Self::leaves) gave them.
    #[must_use]
    pub fn from_leaves(leaves: [u64; LEAVES]) -> Self {
        Self { leaves }
    }

    /// The sum of each leaf.
    #[must_use]
    pub fn leaves(&self) -> &[u64; LEAVES] {
        &self.leaves
    }

    /// Counts a record in.
    pub fn add(&mut self, key: &Key, meta: &Meta) {
        let (leaf, contribution) = contribution(key, meta);
        self.leaves[leaf] = self.leaves[leaf].wrapping_add(contribution);
    }

    /// Counts a record out that was counted in.
    pub fn subtract(&mut self, key: &Key, meta: &Meta) {
        let (leaf, contribution) = contribution(key, meta);
        self.leaves[leaf] = self.leaves[leaf].wrapping_sub(contribution);
    }

    /// One number for all: equal if the leaves are, and 0 exactly if all of them are 0, which they are
    /// for a partition without records (and for another one with a probability of 2^-64 or less).
    #[must_use]
    pub fn root(&self) -> u64 {
        if self.leaves == [0; LEAVES] {
            return 0;
        }
        let mut bytes = [0; LEAVES * 8];
        for (part, leaf) in bytes.chunks_exact_mut(8).zip(&self.leaves) {
            part.copy_from_slice(&leaf.to_le_bytes());
        }
        xxh3_64(&bytes).max(1)
    }

    /// The leaves that differ, as a set: bit `n` stands for leaf `n`.
    #[must_use]
    pub fn differing(&self, other: &Self) -> u32 {
        let pairs = self.leaves.iter().zip(&other.leaves).enumerate();
        pairs.filter(|(_, (mine, theirs))| mine != theirs).fold(0, |set, (leaf, _)| set | 1 << leaf)
    }
}

/// A record's leaf and what it adds to that leaf. The key comes in as its hash, which is needed for the
/// leaf anyway.
fn contribution(key: &Key, meta: &Meta) -> (usize, u64) {
    let key_hash = xxh3_64(key.as_bytes());
    let mut input = [0; 33];
    input[..8].copy_from_slice(&key_hash.to_le_bytes());
    input[8..16].copy_from_slice(&meta.version.time.to_le_bytes());
    input[16..24].copy_from_slice(&meta.version.writer.to_le_bytes());
    input[24] = u8::from(meta.removed);
    let mut length = 25;
    if meta.is_set() {
        input[25..].copy_from_slice(&meta.contents.to_le_bytes());
        length = input.len();
    }
    (leaf_of_hash(key_hash), xxh3_64(&input[..length]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Version;
    use proptest::prelude::*;

    fn key(number: u32) -> Key {
        Key::parse(&number.to_le_bytes()).expect("four bytes are a key")
    }

    fn meta(time: u64, removed: bool) -> Meta {
        Meta { version: Version { time, writer: 9 }, removed, client_version: 0, contents: 0 }
    }

    fn digest_of(records: &[(u32, u64, bool)]) -> Digest {
        let mut digest = Digest::default();
        for (number, time, removed) in records {
            digest.add(&key(*number), &meta(*time, *removed));
        }
        digest
    }

    #[test]
    fn the_root_is_zero_exactly_when_nothing_is_held() {
        let mut digest = Digest::default();
        assert_eq!(digest.root(), 0);
        digest.add(&key(1), &meta(1, false));
        assert_ne!(digest.root(), 0);
        digest.subtract(&key(1), &meta(1, false));
        assert_eq!((digest.root(), digest), (0, Digest::default()));
    }

    #[test]
    fn key_time_writer_and_kind_all_count() {
        let digest = digest_of(&[(1, 5, false)]);
        assert_ne!(digest, digest_of(&[(2, 5, false)]));
        assert_ne!(digest, digest_of(&[(1, 6, false)]));
        assert_ne!(digest, digest_of(&[(1, 5, true)]));
        let mut other = Digest::default();
        other.add(
            &key(1),
            &Meta {
                version: Version { time: 5, writer: 10 },
                removed: false,
                client_version: 0,
                contents: 0,
            },
        );
        assert_ne!(digest, other);
    }

    #[test]
    fn sets_of_one_version_differ_by_what_they_hold() {
        let of_contents = |contents| {
            let mut digest = Digest::default();
            digest.add(&key(1), &Meta { contents, ..meta(5, false) });
            digest
        };
        assert_eq!(of_contents(0), digest_of(&[(1, 5, false)]));
        assert_ne!(of_contents(0), of_contents(1));
        assert_ne!(of_contents(2), of_contents(1));
    }

    #[test]
    fn what_is_there_twice_does_not_cancel() {
        let once = digest_of(&[(1, 5, false)]);
        let twice = digest_of(&[(1, 5, false), (1, 5, false)]);
        assert_ne!(twice.root(), 0);
        assert_eq!(twice.differing(&once), 1 << leaf_of(&key(1)));
        assert_eq!(twice.differing(&Digest::default()), 1 << leaf_of(&key(1)));
    }

    #[test]
    fn each_leaf_is_told_apart() {
        let keys_of = |leaf: usize| (0u32..).filter(move |number| leaf_of(&key(*number)) == leaf);
        for leaf in 0..LEAVES {
            let number = keys_of(leaf).next().expect("every leaf has keys");
            assert_eq!(digest_of(&[(number, 1, false)]).differing(&Digest::default()), 1 << leaf);
        }
    }

    /// Two versions that sum up differently must not meet in one cluster: these values are for ever.
    #[test]
    fn sums_never_change() {
        let abc = Key::parse(b"abc").expect("a key");
        let mut digest = Digest::default();
        digest.add(
            &abc,
            &Meta { version: Version { time: 1, writer: 2 }, removed: true, client_version: 3, contents: 0 },
        );
        assert_eq!(leaf_of(&abc), 0x10);
        assert_eq!(digest.leaves()[0x10], 10_465_074_153_839_769_745);
        assert_eq!(digest.root(), 7_676_069_551_249_958_847);
    }

    proptest! {
        #[test]
        fn the_order_does_not_matter_and_every_change_shows(
            records in proptest::collection::btree_map(0u32..1_000, (1u64..100, any::<bool>()), 1..60),
            without in any::<proptest::sample::Index>(),
        ) {
            let flat = |(number, (time, removed))| (number, time, removed);
            let records: Vec<(u32, u64, bool)> = records.into_iter().map(flat).collect();
            let digest = digest_of(&records);
            let mut reversed = records.clone();
            reversed.reverse();
            prop_assert_eq!(digest, digest_of(&reversed));
            prop_assert_eq!(digest, Digest::from_leaves(*digest.leaves()));
            let (number, _, _) = reversed.remove(without.index(records.len()));
            let less = digest_of(&reversed);
            prop_assert_eq!(digest.differing(&less), 1 << leaf_of(&key(number)));
            prop_assert!(digest.root() != less.root());
        }
    }
}
