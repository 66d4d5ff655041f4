//! The engine in memory: hashed indexes over chains of small blocks.
//!
//! A record is a header, its key and its value, written as one stream over 128-byte blocks that are
//! linked by number. All blocks are alike, so memory that a removed value leaves serves a value of any
//! other size: nothing fragments and nothing calcifies. Blocks come in [`Chunks`], taken when a shard
//! runs out; an overwrite reuses its own blocks first. A partition lives in one shard, and has an index,
//! a digest and a queue of tombstones of its own there, so that it can be compared, scanned and dropped
//! without a look at others. Reads and writes copy under the shard's lock, for at most some
//! microseconds; nothing is sent meanwhile.
//!
//! Deliberately not here: eviction. At the limit a write of a new key is refused.

mod blocks;
mod graves;
mod partition;
mod shard;

use super::chunks::Chunks;
use super::digest::Digest;
use super::{Change, Engine, Meta, Record, Usage, Written};
use crate::ids::Version;
use ahash::RandomState;
use parking_lot::Mutex;
use shard::Shard;
use std::sync::Arc;
use violet_client::Key;

/// Most shards; fewer when the memory is small, because each holds a chunk that is not full.
const SHARDS_MAX: usize = 16;
const CHUNKS_PER_SHARD_MIN: usize = 12;
/// Records of a forgotten partition whose blocks are freed before others get the lock.
const FREED_MAX: usize = 256;

/// Records in memory; see the module's text.
#[derive(Debug)]
pub struct Ram {
    hasher: RandomState,
    chunks: Chunks,
    /// Locked one at a time.
    shards: Vec<Mutex<Shard>>,
}

impl Ram {
    /// An empty engine that takes its memory from `chunks`.
    #[must_use]
    pub fn new(chunks: Chunks, seed: u64) -> Self {
        let hasher = RandomState::with_seeds(seed, 1, 2, 3);
        let shards = (chunks.count_max() / CHUNKS_PER_SHARD_MIN).clamp(1, SHARDS_MAX);
        let shard = || Mutex::new(Shard::new(hasher.clone(), Arc::clone(chunks.budget())));
        let shards = (0..shards).map(|_| shard()).collect();
        Self { hasher, chunks, shards }
    }

    /// The shard of a partition, and its slot there.
    fn place(&self, partition: u16) -> (&Mutex<Shard>, usize) {
        let partition = usize::from(partition);
        (&self.shards[partition % self.shards.len()], partition / self.shards.len())
    }

    fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key.as_bytes())
    }
}

impl Engine for Ram {
    fn write(&self, partition: u16, key: &Key, record: &Record<'_>, may_use_reserve: bool) -> Written {
        let (shard, slot) = self.place(partition);
        let hash = self.hash(key);
        shard.lock().write((slot, hash), key, record, may_use_reserve, &self.chunks)
    }

    fn rewrite(
        &self,
        partition: u16,
        key: &Key,
        may_use_reserve: bool,
        change: Change<'_>,
        set: &mut Vec<u8>,
    ) -> Written {
        let (shard, slot) = self.place(partition);
        let hash = self.hash(key);
        shard.lock().rewrite((slot, hash), key, may_use_reserve, (change, set), &self.chunks)
    }

    fn read(&self, partition: u16, key: &Key, value: &mut Vec<u8>) -> Option<Meta> {
        let (shard, slot) = self.place(partition);
        let hash = self.hash(key);
        shard.lock().read((slot, hash), key, Some(value))
    }

    fn meta(&self, partition: u16, key: &Key) -> Option<Meta> {
        let (shard, slot) = self.place(partition);
        let hash = self.hash(key);
        shard.lock().read((slot, hash), key, None)
    }

    fn undo(&self, partition: u16, key: &Key, version: Version) {
        let (shard, slot) = self.place(partition);
        let hash = self.hash(key);
        shard.lock().undo((slot, hash), key, version);
    }

    fn wipe(&self) {
        for shard in &self.shards {
            let mut held = shard.lock();
            let new = held.successor();
            let old = std::mem::replace(&mut *held, new);
            drop(held);
            // The lock is free again while the memory goes back.
            drop(old);
        }
    }

    fn digest(&self, partition: u16) -> Digest {
        let (shard, slot) = self.place(partition);
        shard.lock().digest(slot)
    }

    fn scan(&self, partition: u16, leaves: u32, visit: &mut dyn FnMut(&Key, &Meta)) {
        let (shard, slot) = self.place(partition);
        shard.lock().scan(slot, leaves, visit);
    }

    fn forget_partition(&self, partition: u16) {
        let (shard, slot) = self.place(partition);
        shard.lock().forget(slot);
        while shard.lock().free_doomed(FREED_MAX) {}
    }

    fn partitions_held(&self) -> Vec<u16> {
        let mut held = Vec::new();
        for (shard_index, shard) in self.shards.iter().enumerate() {
            let partition_of = |slot: usize| (slot * self.shards.len() + shard_index) as u16;
            held.extend(shard.lock().held().map(partition_of));
        }
        held.sort_unstable();
        held
    }

    fn agree(&self, partition: u16, up_to: u64) {
        let (shard, slot) = self.place(partition);
        shard.lock().agree(slot, up_to);
    }

    fn sweep(&self, older_than: u64) {
        for shard in &self.shards {
            shard.lock().sweep(older_than);
        }
    }

    fn usage(&self) -> Usage {
        self.shards.iter().fold(Usage::default(), |sum, shard| {
            let one = shard.lock().usage();
            Usage {
                keys: sum.keys + one.keys,
                tombstones: sum.tombstones + one.tombstones,
                payload_bytes: sum.payload_bytes + one.payload_bytes,
                held_bytes: sum.held_bytes + one.held_bytes,
            }
        })
    }
}

#[cfg(test)]
mod tests;
