//! The `violet` binary: command line, exit codes, signals.
//!
//! Everything that can be wrong with a start ends it with status 2 and one line on stderr.

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use violet::admin::{Admin, profile as profiles};
use violet::config::{Config, SETTINGS, Setting};
use violet::local_cluster;
use violet::server::{Clock, Server, startup};
use violet::sim::played::Played;
use violet::sim::{command, many, message_count, report};

/// Puts values on large memory pages, which matters more than any other single choice here.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Status for a start that the settings or the system do not allow.
const BAD_START_STATUS: u8 = 2;
/// How often a node with `--exit-with-parent` looks for its parent.
const PARENT_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Why a command ends early: one line for the user.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let matches = match command_line().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return usage(&error),
    };
    let result = match matches.subcommand() {
        Some(("serve", matches)) => serve(matches),
        Some(("cluster", matches)) => cluster(matches),
        Some(("profile", matches)) => profile(matches),
        Some(("sim", matches)) => simulate(matches),
        _ => unreachable!("clap demands one of the subcommands above"),
    };
    result.unwrap_or_else(|failure| fail(&failure.to_string()))
}

fn command_line() -> Command {
    Command::new("violet")
        .about("A key-value cluster that speaks UDP")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve_command())
        .subcommand(cluster_command())
        .subcommand(profile_command())
        .subcommand(command::command())
}

/// Help and version go to stdout; a wrong command line is one line, as every bad start.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Nothing can be done about a closed stdout.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(BAD_START_STATUS);
    }
    let text = error.to_string();
    let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    let line = lines.collect::<Vec<_>>().join(" ");
    fail(&format!("{} (see --help)", line.trim_start_matches("error: ")))
}

fn fail(line: &str) -> ExitCode {
    eprintln!("violet: {}", line.replace('\n', " "));
    ExitCode::from(BAD_START_STATUS)
}

fn serve_command() -> Command {
    let config = Arg::new("config")
        .long("config")
        .value_name("file")
        .help("TOML file with settings, NAME = VALUE. Environment and flags override it.")
        .value_parser(value_parser!(PathBuf));
    let parent = Arg::new("exit-with-parent")
        .long("exit-with-parent")
        .value_name("pid")
        .help("End when this is no longer the parent process.")
        .value_parser(value_parser!(u32))
        .hide(true);
    Command::new("serve")
        .about("Runs one node in the foreground")
        .arg(config)
        .arg(parent)
        .args(SETTINGS.iter().map(setting_flag))
}

fn setting_flag(setting: &Setting) -> Arg {
    let default = if setting.default.is_empty() { "none" } else { setting.default };
    let help = format!(
        "{} [default: {default}; allowed: {}; env: {}]",
        setting.doc,
        setting.allowed(),
        setting.env()
    );
    // Bad values, negative numbers included, are the table's to refuse: it knows the range.
    Arg::new(setting.name)
        .long(setting.name)
        .value_name(setting.unit)
        .help(help)
        .action(ArgAction::Set)
        .allow_negative_numbers(true)
}

fn serve(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let config = load_config(matches)?;
    let clock = Clock::start();
    let birth = startup::birth(&config, clock.now())?;
    let members = birth.members.clone();
    // Signals that come from now on wait for the loop below.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let admin = config.admin.map(Admin::bind).transpose()?;
    let server = Server::start(&config, clock, birth)?;
    let admin = admin.map(|listener| Admin::serve(listener, server.node())).transpose()?;
    if let Some(parent) = matches.get_one::<u32>("exit-with-parent") {
        exit_with_parent(*parent)?;
    }
    announce(&config, &server, &members);
    signals.forever().next();
    server.leave();
    if let Some(admin) = admin {
        admin.stop();
    }
    server.stop();
    Ok(ExitCode::SUCCESS)
}

fn load_config(matches: &ArgMatches) -> Result<Config, Failure> {
    let path = matches.get_one::<PathBuf>("config");
    let text = path.map(|path| read_config(path)).transpose()?;
    let file = path.map(PathBuf::as_path).zip(text.as_deref());
    let environment = |name: &str| std::env::var(name).ok();
    let flag = |name: &str| matches.get_one::<String>(name).cloned();
    Ok(Config::load(file, environment, flag)?)
}

fn read_config(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| format!("config: {}: {error}", path.display()).into())
}

/// The line that says the node is ready, after what the user should know about it.
fn announce(config: &Config, server: &Server, members: &[SocketAddr]) {
    if startup::has_development_key(config) {
        eprintln!("violet: no cluster-key-file: using the development key, on loopback only");
    }
    if let Some(notice) = startup::unlisted(config, members) {
        eprintln!("violet: {notice}");
    }
    let members_listed = members.len();
    let (workers, plural) = (server.workers(), if server.workers() == 1 { "" } else { "s" });
    let sorting = if server.is_steered() { "" } else { ", one shared lane" };
    println!(
        "violet: ready on {}, pid {}, {members_listed} members listed, receive buffers {} bytes granted, \
         {workers} worker{plural}{sorting}",
        server.address(),
        std::process::id(),
        server.granted(),
    );
}

/// Ends the process when it is orphaned, so that nodes of a local cluster never outlive it, not even
/// when it was killed in a way that it could not see.
fn exit_with_parent(parent: u32) -> Result<(), Failure> {
    let watch = move || {
        while std::os::unix::process::parent_id() == parent {
            std::thread::sleep(PARENT_CHECK_INTERVAL);
        }
        eprintln!("violet: the process that started this node is gone");
        std::process::exit(1);
    };
    std::thread::Builder::new().name("v-parent".into()).spawn(watch)?;
    Ok(())
}

fn cluster_command() -> Command {
    let flag = |name: &'static str, unit: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(unit).help(help)
    };
    Command::new("cluster")
        .about("Runs a cluster on this machine, one process per node")
        .arg(
            flag("nodes", "nodes", "Number of nodes, 1 to 256.")
                .default_value("15")
                .value_parser(value_parser!(usize)),
        )
        .arg(
            flag("port", "port", "UDP port of the first node; the others follow.")
                .default_value("4410")
                .value_parser(value_parser!(u16).range(1..)),
        )
        .arg(
            flag(
                "admin-port",
                "port",
                "TCP port of the first node's admin server; the others follow. None if not given.",
            )
            .value_parser(value_parser!(u16).range(1..)),
        )
        .arg(
            flag("dir", "directory", "Where server list, key, process ids and logs go.")
                .default_value(".violet")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            flag("set", "name=value", "A setting for every node; see 'violet serve --help'.")
                .action(ArgAction::Append),
        )
        .arg(
            Arg::new("command")
                .help(
                    "What to run once the cluster is ready, with VIOLET_SERVERS set; its status is returned.",
                )
                .value_name("command")
                .num_args(0..)
                .last(true),
        )
}

fn cluster(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let strings = |name: &str| matches.get_many::<String>(name).into_iter().flatten();
    let settings = strings("set").map(|text| match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(format!("--set: '{text}' is not allowed; allowed: name=value")),
    });
    let plan = local_cluster::Plan {
        program: std::env::current_exe()?,
        nodes: given(matches, "nodes"),
        port: given(matches, "port"),
        admin_port: matches.get_one("admin-port").copied(),
        directory: given(matches, "dir"),
        settings: settings.collect::<Result<_, _>>()?,
        command: strings("command").cloned().collect(),
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(ExitCode::from(local_cluster::run(&plan, &interrupted)?))
}

/// The value of a flag that has a default or is required.
fn given<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, name: &str) -> T {
    matches.get_one::<T>(name).expect("the flag has a default or is required").clone()
}

fn profile_command() -> Command {
    let seconds = profiles::SECONDS;
    Command::new("profile")
        .about("Fetches a flame graph (SVG) of a running node")
        .arg(
            Arg::new("node")
                .long("node")
                .value_name("address")
                .help("Admin address of the node (its setting 'admin').")
                .required(true)
                .value_parser(value_parser!(SocketAddr)),
        )
        .arg(
            Arg::new("seconds")
                .long("seconds")
                .value_name("s")
                .help(format!("How long to sample, {} to {}.", seconds.start(), seconds.end()))
                .default_value("10")
                .value_parser(value_parser!(u64).range(seconds)),
        )
        .arg(
            Arg::new("system")
                .long("system")
                .help("Count time in system calls, too, at a small risk of a deadlock in the node.")
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new("output")
                .long("output")
                .value_name("file")
                .help("Where to write it.")
                .default_value("flamegraph.svg")
                .value_parser(value_parser!(PathBuf)),
        )
}

fn profile(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let output: PathBuf = given(matches, "output");
    let svg = profiles::fetch(given(matches, "node"), given(matches, "seconds"), matches.get_flag("system"))?;
    std::fs::write(&output, svg).map_err(|error| format!("{}: {error}", output.display()))?;
    println!("{}", output.display());
    Ok(ExitCode::SUCCESS)
}

/// Runs the simulator: status 0 when every claim was kept, 1 when not.
fn simulate(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    // Whoever reads it may have seen enough, as `head` has; the exit status still tells.
    let say = |text: &str| drop(std::io::stdout().write_all(text.as_bytes()));
    if command::wants_count(matches) {
        say(&message_count::table());
        return Ok(ExitCode::SUCCESS);
    }
    let read = |file: &str| {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
        Played::read(file, &text)
    };
    let played = command::timeline(matches).map(read).transpose()?;
    let command::Request { options, seeds, threads } = command::request(matches, played);
    let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = threads.unwrap_or_else(cores);
    let clock = Clock::start();
    let begun = clock.now();
    let summary = many::run_many(&options, seeds, threads, |run| {
        if !run.findings.violations.is_empty() {
            say(&format!("{}\n", report::story_of(run, &options)));
        }
    });
    say(&summary.text());
    let took = clock.now().since(begun);
    say(&format!(
        "{:.1} s of real time on up to {threads} threads, {:.0} times as fast\n",
        took.as_secs_f64(),
        summary.simulated().div_duration_f64(took)
    ));
    Ok(ExitCode::from(u8::from(0 < summary.failed)))
}
