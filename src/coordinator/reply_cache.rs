//! At-most-once: what became of each mutation, by request.
//!
//! The record lives with the key's owners, not with the front end, and its name is a digest of the
//! whole datagram, the client's id included ([`RequestKey`]). It is made before the request is
//! executed. Only the status is kept: replies to PUT, REMOVE and WIPEOUT say nothing else, and GET is
//! never cached. A record takes 16 bytes, and 64 bits of the digest name it: among a million records a
//! new request is taken for a known one in one of 10^13 cases.
//!
//! Records sit in time buckets. Expiry drops a whole bucket: on the GET path and with the node's tick,
//! at most every five seconds, and whenever a new bucket is opened, so that a node that only takes
//! writes does not fill up. A record's age is also looked at when it is found. Memory is bounded in bytes: when it is
//! full, *new* mutations are refused, no young record is ever forgotten (RIFL, section 3).

use crate::ids::{RequestKey, Token};
use crate::storage::Budget;
use crate::time::{Duration, Instant};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use violet_client::Status;
use violet_client::wire::Format;

/// Many, so that a table that grows is small.
const SHARDS: usize = 64;
/// A window is this many buckets: a record lives for the window and at most one bucket more.
const BUCKETS_PER_WINDOW: u32 = 4;
/// Bytes that a record costs: itself, its control byte, and the free room of a hash table that is
/// between half and all full.
const RECORD_BYTES: usize = 36;
const _: () = assert!(size_of::<Record>() == 16);
/// What records may take beyond the node's budget: a node that is full of values must still answer
/// removals and overwrites, which need a record each. The process has that much room to its limit.
const OVERDRAFT_BYTES: usize = 1024 * 1024;
/// How often expiry runs at most.
pub const EXPIRE_EVERY: Duration = Duration::from_secs(5);

/// What is known of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// This node's operation is working on it.
    Running(Token),
    /// Done, and the client was told so.
    Done(Status),
    /// Another coordinator's write reached this replica; whether it was finished is not known.
    Replicated,
}

/// The answer to "may this mutation start?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is new, and now recorded as running.
    New,
    /// It is known.
    Known(Progress),
    /// There is no room for its record.
    Full,
}

/// All records of a node.
#[derive(Debug)]
pub struct ReplyCache {
    window: Duration,
    /// For how long a bucket takes records.
    bucket_span: Duration,
    /// How exactly a record says when it was made.
    step_nanos: u64,
    bytes_max: usize,
    budget: Arc<Budget>,
    expired_at: AtomicU64,
    /// Locked one at a time.
    shards: Vec<Mutex<VecDeque<Bucket>>>,
}

#[derive(Debug)]
struct Bucket {
    opened: Instant,
    records: HashTable<Record>,
}

/// A record, packed: the low bits say which kind it is, the next when it was made (in steps of its
/// bucket's span), the others which token or status (as its protobuf code) it has.
#[derive(Clone, Copy, Debug)]
struct Record {
    request: u64,
    packed: u64,
}

const KIND_BITS: u32 = 2;
const STEP_BITS: u32 = 10;
const STEPS: u32 = 1 << STEP_BITS;
const RUNNING: u64 = 0;
const DONE: u64 = 1;
const REPLICATED: u64 = 2;

impl Record {
    fn new(request: RequestKey, progress: Progress, after_nanos: u64, step_nanos: u64) -> Self {
        let step = (after_nanos / step_nanos).min(u64::from(STEPS - 1));
        let mut record = Self { request: request.short(), packed: step << KIND_BITS };
        record.set(progress);
        record
    }

    fn set(&mut self, progress: Progress) {
        let (kind, what) = match progress {
            Progress::Running(token) => (RUNNING, token),
            Progress::Done(status) => (DONE, status.code(Format::Protobuf).into()),
            Progress::Replicated => (REPLICATED, 0),
        };
        let step = self.packed & (u64::from(STEPS - 1) << KIND_BITS);
        self.packed = what << (KIND_BITS + STEP_BITS) | step | kind;
    }

    fn kind(&self) -> u64 {
        self.packed & ((1 << KIND_BITS) - 1)
    }

    /// How long after the opening of its bucket it was made.
    fn after(&self, step_nanos: u64) -> Duration {
        Duration::from_nanos(step_nanos * (self.packed >> KIND_BITS & u64::from(STEPS - 1)))
    }

    fn progress(&self) -> Progress {
        let what = self.packed >> (KIND_BITS + STEP_BITS);
        match self.kind() {
            RUNNING => Progress::Running(what),
            DONE => Progress::Done(Status::from_code(what as u32, Format::Protobuf)),
            _ => Progress::Replicated,
        }
    }
}

impl Bucket {
    fn find(&self, request: RequestKey) -> Option<&Record> {
        self.records.find(request.short(), |record| record.request == request.short())
    }

    fn find_mut(&mut self, request: RequestKey) -> Option<&mut Record> {
        self.records.find_mut(request.short(), |record| record.request == request.short())
    }
}

impl ReplyCache {
    /// An empty cache: records live for `window` and take at most `bytes_max` of `budget`.
    #[must_use]
    pub fn new(window: Duration, bytes_max: usize, budget: Arc<Budget>) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let bucket_span = window / BUCKETS_PER_WINDOW;
        let step = bucket_span / STEPS;
        let step_nanos = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX / u64::from(STEPS)).max(1);
        Self { window, bucket_span, step_nanos, bytes_max, budget, expired_at: AtomicU64::new(0), shards }
    }

    fn shard(&self, request: RequestKey) -> &Mutex<VecDeque<Bucket>> {
        &self.shards[(request.0 >> 64) as usize % SHARDS]
    }

    /// Looks a mutation up and, when it is new, records it as running.
    pub fn begin(&self, now: Instant, request: RequestKey, token: Token) -> Admission {
        let mut shard = self.shard(request).lock();
        if let Some(progress) = self.find(&shard, now, request) {
            return Admission::Known(progress);
        }
        if self.insert(&mut shard, now, request, Progress::Running(token)) {
            Admission::New
        } else {
            Admission::Full
        }
    }

    /// Records what became of a mutation. A finished one stays finished. Without room for a record
    /// the mutation is simply not remembered here; the coordinator has a record of its own.
    pub fn record(&self, now: Instant, request: RequestKey, progress: Progress) {
        let mut shard = self.shard(request).lock();
        // The newest first: an older record of the same request may be too old to count.
        for bucket in shard.iter_mut().rev() {
            if let Some(record) = bucket.find_mut(request) {
                let weaker = progress == Progress::Replicated && record.kind() != REPLICATED;
                if record.kind() != DONE && !weaker {
                    record.set(progress);
                }
                return;
            }
        }
        let _ = self.insert(&mut shard, now, request, progress);
    }

    /// What is known of a mutation.
    #[must_use]
    pub fn look_up(&self, now: Instant, request: RequestKey) -> Option<Progress> {
        self.find(&self.shard(request).lock(), now, request)
    }

    /// Forgets a mutation that did not happen.
    pub fn forget(&self, request: RequestKey) {
        for bucket in self.shard(request).lock().iter_mut() {
            let found =
                bucket.records.find_entry(request.short(), |record| record.request == request.short());
            if let Ok(entry) = found {
                entry.remove();
                self.budget.give(RECORD_BYTES);
            }
        }
    }

    /// Drops the buckets that are too old, at most every [`EXPIRE_EVERY`].
    pub fn expire(&self, now: Instant) {
        let last = self.expired_at.load(Ordering::Relaxed);
        if now.since(Instant::from_nanos(last)) < EXPIRE_EVERY {
            return;
        }
        let claimed =
            self.expired_at.compare_exchange(last, now.as_nanos(), Ordering::Relaxed, Ordering::Relaxed);
        if claimed.is_ok() {
            for shard in &self.shards {
                self.drop_old(&mut shard.lock(), now);
            }
        }
    }

    fn drop_old(&self, shard: &mut VecDeque<Bucket>, now: Instant) {
        while shard.front().is_some_and(|bucket| self.lifetime() < now.since(bucket.opened)) {
            let bucket = shard.pop_front().expect("the front was just looked at");
            self.budget.give(bucket.records.len() * RECORD_BYTES);
        }
    }

    /// Bytes taken by records.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let records = |shard: &Mutex<VecDeque<Bucket>>| -> usize {
            shard.lock().iter().map(|bucket| bucket.records.len()).sum()
        };
        self.shards.iter().map(records).sum::<usize>() * RECORD_BYTES
    }

    /// From the opening of a bucket until its last record is too old.
    fn lifetime(&self) -> Duration {
        self.window + self.bucket_span
    }

    fn find(&self, shard: &VecDeque<Bucket>, now: Instant, request: RequestKey) -> Option<Progress> {
        let (bucket, record) = shard.iter().rev().find_map(|bucket| Some((bucket, bucket.find(request)?)))?;
        let recorded = bucket.opened + record.after(self.step_nanos);
        (now.since(recorded) <= self.window).then(|| record.progress())
    }

    fn insert(
        &self,
        shard: &mut VecDeque<Bucket>,
        now: Instant,
        request: RequestKey,
        progress: Progress,
    ) -> bool {
        if shard.back().is_none_or(|bucket| self.bucket_span < now.since(bucket.opened)) {
            // It will take about as many as the one before, and is made large enough at once.
            let expected = shard.back().map_or(0, |bucket| bucket.records.len());
            self.drop_old(shard, now);
            shard.push_back(Bucket { opened: now, records: HashTable::with_capacity(expected) });
        }
        let has_room = |shard: &VecDeque<Bucket>| {
            let held: usize = shard.iter().map(|bucket| bucket.records.len()).sum();
            (held + 1) * RECORD_BYTES <= self.bytes_max / SHARDS
        };
        if !has_room(shard) {
            // What is too old must not keep new ones out until the next expiry.
            self.drop_old(shard, now);
        }
        if !has_room(shard) || !self.budget.overdraw(RECORD_BYTES, OVERDRAFT_BYTES) {
            return false;
        }
        let bucket = shard.back_mut().expect("a bucket was just made sure of");
        let record = Record::new(
            request,
            progress,
            now.as_nanos().saturating_sub(bucket.opened.as_nanos()),
            self.step_nanos,
        );
        let is_it = |record: &Record| record.request == request.short();
        match bucket.records.entry(request.short(), is_it, |record| record.request) {
            Entry::Occupied(mut entry) => {
                *entry.get_mut() = record;
                self.budget.give(RECORD_BYTES);
            }
            Entry::Vacant(entry) => {
                entry.insert(record);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1_000_000_000_000 + millis * 1_000_000)
    }

    fn request(number: u64) -> RequestKey {
        RequestKey(u128::from(number) << 64 | u128::from(number))
    }

    fn cache(bytes_max: usize) -> (ReplyCache, Arc<Budget>) {
        let budget = Arc::new(Budget::new(1 << 20));
        (ReplyCache::new(Duration::from_secs(10), bytes_max, Arc::clone(&budget)), budget)
    }

    #[test]
    fn a_request_is_known_from_before_it_runs_until_the_window_ends() {
        let (cache, budget) = cache(1 << 20);
        assert_eq!(cache.begin(at(0), request(1), 7), Admission::New);
        assert_eq!(cache.begin(at(1), request(1), 8), Admission::Known(Progress::Running(7)));
        cache.record(at(2), request(1), Progress::Replicated);
        assert_eq!(cache.begin(at(3), request(1), 8), Admission::Known(Progress::Running(7)));
        cache.record(at(4), request(1), Progress::Done(Status::Success));
        cache.record(at(5), request(1), Progress::Done(Status::NoSuchKey));
        let done = Admission::Known(Progress::Done(Status::Success));
        assert_eq!(cache.begin(at(10_000), request(1), 8), done);
        assert_eq!(cache.begin(at(10_001), request(1), 8), Admission::New);
        assert_eq!(cache.begin(at(10_002), request(2), 9), Admission::New);
        cache.forget(request(2));
        assert_eq!(cache.begin(at(10_003), request(2), 10), Admission::New);
        cache.expire(at(40_000));
        assert_eq!((cache.bytes(), budget.used_bytes()), (0, 0));
    }

    #[test]
    fn a_request_that_runs_again_after_the_window_is_done_again() {
        let (cache, _) = cache(1 << 20);
        let done = Progress::Done(Status::Success);
        assert_eq!(cache.begin(at(0), request(1), 1), Admission::New);
        cache.record(at(1), request(1), done);
        assert_eq!(cache.begin(at(10_600), request(1), 2), Admission::New);
        cache.record(at(10_601), request(1), done);
        assert_eq!(cache.begin(at(11_000), request(1), 3), Admission::Known(done));
    }

    #[test]
    fn when_it_is_full_new_requests_are_refused_and_none_is_forgotten() {
        let (cache, budget) = cache(SHARDS * 2 * RECORD_BYTES);
        let admitted: Vec<u64> = (0..200)
            .filter(|number| cache.begin(at(*number), request(*number), 1) == Admission::New)
            .collect();
        assert_eq!(admitted.len(), SHARDS * 2);
        for number in admitted {
            assert_eq!(cache.begin(at(300), request(number), 2), Admission::Known(Progress::Running(1)));
        }
        assert_eq!(cache.begin(at(301), request(199), 2), Admission::Full);
        assert_eq!(budget.used_bytes(), cache.bytes());
        cache.expire(at(20_000));
        assert_eq!(cache.begin(at(20_000), request(199), 2), Admission::New);
    }

    #[test]
    fn what_is_too_old_keeps_nobody_out() {
        // Two buckets of one shard: the first is full, the second was opened just before the first is too old.
        let (cache, _) = cache(2 * RECORD_BYTES * SHARDS);
        let of_one_shard = |number: u64| request(number * SHARDS as u64);
        assert_eq!(cache.begin(at(0), of_one_shard(1), 1), Admission::New);
        assert_eq!(cache.begin(at(12_400), of_one_shard(2), 2), Admission::New);
        assert_eq!(cache.begin(at(12_600), of_one_shard(3), 3), Admission::New);
        assert_eq!(cache.begin(at(12_700), of_one_shard(4), 4), Admission::Full);
    }

    #[test]
    fn a_node_that_only_takes_writes_does_not_fill_up() {
        let (cache, _) = cache(SHARDS * 4 * RECORD_BYTES);
        for number in 0..10_000 {
            // Ten records a second: a window and a bucket of them is 125 to 150, there is room for 256.
            let admission = cache.begin(at(number * 100), request(number), 1);
            assert_eq!(admission, Admission::New, "record {number}");
        }
    }

    #[test]
    fn expiry_runs_at_most_every_five_seconds_and_spares_the_young() {
        let (cache, _) = cache(1 << 20);
        cache.begin(at(0), request(0), 1);
        cache.begin(at(8_000), request(8), 1);
        cache.expire(at(13_000));
        assert_eq!(cache.bytes(), RECORD_BYTES, "the first bucket is gone, the second is not");
        cache.begin(at(13_001), request(16), 1);
        cache.expire(at(17_999));
        assert_eq!(cache.bytes(), 2 * RECORD_BYTES);
        let known = Admission::Known(Progress::Running(1));
        assert_eq!(cache.begin(at(17_999), request(8), 2), known);
    }
}
