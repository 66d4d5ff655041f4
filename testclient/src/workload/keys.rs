//! Numbered keys on a cluster: asked for by the load engine, and their answers judged.
//!
//! The names of keys are the run's own ([`KeyNames`]); values follow from number and version
//! ([`Contents`]), what was acknowledged stands in a [`Ledger`]. The keys are dealt out to the threads of a load, thread
//! t of n has every n-th from t on, so no thread waits for another. What is known outlives a phase: keys that one phase
//! wrote are judged in the next.

use std::net::SocketAddr;
use std::time::Instant;

use violet_client::{Format, Key, Response, Status};

use super::Route;
use super::ledger::{Fault, Faults, Found, Ledger};
use super::mix::{Deed, Mix};
use super::order::{Draw, KeyOrder};
use crate::load::{Ask, Call, End, PhasePlan, Verdict, Work, Workload};
use crate::names::KeyNames;
use crate::routes::Routes;
use crate::values::{Contents, Random};

/// How often a filling puts a key that is not acknowledged.
const FILL_TRIES_MAX: u8 = 20;
/// Most keys of a set; their numbers have four bytes, half of which are left for keys that are never written.
pub const KEYS_MAX: usize = 1 << 31;
/// Most threads.
pub const THREADS_MAX: usize = 64;

/// Who is asked, and in what layout.
#[derive(Clone, Debug)]
pub struct Target {
    /// The servers.
    pub servers: Vec<SocketAddr>,
    /// The protocol generation.
    pub format: Format,
}

/// A set of keys with what is known of each.
pub struct Keys {
    /// The servers that hold them.
    pub target: Target,
    /// Start of the run; phases tell when they began from here.
    pub run_started: Instant,
    seed: u64,
    /// Of the draws of phases; each phase has its own.
    phases_begun: u64,
    shards: Vec<Shard>,
}

/// The keys of one thread.
struct Shard {
    ledger: Ledger,
    contents: Contents,
    names: KeyNames,
    /// Number of the first key, and from one to the next.
    first: u64,
    step: u64,
    /// The next key that is never written.
    absent_next: u64,
    faults: Faults,
}

impl Shard {
    fn number(&self, index: usize) -> u64 {
        self.first + index as u64 * self.step
    }

    fn key(&self, number: u64) -> Key {
        self.names.key(number)
    }
}

impl Keys {
    /// `count` keys that were never written, for loads of this many threads.
    ///
    /// # Errors
    /// One sentence, when there are too many or too few of something.
    pub fn new(
        target: Target,
        count: usize,
        contents: Contents,
        names: KeyNames,
        seed: u64,
        threads: usize,
    ) -> Result<Self, String> {
        if threads == 0 || THREADS_MAX < threads {
            return Err(format!("threads {threads} are not 1 to {THREADS_MAX}"));
        }
        if count < threads || KEYS_MAX < count {
            return Err(format!("keys {count} are not {threads} (one for each thread) to {KEYS_MAX}"));
        }
        let shard = |thread: usize| Shard {
            ledger: Ledger::new((count - thread).div_ceil(threads)),
            contents,
            names,
            first: thread as u64,
            step: threads as u64,
            absent_next: (count.next_multiple_of(threads) + thread) as u64,
            faults: Faults::default(),
        };
        let shards = (0..threads).map(shard).collect();
        Ok(Self { target, run_started: Instant::now(), seed, phases_begun: 0, shards })
    }

    /// Threads of a load on these keys.
    pub fn threads(&self) -> usize {
        self.shards.len()
    }

    /// How many keys there are.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.ledger.len()).sum()
    }

    /// The longest value that can occur.
    pub fn value_bytes_max(&self) -> usize {
        self.shards[0].contents.value_bytes_max()
    }

    /// How many keys are surely stored.
    pub fn surely_there(&self) -> usize {
        let of_shard = |shard: &Shard| {
            (0..shard.ledger.len()).filter(|&index| shard.ledger.is_surely_there(index)).count()
        };
        self.shards.iter().map(of_shard).sum()
    }

    /// All faults since the last call; each phase notes its own.
    pub fn take_faults(&mut self) -> Faults {
        let mut faults = Faults::default();
        self.shards.iter_mut().for_each(|shard| faults.add(&std::mem::take(&mut shard.faults)));
        faults
    }

    /// The workloads of a phase, one for each thread, and the seed of its schedule.
    ///
    /// # Errors
    /// One sentence, when the servers tell no table for a zero-hop route.
    pub(crate) fn begin_phase(&mut self, plan: &PhasePlan) -> Result<(Vec<KeyLoad<'_>>, u64), String> {
        let routes = match plan.route {
            Route::ZeroHop => Some(Routes::learn(&self.target.servers, self.target.format)?),
            Route::First | Route::Random => None,
        };
        let routes = routes.map(std::sync::Arc::new);
        self.phases_begun += 1;
        let mut seeds = Random::new(self.seed ^ self.phases_begun.rotate_left(40));
        let schedule_seed = seeds.next();
        let target = &self.target;
        let loads = self.shards.iter_mut().map(|shard| KeyLoad {
            draw: Draw::new(plan.key_order, shard.ledger.len()),
            work: plan.work,
            mix: plan.mix,
            reads_absent: plan.key_order == KeyOrder::Absent,
            route: plan.route,
            routes: routes.clone(),
            format: target.format,
            servers: target.servers.len(),
            random: Random::new(seeds.next()),
            next_index: 0,
            again: Vec::new(),
            under_way: Vec::new(),
            shard,
        });
        Ok((loads.collect(), schedule_seed))
    }
}

/// What is under way in one place of the engine.
#[derive(Clone, Copy, Debug)]
struct Place {
    deed: Deed,
    /// A read of this number, which is beyond the keys.
    absent: Option<u64>,
    tries: u8,
}

/// One thread's part of a phase.
pub(crate) struct KeyLoad<'a> {
    shard: &'a mut Shard,
    draw: Draw,
    work: Work,
    mix: Mix,
    reads_absent: bool,
    route: Route,
    routes: Option<std::sync::Arc<Routes>>,
    format: Format,
    servers: usize,
    random: Random,
    /// Of a work that goes through all keys.
    next_index: usize,
    /// Keys that a filling must put again, and how often it has.
    again: Vec<(usize, u8)>,
    under_way: Vec<Place>,
}

impl KeyLoad<'_> {
    fn server(&mut self, key: &Key, is_write: bool) -> usize {
        match (self.route, &self.routes) {
            (Route::First, _) => 0,
            (Route::ZeroHop, Some(routes)) => routes.server(key, is_write, &mut self.random),
            (Route::Random, _) | (Route::ZeroHop, None) => self.random.below(self.servers),
        }
    }

    /// What to do next: deed, index and how often that was tried.
    fn choose(&mut self) -> Option<(Deed, usize, u8)> {
        let deed = match self.work {
            Work::Mix => {
                let deed = self.mix.draw(&mut self.random);
                return Some((deed, self.draw.next(&mut self.random), 0));
            }
            Work::Fill => Deed::Put,
            Work::ReadAll => Deed::Get,
        };
        if let Some((index, tries)) = self.again.pop() {
            return Some((deed, index, tries));
        }
        let index = self.next_index;
        self.next_index += 1;
        (index < self.shard.ledger.len()).then_some((deed, index, 0))
    }

    fn note(&mut self, place: usize, fault: Fault, found: Found) {
        let (index, _) = self.shard.ledger.at(place);
        let number = self.shard.number(index);
        let possible = self.shard.ledger.possible_text(place);
        self.shard.faults.note(fault, number, || {
            let found = match found {
                Found::Absent => "no such key".to_owned(),
                Found::Version(version) => format!("version {version}"),
                Found::Foreign => "other bytes".to_owned(),
            };
            format!("key {number}: found {found} where {possible} was right")
        });
    }

    fn on_get(&mut self, place: usize, response: &Response<'_>) -> Verdict {
        let shard = &*self.shard;
        let found = match response.status {
            Status::NoSuchKey => Found::Absent,
            Status::Success => {
                let (index, _) = shard.ledger.at(place);
                let (number, value) = (shard.number(index), response.value.unwrap_or_default());
                let fits = |version: u32| shard.contents.matches(number, version as i32, value.bytes);
                match self.format {
                    Format::Protobuf if fits(value.version as u32) => Found::Version(value.version as u32),
                    Format::Protobuf => Found::Foreign,
                    Format::Raw => shard.ledger.identify(place, fits),
                }
            }
            _ => return Verdict::Refused,
        };
        match shard.ledger.judge_read(place, found) {
            Ok(None) => Verdict::Good,
            Ok(Some(fault)) => {
                self.note(place, fault, found);
                Verdict::Wrong
            }
            Err(_) => {
                self.shard.faults.unjudged += 1;
                Verdict::Good
            }
        }
    }

    fn on_get_absent(&mut self, number: u64, response: &Response<'_>) -> Verdict {
        match response.status {
            Status::NoSuchKey => Verdict::Good,
            Status::Success => {
                let text = || format!("key {number}: found a value where nothing was ever written");
                self.shard.faults.note(Fault::Invented, number, text);
                Verdict::Wrong
            }
            _ => Verdict::Refused,
        }
    }

    fn on_put(&mut self, place: usize, end: &End<'_>) -> Verdict {
        let is_acknowledged = end.status() == Some(Status::Success);
        self.shard.ledger.end_write(place, is_acknowledged);
        if is_acknowledged {
            return Verdict::Good;
        }
        let tries = self.under_way[place].tries;
        if self.work == Work::Fill && tries < FILL_TRIES_MAX {
            let (index, _) = self.shard.ledger.at(place);
            self.again.push((index, tries + 1));
        }
        Verdict::Refused
    }

    fn on_remove(&mut self, place: usize, end: &End<'_>) -> Verdict {
        let was_absent = match end.status() {
            Some(Status::Success) => false,
            Some(Status::NoSuchKey) => true,
            _ => {
                self.shard.ledger.end_write(place, false);
                return Verdict::Refused;
            }
        };
        let judged = self.shard.ledger.judge_remove(place, was_absent);
        let verdict = match judged {
            Ok(None) => Verdict::Good,
            Ok(Some(fault)) => {
                let (index, _) = self.shard.ledger.at(place);
                let number = self.shard.number(index);
                let text = || format!("key {number}: REMOVE says {:?}", end.status());
                self.shard.faults.note(fault, number, text);
                Verdict::Wrong
            }
            Err(_) => {
                self.shard.faults.unjudged += 1;
                Verdict::Good
            }
        };
        self.shard.ledger.end_write(place, true);
        verdict
    }
}

impl Workload for KeyLoad<'_> {
    fn next(&mut self, place: usize, value: &mut Vec<u8>) -> Option<Call> {
        if self.under_way.len() <= place {
            self.under_way.resize(place + 1, Place { deed: Deed::Get, absent: None, tries: 0 });
        }
        if self.reads_absent {
            let number = self.shard.absent_next;
            self.shard.absent_next += self.shard.step;
            self.under_way[place] = Place { deed: Deed::Get, absent: Some(number), tries: 0 };
            let key = self.shard.key(number);
            return Some(Call { server: self.server(&key, false), ask: Ask::Get { key } });
        }
        let (deed, index, tries) = self.choose()?;
        self.under_way[place] = Place { deed, absent: None, tries };
        let number = self.shard.number(index);
        let key = self.shard.key(number);
        let server = self.server(&key, deed != Deed::Get);
        let shard = &mut *self.shard;
        let ask = match deed {
            Deed::Put => {
                let version = shard.ledger.begin_put(place, index) as i32;
                shard.contents.write(number, version, value);
                Ask::Put { key, version }
            }
            Deed::Get => {
                shard.ledger.begin_read(place, index);
                Ask::Get { key }
            }
            Deed::Remove => {
                shard.ledger.begin_remove(place, index);
                Ask::Remove { key }
            }
        };
        Some(Call { server, ask })
    }

    fn on_end(&mut self, place: usize, end: End<'_>) -> Verdict {
        let Place { deed, absent, .. } = self.under_way[place];
        match (deed, &end, absent) {
            (Deed::Put, _, _) => self.on_put(place, &end),
            (Deed::Remove, _, _) => self.on_remove(place, &end),
            (Deed::Get, End::Answered(response), None) => self.on_get(place, response),
            (Deed::Get, End::Answered(response), Some(number)) => self.on_get_absent(number, response),
            (Deed::Get, End::TimedOut, _) => Verdict::Refused,
        }
    }
}
