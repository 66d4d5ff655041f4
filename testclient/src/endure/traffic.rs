//! Load in a thread of its own: clients that overwrite, remove and read keys while nodes are treated
//! badly.
//!
//! Each client owns its keys and has one request under way, so the order of a key's steps is known. Which
//! nodes are asked, and whether anything is read, can be changed while it runs. Every end goes into the
//! shared ledger, every read is judged at once. Two loads may share a key; the ledger's rule still holds.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use violet_client::Status;

use super::history::{Deed, Found, Ledger, Observations, Read};
use crate::load::{self, Ask, Call, End, Plan, Signals, Verdict, Workload};
use crate::tally::Tally;
use crate::values::Random;

/// Of so many requests …
const SHARES: usize = 100;
/// … so many read, if reading is allowed, and so many remove; the others write.
const READ_SHARE: usize = 40;
const REMOVE_SHARE: usize = 12;

/// What the threads of a scenario share.
#[derive(Debug)]
pub struct Shared {
    epoch: Instant,
    ledger: Mutex<Ledger>,
    seen: Mutex<Observations>,
    reads: AtomicBool,
    /// Keys from this number on are not read, by nobody.
    unread_from: AtomicU64,
}

impl Shared {
    /// Begins with keys that were never written.
    pub fn new(ledger: Ledger) -> Self {
        Self {
            unread_from: AtomicU64::new(ledger.keys.count),
            epoch: Instant::now(),
            ledger: Mutex::new(ledger),
            seen: Mutex::new(Observations::default()),
            reads: AtomicBool::new(true),
        }
    }

    /// The moment, as the ledger counts it.
    pub fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// The ledger. Only for a few lines: load stands still meanwhile.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // What a panicked thread noted is still true.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the load's own reads found.
    pub fn seen(&self) -> MutexGuard<'_, Observations> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys that may be read. A read may repair what it finds, and so hide that nothing else would have.
    pub fn readable(&self) -> Range<u64> {
        0..self.unread_from.load(Ordering::Relaxed)
    }

    /// From now on, keys from this number on are not read.
    pub fn leave_unread(&self, from: u64) {
        self.unread_from.store(from, Ordering::Relaxed);
    }

    /// Whether the load reads as well.
    pub fn allow_reads(&self, allowed: bool) {
        self.reads.store(allowed, Ordering::Relaxed);
    }
}

/// Longest latency that is told apart, in microseconds.
const LATENCY_US_MAX: u64 = 60_000_000;

/// Latencies by what a request has to do with one node. A request that nobody answers counts with its
/// whole patience.
#[derive(Debug)]
pub struct Split {
    node: usize,
    /// The keys that the node is a replica of.
    its_keys: BTreeSet<u64>,
    seen: Mutex<BTreeMap<Share, Histogram<u64>>>,
}

/// What a request has to do with the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Share {
    /// Asked of another node, for a key that the node does not hold.
    Others,
    /// Asked of another node, for a key that it holds.
    ItsKeys,
    /// Asked of the node itself.
    ItsClients,
}

impl Split {
    /// Nothing seen yet.
    pub fn new(node: usize, its_keys: BTreeSet<u64>) -> Self {
        Self { node, its_keys, seen: Mutex::default() }
    }

    /// Takes out what was seen of a share.
    pub fn take(&self, share: Share) -> Histogram<u64> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.remove(&share).unwrap_or_else(latencies)
    }

    fn note(&self, server: usize, number: u64, latency: Duration) {
        let share = match (server == self.node, self.its_keys.contains(&number)) {
            (true, _) => Share::ItsClients,
            (false, true) => Share::ItsKeys,
            (false, false) => Share::Others,
        };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        seen.entry(share).or_insert_with(latencies).saturating_record(micros);
    }
}

fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("the bounds are in order")
}

/// Which load.
#[derive(Clone, Debug)]
pub struct Kind {
    /// How many clients.
    pub clients: usize,
    /// How long each rests between its requests.
    pub rest: Duration,
    /// The keys that it writes and removes; it reads any.
    pub numbers: Range<u64>,
    /// More keys to write, which another load may write, too.
    pub more: Range<u64>,
    /// The nodes to ask, a random one each time.
    pub via: Vec<usize>,
    /// Tells latencies apart; and each client stays with one node.
    pub split: Option<Arc<Split>>,
    /// Of its draws.
    pub seed: u64,
}

/// A running load. It ends when it is stopped; a dropped one ends with the program.
#[derive(Debug)]
pub struct Traffic {
    signals: Arc<Signals>,
    via: Arc<Mutex<Vec<usize>>>,
    thread: JoinHandle<std::io::Result<Tally>>,
}

impl Traffic {
    /// Starts a load; `plan` says whom its node numbers mean.
    ///
    /// # Errors
    /// A sentence, when a client would have no key, or there is no thread to be had.
    pub fn start(plan: Plan, shared: &Arc<Shared>, kind: &Kind) -> Result<Self, String> {
        let keys = kind.numbers.clone().chain(kind.more.clone()).count();
        if keys < kind.clients {
            return Err(format!("{} clients need as many keys to write, not {keys}", kind.clients));
        }
        let signals = Arc::new(Signals::default());
        let via = Arc::new(Mutex::new(kind.via.clone()));
        let mut clients = Clients {
            shared: Arc::clone(shared),
            format: plan.format,
            own: kind.numbers.clone().chain(kind.more.clone()).collect(),
            count: kind.clients,
            via: Arc::clone(&via),
            random: Random::new(kind.seed),
            under_way: vec![None; kind.clients],
            split: kind.split.clone(),
            asked: vec![(0, 0, Duration::ZERO); kind.clients],
        };
        let (plan, stop) = (Plan { clients: kind.clients, rest: kind.rest, ..plan }, Arc::clone(&signals));
        let body = move || load::run(&plan, &mut clients, &stop);
        let thread = std::thread::Builder::new().name("load".to_owned()).spawn(body);
        thread.map(|thread| Self { signals, via, thread }).map_err(|error| format!("no thread: {error}"))
    }

    /// From now on these nodes are asked.
    pub fn ask_via(&self, via: &[usize]) {
        *self.via.lock().unwrap_or_else(PoisonError::into_inner) = via.to_vec();
    }

    /// Lets requests under way end, and returns what was counted.
    ///
    /// # Errors
    /// A sentence, when the load could not run.
    pub fn stop(self) -> Result<Tally, String> {
        self.signals.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(Ok(tally)) => Ok(tally),
            Ok(Err(error)) => Err(format!("the load could not run: {error}")),
            Err(_) => Err("the load panicked".to_owned()),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum UnderWay {
    Step { number: u64, step: i32, deed: Deed },
    Read(Read),
}

struct Clients {
    shared: Arc<Shared>,
    format: violet_client::Format,
    own: Vec<u64>,
    count: usize,
    via: Arc<Mutex<Vec<usize>>>,
    random: Random,
    under_way: Vec<Option<UnderWay>>,
    split: Option<Arc<Split>>,
    /// Whom each client asked last, for which key and when.
    asked: Vec<(usize, u64, Duration)>,
}

impl Clients {
    /// One of the keys that belong to this client alone (within this load).
    fn own_number(&mut self, client: usize) -> u64 {
        let mine = (self.own.len() - client).div_ceil(self.count);
        self.own[client + self.count * self.random.below(mine)]
    }

    fn step(&mut self, client: usize, deed: Deed, value: &mut Vec<u8>) -> (UnderWay, Ask) {
        let number = self.own_number(client);
        let mut ledger = self.shared.ledger();
        let step = ledger.begin(number, deed, self.shared.now());
        let key = ledger.keys.key(number);
        let ask = match deed {
            Deed::Remove => Ask::Remove { key },
            Deed::Put => {
                ledger.keys.contents.write(number, step, value);
                Ask::Put { key, version: step }
            }
        };
        (UnderWay::Step { number, step, deed }, ask)
    }
}

impl Workload for Clients {
    fn next(&mut self, client: usize, value: &mut Vec<u8>) -> Option<Call> {
        let server = {
            let via = self.via.lock().unwrap_or_else(PoisonError::into_inner);
            let place = if self.split.is_some() { client % via.len() } else { self.random.below(via.len()) };
            via[place]
        };
        let drawn = self.random.below(SHARES);
        let reads = self.shared.reads.load(Ordering::Relaxed);
        let (under_way, ask) = if drawn < READ_SHARE && reads {
            let number = self.random.below(self.shared.readable().end as usize) as u64;
            let read = Read { format: self.format, number, via: server, asked: self.shared.now() };
            (UnderWay::Read(read), Ask::Get { key: self.shared.ledger().keys.key(number) })
        } else if drawn < READ_SHARE + REMOVE_SHARE {
            self.step(client, Deed::Remove, value)
        } else {
            self.step(client, Deed::Put, value)
        };
        let (UnderWay::Step { number, .. } | UnderWay::Read(Read { number, .. })) = under_way;
        self.asked[client] = (server, number, self.shared.now());
        self.under_way[client] = Some(under_way);
        Some(Call { server, ask })
    }

    fn on_end(&mut self, client: usize, end: End<'_>) -> Verdict {
        let now = self.shared.now();
        if let Some(split) = &self.split {
            let (server, number, asked) = self.asked[client];
            split.note(server, number, now.saturating_sub(asked));
        }
        match self.under_way[client].take() {
            None => {}
            Some(UnderWay::Read(read)) => {
                let ledger = self.shared.ledger();
                self.shared.seen().take(&ledger, &read, &end, now);
            }
            Some(UnderWay::Step { number, step, deed }) => {
                let mut ledger = self.shared.ledger();
                let status = end.status();
                if deed == Deed::Remove && status == Some(Status::NoSuchKey) {
                    // The removal itself is left aside: it must not excuse what it found.
                    let was_there = ledger.judge_before(number, step, Found::Absent).is_some();
                    self.shared.seen().doubtful_removals += u64::from(was_there);
                }
                ledger.end(number, step, now, status == Some(Status::Success));
            }
        }
        end.verdict()
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::Fault;
    use super::super::planted::{Defect, Store};
    use super::*;
    use crate::keyset::KeySet;
    use crate::values::Sizes;
    use violet_client::Format;

    const REQUESTS: u64 = 3_000;

    /// What the reads of a load find wrong that runs against a store.
    fn found(defect: Defect, format: Format) -> Vec<Fault> {
        let store = Store::start(defect);
        let mut random = Random::new(5);
        let shared = Arc::new(Shared::new(Ledger::new(KeySet::drawn(&mut random, 40, Sizes::UpTo(100)))));
        let plan = Plan {
            servers: vec![store.address],
            format,
            waits: vec![Duration::from_secs(10)],
            clients: 0,
            rest: Duration::ZERO,
            window: None,
            overload_restarts_max: 0,
            redraw_server: false,
            seed: 1,
        };
        let kind = Kind {
            clients: 6,
            rest: Duration::ZERO,
            numbers: 0..30,
            more: 30..35,
            via: vec![0],
            split: None,
            seed: 2,
        };
        let traffic = Traffic::start(plan, &shared, &kind).unwrap();
        while traffic.signals.answers.load(Ordering::Relaxed) < REQUESTS {
            std::thread::yield_now();
        }
        let tally = traffic.stop().unwrap();
        let counts = tally.counts();
        assert!(REQUESTS <= counts.sent && counts.timed_out == 0 && counts.is_balanced());
        let seen = shared.seen();
        assert_eq!(seen.fault_text().is_some(), !seen.faults.is_empty());
        assert_eq!(seen.doubtful_removals, 0);
        seen.faults.keys().copied().collect()
    }

    #[test]
    fn a_right_store_is_never_blamed() {
        for format in [Format::Protobuf, Format::Raw] {
            assert_eq!(found(Defect::None, format), []);
        }
    }

    #[test]
    fn stale_and_revived_values_are_found_by_the_load_itself() {
        assert!(found(Defect::KeepsOld(20), Format::Protobuf).contains(&Fault::Stale));
        assert!(found(Defect::KeepsOld(20), Format::Raw).contains(&Fault::Stale));
        assert_eq!(found(Defect::KeepsRemoved(5), Format::Protobuf), [Fault::Revived]);
    }
}
