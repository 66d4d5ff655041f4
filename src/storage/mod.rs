//! Where values live: the [`Engine`] behind a replica, and the memory that all parts of a node share.

pub mod chunks;
pub mod digest;
pub mod ram;
pub mod siblings;

use crate::ids::Version;
use digest::Digest;
use siblings::Siblings;
use std::sync::atomic::{AtomicUsize, Ordering};
use violet_client::{Key, Value};

/// What is kept under a key: a value, the mark of a removal, or a set of siblings.
/// The default is what there is where nothing is: a removal older than all else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record<'a> {
    /// Which write it is; of a set, the newest that it has.
    pub version: Version,
    /// The value; `None` is a tombstone.
    pub value: Option<Value<'a>>,
    /// The value's bytes are those of an encoded set ([`siblings`]).
    pub is_set: bool,
}

/// What is known of a record without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Which write it is.
    pub version: Version,
    /// It is a tombstone.
    pub removed: bool,
    /// The client's number beside the value; of a set the newest value's where the set was read, else 0.
    pub client_version: i32,
    /// Stands for what a set holds, because sets of one version may differ. 0 for any other record.
    pub contents: u64,
}

impl Meta {
    /// Whether it is a set of siblings.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.contents != 0
    }
}

/// A key as it stands while it is changed in place.
#[derive(Debug)]
pub struct Standing {
    /// What was there, if anything.
    pub meta: Option<Meta>,
    /// All that is there, as a set.
    pub siblings: Siblings,
    /// Sets that this engine had to forget so far: see [`siblings::Dot::writer_after`].
    pub losses: u64,
}

/// What is to be there instead; `None` leaves the key alone.
pub type Change<'a> = &'a mut dyn FnMut(Standing) -> Option<(Version, Siblings)>;

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Kept; says what was there before.
    Stored {
        /// There was a value.
        existed: bool,
    },
    /// Something at least as new is there already.
    Older {
        /// What is there is a value.
        existed: bool,
    },
    /// No memory.
    NoSpace,
}

/// How much an engine holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Keys with a value.
    pub keys: usize,
    /// Tombstones.
    pub tombstones: usize,
    /// Payload bytes: keys and values.
    pub payload_bytes: usize,
    /// Bytes taken from the budget.
    pub held_bytes: usize,
}

/// A store of records by key. A write is kept only if it is newer than what is there, and sets are merged,
/// so writes may come in any order and more than once. Implementations are thread-safe and never block for long.
pub trait Engine: Send + Sync + std::fmt::Debug {
    /// Keeps a record if it is newer. `may_use_reserve`: it replaces or removes a value, and such
    /// writes may use the memory that is set aside for them.
    fn write(&self, partition: u16, key: &Key, record: &Record<'_>, may_use_reserve: bool) -> Written;

    /// Changes a key to a set in one step: nothing else is written to it meanwhile. `change` says what to
    /// make of what is there; its version must be newer. It must not call the engine. `set` gets the bytes of what is then there.
    fn rewrite(
        &self,
        partition: u16,
        key: &Key,
        may_use_reserve: bool,
        change: Change<'_>,
        set: &mut Vec<u8>,
    ) -> Written;

    /// Looks a key up and appends its value's bytes, if it has a value, to `value`. The bytes of a set are
    /// its encoding.
    fn read(&self, partition: u16, key: &Key, value: &mut Vec<u8>) -> Option<Meta>;

    /// Looks a key up without its bytes.
    fn meta(&self, partition: u16, key: &Key) -> Option<Meta>;

    /// Forgets a record without a trace if it is not newer than `version`.
    fn undo(&self, partition: u16, key: &Key, version: Version);

    /// Forgets everything, and what was agreed.
    fn wipe(&self);

    /// The sums of a partition's records, tombstones included, as they stand.
    fn digest(&self, partition: u16) -> Digest;

    /// Visits every record of a partition that is in one of these leaves (bit `n` is leaf `n`),
    /// tombstones included.
    ///
    /// The order is unspecified, and the same on a machine for the same history and seed. Writers of the
    /// partition, and of others that share its lock, wait meanwhile. So the time of a scan is bounded by
    /// the size of the partition only, visitors must be quick, and they must not call the engine.
    fn scan(&self, partition: u16, leaves: u32, visit: &mut dyn FnMut(&Key, &Meta));

    /// Forgets a partition's records without a trace, and what was agreed on it. It is empty at once;
    /// its memory is free when the call returns.
    fn forget_partition(&self, partition: u16);

    /// The partitions with at least one record, in rising order.
    fn partitions_held(&self) -> Vec<u16>;

    /// All owners of the partition hold everything that was written up to this time (nanoseconds since
    /// the epoch). The latest time counts, whatever the order of calls.
    fn agree(&self, partition: u16, up_to: u64);

    /// Forgets tombstones whose version is older than this time (nanoseconds since the epoch), but only
    /// what all owners hold ([`agree`](Self::agree)); bounded work per call. Without a free block a
    /// write does the same for any but the youngest tombstones.
    fn sweep(&self, older_than: u64);

    /// How much is held.
    fn usage(&self) -> Usage;
}

/// The memory that values, hints and the reply cache share.
#[derive(Debug)]
pub struct Budget {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
}

impl Budget {
    /// A budget of this many bytes.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        Self { limit_bytes, used_bytes: AtomicUsize::new(0) }
    }

    /// Takes bytes if that leaves at least `leave_bytes`.
    #[must_use]
    pub fn take(&self, bytes: usize, leave_bytes: usize) -> bool {
        let ceiling = self.limit_bytes.saturating_sub(leave_bytes);
        self.used_bytes
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|used| *used <= ceiling)
            })
            .is_ok()
    }

    /// Takes bytes beyond the limit, as long as no more than `beyond_bytes` are taken beyond it.
    #[must_use]
    pub fn overdraw(&self, bytes: usize, beyond_bytes: usize) -> bool {
        let ceiling = self.limit_bytes + beyond_bytes;
        self.used_bytes
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|used| *used <= ceiling)
            })
            .is_ok()
    }

    /// Takes bytes that are spent already, even beyond the limit.
    pub fn charge(&self, bytes: usize) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives bytes back.
    pub fn give(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes taken.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that there are.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }
}
