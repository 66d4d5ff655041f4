//! The command line: what can be asked for, in which units, and the server list.
//!
//! Each field of the argument structs is one flag, and its comment is the flag's help. Lists of servers
//! are read by the client library. Everything wrong with them is one sentence for standard error.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use violet_client::{Format, servers};

/// Checks and loads key-value servers that speak the UDP course protocol, any of them.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The things this program does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs conformance stages: what the course's graders check, one by one. Wipes the servers' data.
    Check(CheckArguments),
    /// Runs closed loops: S = all clients ask the first server, R = a random server per request, Z = a server that
    /// holds the key. Wipes the servers' data.
    Grid(GridArguments),
    /// Makes load at a rate, whatever the servers do (or with --clients, as fast as they answer), and checks every answer.
    Load(crate::load_command::LoadArguments),
    /// Runs fault scenarios: starts violet nodes of its own, kills, stops, adds and removes them under load,
    /// and judges what clients see.
    Endure(EndureArguments),
    /// Takes flame graphs of violet nodes under a constant load, and compares them.
    Flame(crate::flame::FlameArguments),
    /// Runs a plan: a list of steps from conformance to faults, shipped or in a TOML file, with one result.
    Run(crate::plan::RunPlanArguments),
    /// Waits for orders of `run --agents`, so that several machines make load together.
    Agent(crate::agents::AgentArguments),
    /// Reports about results: on the terminal, as a page for a browser, Markdown, CSV, HdrHistogram logs; and holds them
    /// against thresholds.
    Report(crate::reports::ReportArguments),
    /// Holds results against the first one, with a verdict that knows about noise.
    Compare(crate::reports::CompareArguments),
    /// Measures one Violet node beside an echo server, memcached and Redis, all started here, and judges the
    /// ratios.
    #[cfg(target_os = "linux")]
    Bench(crate::bench::BenchArguments),
    /// The echo server that is measured.
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    BenchEcho(crate::bench::EchoArguments),
    /// Measures this program's load engine beside the bare generator of `bench`, on one processor.
    #[cfg(target_os = "linux")]
    Generator(crate::bench::GeneratorArguments),
    /// The store that both ask.
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    BenchStore(crate::bench::StoreArguments),
}

/// What every command takes.
#[derive(Clone, Debug, Args)]
pub struct RunArguments {
    /// The generation of the protocol; protobuf when not given, but `check` runs both.
    #[arg(long)]
    pub format: Option<FormatChoice>,
    /// Repeats a run: the same values and draws, not the timing. Keys on servers that others may use, too, have names of
    /// their own in each run. Drawn and printed when not given.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Writes everything that was seen to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// What the commands take that run against servers of others.
#[derive(Clone, Debug, Args)]
pub struct CommonArguments {
    /// A file with one host:port a line, or host:port,host:port,…
    #[arg(long, env = "VIOLET_SERVERS", value_name = "FILE|LIST")]
    pub servers: Option<String>,
    /// How the run is made.
    #[command(flatten)]
    pub run: RunArguments,
}

/// The protocol generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatChoice {
    /// The fixed layout of 2015 and 2016.
    Raw,
    /// The checksummed envelope of 2017 to 2025.
    Protobuf,
}

impl From<FormatChoice> for Format {
    fn from(choice: FormatChoice) -> Self {
        match choice {
            FormatChoice::Raw => Self::Raw,
            FormatChoice::Protobuf => Self::Protobuf,
        }
    }
}

/// How servers are made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KillMode {
    /// The SHUTDOWN command.
    Shutdown,
    /// kill -9 of the process that the server reports (loopback only).
    Kill9,
}

/// Options of `check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArguments {
    /// The servers, and what every command takes.
    #[command(flatten)]
    pub common: CommonArguments,
    /// Only these stages, comma separated; those that need a switch still need it.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub stages: Vec<String>,
    /// Prints the stages and ends.
    #[arg(long)]
    pub list: bool,
    /// Also runs what fills and kills the cluster: capacity and crash.
    #[arg(long)]
    pub destructive: bool,
    /// Also stops and resumes servers (SIGSTOP, SIGCONT; loopback only).
    #[arg(long)]
    pub suspend: bool,
    /// How `crash` ends its servers.
    #[arg(long, default_value = "shutdown")]
    pub kill_mode: KillMode,
    /// How many servers `crash` and `suspend` take; 1 of up to four servers, else 2.
    #[arg(long, value_name = "COUNT")]
    pub fault_nodes: Option<usize>,
    /// How long `suspend` keeps its servers stopped.
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    pub suspend_seconds: u64,
    /// How much `capacity` stores at most.
    #[arg(long, default_value_t = 2_048, value_name = "MIB")]
    pub capacity_mib: u64,
}

/// Options of `grid`.
#[derive(Clone, Debug, Args)]
pub struct GridArguments {
    /// The servers, and what every command takes.
    #[command(flatten)]
    pub common: CommonArguments,
    /// How long each cell lasts.
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
    pub seconds: f64,
    /// The cells, S, R or Z and a number of clients; the original's grid when not given. In Z cells clients know which
    /// server holds a key and ask that (Violet only).
    #[arg(long, value_delimiter = ',', value_name = "S1,R16,…")]
    pub cells: Vec<String>,
    /// Runs a Z cell beside each R cell.
    #[arg(long)]
    pub zero_hop: bool,
    /// Shorthand for an S and an R cell with each of these numbers of clients.
    #[arg(long, value_delimiter = ',', conflicts_with = "cells", value_name = "1,16,…")]
    pub clients: Vec<usize>,
    /// Values of exactly this many bytes instead of a random 1 to 1,000.
    #[arg(long, value_name = "BYTES")]
    pub value_bytes: Option<usize>,
    /// Threads of the generator; one is enough for tens of thousands of requests a second.
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    pub threads: usize,
    /// Instead of the grid: finds the saturating number of clients and runs four times as many.
    #[arg(long)]
    pub overload: bool,
}

/// Options of `endure`.
#[derive(Clone, Debug, Args)]
pub struct EndureArguments {
    /// The scenarios, one after the other; or all.
    #[arg(value_name = "SCENARIO")]
    pub scenarios: Vec<String>,
    /// Prints the scenarios and ends.
    #[arg(long)]
    pub list: bool,
    /// The violet binary to run.
    #[arg(long, value_name = "FILE")]
    pub violet: Option<PathBuf>,
    /// Number of nodes; each scenario has its own when not given.
    #[arg(long, value_name = "COUNT")]
    pub nodes: Option<usize>,
    /// Number of keys; each scenario has its own when not given.
    #[arg(long, value_name = "COUNT")]
    pub keys: Option<u64>,
    /// Where member lists and logs go, a directory for each scenario in it.
    #[arg(long, default_value = ".violet/endure", value_name = "DIR")]
    pub dir: PathBuf,
    /// Port of the first node; the others follow.
    #[arg(long, default_value_t = 25_410)]
    pub port: u16,
    /// How long the fault of a scenario lasts, or the load between two faults; each has its own when not given.
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<u64>,
    /// How often a scenario with rounds repeats its fault.
    #[arg(long, value_name = "COUNT")]
    pub rounds: Option<usize>,
    /// A setting for every node, NAME=VALUE; see `violet serve --help`.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub settings: Vec<String>,
    /// How the run is made.
    #[command(flatten)]
    pub run: RunArguments,
    /// A scenario that cannot be run here does not count as failed.
    #[arg(long)]
    pub allow_skip: bool,
    /// This process has a network namespace of its own already.
    #[arg(long, hide = true)]
    pub inside_namespace: bool,
}

impl EndureArguments {
    /// The same options for another process of this program, all but the scenarios and the result file.
    pub fn repeated(&self, seed: u64) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let mut push = |name: &str, value: Option<OsString>| {
            if let Some(value) = value {
                arguments.extend([OsString::from(name), value]);
            }
        };
        let text = |value: &dyn ToString| Some(OsString::from(value.to_string()));
        push("--violet", self.violet.as_ref().map(|path| path.clone().into_os_string()));
        push("--dir", Some(self.dir.clone().into_os_string()));
        push("--port", text(&self.port));
        push("--seed", text(&seed));
        push("--nodes", self.nodes.and_then(|value| text(&value)));
        push("--keys", self.keys.and_then(|value| text(&value)));
        push("--seconds", self.seconds.and_then(|value| text(&value)));
        push("--rounds", self.rounds.and_then(|value| text(&value)));
        let format = self.run.format.and_then(|format| format.to_possible_value());
        push("--format", format.map(|format| format.get_name().into()));
        self.settings.iter().for_each(|setting| push("--set", Some(setting.into())));
        arguments
    }
}

impl CommonArguments {
    /// The servers that were named.
    ///
    /// # Errors
    /// One sentence that says what is wrong and where.
    pub fn servers(&self) -> Result<Vec<SocketAddr>, String> {
        let text = self.servers.as_deref().ok_or("name the servers with --servers or in VIOLET_SERVERS")?;
        parse_servers(text)
    }
}

/// Reads a server list, each server once: a server that is named twice would be asked, wiped and
/// counted twice.
pub fn parse_servers(text: &str) -> Result<Vec<SocketAddr>, String> {
    let servers = servers::load(text).map_err(|error| error.to_string())?;
    let mut sorted: Vec<SocketAddr> = servers.iter().map(|server| server.address).collect();
    sorted.sort();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("the server list {text} names {} twice", pair[0])),
        None => Ok(servers.into_iter().map(|server| server.address).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn options_are_repeated_for_another_process() {
        let line = "t endure halves --violet v --dir d --port 7 --seed 9 --nodes 4 --keys 5 --seconds 6 \
                    --rounds 8 --format raw --set a=b --set c=d";
        let parse = |line: Vec<OsString>| match Arguments::parse_from(line).command {
            Command::Endure(arguments) => arguments,
            other => panic!("{other:?}"),
        };
        let first = parse(line.split_whitespace().map(OsString::from).collect());
        let mut again: Vec<OsString> = ["t", "endure", "halves"].map(OsString::from).to_vec();
        again.extend(first.repeated(9));
        assert_eq!(format!("{:?}", parse(again)), format!("{first:?}"));
    }

    #[test]
    fn lists_are_read_and_bad_ones_named() {
        let list = parse_servers("127.0.0.1:1,localhost:2, 127.0.0.1:3").unwrap();
        assert_eq!(list.iter().map(SocketAddr::port).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(list.iter().all(SocketAddr::is_ipv4));
        let check = |text: &str, expected: &str| {
            let error = parse_servers(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert_eq!(error.lines().count(), 1);
        };
        check("/nowhere/nodes.txt", "\"/nowhere/nodes.txt\" is neither an existing file nor HOST:PORT");
        check("127.0.0.1:1,127.0.0.1", "\"127.0.0.1\"");
        check("127.0.0.1:70000", "\"127.0.0.1:70000\"");
        check("127.0.0.1:1,127.0.0.1:1", "names 127.0.0.1:1 twice");
    }
}
