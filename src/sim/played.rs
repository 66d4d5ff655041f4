//! A scenario file played in the simulator: the network and the timeline of `violet-link`, the clients and
//! the judges of the swarm.
//!
//! The first node is `n1` in the file. Nodes are paused and crash as processes do; everything else happens to the links.
//! When the file ends, the swarm mends all of it and demands that the cluster converges, over links as long as before.

use super::checker::Violation;
use super::faults::Tally;
use super::world::World;
use crate::config::GossipPreset;
use crate::time::Duration;
use violet_link::{Control, Jitter, Scenario};

/// Clients are beside so many nodes, unless the file says where they are.
const CLIENTS: u32 = 8;

/// A scenario and the name of its file.
#[derive(Debug)]
pub struct Played {
    /// As it was given.
    pub file: String,
    scenario: Scenario,
}

impl Played {
    /// Reads a scenario.
    ///
    /// # Errors
    /// The file, the place in it that is wrong, and what is allowed, on one line.
    pub fn read(file: &str, text: &str) -> Result<Self, String> {
        let scenario = Scenario::parse_with_clients(text, CLIENTS).map_err(|why| format!("{file}: {why}"))?;
        Ok(Self { file: file.to_owned(), scenario })
    }

    /// How many nodes there are.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.scenario.roster.nodes().count()
    }

    /// How long it takes.
    #[must_use]
    pub fn time(&self) -> Duration {
        self.scenario.time
    }

    /// What suits its distances.
    #[must_use]
    pub fn gossip(&self) -> GossipPreset {
        const NEAR: Duration = Duration::from_millis(10);
        if self.round_trip_max() < NEAR { GossipPreset::Lan } else { GossipPreset::Wan }
    }

    /// The longest that a round trip takes before anything is done to the links, or nearly so.
    #[must_use]
    pub fn round_trip_max(&self) -> Duration {
        let mut network = self.scenario.network();
        let ends = || self.scenario.roster.entries.iter().map(|entry| entry.end);
        let pairs = ends().flat_map(|from| ends().map(move |to| (from, to)));
        let one_way = pairs.map(|(from, to)| {
            let link = network.settings(from, to);
            let (Jitter::Uniform(jitter) | Jitter::Lognormal(jitter)) = link.jitter;
            link.delay + jitter + link.drift
        });
        one_way.max().unwrap_or_default() * 2
    }

    /// Puts its links into a world.
    pub fn lay(&self, world: &mut World) {
        let clients = self.scenario.roster.entries.len() - self.nodes();
        let links = self.scenario.network_of(world.seed);
        world.network.replace(world.now, links, clients as u32);
    }

    /// Plays the timeline, which begins now. Returns what could not be done.
    pub fn play(&self, world: &mut World, tally: &mut Tally) -> Option<Violation> {
        let (begin, mut timeline) = (world.now, self.scenario.timeline.clone());
        while let Some(at) = timeline.next_at() {
            world.run_until(begin + at);
            while let Some(control) = timeline.take_due(at) {
                count(&control, tally);
                if let Err(why) = world.obey(&control) {
                    return Some(Violation {
                        claim: "the timeline can be played",
                        story: format!("{control}: {why}"),
                    });
                }
            }
        }
        None
    }
}

fn count(control: &Control, tally: &mut Tally) {
    match control {
        Control::Partition(..) | Control::Oneway(..) | Control::Isolate(_) => tally.splits += 1,
        Control::Pause(ends) => tally.pauses += ends.len() as u64,
        Control::Crash(ends) => tally.crashes += ends.len() as u64,
        Control::Heal
        | Control::Set(..)
        | Control::Bad(..)
        | Control::Limit(..)
        | Control::ScaleRtt(_)
        | Control::Resume(_)
        | Control::Start(_)
        | Control::Reset => {}
    }
}
