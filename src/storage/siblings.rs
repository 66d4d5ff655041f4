//! Siblings: the concurrent values of one key, kept apart by causality, as dotted version vector sets
//! (Preguiça et al. 2012; Almeida et al. 2014, "Scalable and accurate causality tracking for eventually
//! consistent stores").
//!
//! Each write is an event with a name of its own, a [`Dot`]: who coordinated it and a count. A set
//! remembers which events it has *seen*, for each writer all up to one count, and the values of those that
//! nothing has replaced. What was seen and has no value is superseded. A client reads the values with a
//! [`CausalContext`], which says what was seen, and hands it back with the value that is to replace them:
//! exactly the values that it read go, and the new one stands beside all others. So two clients that write
//! at the same time both keep their values, and a client that writes n times with an old context adds n
//! values but brings back none that was replaced, however the writes are interleaved. Version vectors alone
//! cannot do that: they name the values that a server has seen, not the one that it has just written.
//!
//! **Counts are times.** A count is the writer's hybrid clock, or one more than the last count if that is
//! larger. So a key that was removed and forgotten, and is written again, does not start from 1 below what
//! a late replica remembers, which would make the new value look superseded (riak_kv issue 679). What it
//! takes from the caller: a writer is one process with one state per key. A node that loses a set while
//! its process lives, by a wipe-out or a partition that it hands over, must write under a new id; else the
//! values that it wrote before and has forgotten count as superseded by its next write. [`Dot::writer_after`]
//! makes the ids, and the engine counts the losses.
//!
//! **Records of all kinds are sets** ([`Siblings::of_record`]), so that they can be merged in any order. A
//! tombstone is the empty set, a plain value a set of one; both say that nothing from *before* their time
//! is left, for that is what the last writer wins means. A set keeps the latest such time. Without it a
//! value that was removed would come back from a replica that missed the removal and got the next set.
//! [`join`] says which record two of them make.
//!
//! **Merging** is the join of a semilattice, so replicas agree whatever the order and number of merges.
//! Two limits bend that, and both keep to one rule for all replicas. *The cap* (16 values, 60,000 bytes)
//! forgets the oldest values by time: they count as superseded from then on, so sets only ever grow in what
//! they know, and replicas that go on exchanging sets agree. *Pruning* (60 writers) forgets whom the set
//! has seen, the longest unused first and never a writer of a value that is still there. It can bring a
//! superseded value back, from a replica that slept while 60 other writers came, and then merges are not
//! associative; it can never lose a value.
//!
//! Deliberately not here: the network, and any defence against contexts that are made up or belong to another key: whoever hands one in
//! may overwrite the key anyway. A context from the far future is refused ([`CONTEXT_AHEAD_NANOS_MAX`]).

mod encoding;

use super::Record;
use crate::ids::Version;
use std::collections::{BTreeMap, BTreeSet};
use violet_client::wire::siblings::{CONTEXT_BYTES_MAX, SIBLINGS_BYTES_MAX, SIBLINGS_MAX};
use violet_client::wire::{self, Context, VALUE_BYTES_MAX, Value};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Most writers that a set remembers to have seen, and so most in a context.
pub const WRITERS_MAX: usize = 60;
/// Most single events that a set remembers beyond what it has seen in full.
pub const SUPERSEDED_MAX: usize = 16;
/// Longest encoding of a set.
pub const SET_BYTES_MAX: usize = SIBLINGS_BYTES_MAX;
/// How far ahead of the time of a write its context may be: a day, which no clock that was ever right is
/// wrong by. Without it, a made-up context could use up all counts of a writer.
pub const CONTEXT_AHEAD_NANOS_MAX: u64 = 24 * 60 * 60 * 1_000_000_000;

/// A writer and a count.
const DOT_BYTES: usize = 16;
/// The same with the time of its last use.
const SEEN_BYTES: usize = DOT_BYTES + 8;
/// What a value takes beside its bytes: the place of its writer, count, time, version, length.
const VALUE_OVERHEAD_BYTES: usize = 1 + 8 + 8 + 4 + 2;
/// The layout's number, a time and three counts, and as many writers and events as there may be.
const HEAD_BYTES_MAX: usize = 12 + WRITERS_MAX * SEEN_BYTES + SUPERSEDED_MAX * DOT_BYTES;
/// What is left for values, overhead included. It does not depend on the number of writers, so that
/// replicas that know more writers do not cut earlier.
const VALUES_BYTES_MAX: usize = SET_BYTES_MAX - HEAD_BYTES_MAX;
/// A value stays while all newer ones together take no more than this. Its own length does not count: if
/// it did, a long value could go and leave room for older ones that another replica, which cut later, has
/// dropped. So there is room for one more value of any length.
const NEWER_BYTES_MAX: usize = VALUES_BYTES_MAX - VALUE_OVERHEAD_BYTES - VALUE_BYTES_MAX;

const _: () = assert!(1 + DOT_BYTES + WRITERS_MAX * DOT_BYTES <= CONTEXT_BYTES_MAX);
const _: () = assert!(SIBLINGS_MAX <= WRITERS_MAX && WRITERS_MAX <= u8::MAX as usize);

/// The name of one write: no two writes have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dot {
    /// The process that coordinated it; a random number drawn at its start.
    pub writer: u64,
    /// Larger at each write of that process to that key.
    pub counter: u64,
}

impl Dot {
    /// The id under which a process writes to a key after it has lost this many sets that it kept.
    #[must_use]
    pub fn writer_after(process: u64, losses: u64) -> u64 {
        if losses == 0 { process } else { xxh3_64_with_seed(&process.to_le_bytes(), losses) }
    }
}

/// What a set has seen of one writer: all events up to a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    counter: u64,
    /// When the last of them came or was replaced. What was replaced lately is what a replica may still
    /// have, so it is the last to be forgotten.
    used_at: u64,
}

/// The writers that a set has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Writers(BTreeMap<u64, Seen>);

impl Writers {
    fn covers(&self, dot: Dot) -> bool {
        self.0.get(&dot.writer).is_some_and(|seen| dot.counter <= seen.counter)
    }

    /// Takes note of an event and all before it, and of a use of them.
    fn raise(&mut self, dot: Dot, used_at: u64) {
        let seen = self.0.entry(dot.writer).or_insert(Seen { counter: dot.counter, used_at });
        seen.counter = dot.counter.max(seen.counter);
        seen.used_at = used_at.max(seen.used_at);
    }

    /// The last event seen of each writer, in the order of the writers.
    fn dots(&self) -> impl Iterator<Item = Dot> {
        self.0.iter().map(|(&writer, seen)| Dot { writer, counter: seen.counter })
    }

    /// Forgets writers beyond [`WRITERS_MAX`], the longest unused first, but none that is needed.
    fn prune(&mut self, is_needed: impl Fn(u64) -> bool) {
        let excess = self.0.len().saturating_sub(WRITERS_MAX);
        if excess == 0 {
            return;
        }
        let idle = self.0.iter().filter(|(writer, _)| !is_needed(**writer));
        let mut idle: Vec<_> = idle.map(|(&writer, seen)| (seen.used_at, seen.counter, writer)).collect();
        idle.sort_unstable();
        for (_, _, writer) in &idle[..excess.min(idle.len())] {
            self.0.remove(writer);
        }
    }
}

/// What a client has seen of a key: all that the set had seen which it read, or that, and one event of its
/// own. The event is named alone because others of the same writer before it may be unknown to the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CausalContext {
    /// The last event seen of each writer, in the order of the writers.
    seen: Vec<Dot>,
    own: Option<Dot>,
}

impl CausalContext {
    /// Whether a server of this cluster can have given it out by now (nanoseconds since the epoch).
    #[must_use]
    pub fn is_possible_at(&self, time: u64) -> bool {
        self.largest_counter() <= time.saturating_add(CONTEXT_AHEAD_NANOS_MAX)
    }

    /// The context after a write with this context that got this dot. It has seen nothing more than the
    /// client has, in particular no value that was there beside it. An own write before this one is left
    /// out: whoever has this one has it replaced.
    #[must_use]
    pub fn after(&self, dot: Dot) -> Self {
        Self { seen: self.seen.clone(), own: Some(dot) }
    }

    /// Appends the value field of a reply that carries this context and no values.
    pub fn encode_reply(&self, out: &mut Vec<u8>) {
        push_reply(self, Vec::new(), out);
    }

    fn covers(&self, dot: Dot) -> bool {
        self.has_seen(dot) || self.own == Some(dot)
    }

    fn has_seen(&self, dot: Dot) -> bool {
        self.seen.iter().any(|seen| seen.writer == dot.writer && dot.counter <= seen.counter)
    }

    fn largest_counter(&self) -> u64 {
        self.seen.iter().copied().chain(self.own).map(|dot| dot.counter).max().unwrap_or_default()
    }
}

/// A value with its time. The order is only used to choose the same one of two that claim one dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Written {
    time: u64,
    client_version: i32,
    bytes: Box<[u8]>,
}

impl Written {
    fn of(value: Value<'_>, time: u64) -> Self {
        // A longer one would not be read again. The wire lets none through.
        assert!(value.bytes.len() <= VALUE_BYTES_MAX, "a value of {} bytes", value.bytes.len());
        Self { time, client_version: value.version, bytes: value.bytes.into() }
    }

    fn value(&self) -> Value<'_> {
        Value { bytes: &self.bytes, version: self.client_version }
    }

    fn encoded_bytes(&self) -> usize {
        VALUE_OVERHEAD_BYTES + self.bytes.len()
    }
}

/// The concurrent values of a key, and what they have replaced.
///
/// Every value's dot is among the events seen; no event of `superseded` is. [`Self::bound`] holds after
/// every change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Siblings {
    seen: Writers,
    /// Single events that a client has replaced before they came here. Nearly always empty: they go as
    /// soon as a merge brings what their writers have seen.
    superseded: BTreeSet<Dot>,
    values: BTreeMap<Dot, Written>,
    /// Values from before this time are gone: the key was removed, or overwritten by a plain PUT.
    gone_before: u64,
}

/// What a write made of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Updated {
    /// The set with the new value.
    pub siblings: Siblings,
    /// The name of the write. Together with the request's context it gives the reply's, so a repeated
    /// reply needs no more than this: see [`CausalContext::after`].
    pub dot: Dot,
}

/// What two records of one key are together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joined {
    /// The one that was there: it has all of the other.
    Old,
    /// The one that came: it has all of the other, or it replaces it.
    New,
    /// Neither: a set of both.
    Both {
        /// The newer of the two versions.
        version: Version,
        /// All that is left of both.
        siblings: Siblings,
    },
}

/// Joins two records of one key. What is no set replaces all that is older; a set takes in what it has
/// not seen. Commutative but for what is called old and new; records of equal versions may still differ
/// when both are sets.
#[must_use]
pub fn join(old: &Record<'_>, new: &Record<'_>) -> Joined {
    let new_is_newer = old.version < new.version;
    let (newer, older) = if new_is_newer { (new, old) } else { (old, new) };
    let as_is = if new_is_newer { Joined::New } else { Joined::Old };
    if !newer.is_set {
        return as_is;
    }
    let Some(of_newer) = Siblings::of_record(newer) else {
        return if new_is_newer { Joined::Old } else { Joined::New };
    };
    let Some(of_older) = Siblings::of_record(older) else { return as_is };
    let siblings = of_newer.merge(&of_older);
    if siblings == of_newer {
        return as_is;
    }
    Joined::Both { version: newer.version, siblings }
}

impl Siblings {
    /// What a record of any kind says; `None` for a set that is none.
    ///
    /// # Panics
    /// As [`Self::from_plain`].
    #[must_use]
    pub fn of_record(record: &Record<'_>) -> Option<Self> {
        let Record { version, value, is_set } = *record;
        Some(match value {
            Some(value) if is_set => Self::decode(value.bytes)?,
            Some(value) => Self { gone_before: version.time, ..Self::from_plain(version, value) },
            None => Self { gone_before: version.time.saturating_add(1), ..Self::default() },
        })
    }

    /// A plain PUT as a set of one value, which has seen what its writer wrote before.
    ///
    /// # Panics
    /// When the value is longer than [`VALUE_BYTES_MAX`], which the wire lets no value be.
    #[must_use]
    pub fn from_plain(version: Version, value: Value<'_>) -> Self {
        Self::default().replaced_by(version, value)
    }

    /// A plain PUT over this set: it replaces all that is there. Its version is newer than all that its
    /// writer wrote before, as a hybrid clock gives it.
    ///
    /// # Panics
    /// As [`Self::from_plain`].
    #[must_use]
    pub fn replaced_by(&self, version: Version, value: Value<'_>) -> Self {
        let dot = Dot { writer: version.writer, counter: version.time };
        let mut next = self.clone();
        next.discard(|_| true, version.time);
        next.insert(dot, Written::of(value, version.time));
        next
    }

    /// A write by a client that has seen `context`: that goes, and the new value comes. `writer` is this
    /// process, `time` the next reading of its hybrid clock. `None` for a context that no server of this
    /// cluster can have given out, because it is too far in the future.
    ///
    /// # Panics
    /// As [`Self::from_plain`].
    #[must_use]
    pub fn update(
        &self,
        context: &CausalContext,
        value: Value<'_>,
        writer: u64,
        time: u64,
    ) -> Option<Updated> {
        if !context.is_possible_at(time) {
            return None;
        }
        let mut siblings = self.clone();
        siblings.discard(|dot| context.covers(dot), time);
        for &dot in context.seen.iter().filter(|dot| !self.seen.covers(**dot)) {
            siblings.seen.raise(dot, time);
        }
        siblings.superseded.extend(context.own);
        let own_events = siblings.seen.dots().chain(siblings.superseded.iter().copied());
        let last = own_events.filter(|dot| dot.writer == writer).map(|dot| dot.counter).max();
        let dot = Dot { writer, counter: last.map_or(time, |last| time.max(last.saturating_add(1))) };
        // The newest of all, also by a clock that is behind: the cap must not take what was just written.
        let newest = siblings.values.values().map(|written| written.time).max();
        let time = newest.map_or(time, |newest| time.max(newest.saturating_add(1))).max(self.gone_before);
        siblings.insert(dot, Written::of(value, time));
        Some(Updated { siblings, dot })
    }

    /// Takes values away because they were replaced.
    fn discard(&mut self, is_replaced: impl Fn(Dot) -> bool, now: u64) {
        let replaced: Vec<Dot> = self.values.keys().copied().filter(|dot| is_replaced(*dot)).collect();
        for dot in replaced {
            self.values.remove(&dot);
            self.seen.raise(dot, now);
        }
    }

    fn insert(&mut self, dot: Dot, written: Written) {
        self.seen.raise(dot, written.time);
        self.values.insert(dot, written);
        self.bound();
    }

    /// All that either set has seen, with the values that neither has seen replaced. Commutative and
    /// idempotent; associative as long as no limit is reached, and always convergent.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Self {
        let mut merged = self.clone();
        merged.values.retain(|&dot, _| other.values.contains_key(&dot) || !other.has_seen(dot));
        for (&dot, written) in &other.values {
            match merged.values.get_mut(&dot) {
                Some(known) if *known < *written => *known = written.clone(),
                Some(_) => {}
                None if self.has_seen(dot) => {}
                None => {
                    merged.values.insert(dot, written.clone());
                }
            }
        }
        for (dot, seen) in other.seen.dots().zip(other.seen.0.values()) {
            merged.seen.raise(dot, seen.used_at);
        }
        merged.superseded.extend(&other.superseded);
        merged.gone_before = self.gone_before.max(other.gone_before);
        merged.bound();
        merged
    }

    fn has_seen(&self, dot: Dot) -> bool {
        self.seen.covers(dot) || self.superseded.contains(&dot)
    }

    /// Keeps the limits, in a way that depends on nothing but what the set holds.
    fn bound(&mut self) {
        let gone_before = self.gone_before;
        self.values.retain(|_, written| gone_before <= written.time);
        let mut newest_first: Vec<(u64, Dot, usize)> =
            self.values.iter().map(|(&dot, written)| (written.time, dot, written.encoded_bytes())).collect();
        newest_first.sort_unstable_by(|left, right| right.cmp(left));
        let mut newer_bytes = 0;
        for (place, (_, dot, bytes)) in newest_first.into_iter().enumerate() {
            if SIBLINGS_MAX <= place || NEWER_BYTES_MAX < newer_bytes {
                self.values.remove(&dot);
            }
            newer_bytes += bytes;
        }
        let seen = &self.seen;
        self.superseded.retain(|&dot| !seen.covers(dot));
        while SUPERSEDED_MAX < self.superseded.len() {
            let oldest = self.superseded.iter().copied().min_by_key(|dot| (dot.counter, dot.writer));
            self.superseded.remove(&oldest.expect("there are more than the limit"));
        }
        let needed: BTreeSet<u64> = self.values.keys().map(|dot| dot.writer).collect();
        self.seen.prune(|writer| needed.contains(&writer));
    }

    /// The context that has seen all that is here.
    #[must_use]
    pub fn context(&self) -> CausalContext {
        CausalContext { seen: self.seen.dots().collect(), own: None }
    }

    /// The values, newest first.
    #[must_use]
    pub fn values(&self) -> Vec<Value<'_>> {
        let mut newest_first: Vec<(&Dot, &Written)> = self.values.iter().collect();
        newest_first.sort_unstable_by_key(|(dot, written)| std::cmp::Reverse((written.time, **dot)));
        newest_first.into_iter().map(|(_, written)| written.value()).collect()
    }

    /// How many values there are, at most [`SIBLINGS_MAX`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The newest value: what a plain GET returns.
    #[must_use]
    pub fn newest(&self) -> Option<Value<'_>> {
        let newest = self.values.iter().max_by_key(|(dot, written)| (written.time, **dot));
        newest.map(|(_, written)| written.value())
    }

    /// Appends the value field of the reply to GetSiblings.
    pub fn encode_reply(&self, out: &mut Vec<u8>) {
        push_reply(&self.context(), self.values(), out);
    }
}

fn push_reply(context: &CausalContext, values: Vec<Value<'_>>, out: &mut Vec<u8>) {
    let mut bytes = Vec::new();
    context.encode(&mut bytes);
    let context = Context::parse(&bytes).expect("a context of at most 60 writers fits");
    let reply = wire::Siblings { context, values };
    reply.encode(out).expect("a reply says less about each value than a set, and a set fits");
}

#[cfg(test)]
mod tests;
