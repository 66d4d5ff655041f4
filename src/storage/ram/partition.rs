//! One partition's share of a shard: its index, its digest and its graves.
//!
//! A shard has a slot for every partition that it might hold, so an empty one must be small: the index
//! allocates nothing then, the digest is there only beside records and graves only beside tombstones. A slot
//! is one line of the processor's cache, which a lookup needs anyway; a write needs one more, of the digest.

use super::blocks::{Blocks, Header};
use super::graves::{Grave, Graves};
use crate::storage::digest::Digest;
use ahash::RandomState;
use hashbrown::HashTable;
use violet_client::Key;

/// Places of an index per record from which it is made smaller, and what it is then made for.
const SPARSE: usize = 8;
const SPARSE_AFTER: usize = 2;

const _: () = assert!(size_of::<Partition>() == 64, "a slot is one line of the cache");

/// A partition's slot.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Partition {
    /// First blocks of its records.
    index: HashTable<u32>,
    /// All owners hold what was written up to this time.
    agreed: u64,
    /// There if and only if there are records.
    digest: Option<Box<Digest>>,
    /// There if and only if there are tombstones.
    graves: Option<Box<Graves>>,
}

impl Partition {
    pub(super) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    pub(super) fn digest(&self) -> Digest {
        self.digest.as_deref().copied().unwrap_or_default()
    }

    /// The first block of a key's record.
    pub(super) fn find(&self, hash: u64, key: &Key, blocks: &Blocks) -> Option<u32> {
        self.index.find(hash, |block| blocks.key_bytes(*block) == key.as_bytes()).copied()
    }

    /// The first blocks of all records.
    pub(super) fn heads(&self) -> impl Iterator<Item = u32> {
        self.index.iter().copied()
    }

    /// Takes note of a record that was written at `head`, where no record was.
    pub(super) fn insert(&mut self, hash: u64, head: u32, blocks: &Blocks, hasher: &RandomState) {
        let hash_of = |block: &u32| hasher.hash_one(blocks.key_bytes(*block));
        self.index.insert_unique(hash, head, hash_of);
        self.count_in(head, &blocks.key(head), &blocks.header(head));
    }

    /// Takes note that the record at `head` was written over `old`, a record of the same key.
    pub(super) fn replace(&mut self, head: u32, key: &Key, old: &Header, new: &Header) {
        self.count_out(key, old);
        self.count_in(head, key, new);
    }

    /// Takes note that the record at `head` is about to go.
    pub(super) fn remove(&mut self, hash: u64, head: u32, blocks: &Blocks) {
        let entry = self.index.find_entry(hash, |block| *block == head).expect("the record is indexed");
        entry.remove();
        self.count_out(&blocks.key(head), &blocks.header(head));
    }

    fn count_in(&mut self, head: u32, key: &Key, new: &Header) {
        self.digest.get_or_insert_default().add(key, &new.meta());
        if new.removed {
            let grave = Grave { time: new.version.time, block: head };
            self.graves.get_or_insert_default().open(grave);
        }
    }

    fn count_out(&mut self, key: &Key, old: &Header) {
        self.digest.as_mut().expect("a digest is there beside records").subtract(key, &old.meta());
        if old.removed {
            self.graves.as_mut().expect("graves are there beside tombstones").count_out();
        }
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
        self.graves.as_ref()?.oldest().filter(|time| *time <= self.agreed)
    }

    /// Closes the oldest grave if all owners hold its tombstone and it is older than `older_than`. The
    /// tombstone itself is returned, as its hash and block, unless the grave is void.
    pub(super) fn close_grave(
        &mut self,
        older_than: u64,
        blocks: &Blocks,
        hasher: &RandomState,
    ) -> Option<Option<(u64, u32)>> {
        self.due_from().filter(|time| *time < older_than)?;
        let grave = self.graves.as_mut()?.pop()?;
        let hash = hasher.hash_one(blocks.key_bytes(grave.block));
        Some((!is_void(&grave, &self.index, hash, blocks)).then_some((hash, grave.block)))
    }

    /// Gives back what is not needed any more.
    pub(super) fn shrink(&mut self, blocks: &Blocks, hasher: &RandomState) {
        let hash_of = |block: &u32| hasher.hash_one(blocks.key_bytes(*block));
        if self.index.is_empty() {
            self.index = HashTable::new();
            self.digest = None;
        } else if SPARSE * self.index.len() < self.index.num_buckets() {
            self.index.shrink_to(SPARSE_AFTER * self.index.len(), hash_of);
        }
        if self.graves.as_ref().is_some_and(|graves| graves.tombstones() == 0) {
            self.graves = None;
        }
        if let Some(graves) = &mut self.graves {
            graves.shrink(|grave| is_void(grave, &self.index, hash_of(&grave.block), blocks));
        }
    }

    /// Bytes beyond the slot itself.
    pub(super) fn held_bytes(&self) -> usize {
        let digest = self.digest.as_ref().map_or(0, |_| size_of::<Digest>());
        let graves = self.graves.as_ref().map_or(0, |graves| graves.held_bytes());
        self.index.allocation_size() + digest + graves
    }
}

/// Whether the tombstone is gone; `hash` is that of the key in its block. The block may have become part of
/// another record: then its bytes are not those of a header, but no entry of the index leads to it either.
fn is_void(grave: &Grave, index: &HashTable<u32>, hash: u64, blocks: &Blocks) -> bool {
    index.find(hash, |block| *block == grave.block).is_none() || {
        let header = blocks.header(grave.block);
        !header.removed || header.version.time != grave.time
    }
}
