//! `violet-testbed trial`: the whole testbed as one run on one machine, from an empty directory to nothing left behind.
//!
//! It emulates 15 nodes in 15 places, starts an sshd in each of their namespaces, and then does what a user with real
//! hosts would do, with the same commands: probe, deploy, start, check, load, cut a region off and heal it, suffer one bad
//! node, collect logs, write a report, stop. The first half ([`run`]) starts the emulator with this very program as its
//! command; the second ([`steps`]) runs inside the emulated world. When the emulator has ended, the first half looks
//! whether anything is left.
//!
//! Deliberately not here: any way into the hosts or to the network that the other commands do not have.

mod sshd;
mod steps;

use crate::Failure;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Places of the shipped trial, far apart from one another and on all continents that the tables have.
const NODES_DEFAULT: &str = "15";

/// Describes the sub-command.
#[must_use]
pub fn command() -> Command {
    let path = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("file").help(help).value_parser(value_parser!(PathBuf))
    };
    let number = |name: &'static str, default: &'static str, help: &'static str| {
        let parser = value_parser!(u32).range(1..=64);
        Arg::new(name).long(name).value_name("count").help(help).default_value(default).value_parser(parser)
    };
    Command::new("trial")
        .about("The whole testbed on this machine: emulated hosts with sshd, deploy, load, faults, logs, report; needs root")
        .arg(path("binaries", "Directory with violet, violet-testclient and violet-testbed.").required(true))
        .arg(path("dir", "Where everything goes.").default_value(".violet/testbed"))
        .arg(Arg::new("preset").long("preset").value_name("name").help("The world.").default_value("global25"))
        .arg(number("nodes", NODES_DEFAULT, "Emulated hosts."))
        .arg(number("seconds", "3", "Seconds of each cell of the grid."))
        .arg(Arg::new("inside").long("inside").hide(true).action(ArgAction::SetTrue))
}

/// What a trial is made of.
#[derive(Clone, Debug)]
struct Trial {
    binaries: PathBuf,
    testbed: PathBuf,
    dir: PathBuf,
    preset: String,
    nodes: u32,
    seconds: u32,
}

impl Trial {
    fn from_matches(matches: &ArgMatches) -> Result<Self, Failure> {
        let file = |name: &str| -> Result<PathBuf, Failure> {
            let path = matches.get_one::<PathBuf>(name).expect("required, or with a default");
            path.canonicalize().map_err(|error| format!("--{name} {}: {error}", path.display()).into())
        };
        let dir = matches.get_one::<PathBuf>("dir").expect("with a default");
        fs::create_dir_all(dir).map_err(|error| format!("--dir {}: {error}", dir.display()))?;
        let number = |name: &str| *matches.get_one::<u32>(name).expect("with a default");
        let binaries: PathBuf = file("binaries")?;
        if !binaries.join("violet-testclient").is_file() {
            return Err(format!("--binaries {}: there is no violet-testclient", binaries.display()).into());
        }
        Ok(Self {
            binaries,
            testbed: std::env::current_exe()?,
            dir: file("dir")?,
            preset: matches.get_one::<String>("preset").expect("with a default").clone(),
            nodes: number("nodes"),
            seconds: number("seconds"),
        })
    }

    /// The emulator's directory.
    fn world(&self) -> PathBuf {
        self.dir.join("world")
    }
}

/// Runs the sub-command.
///
/// # Errors
/// One line, when the trial cannot even begin: a missing binary, no sshd, no root.
pub fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let trial = Trial::from_matches(matches)?;
    if matches.get_flag("inside") {
        return steps::run(&trial);
    }
    sshd::program()?;
    let status = std::process::Command::new(&trial.testbed)
        .args(["emulate", "--preset", &trial.preset, "--nodes", &trial.nodes.to_string(), "--dir"])
        .arg(trial.world())
        .arg("--")
        .arg(&trial.testbed)
        .args(["trial", "--inside", "--preset", &trial.preset, "--binaries"])
        .arg(&trial.binaries)
        .arg("--dir")
        .arg(&trial.dir)
        .args(["--nodes", &trial.nodes.to_string(), "--seconds", &trial.seconds.to_string()])
        .status()?;
    let left = left_behind(&trial);
    for thing in &left {
        println!("✗ left behind: {thing}");
    }
    if left.is_empty() {
        println!("✓ nothing is left behind: no namespace, no device, no process");
    }
    match (status.code(), left.is_empty()) {
        (Some(0), true) => Ok(ExitCode::SUCCESS),
        (Some(2), _) => Ok(ExitCode::from(2)),
        _ => Ok(ExitCode::FAILURE),
    }
}

/// What is there yet of a run that has ended: its namespaces by name, and processes whose working directory or program
/// is below the trial's directory.
fn left_behind(trial: &Trial) -> Vec<String> {
    let names = fs::read_to_string(trial.dir.join("namespaces.txt")).unwrap_or_default();
    let namespaces = names.lines().filter(|name| Path::new("/run/netns").join(name).exists());
    let mut left: Vec<String> = namespaces.map(|name| format!("namespace {name}")).collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let of = |link: &str| fs::read_link(entry.path().join(link)).ok();
        let is_below = |link: &str| of(link).is_some_and(|path| path.starts_with(&trial.dir));
        let is_ours = is_below("exe") || is_below("cwd");
        (is_ours && pid != std::process::id())
            .then(|| format!("process {pid} ({})", of("exe").unwrap_or_default().display()))
    });
    left.extend(processes);
    left
}

/// The emulator's own description of the world that it has made.
#[derive(Clone, Debug)]
struct World {
    nodes: Vec<Node>,
    control: PathBuf,
}

/// A place in it.
#[derive(Clone, Debug)]
struct Node {
    name: String,
    namespace: String,
    address: String,
    site: String,
    area: String,
}

impl World {
    fn read(dir: &Path) -> Result<Self, Failure> {
        let file = dir.join(crate::emulate::DESCRIPTION);
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let value: Value = serde_json::from_str(&text)?;
        let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let nodes = value["nodes"].as_array().cloned().unwrap_or_default();
        let node = |value: &Value| Node {
            name: text(value, "name"),
            namespace: text(value, "namespace"),
            address: text(value, "address"),
            site: text(value, "site"),
            area: text(value, "area"),
        };
        let nodes: Vec<Node> = nodes.iter().map(node).collect();
        Ok(Self { nodes, control: PathBuf::from(text(&value, "control")) })
    }
}
