//! What this node keeps for others: the replica of its partitions, and hints for absent members.

pub mod anti_entropy;
pub mod hint;
pub mod transfer;

use crate::ids::Version;
use crate::peer::{Write, WriteOutcome};
use crate::storage::digest::{ALL_LEAVES, Digest};
use crate::storage::siblings::Siblings;
use crate::storage::{Change, Engine, Meta, Record, Usage, Written};
use hint::Hints;
use std::sync::atomic::{AtomicU64, Ordering};
use violet_client::{Key, Value};

/// This node's share of the data.
#[derive(Debug)]
pub struct Replica {
    engine: Box<dyn Engine>,
    /// Writes kept for absent members.
    pub hints: Hints,
    /// Time of the last wipe-out: nothing older is taken, so what was in flight cannot come back.
    wipe_floor: AtomicU64,
    /// Planted bugs, for proving that the simulator finds them.
    #[cfg(test)]
    pub bugs: std::sync::OnceLock<crate::sim::Bugs>,
}

impl Replica {
    /// A replica over an engine.
    #[must_use]
    pub fn new(engine: Box<dyn Engine>, hints: Hints) -> Self {
        Self {
            engine,
            hints,
            wipe_floor: AtomicU64::new(0),
            #[cfg(test)]
            bugs: std::sync::OnceLock::new(),
        }
    }

    /// Applies a write of this or another coordinator; says whether the key had a value before.
    /// `only_if_present` leaves a key alone that has no value here.
    pub fn apply(
        &self,
        partition: u16,
        write: &Write<'_>,
        may_use_reserve: bool,
        only_if_present: bool,
    ) -> (WriteOutcome, bool) {
        let floor = self.wipe_floor.load(Ordering::Acquire);
        if write.version.time <= floor {
            // A removal that looks for something older than the wipe-out finds nothing, and that is that.
            let outcome =
                if only_if_present { WriteOutcome::Applied } else { WriteOutcome::BelowWipe(floor) };
            return (outcome, false);
        }
        if only_if_present && self.engine.meta(partition, &write.key).is_none_or(|meta| meta.removed) {
            return (WriteOutcome::Applied, false);
        }
        let record = Record { version: write.version, value: write.value, is_set: write.is_set };
        match self.engine.write(partition, &write.key, &record, may_use_reserve) {
            Written::Stored { existed } => (WriteOutcome::Applied, existed),
            // What is newer than a removal was not there for it to find.
            Written::Older { existed } => (WriteOutcome::Applied, existed && write.value.is_some()),
            Written::NoSpace => (WriteOutcome::NoSpace, false),
        }
    }

    /// Changes a key to a set of siblings in one step; see [`Engine::rewrite`]. The caller's own clock must
    /// make the version: then it is later than any wipe-out.
    pub fn rewrite(
        &self,
        partition: u16,
        key: &Key,
        may_use_reserve: bool,
        change: Change<'_>,
        set: &mut Vec<u8>,
    ) -> Written {
        self.engine.rewrite(partition, key, may_use_reserve, change, set)
    }

    /// Looks a key up and appends the bytes of its value, of siblings the newest, to `value`.
    pub fn read(&self, partition: u16, key: &Key, value: &mut Vec<u8>) -> Option<Meta> {
        let start = value.len();
        let meta = self.engine.read(partition, key, value)?;
        if !meta.is_set() {
            return Some(meta);
        }
        let set = value.split_off(start);
        let siblings = Siblings::decode(&set).unwrap_or_default();
        let newest = siblings.newest();
        value.extend_from_slice(newest.unwrap_or_default().bytes);
        let client_version = newest.unwrap_or_default().version;
        Some(Meta { removed: newest.is_none(), client_version, ..meta })
    }

    /// Looks a key up as it is held, for another member: the value of a set is its encoding.
    pub fn read_record<'a>(&self, partition: u16, key: &Key, bytes: &'a mut Vec<u8>) -> Option<Record<'a>> {
        bytes.clear();
        let meta = self.engine.read(partition, key, bytes)?;
        let value = Value { bytes, version: meta.client_version };
        let value = (!meta.removed).then_some(value);
        Some(Record { version: meta.version, value, is_set: meta.is_set() })
    }

    /// Looks a key up without its bytes.
    #[must_use]
    pub fn meta(&self, partition: u16, key: &Key) -> Option<Meta> {
        self.engine.meta(partition, key)
    }

    /// Takes a write back: nothing of it stays here, nor for a member that is away. What it replaced is gone.
    pub fn undo(&self, partition: u16, key: &Key, version: Version) {
        self.forget_record(partition, key, version);
        #[cfg(test)]
        if self.bugs.get().is_some_and(|bugs| bugs.hint_survives_undo) {
            return;
        }
        self.hints.take_back(key, version);
    }

    /// Forgets this node's own record of a key if it is not newer than `version`; hints stay.
    pub fn forget_record(&self, partition: u16, key: &Key, version: Version) {
        self.engine.undo(partition, key, version);
    }

    /// Forgets everything written up to `floor`, hints included, and takes nothing older any more.
    pub fn wipe(&self, floor: Version) {
        self.wipe_floor.fetch_max(floor.time, Ordering::AcqRel);
        self.engine.wipe();
        self.hints.wipe();
    }

    /// The time of the last wipe-out; nothing up to it is taken any more.
    #[must_use]
    pub fn wiped_at(&self) -> u64 {
        self.wipe_floor.load(Ordering::Acquire)
    }

    /// Stands for everything that is held of a partition.
    #[must_use]
    pub fn digest(&self, partition: u16) -> Digest {
        #[cfg(test)]
        if self.planted().unseen_tombstones {
            return self.digest_of_values(partition);
        }
        self.engine.digest(partition)
    }

    /// Visits what is held in some leaves of a partition; see [`Engine::scan`].
    pub fn scan(&self, partition: u16, leaves: u32, visit: &mut dyn FnMut(&Key, &Meta)) {
        self.engine.scan(partition, leaves, visit);
    }

    /// The partitions of which anything is held.
    #[must_use]
    pub fn partitions_held(&self) -> Vec<u16> {
        self.engine.partitions_held()
    }

    /// Forgets a partition that this node does not own.
    pub fn forget_partition(&self, partition: u16) {
        self.engine.forget_partition(partition);
    }

    /// Forgets what was written to a partition up to this time: a wipe-out that this node missed.
    pub fn forget_until(&self, partition: u16, time: u64) {
        if time <= self.wiped_at() {
            return;
        }
        let mut old = Vec::new();
        self.engine.scan(partition, ALL_LEAVES, &mut |key, meta| {
            if meta.version.time <= time {
                old.push((*key, meta.version));
            }
        });
        old.iter().for_each(|(key, version)| self.engine.undo(partition, key, *version));
    }

    /// All owners of a partition are known to hold what was written up to this time.
    pub fn agree(&self, partition: u16, up_to: u64) {
        self.engine.agree(partition, up_to);
    }

    /// Forgets hints and tombstones older than these times; returns how many hints.
    pub fn sweep(&self, hints_before: u64, tombstones_before: u64) -> usize {
        #[cfg(test)]
        if self.planted().tombstones_without_agreement {
            self.engine
                .partitions_held()
                .into_iter()
                .for_each(|partition| self.engine.agree(partition, u64::MAX));
        }
        self.engine.sweep(tombstones_before);
        self.hints.sweep(hints_before)
    }

    /// How much is held.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.engine.usage()
    }
}

/// Bugs that can be planted, for proving that the simulator finds them.
#[cfg(test)]
impl Replica {
    pub(crate) fn planted(&self) -> crate::sim::Bugs {
        self.bugs.get().copied().unwrap_or_default()
    }

    fn digest_of_values(&self, partition: u16) -> Digest {
        let mut digest = Digest::default();
        self.engine.scan(partition, ALL_LEAVES, &mut |key, meta| {
            if !meta.removed {
                digest.add(key, meta);
            }
        });
        digest
    }
}
