//! One scenario under way: its nodes, its keys, its load, and what has been found so far.
//!
//! A scenario is a sequence of treatments and questions. A claim that does not hold is noted, and the
//! scenario goes on as long as that makes sense, so that one run shows everything. What ends it early is
//! a [`Finding`].

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use violet_client::Format;

use super::health::{Account, Doctor, Holders};
use super::history::{Deed, Ledger};
use super::nodes::Nodes;
use super::sweep::{self, Swept, Task};
use super::traffic::{Kind, Shared, Traffic};
use super::writes::{self, Via};
use crate::cluster::{Finding, StageResult};
use crate::grid::course_policy;
use crate::keyset::KeySet;
use crate::load::Plan;
use crate::report::Progress;
use crate::settings::EndureArguments;
use crate::tally::{Tally, TallyRecord};
use crate::values::{Random, Sizes};

/// Within this everything must be right through every node.
pub const CONVERGED_MAX: Duration = Duration::from_secs(60);
/// The same once the scenario has failed anyway: what is lost does not come back by waiting.
const CONVERGED_MAX_BROKEN: Duration = Duration::from_secs(10);
/// How long the cluster may take to heal.
const HEALED_MAX: Duration = Duration::from_secs(180);
const HEALED_MAX_BROKEN: Duration = Duration::from_secs(20);
/// How long the members may take to find each other at the start.
const START_MAX: Duration = Duration::from_secs(30);
/// How often processes are looked at meanwhile.
const START_LOOK: Duration = Duration::from_secs(1);
/// Clients of the ordinary load, and how long each rests between requests.
const LOAD_CLIENTS: usize = 8;
const LOAD_REST: Duration = Duration::from_millis(5);
/// Of the keys that the load leaves alone, one in so many is removed at the start.
const REMOVED_ONE_IN: u64 = 5;
/// How often keys are written again that were not acknowledged.
const FILL_ROUNDS_MAX: usize = 5;

/// What a scenario tolerates in a sweep, because its harm is beyond what is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// Nothing: no answer may be wrong, not even for a while.
    None,
    /// Wrong answers, if they become right in time.
    Delay,
}

/// A measured figure, in the order of the report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    name: String,
    value: f64,
    unit: String,
}

impl Figure {
    /// The seconds of a figure that says when everything was right.
    pub fn converged_after(&self) -> Option<f64> {
        self.name.ends_with("converged after").then_some(self.value)
    }
}

/// A scenario under way.
#[derive(Debug)]
pub struct Trial {
    /// The node processes.
    pub nodes: Nodes,
    /// Ledger and what the load saw.
    pub shared: Arc<Shared>,
    /// Draws of the scenario.
    pub random: Random,
    /// How it was asked for.
    pub options: EndureArguments,
    /// Claims that did not hold.
    pub broken: Vec<String>,
    /// What was measured.
    pub figures: Vec<Figure>,
    /// What the loads counted.
    pub loads: Vec<TallyRecord>,
    /// Remarks that decide nothing.
    pub remarks: Vec<String>,
    format: Format,
    servers: Vec<SocketAddr>,
    doctor: Doctor,
    progress: Progress,
    started: Instant,
    /// The keys from 0 to here belong to the load, the others rest.
    busy: u64,
}

impl Trial {
    /// Keys that were never written, and no node running.
    ///
    /// # Errors
    /// A sentence, when the machine refuses what is needed.
    pub fn new(nodes: Nodes, options: &EndureArguments, seed: u64, key_count: u64) -> Result<Self, String> {
        let format = options.run.format.map_or(Format::Protobuf, Format::from);
        let servers = nodes.addresses();
        let mut random = Random::new(seed);
        let count = options.keys.unwrap_or(key_count);
        let keys = KeySet::drawn(&mut random, count, Sizes::UpTo(1_000));
        Ok(Self {
            doctor: Doctor::new(&servers, format)?,
            nodes,
            shared: Arc::new(Shared::new(Ledger::new(keys))),
            random,
            options: options.clone(),
            broken: Vec::new(),
            figures: Vec::new(),
            loads: Vec::new(),
            remarks: Vec::new(),
            format,
            servers,
            progress: Progress::new(),
            started: Instant::now(),
            busy: (count / 3).max(LOAD_CLIENTS as u64),
        })
    }

    /// Prints a line with the time.
    pub fn say(&mut self, text: &str) {
        let seconds = self.started.elapsed().as_secs_f64();
        self.progress.line(&format!("{seconds:>7.1} s  {text}"));
    }

    /// Notes that a claim does not hold.
    pub fn break_claim(&mut self, text: impl Into<String>) {
        let text = text.into();
        self.say(&format!("BROKEN: {text}"));
        self.broken.push(text);
    }

    /// Notes a claim, and whether it holds.
    pub fn claim(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.break_claim(otherwise());
        }
    }

    /// Notes a figure.
    pub fn figure(&mut self, name: impl Into<String>, value: f64, unit: &str) {
        self.figures.push(Figure { name: name.into(), value, unit: unit.to_owned() });
    }

    /// Notes a remark.
    pub fn remark(&mut self, text: impl Into<String>) {
        let text = text.into();
        self.say(&text);
        self.remarks.push(text);
    }

    /// The length of the fault: as asked for, or the scenario's own.
    pub fn seconds_or(&self, own: u64) -> Duration {
        Duration::from_secs(self.options.seconds.unwrap_or(own))
    }

    /// How often: as asked for, or the scenario's own.
    pub fn rounds_or(&self, own: usize) -> usize {
        self.options.rounds.unwrap_or(own)
    }

    /// The addresses of these nodes.
    pub fn addresses(&self, nodes: &[usize]) -> Vec<SocketAddr> {
        nodes.iter().map(|&node| self.servers[node]).collect()
    }

    /// All nodes in a random order.
    pub fn shuffled(&mut self, nodes: &[usize]) -> Vec<usize> {
        let mut shuffled = nodes.to_vec();
        for index in (1..shuffled.len()).rev() {
            shuffled.swap(index, self.random.below(index + 1));
        }
        shuffled
    }

    /// Starts these nodes with one list of all of them, and waits until they count each other.
    pub fn start_cluster(&mut self, nodes: &[usize]) -> Result<(), Finding> {
        for &node in nodes {
            self.nodes.start(node, nodes).map_err(Finding::Undecided)?;
        }
        let since = Instant::now();
        while let Err(why) = self.doctor.await_counts(&self.addresses(nodes), START_LOOK) {
            let dead = self.nodes.dead_by_themselves();
            if let Some(dead) = dead.first() {
                return Err(Finding::Undecided(format!("no cluster: {dead}")));
            }
            if START_MAX < since.elapsed() {
                return Err(Finding::Undecided(format!("no cluster: {why}")));
            }
        }
        let counted = since.elapsed();
        self.say(&format!("{} nodes count each other after {:.1} s", nodes.len(), counted.as_secs_f64()));
        Ok(())
    }

    /// Writes every key once and removes some of those that the load leaves alone.
    pub fn fill(&mut self) -> Result<(), Finding> {
        let count = self.shared.ledger().keys.count;
        let via = self.nodes.running();
        let since = Instant::now();
        self.settle_all(&via, Deed::Put, (0..count).collect())?;
        let removed = (self.busy..count).filter(|number| number % REMOVED_ONE_IN == 0).collect();
        self.settle_all(&via, Deed::Remove, removed)?;
        self.say(&format!("{count} keys written, some removed, in {:.1} s", since.elapsed().as_secs_f64()));
        Ok(())
    }

    /// Does the same to many keys until it is acknowledged.
    pub fn settle_all(&mut self, via: &[usize], deed: Deed, numbers: Vec<u64>) -> Result<(), Finding> {
        let mut left = numbers;
        for _ in 0..FILL_ROUNDS_MAX {
            left = self.write_once(via, deed, &left)?;
            if left.is_empty() {
                return Ok(());
            }
        }
        Err(Finding::Undecided(format!(
            "{} keys were not acknowledged in {FILL_ROUNDS_MAX} rounds",
            left.len()
        )))
    }

    /// Tries a deed on each of these keys; those that were not acknowledged.
    pub fn write_once(&mut self, via: &[usize], deed: Deed, numbers: &[u64]) -> Result<Vec<u64>, Finding> {
        let via = Via { servers: &self.servers, format: self.format, nodes: via };
        writes::write_once(&via, &self.shared, &mut self.random, deed, numbers).map_err(Finding::Undecided)
    }

    fn plan(&self, seed: u64) -> Plan {
        Plan {
            servers: self.servers.clone(),
            format: self.format,
            waits: course_policy(self.format).waits,
            clients: 0,
            rest: Duration::ZERO,
            window: None,
            overload_restarts_max: 10,
            redraw_server: false,
            seed,
        }
    }

    /// The ordinary load through these nodes.
    pub fn load(&mut self, via: &[usize]) -> Result<Traffic, Finding> {
        let kind = Kind {
            clients: LOAD_CLIENTS,
            rest: LOAD_REST,
            numbers: 0..self.busy,
            more: 0..0,
            via: via.to_vec(),
            split: None,
            seed: self.random.next(),
        };
        self.load_of(&kind)
    }

    /// A load of another kind.
    pub fn load_of(&mut self, kind: &Kind) -> Result<Traffic, Finding> {
        Traffic::start(self.plan(kind.seed), &self.shared, kind).map_err(Finding::Undecided)
    }

    /// The first keys, which the ordinary load writes.
    pub fn busy(&self) -> u64 {
        self.busy
    }

    /// Stops a load and notes its figures.
    pub fn end_load(&mut self, traffic: Traffic) -> Result<Tally, Finding> {
        let tally = traffic.stop().map_err(Finding::Undecided)?;
        self.say(&format!(
            "load: {:.0} requests/s, {} in all, {} not answered, errors by code {:?}, p99 {:.1} ms, longest {:.0} ms",
            tally.throughput(),
            tally.counts().sent,
            tally.counts().timed_out,
            tally.errors(self.format),
            tally.latency_ms(99.0),
            tally.latency_ms(100.0),
        ));
        self.loads.push(TallyRecord::of(&tally, self.format));
        Ok(tally)
    }

    /// Judges what the load's own reads have found since the last time.
    pub fn judge_load(&mut self, when: &str) {
        let seen = std::mem::take(&mut *self.shared.seen());
        if let Some(faults) = seen.fault_text() {
            self.break_claim(format!("{when}: {faults}; {}", seen.examples.join("; ")));
        }
        if 0 < seen.doubtful_removals {
            self.remark(format!(
                "{when}: {} REMOVEs found no key where one was acknowledged (a repeated one may say so)",
                seen.doubtful_removals
            ));
        }
        self.figure(format!("{when}: reads right"), seen.right as f64, "reads");
    }

    /// Leaves half of the keys that rest alone, also by reads, until [`Self::final_sweep`].
    pub fn leave_some_unread(&mut self) {
        let count = self.shared.ledger().keys.count;
        self.shared.leave_unread(count - (count - self.busy) / 2);
    }

    /// Reads all keys through these nodes, those that were left alone as well.
    pub fn final_sweep(&mut self, via: &[usize]) -> Result<Swept, Finding> {
        let count = self.shared.ledger().keys.count;
        self.shared.leave_unread(count);
        self.sweep("at the end", via, Instant::now(), Tolerance::None)
    }

    /// Waits until all these nodes count exactly each other.
    pub fn await_counts(&mut self, when: &str, nodes: &[usize], limit: Duration) -> Duration {
        match self.doctor.await_counts(&self.addresses(nodes), limit) {
            Ok(took) => {
                let (count, seconds) = (nodes.len(), took.as_secs_f64());
                self.figure(format!("{when}: counts right after"), seconds, "s");
                self.say(&format!("{when}: all {count} nodes count {count} after {seconds:.1} s"));
                took
            }
            Err(why) => {
                self.break_claim(format!("{when}: member counts: {why}"));
                limit
            }
        }
    }

    /// Waits until these nodes count each other and have nothing left to repair.
    pub fn await_healed(&mut self, when: &str, nodes: &[usize]) {
        let counted = self.await_counts(when, nodes, CONVERGED_MAX);
        let limit = if self.broken.is_empty() { HEALED_MAX } else { HEALED_MAX_BROKEN };
        match self.doctor.await_healed(&self.addresses(nodes), limit) {
            Ok(took) => {
                self.figure(format!("{when}: healed after"), (counted + took).as_secs_f64(), "s");
                self.say(&format!("{when}: healed {:.1} s later", took.as_secs_f64()));
            }
            Err(why) => self.break_claim(format!("{when}: not healed: {why}")),
        }
    }

    /// The keys that a node is a replica of, as it says itself.
    ///
    /// # Errors
    /// A finding, when nodes do not tell: only Violet knows the question.
    pub fn keys_of(&mut self, node: usize) -> Result<BTreeSet<u64>, Finding> {
        let holders = self.holders(&[node])?;
        let numbered = (0..).zip(holders);
        let its = numbered.filter(|(_, holders)| holders.replicas.contains(&self.servers[node]));
        Ok(its.map(|(number, _)| number).collect())
    }

    /// Who holds each key. These nodes are asked in turn, so that one that sees it differently shows.
    ///
    /// # Errors
    /// A finding, when nodes do not tell: only Violet knows the question.
    pub fn holders(&mut self, via: &[usize]) -> Result<Vec<Holders>, Finding> {
        let (keys, addresses) = (self.shared.ledger().keys, self.addresses(via));
        let ask = |(number, &address): (u64, &SocketAddr)| {
            let holders = self.doctor.holders(address, keys.key(number));
            holders.ok_or_else(|| Finding::Undecided(format!("{address} does not say who holds a key")))
        };
        (0..keys.count).zip(addresses.iter().cycle()).map(ask).collect()
    }

    /// What these nodes say about themselves.
    pub fn accounts(&mut self, nodes: &[usize]) -> Vec<Option<Account>> {
        let addresses = self.addresses(nodes);
        self.doctor.accounts(&addresses)
    }

    /// Reads everything through these nodes until it is right; what does not become right in time is a broken
    /// claim, and so is every wrong answer on the way, as far as the scenario does not tolerate it.
    pub fn sweep(
        &mut self,
        when: &str,
        via: &[usize],
        since: Instant,
        tolerance: Tolerance,
    ) -> Result<Swept, Finding> {
        let limit = if self.broken.is_empty() { CONVERGED_MAX } else { CONVERGED_MAX_BROKEN };
        let task = Task {
            servers: &self.servers,
            format: self.format,
            via,
            since,
            // Even when healing took longer: late and lost are different things.
            limit: limit.max(since.elapsed() + CONVERGED_MAX_BROKEN),
        };
        let swept = sweep::until_right(&task, &self.shared).map_err(Finding::Undecided)?;
        self.report_sweep(when, &swept, limit, tolerance);
        let lost: BTreeSet<u64> =
            swept.lasting.faults.values().flat_map(|seen| seen.keys.iter().copied()).collect();
        if !lost.is_empty() {
            self.figure(format!("{when}: keys lost or wrong for good"), lost.len() as f64, "keys");
            self.write_anew(&lost, via)?;
        }
        Ok(swept)
    }

    /// What has been reported once shall not be found again in every later round, and shall be there again so
    /// that later rounds have as much to lose.
    fn write_anew(&mut self, lost: &BTreeSet<u64>, via: &[usize]) -> StageResult {
        let now = self.shared.now();
        lost.iter().for_each(|&number| self.shared.ledger().excuse_loss(number, now));
        let refused = self.write_once(via, Deed::Put, &lost.iter().copied().collect::<Vec<_>>())?;
        self.say(&format!("{} keys written anew, {} of them refused", lost.len(), refused.len()));
        Ok(())
    }

    fn report_sweep(&mut self, when: &str, swept: &Swept, limit: Duration, tolerance: Tolerance) {
        match swept.converged_after {
            Some(after) => {
                self.figure(format!("{when}: converged after"), after.as_secs_f64(), "s");
                self.say(&format!(
                    "{when}: converged after {:.1} s ({} reads)",
                    after.as_secs_f64(),
                    swept.reads
                ));
                self.claim(after <= CONVERGED_MAX, || {
                    format!("{when}: right only after {:.1} s", after.as_secs_f64())
                });
            }
            None => {
                let unanswered = swept.lasting.unanswered + swept.lasting.errors.values().sum::<u64>();
                let faults = swept.lasting.fault_text().unwrap_or_else(|| "no wrong value".to_owned());
                let text = format!(
                    "{when}: not right within {} s: {faults}, {unanswered} not answered; {}",
                    limit.as_secs(),
                    swept.lasting.examples.join("; ")
                );
                self.break_claim(text);
            }
        }
        if let Some(faults) = swept.seen.fault_text().filter(|_| swept.converged_after.is_some()) {
            let text =
                format!("{when}: wrong answers until then: {faults}; {}", swept.seen.examples.join("; "));
            match tolerance {
                Tolerance::None => self.break_claim(text),
                Tolerance::Delay => self.remark(text),
            }
        }
    }

    /// Nodes that died without being told are a broken claim.
    pub fn check_processes(&mut self) {
        for dead in self.nodes.dead_by_themselves() {
            self.break_claim(dead);
        }
    }
}
