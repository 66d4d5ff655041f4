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

#[cfg(test)]
mod tests {
    use super::super::swarm::{self, Run};
    use super::super::{command, report};
    use super::*;
    use violet_link::Cause;

    /// The coast is cut off and healed, a node is bad, another one stands still, a third one dies.
    const FILE: &str = r#"
        preset = "us"
        nodes = 10
        seconds = 30
        timeline = [
            "3s isolate westus westus2", "9s heal", "10s bad n3 delay=80ms loss=10%", "14s reset",
            "15s pause n5", "18s resume n5", "20s crash n7", "25s start n7",
        ]
    "#;

    fn run(seed: u64) -> Run {
        let played = Played::read("coast.toml", FILE).expect("it is allowed");
        let line = ["sim".to_owned(), "--seed".to_owned(), seed.to_string()];
        let matches = command::command().try_get_matches_from(line).expect("a command line");
        let options = command::request(&matches, Some(played)).options;
        let run = swarm::run(&options);
        assert!(run.findings.violations.is_empty(), "{}", report::story_of(&run, &options));
        assert_eq!(
            command::repeating(&run, &options),
            format!("violet sim --timeline coast.toml --seed {seed}")
        );
        run
    }

    #[test]
    fn a_scenario_file_is_played_and_survived() {
        for seed in 0..3 {
            let run = run(seed);
            let Tally { splits, pauses, crashes, .. } = run.tally;
            assert_eq!((run.nodes, splits, pauses, crashes), (10, 1, 1, 1));
            assert!(
                100 < run.counts.lost(Cause::Cut) && 10 < run.counts.lost(Cause::Chance),
                "{:?}",
                run.counts
            );
            assert!(50 < run.findings.ops, "clients have worked: {}", run.findings.ops);
        }
    }

    #[test]
    fn one_seed_of_a_scenario_is_one_run() {
        assert_eq!(run(5).trace_hash, run(5).trace_hash);
        assert_ne!(run(5).trace_hash, run(6).trace_hash);
    }

    #[test]
    fn distances_are_those_of_the_file() {
        let read = |text: &str| Played::read("x.toml", text).expect("it is allowed");
        let near = read("preset = \"lan\"\nnodes = 3");
        assert_eq!((near.round_trip_max(), near.gossip()), (Duration::from_micros(400), GossipPreset::Lan));
        let far = read("preset = \"global25\"\nnodes = 25");
        assert_eq!((far.round_trip_max(), far.gossip()), (Duration::from_millis(331), GossipPreset::Wan));
    }

    #[test]
    fn a_wrong_file_is_named_on_one_line() {
        let error =
            Played::read("x.toml", "nodes = 3\ntimeline = [\"1s isolate n4\"]").expect_err("it is wrong");
        let start = "x.toml: timeline, line 1: isolate: 'n4' is nobody; allowed: *, n1 to n3";
        assert!(error.starts_with(start) && !error.contains('\n'), "{error}");
    }
}
