//! Scenario files: a network, who is in it, and what happens to it when.
//!
//! ```toml
//! about = "Europe is cut off for half a minute"
//! preset = "global25"            # or none: wires that do nothing, and 'links'
//! nodes = 15
//! sites = ["westus2", "uksouth"] # optional: nodes are placed on them in turn; else spread over the preset's
//! clients = ["uksouth"]          # optional: where c1, c2 … are ("" where there are no places); else c1 beside n1
//! drift = true                   # optional: delays vary slowly as much as was measured
//! links = ["* * loss=0.1%"]      # optional: FROM TO key=value …, from the beginning on
//! seed = 1
//! seconds = 90
//! timeline = ["30s isolate @eu", "60s heal"]
//! ```
//!
//! The simulator, the emulator and the proxy play the same file: [`Scenario::network`] makes the links, and
//! [`Timeline::take_due`] says what is to be done by now.

use crate::control::Control;
use crate::network::Network;
use crate::presets::Preset;
use crate::roster::{Endpoint, Entry, Roster};
use crate::settings::Settings;
use crate::sites::{self, Site};
use crate::units;
use serde::Deserialize;
use std::time::Duration;

/// Nodes of a scenario, at most.
pub const NODES_MAX: u32 = 200;
const CLIENTS_MAX: usize = 50;
const SECONDS_MAX: u64 = 86_400;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    about: String,
    preset: Option<String>,
    nodes: Option<u32>,
    #[serde(default)]
    sites: Vec<String>,
    clients: Option<Vec<String>>,
    drift: Option<bool>,
    #[serde(default)]
    links: Vec<String>,
    seed: Option<u64>,
    seconds: Option<u64>,
    #[serde(default)]
    timeline: Vec<String>,
}

/// What happens when, in order of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Since the start of the run, and what is to be done.
    pub events: Vec<(Duration, Control)>,
    done: usize,
}

impl Timeline {
    /// Reads lines such as `30s isolate @eu`.
    ///
    /// # Errors
    /// The word that is wrong, and what is allowed.
    pub fn parse<'a>(lines: impl IntoIterator<Item = &'a str>, roster: &Roster) -> Result<Self, String> {
        let event = |line: &str| {
            let line = line.trim();
            let (at, command) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            Ok((units::time(at)?, Control::parse(command, roster)?))
        };
        let read =
            |(place, line)| event(line).map_err(|why: String| format!("timeline, line {}: {why}", place + 1));
        let events: Result<Vec<_>, String> = lines.into_iter().enumerate().map(read).collect();
        let mut events = events?;
        // A stable sort: of one moment, what is written first happens first.
        events.sort_by_key(|(at, _)| *at);
        Ok(Self { events, done: 0 })
    }

    /// When the next event is due.
    #[must_use]
    pub fn next_at(&self) -> Option<Duration> {
        self.events.get(self.done).map(|(at, _)| *at)
    }

    /// The next event if it is due by now; each is returned once.
    pub fn take_due(&mut self, now: Duration) -> Option<Control> {
        let (_, control) = self.events.get(self.done).filter(|(at, _)| *at <= now)?;
        self.done += 1;
        Some(control.clone())
    }
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it is for.
    pub about: String,
    /// The network that it starts from.
    pub preset: Option<Preset>,
    /// Who is in it.
    pub roster: Roster,
    /// What the links follow from.
    pub seed: u64,
    /// How long it takes.
    pub time: Duration,
    /// What happens.
    pub timeline: Timeline,
    drifts: bool,
    links: Vec<Control>,
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// The place that is wrong, and what is allowed, on one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::of(Self::read(text)?)
    }

    /// [`Scenario::parse`] for who has clients all over the world: unless the file places them, there are so many, one
    /// beside each node in turn.
    ///
    /// # Errors
    /// As there.
    pub fn parse_with_clients(text: &str, count: u32) -> Result<Self, String> {
        let mut file = Self::read(text)?;
        if file.clients.is_none() {
            let alone = Self::of(file.clone())?;
            let sites: Vec<&str> = alone.roster.nodes().map(|entry| entry.site.as_str()).collect();
            let of_client = |number: u32| sites[number as usize % sites.len()].to_owned();
            file.clients = Some((0..count).map(of_client).collect());
        }
        Self::of(file)
    }

    fn read(text: &str) -> Result<File, String> {
        toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let place = line.map_or_else(String::new, |line| format!("line {line}: "));
            format!("{place}{}", error.message().replace('\n', "; "))
        })
    }

    /// The scenario in which nothing happens to a preset. Nodes are placed on the sites in turn; without any
    /// they are spread over those of the preset.
    ///
    /// # Errors
    /// What is not allowed.
    pub fn of_preset(preset: Preset, nodes: u32, sites: &[String]) -> Result<Self, String> {
        let preset = Some(preset.name().to_owned());
        Self::of(File { preset, nodes: Some(nodes), sites: sites.to_vec(), ..File::default() })
    }

    fn of(file: File) -> Result<Self, String> {
        let preset = file.preset.as_deref().map(Preset::parse).transpose()?;
        let roster = roster(preset, &file)?;
        let link = |(place, line): (usize, &String)| {
            let read = Control::parse(&format!("set {line}"), &roster);
            read.map_err(|why| format!("links, line {}: {}", place + 1, why.trim_start_matches("set: ")))
        };
        let links = file.links.iter().enumerate().map(link).collect::<Result<_, String>>()?;
        let timeline = Timeline::parse(file.timeline.iter().map(String::as_str), &roster)?;
        let seconds = file.seconds.unwrap_or(60);
        if !(1..=SECONDS_MAX).contains(&seconds) {
            return Err(format!("seconds = {seconds}; allowed: 1 to {SECONDS_MAX}"));
        }
        let time = Duration::from_secs(seconds);
        if let Some((at, control)) = timeline.events.last().filter(|(at, _)| time < *at) {
            return Err(format!("timeline: '{control}' at {at:?} is after the end; seconds = {seconds}"));
        }
        let drifts = file.drift.unwrap_or(preset.is_some_and(Preset::drifts));
        Ok(Self {
            about: file.about,
            preset,
            roster,
            seed: file.seed.unwrap_or(1),
            time,
            timeline,
            drifts,
            links,
        })
    }

    /// The network as it is at the beginning.
    #[must_use]
    pub fn network(&self) -> Network {
        self.network_of(self.seed)
    }

    /// [`Scenario::network`] with another seed.
    #[must_use]
    pub fn network_of(&self, seed: u64) -> Network {
        let base = self.preset.map_or_else(Settings::default, Preset::base);
        let mut network = Network::new(seed, base);
        let pairs =
            self.roster.entries.iter().flat_map(|from| self.roster.entries.iter().map(move |to| (from, to)));
        for (from, to) in pairs {
            let mut settings =
                self.preset.map_or(base, |preset| preset.between(&from.site, &to.site, self.drifts));
            for link in &self.links {
                if let Control::Set(some, others, change) = link
                    && some.contains(from.end)
                    && others.contains(to.end)
                {
                    settings.apply(change);
                }
            }
            network.lay(from.end, to.end, settings);
        }
        network
    }
}

/// Who is where.
fn roster(preset: Option<Preset>, file: &File) -> Result<Roster, String> {
    let nodes = file.nodes.ok_or_else(|| format!("'nodes' is missing; allowed: 1 to {NODES_MAX}"))?;
    if !(1..=NODES_MAX).contains(&nodes) {
        return Err(format!("nodes = {nodes}; allowed: 1 to {NODES_MAX}"));
    }
    let offered = preset.map_or_else(Vec::new, Preset::sites);
    let find = |id: &String| {
        let site = offered.iter().find(|site| site.id == *id);
        let allowed = offered.iter().map(|site| site.id.as_str()).collect::<Vec<_>>().join(", ");
        let allowed = if allowed.is_empty() { "none, as this network has no places" } else { &allowed };
        site.copied().ok_or_else(|| format!("sites: there is no '{id}'; allowed: {allowed}"))
    };
    let chosen = file.sites.iter().map(find).collect::<Result<Vec<&Site>, String>>()?;
    let mut entries: Vec<Entry> = Vec::new();
    let places = if chosen.is_empty() { spread(&offered) } else { chosen };
    for (number, place) in (1..=nodes).enumerate() {
        let site = (!places.is_empty()).then(|| places[number % places.len()]);
        entries.push(entry(Endpoint(place), site));
    }
    match &file.clients {
        Some(clients) if CLIENTS_MAX < clients.len() => {
            return Err(format!("{} clients; allowed: up to {CLIENTS_MAX}", clients.len()));
        }
        Some(clients) => {
            for (number, id) in clients.iter().enumerate() {
                // Where there are no places, clients have none.
                let site = if id.is_empty() && offered.is_empty() { None } else { Some(find(id)?) };
                entries.push(entry(Endpoint::client(number as u32 + 1), site));
            }
        }
        None => {
            let site = entries.first().and_then(|first| sites::find(&first.site));
            entries.push(entry(Endpoint::client(1), site));
        }
    }
    Ok(Roster { entries })
}

/// The sites in the order in which nodes are placed on them: one of each area, then the next of each, so that a
/// few nodes are all over the world, and one more node moves no other.
fn spread(sites: &[&'static Site]) -> Vec<&'static Site> {
    let rank = |site: &Site| {
        let of_area = sites.iter().filter(|other| other.area == site.area);
        of_area.take_while(|other| other.id != site.id).count()
    };
    let mut spread = sites.to_vec();
    spread.sort_by_key(|site| rank(site));
    spread
}

fn entry(end: Endpoint, site: Option<&Site>) -> Entry {
    let text = |of: fn(&Site) -> &String| site.map_or_else(String::new, |site| of(site).clone());
    Entry { end, site: text(|site| &site.id), area: text(|site| &site.area) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Loss;

    const FILE: &str = r#"
        about = "Europe is cut off"
        preset = "global25"
        nodes = 15
        clients = ["uksouth"]
        links = ["* * loss=0.1%", "n1 n2 delay=7ms"]
        seconds = 90
        timeline = ["60s heal", "30s isolate @eu"]
    "#;

    #[test]
    fn a_file_is_read() {
        let scenario = Scenario::parse(FILE).expect("it is allowed");
        let areas: std::collections::BTreeSet<&str> =
            scenario.roster.nodes().map(|entry| entry.area.as_str()).collect();
        assert_eq!((scenario.roster.nodes().count(), areas.len()), (15, 7), "all areas have nodes");
        let mut network = scenario.network();
        let link = network.settings(Endpoint(1), Endpoint(2));
        assert_eq!((link.delay, link.loss), (Duration::from_millis(7), Loss::Each(1_000)));
        let [a, b] =
            [Endpoint(2), Endpoint(1)].map(|end| scenario.roster.entry(end).expect("there").site.clone());
        let rtt = sites::rtt(&a, &b).expect("two sites").0;
        assert_eq!(network.settings(Endpoint(2), Endpoint(1)).delay, rtt / 2);
        let mut timeline = scenario.timeline.clone();
        assert_eq!(timeline.next_at(), Some(Duration::from_secs(30)));
        assert_eq!(timeline.take_due(Duration::from_secs(29)), None);
        let cut = timeline.take_due(Duration::from_secs(30)).expect("it is due");
        cut.apply(&mut network).expect("few changes");
        let eu = scenario.roster.nodes().find(|entry| entry.area == "eu").expect("somebody").end;
        assert!(network.is_cut(Endpoint(1), eu) && network.is_cut(eu, Endpoint(1)));
        assert!(!network.is_cut(eu, Endpoint::client(1)), "the client is in Europe, too");
        assert_eq!(timeline.take_due(Duration::from_secs(99)), Some(Control::Heal));
        assert_eq!(timeline.take_due(Duration::from_secs(99)), None);
    }

    #[test]
    fn a_wrong_place_is_named_with_what_is_allowed() {
        let error = |text: &str| Scenario::parse(text).expect_err("it is wrong");
        assert_eq!(error(""), "'nodes' is missing; allowed: 1 to 200");
        assert_eq!(error("nodes = 0"), "nodes = 0; allowed: 1 to 200");
        assert_eq!(error("nodes = 3\nseconds = 0"), "seconds = 0; allowed: 1 to 86400");
        let unknown = error("nodes = 3\nspeed = 3");
        assert!(unknown.starts_with("line 2: unknown field `speed`, expected one of"), "{unknown}");
        assert_eq!(
            error("nodes = 3\nsites = [\"uksouth\"]"),
            "sites: there is no 'uksouth'; allowed: none, as this network has no places"
        );
        assert_eq!(
            error("nodes = 3\ntimeline = [\"1s heal\", \"2s isolate n4\"]"),
            "timeline, line 2: isolate: 'n4' is nobody; allowed: *, n1 to n3, n1-n3, c1"
        );
        assert_eq!(
            error("nodes = 3\ntimeline = [\"soon heal\"]"),
            "timeline, line 1: 'soon' is no time; allowed: like 20ms, 1.5s or 100us, up to 86400s"
        );
        assert_eq!(
            error("nodes = 3\nseconds = 5\ntimeline = [\"6s heal\"]"),
            "timeline: 'heal' at 6s is after the end; seconds = 5"
        );
        assert_eq!(
            error("nodes = 3\nlinks = [\"n1 n5 loss=1%\"]"),
            "links, line 1: 'n5' is nobody; allowed: *, n1 to n3, n1-n3, c1"
        );
        assert!(error("nodes = 3\npreset = \"moon\"").starts_with("there is no preset 'moon'"));
        assert!(!error("nodes = \"\n").contains('\n'));
    }

    #[test]
    fn the_files_that_are_shipped_can_be_played() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios");
        let mut count = 0;
        for file in std::fs::read_dir(folder).expect("the folder is there") {
            let path = file.expect("an entry").path();
            let text = std::fs::read_to_string(&path).expect("it can be read");
            Scenario::parse(&text).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
            count += 1;
        }
        assert!(2 <= count);
    }
}
