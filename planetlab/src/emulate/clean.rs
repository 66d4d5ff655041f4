//! `violet-testbed clean`: removes what a run left that was killed, by that run's own record and nothing else.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};

use crate::Failure;
use crate::emulate::made::Made;
use crate::emulate::session::needs_root;

/// Where a run keeps its things unless told otherwise.
pub const DIRECTORY: &str = ".violet/testbed";

/// Describes `clean`.
pub fn command() -> Command {
    Command::new("clean")
        .about("Remove the namespaces, devices and processes that a killed `emulate` left, by its own record")
        .arg(directory_argument())
}

/// The directory of a run, as all sub-commands of the emulator take it.
pub fn directory_argument() -> Arg {
    Arg::new("dir")
        .long("dir")
        .value_name("DIR")
        .value_parser(value_parser!(PathBuf))
        .default_value(DIRECTORY)
        .help("Where the run keeps its record, its description and its control socket")
}

/// Does `clean`.
pub fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let directory: &PathBuf = matches.get_one("dir").expect("has a default");
    let Some(made) = Made::read(directory)? else {
        println!("nothing to remove: {} holds no record of a run", directory.display());
        return Ok(ExitCode::SUCCESS);
    };
    if made.emulator.is_alive() {
        let pid = made.emulator.pid;
        return Err(format!(
            "run {} is still there, process {pid}; end it first, and it tidies up itself",
            made.run
        )
        .into());
    }
    needs_root()?;
    let removal = made.remove(directory);
    removal.removed.iter().for_each(|thing| println!("removed {thing}"));
    removal.failed.iter().for_each(|thing| eprintln!("violet-testbed clean: {thing}"));
    Ok(if removal.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
