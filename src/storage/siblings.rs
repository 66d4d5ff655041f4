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

const LAYOUT: u8 = 2;
const CONTEXT_OF_READ: u8 = 1;
const CONTEXT_OF_WRITE: u8 = 2;

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
    /// Reads what [`Self::encode`] wrote; no bytes are the context that has seen nothing. `None` for
    /// anything else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let own = match bytes.first() {
            None => return Some(Self::default()),
            Some(_) => match reader.byte()? {
                CONTEXT_OF_READ => None,
                CONTEXT_OF_WRITE => Some(reader.dot()?),
                _ => return None,
            },
        };
        let writers = reader.0.len() / DOT_BYTES;
        let seen: Vec<Dot> = (0..writers).map(|_| reader.dot()).collect::<Option<_>>()?;
        let is_ordered =
            writers <= WRITERS_MAX && seen.is_sorted_by(|left, right| left.writer < right.writer);
        let read = Self { seen, own };
        let says_something = own.map_or(0 < writers, |own| !read.has_seen(own));
        (is_ordered && says_something && reader.0.is_empty()).then_some(read)
    }

    /// Whether a server of this cluster can have given it out by now (nanoseconds since the epoch).
    #[must_use]
    pub fn is_possible_at(&self, time: u64) -> bool {
        self.largest_counter() <= time.saturating_add(CONTEXT_AHEAD_NANOS_MAX)
    }

    /// Appends the bytes to hand to a client, at most [`CONTEXT_BYTES_MAX`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self.own {
            Some(own) => {
                out.push(CONTEXT_OF_WRITE);
                push_dot(own, out);
            }
            None if self.seen.is_empty() => return,
            None => out.push(CONTEXT_OF_READ),
        }
        self.seen.iter().for_each(|&dot| push_dot(dot, out));
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

    /// Appends the set as at most [`SET_BYTES_MAX`] bytes. Equal sets give equal bytes:
    ///
    /// ```text
    /// layout(1)  gone_before(8)
    ///            count(1) { writer(8) counter(8) used_at(8) }     seen, by writer
    ///            count(1) { writer(8) counter(8) }                superseded, by writer and counter
    ///            count(1) { place of the writer in seen(1) counter(8) time(8) client_version(4)
    ///                       length(2) value(length) }   by writer and counter
    /// ```
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(LAYOUT);
        out.extend_from_slice(&self.gone_before.to_le_bytes());
        out.push(self.seen.0.len() as u8);
        for (dot, seen) in self.seen.dots().zip(self.seen.0.values()) {
            push_dot(dot, out);
            out.extend_from_slice(&seen.used_at.to_le_bytes());
        }
        out.push(self.superseded.len() as u8);
        self.superseded.iter().for_each(|&dot| push_dot(dot, out));
        out.push(self.values.len() as u8);
        for (dot, written) in &self.values {
            let place = self.seen.0.keys().position(|&writer| writer == dot.writer);
            out.push(place.expect("every value's dot is among the events seen") as u8);
            out.extend_from_slice(&dot.counter.to_le_bytes());
            out.extend_from_slice(&written.time.to_le_bytes());
            out.extend_from_slice(&written.client_version.to_le_bytes());
            out.extend_from_slice(&(written.bytes.len() as u16).to_le_bytes());
            out.extend_from_slice(&written.bytes);
        }
    }

    /// Reads what [`Self::encode`] wrote, to the last byte; `None` for anything else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if SET_BYTES_MAX < bytes.len() || reader.byte()? != LAYOUT {
            return None;
        }
        let gone_before = reader.number()?;
        let seen = reader.writers()?;
        let superseded = reader.superseded(&seen)?;
        let values = reader.values(&seen)?;
        let mut read = Self { seen, superseded, values, gone_before };
        let sizes = read.sizes();
        // A set that was written keeps the limits already.
        read.bound();
        (reader.0.is_empty() && read.sizes() == sizes).then_some(read)
    }

    fn sizes(&self) -> [usize; 3] {
        [self.seen.0.len(), self.superseded.len(), self.values.len()]
    }
}

fn push_dot(dot: Dot, out: &mut Vec<u8>) {
    out.extend_from_slice(&dot.writer.to_le_bytes());
    out.extend_from_slice(&dot.counter.to_le_bytes());
}

fn push_reply(context: &CausalContext, values: Vec<Value<'_>>, out: &mut Vec<u8>) {
    let mut bytes = Vec::new();
    context.encode(&mut bytes);
    let context = Context::parse(&bytes).expect("a context of at most 60 writers fits");
    let reply = wire::Siblings { context, values };
    reply.encode(out).expect("a reply says less about each value than a set, and a set fits");
}

/// Walks an encoding.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn dot(&mut self) -> Option<Dot> {
        Some(Dot { writer: self.number()?, counter: self.number()? })
    }

    fn writers(&mut self) -> Option<Writers> {
        let mut writers = Writers::default();
        for _ in 0..self.byte()? {
            let (dot, used_at) = (self.dot()?, self.number()?);
            let is_next = writers.0.last_key_value().is_none_or(|(&last, _)| last < dot.writer);
            is_next.then(|| writers.raise(dot, used_at))?;
        }
        Some(writers)
    }

    fn superseded(&mut self, seen: &Writers) -> Option<BTreeSet<Dot>> {
        let mut superseded = BTreeSet::new();
        for _ in 0..self.byte()? {
            let dot = self.dot()?;
            let is_next = superseded.last().is_none_or(|&last| last < dot);
            (is_next && !seen.covers(dot)).then(|| superseded.insert(dot))?;
        }
        Some(superseded)
    }

    fn values(&mut self, seen: &Writers) -> Option<BTreeMap<Dot, Written>> {
        let writers: Vec<u64> = seen.0.keys().copied().collect();
        let mut values = BTreeMap::new();
        for _ in 0..self.byte()? {
            let writer = *writers.get(usize::from(self.byte()?))?;
            let dot = Dot { writer, counter: self.number()? };
            let is_next = values.last_key_value().is_none_or(|(&last, _)| last < dot);
            let written = self.written()?;
            (is_next && seen.covers(dot)).then(|| values.insert(dot, written))?;
        }
        Some(values)
    }

    fn written(&mut self) -> Option<Written> {
        let time = self.number()?;
        let client_version = i32::from_le_bytes(self.array()?);
        let length = usize::from(u16::from_le_bytes(self.array()?));
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        (length <= VALUE_BYTES_MAX).then(|| Written { time, client_version, bytes: bytes.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLIND: &[u8] = b"";

    fn value(bytes: &[u8]) -> Value<'_> {
        Value { bytes, version: 0 }
    }

    /// A set after a write, with the context that its client gets.
    fn write(set: &Siblings, context: &[u8], bytes: &[u8], writer: u64, time: u64) -> (Siblings, Vec<u8>) {
        let context = CausalContext::decode(context).unwrap();
        let Updated { siblings, dot } = set.update(&context, value(bytes), writer, time).unwrap();
        (siblings, context_bytes(&context.after(dot)))
    }

    fn context_bytes(context: &CausalContext) -> Vec<u8> {
        let mut bytes = Vec::new();
        context.encode(&mut bytes);
        bytes
    }

    fn read_context(set: &Siblings) -> Vec<u8> {
        context_bytes(&set.context())
    }

    fn texts(set: &Siblings) -> Vec<String> {
        set.values().iter().map(|value| value.bytes.escape_ascii().to_string()).collect()
    }

    fn encoded(set: &Siblings) -> Vec<u8> {
        let mut bytes = Vec::new();
        set.encode(&mut bytes);
        bytes
    }

    #[test]
    fn concurrent_writers_both_stay_and_a_reader_replaces_what_it_read() {
        let (first, _) = write(&Siblings::default(), BLIND, b"first", 1, 10);
        let seen = read_context(&first);
        let (left, _) = write(&first, &seen, b"left", 1, 20);
        let (right, _) = write(&first, &seen, b"right", 2, 21);
        let both = left.merge(&right);
        assert_eq!(texts(&both), ["right", "left"]);
        let (late, _) = write(&both, &seen, b"late", 2, 30);
        assert_eq!(texts(&late), ["late", "right", "left"]);
        let (one, _) = write(&late, &read_context(&both), b"chosen", 1, 40);
        assert_eq!(texts(&one), ["chosen", "late"]);
        assert_eq!(texts(&one.merge(&left).merge(&right).merge(&first)), ["chosen", "late"]);
    }

    /// Two blind clients of one server: with plain version vectors the second one's next write would
    /// replace the first one's value, which it has never seen, or keep its own old one.
    #[test]
    fn a_context_from_a_write_covers_that_write_alone() {
        let (set, _) = write(&Siblings::default(), BLIND, b"a1", 1, 10);
        let (set, after_b1) = write(&set, BLIND, b"b1", 1, 20);
        let (set, after_b2) = write(&set, &after_b1, b"b2", 1, 30);
        assert_eq!(texts(&set), ["b2", "a1"]);
        // At a replica that has not even seen them.
        let (elsewhere, _) = write(&Siblings::default(), &after_b2, b"b3", 2, 40);
        assert_eq!(elsewhere.superseded.len(), 1);
        let merged = elsewhere.merge(&set);
        assert_eq!(texts(&merged), ["b3", "a1"]);
        assert!(merged.superseded.is_empty());
        assert_eq!(merged, set.merge(&elsewhere));
    }

    #[test]
    fn a_stale_context_brings_nothing_back() {
        let (mut set, _) = write(&Siblings::default(), BLIND, b"old", 1, 1);
        let stale = read_context(&set);
        for time in 2..12 {
            let bytes = format!("new {time}");
            set = write(&set, &stale, bytes.as_bytes(), 1, time).0;
            assert_eq!(set.len(), time as usize - 1);
            assert!(!texts(&set).contains(&"old".to_owned()));
        }
        // And with its latest context each time, a client alone never has more than one value.
        let mut context = read_context(&set);
        for time in 12..100 {
            (set, context) = write(&set, &context, b"mine", 1 + time % 3, time);
            assert_eq!(set.len(), 1);
        }
    }

    #[test]
    fn plain_writes_are_sets_of_one_value() {
        let plain = |time, writer, bytes| {
            Siblings::from_plain(Version { time, writer }, Value { bytes, version: -7 })
        };
        let set = plain(10, 1, b"plain");
        assert_eq!(set.values(), [Value { bytes: b"plain", version: -7 }]);
        assert_eq!(encoded(&set), encoded(&plain(10, 1, b"plain")));
        let (next, _) = write(&set, &read_context(&set), b"next", 2, 20);
        assert_eq!(texts(&next), ["next"]);
        assert_eq!(texts(&next.merge(&set)), ["next"]);
        assert_eq!(texts(&write(&set, BLIND, b"next", 2, 20).0), ["next", "plain"]);
        // A later one of the same writer has seen the earlier one; one of another writer has not.
        assert_eq!(texts(&set.merge(&plain(11, 1, b"later"))), ["later"]);
        assert_eq!(texts(&set.merge(&plain(11, 2, b"other"))), ["other", "plain"]);
        let over = next.replaced_by(Version { time: 30, writer: 3 }, value(b"over"));
        assert_eq!(texts(&over.merge(&next)), ["over"]);
    }

    /// A key is removed everywhere, forgotten, and written again by the same process, while a replica that
    /// slept keeps what was before: the new value must not look old.
    #[test]
    fn a_forgotten_count_does_not_hide_a_new_value() {
        let mut asleep = Siblings::default();
        for time in 1..5 {
            asleep = write(&asleep, &read_context(&asleep), b"before", 1, time).0;
        }
        let (anew, _) = write(&Siblings::default(), BLIND, b"anew", 1, 5);
        assert_eq!(texts(&anew.merge(&asleep)), ["anew"]);
        // A clock that stands still does not matter to a set that is known.
        let (again, _) = write(&anew, BLIND, b"again", 1, 5);
        assert_eq!(texts(&again), ["again", "anew"]);
    }

    #[test]
    fn contexts_are_checked() {
        let (set, after) = write(&Siblings::default(), BLIND, b"a", 1, 10);
        let read = read_context(&set);
        assert_eq!((read.len(), after.len()), (17, 17));
        let bad = |bytes: &[u8]| assert_eq!(CausalContext::decode(bytes), None, "{bytes:?}");
        for context in [&read, &after] {
            assert_eq!(&context_bytes(&CausalContext::decode(context).unwrap()), context);
            (1..context.len()).for_each(|end| bad(&context[..end]));
            bad(&[&context[..], &[0]].concat());
        }
        bad(&[CONTEXT_OF_READ]);
        bad(&[3; 17]);
        // A writer twice, and an own write that is covered anyway.
        bad(&[&read[..], &read[1..]].concat());
        bad(&[&after[..], &read[1..]].concat());
        let far = |counter| CausalContext { own: Some(Dot { writer: 1, counter }), ..Default::default() };
        assert_eq!(set.update(&far(CONTEXT_AHEAD_NANOS_MAX + 12), value(b"b"), 1, 11), None);
        let near = set.update(&far(CONTEXT_AHEAD_NANOS_MAX + 11), value(b"b"), 1, 11).unwrap();
        assert_eq!(near.dot.counter, CONTEXT_AHEAD_NANOS_MAX + 12);
        assert_eq!(texts(&near.siblings), ["b", "a"]);
    }

    #[test]
    fn the_cap_takes_the_oldest_but_never_what_was_just_written() {
        let mut set = Siblings::default();
        for time in 0..40 {
            set = write(&set, BLIND, format!("{time}").as_bytes(), time % 5, time).0;
        }
        let expected: Vec<String> = (24..40).rev().map(|time| time.to_string()).collect();
        assert_eq!(texts(&set), expected);
        let (set, _) = write(&set, BLIND, b"by a slow clock", 9, 3);
        assert_eq!(texts(&set)[0], "by a slow clock");
        let mut large = Siblings::default();
        for time in 0..20 {
            large = write(&large, BLIND, &[time as u8; 10_000], time, time).0;
            assert!(encoded(&large).len() <= SET_BYTES_MAX);
        }
        assert_eq!(large.len(), 5);
        let (large, _) = write(&large, BLIND, &[1; VALUE_BYTES_MAX], 1, 30);
        assert_eq!(large.values()[0].bytes.len(), VALUE_BYTES_MAX);
    }

    #[test]
    fn writers_are_pruned_but_not_those_of_values() {
        let (mut set, _) = write(&Siblings::default(), BLIND, b"stays", 1_000, 1);
        let mut context = Vec::new();
        for time in 2..200 {
            (set, context) = write(&set, &context, b"moves", time, time);
            assert_eq!(texts(&set), ["moves", "stays"]);
            assert!(set.seen.0.len() <= WRITERS_MAX && set.seen.0.contains_key(&1_000));
            assert_eq!(Siblings::decode(&encoded(&set)).as_ref(), Some(&set));
        }
        assert_eq!(set.seen.0.len(), WRITERS_MAX);
        let context = read_context(&set);
        assert_eq!(context.len(), 1 + WRITERS_MAX * DOT_BYTES);
        let (one, after) = write(&set, &context, b"chosen", 300, 300);
        assert_eq!(texts(&one), ["chosen"]);
        assert_eq!(after.len(), context.len() + DOT_BYTES);
        assert_eq!(texts(&one.merge(&set)), ["chosen"]);
        assert_eq!(texts(&write(&one, &after, b"next", 301, 301).0), ["next"]);
    }

    /// The fullest set: its encoding and its reply fit, and the reply says what is there.
    #[test]
    fn the_fullest_set_fits_everywhere() {
        let mut set = Siblings::default();
        let seen = (0..WRITERS_MAX as u64).map(|writer| Dot { writer, counter: 100 + writer }).collect();
        let mut context = CausalContext { seen, own: None };
        for place in 0..30u64 {
            context.own = Some(Dot { writer: 5_000 + place, counter: 10 + place });
            // The oldest of the 16 that stay is as long as can be, the others as long as still lets it stay.
            let bytes = vec![place as u8; if place == 14 { VALUE_BYTES_MAX } else { 2_861 }];
            set = set.update(&context, value(&bytes), 200 + place, 1_000 + place).unwrap().siblings;
        }
        assert_eq!(set.sizes(), [WRITERS_MAX, SUPERSEDED_MAX, SIBLINGS_MAX]);
        let bytes = encoded(&set);
        assert!(bytes.len() <= SET_BYTES_MAX && SET_BYTES_MAX - 20 < bytes.len(), "{}", bytes.len());
        let mut reply = Vec::new();
        set.encode_reply(&mut reply);
        let reply = wire::Siblings::decode(&reply).unwrap();
        assert_eq!(reply.values, set.values());
        assert_eq!(reply.context.as_bytes(), read_context(&set));
        let mut reply = Vec::new();
        context.encode_reply(&mut reply);
        let reply = wire::Siblings::decode(&reply).unwrap();
        assert_eq!(CausalContext::decode(reply.context.as_bytes()), Some(context));
        assert!(reply.values.is_empty());
    }

    const REPLICAS: usize = 3;
    const CLIENTS: usize = 3;

    #[derive(Clone, Debug)]
    enum Step {
        /// A client reads at a replica.
        Read { client: usize, replica: usize },
        /// A client writes with the context it has, and keeps the new one or the old one.
        Write { client: usize, replica: usize, bytes: usize, keeps_new_context: bool },
        /// A replica learns what another one has.
        Merge { to: usize, from: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        let bytes = prop_oneof![8 => 0..4usize, 1 => Just(9_000usize)];
        prop_oneof![
            (0..CLIENTS, 0..REPLICAS).prop_map(|(client, replica)| Step::Read { client, replica }),
            (0..CLIENTS, 0..REPLICAS, bytes, any::<bool>()).prop_map(
                |(client, replica, bytes, keeps_new_context)| Step::Write {
                    client,
                    replica,
                    bytes,
                    keeps_new_context
                }
            ),
            (0..REPLICAS, 0..REPLICAS).prop_map(|(to, from)| Step::Merge { to, from }),
        ]
    }

    /// What sets and contexts stand for: the writes themselves, by number.
    #[derive(Clone, Default)]
    struct Model {
        live: BTreeSet<u64>,
        seen: BTreeSet<u64>,
    }

    impl Model {
        fn merge(&mut self, other: &Self) {
            self.live.retain(|event| other.live.contains(event) || !other.seen.contains(event));
            let new = other.live.iter().filter(|event| !self.seen.contains(event));
            self.live.extend(new);
            self.seen.extend(&other.seen);
        }
    }

    #[derive(Clone, Default)]
    struct Client {
        context: Vec<u8>,
        read: BTreeSet<u64>,
        own: Option<u64>,
    }

    /// Plays steps on real sets and on the model; every value is the number of its write and some padding.
    fn play(steps: &[Step], mut check: impl FnMut(&Siblings, &Model)) -> [Siblings; REPLICAS] {
        let mut sets: [Siblings; REPLICAS] = Default::default();
        let mut models: [Model; REPLICAS] = Default::default();
        let mut clients: [Client; CLIENTS] = Default::default();
        for (time, step) in (1_000u64..).zip(steps) {
            let changed = match *step {
                Step::Read { client, replica } => {
                    let client = &mut clients[client];
                    client.context = read_context(&sets[replica]);
                    // The single events that a set has heard of are no part of what it hands out.
                    let loose: BTreeSet<u64> =
                        sets[replica].superseded.iter().map(|dot| dot.counter).collect();
                    client.read = models[replica].seen.difference(&loose).copied().collect();
                    client.own = None;
                    continue;
                }
                Step::Write { client, replica, bytes, keeps_new_context } => {
                    let client = &mut clients[client];
                    let mut text = time.to_le_bytes().to_vec();
                    text.resize(8 + bytes, b'.');
                    let (set, context) = write(&sets[replica], &client.context, &text, replica as u64, time);
                    let model = &mut models[replica];
                    let known: BTreeSet<u64> = client.read.iter().copied().chain(client.own).collect();
                    model.live.retain(|event| !known.contains(event));
                    model.live.insert(time);
                    model.seen.extend(known.into_iter().chain([time]));
                    if keeps_new_context {
                        (client.context, client.own) = (context, Some(time));
                    }
                    sets[replica] = set;
                    replica
                }
                Step::Merge { to, from } => {
                    let from_model = models[from].clone();
                    models[to].merge(&from_model);
                    sets[to] = sets[to].merge(&sets[from]);
                    to
                }
            };
            check(&sets[changed], &models[changed]);
        }
        sets
    }

    fn events(set: &Siblings) -> BTreeSet<u64> {
        let event = |value: Value<'_>| u64::from_le_bytes(*value.bytes.first_chunk().unwrap());
        set.values().into_iter().map(event).collect()
    }

    proptest! {
        /// Below the limits a set holds exactly the writes that nobody has replaced knowingly.
        #[test]
        fn sets_do_what_the_writes_themselves_would(steps in prop::collection::vec(step(), 1..40)) {
            let writes = steps.iter().filter(|step| matches!(step, Step::Write { .. })).count();
            let large = steps.iter().filter(|step| matches!(step, Step::Write { bytes: 9_000, .. })).count();
            prop_assume!(writes <= SIBLINGS_MAX && large <= 4);
            play(&steps, |set, model| {
                assert_eq!(events(set), model.live);
                assert_eq!(Siblings::decode(&encoded(set)).as_ref(), Some(set));
            });
        }

        #[test]
        fn merge_is_a_join(steps in prop::collection::vec(step(), 1..40)) {
            let writes = steps.iter().filter(|step| matches!(step, Step::Write { .. })).count();
            let large = steps.iter().filter(|step| matches!(step, Step::Write { bytes: 9_000, .. })).count();
            prop_assume!(writes <= SIBLINGS_MAX && large <= 4);
            let [a, b, c] = play(&steps, |_, _| {});
            prop_assert_eq!(a.merge(&b).merge(&c), a.merge(&b.merge(&c)));
        }

        /// Also where the cap bites: commutative, idempotent, a merge adds to what is known, and replicas
        /// that exchange their sets agree, to the byte, whatever the order.
        #[test]
        fn capped_sets_converge(
            steps in prop::collection::vec(step(), 1..150),
            orders in prop::collection::vec((0..REPLICAS, 0..REPLICAS), 0..10),
        ) {
            let mut sets = play(&steps, |set, model| {
                assert!(set.len() <= SIBLINGS_MAX && encoded(set).len() <= SET_BYTES_MAX);
                assert!(events(set).is_subset(&model.seen));
            });
            for (to, from) in orders {
                let merged = sets[to].merge(&sets[from]);
                prop_assert_eq!(&merged, &sets[from].merge(&sets[to]));
                prop_assert_eq!(&merged, &merged.merge(&sets[to]));
                prop_assert_eq!(&merged, &merged.merge(&merged));
                sets[to] = merged;
            }
            for _ in 0..2 {
                for (to, from) in [(0, 1), (1, 2), (2, 0), (0, 2), (2, 1), (1, 0)] {
                    sets[to] = sets[to].merge(&sets[from]);
                }
            }
            prop_assert_eq!(encoded(&sets[0]), encoded(&sets[1]));
            prop_assert_eq!(encoded(&sets[1]), encoded(&sets[2]));
        }

        /// Where nobody replaces anything the cap alone decides, and then any grouping gives the same.
        #[test]
        fn the_cap_does_not_depend_on_the_grouping(
            writes in prop::collection::vec((0..REPLICAS, 0..6_000usize), 1..80),
        ) {
            let mut sets: [Siblings; REPLICAS] = Default::default();
            for (time, &(replica, bytes)) in (1_000u64..).zip(&writes) {
                sets[replica] = write(&sets[replica], BLIND, &vec![7; bytes], replica as u64, time).0;
            }
            let [a, b, c] = sets;
            prop_assert_eq!(a.merge(&b).merge(&c), a.merge(&b.merge(&c)));
        }

        /// Damage is refused, or gives a set that is written as it was read and can be worked with.
        #[test]
        fn damaged_bytes_upset_nobody(
            steps in prop::collection::vec(step(), 1..30),
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            end in any::<prop::sample::Index>(),
            cuts in any::<bool>(),
        ) {
            let sets = play(&steps, |_, _| {});
            let mut bytes = encoded(&sets[0]);
            let mut context = read_context(&sets[0]);
            for (place, byte) in flips {
                // Heads are short, so half of the damage goes there.
                let near = if byte % 2 == 0 { bytes.len().min(80) } else { bytes.len() };
                bytes[place.index(near)] = byte;
                if !context.is_empty() {
                    context[place.index(near) % sets[0].seen.0.len().max(1)] ^= byte;
                }
            }
            if cuts {
                bytes.truncate(end.index(bytes.len()));
            }
            if let Some(set) = Siblings::decode(&bytes) {
                prop_assert_eq!(encoded(&set), bytes);
                let merged = set.merge(&sets[1]);
                prop_assert_eq!(&merged, &sets[1].merge(&set));
                prop_assert_eq!(Siblings::decode(&encoded(&merged)), Some(merged));
                set.encode_reply(&mut Vec::new());
                let _ = set.update(&set.context(), value(b"after"), 0, 5_000);
            }
            if let Some(read) = CausalContext::decode(&context) {
                prop_assert_eq!(context_bytes(&read), context);
                let _ = sets[0].update(&read, value(b"after"), 0, 5_000);
            }
        }

        #[test]
        fn any_bytes_can_be_refused(bytes in prop::collection::vec(0..4u8, 0..80)) {
            if let Some(set) = Siblings::decode(&bytes) {
                prop_assert_eq!(encoded(&set), bytes);
            } else if let Some(context) = CausalContext::decode(&bytes) {
                prop_assert_eq!(context_bytes(&context), bytes);
            }
        }
    }
}
