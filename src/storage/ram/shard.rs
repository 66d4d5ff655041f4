//! What is under one lock: the blocks of some partitions, their slots, and what all this costs.

use super::blocks::{Blocks, Header, NIL};
use super::partition::Partition;
use crate::ids::Version;
use crate::storage::chunks::Chunks;
use crate::storage::digest::{ALL_LEAVES, Digest, leaf_of};
use crate::storage::siblings::{self, Joined, Siblings};
use crate::storage::{Budget, Change, Meta, Record, Standing, Usage, Written};
use ahash::RandomState;
use std::sync::Arc;
use violet_client::{Key, Value};

/// Graves closed in one sweep of one shard.
pub(super) const SWEEP_MAX: usize = 256;
/// When there is no other memory, tombstones older than this go. Frames between members are refused
/// when they are older, so only a hint could still bring back what such a tombstone removed.
pub(super) const TOMBSTONE_NANOS_MIN: u64 = 5_000_000_000;

/// A shard; its bytes return to the budget when it is dropped.
#[derive(Debug)]
pub(super) struct Shard {
    hasher: RandomState,
    budget: Arc<Budget>,
    blocks: Blocks,
    /// Slots, up to the last partition that was ever used. Few enough to walk over: a sweep does.
    partitions: Vec<Partition>,
    /// Bytes taken from the budget, without the chunks, which do so themselves.
    charged_bytes: usize,
    /// Records of forgotten partitions, whose blocks are not free yet.
    doomed: Vec<u32>,
    /// Where the next sweep starts.
    sweep_slot: usize,
    /// No tombstone that all owners hold is older than this. It spares a full shard that refuses writes
    /// a search for tombstones before each.
    due_from: u64,
    /// It has held a set of siblings.
    has_held_sets: bool,
    /// Sets that were forgotten without something newer in their place, at least.
    losses: u64,
    usage: Usage,
}

impl Drop for Shard {
    fn drop(&mut self) {
        self.budget.give(self.charged_bytes);
    }
}

impl Shard {
    pub(super) fn new(hasher: RandomState, budget: Arc<Budget>) -> Self {
        Self {
            hasher,
            budget,
            blocks: Blocks::new(),
            partitions: Vec::new(),
            charged_bytes: 0,
            doomed: Vec::new(),
            sweep_slot: 0,
            due_from: u64::MAX,
            has_held_sets: false,
            losses: 0,
            usage: Usage::default(),
        }
    }

    /// An empty shard for the same partitions, after this one.
    pub(super) fn successor(&self) -> Self {
        let losses = self.losses + u64::from(self.has_held_sets);
        let mut successor = Self::new(self.hasher.clone(), Arc::clone(&self.budget));
        successor.losses = losses;
        successor
    }

    /// Keeps a record if it is newer than what is there, with blocks of old tombstones if there are no
    /// others. A set on either side is joined with the other.
    pub(super) fn write(
        &mut self,
        place: (usize, u64),
        key: &Key,
        record: &Record<'_>,
        may_use_reserve: bool,
        chunks: &Chunks,
    ) -> Written {
        loop {
            let old = self.find_with_header(place, key);
            let written = match old {
                Some(old) if record.is_set || old.1.is_set() => {
                    self.join_if_room(place, key, old, record, may_use_reserve, chunks)
                }
                Some((_, old)) if record.version <= old.version => {
                    return Written::Older { existed: !old.removed };
                }
                _ => self.put_if_room(place, key, old, record, may_use_reserve, chunks),
            };
            // Removal marks must not hold the space of what they removed.
            if written != Written::NoSpace || !self.sweep_for(record.version) {
                return written;
            }
        }
    }

    /// Changes a key to a set; `set` gets its bytes.
    pub(super) fn rewrite(
        &mut self,
        place: (usize, u64),
        key: &Key,
        may_use_reserve: bool,
        (change, set): (Change<'_>, &mut Vec<u8>),
        chunks: &Chunks,
    ) -> Written {
        let old = self.find_with_header(place, key);
        let mut bytes = Vec::new();
        let meta = old.map(|(_, old)| old.meta());
        let siblings = old.and_then(|(head, old)| Siblings::of_record(&self.record(head, &old, &mut bytes)));
        let siblings = siblings.unwrap_or_default();
        let Some((version, siblings)) = change(Standing { meta, siblings, losses: self.losses }) else {
            return Written::Older { existed: meta.is_some_and(|meta| !meta.removed) };
        };
        siblings.encode(set);
        let record = Record { version, value: Some(Value { bytes: set, version: 0 }), is_set: true };
        loop {
            let old = self.find_with_header(place, key);
            let written = self.put_if_room(place, key, old, &record, may_use_reserve, chunks);
            if written != Written::NoSpace || !self.sweep_for(version) {
                return written;
            }
        }
    }

    fn join_if_room(
        &mut self,
        place: (usize, u64),
        key: &Key,
        (head, old): (u32, Header),
        record: &Record<'_>,
        may_use_reserve: bool,
        chunks: &Chunks,
    ) -> Written {
        let mut bytes = Vec::new();
        let joined = siblings::join(&self.record(head, &old, &mut bytes), record);
        let mut set = Vec::new();
        let record = match joined {
            Joined::Old => return Written::Older { existed: !old.removed },
            Joined::New => *record,
            Joined::Both { version, siblings } => {
                siblings.encode(&mut set);
                Record { version, value: Some(Value { bytes: &set, version: 0 }), is_set: true }
            }
        };
        self.put_if_room(place, key, Some((head, old)), &record, may_use_reserve, chunks)
    }

    /// Writes a record over what is there, whatever that is.
    fn put_if_room(
        &mut self,
        (slot, hash): (usize, u64),
        key: &Key,
        old: Option<(u32, Header)>,
        record: &Record<'_>,
        may_use_reserve: bool,
        chunks: &Chunks,
    ) -> Written {
        let new = Header::of(key, record);
        let (old_head, old) = old.unzip();
        let existed = old.is_some_and(|header| !header.removed);
        let is_urgent = may_use_reserve || existed || new.removed;
        let have = old.map_or(0, |header| header.blocks());
        if !self.blocks.make_room(new.blocks().saturating_sub(have), chunks, is_urgent) {
            return Written::NoSpace;
        }
        let value = record.value.unwrap_or_default();
        let head = self.blocks.write(old_head.unwrap_or(NIL), &new, key, value);
        self.has_held_sets |= record.is_set;
        self.change(slot, |partition, blocks, hasher| match &old {
            Some(old) => partition.replace(head, key, old, &new),
            None => partition.insert(hash, head, blocks, hasher),
        });
        self.account(old.as_ref(), Some(&new));
        Written::Stored { existed }
    }

    fn find_with_header(&self, (slot, hash): (usize, u64), key: &Key) -> Option<(u32, Header)> {
        let head = self.find(slot, hash, key)?;
        Some((head, self.blocks.header(head)))
    }

    fn record<'a>(&self, head: u32, header: &Header, bytes: &'a mut Vec<u8>) -> Record<'a> {
        self.blocks.read(head, header, bytes);
        let Meta { version, removed, client_version, .. } = header.meta();
        let value = Value { bytes, version: client_version };
        Record { version, value: (!removed).then_some(value), is_set: header.is_set() }
    }

    /// Makes room for a write of this version; `false` when nothing more can go.
    fn sweep_for(&mut self, version: Version) -> bool {
        0 < self.sweep(version.time.saturating_sub(TOMBSTONE_NANOS_MIN))
    }

    /// Forgets a record if it is not newer than `version`.
    pub(super) fn undo(&mut self, (slot, hash): (usize, u64), key: &Key, version: Version) {
        if let Some(head) = self.find(slot, hash, key)
            && self.blocks.header(head).version <= version
        {
            self.losses += u64::from(self.blocks.header(head).is_set());
            self.change(slot, |partition, blocks, _| partition.remove(hash, head, blocks));
            self.release(head);
        }
    }

    /// What is known of a key; appends its value's bytes to `value`, if that is asked for.
    pub(super) fn read(
        &self,
        (slot, hash): (usize, u64),
        key: &Key,
        value: Option<&mut Vec<u8>>,
    ) -> Option<Meta> {
        let head = self.find(slot, hash, key)?;
        let header = self.blocks.header(head);
        if let Some(value) = value {
            self.blocks.read(head, &header, value);
        }
        Some(header.meta())
    }

    pub(super) fn digest(&self, slot: usize) -> Digest {
        self.partitions.get(slot).map_or_else(Digest::default, Partition::digest)
    }

    /// Visits the records of some leaves.
    pub(super) fn scan(&self, slot: usize, leaves: u32, visit: &mut dyn FnMut(&Key, &Meta)) {
        for head in self.partitions.get(slot).into_iter().flat_map(Partition::heads) {
            let key = self.blocks.key(head);
            if leaves == ALL_LEAVES || leaves >> leaf_of(&key) & 1 == 1 {
                visit(&key, &self.blocks.header(head).meta());
            }
        }
    }

    /// Slots with records.
    pub(super) fn held(&self) -> impl Iterator<Item = usize> {
        self.partitions
            .iter()
            .enumerate()
            .filter(|(_, partition)| !partition.is_empty())
            .map(|(slot, _)| slot)
    }

    /// All owners hold what was written up to this time.
    pub(super) fn agree(&mut self, slot: usize, up_to: u64) {
        self.change(slot, |partition, _, _| partition.agree(up_to));
    }

    /// Empties a partition. Its blocks are freed by [`free_doomed`](Self::free_doomed).
    pub(super) fn forget(&mut self, slot: usize) {
        if slot < self.partitions.len() {
            // For moments this list is charged to nobody; the index that it replaces was larger.
            let heads = self.change(slot, |partition, _, _| partition.take());
            self.losses += u64::from(self.has_held_sets && !heads.is_empty());
            self.doomed.extend(heads);
        }
    }

    /// Frees at most `records_max` records of forgotten partitions; says whether there are more.
    pub(super) fn free_doomed(&mut self, records_max: usize) -> bool {
        for _ in 0..records_max.min(self.doomed.len()) {
            let head = self.doomed.pop().expect("counted");
            self.release(head);
        }
        if self.doomed.is_empty() {
            self.doomed = Vec::new();
        }
        !self.doomed.is_empty()
    }

    /// Forgets tombstones that all owners hold and that are older than this; returns how many graves
    /// were closed.
    pub(super) fn sweep(&mut self, older_than: u64) -> usize {
        if older_than <= self.due_from {
            return 0;
        }
        let mut closed = 0;
        for _ in 0..self.partitions.len() {
            let slot = self.sweep_slot % self.partitions.len();
            self.sweep_slot = slot + 1;
            closed += self.sweep_partition(slot, older_than, SWEEP_MAX - closed);
            if closed == SWEEP_MAX {
                return closed;
            }
        }
        let due_from = self.partitions.iter().filter_map(Partition::due_from).min();
        self.due_from = due_from.unwrap_or(u64::MAX);
        closed
    }

    fn sweep_partition(&mut self, slot: usize, older_than: u64, graves_max: usize) -> usize {
        if self.partitions[slot].due_from().is_none_or(|time| older_than <= time) {
            return 0;
        }
        let mut freed = Vec::new();
        let closed = self.change(slot, |partition, blocks, hasher| {
            let mut closed = 0;
            while closed < graves_max
                && let Some(tombstone) = partition.close_grave(older_than, blocks, hasher)
            {
                closed += 1;
                if let Some((hash, head)) = tombstone {
                    partition.remove(hash, head, blocks);
                    freed.push(head);
                }
            }
            closed
        });
        freed.into_iter().for_each(|head| self.release(head));
        closed
    }

    /// How much is held.
    pub(super) fn usage(&self) -> Usage {
        Usage { held_bytes: self.blocks.held_bytes() + self.charged_bytes, ..self.usage }
    }

    fn find(&self, slot: usize, hash: u64, key: &Key) -> Option<u32> {
        self.partitions.get(slot)?.find(hash, key, &self.blocks)
    }

    /// The only way to change a partition: afterwards it has the size that it should have and has paid
    /// for it.
    fn change<T>(
        &mut self,
        slot: usize,
        change: impl FnOnce(&mut Partition, &Blocks, &RandomState) -> T,
    ) -> T {
        let slot_bytes = |partitions: &Vec<Partition>| partitions.capacity() * size_of::<Partition>();
        let mut before = 0;
        let mut after = 0;
        if self.partitions.len() <= slot {
            before += slot_bytes(&self.partitions);
            self.partitions.resize_with(slot + 1, Partition::default);
            after += slot_bytes(&self.partitions);
        }
        let partition = &mut self.partitions[slot];
        before += partition.held_bytes();
        let result = change(partition, &self.blocks, &self.hasher);
        partition.shrink(&self.blocks, &self.hasher);
        after += partition.held_bytes();
        self.due_from = self.due_from.min(partition.due_from().unwrap_or(u64::MAX));
        self.budget.charge(after.saturating_sub(before));
        self.budget.give(before.saturating_sub(after));
        self.charged_bytes = self.charged_bytes + after - before;
        result
    }

    /// Frees the blocks of a record that no index leads to any more.
    fn release(&mut self, head: u32) {
        let header = self.blocks.header(head);
        self.blocks.free(head);
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
}
