//! One bad node among fifteen: what it costs those who have nothing to do with it.
//!
//! The same question as `endure bad-node` asks real processes, without the noise of a machine: here only what
//! the nodes do to each other takes time. Clients stay with one node each, and a request counts to one of three shares:
//! sent to the bad node, for a key that it holds, or neither.

use super::Bugs;
use super::client::{Client, Manners, key_of};
use super::history::Action;
use super::host::Plan;
use super::network::{Place, quiet};
use super::world::World;
use crate::config::Config;
use crate::metrics::Metric;
use crate::time::{Duration, Instant};
use violet_client::{Format, RetryPolicy};
use violet_link::Dice;

const NODES: usize = 15;
const BAD: usize = 7;
const CLIENTS_PER_NODE: usize = 2;
const KEYS: usize = 300;
const REST: Duration = Duration::from_millis(10);
/// How long it stands still and runs, in turn.
const HALF_PERIOD: Duration = Duration::from_millis(10);
/// Time that the others get to get over it, and how long is measured then.
const GET_OVER_IT: Duration = Duration::from_secs(10);
const MEASURED: Duration = Duration::from_secs(6);

/// In which way the node is bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Healthy,
    Delay,
    Loss,
    /// It stands still for a while, and runs for as long, in turn.
    HalfStopped,
}

/// What was measured.
#[derive(Debug)]
struct Outcome {
    answered: usize,
    /// The 99th percentile of the requests that have nothing to do with the bad node, and of those to others for
    /// keys that it holds.
    others_p99: Duration,
    its_keys_p99: Duration,
    hedged: u64,
}

struct Load {
    world: World,
    clients: Vec<usize>,
    rests_until: Vec<Instant>,
    dice: Dice,
    stopped: bool,
    turns_at: Instant,
}

impl Load {
    fn start(way: Way) -> Self {
        let flag = |name: &str| (name == "partitions-log2").then(|| "8".to_owned());
        let config = Config::load(None, |_| None, flag).expect("the settings are allowed");
        let plan = || Plan { config: config.clone(), skew_nanos: 0, bugs: Bugs::default() };
        let mut world = World::new(3, (0..NODES).map(|_| plan()).collect(), NODES, quiet());
        (0..NODES).for_each(|node| world.start(node));
        world.run_for(Duration::from_secs(2));
        for number in 0..KEYS {
            world.history.key(key_of(&format!("k{number}")));
        }
        let manners =
            Manners { format: Format::Protobuf, needs_front_end: false, policy: RetryPolicy::default() };
        let clients: Vec<usize> = (0..NODES * CLIENTS_PER_NODE)
            .map(|number| world.add_client(Client::new(number, NODES, manners.clone(), None, world.seed)))
            .collect();
        let now = world.now;
        let rests_until = vec![now; clients.len()];
        let mut load =
            Self { world, clients, rests_until, dice: Dice::new(5), stopped: false, turns_at: now };
        load.run(Duration::from_secs(3), Way::Healthy);
        let change = match way {
            Way::Delay => Some("delay=300ms"),
            Way::Loss => Some("loss=30%"),
            Way::Healthy | Way::HalfStopped => None,
        };
        if let Some(change) = change {
            load.world.network.worsen(Place::Node(BAD), change).expect("it is allowed");
        }
        load
    }

    fn run(&mut self, time: Duration, way: Way) {
        let end = self.world.now + time;
        while self.world.now < end {
            self.world.run_for(Duration::from_millis(1));
            let now = self.world.now;
            if way == Way::HalfStopped && self.turns_at <= now {
                self.stopped = !self.stopped;
                if self.stopped {
                    self.world.pause(BAD)
                } else {
                    self.world.resume(BAD)
                }
                self.turns_at = now + HALF_PERIOD;
            }
            for place in 0..self.clients.len() {
                self.give_work(place, now);
            }
        }
    }

    /// An idle client that has rested asks something new of its node.
    fn give_work(&mut self, place: usize, now: Instant) {
        let client = self.clients[place];
        if !self.world.clients[client].is_idle() {
            self.rests_until[place] = now + REST;
        } else if self.rests_until[place] <= now {
            let key = self.dice.index(KEYS);
            let action = match self.dice.below(100) {
                0..40 => Action::Get,
                40..52 => Action::Remove,
                _ => Action::Put { value: self.dice.roll().to_le_bytes().repeat(40), version: 0 },
            };
            let World { clients, history, .. } = &mut self.world;
            clients[client].begin(now, key, action, place % NODES, history);
            self.world.poke(client);
            self.rests_until[place] = now + REST;
        }
    }

    fn total(&self, metric: Metric) -> u64 {
        let processes = self.world.hosts.iter().filter_map(|host| host.process.as_ref());
        processes.map(|process| process.metrics.total(metric)).sum()
    }

    fn measure(mut self, way: Way) -> Outcome {
        self.run(GET_OVER_IT, way);
        let since = self.world.now;
        let hedged_before = self.total(Metric::ReadsHedged);
        self.run(MEASURED, way);
        let history = &self.world.history;
        let address = Place::Node(BAD).address();
        let holds: Vec<bool> = history
            .keys
            .iter()
            .map(|key| self.world.hosts[0].preference_list(key).0[..3].contains(&address))
            .collect();
        let (mut others, mut its_keys, mut answered) = (Vec::new(), Vec::new(), 0);
        for op in history.ops.iter().filter(|op| since <= op.invoked) {
            answered += usize::from(op.returned.is_some());
            let took = op.returned.unwrap_or(self.world.now).since(op.invoked);
            match (op.asked == BAD, holds[op.key]) {
                (true, _) => {}
                (false, true) => its_keys.push(took),
                (false, false) => others.push(took),
            }
        }
        let p99 = |mut all: Vec<Duration>| {
            all.sort_unstable();
            all[all.len() * 99 / 100]
        };
        Outcome {
            answered,
            others_p99: p99(others),
            its_keys_p99: p99(its_keys),
            hedged: self.total(Metric::ReadsHedged) - hedged_before,
        }
    }
}

fn measure(way: Way) -> Outcome {
    Load::start(way).measure(way)
}

#[test]
fn one_bad_node_costs_its_own_share_and_no_more() {
    let healthy = measure(Way::Healthy);
    for way in [Way::Delay, Way::Loss, Way::HalfStopped] {
        let bad = measure(way);
        assert!(healthy.answered * 85 / 100 <= bad.answered, "{way:?}: {bad:?}, healthy: {healthy:?}");
        assert!(bad.others_p99 <= healthy.others_p99 * 11 / 10, "{way:?}: {bad:?}, healthy: {healthy:?}");
        assert!(bad.its_keys_p99 <= Duration::from_millis(25), "{way:?}: {bad:?}, healthy: {healthy:?}");
    }
    assert_eq!(healthy.hedged, 0, "nothing is late");
}
