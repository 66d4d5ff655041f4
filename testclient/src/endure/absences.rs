//! Nodes that are away for a long while and come back with all that they knew.

use std::time::{Duration, Instant};

use super::trial::{Tolerance, Trial};
use crate::cluster::{Finding, StageResult};

/// Load before the fault.
const LOAD_BEFORE: Duration = Duration::from_secs(2);
/// After the resume nothing is read for this long: what comes back must come back without reads.
const UNREAD_AFTER_RESUME: Duration = Duration::from_secs(30);
/// How long the members may take to agree who is alive.
const COUNTS_MAX: Duration = Duration::from_secs(15);

/// Two nodes are stopped (SIGSTOP) while writes and removals go on and nothing reads; they resume, and half a
/// minute later everything must be right through every node.
pub fn suspend(trial: &mut Trial) -> StageResult {
    stand_still(trial, Tolerance::None)
}

/// The same with memory for few hints, so that nobody can tell the two what they have missed: they, or the
/// others, have to find the differences. That may take its time.
pub fn suspend_few_hints(trial: &mut Trial) -> StageResult {
    stand_still(trial, Tolerance::Delay)
}

fn stand_still(trial: &mut Trial, tolerance: Tolerance) -> StageResult {
    let everyone: Vec<usize> = (0..trial.nodes.addresses().len()).collect();
    trial.start_cluster(&everyone)?;
    trial.fill()?;
    trial.shared.allow_reads(false);
    let traffic = trial.load(&everyone)?;
    std::thread::sleep(LOAD_BEFORE);
    let victims: Vec<usize> = trial.shuffled(&everyone)[..2].to_vec();
    let others: Vec<usize> = everyone.iter().copied().filter(|node| !victims.contains(node)).collect();
    let pause = trial.seconds_or(90);
    traffic.ask_via(&others);
    trial.nodes.stop(&victims).map_err(Finding::Undecided)?;
    let stopped = Instant::now();
    trial.say(&format!("nodes {victims:?} stopped for {} s", pause.as_secs()));
    trial.await_counts("while stopped", &others, COUNTS_MAX.min(pause));
    std::thread::sleep(pause.saturating_sub(stopped.elapsed()));
    trial.nodes.resume(&victims).map_err(Finding::Undecided)?;
    let resumed = Instant::now();
    trial.await_counts("after the resume", &everyone, COUNTS_MAX);
    traffic.ask_via(&everyone);
    std::thread::sleep(UNREAD_AFTER_RESUME.saturating_sub(resumed.elapsed()));
    trial.end_load(traffic)?;
    trial.judge_load("while nothing was read");
    let swept = trial.sweep("half a minute after the resume", &everyone, resumed, tolerance)?;
    trial.claim(swept.disagreed == 0, || format!("{} keys differ between nodes", swept.disagreed));
    trial.await_healed("after the resume", &everyone);
    trial.check_processes();
    Ok(())
}
