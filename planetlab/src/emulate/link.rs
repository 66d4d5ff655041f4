//! The link model as the router asks it: places in the order of the devices instead of names, and the scenario's timeline.
//!
//! Everything about links is in `violet-link`; this only reads scenario files and options into one and keeps count of who
//! is at which place: the nodes first, then the clients.

use std::fs;
use std::path::Path;
use std::time::Duration;

use toml::{Table, Value};
use violet_link::roster::Entry;
use violet_link::{Control, Endpoint, Network, Outcome, Parcel, Roster, Scenario, Timeline};

use crate::emulate::packet::Places;

/// What the command line says beyond or instead of a scenario file.
#[derive(Debug, Default)]
pub struct Wishes {
    /// How many nodes.
    pub nodes: Option<u32>,
    /// Where they are, in turn.
    pub sites: Vec<String>,
    /// What all draws follow from.
    pub seed: Option<u64>,
}

/// All links of a run.
#[derive(Debug)]
pub struct Links {
    network: Network,
    roster: Roster,
    ends: Vec<Endpoint>,
    timeline: Timeline,
    length: Option<Duration>,
}

impl Links {
    /// Reads a scenario file; wishes count more than what it says.
    pub fn from_file(file: &Path, wishes: &Wishes) -> Result<Self, String> {
        let place = |error: String| format!("{}: {error}", file.display());
        let text = fs::read_to_string(file).map_err(|error| place(error.to_string()))?;
        // Read as it stands first, so that an error names the line of the file.
        if wishes.nodes.is_none() && wishes.sites.is_empty() && wishes.seed.is_none() {
            let says_length = text.parse::<Table>().is_ok_and(|table| table.contains_key("seconds"));
            return Self::new(&Scenario::parse(&text).map_err(place)?, says_length).map_err(place);
        }
        let table = text.parse::<Table>().map_err(|error| place(error.message().replace('\n', "; ")))?;
        Self::from_table(table, wishes).map_err(place)
    }

    /// A preset in which nothing happens by itself.
    pub fn from_preset(preset: &str, wishes: &Wishes) -> Result<Self, String> {
        const NODES: i64 = 5;
        let mut table = Table::new();
        table.insert("preset".into(), preset.into());
        table.insert("nodes".into(), Value::Integer(NODES));
        Self::from_table(table, wishes)
    }

    /// Links that are all alike, and different from plain wires by one change.
    pub fn uniform(nodes: usize, change: &str) -> Result<Self, String> {
        let mut table = Table::new();
        table.insert("links".into(), Value::Array(vec![format!("* * {change}").into()]));
        let nodes = Some(u32::try_from(nodes).map_err(|error| error.to_string())?);
        Self::from_table(table, &Wishes { nodes, ..Wishes::default() })
    }

    fn from_table(mut table: Table, wishes: &Wishes) -> Result<Self, String> {
        if let Some(nodes) = wishes.nodes {
            table.insert("nodes".into(), Value::Integer(nodes.into()));
        }
        if !wishes.sites.is_empty() {
            table.insert("sites".into(), wishes.sites.clone().into());
        }
        if let Some(seed) = wishes.seed {
            let seed =
                i64::try_from(seed).map_err(|_| format!("--seed {seed}: must be at most {}", i64::MAX))?;
            table.insert("seed".into(), Value::Integer(seed));
        }
        Self::new(&Scenario::parse(&table.to_string())?, table.contains_key("seconds"))
    }

    fn new(scenario: &Scenario, says_length: bool) -> Result<Self, String> {
        let is_client = |entry: &&Entry| entry.end.is_client();
        let clients: Vec<_> = scenario.roster.entries.iter().filter(is_client).collect();
        if clients.is_empty() {
            return Err("clients = []; must name at least one site, because the command runs at c1".into());
        }
        let places = scenario.roster.nodes().chain(clients);
        Ok(Self {
            network: scenario.network(),
            ends: places.map(|entry| entry.end).collect(),
            roster: scenario.roster.clone(),
            timeline: scenario.timeline.clone(),
            length: says_length.then_some(scenario.time),
        })
    }

    /// Who is at which place: nodes first, then clients.
    pub fn entries(&self) -> Vec<Entry> {
        self.ends.iter().filter_map(|end| self.roster.entry(*end)).cloned().collect()
    }

    /// How many there are.
    pub fn places(&self) -> Places {
        let clients = self.ends.iter().filter(|end| end.is_client()).count();
        Places { nodes: self.ends.len() - clients, clients }
    }

    /// The longest packet that all links take at the beginning.
    pub fn mtu_bytes(&mut self) -> u32 {
        const DEVICE_BYTES_MAX: usize = 65_535;
        let pairs = self.ends.iter().flat_map(|from| self.ends.iter().map(move |to| (*from, *to)));
        let least =
            pairs.map(|(from, to)| self.network.settings(from, to).mtu).min().unwrap_or(DEVICE_BYTES_MAX);
        u32::try_from(least.min(DEVICE_BYTES_MAX)).expect("bounded above")
    }

    /// How long the scenario says that it takes, if it does.
    pub fn length(&self) -> Option<Duration> {
        self.length
    }

    /// What becomes of a packet.
    pub fn send(&mut self, now: Duration, from: usize, to: usize, parcel: Parcel) -> Outcome {
        self.network.send(now, self.ends[from], self.ends[to], parcel)
    }

    /// What becomes of a whole datagram, which is lost with any of the packets that it is cut into.
    pub fn send_datagram(&mut self, now: Duration, from: usize, to: usize, bytes: usize) -> Outcome {
        self.network.send_datagram(now, self.ends[from], self.ends[to], bytes)
    }

    /// When the timeline goes on.
    pub fn next_event(&self) -> Option<Duration> {
        self.timeline.next_at()
    }

    /// Does what the timeline has up to now; returns a line for each event.
    pub fn play(&mut self, now: Duration) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(control) = self.timeline.take_due(now) {
            let outcome = control.apply(&mut self.network);
            lines.push(outcome.map_or_else(|error| format!("{control}: {error}"), |()| control.to_string()));
        }
        lines
    }

    /// Does one line of the control language; returns it as it was understood.
    pub fn change(&mut self, line: &str) -> Result<String, String> {
        let control = Control::parse(line, &self.roster)?;
        control.apply(&mut self.network)?;
        Ok(control.to_string())
    }

    /// The place of one named end.
    pub fn place_named(&self, name: &str) -> Result<usize, String> {
        let ends = self.roster.members(&self.roster.resolve(name)?);
        match ends[..] {
            [end] => {
                self.ends.iter().position(|known| *known == end).ok_or_else(|| format!("'{name}' is nowhere"))
            }
            _ => Err(format!("'{name}' is {} of them; must be one, like n1", ends.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes(nodes: u32) -> Wishes {
        Wishes { nodes: Some(nodes), ..Wishes::default() }
    }

    #[test]
    fn nodes_come_first_and_the_command_has_a_client() {
        let links = Links::from_preset("global25", &wishes(3)).expect("a preset");
        let names: Vec<String> = links.entries().iter().map(|entry| entry.end.to_string()).collect();
        assert_eq!(names, ["n1", "n2", "n3", "c1"]);
        assert!(links.entries().iter().all(|entry| !entry.site.is_empty()));
        assert_eq!(links.length(), None);
        assert_eq!(links.place_named("c1"), Ok(3));
        assert!(links.place_named("*").expect_err("all").contains("must be one"));
    }

    #[test]
    fn uniform_links_do_what_they_are_told() {
        let mut links = Links::uniform(2, "delay=20ms").expect("a change");
        let parcel = Parcel { bytes: 128, group: None };
        let at: Vec<_> = links.send(Duration::from_secs(1), 0, 1, parcel).deliveries().collect();
        assert_eq!(at.len(), 1);
        assert_eq!(at[0].at, Duration::from_millis(1_020));
        assert_eq!(links.mtu_bytes(), 1_500);
        links.change("isolate n2").expect("a command");
        assert_eq!(links.send(Duration::from_secs(2), 0, 1, parcel).deliveries().count(), 0);
    }

    #[test]
    fn a_file_is_played_and_the_command_line_counts_more() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("s.toml");
        fs::write(&file, "nodes = 2\nseconds = 9\ntimeline = [\"3s isolate n1\", \"5s heal\"]\n")
            .expect("written");
        let mut links = Links::from_file(&file, &Wishes::default()).expect("a scenario");
        assert_eq!(links.length(), Some(Duration::from_secs(9)));
        assert_eq!(links.next_event(), Some(Duration::from_secs(3)));
        assert_eq!(links.play(Duration::from_secs(4)), ["isolate n1"]);
        assert_eq!(links.play(Duration::from_secs(4)), [""; 0]);
        assert_eq!(Links::from_file(&file, &wishes(4)).expect("a scenario").entries().len(), 5);
    }

    #[test]
    fn a_bad_file_is_named_with_what_would_be_right() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("s.toml");
        for (text, place) in [
            ("nodes = 2\nseeds = 1\n", "seeds"),
            ("nodes = 2\nclients = []\n", "clients"),
            ("nodes", "s.toml"),
        ] {
            fs::write(&file, text).expect("written");
            for wishes in [Wishes::default(), wishes(3)] {
                let error = Links::from_file(&file, &wishes).expect_err(text);
                assert!(error.contains("s.toml") && error.contains(place), "{error}");
                assert!(!error.contains('\n'), "{error}");
            }
        }
    }
}
