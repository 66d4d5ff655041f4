//! What goes wrong in a run, and when: a plan that follows from the seed.

use super::dice::Dice;
use super::network::Weather;
use super::world::World;
use crate::time::{Duration, Instant};

/// What kind of trouble a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mood {
    /// None: delays, duplicates and some reordering.
    Calm,
    /// As calm, but the clocks are seconds apart, and clients wipe the nodes.
    Skewed,
    /// Datagrams are lost, damaged, doubled and overtaken.
    Rough,
    /// The network splits, also in one direction only.
    Split,
    /// Processes are stopped and go on later; some are starved.
    Pauses,
    /// Processes die and start again with nothing.
    Crashes,
    /// All of it.
    Everything,
}

impl Mood {
    /// All moods.
    pub const ALL: [Self; 7] =
        [Self::Calm, Self::Skewed, Self::Rough, Self::Split, Self::Pauses, Self::Crashes, Self::Everything];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::Skewed => "skewed",
            Self::Rough => "rough",
            Self::Split => "split",
            Self::Pauses => "pauses",
            Self::Crashes => "crashes",
            Self::Everything => "everything",
        }
    }

    /// The weather of such a run.
    #[must_use]
    pub fn weather(self, dice: &mut Dice) -> Weather {
        const PERCENT: u64 = 10_000;
        let mut per_million = |most: u64| dice.below(most + 1) as u32;
        let mut weather = Weather {
            duplicate: per_million(3 * PERCENT),
            reorder: per_million(3 * PERCENT),
            ..Weather::default()
        };
        if matches!(self, Self::Rough | Self::Everything) {
            weather.loss = per_million(10 * PERCENT);
            weather.corrupt = per_million(PERCENT);
            weather.duplicate = per_million(10 * PERCENT);
            weather.reorder = per_million(20 * PERCENT);
        }
        let millis = |dice: &mut Dice, most| dice.time(Duration::ZERO, Duration::from_millis(most));
        weather.delay = Duration::from_micros(50) + millis(dice, 2);
        weather.jitter = millis(dice, 5);
        weather.reorder_by = millis(dice, if self == Self::Rough { 60 } else { 8 });
        weather
    }
}

/// Something that is done to the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGSTOP.
    Pause(usize),
    /// SIGCONT.
    Resume(usize),
    /// The process dies.
    Crash(usize),
    /// A new process.
    Start(usize),
    /// Its threads lose their core now and then, for up to this long.
    Starve(usize, Duration),
    /// Cuts between the two groups, in both directions or one.
    Split(Vec<usize>, Vec<usize>, bool),
    /// Joins what was cut.
    Join,
}

/// How often each kind was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Pauses.
    pub pauses: u64,
    /// Crashes.
    pub crashes: u64,
    /// Starved nodes.
    pub starved: u64,
    /// Partitions.
    pub splits: u64,
}

impl Fault {
    /// Does it.
    pub fn strike(&self, world: &mut World, tally: &mut Tally) {
        match self {
            Self::Pause(node) => {
                tally.pauses += 1;
                world.pause(*node);
            }
            Self::Resume(node) => world.resume(*node),
            Self::Crash(node) => {
                tally.crashes += 1;
                world.crash(*node);
            }
            Self::Start(node) => world.start(*node),
            Self::Starve(node, time) => {
                tally.starved += u64::from(!time.is_zero());
                world.hosts[*node].starved_by = *time;
            }
            Self::Split(some, others, both_ways) => {
                tally.splits += 1;
                world.partition(some, others, *both_ways);
            }
            Self::Join => world.network.heal(),
        }
    }
}

/// The faults of a run, in order of time.
#[must_use]
pub fn plan(
    mood: Mood,
    nodes: usize,
    from: Instant,
    until: Instant,
    dice: &mut Dice,
) -> Vec<(Instant, Fault)> {
    let mut plan = Vec::new();
    let all = mood == Mood::Everything;
    if all || mood == Mood::Pauses {
        for node in 0..nodes {
            plan_one_node(node, &mut plan, from, until, dice, false);
        }
        plan_starving(nodes, &mut plan, from, until, dice);
    }
    if all || mood == Mood::Crashes {
        plan_crashes(nodes, &mut plan, from, until, dice);
    }
    if all || mood == Mood::Split {
        plan_splits(nodes, &mut plan, from, until, dice);
    }
    // A stable sort: what was planned first happens first.
    plan.sort_by_key(|(at, _)| *at);
    plan
}

type Faults = Vec<(Instant, Fault)>;

/// Some nodes are paused more often, some never.
fn plan_one_node(
    node: usize,
    plan: &mut Faults,
    from: Instant,
    until: Instant,
    dice: &mut Dice,
    crash: bool,
) {
    const SPARED: u32 = 400_000;
    const SHORT: u32 = 500_000;
    if dice.chance(SPARED) {
        return;
    }
    let mut at = from + dice.time(Duration::ZERO, Duration::from_secs(4));
    while at < until {
        let longest = if dice.chance(SHORT) { Duration::from_millis(900) } else { Duration::from_secs(6) };
        let back = at + dice.time(Duration::from_millis(50), longest);
        if crash {
            plan.push((at, Fault::Crash(node)));
            plan.push((back, Fault::Start(node)));
        } else {
            plan.push((at, Fault::Pause(node)));
            plan.push((back, Fault::Resume(node)));
        }
        at = back + dice.time(Duration::from_millis(200), Duration::from_secs(8));
    }
}

fn plan_starving(nodes: usize, plan: &mut Faults, from: Instant, until: Instant, dice: &mut Dice) {
    let node = dice.index(nodes);
    let by = dice.time(Duration::from_millis(20), Duration::from_millis(800));
    let at = from + dice.time(Duration::ZERO, until.since(from));
    plan.push((at, Fault::Starve(node, by)));
}

/// One node at a time, or several at once.
fn plan_crashes(nodes: usize, plan: &mut Faults, from: Instant, until: Instant, dice: &mut Dice) {
    const AT_ONCE: u32 = 400_000;
    if dice.chance(AT_ONCE) {
        for node in 0..nodes {
            plan_one_node(node, plan, from, until, dice, true);
        }
        return;
    }
    let mut at = from + dice.time(Duration::ZERO, Duration::from_secs(3));
    while at < until {
        let node = dice.index(nodes);
        let back = at + dice.time(Duration::from_millis(50), Duration::from_secs(5));
        plan.push((at, Fault::Crash(node)));
        plan.push((back, Fault::Start(node)));
        at = back + dice.time(Duration::from_millis(500), Duration::from_secs(4));
    }
}

fn plan_splits(nodes: usize, plan: &mut Faults, from: Instant, until: Instant, dice: &mut Dice) {
    const ONE_WAY: u32 = 300_000;
    let mut at = from + dice.time(Duration::ZERO, Duration::from_secs(3));
    while at < until {
        let mut order: Vec<usize> = (0..nodes).collect();
        for last in (1..nodes).rev() {
            order.swap(last, dice.index(last + 1));
        }
        let others = order.split_off(dice.index(nodes.max(2) - 1) + 1);
        plan.push((at, Fault::Split(order, others, !dice.chance(ONE_WAY))));
        at = at + dice.time(Duration::from_millis(200), Duration::from_secs(6));
        plan.push((at, Fault::Join));
        at = at + dice.time(Duration::from_millis(200), Duration::from_secs(4));
    }
}
