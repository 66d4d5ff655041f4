//! Swarm runs: one seed, one run, everything in it chosen by the seed (TigerBeetle's VOPR).
//!
//! A run starts a cluster, lets clients work while things go wrong, mends everything, waits for the
//! nodes to come to rest, looks at what they hold, reads every key through every node, and has it all
//! judged. A failure prints the claim, the key's history and the command that repeats it.

use super::Bugs;
use super::census;
use super::checker::{self, Claims, Findings, Violation};
use super::client::{Client, Habits, Manners, REPEAT_WITHIN, key_of};
use super::faults::{self, Fault, Mood, Tally};
use super::history::{Action, OpId, Seen};
use super::host::{Plan, State};
use super::network::quiet;
use super::played::Played;
use super::retell;
use super::size::Size;
use super::world::{BEGIN, World};
use crate::config::{Config, FanOut, ReadRule, ReplyMode, WriteRule};
use crate::time::{Duration, Instant};
use std::collections::BTreeMap;
use std::sync::Arc;
use violet_client::{Format, RetryPolicy};
use violet_link::{Counts, Dice, Jitter, Settings};

/// Time that a new cluster gets before clients start.
const SETTLE: Duration = Duration::from_millis(1_500);
/// The same when messages between them take as long as in the wide area.
const SETTLE_FAR: Duration = Duration::from_secs(10);
/// After everything is mended the nodes must come to rest within this time: owners compare what they
/// hold every ten seconds, and a difference may need to go round.
const REST_WITHIN: Duration = Duration::from_secs(60);
/// Marks of removals go at most this long after their grace: owners must have agreed, with a margin.
const TOMBSTONES_WITHIN: Duration = Duration::from_secs(40);
/// Clients go on for this long after everything was mended.
const AFTERMATH: Duration = Duration::from_secs(9);
/// So long after it was mended no read may miss anything: members that were called down are back, and
/// who was cut off without knowing it has been given its hints.
const MENDED_WITHIN: Duration = Duration::from_secs(4);
/// Final reads, at most; with more keys and nodes not every key is read through every node.
const PROBES_MAX: usize = 20_000;
/// After that every request is answered within this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The first seed.
    pub seed: u64,
    /// How many nodes; chosen by the seed if not given.
    pub size: Option<Size>,
    /// The kind of trouble; chosen by the seed if not given.
    pub mood: Option<Mood>,
    /// The scenario file to be played; it decides on nodes, links and trouble.
    pub played: Option<Arc<Played>>,
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
    pub counts: Counts,
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
    /// A failed run as the beginning of a scenario file.
    pub script: String,
}

/// Runs one seed.
#[must_use]
pub fn run(options: &Options) -> Run {
    let (mood, nodes, dice) = cast(options);
    let mut stage = Stage::new(options, mood, nodes, dice);
    let trouble = options.played.as_ref().map_or(options.trouble, |played| played.time());
    stage.suffer(trouble.max(mood.trouble_min()));
    let rested_after = stage.rest();
    stage.look();
    stage.probe();
    stage.judge(rested_after)
}

/// The kind of trouble and the number of nodes.
fn cast(options: &Options) -> (Mood, usize, Dice) {
    let mut dice = Dice::of_part(options.seed, "swarm", 0);
    if let Some(played) = &options.played {
        return (Mood::Timeline, played.nodes(), dice);
    }
    let mood = options.mood.unwrap_or(Mood::ALL[dice.index(Mood::ALL.len())]);
    let nodes = options.size.map(|size| size.of_run(options.seed));
    let nodes = nodes.unwrap_or(3 + dice.index(6));
    (mood, nodes, dice)
}

/// What is left of a run that has panicked.
#[must_use]
pub fn panicked(options: &Options, story: String) -> Run {
    let (mood, nodes, _) = cast(options);
    let violations = vec![Violation { claim: "nothing panics", story }];
    Run {
        seed: options.seed,
        mood,
        nodes,
        findings: Findings { violations, ..Findings::default() },
        counts: Counts::default(),
        tally: Tally::default(),
        datagrams: 0,
        simulated: Duration::ZERO,
        rested_after: Duration::ZERO,
        trace_hash: 0,
        script: String::new(),
    }
}

struct Stage {
    world: World,
    mood: Mood,
    played: Option<Arc<Played>>,
    /// The members that are there from the first.
    first: usize,
    dice: Dice,
    config: Config,
    tally: Tally,
    violations: Vec<Violation>,
    probes_from: OpId,
    mended_at: Instant,
}

impl Stage {
    fn new(options: &Options, mood: Mood, nodes: usize, mut dice: Dice) -> Self {
        let mut config = config_of(mood, &mut dice);
        if let Some(played) = &options.played {
            config.gossip = played.gossip();
        }
        let links = mood.links(&mut dice);
        let skew = |dice: &mut Dice| {
            if mood == Mood::Skewed { dice.below(10_000_000_000) as i64 - 5_000_000_000 } else { 0 }
        };
        let spares = if mood.has_spares() { 1 + dice.index(2 + nodes / 3) } else { 0 };
        let plans = (0..nodes + spares).map(|_| Plan {
            config: config.clone(),
            skew_nanos: skew(&mut dice),
            bugs: options.bugs,
        });
        let plans = plans.collect();
        let mut world = World::new(options.seed, plans, nodes, links);
        world.is_traced = options.is_traced;
        if let Some(played) = &options.played {
            played.lay(&mut world);
        }
        Self {
            world,
            mood,
            played: options.played.clone(),
            first: nodes,
            dice,
            config,
            tally: Tally::default(),
            violations: Vec::new(),
            probes_from: OpId::MAX,
            mended_at: Instant::FAR,
        }
    }

    /// Clients work while things go wrong.
    fn suffer(&mut self, trouble: Duration) {
        for node in 0..self.first {
            self.world.start(node);
            self.world.run_for(self.dice.time(Duration::ZERO, Duration::from_millis(100)));
        }
        self.world.run_for(if self.played.is_some() { SETTLE_FAR } else { SETTLE });
        let from = self.world.now;
        let until = from + trouble;
        self.add_clients(until + self.aftermath());
        if let Some(played) = self.played.clone() {
            self.violations.extend(played.play(&mut self.world, &mut self.tally));
        }
        if self.mood == Mood::Rolling {
            self.roll(until);
        }
        let faults = faults::plan(self.mood, self.first, from, until, &mut self.dice);
        // By moment, and then in the order in which they were planned.
        let mut faults: BTreeMap<(Instant, usize), Fault> =
            faults.into_iter().enumerate().map(|(number, (at, fault))| ((at, number), fault)).collect();
        let mut count = faults.len();
        while let Some(((at, _), fault)) = faults.pop_first().filter(|((at, _), _)| *at < until) {
            self.world.run_until(at);
            for (after, next) in fault.strike(&mut self.world, &mut self.tally) {
                faults.insert((at + after, count), next);
                count += 1;
            }
        }
        self.world.run_until(until);
    }

    /// For how long clients go on when the trouble is over.
    fn aftermath(&self) -> Duration {
        match self.mood {
            Mood::Calm | Mood::Skewed | Mood::Crashes | Mood::Churn | Mood::Rolling => Duration::ZERO,
            Mood::Rough
            | Mood::Split
            | Mood::Pauses
            | Mood::Forget
            | Mood::Tombstones
            | Mood::Everything
            | Mood::Far => AFTERMATH,
            Mood::Timeline => AFTERMATH + self.far() * 10,
        }
    }

    /// One change after the other, each when the cluster has come to terms with the last one.
    fn roll(&mut self, until: Instant) {
        while self.world.now < until {
            let follows = Fault::Change(self.dice.roll()).strike(&mut self.world, &mut self.tally);
            // Who crashes while something else changes may have been needed; here nobody does.
            let starts = follows.into_iter().filter(|(_, fault)| matches!(fault, Fault::Start(_)));
            for (after, fault) in starts {
                self.world.run_for(after);
                fault.strike(&mut self.world, &mut self.tally);
            }
            let begun = self.world.now;
            while !census::is_calm(&self.world) {
                if REST_WITHIN <= self.world.now.since(begun) {
                    let story = census::restless(&self.world).join("\n");
                    self.violations
                        .push(Violation { claim: "the cluster comes to terms with a change", story });
                    return;
                }
                self.world.run_for(Duration::from_millis(100));
            }
        }
    }

    /// What one round trip may take in a scenario's network.
    fn far(&self) -> Duration {
        self.played.as_ref().map_or(Duration::ZERO, |played| played.round_trip_max())
    }

    fn add_clients(&mut self, until: Instant) {
        let count = match self.mood {
            Mood::Forget | Mood::Churn | Mood::Rolling => 30 + self.dice.index(120),
            Mood::Tombstones => 8 + self.dice.index(40),
            Mood::Everything => 3 + self.dice.index(60),
            Mood::Split | Mood::Timeline => 3 + self.dice.index(30),
            Mood::Calm | Mood::Skewed | Mood::Rough | Mood::Pauses | Mood::Crashes | Mood::Far => {
                3 + self.dice.index(6)
            }
        };
        let keys = (0..count).map(|number| key_of(&format!("k{number}")));
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
            // Longer runs are not to cost more.
            think: Duration::from_millis(5 + dice.below(80))
                * (self.mood.trouble_min().as_secs() / 8 + 1) as u32,
            keys: keys.to_vec(),
            put: (20 + dice.below(50) as u32) * PERCENT,
            remove: (if self.mood == Mood::Tombstones { 60 } else { 10 } + dice.below(40) as u32) * PERCENT,
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
        self.mended_at = self.world.now;
        let world = &mut self.world;
        world.heal();
        // A scenario's network stays as far as it is; what was done to it is undone.
        world.network.links.reset();
        if self.played.is_none() {
            let jitter = Jitter::Uniform(Duration::from_millis(1));
            world.network.links.set_base(Settings { jitter, ..quiet() });
        }
        for node in 0..world.hosts.len() {
            world.hosts[node].starved_by = Duration::ZERO;
            if world.hosts[node].state == State::Paused {
                world.resume(node);
            }
        }
        for node in 0..world.hosts.len() {
            let host = &world.hosts[node];
            if host.state == State::Down && 0 < host.births && !host.is_gone {
                faults::revive(world, node);
            }
        }
        let aftermath = self.aftermath();
        self.world.run_for(aftermath);
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
            let restless = census::restless(&self.world);
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

    /// What the nodes hold is what was acknowledged; marks of removals do not stay for ever.
    fn look(&mut self) {
        let grace = Duration::from_secs(self.config.hint_keep_s);
        let World { history, hosts, now, .. } = &self.world;
        self.violations.extend(census::judge(history, hosts, *now, grace));
        for id in &history.lost_by_leaving {
            let key = history.ops[*id].key;
            let story = format!("op {id}\n{}", checker::tell(history, hosts, key, &[*id]));
            self.violations.push(Violation { claim: "a planned leave loses nothing", story });
        }
        let lost = history.ops.iter().position(|op| op.lost_at.is_some());
        if let Some(id) = lost.filter(|_| self.mood == Mood::Rolling) {
            let story = checker::tell(history, hosts, history.ops[id].key, &[id]);
            self.violations.push(Violation { claim: "one failure at a time loses nothing", story });
        }
        if self.mood != Mood::Tombstones {
            return;
        }
        self.world.run_for(grace + TOMBSTONES_WITHIN);
        let left = census::tombstones(&self.world.hosts);
        if !left.is_empty() {
            let story = format!("(node, count): {left:?}");
            self.violations.push(Violation { claim: "marks of removals go in the end", story });
        }
        let World { history, hosts, now, .. } = &self.world;
        self.violations.extend(census::judge(history, hosts, *now, grace));
    }

    /// Reads every key through every node, and writes through every node.
    fn probe(&mut self) {
        self.probes_from = self.world.history.ops.len();
        let manners =
            Manners { format: Format::Protobuf, needs_front_end: false, policy: RetryPolicy::default() };
        let (nodes, number) = (self.world.living(), self.world.clients.len());
        let client = Client::new(number, self.first, manners, None, self.world.seed);
        let client = self.world.add_client(client);
        let keys = self.world.history.keys.len();
        let through = (PROBES_MAX / keys.max(1)).clamp(1, nodes.len());
        for key in 0..keys {
            let held = census::newest_value(&self.world.hosts, &self.world.history.keys[key]);
            for number in 0..through {
                let op = self.ask(client, key, Action::Get, nodes[(key + number) % nodes.len()]);
                self.compare(op, held.as_deref());
            }
        }
        for (place, node) in nodes.iter().enumerate() {
            let key = self.world.history.key(key_of(&format!("probe {node}")));
            let value = format!("probe {node} ").into_bytes();
            self.ask(client, key, Action::Put { value, version: 0 }, *node);
            self.ask(client, key, Action::Get, nodes[(place + 1) % nodes.len()]);
        }
    }

    /// A final read returns the newest that any node holds.
    fn compare(&mut self, op: OpId, held: Option<&[u8]>) {
        let history = &self.world.history;
        let value = match &history.ops[op].seen {
            Seen::Found(put) => match &history.ops[*put].action {
                Action::Put { value, .. } => Some(value.as_slice()),
                Action::Get | Action::Remove | Action::Wipe { .. } => None,
            },
            Seen::Missing => None,
            // That is another violation.
            Seen::Nothing | Seen::Done | Seen::Invented(_) | Seen::Refused(_) => return,
        };
        if value != held {
            let story = checker::tell(history, &self.world.hosts, history.ops[op].key, &[op]);
            self.violations.push(Violation { claim: "at rest a read returns what is held", story });
        }
    }

    fn ask(&mut self, client: usize, key: usize, action: Action, node: usize) -> OpId {
        // To the node, from there to the holders, and perhaps on to others.
        let answer_within = ANSWER_WITHIN + 4 * self.far();
        let world = &mut self.world;
        let op = world.clients[client].begin(world.now, key, action, node, &mut world.history);
        world.poke(client);
        let begun = world.now;
        while !world.clients[client].is_idle() && world.now.since(begun) <= 10 * answer_within {
            world.run_for(Duration::from_micros(500));
        }
        let seen = &world.history.ops[op].seen;
        let is_refused = matches!(seen, Seen::Nothing | Seen::Refused(_));
        if is_refused || answer_within < world.now.since(begun) {
            let story = format!(
                "op {op} via n{node}: {seen:?} after {:?}\n{}",
                world.now.since(begun),
                checker::tell(&world.history, &world.hosts, key, &[op])
            );
            self.violations.push(Violation { claim: "mended, every request is answered", story });
        }
        op
    }

    fn judge(mut self, rested_after: Duration) -> Run {
        for (node, report) in self.world.reports() {
            if !report.adds_up() {
                let story = format!("n{node}: {report:?}");
                self.violations.push(Violation { claim: "the loss ledger adds up", story });
            }
        }
        let mut claims = claims_of(self.mood, &self.config, &self.tally);
        claims.mended_from = Some(self.mended_at + MENDED_WITHIN + self.far() * 10);
        let world = &self.world;
        let mut findings = checker::judge(&world.history, &world.hosts, claims, self.probes_from);
        // What the simulator saw itself explains more than what clients saw of it.
        self.violations.append(&mut findings.violations);
        findings.violations = self.violations;
        let key = findings.violations.iter().find_map(|violation| key_in(&violation.story));
        // A scenario file tells its story itself.
        let key = key.filter(|_| self.played.is_none());
        let script = key.map(|key| retell::script(&self.world, self.first, &self.config, key));
        let script = script.unwrap_or_default();
        Run {
            seed: world.seed,
            mood: self.mood,
            nodes: self.first,
            findings,
            counts: world.network.counts(),
            tally: self.tally,
            datagrams: world.datagrams,
            simulated: world.now.since(BEGIN),
            rested_after,
            trace_hash: world.trace_hash(),
            script,
        }
    }
}

/// The key that a story is about.
fn key_in(story: &str) -> Option<&str> {
    story.strip_prefix("key ")?.split(':').next()
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
    match mood {
        Mood::Forget | Mood::Churn => config.forget_after_ms = 2_000 + dice.below(3_000),
        Mood::Rolling => config.forget_after_ms = 2_000 + dice.below(8_000),
        Mood::Tombstones => {
            config.hint_keep_s = 10;
            config.forget_after_ms = if dice.chance(500_000) { 30_000 } else { 3_000 };
        }
        Mood::Everything => {
            config.forget_after_ms = [1_000, 4_000, 30_000][dice.index(3)];
            config.hint_keep_s = [10, 3_600][dice.index(2)];
        }
        Mood::Calm
        | Mood::Skewed
        | Mood::Rough
        | Mood::Split
        | Mood::Pauses
        | Mood::Crashes
        | Mood::Far
        | Mood::Timeline => {}
    }
    if mood != Mood::Skewed && dice.chance(100_000) {
        config.write_rule = WriteRule::Quorum;
        config.read_rule = ReadRule::Quorum;
    }
    config
}

/// A cut that lasts longer is noticed by those who are cut off: three times `suspect-after-ms`, the longest round trip, and
/// what it takes to look.
const CUT_NOTICED_AFTER: Duration = Duration::from_millis(1_800);

/// What a run has to keep. Not promised: that both sides of a split see each other's writes.
fn claims_of(mood: Mood, config: &Config, tally: &Tally) -> Claims {
    let all_live = config.write_rule == WriteRule::AllLive;
    let calm = matches!(mood, Mood::Calm | Mood::Skewed);
    // Without a cut a scenario is no worse than those.
    let is_whole = mood == Mood::Timeline && tally.splits == 0;
    let brief = is_whole || matches!(mood, Mood::Rough | Mood::Pauses | Mood::Crashes | Mood::Far);
    Claims {
        fresh: calm,
        once: calm || brief,
        kept: match mood {
            _ if !all_live || 0 < tally.splits => None,
            Mood::Calm | Mood::Skewed | Mood::Rough | Mood::Pauses | Mood::Crashes | Mood::Far => {
                Some(Duration::ZERO)
            }
            Mood::Forget | Mood::Churn | Mood::Rolling | Mood::Tombstones => Some(Duration::ZERO),
            Mood::Timeline => Some(Duration::ZERO),
            Mood::Split | Mood::Everything => None,
        },
        mended_from: None,
        durable: calm || brief || matches!(mood, Mood::Churn | Mood::Rolling),
        wiped: mood == Mood::Skewed,
        resume: (mood == Mood::Pauses && all_live).then(|| Duration::from_millis(config.fence_after_ms)),
        rejoined: (matches!(mood, Mood::Split | Mood::Timeline) && all_live).then_some(CUT_NOTICED_AFTER),
        replicated: mood == Mood::Calm && all_live,
    }
}
