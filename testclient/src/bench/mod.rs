//! `bench`: Violet beside a bare echo server, memcached and Redis, under one generator, in one run.
//!
//! Machines differ and are never quiet, so nothing here is worth more than a ratio: in every round all
//! servers are measured one after the other ([`plan`]), ratios are taken within a round, and over the rounds
//! they have a median and an interval ([`crate::statistics`]). [`judge`] holds them against what Violet must reach
//! and names no winner where intervals overlap. The generator ([`generator`], [`ping`], [`redis`]) is not
//! that of the other commands: it prepares what it can and packs its bursts, so that one of its processors
//! can saturate the server on another. Deliberately not here: clusters (`grid`), instruction counts.

mod arguments;
mod codec;
mod contents;
mod echo;
mod engine;
mod generator;
mod judge;
mod load;
mod measure;
mod memcached;
mod ping;
mod plan;
mod probe;
mod processors;
mod redis;
mod rounds;
mod store;
mod subjects;
mod tables;

pub use arguments::{BenchArguments, EchoArguments};
pub use engine::{GeneratorArguments, run as compare_generators};
pub use store::StoreArguments;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};

use crate::report::write_json;

/// Runs the echo server until the process that started it is gone.
///
/// # Errors
/// One sentence, when it cannot serve.
pub fn echo(arguments: &EchoArguments) -> Result<bool, String> {
    echo::serve(arguments.port)
}

/// Runs the minimal store until the process that started it is gone.
///
/// # Errors
/// One sentence, when it cannot serve.
pub fn store(arguments: &StoreArguments) -> Result<bool, String> {
    store::serve(arguments.port)
}

/// Measures. True when nothing was answered wrongly.
///
/// # Errors
/// One sentence about what is wrong with the command line, or keeps a server from being measured.
pub fn run(arguments: &BenchArguments) -> Result<bool, String> {
    if arguments.list {
        for group in plan::Group::ALL {
            say(&format!("{:<14}{}\n", group.name(), group.describe()));
        }
        return Ok(true);
    }
    // Twenty minutes later would be late to learn of it.
    for path in [&arguments.json, &arguments.markdown].into_iter().flatten() {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        opened.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    let run = rounds::run(arguments)?;
    let machine = probe::Machine::look();
    let goals: Vec<judge::Judged> =
        judge::goals().iter().map(|goal| judge::judge(&run.samples, goal)).collect();
    let page = tables::markdown(&run, &machine, &goals);
    if let Some(path) = &arguments.json {
        write_json(path, &tables::Record::new(&run, machine, &goals))?;
    }
    say(&page);
    if let Some(path) = &arguments.markdown {
        fs::write(path, &page).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(run.samples.iter().all(|sample| sample.wrong == 0))
}

/// Whoever reads it may have seen enough, as `head` has.
fn say(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}
