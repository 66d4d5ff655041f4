//! Many clients at once: reads through other servers right after writes, and a fight over the same keys.

use std::collections::BTreeMap;
use std::time::Duration;

use violet_client::{Format, Status};

use crate::cluster::{Cluster, Finding, StageResult};
use crate::grid::course_policy;
use crate::keyset::{Expected, KeySet, Reading};
use crate::load::{self, Ask, Call, End, Plan, Signals, Verdict, Workload};
use crate::values::{Random, Sizes};

/// Clients of `read_your_writes`.
const READERS: usize = 16;
/// Bounds of the number of keys; twice the pairs of servers, within these.
const PAIRED_KEYS_MIN: usize = 200;
const PAIRED_KEYS_MAX: usize = 1_000;
/// `crash_test`: clients that write and read, clients that remove and wipe, keys of each writer, and for how long.
const WRITERS: usize = 12;
const DESTROYERS: usize = 4;
const KEYS_PER_WRITER: u64 = 10;
const FIGHT: Duration = Duration::from_secs(3);
/// One in so many destructive requests is a WIPEOUT.
const WIPEOUT_ONE_IN: usize = 50;

fn plan(cluster: &mut Cluster, clients: usize, window: Option<Duration>) -> Plan {
    Plan {
        servers: cluster.servers.clone(),
        format: cluster.format,
        waits: course_policy(cluster.format).waits,
        clients,
        rest: Duration::ZERO,
        window,
        overload_restarts_max: 10,
        redraw_server: false,
        seed: cluster.random.next(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Put,
    Overwrite,
    Remove,
}

impl Phase {
    fn expected(self) -> Expected {
        match self {
            Self::Put => Expected::Between(1, 1),
            Self::Overwrite => Expected::Between(2, 2),
            Self::Remove => Expected::Absent,
        }
    }

    fn next(self) -> Option<Self> {
        match self {
            Self::Put => Some(Self::Overwrite),
            Self::Overwrite => Some(Self::Remove),
            Self::Remove => None,
        }
    }
}

/// Where a client stands with its key: the phase, and how many servers have been asked since its write.
#[derive(Clone, Copy)]
struct Walk {
    number: u64,
    phase: Phase,
    /// 0 = the write itself, 1 … n = the GET through each server.
    step: usize,
}

struct WriteThenReadEverywhere<'a> {
    keys: KeySet,
    live: &'a [usize],
    cluster: &'a Cluster,
    next_number: u64,
    walks: Vec<Option<Walk>>,
    reading: Reading,
    refused: BTreeMap<Option<Status>, u64>,
}

impl WriteThenReadEverywhere<'_> {
    /// The write enters at each server in turn, and the first read at each other one in turn.
    fn server(&self, walk: Walk) -> usize {
        let count = self.live.len() as u64;
        let writer = walk.number % count;
        let shift = 1 + walk.number / count;
        let at = if walk.step == 0 { writer } else { writer + shift + walk.step as u64 - 1 };
        self.live[(at % count) as usize]
    }
}

impl Workload for WriteThenReadEverywhere<'_> {
    fn next(&mut self, client: usize, value: &mut Vec<u8>) -> Option<Call> {
        if self.walks[client].is_none() && self.next_number < self.keys.count {
            self.walks[client] = Some(Walk { number: self.next_number, phase: Phase::Put, step: 0 });
            self.next_number += 1;
        }
        let walk = self.walks[client]?;
        let key = self.keys.key(walk.number);
        let mut put = |version| {
            self.keys.contents.write(walk.number, version, value);
            Ask::Put { key, version }
        };
        let ask = match (walk.step, walk.phase) {
            (0, Phase::Put) => put(1),
            (0, Phase::Overwrite) => put(2),
            (0, Phase::Remove) => Ask::Remove { key },
            _ => Ask::Get { key },
        };
        Some(Call { server: self.server(walk), ask })
    }

    fn on_end(&mut self, client: usize, end: End<'_>) -> Verdict {
        let Some(walk) = self.walks[client] else { return end.verdict() };
        if walk.step == 0 && end.status() != Some(Status::Success) {
            *self.refused.entry(end.status()).or_default() += 1;
            self.walks[client] = None;
            return end.verdict();
        }
        if 0 < walk.step {
            let server = self.cluster.servers[self.server(walk)];
            let writer = self.cluster.servers[self.server(Walk { step: 0, ..walk })];
            let place = || format!("{:?} via {writer}, then GET via {server}", walk.phase);
            let format = self.cluster.format;
            self.keys.judge(format, walk.number, walk.phase.expected(), &end, &mut self.reading, place);
        }
        self.walks[client] = if walk.step < self.live.len() {
            Some(Walk { step: walk.step + 1, ..walk })
        } else {
            walk.phase.next().map(|phase| Walk { phase, step: 0, ..walk })
        };
        end.verdict()
    }
}

/// PUT, overwrite and REMOVE through one server, each followed at once by a GET through every server.
pub fn read_your_writes(cluster: &mut Cluster) -> StageResult {
    let live = cluster.live();
    let count = (2 * live.len() * live.len()).clamp(PAIRED_KEYS_MIN, PAIRED_KEYS_MAX);
    let keys = KeySet::new(cluster, count as u64, Sizes::UpTo(1_000));
    let plan = plan(cluster, READERS, None);
    let mut workload = WriteThenReadEverywhere {
        keys,
        live: &live,
        cluster,
        next_number: 0,
        walks: vec![None; READERS],
        reading: Reading::default(),
        refused: BTreeMap::new(),
    };
    load::run(&plan, &mut workload, &Signals::default())
        .map_err(|error| Finding::Undecided(error.to_string()))?;
    let WriteThenReadEverywhere { reading, refused, .. } = workload;
    reading.insist("right after the write")?;
    let unfinished: u64 = refused.values().sum();
    if count as u64 <= 10 * unfinished {
        return Err(Finding::Undecided(format!("{unfinished} of {count} writes failed: {refused:?}")));
    }
    if 0 < unfinished {
        cluster.note(format!("{unfinished} of {count} writes failed: {refused:?}"));
    }
    Ok(())
}

/// What a writer knows of one of its keys.
#[derive(Clone, Copy, Default)]
struct Owned {
    acknowledged: i32,
    attempted: i32,
}

struct Fight {
    keys: KeySet,
    format: Format,
    live: Vec<usize>,
    random: Random,
    owned: Vec<Owned>,
    /// The key that each client's request is about, and whether that was a PUT.
    under_way: Vec<(u64, bool)>,
    reading: Reading,
}

impl Workload for Fight {
    fn next(&mut self, client: usize, value: &mut Vec<u8>) -> Option<Call> {
        let server = self.live[self.random.below(self.live.len())];
        if WRITERS <= client {
            let wipe = self.random.below(WIPEOUT_ONE_IN) == 0;
            let key = self.keys.key(self.random.below(self.owned.len()) as u64);
            return Some(Call { server, ask: if wipe { Ask::Wipeout } else { Ask::Remove { key } } });
        }
        let number = client as u64 * KEYS_PER_WRITER + self.random.below(KEYS_PER_WRITER as usize) as u64;
        let put = self.random.below(2) == 0;
        self.under_way[client] = (number, put);
        let key = self.keys.key(number);
        if !put {
            return Some(Call { server, ask: Ask::Get { key } });
        }
        let owned = &mut self.owned[number as usize];
        owned.attempted += 1;
        self.keys.contents.write(number, owned.attempted, value);
        Some(Call { server, ask: Ask::Put { key, version: owned.attempted } })
    }

    fn on_end(&mut self, client: usize, end: End<'_>) -> Verdict {
        if WRITERS <= client {
            return end.verdict();
        }
        let (number, put) = self.under_way[client];
        let owned = &mut self.owned[number as usize];
        match (put, end.status()) {
            (true, Some(Status::Success)) => owned.acknowledged = owned.attempted,
            (true, _) => {}
            // Removed or wiped by the others.
            (false, Some(Status::NoSuchKey)) => self.reading.right += 1,
            (false, _) => {
                let expected = Expected::Between(owned.acknowledged, owned.attempted);
                let place = || format!("GET of key {number} by its only writer");
                self.keys.judge(self.format, number, expected, &end, &mut self.reading, place);
            }
        }
        end.verdict()
    }
}

/// Clients that write and read their own keys against clients that remove and wipe them.
pub fn crash_test(cluster: &mut Cluster) -> StageResult {
    let count = WRITERS as u64 * KEYS_PER_WRITER;
    let keys = KeySet::new(cluster, count, Sizes::UpTo(1_000));
    let plan = plan(cluster, WRITERS + DESTROYERS, Some(FIGHT));
    let mut fight = Fight {
        keys,
        format: cluster.format,
        live: cluster.live(),
        random: Random::new(plan.seed),
        owned: vec![Owned::default(); count as usize],
        under_way: vec![(0, false); WRITERS],
        reading: Reading::default(),
    };
    let tally = load::run(&plan, &mut fight, &Signals::default())
        .map_err(|error| Finding::Undecided(error.to_string()))?;
    for server in cluster.live() {
        cluster.still_alive(server, "PUT and GET clients against REMOVE and WIPEOUT clients")?;
    }
    fight.reading.insist("while others removed and wiped")?;
    let errors = tally.errors(cluster.format);
    let timeouts = tally.counts().timed_out;
    if !errors.is_empty() || 0 < timeouts {
        cluster.note(format!("{timeouts} time-outs; errors by code: {errors:?}"));
    }
    Ok(())
}
