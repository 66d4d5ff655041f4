//! What goes wrong in a run, and when: a plan that follows from the seed.

use super::host::State;
use super::network::quiet;
use super::world::World;
use crate::time::{Duration, Instant};
use violet_link::{Dice, Jitter, Loss, Settings};

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
    /// Nodes are away for so long that the others do without them, and then come back.
    Forget,
    /// Nodes join and leave, and crash in the middle of it.
    Churn,
    /// As churn, but the next change waits until the cluster has come to terms with the last one: nothing
    /// may be lost.
    Rolling,
    /// Keys are removed all the time and the marks of that are kept for a short time only, while nodes are
    /// away.
    Tombstones,
    /// All of it.
    Everything,
    /// All are far from each other, and a few datagrams are lost on the way.
    Far,
    /// What a scenario file says; not chosen by a seed.
    Timeline,
}

impl Mood {
    /// All moods that a seed may choose.
    pub const ALL: [Self; 12] = [
        Self::Calm,
        Self::Skewed,
        Self::Rough,
        Self::Split,
        Self::Pauses,
        Self::Crashes,
        Self::Forget,
        Self::Churn,
        Self::Rolling,
        Self::Tombstones,
        Self::Everything,
        Self::Far,
    ];

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
            Self::Forget => "forget",
            Self::Churn => "churn",
            Self::Rolling => "rolling",
            Self::Tombstones => "tombstones",
            Self::Everything => "everything",
            Self::Far => "far",
            Self::Timeline => "timeline",
        }
    }

    /// Trouble of this kind shows only after some time.
    #[must_use]
    pub fn trouble_min(self) -> Duration {
        Duration::from_secs(match self {
            Self::Timeline => 0,
            Self::Calm | Self::Skewed | Self::Rough | Self::Split | Self::Pauses | Self::Crashes => 1,
            Self::Far => 10,
            Self::Everything => 15,
            Self::Churn | Self::Rolling => 20,
            Self::Forget => 30,
            Self::Tombstones => 60,
        })
    }

    /// Whether machines beside the first members take part.
    #[must_use]
    pub fn has_spares(self) -> bool {
        matches!(self, Self::Churn | Self::Rolling | Self::Everything)
    }

    /// What the links of such a run are like.
    #[must_use]
    pub fn links(self, dice: &mut Dice) -> Settings {
        const PERCENT: u64 = 10_000;
        let mut per_million = |most: u64| dice.below(most + 1) as u32;
        let mut links =
            Settings { duplicate: per_million(3 * PERCENT), reorder: per_million(3 * PERCENT), ..quiet() };
        if matches!(self, Self::Rough | Self::Everything) {
            links.loss = Loss::Each(per_million(10 * PERCENT));
            links.corrupt = per_million(PERCENT);
            links.duplicate = per_million(10 * PERCENT);
            links.reorder = per_million(20 * PERCENT);
        }
        let millis = |dice: &mut Dice, most| dice.time(Duration::ZERO, Duration::from_millis(most));
        links.delay = Duration::from_micros(50) + millis(dice, 2);
        links.jitter = Jitter::Uniform(millis(dice, 5));
        links.reorder_by = millis(dice, if self == Self::Rough { 60 } else { 8 });
        if self == Self::Far {
            links.loss = Loss::Each(dice.below(PERCENT + 1) as u32);
            links.delay = dice.time(Duration::from_millis(20), Duration::from_millis(165));
        }
        links
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
    Heal,
    /// A machine without a process becomes a member, a process leaves or dies: what is possible then, by
    /// these dice.
    Change(u64),
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
    /// Nodes that joined.
    pub joins: u64,
    /// Planned leaves.
    pub leaves: u64,
}

impl Fault {
    /// Does it; returns what follows from it, and after what time.
    pub fn strike(&self, world: &mut World, tally: &mut Tally) -> Vec<(Duration, Fault)> {
        match self {
            Self::Pause(node) => {
                tally.pauses += 1;
                world.pause(*node);
            }
            Self::Resume(node) => world.resume(*node),
            Self::Crash(node) => {
                if world.hosts[*node].state != State::Down {
                    tally.crashes += 1;
                    world.crash(*node);
                }
            }
            // Who has left in the meantime stays away.
            Self::Start(node) => {
                if !world.hosts[*node].is_gone && world.hosts[*node].state == State::Down {
                    revive(world, *node);
                }
            }
            Self::Starve(node, time) => {
                tally.starved += u64::from(!time.is_zero());
                world.starve(*node, *time);
            }
            Self::Split(some, others, both_ways) => {
                tally.splits += 1;
                world.partition(some, others, *both_ways);
            }
            Self::Heal => world.heal(),
            Self::Change(seed) => return change(world, &mut Dice::new(*seed), tally),
        }
        Vec::new()
    }
}

/// Starts a process on a machine: with the list that it has, if anyone of it is there, or else with the
/// name of somebody who is.
pub fn revive(world: &mut World, node: usize) {
    let is_up = |other: usize| other != node && world.hosts[other].state == State::Up;
    let is_listed = |other: usize| world.hosts[node].members.contains(&world.hosts[other].address);
    let up: Vec<usize> = (0..world.hosts.len()).filter(|other| is_up(*other)).collect();
    match up.first() {
        Some(via) if !up.iter().any(|other| is_listed(*other)) => world.join(node, *via),
        Some(_) | None => world.start(node),
    }
}

/// Fewer nodes than this, those that are leaving not counted, are not reduced further.
const LIVING_MIN: usize = 4;

fn change(world: &mut World, dice: &mut Dice, tally: &mut Tally) -> Vec<(Duration, Fault)> {
    const MIDWAY: u32 = 350_000;
    const JOIN: u64 = 45;
    const LEAVE: u64 = 70;
    let of_state = |state: State| -> Vec<usize> {
        (0..world.hosts.len()).filter(|node| world.hosts[*node].state == state).collect()
    };
    let (up, down) = (of_state(State::Up), of_state(State::Down));
    let shortly = |dice: &mut Dice| dice.time(Duration::from_millis(1), Duration::from_millis(2_500));
    let roll = dice.below(100);
    let staying = up.iter().filter(|node| !world.hosts[**node].is_leaving()).count();
    let may_go = LIVING_MIN <= staying;
    let (joiner, via, other) = (pick(dice, &down), pick(dice, &up), pick(dice, &up));
    let mut after = Vec::new();
    match (joiner, via, other) {
        (Some(joiner), Some(via), other) if roll < JOIN || !may_go => {
            tally.joins += 1;
            world.join(joiner, via);
            if dice.chance(MIDWAY) {
                after.push((shortly(dice), Fault::Crash(joiner)));
            } else if let Some(source) = other.filter(|_| may_go && dice.chance(MIDWAY)) {
                after.push((shortly(dice), Fault::Crash(source)));
            }
        }
        (_, Some(leaver), _) if roll < LEAVE && may_go => {
            tally.leaves += u64::from(world.leave(leaver));
            if dice.chance(MIDWAY) {
                after.push((shortly(dice), Fault::Crash(leaver)));
            }
        }
        (_, Some(victim), _) if may_go => {
            tally.crashes += 1;
            world.crash(victim);
            // Some never come back by themselves.
            if dice.chance(600_000) {
                let away = dice.time(Duration::from_millis(50), Duration::from_secs(9));
                after.push((away, Fault::Start(victim)));
            }
        }
        _ => {}
    }
    after
}

fn pick(dice: &mut Dice, nodes: &[usize]) -> Option<usize> {
    nodes.get(dice.index(nodes.len().max(1))).copied()
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
    let briefly = Duration::from_secs(6);
    if all || mood == Mood::Pauses {
        for node in 0..nodes {
            plan_one_node(node, &mut plan, (from, until), briefly, dice, false);
        }
        plan_starving(nodes, &mut plan, from, until, dice);
    }
    if all || mood == Mood::Crashes {
        plan_crashes(nodes, &mut plan, from, until, dice);
    }
    if all || mood == Mood::Split {
        plan_splits(nodes, &mut plan, (from, until), briefly, dice);
    }
    if matches!(mood, Mood::Forget | Mood::Tombstones) {
        plan_absences(nodes, &mut plan, (from, until), dice);
    }
    if all || mood == Mood::Churn {
        plan_changes(&mut plan, from, until, dice);
    }
    // A stable sort: what was planned first happens first.
    plan.sort_by_key(|(at, _)| *at);
    plan
}

type Faults = Vec<(Instant, Fault)>;

/// Nodes are away for long, one at a time or several at once, stopped or dead or cut off.
fn plan_absences(nodes: usize, plan: &mut Faults, (from, until): (Instant, Instant), dice: &mut Dice) {
    let longest = until.since(from) / 4 + Duration::from_secs(dice.below(20));
    match dice.below(4) {
        0 => plan_splits(nodes, plan, (from, until), longest, dice),
        1 => {
            for node in 0..nodes {
                let crash = dice.chance(500_000);
                plan_one_node(node, plan, (from, until), longest, dice, crash);
            }
        }
        _ => {
            let mut at = from + dice.time(Duration::ZERO, Duration::from_secs(3));
            while at < until {
                let node = dice.index(nodes);
                let back = at + dice.time(Duration::from_secs(2), longest);
                let (away, here) = if dice.chance(500_000) {
                    (Fault::Crash(node), Fault::Start(node))
                } else {
                    (Fault::Pause(node), Fault::Resume(node))
                };
                plan.extend([(at, away), (back, here)]);
                // Sometimes the next one goes before this one is back.
                let rest = dice.time(Duration::ZERO, Duration::from_secs(6));
                at = if dice.chance(300_000) { at + rest } else { back + rest };
            }
        }
    }
}

fn plan_changes(plan: &mut Faults, from: Instant, until: Instant, dice: &mut Dice) {
    let slowest = Duration::from_millis(500 + dice.below(8_000));
    let mut at = from + dice.time(Duration::ZERO, Duration::from_secs(2));
    while at < until {
        plan.push((at, Fault::Change(dice.roll())));
        at = at + dice.time(Duration::from_millis(100), slowest);
    }
}

/// Some nodes are away more often, some never.
fn plan_one_node(
    node: usize,
    plan: &mut Faults,
    (from, until): (Instant, Instant),
    longest: Duration,
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
        let longest = if dice.chance(SHORT) { Duration::from_millis(900) } else { longest };
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
            plan_one_node(node, plan, (from, until), Duration::from_secs(6), dice, true);
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

fn plan_splits(
    nodes: usize,
    plan: &mut Faults,
    (from, until): (Instant, Instant),
    longest: Duration,
    dice: &mut Dice,
) {
    const ONE_WAY: u32 = 300_000;
    let mut at = from + dice.time(Duration::ZERO, Duration::from_secs(3));
    while at < until {
        let mut order: Vec<usize> = (0..nodes).collect();
        for last in (1..nodes).rev() {
            order.swap(last, dice.index(last + 1));
        }
        let others = order.split_off(dice.index(nodes.max(2) - 1) + 1);
        plan.push((at, Fault::Split(order, others, !dice.chance(ONE_WAY))));
        at = at + dice.time(Duration::from_millis(200), longest);
        plan.push((at, Fault::Heal));
        at = at + dice.time(Duration::from_millis(200), Duration::from_secs(4));
    }
}
