//! `violet-testbed start`, `stop`, `status` and `restart`: the nodes of all hosts.
//!
//! Each is one command over ssh that calls this very program on the host ([`on_host`]), where a keeper ([`keeper`])
//! starts the node and writes its log. Start and stop hold the host's lock, so two people do not work on one host at
//! the same time. The cluster's key is made once, kept on this machine (mode 0600), and sent by standard input.

mod keeper;
pub mod on_host;
mod rolling;

use crate::Failure;
use crate::deploy::force;
use crate::inventory::{Host, Inventory, aligned, args, at_once, local_dir};
use crate::remote::{Fleet, HostError, PerHost, SHORT_DEADLINE, locked, owner, quoted, tell_failures};
use clap::{Arg, ArgAction, ArgMatches, Command};
use on_host::{StartRequest, Started, Status};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

pub use on_host::LogLine;

/// Settings that are set for each node and cannot be given.
const OWN_SETTINGS: [&str; 4] = ["listen", "advertise", "servers", "cluster-key-file"];

/// Where, in this machine's directory, what was given to the last start is kept.
const GIVEN_FILE: &str = "settings.json";

/// Describes `start`.
#[must_use]
pub fn start_command() -> Command {
    Command::new("start")
        .about("Starts a node on every host and waits until each is ready")
        .args(args())
        .args(node_args())
        .arg(force())
}

/// Describes `stop`.
#[must_use]
pub fn stop_command() -> Command {
    Command::new("stop").about("Ends the node of every host").args(args()).arg(force())
}

/// Describes `status`.
#[must_use]
pub fn status_command() -> Command {
    let json = Arg::new("json").long("json").help("One object a host.").action(ArgAction::SetTrue);
    Command::new("status").about("Prints how every node is").args(args()).arg(json)
}

/// Describes `restart`.
#[must_use]
pub fn restart_command() -> Command {
    Command::new("restart")
        .about("Ends the node of every host and starts it again")
        .args(args())
        .args(node_args())
        .arg(force())
        .arg(
            Arg::new("rolling")
                .long("rolling")
                .help("One host after the other, each only when the one before counts all members and holds its share.")
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new("settle-seconds")
                .long("settle-seconds")
                .value_name("s")
                .help("With --rolling: how long a node may take to be a settled member again.")
                .default_value("120")
                .value_parser(clap::value_parser!(u64).range(1..)),
        )
}

fn node_args() -> [Arg; 2] {
    [
        Arg::new("set")
            .long("set")
            .value_name("name=value")
            .help("A setting for every node, over that of the inventory; see 'violet serve --help'. Restarts keep it.")
            .action(ArgAction::Append),
        Arg::new("gossip")
            .long("gossip")
            .value_name("preset")
            .help("Time-outs of the failure detector, over that of the inventory.")
            .value_parser(["lan", "wan"]),
    ]
}

/// Runs `start`.
///
/// # Errors
/// One line for bad input. Hosts that fail are named, and the status is 1.
pub fn start(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let (plan, fleet) = (Plan::of(matches)?, Fleet::new()?);
    let results = fleet.on_all(&plan.inventory.all(), at_once(matches), |host| plan.start(&fleet, host));
    let list = local_dir(matches).join("servers.txt");
    std::fs::write(&list, &plan.servers).map_err(|error| format!("{}: {error}", list.display()))?;
    let failed = results.iter().filter(|(_, result)| result.is_err()).count();
    // Settings with which no node starts would keep the next start from working, too.
    if failed < results.len() {
        plan.given.keep(&local_dir(matches))?;
    }
    println!("{} nodes started, {failed} not; servers: {}", results.len() - failed, list.display());
    Ok(ExitCode::from(u8::from(!tell_failures(&results))))
}

/// Runs `stop`.
///
/// # Errors
/// As [`start`].
pub fn stop(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let (inventory, fleet) = (Inventory::from_matches(matches)?, Fleet::new()?);
    let is_forced = matches.get_flag("force");
    let results = fleet.on_all(&inventory.all(), at_once(matches), |host| stop_node(&fleet, host, is_forced));
    let count =
        |was_there| results.iter().filter(|(_, result)| result.as_ref().ok() == Some(&was_there)).count();
    println!("{} nodes stopped, {} were not running", count(true), count(false));
    Ok(ExitCode::from(u8::from(!tell_failures(&results))))
}

/// Runs `restart`.
///
/// # Errors
/// As [`start`].
pub fn restart(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let (plan, fleet) = (Plan::of(matches)?, Fleet::new()?);
    if matches.get_flag("rolling") {
        let seconds = matches.get_one::<u64>("settle-seconds").expect("the flag has a default");
        return Ok(rolling::restart(
            &plan,
            &fleet,
            std::time::Duration::from_secs(*seconds),
            at_once(matches),
        ));
    }
    let results = fleet.on_all(&plan.inventory.all(), at_once(matches), |host| plan.restart(&fleet, host));
    let failed = results.iter().filter(|(_, result)| result.is_err()).count();
    if failed < results.len() {
        plan.given.keep(&local_dir(matches))?;
    }
    println!("{} nodes restarted, {failed} not", results.len() - failed);
    Ok(ExitCode::from(u8::from(!tell_failures(&results))))
}

/// Runs `status`: 0 when every node runs, answers and counts the same members, else 1.
///
/// # Errors
/// As [`start`].
pub fn status(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let (inventory, fleet) = (Inventory::from_matches(matches)?, Fleet::new()?);
    let results = statuses(&fleet, &inventory.all(), at_once(matches));
    if matches.get_flag("json") {
        for (host, result) in &results {
            let value = match result {
                Ok(status) => serde_json::json!({ "host": host.name, "status": status }),
                Err(error) => serde_json::json!({ "host": host.name, "error": error.to_string() }),
            };
            println!("{value}");
        }
    } else {
        print!("{}", table(&results));
    }
    Ok(ExitCode::from(u8::from(!are_one_cluster(&results))))
}

/// Whether every node runs, answers, and counts the same members.
fn are_one_cluster(results: &PerHost<'_, Status>) -> bool {
    let counted =
        |result: &Result<Status, HostError>| result.as_ref().ok().and_then(|status| status.members_alive);
    let first = results.first().and_then(|(_, result)| counted(result));
    first.is_some() && results.iter().all(|(_, result)| counted(result) == first)
}

/// How the nodes of these hosts are.
pub fn statuses<'a>(fleet: &Fleet, hosts: &[&'a Host], at_once: usize) -> PerHost<'a, Status> {
    fleet.on_all(hosts, at_once, |host| status_of(fleet, host))
}

fn status_of(fleet: &Fleet, host: &Host) -> Result<Status, HostError> {
    let output = fleet.run(host, &on_host_script(host, "status"), &[], SHORT_DEADLINE)?;
    read(&output.stdout)
}

fn stop_node(fleet: &Fleet, host: &Host, is_forced: bool) -> Result<bool, HostError> {
    let script = locked(host, "stop", is_forced, &on_host_script(host, "stop"));
    read(&fleet.run(host, &script, &[], SHORT_DEADLINE)?.stdout)
}

/// Calls this program on the host. Not by `exec`: the shell may hold a lock that it has to release.
fn on_host_script(host: &Host, name: &str) -> String {
    format!(
        "D={}\n[ -x \"$D/current/violet-testbed\" ] || {{ echo \"nothing is deployed; run 'violet-testbed deploy'\" >&2; exit 1; }}\n\
         \"$D/current/violet-testbed\" on-host {name} \"$D\" || exit 1",
        quoted(&host.dir)
    )
}

fn read<T: serde::de::DeserializeOwned>(stdout: &[u8]) -> Result<T, HostError> {
    serde_json::from_slice(stdout).map_err(|error| HostError::Failed {
        status: Some(0),
        last_line: format!("its answer is not understood ({error}); deploy this version there"),
    })
}

/// What the nodes are to be started with.
struct Plan {
    inventory: Inventory,
    /// All members, one a line. Those of the whole inventory, also when only some hosts are worked on.
    servers: String,
    key: String,
    settings: Vec<(String, String)>,
    owner: String,
    is_forced: bool,
    given: Given,
}

impl Plan {
    fn of(matches: &ArgMatches) -> Result<Self, Failure> {
        let inventory = Inventory::from_matches(matches)?;
        let whole = Inventory::read(&inventory.path)?;
        // A host whose name cannot be looked up is named when it is its turn; the others do not wait for it.
        let members: Vec<String> =
            whole.hosts.iter().filter_map(|host| host.node().ok()).map(|node| node.to_string()).collect();
        let mut settings = inventory.settings.clone();
        let given = Given::of(matches)?;
        settings.extend(given.settings.clone());
        if let Some(gossip) = inventory.gossip.as_ref() {
            settings.entry("gossip".into()).or_insert_with(|| gossip.clone());
        }
        Ok(Self {
            servers: members.join("\n"),
            key: cluster_key(&local_dir(matches))?,
            settings: settings.into_iter().collect(),
            owner: owner(),
            is_forced: matches.get_flag("force"),
            given,
            inventory,
        })
    }

    fn start(&self, fleet: &Fleet, host: &Host) -> Result<Started, HostError> {
        self.run(fleet, host, "start", &on_host_script(host, "start"))
    }

    fn restart(&self, fleet: &Fleet, host: &Host) -> Result<Started, HostError> {
        let body = format!(
            "{{ {}; }} < /dev/null > /dev/null || exit 1\n{}",
            on_host_script(host, "stop").replace('\n', "; "),
            on_host_script(host, "start")
        );
        self.run(fleet, host, "restart", &body)
    }

    fn run(&self, fleet: &Fleet, host: &Host, purpose: &str, body: &str) -> Result<Started, HostError> {
        let request = StartRequest {
            listen: host.listen().map_err(HostError::Here)?,
            advertise: host.node().map_err(HostError::Here)?,
            servers: self.servers.clone(),
            key: self.key.clone(),
            settings: self.settings.clone(),
            owner: self.owner.clone(),
        };
        let request = serde_json::to_vec(&request).expect("texts and addresses are JSON");
        let output =
            fleet.run(host, &locked(host, purpose, self.is_forced, body), &request, 2 * SHORT_DEADLINE)?;
        read(&output.stdout)
    }
}

/// What `--set` and `--gossip` said. It is kept, because a node that is started again alone or in turn has to fit the
/// others: many settings are to be the same on all members.
#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Given {
    settings: BTreeMap<String, String>,
}

impl Given {
    /// What is said now; on a restart, or a start of some hosts only, what was said last where nothing is.
    fn of(matches: &ArgMatches) -> Result<Self, Failure> {
        let mut given = Self::default();
        for text in matches.get_many::<String>("set").into_iter().flatten() {
            let (name, value) = text
                .split_once('=')
                .filter(|(name, _)| !name.is_empty())
                .ok_or_else(|| format!("--set: '{text}' is not allowed; allowed: name=value"))?;
            if OWN_SETTINGS.contains(&name) {
                return Err(format!("--set {name}: is set for each node, from the inventory").into());
            }
            given.settings.insert(name.into(), value.into());
        }
        if let Some(gossip) = matches.get_one::<String>("gossip") {
            given.settings.insert("gossip".into(), gossip.clone());
        }
        // Only `start` has no flag --rolling.
        let is_restart = matches.try_contains_id("rolling").is_ok();
        let is_part = is_restart || matches.contains_id("only");
        if given.settings.is_empty() && is_part {
            return Self::read(&local_dir(matches).join(GIVEN_FILE));
        }
        Ok(given)
    }

    /// Keeps it for the next time.
    fn keep(&self, dir: &Path) -> Result<(), Failure> {
        keeper::write_private(&dir.join(GIVEN_FILE), &serde_json::to_vec(self)?)
    }

    fn read(path: &Path) -> Result<Self, Failure> {
        match std::fs::read(path) {
            Ok(text) => {
                Ok(serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))?)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("{}: {error}", path.display()).into()),
        }
    }
}

/// The cluster's key: made on the first start and kept.
fn cluster_key(dir: &Path) -> Result<String, Failure> {
    std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let path = dir.join("cluster.key");
    match std::fs::read_to_string(&path) {
        Ok(key) if 16 <= key.len() && key.len() <= 4_096 => return Ok(key),
        Ok(key) => return Err(format!("{}: {} bytes; allowed: 16 to 4096", path.display(), key.len()).into()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(format!("{}: {error}", path.display()).into()),
    }
    let mut random = [0; 32];
    let source = std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut random));
    source.map_err(|error| format!("/dev/urandom: {error}"))?;
    let key: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    keeper::write_private(&path, key.as_bytes())?;
    Ok(key)
}

fn table(results: &PerHost<'_, Status>) -> String {
    let head = [
        "host",
        "state",
        "version",
        "release",
        "uptime",
        "members",
        "settled",
        "requests",
        "MiB",
        "last error",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for (host, result) in results {
        rows.push(match result {
            Ok(status) => row(host, status),
            Err(error) => {
                let mut row = [(); 10].map(|()| "-".to_owned());
                row[0].clone_from(&host.name);
                row[1] = "?".into();
                row[9] = error.to_string();
                row
            }
        });
    }
    aligned(&rows)
}

fn row(host: &Host, status: &Status) -> [String; 10] {
    let text = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let members = status.members_alive.zip(status.members).map(|(alive, all)| format!("{alive}/{all}"));
    [
        host.name.clone(),
        status.state.clone(),
        text(status.version.as_ref().and_then(|version| version.split(' ').next_back()).map(str::to_owned)),
        text(status.release.as_ref().map(|release| release.chars().take(8).collect())),
        text(status.uptime_seconds.map(duration)),
        text(members),
        text(status.is_settled.map(|is_settled| if is_settled { "yes" } else { "no" }.into())),
        text(status.requests.map(|requests| requests.to_string())),
        text(status.memory_mib.map(|memory| format!("{memory:.1}"))),
        text(status.last_error.clone()),
    ]
}

/// Seconds as people say them.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.0} s"),
        s if s < 6_000.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3_600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_count_differently_are_not_one_cluster() {
        let host = Host::new("one", "h");
        let node = |members_alive| (&host, Ok(Status { members_alive, ..Status::default() }));
        assert!(are_one_cluster(&vec![node(Some(2)), node(Some(2))]));
        assert!(!are_one_cluster(&vec![node(Some(2)), node(Some(3))]));
        assert!(!are_one_cluster(&vec![node(None), node(None)]));
        assert!(!are_one_cluster(&vec![node(Some(2)), (&host, Err(HostError::WrongKey))]));
    }

    #[test]
    fn the_key_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let key = cluster_key(dir.path()).unwrap();
        assert_eq!((key.len(), cluster_key(dir.path()).unwrap()), (64, key.clone()));
        std::fs::write(dir.path().join("cluster.key"), "short").unwrap();
        assert!(cluster_key(dir.path()).unwrap_err().to_string().ends_with("5 bytes; allowed: 16 to 4096"));
    }

    #[test]
    fn a_host_that_is_not_reached_is_a_line_of_the_table() {
        let (one, two) = (Host::new("one", "h"), Host::new("two", "h"));
        let status = Status { state: "running".into(), uptime_seconds: Some(7_200.0), ..Status::default() };
        let text = table(&vec![(&one, Ok(status)), (&two, Err(HostError::DiskFull))]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("one   running  -        -        2.0 h"), "{text}");
        assert!(
            lines[2].starts_with("two   ?") && lines[2].ends_with("disk full: there is no room in its dir"),
            "{text}"
        );
    }
}
