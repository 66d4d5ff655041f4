//! Operations that wait for other members, each with a deadline.
//!
//! A table by token and a queue by deadline. An operation is changed in place under its shard's lock
//! ([`Pending::update`]), which says what to send; the sending comes after. So two answers that two
//! threads handle at once are both seen, and an answer for an operation that is over finds nothing.

use crate::ids::Token;
use crate::time::Instant;
use ahash::RandomState;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const SHARDS: usize = 16;

/// Operations of one kind.
#[derive(Debug)]
pub struct Pending<Op> {
    next_token: AtomicU64,
    len: AtomicUsize,
    len_max: usize,
    /// Nanoseconds of the earliest deadline, or `u64::MAX`.
    earliest: AtomicU64,
    /// Lock order: a shard, then the deadlines.
    shards: Vec<Mutex<HashMap<Token, Entry<Op>, RandomState>>>,
    deadlines: Mutex<BTreeSet<(Instant, Token)>>,
}

/// What happens to an operation after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It waits on, with the same deadline.
    Keep,
    /// It waits on until then.
    WakeAt(Instant),
    /// It is over.
    Remove,
}

#[derive(Debug)]
struct Entry<Op> {
    deadline: Instant,
    op: Op,
}

impl<Op> Pending<Op> {
    /// An empty table of at most `len_max` operations.
    #[must_use]
    pub fn new(len_max: usize, seed: u64) -> Self {
        let table = || Mutex::new(HashMap::with_hasher(RandomState::with_seeds(seed, 7, 8, 9)));
        Self {
            next_token: AtomicU64::new(1),
            len: AtomicUsize::new(0),
            len_max,
            earliest: AtomicU64::new(u64::MAX),
            shards: (0..SHARDS).map(|_| table()).collect(),
            deadlines: Mutex::default(),
        }
    }

    /// A token for a new operation.
    pub fn token(&self) -> Token {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// Operations in progress.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// How many of the operations are so.
    pub fn count(&self, is_so: impl Fn(&Op) -> bool) -> usize {
        let of_shard = |shard: &Mutex<HashMap<Token, Entry<Op>, RandomState>>| {
            shard.lock().values().filter(|entry| is_so(&entry.op)).count()
        };
        self.shards.iter().map(of_shard).sum()
    }

    /// Whether nothing is in progress.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no new operation should start.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len_max <= self.len()
    }

    /// Puts an operation in, to be woken at `deadline`.
    pub fn insert(&self, token: Token, deadline: Instant, op: Op) {
        let mut shard = self.shard(token).lock();
        let old = shard.insert(token, Entry { deadline, op });
        debug_assert!(old.is_none(), "an operation is in the table once");
        self.len.fetch_add(1, Ordering::Relaxed);
        let mut deadlines = self.deadlines.lock();
        deadlines.insert((deadline, token));
        self.note_earliest(&deadlines);
    }

    /// Changes an operation in place; `change` says what happens to it next and what to do about it.
    /// Returns that, and the operation itself when it was removed. `change` must not send or lock.
    pub fn update<R>(
        &self,
        token: Token,
        change: impl FnOnce(&mut Op) -> (Next, R),
    ) -> Option<(R, Option<Op>)> {
        let mut shard = self.shard(token).lock();
        let entry = shard.get_mut(&token)?;
        let (next, result) = change(&mut entry.op);
        let old_deadline = entry.deadline;
        let removed = match next {
            Next::Keep => return Some((result, None)),
            Next::WakeAt(deadline) => {
                entry.deadline = deadline;
                None
            }
            Next::Remove => {
                self.len.fetch_sub(1, Ordering::Relaxed);
                shard.remove(&token).map(|entry| entry.op)
            }
        };
        let mut deadlines = self.deadlines.lock();
        deadlines.remove(&(old_deadline, token));
        if let Next::WakeAt(deadline) = next {
            deadlines.insert((deadline, token));
        }
        self.note_earliest(&deadlines);
        Some((result, removed))
    }

    /// Takes all operations out, in the order of their tokens.
    pub fn drain(&self) -> Vec<Op> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            self.len.fetch_sub(shard.len(), Ordering::Relaxed);
            let mut deadlines = self.deadlines.lock();
            for (token, entry) in shard.drain() {
                deadlines.remove(&(entry.deadline, token));
                all.push((token, entry.op));
            }
            self.note_earliest(&deadlines);
        }
        all.sort_unstable_by_key(|(token, _)| *token);
        all.into_iter().map(|(_, op)| op).collect()
    }

    /// The token of an operation whose deadline has come.
    #[must_use]
    pub fn due(&self, now: Instant) -> Option<Token> {
        let first = self.deadlines.lock().first().copied();
        first.filter(|(deadline, _)| *deadline <= now).map(|(_, token)| token)
    }

    /// The earliest deadline.
    #[must_use]
    pub fn earliest(&self) -> Instant {
        Instant::from_nanos(self.earliest.load(Ordering::Relaxed))
    }

    fn shard(&self, token: Token) -> &Mutex<HashMap<Token, Entry<Op>, RandomState>> {
        &self.shards[token as usize % SHARDS]
    }

    fn note_earliest(&self, deadlines: &BTreeSet<(Instant, Token)>) {
        let earliest = deadlines.first().map_or(u64::MAX, |(deadline, _)| deadline.as_nanos());
        self.earliest.store(earliest, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_come_due_in_the_order_of_their_deadlines() {
        let at = Instant::from_nanos;
        let pending = Pending::new(2, 1);
        let (a, b) = (pending.token(), pending.token());
        pending.insert(a, at(20), 'a');
        pending.insert(b, at(10), 'b');
        assert!(pending.is_full());
        assert_eq!((pending.earliest(), pending.due(at(9)), pending.due(at(25))), (at(10), None, Some(b)));
        assert_eq!(pending.update(b, |_| (Next::Remove, ())), Some(((), Some('b'))));
        assert_eq!(pending.update(b, |_| (Next::Remove, ())), None);
        assert_eq!((pending.due(at(25)), pending.len()), (Some(a), 1));
        let swap = |op: &mut char| (Next::WakeAt(at(30)), std::mem::replace(op, 'x'));
        assert_eq!(pending.update(a, swap), Some(('a', None)));
        assert_eq!((pending.due(at(29)), pending.due(at(30))), (None, Some(a)));
        assert_eq!(pending.update(a, |_| (Next::Remove, ())), Some(((), Some('x'))));
        assert_eq!((pending.earliest(), pending.is_empty()), (Instant::FAR, true));
        (0..40).for_each(|number| pending.insert(pending.token(), at(50 - number), number as u8 as char));
        let drained: String = pending.drain().into_iter().collect();
        assert_eq!(drained, (0..40u8).map(char::from).collect::<String>());
        assert_eq!((pending.earliest(), pending.is_empty()), (Instant::FAR, true));
    }
}
