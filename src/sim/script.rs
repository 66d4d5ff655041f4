//! Scripts: one command a line, its output indented below it.
//!
//! [`play`] runs the commands of a script and returns the script with the output that they had, so a
//! test compares whole files and `UPDATE_EXPECT=1` rewrites them. A node is named `n1`, or by its place
//! on the preference list of a key: `k.0` coordinates `k`, `k.1` is the next replica. The commands are
//! listed at [`Script::obey`].

use super::Bugs;
use super::census;
use super::client::{Client, Manners, key_of};
use super::history::{Action, OpId, Seen};
use super::host::{Plan, State};
use super::network::{Place, quiet};
use super::trace;
use super::world::World;
use crate::config::Config;
use crate::ids::Site;
use crate::metrics::Metric;
use crate::time::Duration;
use std::collections::BTreeMap;
use violet_client::{Format, RetryPolicy};
use violet_link::Settings;

/// A request that nobody answers is given up by then.
const PATIENCE: Duration = Duration::from_secs(12);
/// How long a repeat is waited for.
const REPEAT_WAIT: Duration = Duration::from_millis(400);
/// How long 'rest' waits.
const REST_MAX: Duration = Duration::from_secs(90);
/// Time that a new cluster gets before the first command.
const SETTLE: Duration = Duration::from_secs(2);

/// Runs a script; returns it with the output of each command in place of what was there.
///
/// # Errors
/// The line that cannot be obeyed, and why.
pub fn play(text: &str) -> Result<String, String> {
    play_with(text, Bugs::default())
}

/// [`play`], with bugs planted in every node (test builds only).
///
/// # Errors
/// The line that cannot be obeyed, and why.
pub fn play_with(text: &str, bugs: Bugs) -> Result<String, String> {
    let mut script = Script { bugs, ..Script::default() };
    let mut played = String::new();
    for (number, line) in text.lines().enumerate() {
        if line.starts_with(' ') {
            continue;
        }
        played.push_str(line);
        played.push('\n');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let output = script.obey(line).map_err(|why| format!("line {}: {line}: {why}", number + 1))?;
        for line in output {
            played.push_str(&format!("  {line}\n"));
        }
    }
    Ok(played)
}

/// A script as far as it was played.
#[derive(Debug, Default)]
struct Script {
    world: Option<World>,
    bugs: Bugs,
    named: BTreeMap<String, usize>,
    /// Requests that were sent and not awaited: in words, client, request.
    open: Vec<(String, usize, OpId)>,
    last: Option<usize>,
    /// The first key that `fill` found no room for.
    refused: String,
}

type Output = Result<Vec<String>, String>;

impl Script {
    /// ```text
    /// nodes 3 [spares=2] [n1=+5s] [setting=value …]   a cluster, settled; clocks may be wrong;
    ///                                      'sites=3': dealt out to so many sites in turn;
    ///                                      'delay=150ms', 'jitter=' and 'loss=' hold from the first
    /// put k=v|k=v*SIZE via NODE [as NAME] [once]      get, remove likewise; wipe NODE
    /// send put k=v via NODE …              … without waiting; await waits for all of them
    /// client NAME [raw] [needs-front-end]  a client for 'as'
    /// repeat last|NAME via NODE            the same bytes again, from another port
    /// fill SIZE via NODE                   puts keys of this size until one is refused, '$refused' from then on, and
    ///                                      another: 'refused'
    /// puts COUNT via NODE                  puts p0=0, p1=1 …
    /// gets COUNT via NODE                  reads them all; says how many are found
    /// copies COUNT                         how many of them have how many copies
    /// crash|start|pause|resume NODE        start also restarts
    /// join NODE via NODE / leave NODE      a spare, or a member that has left, becomes one; it leaves as planned
    /// starve NODE TIME                     its threads lose their core for up to TIME now and then
    /// partition n0 n1|n2 n3 / cut n0>n1 / heal
    /// set delay=TIME loss=PERCENT …        all links, in the words of violet-link
    /// bad NODE delay=TIME …                the links of one node, over what 'set' says
    /// count METRIC                         summed over all nodes
    /// run TIME
    /// rest                                 runs until nobody has anything left to do
    /// holders k, place k, members NODE, hints, fenced, who, ledger, gone, lost, tombstones
    /// ```
    fn obey(&mut self, line: &str) -> Output {
        let line = &line.replace("$refused", &self.refused);
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        match command {
            "nodes" => self.build(rest),
            "put" | "get" | "remove" | "wipe" => self.request(line, true),
            "send" => self.request(rest, false),
            "await" => self.wait_for_all(),
            "client" => self.name_client(rest),
            "repeat" => self.repeat(rest),
            "fill" => self.fill(rest),
            "puts" | "gets" => self.request_many(command, rest),
            "copies" => self.copies(rest),
            "join" | "leave" => self.change_members(command, rest),
            "rest" => self.rest(),
            "crash" | "start" | "pause" | "resume" | "starve" => self.disturb(command, rest),
            "partition" | "cut" | "heal" => self.divide(command, rest),
            "set" => self.change_links(rest),
            "bad" => self.worsen(rest),
            "count" => self.count(rest),
            "run" => {
                let time = time_of(rest)?;
                self.world()?.run_for(time);
                Ok(Vec::new())
            }
            "holders" | "place" | "members" | "hints" | "fenced" | "who" | "ledger" | "gone" | "lost"
            | "tombstones" => self.tell(command, rest),
            _ => Err("no such command".into()),
        }
    }

    fn world(&mut self) -> Result<&mut World, String> {
        self.world.as_mut().ok_or_else(|| "'nodes' comes first".into())
    }

    fn build(&mut self, rest: &str) -> Output {
        let mut words = rest.split_whitespace();
        let nodes: usize = words.next().and_then(|word| word.parse().ok()).ok_or("how many nodes?")?;
        let spares = rest.split_whitespace().find_map(|word| word.strip_prefix("spares="));
        let spares: usize = spares.map_or(Ok(0), str::parse).map_err(|_| "how many spares?")?;
        let mut skews = vec![0i64; nodes + spares];
        let mut settings = BTreeMap::from([("partitions-log2", "6")]);
        let mut links = quiet();
        let mut sites = None;
        for word in words {
            let (name, value) = word.split_once('=').ok_or("name=value is wanted")?;
            match name {
                "spares" => continue,
                "sites" => {
                    sites = Some(value.parse::<usize>().map_err(|_| "how many sites?")?.max(1));
                    continue;
                }
                "loss" | "delay" | "jitter" => {
                    links.apply(&Settings::parse_change(word)?);
                    continue;
                }
                _ => {}
            }
            let Some(number) = name.strip_prefix('n').and_then(|number| number.parse::<usize>().ok()) else {
                settings.insert(name, value);
                continue;
            };
            let nanos = time_of(&value[1..])?.as_nanos() as i64;
            *skews.get_mut(number).ok_or("no such node")? =
                if value.starts_with('-') { -nanos } else { nanos };
        }
        let flag = |name: &str| settings.get(name).map(|value| (*value).to_owned());
        let config = Config::load(None, |_| None, flag).map_err(|error| error.0)?;
        let plan = |(node, skew_nanos): (usize, i64)| {
            let name = sites.map_or(String::new(), |sites| format!("site{}", node % sites));
            let site = Site::parse(&name).expect("it is short");
            Plan { config: Config { site, ..config.clone() }, skew_nanos, bugs: self.bugs }
        };
        let plans = skews.into_iter().enumerate().map(plan).collect();
        let mut world = World::new(1, plans, nodes, links);
        for node in 0..nodes {
            world.start(node);
        }
        world.run_for(SETTLE);
        self.world = Some(world);
        Ok(Vec::new())
    }

    fn node(&mut self, name: &str) -> Result<usize, String> {
        let world = self.world()?;
        let count = world.hosts.len();
        if let Some(number) = name.strip_prefix('n').and_then(|number| number.parse().ok()) {
            return if number < count { Ok(number) } else { Err(format!("there is no {name}")) };
        }
        let (key, place) = name.rsplit_once('.').ok_or_else(|| format!("'{name}' is no node"))?;
        let place: usize = place.parse().map_err(|_| format!("'{name}' is no node"))?;
        let lists = world.hosts.iter().map(|host| host.preference_list(&key_of(key)).0);
        let list = lists.into_iter().find(|list| !list.is_empty()).ok_or("no node is up")?;
        match list.get(place).map(|address| Place::of(*address)) {
            Some(Some(Place::Node(number))) => Ok(number),
            _ => Err(format!("there is no {name}")),
        }
    }

    fn nodes(&mut self, names: &str) -> Result<Vec<usize>, String> {
        names.split_whitespace().map(|name| self.node(name)).collect()
    }

    fn request(&mut self, line: &str, waits: bool) -> Output {
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |word: &str| words.iter().position(|other| *other == word).map(|at| words.get(at + 1));
        let (verb, what) = (words[0], *words.get(1).ok_or("of what?")?);
        let via = match after("via") {
            Some(node) => node.ok_or("via which node?")?,
            None => what,
        };
        let node = self.node(via)?;
        let action = match verb {
            "put" => Action::Put { value: value_of(what)?, version: 0 },
            "get" => Action::Get,
            "remove" => Action::Remove,
            "wipe" => Action::Wipe { round: 0 },
            _ => return Err("no such request".into()),
        };
        let client = match after("as").flatten() {
            Some(name) => *self.named.get(*name).ok_or("no such client")?,
            None => {
                let once = words.last() == Some(&"once");
                let policy = if once { RetryPolicy::once(PATIENCE / 4) } else { RetryPolicy::default() };
                self.add_client(Manners { format: Format::Protobuf, needs_front_end: false, policy })?
            }
        };
        let key = key_of(what.split_once('=').map_or(what, |(key, _)| key));
        let world = self.world()?;
        let key = world.history.key(key);
        let op = world.clients[client].begin(world.now, key, action, node, &mut world.history);
        world.poke(client);
        self.last = Some(client);
        self.open.push((line.to_owned(), client, op));
        if waits { self.wait_for_last() } else { Ok(Vec::new()) }
    }

    fn add_client(&mut self, manners: Manners) -> Result<usize, String> {
        let world = self.world()?;
        let number = world.clients.len();
        let client = Client::new(number, world.hosts.len(), manners, None, world.seed);
        Ok(world.add_client(client))
    }

    fn name_client(&mut self, rest: &str) -> Output {
        let words: Vec<&str> = rest.split_whitespace().collect();
        let name = (*words.first().ok_or("what is its name?")?).to_owned();
        let format = if words.contains(&"raw") { Format::Raw } else { Format::Protobuf };
        let needs_front_end = words.contains(&"needs-front-end");
        let client = self.add_client(Manners { format, needs_front_end, policy: RetryPolicy::default() })?;
        self.named.insert(name, client);
        Ok(Vec::new())
    }

    fn wait_for_last(&mut self) -> Output {
        let Some((_, client, op)) = self.open.pop() else { return Ok(Vec::new()) };
        let world = self.world()?;
        let deadline = world.now + PATIENCE;
        while !world.clients[client].is_idle() && world.now < deadline {
            world.run_for(Duration::from_millis(1));
        }
        Ok(vec![answer(world, op)])
    }

    fn wait_for_all(&mut self) -> Output {
        let mut lines = Vec::new();
        for (line, client, op) in std::mem::take(&mut self.open) {
            self.open.push((line.clone(), client, op));
            lines.push(format!("{line}: {}", self.wait_for_last()?.concat()));
        }
        Ok(lines)
    }

    fn repeat(&mut self, rest: &str) -> Output {
        const PORT: u16 = 7000;
        let (who, node) = rest.split_once(" via ").ok_or("'repeat last|NAME via NODE' is wanted")?;
        let node = self.node(node)?;
        let named = self.named.get(who).copied();
        let client = if who == "last" { self.last } else { named }.ok_or("nothing was asked yet")?;
        let world = self.world()?;
        let bytes = world.clients[client].last_sent.clone().ok_or("nothing was asked yet")?;
        world.clients[client].stray = None;
        world.send_by_hand(client, PORT, node, bytes);
        let deadline = world.now + REPEAT_WAIT;
        while world.clients[client].stray.is_none() && world.now < deadline {
            world.run_for(Duration::from_millis(1));
        }
        Ok(vec![match &world.clients[client].stray {
            Some((_, status)) => status.clone(),
            None => "no answer".into(),
        }])
    }

    /// Puts new keys until one is refused; says how many there was room for, to the next hundred.
    fn fill(&mut self, rest: &str) -> Output {
        const KEYS_MAX: usize = 20_000;
        let (size, node) = rest.split_once(" via ").ok_or("'fill SIZE via NODE' is wanted")?;
        for number in 0..KEYS_MAX {
            let said = self.request(&format!("put fill{number}=x*{size} via {node}"), true)?;
            if said != ["ok"] {
                self.refused = format!("fill{number}");
                self.request(&format!("put refused=x*{size} via {node}"), true)?;
                return Ok(vec![format!("{} after {} keys or more", said.concat(), number / 100 * 100)]);
            }
        }
        Err("there is room for everything".into())
    }

    fn request_many(&mut self, command: &str, rest: &str) -> Output {
        let (count, node) = rest.split_once(" via ").ok_or("'COUNT via NODE' is wanted")?;
        let count: usize = count.parse().map_err(|_| "how many?")?;
        let (mut good, mut bad) = (0, String::new());
        for number in 0..count {
            let (line, wanted) = match command {
                "puts" => (format!("put p{number}={number} via {node}"), "ok".to_owned()),
                _ => (format!("get p{number} via {node}"), number.to_string()),
            };
            let said = self.request(&line, true)?.concat();
            if said == wanted {
                good += 1;
            } else if bad.is_empty() {
                bad = format!(", p{number}: {said}");
            }
        }
        Ok(vec![format!("{good} of {count}{bad}")])
    }

    fn copies(&mut self, rest: &str) -> Output {
        let count: usize = rest.parse().map_err(|_| "how many?")?;
        let hosts = &self.world()?.hosts;
        let mut keys_with: BTreeMap<usize, usize> = BTreeMap::new();
        for number in 0..count {
            let key = key_of(&format!("p{number}"));
            let copies =
                hosts.iter().filter_map(|host| host.record(&key)).filter(|(_, value)| value.is_some());
            *keys_with.entry(copies.count()).or_default() += 1;
        }
        let line = |(copies, keys): (usize, usize)| format!("{keys} keys on {copies} nodes");
        Ok(vec![keys_with.into_iter().map(line).collect::<Vec<_>>().join(", ")])
    }

    fn change_members(&mut self, command: &str, rest: &str) -> Output {
        if command == "leave" {
            let node = self.node(rest)?;
            return if self.world()?.leave(node) { Ok(Vec::new()) } else { Ok(vec!["refused".into()]) };
        }
        let (node, via) = rest.split_once(" via ").ok_or("'join NODE via NODE' is wanted")?;
        let (node, via) = (self.node(node)?, self.node(via)?);
        self.world()?.join(node, via);
        Ok(Vec::new())
    }

    fn rest(&mut self) -> Output {
        let world = self.world()?;
        let begun = world.now;
        while !census::restless(world).is_empty() && world.now.since(begun) < REST_MAX {
            world.run_for(Duration::from_millis(50));
        }
        Ok(census::restless(world))
    }

    fn disturb(&mut self, command: &str, rest: &str) -> Output {
        let (name, argument) = rest.split_once(' ').unwrap_or((rest, ""));
        let node = self.node(name)?;
        let world = self.world()?;
        match command {
            "crash" => world.crash(node),
            "start" => world.start(node),
            "pause" => world.pause(node),
            "resume" => world.resume(node),
            _ => world.starve(node, time_of(argument)?),
        }
        // A name by place means another node's opinion later on; say which node it was.
        Ok(if name.starts_with('n') { Vec::new() } else { vec![format!("n{node}")] })
    }

    fn divide(&mut self, command: &str, rest: &str) -> Output {
        if command == "heal" {
            self.world()?.network.links.heal();
            return Ok(Vec::new());
        }
        let (some, others) = rest.split_once(['|', '>']).ok_or("two groups are wanted")?;
        let (some, others) = (self.nodes(some)?, self.nodes(others)?);
        self.world()?.partition(&some, &others, command == "partition");
        Ok(Vec::new())
    }

    fn change_links(&mut self, change: &str) -> Output {
        let change = Settings::parse_change(change)?;
        let links = &mut self.world()?.network.links;
        let mut settings = links.base();
        settings.apply(&change);
        links.set_base(settings);
        Ok(Vec::new())
    }

    fn worsen(&mut self, rest: &str) -> Output {
        let (node, change) = rest.split_once(' ').ok_or("which node, and how bad?")?;
        let place = Place::Node(self.node(node)?);
        self.world()?.network.worsen(place, change)?;
        Ok(Vec::new())
    }

    fn count(&mut self, name: &str) -> Output {
        let metric = Metric::ALL.iter().find(|metric| metric.name() == name).ok_or("no such count")?;
        let hosts = &self.world()?.hosts;
        let processes = hosts.iter().filter_map(|host| host.process.as_ref());
        let sum: u64 = processes.map(|process| process.metrics.total(*metric)).sum();
        Ok(vec![sum.to_string()])
    }

    fn tell(&mut self, command: &str, rest: &str) -> Output {
        if command == "members" {
            let node = self.node(rest)?;
            return Ok(vec![names(&self.world()?.hosts[node].alive())]);
        }
        let last = self.last;
        let world = self.world()?;
        Ok(match command {
            "holders" => holders(world, rest),
            "place" => {
                let lists = world.hosts.iter().map(|host| host.preference_list(&key_of(rest)).0);
                let list = lists.into_iter().find(|list| !list.is_empty()).unwrap_or_default();
                vec![list.iter().map(|address| trace::name(*address)).collect::<Vec<_>>().join(" ")]
            }
            "hints" => hints(world),
            "gone" => {
                let gone = (0..world.hosts.len()).filter(|node| world.hosts[*node].is_gone);
                some_or_none(gone.map(|node| format!("n{node}")))
            }
            "lost" => {
                let lost = world.history.ops.iter().filter(|op| op.lost_at.is_some());
                vec![format!("{} writes", lost.count())]
            }
            "tombstones" => {
                let counts = census::tombstones(&world.hosts);
                some_or_none(counts.iter().map(|(node, count)| format!("n{node} {count}")))
            }
            "fenced" => some_or_none(
                world
                    .reports()
                    .iter()
                    .filter(|(_, report)| report.catching_up)
                    .map(|(node, _)| format!("n{node}")),
            ),
            "who" => {
                let op = world.history.ops.iter().rev().find(|op| Some(op.client) == last);
                let node = op.and_then(|op| op.answered_by);
                vec![node.map_or("nobody".into(), |node| format!("n{node}"))]
            }
            _ => {
                let wrong = world.reports();
                let wrong = wrong.iter().filter(|(_, report)| !report.adds_up());
                let lines: Vec<String> = wrong.map(|(node, report)| format!("n{node}: {report:?}")).collect();
                if lines.is_empty() { vec!["adds up".into()] } else { lines }
            }
        })
    }
}

fn answer(world: &World, op: OpId) -> String {
    let op = &world.history.ops[op];
    match &op.seen {
        Seen::Nothing => "no answer".into(),
        Seen::Done => "ok".into(),
        Seen::Missing => "no such key".into(),
        Seen::Refused(status) => status.to_string(),
        Seen::Invented(what) => format!("INVENTED: {what}"),
        Seen::Found(put) => match &world.history.ops[*put].action {
            Action::Put { value, .. } => short(value),
            Action::Get | Action::Remove | Action::Wipe { .. } => "INVENTED".into(),
        },
    }
}

fn holders(world: &World, key: &str) -> Vec<String> {
    let key = key_of(key);
    let mut lines = Vec::new();
    for (node, host) in world.hosts.iter().enumerate() {
        match (host.state, host.record(&key)) {
            (State::Down, _) | (_, None) => {}
            (_, Some((_, Some(value)))) => lines.push(format!("n{node} {}", short(&value))),
            (_, Some((_, None))) => lines.push(format!("n{node} removed")),
        }
    }
    vec![if lines.is_empty() { "none".into() } else { lines.join(", ") }]
}

fn hints(world: &World) -> Vec<String> {
    let count = |node: usize, owner: usize| world.hosts[node].hints_for(world.hosts[owner].address);
    let pairs =
        (0..world.hosts.len()).flat_map(|node| (0..world.hosts.len()).map(move |owner| (node, owner)));
    some_or_none(
        pairs
            .filter(|(node, owner)| 0 < count(*node, *owner))
            .map(|(node, owner)| format!("n{node} keeps {} for n{owner}", count(node, owner))),
    )
}

fn some_or_none(items: impl Iterator<Item = String>) -> Vec<String> {
    let items: Vec<String> = items.collect();
    vec![if items.is_empty() { "none".into() } else { items.join(", ") }]
}

fn names(addresses: &[std::net::SocketAddr]) -> String {
    let mut names: Vec<String> = addresses.iter().map(|address| trace::name(*address)).collect();
    names.sort_unstable();
    names.join(" ")
}

fn short(value: &[u8]) -> String {
    const SHOWN_MAX: usize = 40;
    if value.len() <= SHOWN_MAX {
        return value.escape_ascii().to_string();
    }
    format!("{}… ({} bytes)", value[..8].escape_ascii(), value.len())
}

/// `k=v` or `k=v*SIZE`.
fn value_of(assignment: &str) -> Result<Vec<u8>, String> {
    let (_, value) = assignment.split_once('=').ok_or("key=value is wanted")?;
    let Some((text, size)) = value.split_once('*') else { return Ok(value.as_bytes().to_vec()) };
    let size: usize = size.parse().map_err(|_| "a size is wanted behind *")?;
    Ok(text.bytes().cycle().take(size).collect())
}

/// `5s`, `50ms` or `100us`.
fn time_of(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let number: u64 = digits.parse().map_err(|_| format!("'{text}' is no time"))?;
    match &text[digits.len()..] {
        "s" => Ok(Duration::from_secs(number)),
        "ms" => Ok(Duration::from_millis(number)),
        "us" => Ok(Duration::from_micros(number)),
        _ => Err(format!("'{text}' is no time")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn every_scenario_plays_as_written() {
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/sim/scenarios");
        let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
            .expect("the directory is there")
            .map(|entry| entry.expect("it can be read").path())
            .collect();
        files.sort();
        assert!(!files.is_empty());
        for file in files {
            let text = std::fs::read_to_string(&file).expect("it can be read");
            let played = play(&text).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
            expect_test::expect_file![file].assert_eq(&played);
        }
    }

    #[test]
    fn what_cannot_be_obeyed_is_named() {
        let error = |text| play(text).expect_err("it is wrong");
        assert_eq!(error("run 5s"), "line 1: run 5s: 'nodes' comes first");
        assert_eq!(error("nodes 1\n\nrun 5"), "line 3: run 5: '5' is no time");
        assert_eq!(error("nodes 1\nget k via n1"), "line 2: get k via n1: there is no n1");
        assert_eq!(error("nodes 1\ndance"), "line 2: dance: no such command");
    }
}
