//! Nodes that are killed and come back empty: one by one, in pairs, in turn, and all at once.

use std::time::{Duration, Instant};

use super::history::Deed;
use super::trial::{CONVERGED_MAX, Tolerance, Trial};
use crate::cluster::{Finding, StageResult};

/// Load between faults.
const LOAD_BETWEEN_SECONDS: u64 = 2;
/// How soon after a restart of everything the counts must be right.
const COUNTS_AFTER_MASS_RESTART: Duration = Duration::from_secs(15);
/// Within this all nodes are killed and started again.
const MASS_RESTART: Duration = Duration::from_secs(2);
/// Pauses between the nodes that are restarted in turn, all together.
const IN_TURN: Duration = Duration::from_secs(1);

/// Each node once, then all again in pairs: kill -9, restart at once with the same command, under load.
pub fn restart_empty(trial: &mut Trial) -> StageResult {
    let everyone: Vec<usize> = (0..trial.nodes.addresses().len()).collect();
    trial.start_cluster(&everyone)?;
    trial.fill()?;
    trial.leave_some_unread();
    let singles = trial.shuffled(&everyone);
    let pairs = trial.shuffled(&everyone);
    let groups: Vec<Vec<usize>> =
        singles.iter().map(|&node| vec![node]).chain(pairs.chunks_exact(2).map(<[usize]>::to_vec)).collect();
    let rounds = trial.rounds_or(groups.len()).min(groups.len());
    let traffic = trial.load(&everyone)?;
    for (round, group) in groups[..rounds].iter().enumerate() {
        std::thread::sleep(trial.seconds_or(LOAD_BETWEEN_SECONDS));
        let when = format!("round {} (nodes {group:?})", round + 1);
        trial.nodes.kill(group);
        let since = Instant::now();
        for &node in group {
            trial.nodes.start_again(node).map_err(Finding::Undecided)?;
        }
        trial.await_healed(&when, &everyone);
        trial.sweep(&when, &everyone, since, Tolerance::None)?;
        trial.judge_load(&when);
        trial.check_processes();
    }
    trial.end_load(traffic)?;
    trial.final_sweep(&everyone)?;
    Ok(())
}

/// How a node is taken down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Down {
    /// SIGTERM: it may say good-bye.
    Told,
    /// kill -9.
    Killed,
}

/// One node after the other is told to end, or killed, and started again; healed in between.
pub fn rolling_restart(trial: &mut Trial) -> StageResult {
    let everyone: Vec<usize> = (0..trial.nodes.addresses().len()).collect();
    trial.start_cluster(&everyone)?;
    trial.fill()?;
    trial.leave_some_unread();
    let traffic = trial.load(&everyone)?;
    for (down, name) in [(Down::Told, "SIGTERM"), (Down::Killed, "kill -9")] {
        for &node in &everyone {
            std::thread::sleep(trial.seconds_or(LOAD_BETWEEN_SECONDS));
            let when = format!("{name} of node {node}");
            let others: Vec<usize> = everyone.iter().copied().filter(|&other| other != node).collect();
            traffic.ask_via(&others);
            let since = Instant::now();
            take_down(trial, down, node, &when);
            trial.nodes.start_again(node).map_err(Finding::Undecided)?;
            trial.await_healed(&when, &everyone);
            traffic.ask_via(&everyone);
            trial.sweep(&when, &everyone, since, Tolerance::None)?;
            trial.judge_load(&when);
            trial.check_processes();
        }
    }
    trial.end_load(traffic)?;
    trial.final_sweep(&everyone)?;
    Ok(())
}

fn take_down(trial: &mut Trial, down: Down, node: usize, when: &str) {
    if down == Down::Told {
        match trial.nodes.terminate(node) {
            Ok(took) => return trial.figure(format!("{when}: ended after"), took.as_secs_f64(), "s"),
            Err(why) => trial.break_claim(why),
        }
    }
    trial.nodes.kill(&[node]);
}

/// All nodes are killed and started again, many times: in odd rounds all at the same moment, in even ones in
/// turn. The data goes with them (it is in memory only), but the cluster must be whole and usable at once,
/// and nothing of an earlier round may come back.
pub fn mass_restart(trial: &mut Trial) -> StageResult {
    let everyone: Vec<usize> = (0..trial.nodes.addresses().len()).collect();
    trial.remark("data is in memory only: a restart of all nodes loses it, which is no fault here");
    trial.start_cluster(&everyone)?;
    trial.fill()?;
    let (mut slowest_counts, mut slowest_write) = (Duration::ZERO, Duration::ZERO);
    for round in 1..=trial.rounds_or(20) {
        let when = format!("round {round}");
        let begun = Instant::now();
        if round % 2 == 1 {
            all_at_once(trial, &everyone)?
        } else {
            all_in_turn(trial, &everyone)?
        }
        let took = begun.elapsed();
        if MASS_RESTART < took {
            let seconds = took.as_secs_f64();
            trial.remark(format!("{when}: killing and starting took {seconds:.1} s: the machine is busy"));
        }
        let since = Instant::now();
        slowest_write = slowest_write.max(first_writes(trial, &when, &everyone)?);
        let left = COUNTS_AFTER_MASS_RESTART.saturating_sub(since.elapsed());
        trial.await_counts(&when, &everyone, left);
        slowest_counts = slowest_counts.max(since.elapsed());
        trial.sweep(&when, &everyone, since, Tolerance::None)?;
        let removed = (0..trial.busy()).filter(|number| number % 3 == 0).collect();
        trial.settle_all(&everyone, Deed::Remove, removed)?;
        trial.check_processes();
    }
    trial.figure("slowest: counts right after", slowest_counts.as_secs_f64(), "s");
    trial.figure("slowest: first writes after", slowest_write.as_secs_f64(), "s");
    Ok(())
}

/// No process is left at one moment, so everything must be gone.
fn all_at_once(trial: &mut Trial, everyone: &[usize]) -> StageResult {
    trial.nodes.kill(everyone);
    let gone = trial.shared.now();
    trial.shared.ledger().forget_all(gone);
    everyone.iter().try_for_each(|&node| trial.nodes.start_again(node).map_err(Finding::Undecided))
}

/// Some data may pass from those that are killed later to those that were started before; if it does, it must
/// be the newest.
fn all_in_turn(trial: &mut Trial, everyone: &[usize]) -> StageResult {
    let pause = IN_TURN / everyone.len() as u32;
    let now = trial.shared.now();
    let count = trial.shared.ledger().keys.count;
    (0..count).for_each(|number| trial.shared.ledger().excuse_loss(number, now));
    for node in trial.shuffled(everyone) {
        trial.nodes.kill(&[node]);
        trial.nodes.start_again(node).map_err(Finding::Undecided)?;
        std::thread::sleep(pause);
    }
    Ok(())
}

/// Writes a part of the keys through all nodes that were just started; how long until all was acknowledged.
/// The others keep their old state, "gone", which the sweep checks.
fn first_writes(trial: &mut Trial, when: &str, everyone: &[usize]) -> Result<Duration, Finding> {
    let since = Instant::now();
    let mut left: Vec<u64> = (0..trial.busy()).collect();
    let mut at_first = None;
    while !left.is_empty() && since.elapsed() < CONVERGED_MAX {
        left = trial.write_once(everyone, Deed::Put, &left)?;
        at_first.get_or_insert(left.len());
    }
    let (took, refused, at_first) = (since.elapsed(), left.len(), at_first.unwrap_or(0));
    trial.claim(refused == 0, || format!("{when}: {refused} first writes were never acknowledged"));
    trial.claim(at_first == 0, || {
        format!("{when}: {at_first} first writes were refused, or not answered in all attempts of a client")
    });
    Ok(took)
}
