//! Swarm runs: one seed, one run, everything in it chosen by the seed (TigerBeetle's VOPR).
//!
//! A run starts a cluster, lets clients work while things go wrong, mends everything, waits for the
//! nodes to come to rest, reads every key through every node, and has it all judged. A failure prints
//! the claim, the key's history and the command that repeats it.

use super::Bugs;
use super::checker::{self, Claims, Findings, Violation};
use super::client::{Client, Habits, Manners, REPEAT_WITHIN, key_of};
use super::dice::Dice;
use super::faults::{self, Mood, Tally};
use super::history::{Action, OpId, Seen};
use super::host::{Plan, Report, State};
use super::network::{Toll, Weather};
use super::world::{BEGIN, World};
use crate::config::{Config, FanOut, ReadRule, ReplyMode, WriteRule};
use crate::time::{Duration, Instant};
use violet_client::{Format, RetryPolicy};

/// Time that a new cluster gets before clients start.
const SETTLE: Duration = Duration::from_millis(1_500);
/// After everything is mended the nodes must come to rest within this time.
const REST_WITHIN: Duration = Duration::from_secs(40);
/// After that every request is answered within this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The first seed.
    pub seed: u64,
    /// How many nodes; chosen by the seed if not given.
    pub nodes: Option<usize>,
    /// The kind of trouble; chosen by the seed if not given.
    pub mood: Option<Mood>,
    /// For how long things go wrong.
    pub trouble: Duration,
    /// Every event is printed.
    pub is_traced: bool,
    /// Planted bugs (test builds only).
    pub bugs: Bugs,
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its seed.
    pub seed: u64,
    /// Its kind of trouble.
    pub mood: Mood,
    /// Its nodes.
    pub nodes: usize,
    /// What was found.
    pub findings: Findings,
    /// What the network did.
    pub toll: Toll,
    /// What happened to the processes.
    pub tally: Tally,
    /// Datagrams that arrived.
    pub datagrams: u64,
    /// Virtual time.
    pub simulated: Duration,
    /// How long the nodes took to come to rest.
    pub rested_after: Duration,
    /// Covers everything that happened.
    pub trace_hash: u64,
}

/// Runs one seed.
#[must_use]
pub fn run(options: &Options) -> Run {
    let mut dice = Dice::of_part(options.seed, "swarm", 0);
    let mood = options.mood.unwrap_or(Mood::ALL[dice.index(Mood::ALL.len())]);
    let nodes = options.nodes.unwrap_or(3 + dice.index(4));
    let mut stage = Stage::new(options, mood, nodes, dice);
    stage.suffer(options.trouble);
    let rested_after = stage.rest();
    stage.probe();
    stage.judge(rested_after)
}

struct Stage {
    world: World,
    mood: Mood,
    dice: Dice,
    config: Config,
    tally: Tally,
    violations: Vec<Violation>,
    probes_from: OpId,
}

impl Stage {
    fn new(options: &Options, mood: Mood, nodes: usize, mut dice: Dice) -> Self {
        let config = config_of(mood, &mut dice);
        let weather = mood.weather(&mut dice);
        let skew = |dice: &mut Dice| match mood {
            Mood::Skewed => dice.below(10_000_000_000) as i64 - 5_000_000_000,
            Mood::Calm | Mood::Rough | Mood::Split | Mood::Pauses | Mood::Crashes | Mood::Everything => 0,
        };
        let plans = (0..nodes).map(|_| Plan {
            config: config.clone(),
            skew_nanos: skew(&mut dice),
            bugs: options.bugs,
        });
        let plans = plans.collect();
        let mut world = World::new(options.seed, plans, weather);
        world.is_traced = options.is_traced;
        let probes_from = OpId::MAX;
        Self { world, mood, dice, config, tally: Tally::default(), violations: Vec::new(), probes_from }
    }

    /// Clients work while things go wrong.
    fn suffer(&mut self, trouble: Duration) {
        let nodes = self.world.hosts.len();
        for node in 0..nodes {
            self.world.start(node);
            self.world.run_for(self.dice.time(Duration::ZERO, Duration::from_millis(100)));
        }
        self.world.run_for(SETTLE);
        let from = self.world.now;
        let until = from + trouble;
        self.add_clients(until);
        for (at, fault) in faults::plan(self.mood, nodes, from, until, &mut self.dice) {
            if until <= at {
                break;
            }
            self.world.run_until(at);
            fault.strike(&mut self.world, &mut self.tally);
        }
        self.world.run_until(until);
    }

    fn add_clients(&mut self, until: Instant) {
        let keys = (0..3 + self.dice.index(6)).map(|number| key_of(&format!("k{number}")));
        let keys: Vec<usize> = keys.map(|key| self.world.history.key(key)).collect();
        for number in 0..2 + self.dice.index(5) {
            let habits = self.habits(until, &keys);
            let manners = self.manners();
            let client = Client::new(number, self.world.hosts.len(), manners, Some(habits), self.world.seed);
            let client = self.world.add_client(client);
            self.world.poke(client);
        }
    }

    fn habits(&mut self, until: Instant, keys: &[usize]) -> Habits {
        const PERCENT: u32 = 10_000;
        let dice = &mut self.dice;
        Habits {
            until,
            think: Duration::from_millis(5 + dice.below(80)),
            keys: keys.to_vec(),
            put: (20 + dice.below(50) as u32) * PERCENT,
            remove: (10 + dice.below(40) as u32) * PERCENT,
            repeat: dice.below(30) as u32 * PERCENT,
            unique: dice.below(6) as u32 * PERCENT,
            wipe: if self.mood == Mood::Skewed { PERCENT / 2 } else { 0 },
            value_bytes_max: [100, 1_000, 9_900][dice.index(3)],
        }
    }

    fn manners(&mut self) -> Manners {
        let policies = [RetryPolicy::course_2016(), RetryPolicy::course_2019(), RetryPolicy::course_2021()];
        let needs_front_end = self.dice.chance(200_000) && self.config.reply_mode != ReplyMode::Direct;
        Manners {
            format: if self.dice.chance(300_000) { Format::Raw } else { Format::Protobuf },
            needs_front_end,
            policy: policies[self.dice.index(policies.len())].clone(),
        }
    }

    /// Mends everything and waits until all nodes are at rest; returns how long that took.
    fn rest(&mut self) -> Duration {
        let world = &mut self.world;
        world.network.heal();
        world.network.weather = Weather { jitter: Duration::from_millis(1), ..Weather::default() };
        for node in 0..world.hosts.len() {
            world.hosts[node].starved_by = Duration::ZERO;
            match world.hosts[node].state {
                State::Up => {}
                State::Paused => world.resume(node),
                State::Down => world.start(node),
            }
        }
        let rested_after = self.wait_for_rest();
        // The clients' last repeats, which may find a node that has just come back.
        self.world.run_for(REPEAT_WITHIN);
        self.wait_for_rest();
        rested_after
    }

    fn wait_for_rest(&mut self) -> Duration {
        const STEP: Duration = Duration::from_millis(50);
        let begun = self.world.now;
        loop {
            let restless = restless(&self.world);
            let waited = self.world.now.since(begun);
            if restless.is_empty() {
                return waited;
            }
            if REST_WITHIN <= waited {
                let story = restless.join("\n");
                self.violations.push(Violation { claim: "mended, the cluster comes to rest", story });
                return waited;
            }
            self.world.run_for(STEP);
        }
    }

    /// Reads every key through every node, and writes through every node.
    fn probe(&mut self) {
        self.probes_from = self.world.history.ops.len();
        let manners =
            Manners { format: Format::Protobuf, needs_front_end: false, policy: RetryPolicy::default() };
        let (nodes, number) = (self.world.hosts.len(), self.world.clients.len());
        let client = Client::new(number, nodes, manners, None, self.world.seed);
        let client = self.world.add_client(client);
        for key in 0..self.world.history.keys.len() {
            for node in 0..nodes {
                self.ask(client, key, Action::Get, node);
            }
        }
        for node in 0..nodes {
            let key = self.world.history.key(key_of(&format!("probe {node}")));
            let value = format!("probe {node} ").into_bytes();
            self.ask(client, key, Action::Put { value, version: 0 }, node);
            self.ask(client, key, Action::Get, (node + 1) % nodes);
        }
    }

    fn ask(&mut self, client: usize, key: usize, action: Action, node: usize) {
        let world = &mut self.world;
        let op = world.clients[client].begin(world.now, key, action, node, &mut world.history);
        world.poke(client);
        let begun = world.now;
        while !world.clients[client].is_idle() && world.now.since(begun) <= 10 * ANSWER_WITHIN {
            world.run_for(Duration::from_micros(500));
        }
        let seen = &world.history.ops[op].seen;
        let is_refused = matches!(seen, Seen::Nothing | Seen::Refused(_));
        if is_refused || ANSWER_WITHIN < world.now.since(begun) {
            let story = format!(
                "op {op} via n{node}: {seen:?} after {:?}\n{}",
                world.now.since(begun),
                checker::tell(&world.history, &world.hosts, key, &[op])
            );
            self.violations.push(Violation { claim: "mended, every request is answered", story });
        }
    }

    fn judge(mut self, rested_after: Duration) -> Run {
        for (node, report) in self.world.reports() {
            if !report.adds_up() {
                let story = format!("n{node}: {report:?}");
                self.violations.push(Violation { claim: "the loss ledger adds up", story });
            }
        }
        let claims = claims_of(self.mood, &self.config);
        let world = &self.world;
        let mut findings = checker::judge(&world.history, &world.hosts, claims, self.probes_from);
        findings.violations.append(&mut self.violations);
        Run {
            seed: world.seed,
            mood: self.mood,
            nodes: world.hosts.len(),
            findings,
            toll: world.network.toll,
            tally: self.tally,
            datagrams: world.datagrams,
            simulated: world.now.since(BEGIN),
            rested_after,
            trace_hash: world.trace_hash(),
        }
    }
}

/// What keeps the nodes from being at rest.
fn restless(world: &World) -> Vec<String> {
    let nodes = world.hosts.len();
    let is_restless = |report: &Report| {
        report.members_alive != nodes
            || report.catching_up
            || report.hints != 0
            || report.unsettled != 0
            || report.in_progress != 0
            || !report.adds_up()
    };
    let reports = world.reports();
    let restless = reports.iter().filter(|(_, report)| is_restless(report));
    restless.map(|(node, report)| format!("n{node}: {report:?}")).collect()
}

fn config_of(mood: Mood, dice: &mut Dice) -> Config {
    let mut config = Config { partitions_log2: 6, ..Config::default() };
    config.fan_out = match dice.below(10) {
        0 => FanOut::All,
        1 => FanOut::One,
        _ => FanOut::Adaptive,
    };
    config.reply_mode = match dice.below(10) {
        0 => ReplyMode::Proxy,
        1 => ReplyMode::Direct,
        _ => ReplyMode::Auto,
    };
    if mood != Mood::Skewed && dice.chance(100_000) {
        config.write_rule = WriteRule::Quorum;
        config.read_rule = ReadRule::Quorum;
    }
    config
}

fn claims_of(mood: Mood, config: &Config) -> Claims {
    let all_live = config.write_rule == WriteRule::AllLive;
    let calm = matches!(mood, Mood::Calm | Mood::Skewed);
    let keeps_memory = matches!(mood, Mood::Calm | Mood::Rough | Mood::Split | Mood::Pauses);
    Claims {
        fresh: calm,
        once: matches!(mood, Mood::Calm | Mood::Skewed | Mood::Rough | Mood::Pauses | Mood::Crashes),
        durable: matches!(mood, Mood::Calm | Mood::Rough | Mood::Pauses | Mood::Crashes),
        agree: keeps_memory,
        resume: (mood == Mood::Pauses && all_live).then(|| Duration::from_millis(config.fence_after_ms)),
        replicated: mood == Mood::Calm && all_live,
    }
}
