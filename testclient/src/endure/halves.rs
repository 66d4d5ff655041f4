//! The cluster in two halves that cannot hear each other, each under load of its own.
//!
//! A third of the busy keys is written in the left half only, a third in the right one only, and a third in
//! both. While the halves are cut nothing is read: a half without any holder of a key cannot know it. After
//! they are joined the ledger's rule applies to everything: what only one half wrote must be there, and of
//! what both wrote the later acknowledged wins, or any of those that ran at the same time.

use std::time::{Duration, Instant};

use super::land;
use super::traffic::{Kind, Traffic};
use super::trial::{CONVERGED_MAX, Tolerance, Trial};
use crate::cluster::{Finding, StageResult};

/// Load before the cut, and after the halves are joined.
const LOAD_AROUND: Duration = Duration::from_secs(3);
/// Reads under way at the cut could not be judged, so reading ends so long before.
const READS_END_BEFORE: Duration = Duration::from_secs(1);
/// How long each half may take to count exactly its own members.
const COUNTS_MAX: Duration = Duration::from_secs(20);
/// Each half's clients, and how long they rest.
const CLIENTS: usize = 4;
const REST: Duration = Duration::from_millis(5);

/// Cuts, waits, joins.
pub fn halves(trial: &mut Trial) -> StageResult {
    let addresses = trial.nodes.addresses();
    let everyone: Vec<usize> = (0..addresses.len()).collect();
    if everyone.len() < 2 {
        return Err(Finding::Skip("needs two nodes at least".to_owned()));
    }
    let (left, right) = everyone.split_at(everyone.len() / 2);
    land::build(&addresses).map_err(Finding::Undecided)?;
    for &node in &everyone {
        trial.nodes.place_in_namespace(node, land::namespace(node));
    }
    trial.start_cluster(&everyone)?;
    trial.fill()?;
    let loads = start_loads(trial, left, right)?;
    std::thread::sleep(LOAD_AROUND);
    trial.shared.allow_reads(false);
    std::thread::sleep(READS_END_BEFORE);
    trial.judge_load("before the cut");
    let joined = cut_and_join(trial, left, right)?;
    std::thread::sleep(LOAD_AROUND);
    for load in loads {
        trial.end_load(load)?;
    }
    trial.judge_load("while cut");
    trial.await_counts("joined, load ended", &everyone, CONVERGED_MAX);
    let swept = trial.sweep("joined", &everyone, joined, Tolerance::Delay)?;
    trial.claim(swept.disagreed == 0, || format!("{} keys differ between nodes", swept.disagreed));
    trial.await_healed("joined", &everyone);
    after(trial, &everyone)
}

/// Cuts, lets each half count itself, waits, joins; when that was.
fn cut_and_join(trial: &mut Trial, left: &[usize], right: &[usize]) -> Result<Instant, Finding> {
    land::cut().map_err(Finding::Undecided)?;
    let cut = Instant::now();
    let pause = trial.seconds_or(40);
    trial.say(&format!("nodes {left:?} and {right:?} cut from each other for {} s", pause.as_secs()));
    for (name, half) in [("left", left), ("right", right)] {
        trial.await_counts(&format!("{name} half alone"), half, COUNTS_MAX.min(pause));
    }
    std::thread::sleep(pause.saturating_sub(cut.elapsed()));
    land::join().map_err(Finding::Undecided)?;
    trial.say("joined again");
    Ok(Instant::now())
}

/// Once everything is right, the cluster must be as good as any.
fn after(trial: &mut Trial, everyone: &[usize]) -> StageResult {
    trial.shared.allow_reads(true);
    let traffic = trial.load(everyone)?;
    std::thread::sleep(LOAD_AROUND);
    trial.end_load(traffic)?;
    trial.judge_load("afterwards");
    trial.sweep("afterwards", everyone, Instant::now(), Tolerance::None)?;
    trial.check_processes();
    Ok(())
}

fn start_loads(trial: &mut Trial, left: &[usize], right: &[usize]) -> Result<[Traffic; 2], Finding> {
    let third = trial.busy() / 3;
    let both = 2 * third..trial.busy();
    trial.shared.ledger().allow_clock_error(both.clone());
    let mut kind = |numbers: std::ops::Range<u64>, via: &[usize]| Kind {
        clients: CLIENTS,
        rest: REST,
        numbers,
        more: both.clone(),
        via: via.to_vec(),
        split: None,
        seed: trial.random.next(),
    };
    let kinds = [kind(0..third, left), kind(third..2 * third, right)];
    Ok([trial.load_of(&kinds[0])?, trial.load_of(&kinds[1])?])
}
