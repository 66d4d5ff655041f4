//! The `endure` command: node processes of its own, treated badly under load, judged over the public
//! protocol alone.
//!
//! Every scenario starts its cluster, writes keys, does harm while a load goes on, and then reads every
//! key through every node. What was acknowledged and when stands in a ledger; the report says which claims
//! did not hold and how long everything took. The scenarios are the files beside this one.

mod absences;
mod bad_link;
pub mod bad_node;
mod growth;
mod halves;
pub mod health;
pub mod history;
mod land;
pub mod nodes;
#[cfg(test)]
mod planted;
mod restarts;
mod rounds;
pub mod sweep;
pub mod traffic;
mod trial;
pub mod writes;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::nodes::{Nodes, Recipe};
use self::trial::{Figure, Trial};
use crate::cluster::{Finding, StageResult};
use crate::machine;
use crate::report::{self, Preamble, Table};
use crate::settings::EndureArguments;
use crate::tally::TallyRecord;
use crate::values::Random;

/// How often a process in a namespace looks for its parent.
const PARENT_POLL: Duration = Duration::from_millis(250);

/// Where the nodes of a scenario live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ground {
    /// All on loopback.
    Loopback,
    /// In two halves of a network ([`land`]); there must be network namespaces.
    Halves,
    /// One of them behind a link of its own ([`bad_link`]), if there are network namespaces.
    BadLink,
}

/// One scenario.
struct Scenario {
    name: &'static str,
    about: &'static str,
    /// Nodes and keys unless told otherwise.
    nodes: usize,
    keys: u64,
    /// Settings of its nodes, NAME=VALUE.
    settings: &'static [&'static str],
    ground: Ground,
    run: fn(&mut Trial) -> StageResult,
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "restart-empty",
        about: "kill -9 and restart each node once, then in pairs, healed in between: nothing is lost",
        nodes: 7,
        keys: 2_000,
        settings: &[],
        ground: Ground::Loopback,
        run: restarts::restart_empty,
    },
    Scenario {
        name: "suspend",
        about: "two nodes stand still for 90 s, nobody reads until 30 s later: all is right everywhere",
        nodes: 7,
        keys: 12_000,
        settings: &[],
        ground: Ground::Loopback,
        run: absences::suspend,
    },
    Scenario {
        name: "suspend-few-hints",
        about: "the same with memory for few hints: the two must find out by themselves what they missed",
        nodes: 7,
        keys: 24_000,
        settings: &["hints-mib=1"],
        ground: Ground::Loopback,
        run: absences::suspend_few_hints,
    },
    Scenario {
        name: "mass-restart",
        about: "all nodes restart at once, 20 times: whole and usable at once, nothing old comes back",
        nodes: 10,
        keys: 1_000,
        settings: &[],
        ground: Ground::Loopback,
        run: restarts::mass_restart,
    },
    Scenario {
        name: "rolling-restart",
        about: "one node after the other by SIGTERM, then by kill -9, healed in between: nothing is lost",
        nodes: 7,
        keys: 2_000,
        settings: &[],
        ground: Ground::Loopback,
        run: restarts::rolling_restart,
    },
    Scenario {
        name: "grow-shrink",
        about: "1 node to 10 and back to 1 by joining and leaving: nothing is lost at any step",
        nodes: 10,
        keys: 10_000,
        settings: &[],
        ground: Ground::Loopback,
        run: growth::grow_shrink,
    },
    Scenario {
        name: "second-round",
        about: "5 of 20 die at once, 5 more a minute later: only keys whose holders all die in one instant are lost",
        nodes: 20,
        keys: 4_000,
        settings: &[],
        ground: Ground::Loopback,
        run: rounds::second_round,
    },
    Scenario {
        name: "halves",
        about: "two halves cannot hear each other for 40 s while both are written: all that can survive does",
        nodes: 8,
        keys: 3_000,
        settings: &[],
        ground: Ground::Halves,
        run: halves::halves,
    },
    Scenario {
        name: "bad-node",
        about: "one of 15 is bad in several ways: what that costs, as ratios to healthy runs",
        nodes: 15,
        keys: 3_000,
        settings: &[],
        ground: Ground::BadLink,
        run: bad_node::bad_node,
    },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Verdict {
    Kept,
    Broken,
    Undecided,
    Skipped,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Kept => "KEPT",
            Self::Broken => "BROKEN",
            Self::Undecided => "UNDECIDED",
            Self::Skipped => "SKIPPED",
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    scenario: String,
    about: String,
    nodes: usize,
    verdict: Verdict,
    seconds: f64,
    broken: Vec<String>,
    reason: Option<String>,
    remarks: Vec<String>,
    figures: Vec<Figure>,
    loads: Vec<TallyRecord>,
    load_average_at_end: Option<f64>,
}

#[derive(Serialize)]
struct EndureRecord {
    #[serde(flatten)]
    preamble: Preamble,
    scenarios: Vec<Record>,
}

/// Runs the command; whether every claim of every scenario held.
///
/// # Errors
/// Wrong usage, in one sentence.
pub fn run(arguments: &EndureArguments) -> Result<bool, String> {
    if arguments.list {
        print_list();
        return Ok(true);
    }
    let chosen = chosen(arguments)?;
    if arguments.inside_namespace {
        end_with_parent()?;
    }
    let seed = arguments.run.seed.unwrap_or_else(Random::fresh_seed);
    let first = SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.port));
    let preamble = Preamble::new(seed, &[first]);
    let mut records = Vec::new();
    for scenario in chosen {
        let wants_namespace = match scenario.ground {
            Ground::Loopback => false,
            Ground::Halves => true,
            Ground::BadLink => bad_link::obstacle().is_none(),
        };
        if wants_namespace && !arguments.inside_namespace {
            records.push(run_inside(scenario, arguments, seed)?);
            continue;
        }
        println!("\n{}: {}; seed {seed}", scenario.name, scenario.about);
        let record = run_one(scenario, arguments, seed)?;
        print(&record);
        records.push(record);
    }
    if !arguments.inside_namespace {
        println!("\n{}", table(&records).text());
    }
    let is_well = |record: &Record| match record.verdict {
        Verdict::Kept => true,
        Verdict::Skipped => arguments.allow_skip,
        Verdict::Broken | Verdict::Undecided => false,
    };
    let all_well = records.iter().all(is_well);
    if let Some(path) = &arguments.run.json {
        report::write_json(path, &EndureRecord { preamble, scenarios: records })?;
    }
    Ok(all_well)
}

fn chosen(arguments: &EndureArguments) -> Result<Vec<&'static Scenario>, String> {
    let names: Vec<&str> = arguments.scenarios.iter().map(String::as_str).collect();
    if names.is_empty() {
        return Err("name a scenario, or all; --list shows them".to_owned());
    }
    if names == ["all"] {
        return Ok(SCENARIOS.iter().collect());
    }
    let find = |name: &&str| {
        let found = SCENARIOS.iter().find(|scenario| scenario.name == *name);
        found.ok_or_else(|| format!("there is no scenario {name:?}; --list shows all"))
    };
    names.iter().map(find).collect()
}

fn print_list() {
    let mut table = Table::new(&["scenario", "shows", "nodes", "keys"], 2);
    for scenario in SCENARIOS {
        table.row(vec![
            scenario.name.to_owned(),
            scenario.about.to_owned(),
            scenario.nodes.to_string(),
            scenario.keys.to_string(),
        ]);
    }
    println!("{}", table.text());
}

/// Runs one scenario on fresh processes, which are gone when this returns.
fn run_one(scenario: &Scenario, arguments: &EndureArguments, seed: u64) -> Result<Record, String> {
    let started = Instant::now();
    let count = arguments.nodes.unwrap_or(scenario.nodes);
    let addresses = match scenario.ground {
        Ground::Halves => land::addresses(arguments.port, count)?,
        Ground::BadLink if arguments.inside_namespace => bad_link::addresses(arguments.port, count)?,
        Ground::Loopback | Ground::BadLink => addresses(arguments.port, count)?,
    };
    let program = arguments.violet.clone().ok_or("name the violet binary with --violet")?;
    let recipe = Recipe {
        // A relative path would be looked for in the search path.
        program: program.canonicalize().map_err(|error| format!("{}: {error}", program.display()))?,
        directory: arguments.dir.join(scenario.name),
        settings: settings(scenario, &arguments.settings),
    };
    let nodes = Nodes::new(recipe, &addresses)?;
    if !arguments.inside_namespace {
        nodes.check_ports()?;
    }
    let mut trial = Trial::new(nodes, arguments, seed, scenario.keys)?;
    let finding = (scenario.run)(&mut trial).err();
    trial.check_processes();
    let mut record = Record::new(scenario, count, finding);
    if !trial.broken.is_empty() {
        record.verdict = Verdict::Broken;
    }
    Ok(Record {
        seconds: started.elapsed().as_secs_f64(),
        broken: trial.broken,
        remarks: trial.remarks,
        figures: trial.figures,
        loads: trial.loads,
        load_average_at_end: machine::load_average(),
        ..record
    })
}

/// The process in the namespace must not go on when the one that started it is gone; its nodes end with it.
fn end_with_parent() -> Result<(), String> {
    let parent = std::os::unix::process::parent_id();
    let watch = move || {
        while std::os::unix::process::parent_id() == parent {
            std::thread::sleep(PARENT_POLL);
        }
        std::process::exit(1);
    };
    let started = std::thread::Builder::new().name("parent".to_owned()).spawn(watch);
    started.map(drop).map_err(|error| format!("no thread: {error}"))
}

/// What the user sets comes before what the scenario sets; a node takes every setting once.
fn settings(scenario: &Scenario, given: &[String]) -> Vec<String> {
    let name = |setting: &str| setting.split('=').next().unwrap_or_default().to_owned();
    let is_given = |setting: &&&str| given.iter().any(|given| name(given) == name(setting));
    let own = scenario.settings.iter().filter(|setting| !is_given(setting));
    own.map(ToString::to_string).chain(given.iter().cloned()).collect()
}

impl Record {
    fn new(scenario: &Scenario, nodes: usize, finding: Option<Finding>) -> Self {
        let (verdict, reason) = match finding {
            None => (Verdict::Kept, None),
            Some(Finding::Fail(text)) => (Verdict::Broken, Some(text)),
            Some(Finding::Undecided(text)) => (Verdict::Undecided, Some(text)),
            Some(Finding::Skip(text)) => (Verdict::Skipped, Some(text)),
        };
        Self {
            scenario: scenario.name.to_owned(),
            about: scenario.about.to_owned(),
            nodes,
            verdict,
            seconds: 0.0,
            broken: Vec::new(),
            reason,
            remarks: Vec::new(),
            figures: Vec::new(),
            loads: Vec::new(),
            load_average_at_end: None,
        }
    }
}

/// Runs a scenario in another process of this program, which has a network namespace of its own and prints
/// for itself; what it found comes back in a file.
fn run_inside(scenario: &Scenario, arguments: &EndureArguments, seed: u64) -> Result<Record, String> {
    let count = arguments.nodes.unwrap_or(scenario.nodes);
    if let Some(obstacle) = land::obstacle() {
        println!("\n{}: skipped: {obstacle}", scenario.name);
        return Ok(Record::new(scenario, count, Some(Finding::Skip(obstacle))));
    }
    let directory = arguments.dir.join(scenario.name);
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let result = directory.join("result.json");
    // An old one must not be taken for the new one; there may be none.
    let _ = fs::remove_file(&result);
    let mut command = land::enter_command()?;
    command.args(["endure", scenario.name, "--inside-namespace"]).args(arguments.repeated(seed));
    let status = command.arg("--json").arg(&result).status();
    let status = status.map_err(|error| format!("cannot start {command:?}: {error}"))?;
    let record = fs::read(&result).ok().and_then(|text| {
        let json: serde_json::Value = serde_json::from_slice(&text).ok()?;
        serde_json::from_value(json.get("scenarios")?.get(0)?.clone()).ok()
    });
    let lost = || Record::new(scenario, count, Some(Finding::Undecided(format!("ended with {status}"))));
    Ok(record.unwrap_or_else(lost))
}

fn addresses(port: u16, count: usize) -> Result<Vec<SocketAddr>, String> {
    let nth = |index: usize| {
        let port = u16::try_from(usize::from(port) + index).map_err(|_| format!("port {port} + {index}"))?;
        Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    };
    (0..count).map(nth).collect()
}

fn print(record: &Record) {
    println!("{} {} in {:.0} s", record.verdict.word(), record.scenario, record.seconds);
    if let Some(reason) = &record.reason {
        println!("          {reason}");
    }
    for broken in &record.broken {
        // The examples stand above, where it happened.
        println!("          {}", broken.split("; at ").next().unwrap_or(broken));
    }
}

fn table(records: &[Record]) -> Table {
    let headings = ["scenario", "verdict", "nodes", "claims broken", "slowest converged s", "seconds"];
    let mut table = Table::new(&headings, 2);
    for record in records {
        let converged = record.figures.iter().filter_map(Figure::converged_after).fold(f64::NAN, f64::max);
        table.row(vec![
            record.scenario.clone(),
            record.verdict.word().to_owned(),
            record.nodes.to_string(),
            record.broken.len().to_string(),
            if converged.is_nan() { "-".to_owned() } else { format!("{converged:.1}") },
            format!("{:.0}", record.seconds),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_settings_replace_those_of_a_scenario() {
        let scenario = SCENARIOS.iter().find(|scenario| scenario.name == "suspend-few-hints").unwrap();
        let check = |given: &[&str], expected: &[&str]| {
            let given: Vec<String> = given.iter().map(ToString::to_string).collect();
            assert_eq!(settings(scenario, &given), expected);
        };
        check(&[], &["hints-mib=1"]);
        check(&["replicas=2"], &["hints-mib=1", "replicas=2"]);
        check(&["hints-mib=9", "replicas=2"], &["hints-mib=9", "replicas=2"]);
    }
}
