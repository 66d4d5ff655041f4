//! Nodes that die for good, many at once, in two rounds.
//!
//! Five deaths in one instant are more than three copies can bear: a key whose holders are all among the five
//! is lost, whatever a cluster does. Which keys these are is asked of the nodes themselves (the private 0x27)
//! right before the kill, and only these may be missing afterwards. One of them that is still there, because
//! somebody else had kept it, is counted and no fault.
//!
//! The writers pause from before the question until after the kill, and the question waits until nothing is
//! left to repair: a write in those moments might lie with other members than those that were named. No key is
//! left out of the judgement for that. As soon as the five are dead the load goes on, before anybody has
//! noticed; writes under way at a kill are the business of other scenarios.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::health::Holders;
use super::history::{Deed, Ledger};
use super::sweep::Swept;
use super::trial::{Tolerance, Trial};
use crate::cluster::{Finding, StageResult};

/// So many die at once in each of the two rounds.
const KILLED_PER_ROUND: usize = 5;
/// Load before each kill.
const LOAD_BEFORE: Duration = Duration::from_secs(2);
/// How long healed nodes may take to agree that each key has its replicas and no other holder.
const SETTLED_MAX: Duration = Duration::from_secs(15);
/// Pause before they are asked again.
const SETTLED_POLL: Duration = Duration::from_millis(500);
/// The share of keys that the course's graders accept as lost; placement by chance loses less.
const LOST_SHARE_MAX: f64 = 0.05;

/// Five of twenty die at once, and five more of the rest a minute later. What had a holder outside of the
/// five survives, and has enough holders again when the next five die.
pub fn second_round(trial: &mut Trial) -> StageResult {
    let everyone: Vec<usize> = (0..trial.nodes.addresses().len()).collect();
    if everyone.len() < 2 * KILLED_PER_ROUND + 1 {
        return Err(Finding::Skip(format!("needs more than {} nodes", 2 * KILLED_PER_ROUND)));
    }
    trial.start_cluster(&everyone)?;
    trial.fill()?;
    let order = trial.shuffled(&everyone);
    let (first, rest) = order.split_at(KILLED_PER_ROUND);
    let (second, last) = rest.split_at(KILLED_PER_ROUND);
    // In the first round no read may help the copying.
    trial.shared.allow_reads(false);
    let since = round(trial, "round one", first, rest)?;
    std::thread::sleep(trial.seconds_or(60).saturating_sub(since.elapsed()));
    trial.shared.allow_reads(true);
    round(trial, "round two", second, last)?;
    report_stores(trial, "after round two", last);
    trial.check_processes();
    Ok(())
}

/// Kills `victims` and judges what the survivors say; when they were killed.
fn round(trial: &mut Trial, when: &str, victims: &[usize], survivors: &[usize]) -> Result<Instant, Finding> {
    let alive = [victims, survivors].concat();
    let traffic = trial.load(&alive)?;
    std::thread::sleep(LOAD_BEFORE);
    trial.end_load(traffic)?;
    let before = format!("before {when}");
    trial.await_healed(&before, &alive);
    report_stores(trial, &before, &alive);
    let holders = settled_holders(trial, &alive)?;
    let forecast = Forecast::new(&trial.shared.ledger(), &holders, &trial.addresses(victims));
    trial.nodes.kill(victims);
    let (since, killed_at) = (Instant::now(), trial.shared.now());
    forecast.excuse(&mut trial.shared.ledger(), killed_at);
    let traffic = trial.load(survivors)?;
    trial.say(&format!("{when}: killed nodes {victims:?} at once"));
    trial.await_healed(when, survivors);
    trial.end_load(traffic)?;
    trial.judge_load(when);
    let swept = trial.sweep(when, survivors, since, Tolerance::None)?;
    trial.claim(swept.disagreed == 0, || format!("{when}: {} keys differ between nodes", swept.disagreed));
    let outcome = forecast.compare(&trial.shared.ledger(), killed_at, &swept);
    report(trial, when, &forecast, &outcome, alive.len());
    // So that the next round has as much to lose.
    trial.settle_all(survivors, Deed::Put, outcome.missing)?;
    Ok(since)
}

/// Who holds each key, by what the nodes say while nobody writes and nothing moves.
fn settled_holders(trial: &mut Trial, alive: &[usize]) -> Result<Vec<Holders>, Finding> {
    let since = Instant::now();
    loop {
        let holders = trial.holders(alive)?;
        let unsettled = holders.iter().filter(|holders| !holders.is_settled).count();
        if unsettled == 0 {
            trial.say(&format!("all keys asked for in {:.1} s", since.elapsed().as_secs_f64()));
            return Ok(holders);
        }
        if SETTLED_MAX < since.elapsed() {
            return Err(Finding::Undecided(format!(
                "{unsettled} keys have passing holders, though nothing is left to repair"
            )));
        }
        std::thread::sleep(SETTLED_POLL);
    }
}

/// What a kill takes away, by what the nodes said just before.
#[derive(Debug)]
struct Forecast {
    /// Keys that were there and whose holders are all among the victims.
    lost: Vec<u64>,
    /// Other keys without a surviving holder: removed, or not surely written.
    doubtful: Vec<u64>,
    /// How many keys were there.
    there: usize,
}

/// What became of the keys.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// Foretold, and missing.
    missing: Vec<u64>,
    /// Foretold, and there all the same.
    still_there: Vec<u64>,
    /// Foretold, and written or removed by the load since.
    changed: Vec<u64>,
    /// Missing at any time, though it must not.
    not_predicted: Vec<u64>,
}

impl Forecast {
    fn new(ledger: &Ledger, holders: &[Holders], victims: &[SocketAddr]) -> Self {
        let dies = |&number: &u64| {
            let replicas = &holders[number as usize].replicas;
            replicas.iter().all(|replica| victims.contains(replica))
        };
        let is_there = |&number: &u64| ledger.is_surely_there(number);
        let (lost, doubtful) = (0..ledger.keys.count).filter(dies).partition(is_there);
        Self { lost, doubtful, there: (0..ledger.keys.count).filter(is_there).count() }
    }

    /// Notes in the ledger, right after the kill, what may be gone from now on.
    fn excuse(&self, ledger: &mut Ledger, now: Duration) {
        self.lost.iter().chain(&self.doubtful).for_each(|&number| ledger.excuse_loss(number, now));
    }

    fn compare(&self, ledger: &Ledger, killed_at: Duration, swept: &Swept) -> Outcome {
        let is_changed = |number: &u64| ledger.is_changed_since(*number, killed_at);
        let (changed, rest): (Vec<u64>, Vec<u64>) = self.lost.iter().copied().partition(is_changed);
        let (missing, still_there) = rest.into_iter().partition(|number| swept.absent.contains(number));
        let not_predicted = swept.missing_keys().into_iter().collect();
        Outcome { missing, still_there, changed, not_predicted }
    }
}

/// What is missing beyond the forecast has broken the sweep's claim already.
fn report(trial: &mut Trial, when: &str, forecast: &Forecast, outcome: &Outcome, nodes: usize) {
    let counts = [
        ("predicted lost", &forecast.lost),
        ("predicted, missing", &outcome.missing),
        ("predicted, still there", &outcome.still_there),
        ("predicted, changed by the load since", &outcome.changed),
        ("missing, not predicted", &outcome.not_predicted),
    ]
    .map(|(name, keys)| (name, keys.len()));
    counts.iter().for_each(|(name, count)| trial.figure(format!("{when}: {name}"), *count as f64, "keys"));
    let texts = counts.map(|(name, count)| format!("{name}: {count}"));
    let share = forecast.lost.len() as f64 / forecast.there.max(1) as f64;
    trial.remark(format!(
        "{when}: {} ({:.2} % of {} keys predicted; {:.2} % if {KILLED_PER_ROUND} of {nodes} hold all three by chance)",
        texts.join("; "),
        100.0 * share,
        forecast.there,
        100.0 * share_with_all_holders_among(KILLED_PER_ROUND, nodes),
    ));
    trial.remark(format!("{when}: the missing keys are {:?}", outcome.missing));
    trial.claim(share <= LOST_SHARE_MAX, || format!("{when} loses {:.1} % of the keys", 100.0 * share));
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
    use super::super::history::{Fault, Found};
    use super::*;
    use crate::keyset::KeySet;
    use crate::values::{Random, Sizes};

    #[test]
    fn lost_is_what_was_there_and_had_no_other_holder() {
        let at = Duration::from_secs;
        let mut ledger = Ledger::new(KeySet::drawn(&mut Random::new(1), 6, Sizes::Fixed(20)));
        let step = |ledger: &mut Ledger, number, deed, second| {
            let step = ledger.begin(number, deed, at(second));
            ledger.end(number, step, at(second), true);
        };
        (0..6).for_each(|number| step(&mut ledger, number, Deed::Put, 1));
        step(&mut ledger, 5, Deed::Remove, 2);
        let node = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let held_by = |ports: [u16; 3]| Holders { replicas: ports.map(node).to_vec(), is_settled: true };
        // Key 1 has a holder that lives.
        let holders = [[1, 2, 3], [1, 2, 9], [2, 3, 4], [3, 1, 2], [4, 3, 1], [1, 2, 3]].map(held_by);
        let forecast = Forecast::new(&ledger, &holders, &[1, 2, 3, 4].map(node));
        assert_eq!(
            (&forecast.lost[..], &forecast.doubtful[..], forecast.there),
            (&[0, 2, 3, 4][..], &[5][..], 5)
        );

        forecast.excuse(&mut ledger, at(3));
        let missing = |ledger: &Ledger, number| ledger.judge(number, Found::Absent, at(8), at(9)).is_some();
        let unexcused: Vec<u64> = (0..6).filter(|&number| missing(&ledger, number)).collect();
        assert_eq!(unexcused, [1]);
        step(&mut ledger, 3, Deed::Put, 4);
        step(&mut ledger, 4, Deed::Remove, 4);
        assert!(missing(&ledger, 3), "what was written after the kill must be there");

        let mut swept = Swept { absent: [0, 1, 4, 5].into(), ..Swept::default() };
        swept.seen.faults.entry(Fault::Missing).or_default().keys.insert(1);
        let outcome = forecast.compare(&ledger, at(3), &swept);
        let expected =
            Outcome { missing: vec![0], still_there: vec![2], changed: vec![3, 4], not_predicted: vec![1] };
        assert_eq!(outcome, expected);
    }

    #[test]
    fn the_share_of_lost_triples_is_the_combinatorial_one() {
        let share = share_with_all_holders_among(5, 20);
        assert!((share - 10.0 / 1_140.0).abs() < 1e-12);
        assert!(share_with_all_holders_among(2, 20).abs() < 1e-12);
    }
}
