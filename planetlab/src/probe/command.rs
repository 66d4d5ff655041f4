//! `probe`: agents on all hosts at once, their reports in one file, a table.

use std::fs::File;
use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, ArgMatches, value_parser};

use super::agent;
use super::mesh::{self, Pace, Target};
use super::record::{AgentPlan, AgentReport};
use super::{store, table};
use crate::inventory::{self, Host, Inventory};
use crate::remote::{Fleet, HostError, quoted};
use crate::{Failure, when};

/// What starting a process by ssh may take beyond the agent's own limit.
const START_MAX: Duration = Duration::from_secs(20);
/// Hosts of a probe at most: the mesh grows with the square.
const HOSTS_MAX: usize = 200;

/// Describes `probe`.
pub fn command() -> clap::Command {
    clap::Command::new("probe")
        .about("Measure all hosts against each other: round trips, loss, jitter, clocks, and what the machines are like")
        .args(inventory::args())
        .arg(
            Arg::new("seconds")
                .long("seconds")
                .value_name("seconds")
                .help("How long every pair is measured.")
                .default_value("10")
                .value_parser(value_parser!(f64)),
        )
        .arg(
            Arg::new("gather")
                .long("gather")
                .value_name("seconds")
                .help("How long agents wait for others that start later.")
                .default_value("10")
                .value_parser(value_parser!(f64)),
        )
        .arg(
            Arg::new("port")
                .long("port")
                .value_name("port")
                .help("UDP port to probe, instead of the nodes'.")
                .value_parser(value_parser!(u16).range(1..)),
        )
        .arg(
            Arg::new("agent")
                .long("agent")
                .value_name("file")
                .help("violet-testbed on the hosts, below their dir or absolute.")
                .default_value(AGENT_DEFAULT),
        )
}

/// Where `deploy` puts this program.
const AGENT_DEFAULT: &str = "current/violet-testbed";
/// Packets a second to each other host, small and large: 15 hosts send 280 and 70 a second each.
const SMALL_PER_SECOND: f64 = 20.0;
const LARGE_PER_SECOND: f64 = 5.0;

/// Does `probe`.
///
/// # Errors
/// A wrong inventory or a file that cannot be written.
pub fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let inventory = Inventory::from_matches(matches)?;
    let pace = pace(matches)?;
    let (hosts, targets, unknown) = targets(&inventory, matches.get_one::<u16>("port").copied());
    if HOSTS_MAX < hosts.len() {
        return Err(format!(
            "{} hosts, a probe takes at most {HOSTS_MAX}: choose some with --only",
            hosts.len()
        )
        .into());
    }
    unknown.iter().for_each(|failure| eprintln!("{failure}"));
    let plans = mesh::plans(&targets, pace, draw()?);
    if let Some(plan) = plans.first() {
        agent::check(plan).map_err(|error| error.to_string())?;
    }
    let started = when::now_unix_seconds();
    let program = matches.get_one::<String>("agent").expect("the flag has a default");
    let reports = ask_all(&hosts, &plans, program)?;
    let probe = mesh::join(&targets, reports, started, pace.seconds);
    let file = store::save(&inventory::local_dir(matches), &probe)?;
    println!("{}\nKept in {}", table::text(&probe), file.display());
    let is_whole = (0..probe.hosts.len()).all(|at| mesh::complaints(&probe, at).is_empty());
    Ok(ExitCode::from(u8::from(!(is_whole && unknown.is_empty()))))
}

fn pace(matches: &ArgMatches) -> Result<Pace, Failure> {
    let seconds = |name: &str| {
        let value = *matches.get_one::<f64>(name).expect("the flag has a default");
        match 0.0 < value && value <= 3_600.0 {
            true => Ok(value),
            false => Err(format!("--{name} {value}: more than 0 and at most 3600 seconds are possible")),
        }
    };
    Ok(Pace {
        gather_seconds: seconds("gather")?,
        seconds: seconds("seconds")?,
        small_per_second: SMALL_PER_SECOND,
        large_per_second: LARGE_PER_SECOND,
    })
}

/// The hosts whose addresses are known, what they are asked, and what is wrong with the others.
fn targets(inventory: &Inventory, port: Option<u16>) -> (Vec<&Host>, Vec<Target>, Vec<String>) {
    let (mut hosts, mut targets, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    for host in &inventory.hosts {
        match target(host, port) {
            Ok(target) => {
                hosts.push(host);
                targets.push(target);
            }
            Err(failure) => unknown.push(failure),
        }
    }
    (hosts, targets, unknown)
}

fn target(host: &Host, port: Option<u16>) -> Result<Target, String> {
    let (mut listen, mut address) = (host.listen()?, host.node()?);
    if let Some(port) = port {
        listen.set_port(port);
        address.set_port(port);
    }
    Ok(Target {
        name: host.name.clone(),
        // A host that names no site is one of its own.
        site: host.site.clone().unwrap_or_else(|| host.name.clone()),
        region: host.region.clone().unwrap_or_default(),
        listen,
        address,
    })
}

/// A number that nobody guesses: it is what agents know each other by.
fn draw() -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| format!("cannot read /dev/urandom: {error}"))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Runs the agents. All at once whatever `--at-once` says: an agent that starts after the others have gone sees nobody.
fn ask_all(
    hosts: &[&Host],
    plans: &[AgentPlan],
    program: &str,
) -> Result<Vec<Result<AgentReport, String>>, Failure> {
    let fleet = Fleet::new()?;
    let reports = fleet.on_all(hosts, hosts.len(), |host| {
        let at = hosts.iter().position(|other| other.name == host.name).expect("the host is one of them");
        let script = format!("cd {} && exec {} probe-agent", quoted(&host.dir), quoted(&below(program)));
        let plan = serde_json::to_vec(&plans[at]).expect("a plan has only numbers, addresses and lists");
        let output = fleet.run(host, &script, &plan, agent::time_limit(&plans[at]) + START_MAX)?;
        serde_json::from_slice::<AgentReport>(&output.stdout).map_err(|error| {
            HostError::Here(format!("its agent printed no report ({error}); is it of another version?"))
        })
    });
    let sentences = reports.into_iter().map(|(_, report)| {
        report.map_err(|error| match error {
            HostError::Failed { status: Some(126 | 127), last_line } => {
                format!("{last_line}: 'violet-testbed deploy' brings the program there")
            }
            other => other.to_string(),
        })
    });
    Ok(sentences.collect())
}

/// A relative path as the shell runs it.
fn below(program: &str) -> String {
    if program.starts_with('/') { program.to_owned() } else { format!("./{program}") }
}
