//! Nodes that are away: stopped for a long while, or dead for good in two rounds.

use std::time::{Duration, Instant};

use super::history::Ledger;
use super::trial::{Tolerance, Trial};
use crate::cluster::{Finding, StageResult};

/// Load before the fault.
const LOAD_BEFORE: Duration = Duration::from_secs(2);
/// After the resume nothing is read for this long: what comes back must come back without reads.
const UNREAD_AFTER_RESUME: Duration = Duration::from_secs(30);
/// How long the members may take to agree who is alive.
const COUNTS_MAX: Duration = Duration::from_secs(15);
/// So many die at once in each of the two rounds.
const KILLED_PER_ROUND: usize = 5;
/// The share of keys that the course's graders accept as lost before round two.
const LOST_SHARE_MAX: f64 = 0.05;

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

/// Five of twenty die at once, and five more of the rest a minute later. Who held a key cannot be seen from
/// outside; but what could be read after the first round must survive the second.
pub fn second_round(trial: &mut Trial) -> StageResult {
    let everyone: Vec<usize> = (0..trial.nodes.addresses().len()).collect();
    if everyone.len() < 2 * KILLED_PER_ROUND + 1 {
        return Err(Finding::Skip(format!("needs more than {} nodes", 2 * KILLED_PER_ROUND)));
    }
    trial.start_cluster(&everyone)?;
    trial.fill()?;
    report_stores(trial, "before", &everyone);
    let order = trial.shuffled(&everyone);
    let (first, rest) = order.split_at(KILLED_PER_ROUND);
    let (second, last) = rest.split_at(KILLED_PER_ROUND);
    // Until the lost keys are known, no read can be judged.
    trial.shared.allow_reads(false);
    let traffic = trial.load(rest)?;
    std::thread::sleep(LOAD_BEFORE);
    trial.nodes.kill(first);
    let since = Instant::now();
    trial.say(&format!("killed nodes {first:?} at once"));
    trial.await_healed("round one", rest);
    // Load would write lost keys anew and hide the loss.
    trial.end_load(traffic)?;
    first_losses(trial, rest, since, everyone.len())?;
    std::thread::sleep(trial.seconds_or(60).saturating_sub(since.elapsed()));
    report_stores(trial, "after round one", rest);
    trial.shared.allow_reads(true);
    let traffic = trial.load(last)?;
    trial.nodes.kill(second);
    let since = Instant::now();
    trial.say(&format!("killed nodes {second:?} at once"));
    trial.await_healed("round two", last);
    trial.sweep("round two", last, since, Tolerance::None)?;
    trial.end_load(traffic)?;
    trial.judge_load("round two");
    report_stores(trial, "after round two", last);
    trial.check_processes();
    Ok(())
}

/// Reads everything after round one and excuses what no node has any more.
fn first_losses(trial: &mut Trial, rest: &[usize], since: Instant, nodes: usize) -> StageResult {
    let swept = trial.sweep("round one", rest, since, Tolerance::Loss)?;
    let missing = swept.missing_keys();
    let count = trial.shared.ledger().keys.count;
    let share = missing.len() as f64 / count as f64;
    let expected = share_with_all_holders_among(KILLED_PER_ROUND, nodes);
    trial.figure("lost in round one", missing.len() as f64, "keys");
    trial.remark(format!(
        "round one: {} of {count} keys lost = {:.2} % ({:.2} % have all three holders among {KILLED_PER_ROUND} of {nodes})",
        missing.len(),
        100.0 * share,
        100.0 * expected,
    ));
    trial.claim(share <= LOST_SHARE_MAX, || format!("round one lost {:.1} % of the keys", 100.0 * share));
    trial.await_healed("round one, all read", rest);
    Ok(())
}

/// The chance that three random holders are all among `killed` of `nodes`.
fn share_with_all_holders_among(killed: usize, nodes: usize) -> f64 {
    let triples = |count: usize| (count * (count - 1) * (count - 2)) as f64;
    triples(killed) / triples(nodes)
}

fn report_stores(trial: &mut Trial, when: &str, nodes: &[usize]) {
    let accounts = trial.accounts(nodes);
    let keys: Vec<u64> = accounts.iter().flatten().map(|account| account.keys).collect();
    let marks: u64 = accounts.iter().flatten().map(|account| account.tombstones).sum();
    let there = {
        let ledger: &Ledger = &trial.shared.ledger();
        (0..ledger.keys.count).filter(|&number| ledger.is_surely_there(number)).count()
    };
    let total: u64 = keys.iter().sum();
    trial.remark(format!(
        "{when}: {} nodes hold {total} copies of {there} keys ({:.2} each; {} to {} a node) and {marks} removal marks",
        keys.len(),
        total as f64 / there.max(1) as f64,
        keys.iter().min().unwrap_or(&0),
        keys.iter().max().unwrap_or(&0),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_lost_triples_is_the_combinatorial_one() {
        let share = share_with_all_holders_among(5, 20);
        assert!((share - 10.0 / 1_140.0).abs() < 1e-12);
        assert!(share_with_all_holders_among(2, 20).abs() < 1e-12);
    }
}
