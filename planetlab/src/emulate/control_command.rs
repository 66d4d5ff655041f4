//! `violet-testbed control`: tells a running `emulate` one thing and prints the answer.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};

use crate::Failure;
use crate::emulate::clean::directory_argument;
use crate::emulate::control;

/// Describes `control`.
pub fn command() -> Command {
    Command::new("control")
        .about("Change a running emulated world, or ask it: partition, isolate, heal, set, scale, stats, pcap")
        .arg(directory_argument())
        .arg(control_argument())
        .arg(
            Arg::new("command")
                .value_name("COMMAND")
                .required(true)
                .num_args(1..)
                .trailing_var_arg(true)
                .allow_hyphen_values(true)
                .help("As in `isolate n3`, `partition n1-n5|n6-n15`, `set n1 n2 delay=80ms loss=1%`, `pcap n3 FILE`"),
        )
}

/// The socket, where it is not in the directory.
pub fn control_argument() -> Arg {
    Arg::new("control")
        .long("control")
        .value_name("PATH")
        .value_parser(value_parser!(PathBuf))
        .help("The control socket [default: DIR/control]")
}

/// Does `control`.
pub fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let directory: &PathBuf = matches.get_one("dir").expect("has a default");
    let socket = matches.get_one("control").cloned().unwrap_or_else(|| directory.join("control"));
    let mut words: Vec<String> = matches.get_many("command").expect("is required").cloned().collect();
    // The emulator may have another working directory.
    if let [first, _, file] = &mut words[..]
        && first == "pcap"
    {
        *file = std::path::absolute(&file)?.display().to_string();
    }
    let answer = control::ask(&socket, &words.join(" "))?;
    println!("{answer:#}");
    Ok(ExitCode::SUCCESS)
}
