//! What is printed of many runs, and of one that failed.

use super::command;
use super::faults::Tally;
use super::swarm::{Options, Run};
use crate::time::Duration;
use std::fmt::Write;
use violet_link::{Cause, Counts};

/// Stories of one failed run that are printed.
const STORIES_MAX: usize = 3;

/// The sum of many runs.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Runs.
    pub runs: u64,
    /// Runs that broke a claim.
    pub failed: u64,
    ops: usize,
    unanswered: usize,
    reads: usize,
    staleness: Vec<Duration>,
    repeated_effects: usize,
    lost_writes: usize,
    reads_of_lost: usize,
    not_linearizable: usize,
    undecided: usize,
    contradictions: usize,
    counts: Counts,
    tally: Tally,
    datagrams: u64,
    simulated: Duration,
    rested_after_max: Duration,
    trace_hash: u64,
}

impl Summary {
    /// Takes in the next run.
    pub fn add(&mut self, run: &Run) {
        let findings = &run.findings;
        self.runs += 1;
        self.failed += u64::from(!findings.violations.is_empty());
        self.ops += findings.ops;
        self.unanswered += findings.unanswered;
        self.reads += findings.reads;
        self.staleness.extend_from_slice(&findings.staleness);
        self.repeated_effects += findings.repeated_effects;
        self.lost_writes += findings.lost_writes;
        self.reads_of_lost += findings.reads_of_lost;
        self.not_linearizable += findings.not_linearizable;
        self.undecided += findings.undecided;
        self.contradictions += findings.contradictions;
        self.counts.add(&run.counts);
        self.tally.pauses += run.tally.pauses;
        self.tally.crashes += run.tally.crashes;
        self.tally.starved += run.tally.starved;
        self.tally.splits += run.tally.splits;
        self.tally.joins += run.tally.joins;
        self.tally.leaves += run.tally.leaves;
        self.datagrams += run.datagrams;
        self.simulated += run.simulated;
        self.rested_after_max = self.rested_after_max.max(run.rested_after);
        self.trace_hash = self.trace_hash.rotate_left(7) ^ run.trace_hash;
    }

    /// Virtual time.
    #[must_use]
    pub fn simulated(&self) -> Duration {
        self.simulated
    }

    /// How many reads were stale, and by how much.
    fn staleness_text(&self) -> String {
        let mut ages = self.staleness.clone();
        ages.sort_unstable();
        let at = |percent: usize| {
            let place = (ages.len() * percent).div_ceil(100).saturating_sub(1);
            ages.get(place).copied().unwrap_or_default().as_secs_f64()
        };
        format!(
            "{} of {} reads stale, by at most {:.3} s for half of them, {:.3} s for 90 % and {:.3} s for all",
            ages.len(),
            self.reads,
            at(50),
            at(90),
            at(100)
        )
    }

    /// The summary as text.
    #[must_use]
    pub fn text(&self) -> String {
        let Counts { sent, duplicated, reordered, corrupted, .. } = self.counts;
        let (lost, cut) = (self.counts.lost(Cause::Chance), self.counts.lost(Cause::Cut));
        let Tally { pauses, crashes, starved, splits, joins, leaves } = self.tally;
        format!(
            "{} runs, {} failed\n\
             {} requests, {} unanswered\n\
             faults: {pauses} pauses, {crashes} crashes, {splits} partitions, {starved} starved nodes, {joins} \
             joins, {leaves} leaves\n\
             network: {sent} datagrams sent, {lost} lost, {cut} cut off, {duplicated} doubled, {reordered} \
             overtaken, {corrupted} damaged\n\
             allowed here: {}; {} writes that happened again, {} mutations answered \
             in two ways\n\
             lost with all their holders: {} writes, missed by {} reads\n\
             calm runs: {} keys not linearizable by reads during a write, {} undecided\n\
             {} datagrams, {:.0} s of virtual time, at rest after at most {:.2} s, trace {:016x}\n",
            self.runs,
            self.failed,
            self.ops,
            self.unanswered,
            self.staleness_text(),
            self.repeated_effects,
            self.contradictions,
            self.lost_writes,
            self.reads_of_lost,
            self.not_linearizable,
            self.undecided,
            self.datagrams,
            self.simulated.as_secs_f64(),
            self.rested_after_max.as_secs_f64(),
            self.trace_hash,
        )
    }
}

/// What is printed of a run that broke a claim.
#[must_use]
pub fn story_of(run: &Run, options: &Options) -> String {
    let violations = &run.findings.violations;
    let mut text = format!(
        "seed {} failed ({}, {} nodes): {} claims broken\nrepeat it: {}\n",
        run.seed,
        run.mood.name(),
        run.nodes,
        violations.len(),
        command::repeating(run, options)
    );
    for violation in violations.iter().take(STORIES_MAX) {
        writeln!(text, "* {}: {}", violation.claim, violation.story)
            .expect("writing to a string cannot fail");
    }
    if !run.script.is_empty() {
        write!(text, "the beginning of a scenario, without the other keys:\n{}", run.script)
            .expect("writing to a string cannot fail");
    }
    text
}
