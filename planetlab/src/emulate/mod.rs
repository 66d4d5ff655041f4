//! `violet-testbed emulate`: an emulated wide-area network on one Linux machine.

use std::process::ExitCode;

use crate::Failure;

/// Describes `emulate`.
pub fn command() -> clap::Command {
    clap::Command::new("emulate").about("Emulate a wide-area network on this machine; needs root on Linux")
}

/// Does `emulate`.
pub fn run(_matches: &clap::ArgMatches) -> Result<ExitCode, Failure> {
    Err("the emulator is not built in yet".into())
}
