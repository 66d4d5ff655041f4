//! `probe-agent`: one plan in, one report out, then the end, whatever happens.

use std::io::{self, Read, Write};
use std::process::{self, ExitCode};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::agent;
use super::record::AgentPlan;
use crate::Failure;

/// How long the plan may take to come.
const PLAN_WAIT: Duration = Duration::from_secs(30);
/// Bytes of a plan at most: a thousand peers take about 60 KB.
const PLAN_BYTES_MAX: u64 = 1 << 20;
/// What the agent may take beyond its own limit before it is ended: its loop is stuck then.
const SLACK: Duration = Duration::from_secs(5);
/// Exit status of an agent that was ended by its own limit.
const STUCK: i32 = 3;

/// Describes `probe-agent`.
pub fn command() -> clap::Command {
    clap::Command::new("probe-agent")
        .about("What `probe` runs on each host: reads a plan as JSON, measures, prints JSON")
        .hide(true)
}

/// Does `probe-agent`.
///
/// # Errors
/// A plan that is none, or a port that cannot be had.
pub fn run(_matches: &clap::ArgMatches) -> Result<ExitCode, Failure> {
    let plan = read_plan()?;
    let limit = agent::time_limit(&plan);
    thread::spawn(move || {
        thread::sleep(limit + SLACK);
        eprintln!("violet-testbed probe-agent: ended by its limit of {:.0} s", (limit + SLACK).as_secs_f64());
        process::exit(STUCK);
    });
    let report = agent::measure(&plan)?;
    let mut output = io::stdout().lock();
    serde_json::to_writer(&mut output, &report)?;
    writeln!(output)?;
    Ok(ExitCode::SUCCESS)
}

/// The plan from standard input. A connection that stays open without sending it ends the agent as well.
fn read_plan() -> Result<AgentPlan, Failure> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        let read = io::stdin().lock().take(PLAN_BYTES_MAX).read_to_string(&mut text);
        // Nobody listens any more once the wait is over; then the process ends anyway.
        let _gone = sender.send(read.map(|_| text));
    });
    let text = receiver
        .recv_timeout(PLAN_WAIT)
        .map_err(|_| format!("no plan came within {} s", PLAN_WAIT.as_secs()))??;
    let plan: AgentPlan =
        serde_json::from_str(&text).map_err(|error| format!("standard input is no plan: {error}"))?;
    agent::check(&plan)?;
    Ok(plan)
}
