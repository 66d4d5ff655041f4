//! One partition's share of a shard: its index, its digest and its graves.
//!
//! A shard has a slot for every partition that it might hold, so an empty one must be small: the index
//! allocates nothing then, and the rest ([`Contents`]) is there only beside records.
//!
//! A *grave* says when a tombstone was written and where it is. They are kept per partition, in a heap
//! with the oldest on top, because tombstones of other members come in any order and because a
//! partition's graves all wait for the same two times: when the oldest may not be closed, none of the
//! partition may, and it stands in no other partition's way. A tombstone that is overwritten leaves its
//! grave in the heap, to be found void when it comes up. Lest that add up where the wait is long, the
//! heap is gone through when most of it must be void.

use super::blocks::{Blocks, Header};
use crate::storage::digest::Digest;
use ahash::RandomState;
use hashbrown::HashTable;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use violet_client::Key;

/// Void graves that are not worth the work of going through the heap.
const VOID_GRAVES_MAX: usize = 32;
/// Places of an index or a heap per entry from which it is made smaller, and what it is then made for.
const SPARSE: usize = 8;
const SPARSE_AFTER: usize = 2;

/// A partition's slot.
#[derive(Debug, Default)]
pub(super) struct Partition {
    /// First blocks of its records.
    index: HashTable<u32>,
    /// All owners hold what was written up to this time.
    agreed: u64,
    /// There while the index is not empty.
    contents: Option<Box<Contents>>,
}

#[derive(Debug, Default)]
struct Contents {
    digest: Digest,
    graves: BinaryHeap<Reverse<Grave>>,
    tombstones: usize,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Grave {
    time: u64,
    block: u32,
}

impl Partition {
    pub(super) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    pub(super) fn digest(&self) -> Digest {
        self.contents.as_ref().map_or_else(Digest::default, |contents| contents.digest)
    }

    /// The first block of a key's record.
    pub(super) fn find(&self, hash: u64, key: &Key, blocks: &Blocks) -> Option<u32> {
        self.index.find(hash, |block| blocks.key_bytes(*block) == key.as_bytes()).copied()
    }

    /// The first blocks of all records.
    pub(super) fn heads(&self) -> impl Iterator<Item = u32> {
        self.index.iter().copied()
    }

    /// Takes note of the record that now starts at `head`; `old` is what it was written over.
    pub(super) fn insert(
        &mut self,
        hash: u64,
        head: u32,
        old: Option<&Header>,
        blocks: &Blocks,
        hasher: &RandomState,
    ) {
        let (key, new) = (blocks.key(head), blocks.header(head));
        let contents = self.contents.get_or_insert_default();
        match old {
            Some(old) => contents.count_out(&key, old),
            None => {
                let hash_of = |block: &u32| hasher.hash_one(blocks.key_bytes(*block));
                self.index.insert_unique(hash, head, hash_of);
            }
        }
        contents.digest.add(&key, &new.meta());
        if new.removed {
            contents.tombstones += 1;
            contents.graves.push(Reverse(Grave { time: new.version.time, block: head }));
        }
    }

    /// Takes note that the record at `head` is about to go.
    pub(super) fn remove(&mut self, hash: u64, head: u32, blocks: &Blocks) {
        let entry = self.index.find_entry(hash, |block| *block == head).expect("the record is indexed");
        entry.remove();
        let contents = self.contents.as_mut().expect("contents are there beside records");
        contents.count_out(&blocks.key(head), &blocks.header(head));
    }

    /// Empties the partition and returns the first blocks of what was in it.
    pub(super) fn take(&mut self) -> HashTable<u32> {
        std::mem::take(self).index
    }

    /// All owners hold what was written up to this time.
    pub(super) fn agree(&mut self, up_to: u64) {
        self.agreed = self.agreed.max(up_to);
    }

    /// The time of the oldest grave, if all owners hold its tombstone.
    pub(super) fn due_from(&self) -> Option<u64> {
        let Reverse(oldest) = self.contents.as_ref()?.graves.peek()?;
        (oldest.time <= self.agreed).then_some(oldest.time)
    }

    /// Takes the oldest grave if all owners hold its tombstone and it is older than `older_than`. The
    /// block and hash of the tombstone are in it unless it is void.
    pub(super) fn close_grave(
        &mut self,
        older_than: u64,
        blocks: &Blocks,
        hasher: &RandomState,
    ) -> Option<Option<(u64, u32)>> {
        self.due_from().filter(|time| *time < older_than)?;
        let Reverse(grave) = self.contents.as_mut()?.graves.pop()?;
        let hash = hasher.hash_one(blocks.key_bytes(grave.block));
        Some(is_tombstone(&self.index, hash, &grave, blocks).then_some((hash, grave.block)))
    }

    /// Gives back what is not needed any more.
    pub(super) fn shrink(&mut self, blocks: &Blocks, hasher: &RandomState) {
        if self.index.is_empty() {
            self.index = HashTable::new();
            self.contents = None;
            return;
        }
        let hash_of = |block: &u32| hasher.hash_one(blocks.key_bytes(*block));
        if SPARSE * self.index.len() < self.index.num_buckets() {
            self.index.shrink_to(SPARSE_AFTER * self.index.len(), hash_of);
        }
        let contents = self.contents.as_mut().expect("contents are there beside records");
        let graves = &mut contents.graves;
        if contents.tombstones == 0 {
            *graves = BinaryHeap::new();
        } else if 2 * contents.tombstones + VOID_GRAVES_MAX < graves.len() {
            let mut kept = std::mem::take(graves).into_vec();
            kept.retain(|Reverse(grave)| is_tombstone(&self.index, hash_of(&grave.block), grave, blocks));
            // A tombstone that was undone and written anew in the same place has two.
            kept.sort_unstable();
            kept.dedup();
            *graves = kept.into();
        }
        if SPARSE * graves.len() < graves.capacity() {
            graves.shrink_to(SPARSE_AFTER * graves.len());
        }
    }

    /// Bytes beyond the slot itself.
    pub(super) fn held_bytes(&self) -> usize {
        let graves = |contents: &Contents| contents.graves.capacity() * size_of::<Reverse<Grave>>();
        let contents =
            self.contents.as_deref().map_or(0, |contents| size_of::<Contents>() + graves(contents));
        self.index.allocation_size() + contents
    }
}

impl Contents {
    fn count_out(&mut self, key: &Key, old: &Header) {
        self.digest.subtract(key, &old.meta());
        self.tombstones -= usize::from(old.removed);
    }
}

/// Whether the tombstone is still there. The block may have become part of another record: its bytes are
/// then not those of a header, but no entry of the index leads to it either.
fn is_tombstone(index: &HashTable<u32>, hash: u64, grave: &Grave, blocks: &Blocks) -> bool {
    index.find(hash, |block| *block == grave.block).is_some() && {
        let header = blocks.header(grave.block);
        header.removed && header.version.time == grave.time
    }
}
