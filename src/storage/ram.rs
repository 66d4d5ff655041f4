//! The engine in memory: hashed index over chains of small blocks.
//!
//! A record is a header, its key and its value, written as one stream over 128-byte blocks that are
//! linked by number. All blocks are alike, so memory that a removed value leaves serves a value of
//! any other size: nothing fragments and nothing calcifies. Blocks come in [`Chunks`], taken when a
//! shard runs out; an overwrite reuses its own blocks first.
//! A partition lives in one shard. Reads and writes copy under the shard's lock, for at most some
//! microseconds; nothing is sent meanwhile.
//!
//! Deliberately not here: eviction. At the limit a write of a new key is refused.

use super::chunks::{CHUNK_BYTES, Chunk, Chunks};
use super::{Budget, Engine, Meta, Record, Usage, Written};
use crate::ids::Version;
use ahash::RandomState;
use hashbrown::HashTable;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use violet_client::wire::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use violet_client::{Key, Value};

/// Most shards; fewer when the memory is small, because each holds a chunk that is not full.
const SHARDS_MAX: usize = 16;
const CHUNKS_PER_SHARD_MIN: usize = 12;
/// Part of a shard's memory that new keys may not take: overwrites and removals must find room.
const RESERVE_SHARE: usize = 64;
const BLOCK_BYTES: usize = 128;
const LINK_BYTES: usize = 4;
const HEADER_BYTES: usize = 28;
const CHUNK_BLOCKS: usize = CHUNK_BYTES / BLOCK_BYTES;
/// Bytes an index entry costs: a block number and a control byte.
const INDEX_ENTRY_BYTES: usize = 5;
const GRAVE_BYTES: usize = size_of::<Grave>();
/// End of a chain.
const NIL: u32 = u32::MAX;
/// When there is no other memory, tombstones older than this go. Frames between members are refused
/// when they are older, so only a hint could still bring back what such a tombstone removed.
const TOMBSTONE_NANOS_MIN: u64 = 5_000_000_000;
/// Tombstones looked at in one sweep of one shard.
const SWEEP_MAX: usize = 256;

const _: () = assert!(LINK_BYTES + HEADER_BYTES + KEY_BYTES_MAX <= BLOCK_BYTES, "a key fits the first block");
const _: () = assert!(VALUE_BYTES_MAX <= u16::MAX as usize, "a length fits its header field");

type Block = [u8; BLOCK_BYTES];

/// Records in memory; see the module's text.
#[derive(Debug)]
pub struct Ram {
    hasher: RandomState,
    budget: Arc<Budget>,
    chunks: Chunks,
    /// Locked one at a time.
    shards: Vec<Mutex<Shard>>,
}

#[derive(Debug, Default)]
struct Shard {
    index: HashTable<u32>,
    index_charged_bytes: usize,
    chunks: Vec<Chunk>,
    /// Blocks that were used before, linked.
    free: u32,
    /// Blocks of the chunks that have been used at all; the others are untouched.
    used_blocks: u32,
    free_blocks: usize,
    /// Tombstones, oldest first.
    graves: VecDeque<Grave>,
    usage: Usage,
}

#[derive(Debug)]
struct Grave {
    version: Version,
    hash: u64,
    block: u32,
}

/// The header of a record, as it stands in its first block.
#[derive(Clone, Copy)]
struct Header {
    key_bytes: u8,
    removed: bool,
    value_bytes: u16,
    client_version: i32,
    version: Version,
}

impl Header {
    fn of(key: &Key, record: &Record<'_>) -> Self {
        let value = record.value.unwrap_or_default();
        Self {
            key_bytes: key.as_bytes().len() as u8,
            removed: record.value.is_none(),
            value_bytes: value.bytes.len() as u16,
            client_version: value.version,
            version: record.version,
        }
    }

    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.key_bytes;
        bytes[1] = u8::from(self.removed);
        bytes[2..4].copy_from_slice(&self.value_bytes.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.client_version.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.version.time.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.version.writer.to_le_bytes());
        bytes
    }

    fn decode(block: &Block) -> Self {
        let bytes = &block[LINK_BYTES..LINK_BYTES + HEADER_BYTES];
        let u64_at = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("8 bytes are there"));
        Self {
            key_bytes: bytes[0],
            removed: bytes[1] != 0,
            value_bytes: u16::from_le_bytes([bytes[2], bytes[3]]),
            client_version: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            version: Version { time: u64_at(8), writer: u64_at(16) },
        }
    }

    fn blocks(&self) -> usize {
        let stream = HEADER_BYTES + usize::from(self.key_bytes) + usize::from(self.value_bytes);
        stream.div_ceil(BLOCK_BYTES - LINK_BYTES)
    }

    fn payload_bytes(&self) -> usize {
        usize::from(self.key_bytes) + usize::from(self.value_bytes)
    }

    fn meta(&self) -> Meta {
        Meta { version: self.version, removed: self.removed, client_version: self.client_version }
    }
}

impl Ram {
    /// An empty engine that takes its memory from `budget` and leaves `leave_bytes` of it to others.
    #[must_use]
    pub fn new(budget: Arc<Budget>, leave_bytes: usize, seed: u64) -> Self {
        let chunks = Chunks::new(Arc::clone(&budget), leave_bytes);
        let shards = (chunks.count_max() / CHUNKS_PER_SHARD_MIN).clamp(1, SHARDS_MAX);
        let shards = (0..shards).map(|_| Mutex::new(Shard::empty())).collect();
        Self { hasher: RandomState::with_seeds(seed, 1, 2, 3), budget, chunks, shards }
    }

    fn shard(&self, partition: u16) -> &Mutex<Shard> {
        &self.shards[usize::from(partition) % self.shards.len()]
    }

    fn write_if_room(
        &self,
        shard: &mut Shard,
        hash: u64,
        key: &Key,
        record: &Record<'_>,
        may_use_reserve: bool,
    ) -> Written {
        let new = Header::of(key, record);
        let old = shard.find(hash, key);
        let old_header = old.map(|block| shard.header(block));
        let existed = old_header.is_some_and(|header| !header.removed);
        if old_header.is_some_and(|header| record.version <= header.version) {
            return Written::Older { existed };
        }
        let is_urgent = may_use_reserve || existed || new.removed;
        let have = old_header.map_or(0, |header| header.blocks());
        if !shard.make_room(new.blocks().saturating_sub(have), &self.chunks, is_urgent) {
            return Written::NoSpace;
        }
        let head = shard.write_chain(old.unwrap_or(NIL), &new, key, record.value.unwrap_or_default());
        if old.is_none() {
            shard.insert(hash, head, &self.hasher, &self.budget);
        }
        shard.account(old_header.as_ref(), Some(&new));
        if new.removed {
            self.budget.charge(GRAVE_BYTES);
            shard.graves.push_back(Grave { version: new.version, hash, block: head });
        }
        Written::Stored { existed }
    }
}

impl Engine for Ram {
    fn write(&self, partition: u16, key: &Key, record: &Record<'_>, may_use_reserve: bool) -> Written {
        let hash = self.hasher.hash_one(key.as_bytes());
        let mut shard = self.shard(partition).lock();
        loop {
            let written = self.write_if_room(&mut shard, hash, key, record, may_use_reserve);
            if written != Written::NoSpace {
                return written;
            }
            // Removal marks must not hold the space of what they removed.
            let swept = shard.sweep(record.version.time.saturating_sub(TOMBSTONE_NANOS_MIN));
            self.budget.give(swept * GRAVE_BYTES);
            if swept == 0 {
                return Written::NoSpace;
            }
        }
    }

    fn read(&self, partition: u16, key: &Key, value: &mut Vec<u8>) -> Option<Meta> {
        let hash = self.hasher.hash_one(key.as_bytes());
        let shard = self.shard(partition).lock();
        let block = shard.find(hash, key)?;
        let header = shard.header(block);
        shard.read_chain(block, &header, value);
        Some(header.meta())
    }

    fn meta(&self, partition: u16, key: &Key) -> Option<Meta> {
        let hash = self.hasher.hash_one(key.as_bytes());
        let shard = self.shard(partition).lock();
        let block = shard.find(hash, key)?;
        Some(shard.header(block).meta())
    }

    fn undo(&self, partition: u16, key: &Key, version: Version) {
        let hash = self.hasher.hash_one(key.as_bytes());
        let mut shard = self.shard(partition).lock();
        if let Some(block) = shard.find(hash, key)
            && shard.header(block).version <= version
        {
            shard.remove(hash, block);
        }
    }

    fn wipe(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let old = std::mem::replace(&mut *shard, Shard::empty());
            drop(shard);
            // The chunks give themselves back.
            self.budget.give(old.held_bytes() - old.chunks.len() * CHUNK_BYTES);
        }
    }

    fn sweep(&self, older_than: u64) {
        for shard in &self.shards {
            let swept = shard.lock().sweep(older_than);
            self.budget.give(swept * GRAVE_BYTES);
        }
    }

    fn usage(&self) -> Usage {
        self.shards.iter().fold(Usage::default(), |sum, shard| {
            let shard = shard.lock();
            Usage {
                keys: sum.keys + shard.usage.keys,
                tombstones: sum.tombstones + shard.usage.tombstones,
                payload_bytes: sum.payload_bytes + shard.usage.payload_bytes,
                held_bytes: sum.held_bytes + shard.held_bytes(),
            }
        })
    }
}

impl Shard {
    fn empty() -> Self {
        Self { free: NIL, ..Self::default() }
    }

    fn held_bytes(&self) -> usize {
        self.chunks.len() * CHUNK_BYTES + self.index_charged_bytes + self.graves.len() * GRAVE_BYTES
    }

    fn block(&self, number: u32) -> &Block {
        block_of(&self.chunks, number)
    }

    fn block_mut(&mut self, number: u32) -> &mut Block {
        let at = number as usize % CHUNK_BLOCKS * BLOCK_BYTES;
        let chunk = &mut self.chunks[number as usize / CHUNK_BLOCKS];
        chunk[at..].first_chunk_mut().expect("a chunk is a whole number of blocks")
    }

    fn next(&self, number: u32) -> u32 {
        u32::from_le_bytes(*self.block(number).first_chunk().expect("a block has a link"))
    }

    fn link(&mut self, number: u32, next: u32) {
        self.block_mut(number)[..LINK_BYTES].copy_from_slice(&next.to_le_bytes());
    }

    fn header(&self, block: u32) -> Header {
        Header::decode(self.block(block))
    }

    fn has_key(&self, block: u32, key: &Key) -> bool {
        let block = self.block(block);
        let key = key.as_bytes();
        usize::from(block[LINK_BYTES]) == key.len()
            && &block[LINK_BYTES + HEADER_BYTES..LINK_BYTES + HEADER_BYTES + key.len()] == key
    }

    fn find(&self, hash: u64, key: &Key) -> Option<u32> {
        self.index.find(hash, |block| self.has_key(*block, key)).copied()
    }

    /// Makes sure that `blocks` are free, with another chunk if there is one. What is not urgent
    /// leaves the shard's reserve alone.
    fn make_room(&mut self, blocks: usize, chunks: &Chunks, is_urgent: bool) -> bool {
        let reserve = if is_urgent { 0 } else { self.chunks.len() * CHUNK_BLOCKS / RESERVE_SHARE };
        if blocks + reserve <= self.free_blocks {
            return true;
        }
        if let Some(chunk) = chunks.take() {
            self.chunks.push(chunk);
            self.free_blocks += CHUNK_BLOCKS;
        }
        blocks + reserve <= self.free_blocks
    }

    /// Writes a record over the blocks of `reuse`, then over free ones, and frees what is left over.
    /// There must be room. Returns the first block, which is `reuse` unless that is [`NIL`].
    fn write_chain(&mut self, mut reuse: u32, header: &Header, key: &Key, value: Value<'_>) -> u32 {
        let encoded = header.encode();
        let mut parts = [&encoded[..], key.as_bytes(), value.bytes];
        let mut head = NIL;
        let mut last = NIL;
        while parts.iter().any(|part| !part.is_empty()) {
            let number = self.take_block(&mut reuse);
            let block = self.block_mut(number);
            let mut at = LINK_BYTES;
            for part in &mut parts {
                let count = part.len().min(BLOCK_BYTES - at);
                let (now, later) = part.split_at(count);
                block[at..at + count].copy_from_slice(now);
                at += count;
                *part = later;
            }
            if last == NIL {
                head = number;
            } else {
                self.link(last, number);
            }
            last = number;
        }
        self.link(last, NIL);
        self.free_chain(reuse);
        head
    }

    fn take_block(&mut self, reuse: &mut u32) -> u32 {
        if *reuse != NIL {
            let number = *reuse;
            *reuse = self.next(number);
            return number;
        }
        assert!(0 < self.free_blocks, "make_room was asked first");
        self.free_blocks -= 1;
        if self.free == NIL {
            self.used_blocks += 1;
            return self.used_blocks - 1;
        }
        let number = self.free;
        self.free = self.next(number);
        number
    }

    fn free_chain(&mut self, mut number: u32) {
        while number != NIL {
            let next = self.next(number);
            self.link(number, self.free);
            self.free = number;
            self.free_blocks += 1;
            number = next;
        }
    }

    fn read_chain(&self, head: u32, header: &Header, value: &mut Vec<u8>) {
        let mut left = usize::from(header.value_bytes);
        let mut number = head;
        let mut from = LINK_BYTES + HEADER_BYTES + usize::from(header.key_bytes);
        while 0 < left {
            let block = self.block(number);
            let count = left.min(BLOCK_BYTES - from);
            value.extend_from_slice(&block[from..from + count]);
            left -= count;
            from = LINK_BYTES;
            number = self.next(number);
        }
    }

    fn insert(&mut self, hash: u64, head: u32, hasher: &RandomState, budget: &Budget) {
        let chunks = &self.chunks;
        let hash_of = |number: &u32| {
            let block = block_of(chunks, *number);
            let key_bytes = usize::from(block[LINK_BYTES]);
            let key = &block[LINK_BYTES + HEADER_BYTES..][..key_bytes];
            hasher.hash_one(key)
        };
        self.index.insert_unique(hash, head, hash_of);
        let cost = self.index.capacity() * 8 / 7 * INDEX_ENTRY_BYTES;
        budget.charge(cost.saturating_sub(self.index_charged_bytes));
        self.index_charged_bytes = cost.max(self.index_charged_bytes);
    }

    fn remove(&mut self, hash: u64, block: u32) {
        let header = self.header(block);
        if let Ok(entry) = self.index.find_entry(hash, |number| *number == block) {
            entry.remove();
        }
        self.free_chain(block);
        self.account(Some(&header), None);
    }

    fn account(&mut self, old: Option<&Header>, new: Option<&Header>) {
        if let Some(old) = old {
            self.usage.payload_bytes -= old.payload_bytes();
            *self.kind_count(old.removed) -= 1;
        }
        if let Some(new) = new {
            self.usage.payload_bytes += new.payload_bytes();
            *self.kind_count(new.removed) += 1;
        }
    }

    fn kind_count(&mut self, removed: bool) -> &mut usize {
        if removed { &mut self.usage.tombstones } else { &mut self.usage.keys }
    }

    /// Forgets old tombstones; returns how many graves were closed.
    fn sweep(&mut self, older_than: u64) -> usize {
        let mut closed = 0;
        while closed < SWEEP_MAX && self.graves.front().is_some_and(|grave| grave.version.time < older_than) {
            let grave = self.graves.pop_front().expect("the front was just looked at");
            closed += 1;
            // The block may hold another record by now, or a newer version of this one.
            let is_it = self.index.find(grave.hash, |number| *number == grave.block).is_some();
            if is_it && self.header(grave.block).version == grave.version {
                self.remove(grave.hash, grave.block);
            }
        }
        closed
    }
}

fn block_of(chunks: &[Chunk], number: u32) -> &Block {
    let at = number as usize % CHUNK_BLOCKS * BLOCK_BYTES;
    let chunk = &chunks[number as usize / CHUNK_BLOCKS];
    chunk[at..].first_chunk().expect("a chunk is a whole number of blocks")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn engine(bytes: usize) -> (Ram, Arc<Budget>) {
        let budget = Arc::new(Budget::new(bytes));
        (Ram::new(Arc::clone(&budget), 0, 1), budget)
    }

    fn key(number: u32) -> Key {
        Key::parse(&number.to_le_bytes()).expect("four bytes are a key")
    }

    fn at(time: u64) -> Version {
        Version { time, writer: 1 }
    }

    fn put(engine: &Ram, number: u32, time: u64, bytes: &[u8]) -> Written {
        let value = Some(Value { bytes, version: 7 });
        engine.write(number as u16, &key(number), &Record { version: at(time), value }, false)
    }

    fn remove(engine: &Ram, number: u32, time: u64) -> Written {
        engine.write(number as u16, &key(number), &Record { version: at(time), value: None }, false)
    }

    fn get(engine: &Ram, number: u32) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        let meta = engine.read(number as u16, &key(number), &mut value)?;
        (!meta.removed).then_some(value)
    }

    #[test]
    fn the_newest_write_wins_in_any_order() {
        let (engine, _) = engine(8 << 20);
        assert_eq!(put(&engine, 1, 5, b"five"), Written::Stored { existed: false });
        assert_eq!(put(&engine, 1, 4, b"four"), Written::Older { existed: true });
        assert_eq!(put(&engine, 1, 5, b"again"), Written::Older { existed: true });
        assert_eq!(remove(&engine, 1, 6), Written::Stored { existed: true });
        assert_eq!(put(&engine, 1, 5, b"late"), Written::Older { existed: false });
        assert_eq!(get(&engine, 1), None);
        assert_eq!(put(&engine, 1, 7, b"seven"), Written::Stored { existed: false });
        assert_eq!(get(&engine, 1).as_deref(), Some(&b"seven"[..]));
        engine.undo(1, &key(1), at(6));
        assert_eq!(get(&engine, 1).as_deref(), Some(&b"seven"[..]));
        engine.undo(1, &key(1), at(7));
        assert_eq!(engine.meta(1, &key(1)), None);
    }

    #[test]
    fn at_the_limit_new_keys_are_refused_and_overwrites_and_removals_are_not() {
        let (engine, _) = engine(64 << 20);
        let value = vec![3; 10_000];
        let stored = (0..).take_while(|number| put(&engine, *number, 1, &value) != Written::NoSpace).count();
        assert!(5_400 < stored, "{stored} values of 10,000 bytes in 64 MiB");
        for number in 0..stored as u32 {
            assert_eq!(put(&engine, number, 2, &value), Written::Stored { existed: true });
        }
        for number in 0..stored as u32 {
            assert_eq!(remove(&engine, number, 3), Written::Stored { existed: true });
        }
        let again = (0..).take_while(|number| put(&engine, *number, 4, &value) != Written::NoSpace).count();
        assert!(stored <= again + stored / 50, "{again} of {stored} fit again");
    }

    #[test]
    fn removed_small_values_make_room_for_large_ones() {
        let (engine, _) = engine(32 << 20);
        let small = (0..).take_while(|number| put(&engine, *number, 1, b"x") != Written::NoSpace).count();
        for number in 0..small as u32 {
            assert_eq!(remove(&engine, number, 2), Written::Stored { existed: true });
        }
        let large = vec![7; 10_000];
        let fill = |from: u32, time: u64| {
            (from..).take_while(|number| put(&engine, *number, time, &large) != Written::NoSpace).count()
        };
        let at_once = fill(1_000_000, 3);
        let later = fill(2_000_000, 3 + TOMBSTONE_NANOS_MIN);
        assert!(at_once < 200 && 2_000 < later, "{at_once} at once, {later} later");
    }

    #[test]
    fn wiping_and_sweeping_give_the_memory_back() {
        let (engine, budget) = engine(16 << 20);
        (0..2_000).for_each(|number| assert_ne!(put(&engine, number, 1, &[1; 1_000]), Written::NoSpace));
        (0..1_000).for_each(|number| assert_ne!(remove(&engine, number, 2), Written::NoSpace));
        put(&engine, 0, 3, b"back");
        assert_eq!((engine.usage().keys, engine.usage().tombstones), (1_001, 999));
        engine.sweep(2);
        assert_eq!(engine.usage().tombstones, 999, "none is older than 2");
        (0..1_000 / SWEEP_MAX + 1).for_each(|_| engine.sweep(3));
        assert_eq!((engine.usage().keys, engine.usage().tombstones), (1_001, 0));
        assert_eq!(get(&engine, 0).as_deref(), Some(&b"back"[..]));
        assert_eq!(budget.used_bytes(), engine.usage().held_bytes);
        engine.wipe();
        assert_eq!((budget.used_bytes(), engine.usage()), (0, Usage::default()));
    }

    proptest! {
        #[test]
        fn it_holds_what_a_map_would_hold(steps in proptest::collection::vec((0u32..20, 0usize..9_000, any::<u8>()), 1..200)) {
            let (engine, budget) = engine(8 << 20);
            let mut model: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
            for (time, (number, length, fill)) in (1u64..).zip(steps) {
                if fill < 40 {
                    remove(&engine, number, time);
                    model.remove(&number);
                } else {
                    let bytes: Vec<u8> = (0..length).map(|at| (at as u8) ^ fill).collect();
                    prop_assert!(put(&engine, number, time, &bytes) != Written::NoSpace);
                    model.insert(number, bytes);
                }
            }
            for number in 0..20 {
                prop_assert_eq!(get(&engine, number), model.get(&number).cloned());
            }
            prop_assert_eq!(engine.usage().keys, model.len());
            prop_assert_eq!(budget.used_bytes(), engine.usage().held_bytes);
        }
    }
}
