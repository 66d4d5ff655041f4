//! `violet-testbed`: wide-area runs of violet, on an emulated world within one Linux machine or on real hosts.
//!
//! Each sub-command is a module with a `command()` that describes it and a `run()` that does it; this file only
//! joins them and turns results into an exit status: 0 good, 1 something that was measured or some host failed,
//! 2 bad input, told in one line on stderr. It knows violet's programs only as processes.

mod campaign;
mod deploy;
mod emulate;
mod inventory;
mod logs;
mod nodes;
mod probe;
mod proxy;
mod remote;
mod report;
mod select;
mod trial;
mod when;

use std::process::ExitCode;

/// What ends a sub-command that cannot do what it was asked to: one line that names the place and what would be right.
pub type Failure = Box<dyn std::error::Error>;

type Run = fn(&clap::ArgMatches) -> Result<ExitCode, Failure>;

/// The sub-commands, one line each.
fn commands() -> Vec<(clap::Command, Run)> {
    vec![
        (emulate::command(), emulate::run),
        (emulate::control_command::command(), emulate::control_command::run),
        (emulate::clean::command(), emulate::clean::run),
        (emulate::accuracy::command(), emulate::accuracy::run),
        (inventory::command(), inventory::run),
        (probe::agent_command::command(), probe::agent_command::run),
        (probe::command::command(), probe::command::run),
        (select::rank_command(), select::run_rank),
        (select::command(), select::run),
        (trial::command(), trial::run),
        (deploy::command(), deploy::run),
        (nodes::start_command(), nodes::start),
        (nodes::stop_command(), nodes::stop),
        (nodes::status_command(), nodes::status),
        (nodes::restart_command(), nodes::restart),
        (nodes::on_host::command(), nodes::on_host::run),
        (logs::command(), logs::run),
        (campaign::command(), campaign::run),
        (campaign::schedule_command(), campaign::run_schedule),
        (campaign::fetch_command(), campaign::run_fetch),
        (report::command(), report::run),
        (proxy::command(), proxy::run),
    ]
}

fn main() -> ExitCode {
    let (described, runs): (Vec<_>, Vec<_>) = commands()
        .into_iter()
        .map(|(command, run)| (command.clone(), (command.get_name().to_owned(), run)))
        .unzip();
    let whole = clap::Command::new("violet-testbed")
        .about("Wide-area runs of violet: emulated on one machine, or on hosts reached by ssh")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(described);
    let matches = whole.get_matches();
    let (name, matches) = matches.subcommand().expect("clap demands a sub-command");
    let (_, run) = runs.into_iter().find(|(known, _)| known == name).expect("clap knows the same names");
    run(matches).unwrap_or_else(|failure| {
        eprintln!("violet-testbed {name}: {failure}");
        ExitCode::from(2)
    })
}
