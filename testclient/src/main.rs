//! A black-box test client for clusters that speak the course protocol: conformance stages,
//! load at a rate or in closed loops in the manner of the course's graders, fault scenarios with processes of its own, and
//! measurements beside other servers (Linux only).
//!
//! It knows nothing but the public protocol, so it can be pointed at any server; only the fault
//! scenarios, the flame graphs and the measurements start violet's binary. This file reads the command line and turns
//! results into an exit status: 0 all well, 1 something failed, 2 wrong usage.

mod agents;
mod alive;
mod batch;
#[cfg(target_os = "linux")]
mod bench;
mod check_command;
mod cluster;
mod craft;
mod endure;
mod flame;
mod grid;
mod grid_command;
mod host;
mod interrupt;
mod keyset;
mod load;
mod load_command;
mod machine;
mod names;
mod plan;
mod report;
mod reports;
mod result;
mod routes;
mod settings;
#[cfg(target_os = "linux")]
mod sockets;
mod stages;
mod statistics;
mod tally;
mod values;
mod workload;

use std::process::ExitCode;

use clap::Parser;

use crate::settings::{Arguments, Command};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Check(arguments) => check_command::run(&arguments),
        Command::Grid(arguments) => grid_command::run(&arguments),
        Command::Load(arguments) => load_command::run(&arguments),
        Command::Endure(arguments) => endure::run(&arguments),
        Command::Flame(arguments) => flame::run(&arguments),
        Command::Run(arguments) => plan::run(&arguments),
        Command::Agent(arguments) => agents::run(&arguments),
        Command::Report(arguments) => reports::report(&arguments),
        Command::Compare(arguments) => reports::compare(&arguments),
        #[cfg(target_os = "linux")]
        Command::Bench(arguments) => bench::run(&arguments),
        #[cfg(target_os = "linux")]
        Command::BenchEcho(arguments) => bench::echo(&arguments),
        #[cfg(target_os = "linux")]
        Command::Generator(arguments) => bench::compare_generators(&arguments),
        #[cfg(target_os = "linux")]
        Command::BenchStore(arguments) => bench::store(&arguments),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("violet-testclient: {reason}");
            ExitCode::from(2)
        }
    }
}
