//! `bench`: Violet beside a bare echo server, memcached and Redis, under one generator, in one run.
//!
//! Machines differ and are never quiet, so nothing here is worth more than a ratio: in every round all
//! servers are measured one after the other ([`plan`]), ratios are taken within a round, and over the rounds
//! they have a median and an interval ([`statistics`]). [`judge`] holds them against what Violet must reach
//! and names no winner where intervals overlap. The generator ([`generator`], [`ping`], [`redis`]) is not
//! that of the other commands: it prepares what it can and packs its bursts, so that one of its processors
//! can saturate the server on another. Deliberately not here: clusters (`grid`), instruction counts.

mod arguments;
mod codec;
mod contents;
mod echo;
mod generator;
mod load;
mod measure;
mod memcached;
mod ping;
mod plan;
mod probe;
mod processors;
mod redis;
mod rounds;
mod sockets;
mod subjects;

pub use arguments::{BenchArguments, EchoArguments};

/// Runs the echo server until the process that started it is gone.
///
/// # Errors
/// One sentence, when it cannot serve.
pub fn echo(arguments: &EchoArguments) -> Result<bool, String> {
    echo::serve(arguments.port)
}

/// Measures. True when nothing was answered wrongly.
///
/// # Errors
/// One sentence about what is wrong with the command line, or keeps a server from being measured.
pub fn run(arguments: &BenchArguments) -> Result<bool, String> {
    if arguments.list {
        for group in plan::Group::ALL {
            println!("{:<14}{}", group.name(), group.describe());
        }
        return Ok(true);
    }
    let run = rounds::run(arguments)?;
    for s in &run.samples {
        println!(
            "{:2} {:45} {:9.0}/s sent {:9.0} cpu {:6.3} cores {:4.2} gen {:4.2}{} p50 {:7.1} p99 {:7.1} p999 {:7.1} lost {} wrong {} ref {} stray {} drops {}/{} others {:4.2} steal {:4.2} late {:?}",
            s.round,
            s.cell,
            s.answered_per_second,
            s.sent_per_second,
            s.server_cpu_us_per_request,
            s.server_cores,
            s.generator_share,
            if s.is_generator_limited { "!" } else { " " },
            s.latency_us.p50,
            s.latency_us.p99,
            s.latency_us.p999,
            s.lost,
            s.wrong,
            s.refused,
            s.stray,
            s.server_drops,
            s.client_drops,
            s.others_cores,
            s.steal_share,
            s.lateness_p99_us
        );
    }
    Ok(true)
}
