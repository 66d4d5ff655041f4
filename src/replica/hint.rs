//! Hints: writes kept for members that were absent when they were made (Dynamo, section 4.6).
//!
//! One hint per absent member and key, the newest write winning. Hints are delivered by the
//! controller as soon as their owner is reachable, a bounded number at a time, and kept until the
//! owner has acknowledged exactly that version or a newer one. They are bounded in bytes, and
//! dropped (and counted) when older than the tombstones that could contradict them.

use crate::ids::{MemberId, RequestKey, Version};
use crate::peer::Write;
use crate::storage::siblings::{self, Joined};
use crate::storage::{Budget, Record};
use crate::time::{Duration, Instant};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use violet_client::{Key, Value};

/// Bytes that a hint costs beside its value.
const HINT_BYTES: usize = 192;

/// One kept write.
#[derive(Clone, Debug)]
pub struct Hint {
    version: Version,
    request: RequestKey,
    /// The value and the client's number; `None` is a removal.
    value: Option<(Bytes, i32)>,
    is_set: bool,
    sent_at: Instant,
}

impl Hint {
    /// The write to deliver.
    #[must_use]
    pub fn write(&self, key: Key) -> Write<'_> {
        let value = self.value.as_ref().map(|(bytes, version)| Value { bytes, version: *version });
        Write { key, version: self.version, value, is_set: self.is_set, request: self.request }
    }

    fn of(write: &Write<'_>) -> Self {
        Self {
            version: write.version,
            request: write.request,
            value: write.value.map(|value| (Bytes::copy_from_slice(value.bytes), value.version)),
            is_set: write.is_set,
            sent_at: Instant::ZERO,
        }
    }

    /// This hint with a write that came later: `None` when it has all of that.
    fn joined(&self, write: &Write<'_>) -> Option<Self> {
        if !self.is_set && !write.is_set {
            return (self.version < write.version).then(|| Self::of(write));
        }
        let mine = self.write(write.key);
        let mine = Record { version: mine.version, value: mine.value, is_set: mine.is_set };
        let theirs = Record { version: write.version, value: write.value, is_set: write.is_set };
        match siblings::join(&mine, &theirs) {
            Joined::Old => None,
            Joined::New => Some(Self::of(write)),
            Joined::Both { version, siblings } => {
                let mut set = Vec::new();
                siblings.encode(&mut set);
                let value = Some((set.into(), 0));
                Some(Self { version, value, is_set: true, ..Self::of(&Write { value: None, ..*write }) })
            }
        }
    }

    fn cost_bytes(&self) -> usize {
        HINT_BYTES + self.value.as_ref().map_or(0, |(bytes, _)| bytes.len())
    }
}

/// All hints of a node.
#[derive(Debug)]
pub struct Hints {
    budget: Arc<Budget>,
    bytes_max: usize,
    /// A leaf lock.
    kept: Mutex<Kept>,
    /// Planted: of two hints for one key the older one stays.
    #[cfg(test)]
    pub keeps_older: std::sync::atomic::AtomicBool,
}

#[derive(Debug, Default)]
struct Kept {
    by_owner: BTreeMap<MemberId, Owner>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Owner {
    hints: BTreeMap<Key, Hint>,
    /// Where the next round of deliveries goes on.
    cursor: Option<Key>,
}

impl Hints {
    /// No hints yet; at most `bytes_max` of them, taken from `budget`.
    #[must_use]
    pub fn new(budget: Arc<Budget>, bytes_max: usize) -> Self {
        Self {
            budget,
            bytes_max,
            kept: Mutex::default(),
            #[cfg(test)]
            keeps_older: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// Keeps a write for an absent member, unless a newer one for that key is kept already; sets are
    /// merged. `false` when there is no room.
    #[must_use]
    pub fn keep(&self, owner: MemberId, write: &Write<'_>) -> bool {
        let mut kept = self.kept.lock();
        let old = kept.by_owner.get(&owner).and_then(|owner| owner.hints.get(&write.key));
        #[cfg(test)]
        if old.is_some() && self.keeps_older.load(std::sync::atomic::Ordering::Relaxed) {
            return true;
        }
        let hint = match old {
            Some(old) => old.joined(write),
            None => Some(Hint::of(write)),
        };
        let Some(hint) = hint else { return true };
        let freed = old.map_or(0, Hint::cost_bytes);
        let cost = hint.cost_bytes();
        if self.bytes_max < kept.bytes - freed + cost || !self.budget.take(cost, 0) {
            return false;
        }
        self.budget.give(freed);
        kept.bytes = kept.bytes - freed + cost;
        kept.by_owner.entry(owner).or_default().hints.insert(write.key, hint);
        true
    }

    /// How many hints are kept for a member.
    #[must_use]
    pub fn count_for(&self, owner: MemberId) -> usize {
        self.kept.lock().by_owner.get(&owner).map_or(0, |owner| owner.hints.len())
    }

    /// How many hints and bytes are kept for all.
    #[must_use]
    pub fn usage(&self) -> (usize, usize) {
        let kept = self.kept.lock();
        (kept.by_owner.values().map(|owner| owner.hints.len()).sum(), kept.bytes)
    }

    /// The members that hints are kept for.
    #[must_use]
    pub fn owners(&self) -> Vec<MemberId> {
        self.kept.lock().by_owner.keys().copied().collect()
    }

    /// The next hints to deliver to a member, at most `count`: each not sent within `again_after`.
    pub fn take_due(
        &self,
        owner: MemberId,
        now: Instant,
        again_after: Duration,
        count: usize,
    ) -> Vec<(Key, Hint)> {
        let mut kept = self.kept.lock();
        let Some(owner) = kept.by_owner.get_mut(&owner) else { return Vec::new() };
        let start = owner.cursor.map_or(Bound::Unbounded, Bound::Excluded);
        let mut due = Vec::new();
        let mut cursor = None;
        for (key, hint) in owner.hints.range_mut((start, Bound::Unbounded)) {
            if due.len() == count {
                break;
            }
            cursor = Some(*key);
            if again_after <= now.since(hint.sent_at) {
                hint.sent_at = now;
                due.push((*key, hint.clone()));
            }
        }
        // At the end of the list the next round starts over.
        owner.cursor = if due.len() == count { cursor } else { None };
        due
    }

    /// The owner keeps this version, or something newer: forgets the hint unless it has become newer
    /// meanwhile. `true` when a hint went.
    pub fn on_stored(&self, owner: MemberId, key: &Key, version: Version) -> bool {
        let mut kept = self.kept.lock();
        let Some(hints) = kept.by_owner.get_mut(&owner).map(|owner| &mut owner.hints) else {
            return false;
        };
        if hints.get(key).is_none_or(|hint| version < hint.version) {
            return false;
        }
        let cost = hints.remove(key).map_or(0, |hint| hint.cost_bytes());
        if hints.is_empty() {
            kept.by_owner.remove(&owner);
        }
        kept.bytes -= cost;
        self.budget.give(cost);
        true
    }

    /// A write was taken back: what is kept of it, or of anything older under its key, is delivered to nobody.
    pub fn take_back(&self, key: &Key, version: Version) {
        for owner in self.owners() {
            self.on_stored(owner, key, version);
        }
    }

    /// Forgets all hints for a member that is not coming back; returns how many.
    pub fn forget_owner(&self, owner: MemberId) -> usize {
        let mut kept = self.kept.lock();
        let Some(owner) = kept.by_owner.remove(&owner) else { return 0 };
        let bytes: usize = owner.hints.values().map(Hint::cost_bytes).sum();
        kept.bytes -= bytes;
        self.budget.give(bytes);
        owner.hints.len()
    }

    /// Whether a write of this key is kept for anyone.
    #[must_use]
    pub fn has_key(&self, key: &Key) -> bool {
        self.kept.lock().by_owner.values().any(|owner| owner.hints.contains_key(key))
    }

    /// Forgets everything.
    pub fn wipe(&self) {
        let mut kept = self.kept.lock();
        self.budget.give(kept.bytes);
        *kept = Kept::default();
    }

    /// Forgets hints whose version is older than this time; returns how many.
    pub fn sweep(&self, older_than: u64) -> usize {
        let mut kept = self.kept.lock();
        let mut bytes = 0;
        let mut swept = 0;
        for owner in kept.by_owner.values_mut() {
            owner.hints.retain(|_, hint| {
                let keep = older_than <= hint.version.time;
                if !keep {
                    bytes += hint.cost_bytes();
                    swept += 1;
                }
                keep
            });
        }
        kept.by_owner.retain(|_, owner| !owner.hints.is_empty());
        kept.bytes -= bytes;
        self.budget.give(bytes);
        swept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: MemberId = MemberId(1);

    fn hints() -> (Hints, Arc<Budget>) {
        let budget = Arc::new(Budget::new(1_000_000));
        (Hints::new(Arc::clone(&budget), 1_000), budget)
    }

    fn keep(hints: &Hints, key: &[u8], time: u64, bytes: &[u8]) -> bool {
        let write = Write {
            key: Key::parse(key).expect("short enough"),
            version: Version { time, writer: 0 },
            value: Some(Value { bytes, version: 0 }),
            is_set: false,
            request: RequestKey(0),
        };
        hints.keep(OWNER, &write)
    }

    fn due(hints: &Hints, millis: u64, count: usize) -> Vec<(String, u64)> {
        let now = Instant::from_nanos(millis * 1_000_000);
        let due = hints.take_due(OWNER, now, Duration::from_millis(100), count);
        due.iter().map(|(key, hint)| (format!("{key:?}"), hint.version.time)).collect()
    }

    #[test]
    fn the_newest_write_is_kept_until_its_owner_has_it() {
        let (hints, budget) = hints();
        assert!(keep(&hints, b"k", 5, b"five") && keep(&hints, b"k", 4, b"four"));
        assert_eq!(due(&hints, 1_000, 9), [("k".to_owned(), 5)]);
        assert_eq!(due(&hints, 1_050, 9), [], "not again so soon");
        assert!(keep(&hints, b"k", 6, b"six"));
        let key = Key::parse(b"k").expect("short enough");
        assert!(!hints.on_stored(OWNER, &key, Version { time: 5, writer: 0 }), "six is still missing");
        assert_eq!(due(&hints, 1_051, 9), [("k".to_owned(), 6)]);
        assert!(hints.on_stored(OWNER, &key, Version { time: 6, writer: 0 }));
        assert_eq!((hints.usage(), budget.used_bytes()), ((0, 0), 0));
    }

    #[test]
    fn sets_are_kept_together() {
        let (hints, _) = hints();
        let key = Key::parse(b"k").expect("short enough");
        let keep_set = |writer: u64, time: u64| {
            let value = Value { bytes: &writer.to_le_bytes(), version: 0 };
            let context = siblings::CausalContext::default();
            let updated = siblings::Siblings::default().update(&context, value, writer, time);
            let mut set = Vec::new();
            updated.expect("a possible context").siblings.encode(&mut set);
            let version = Version { time, writer };
            let value = Some(Value { bytes: &set, version: 0 });
            assert!(hints.keep(OWNER, &Write { key, version, value, is_set: true, request: RequestKey(0) }));
        };
        keep_set(2, 20);
        keep_set(1, 10);
        assert_eq!(hints.usage().0, 1);
        let (_, hint) = hints.take_due(OWNER, Instant::FAR, Duration::ZERO, 9).remove(0);
        let write = hint.write(key);
        assert_eq!((write.version, write.is_set), (Version { time: 20, writer: 2 }, true));
        let set = siblings::Siblings::decode(write.value.expect("a value").bytes).expect("a set");
        assert_eq!(set.len(), 2);
        assert!(keep(&hints, b"k", 30, b"plain"), "a newer value takes the set's place");
        let (_, hint) = hints.take_due(OWNER, Instant::FAR, Duration::ZERO, 9).remove(0);
        assert!(!hint.write(key).is_set);
    }

    #[test]
    fn deliveries_go_round_in_bounded_steps() {
        let (hints, _) = hints();
        for key in [b"a", b"b", b"c"] {
            assert!(keep(&hints, key, 1, b""));
        }
        let names = |due: Vec<(String, u64)>| due.into_iter().map(|(key, _)| key).collect::<String>();
        assert_eq!(names(due(&hints, 1_000, 2)), "ab");
        assert_eq!(names(due(&hints, 1_001, 2)), "c");
        assert_eq!(names(due(&hints, 1_002, 2)), "");
        assert_eq!(names(due(&hints, 1_100, 2)), "ab");
    }

    #[test]
    fn bytes_are_bounded_and_old_hints_go() {
        let (hints, budget) = hints();
        assert!(keep(&hints, b"a", 1, &[0; 300]) && !keep(&hints, b"b", 2, &[0; 600]));
        assert!(keep(&hints, b"b", 2, &[0; 100]));
        assert_eq!(hints.sweep(2), 1);
        assert_eq!((hints.usage(), budget.used_bytes()), ((1, HINT_BYTES + 100), HINT_BYTES + 100));
        hints.wipe();
        assert_eq!((hints.usage(), budget.used_bytes()), ((0, 0), 0));
    }
}
