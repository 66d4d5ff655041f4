//! At-most-once: what became of each mutation, by request.
//!
//! The record lives with the key's owners, not with the front end, and its name is the client's id
//! *and* a digest of the datagram ([`RequestKey`]). It is made before the request is executed. Only
//! the status is kept: replies to PUT, REMOVE and WIPEOUT say nothing else, and GET is never cached.
//!
//! Records sit in time buckets. Expiry drops a whole bucket, on the GET path, at most every five
//! seconds; a record's age is also looked at when it is found. Memory is bounded in bytes: when it is
//! full, *new* mutations are refused, no young record is ever forgotten (RIFL, section 3).

use crate::ids::{RequestKey, Token};
use crate::storage::Budget;
use crate::time::{Duration, Instant};
use ahash::RandomState;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use violet_client::Status;

const SHARDS: usize = 8;
/// A window is this many buckets: a record lives for the window and at most one bucket more.
const BUCKETS_PER_WINDOW: u32 = 4;
/// Bytes that a record costs: key, record, and the free room of a hash table that is 2/3 full.
const RECORD_BYTES: usize = 96;
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
    bytes_max: usize,
    budget: Arc<Budget>,
    hasher: RandomState,
    expired_at: AtomicU64,
    /// Locked one at a time.
    shards: Vec<Mutex<VecDeque<Bucket>>>,
}

#[derive(Debug)]
struct Bucket {
    opened: Instant,
    records: HashMap<RequestKey, (Progress, Instant), RandomState>,
}

impl ReplyCache {
    /// An empty cache: records live for `window` and take at most `bytes_max` of `budget`.
    #[must_use]
    pub fn new(window: Duration, bytes_max: usize, budget: Arc<Budget>, seed: u64) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let hasher = RandomState::with_seeds(seed, 4, 5, 6);
        Self { window, bytes_max, budget, hasher, expired_at: AtomicU64::new(0), shards }
    }

    fn shard(&self, request: &RequestKey) -> &Mutex<VecDeque<Bucket>> {
        &self.shards[request.digest as usize % SHARDS]
    }

    /// Looks a mutation up and, when it is new, records it as running.
    pub fn begin(&self, now: Instant, request: RequestKey, token: Token) -> Admission {
        let mut shard = self.shard(&request).lock();
        if let Some(progress) = self.find(&shard, now, &request) {
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
        let mut shard = self.shard(&request).lock();
        for bucket in shard.iter_mut() {
            if let Some(record) = bucket.records.get_mut(&request) {
                let settled = matches!(record.0, Progress::Done(_));
                let weaker = progress == Progress::Replicated && record.0 != Progress::Replicated;
                if !settled && !weaker {
                    record.0 = progress;
                }
                return;
            }
        }
        let _ = self.insert(&mut shard, now, request, progress);
    }

    /// Forgets a mutation that did not happen.
    pub fn forget(&self, request: &RequestKey) {
        for bucket in self.shard(request).lock().iter_mut() {
            if bucket.records.remove(request).is_some() {
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
        if claimed.is_err() {
            return;
        }
        for shard in &self.shards {
            let mut shard = shard.lock();
            while shard.front().is_some_and(|bucket| self.lifetime() < now.since(bucket.opened)) {
                let bucket = shard.pop_front().expect("the front was just looked at");
                self.budget.give(bucket.records.len() * RECORD_BYTES);
            }
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

    fn bucket_span(&self) -> Duration {
        self.window / BUCKETS_PER_WINDOW
    }

    /// From the opening of a bucket until its last record is too old.
    fn lifetime(&self) -> Duration {
        self.window + self.bucket_span()
    }

    fn find(&self, shard: &VecDeque<Bucket>, now: Instant, request: &RequestKey) -> Option<Progress> {
        let found = shard.iter().rev().find_map(|bucket| bucket.records.get(request));
        found.filter(|(_, since)| now.since(*since) <= self.window).map(|(progress, _)| *progress)
    }

    fn insert(
        &self,
        shard: &mut VecDeque<Bucket>,
        now: Instant,
        request: RequestKey,
        progress: Progress,
    ) -> bool {
        if shard.back().is_none_or(|bucket| self.bucket_span() < now.since(bucket.opened)) {
            let records = HashMap::with_hasher(self.hasher.clone());
            shard.push_back(Bucket { opened: now, records });
        }
        let held: usize = shard.iter().map(|bucket| bucket.records.len()).sum();
        if self.bytes_max / SHARDS < (held + 1) * RECORD_BYTES || !self.budget.take(RECORD_BYTES, 0) {
            return false;
        }
        let bucket = shard.back_mut().expect("a bucket was just made sure of");
        if bucket.records.insert(request, (progress, now)).is_some() {
            self.budget.give(RECORD_BYTES);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use violet_client::MessageId;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1_000_000_000_000 + millis * 1_000_000)
    }

    fn request(number: u64) -> RequestKey {
        RequestKey { id: MessageId([0; 16]), digest: number }
    }

    fn cache(bytes_max: usize) -> (ReplyCache, Arc<Budget>) {
        let budget = Arc::new(Budget::new(1 << 20));
        (ReplyCache::new(Duration::from_secs(10), bytes_max, Arc::clone(&budget), 1), budget)
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
        cache.forget(&request(2));
        assert_eq!(cache.begin(at(10_003), request(2), 10), Admission::New);
        cache.expire(at(40_000));
        assert_eq!((cache.bytes(), budget.used_bytes()), (0, 0));
    }

    #[test]
    fn when_it_is_full_new_requests_are_refused_and_none_is_forgotten() {
        let (cache, budget) = cache(8 * 10 * RECORD_BYTES);
        let admitted: Vec<u64> = (0..200)
            .filter(|number| cache.begin(at(*number), request(*number), 1) == Admission::New)
            .collect();
        assert_eq!(admitted.len(), 80);
        for number in admitted {
            assert_eq!(cache.begin(at(300), request(number), 2), Admission::Known(Progress::Running(1)));
        }
        assert_eq!(cache.begin(at(301), request(199), 2), Admission::Full);
        assert_eq!(budget.used_bytes(), cache.bytes());
        cache.expire(at(20_000));
        assert_eq!(cache.begin(at(20_000), request(199), 2), Admission::New);
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
