//! `violet-testbed emulate`: makes a world, runs a command in it or waits, and removes the world.

use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Arg, ArgMatches, Command, value_parser};

use crate::Failure;
use crate::emulate::account::Report;
use crate::emulate::clean::directory_argument;
use crate::emulate::control_command::control_argument;
use crate::emulate::link::{Links, Wishes};
use crate::emulate::made::{Process, Removal};
use crate::emulate::session::{Place, Session, needs_root};

/// How often the main thread looks whether something ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What every driver of the link model is told on the command line.
pub struct LinkArguments {
    /// The links with their timeline.
    pub links: Links,
    /// The run's directory.
    pub directory: PathBuf,
    /// The control socket.
    pub control: PathBuf,
    /// When to end if there is no command.
    pub end: Option<Duration>,
    /// The command, if there is one.
    pub words: Vec<String>,
}

impl LinkArguments {
    /// Adds the arguments to a sub-command.
    pub fn add_to(command: Command) -> Command {
        let text = |name: &'static str, value: &'static str| Arg::new(name).long(name).value_name(value);
        let number = |name| text(name, "N").value_parser(value_parser!(u64));
        let nodes = text("nodes", "N").value_parser(value_parser!(u32));
        command
            .arg(
                Arg::new("scenario")
                    .value_name("SCENARIO.toml")
                    .value_parser(value_parser!(PathBuf))
                    .help("A scenario file"),
            )
            .arg(
                text("preset", "NAME")
                    .conflicts_with("scenario")
                    .help("lan, us, global25, planetlab-like or flaky [default: lan]"),
            )
            .arg(nodes.help("Nodes [default: the scenario's, or 5]"))
            .arg(text("sites", "A,B,…").value_delimiter(',').help("The nodes' sites, in turn"))
            .arg(number("seed").help("Seed of all draws [default: the scenario's, or 1]"))
            .arg(
                number("seconds").help("End after so long, if there is no COMMAND [default: the scenario's]"),
            )
            .arg(directory_argument())
            .arg(control_argument())
            .arg(Arg::new("command").value_name("COMMAND").last(true).num_args(1..).help(
                "Runs as the client c1; without one the network is there until Ctrl-C or the scenario's end",
            ))
    }

    /// Reads them.
    pub fn read(matches: &ArgMatches) -> Result<Self, String> {
        let wishes = Wishes {
            nodes: matches.get_one("nodes").copied(),
            sites: matches.get_many("sites").unwrap_or_default().cloned().collect(),
            seed: matches.get_one("seed").copied(),
        };
        let links = match matches.get_one::<PathBuf>("scenario") {
            Some(file) => Links::from_file(file, &wishes)?,
            None => Links::from_preset(
                matches.get_one::<String>("preset").map_or("lan", String::as_str),
                &wishes,
            )?,
        };
        let directory: PathBuf = matches.get_one("dir").cloned().expect("has a default");
        Ok(Self {
            control: matches.get_one("control").cloned().unwrap_or_else(|| directory.join("control")),
            end: matches.get_one("seconds").map(|seconds| Duration::from_secs(*seconds)).or(links.length()),
            words: matches.get_many("command").unwrap_or_default().cloned().collect(),
            links,
            directory,
        })
    }
}

/// Describes `emulate`.
pub fn command() -> Command {
    let command = Command::new("emulate")
        .about("Emulate a wide-area network on this machine and run a command in it; needs root on Linux")
        .after_help(
            "Node n1 is 198.18.0.1, its namespace violet-RUN-n1 (`ip netns exec violet-RUN-n1 …`); the command runs at \
             198.19.0.1, the client c1. DIR/emulator.json lists all. \
             Exit status: the command's; 1 if the router was late.",
        )
        .arg(Arg::new("run").long("run").value_name("NAME").help("The run's name [default: made up]"));
    LinkArguments::add_to(command)
}

/// Does `emulate`.
pub fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    needs_root()?;
    let LinkArguments { links, directory, end, words, .. } = LinkArguments::read(matches)?;
    let place = Place::new(&directory, matches.get_one("control"), matches.get_one("run"))?;
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stopped))?;
    }
    let mut session = Session::open(place, links)?;
    announce(&session);
    let status = live(&mut session, &words, end, &stopped);
    let (removal, report) = session.close();
    conclude(status?, &removal, &report?)
}

fn announce(session: &Session) {
    let (place, nodes) = (session.place(), session.nodes());
    eprintln!(
        "violet-testbed: run {} with {nodes} nodes is up; described in {}",
        place.run,
        place.directory.display()
    );
    if let Some(why) = &session.router().real_time {
        eprintln!("violet-testbed: the router has no real-time priority ({why}); delays will be less exact");
    }
}

/// Waits until the command ends, the time is over or somebody says stop. Without a command the status is absent.
fn live(
    session: &mut Session,
    words: &[String],
    end: Option<Duration>,
    stopped: &AtomicBool,
) -> Result<Option<ExitStatus>, String> {
    let start = Instant::now();
    let mut child = match words {
        [] => None,
        words => Some(spawn(session, words)?),
    };
    loop {
        if let Some(child) = &mut child
            && let Some(status) = child.try_wait().map_err(|error| error.to_string())?
        {
            return Ok(Some(status));
        }
        let is_over = child.is_none() && end.is_some_and(|end| end <= start.elapsed());
        if is_over || stopped.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if session.router().has_ended() {
            return Err("the router panicked; its last words are above".into());
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn spawn(session: &mut Session, words: &[String]) -> Result<Child, String> {
    let (place, name) = (session.place().clone(), &words[0]);
    let mut command = std::process::Command::new(name);
    command
        .args(&words[1..])
        .env("VIOLET_TESTBED_DIR", &place.directory)
        .env("VIOLET_TESTBED_RUN", &place.run);
    // A shell at a terminal must stay in the terminal's own group, or it could not read.
    let leads_group = !std::io::stdin().is_terminal();
    if leads_group {
        command.process_group(0);
    }
    let child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
    let pid = i32::try_from(child.id()).map_err(|error| error.to_string())?;
    if let Some(process) = Process::of(pid, leads_group) {
        session.record_command(process)?;
    }
    Ok(child)
}

/// Prints the self-report and decides the exit status.
fn conclude(status: Option<ExitStatus>, removal: &Removal, report: &Report) -> Result<ExitCode, Failure> {
    eprint!("{report}");
    removal.failed.iter().for_each(|thing| eprintln!("violet-testbed: {thing}"));
    let code = status.map_or(0, |status| status.code().unwrap_or(128 + status.signal().unwrap_or(0)));
    let limited = i32::from(report.emulator_limited || !removal.failed.is_empty());
    let code = if code == 0 { limited } else { code };
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
