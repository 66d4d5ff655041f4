//! A plan under way: its servers, its maker of loads, and the result so far.
//!
//! Steps are done in order. One that cannot be done becomes a check that nobody knows the answer of, with the
//! reason, and the rest goes on. An interrupted run ends at the next good place; what it has is its result, marked as
//! incomplete.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use violet_client::Format;

use super::cost::Meter;
use super::ground::{Ground, Home, OwnCluster};
use super::happenings::Happenings;
use super::loader::{Loader, Order, Work};
use super::marks::Marks;
use super::step::{Kind, Plan, Settings, Step};
use super::{conformance, faults, loads, scaling, search};
use crate::alive;
use crate::batch;
use crate::interrupt::Stop;
use crate::load::Glimpse;
use crate::names::Mark;
use crate::report::{Progress, milliseconds};
use crate::reports::live::{Live, Scene, Wish};
use crate::result::{Check, Event, Loop, Phase, RunResult};
use crate::values::Random;

/// Share of the offered requests that must be answered for a rate to be called reached.
const REACHED_SHARE: f64 = 0.99;

/// So many unanswered requests are worth looking for a server that is to blame.
const LOST_NOTABLE: u64 = 10;

/// The live view begins so long after a phase.
const SHOWN_FROM_SECONDS: f64 = 1.0;

/// A run of a plan.
pub struct Course<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The servers; none before a plan that starts its own has got them.
    pub ground: Option<Ground>,
    /// How own nodes are started, if there is a binary.
    pub home: Option<Home>,
    /// Who makes the loads.
    pub loader: &'a mut dyn Loader,
    /// What was seen so far.
    pub result: RunResult,
    /// Ends the run early.
    pub stop: Stop,
    /// Wrong answers of a load are told but fail nothing: more servers are away than values have copies.
    pub forgives: bool,
    /// What a person sees.
    pub progress: Progress,
    /// Draws that belong to the run as a whole.
    pub random: Random,
    /// What this run's keys have and those of no other run.
    pub mark: Mark,
    /// What is being done to the servers at this moment.
    pub happenings: Happenings,
    /// What tells whether somebody else empties the servers; none after whatever may have emptied them on our side.
    pub marks: Option<Marks>,
    /// Servers that gave a sign of life before this step, by place in the list.
    pub alive: Vec<bool>,
    started: Instant,
    keys_seed: u64,
    losses_noted: usize,
    /// The step that is being done, from 1.
    step_number: usize,
}

impl<'a> Course<'a> {
    /// Nothing done yet.
    pub fn new(
        plan: &'a Plan,
        home: Option<Home>,
        ground: Option<Ground>,
        loader: &'a mut dyn Loader,
        result: RunResult,
        stop: Stop,
    ) -> Self {
        let mut random = Random::new(result.seed);
        Self {
            plan,
            ground,
            home,
            loader,
            stop,
            forgives: false,
            progress: Progress::new(),
            happenings: Happenings::default(),
            marks: None,
            alive: Vec::new(),
            started: Instant::now(),
            keys_seed: random.next(),
            losses_noted: 0,
            step_number: 0,
            random,
            mark: Mark::fresh(),
            result,
        }
    }

    /// Seconds since the start of the run.
    pub fn now(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// The moment that seconds of the run are counted from.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Prints a line with the time.
    pub fn say(&mut self, text: &str) {
        let seconds = self.now();
        self.progress.line(&format!("{seconds:>7.1} s  {text}"));
    }

    /// Does all steps, then ends own nodes.
    pub fn run(&mut self) {
        let count = self.plan.steps.len();
        for (index, step) in self.plan.steps.iter().enumerate() {
            if self.stop.is_set() {
                let why = format!("interrupted before step {} of {count}, {}", index + 1, step.name);
                self.break_off(why);
                break;
            }
            self.step_number = index + 1;
            self.say(&format!("step {} of {count}: {}", index + 1, step.name));
            if let Err(reason) = self.step(step) {
                if self.stop.is_set() {
                    self.break_off(format!(
                        "interrupted in step {} of {count}, {}: {reason}",
                        index + 1,
                        step.name
                    ));
                    break;
                }
                self.check(&step.name, None, format!("{}: {reason}", step.place));
            }
        }
        self.note_losses();
        if self.stop.is_set() && self.result.incomplete.is_none() {
            self.break_off("interrupted".to_owned());
        }
        self.ground = None;
    }

    /// Says that the run is not whole, and why.
    pub fn break_off(&mut self, why: String) {
        self.say(&format!("INCOMPLETE: {why}"));
        self.result.incomplete = Some(match self.result.incomplete.take() {
            None => why,
            Some(before) => format!("{before}; {why}"),
        });
    }

    /// What the maker of loads has lost since the last look, such as an agent.
    pub(super) fn note_losses(&mut self) {
        let losses = self.loader.losses();
        for loss in &losses[self.losses_noted.min(losses.len())..] {
            self.break_off(loss.clone());
        }
        self.losses_noted = losses.len();
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        if !matches!(step.kind, Kind::Scaling(_) | Kind::Pause(_)) {
            self.prepare(step.settings.format.format())?;
        }
        match &step.kind {
            Kind::Conformance(kind) => conformance::run(self, step, kind),
            Kind::Load(kind) => loads::load(self, step, kind),
            Kind::Grid(kind) => loads::grid(self, step, kind),
            Kind::Search(kind) => search::run(self, step, kind),
            Kind::Bulk(kind) => loads::bulk(self, step, kind),
            Kind::Capacity(kind) => conformance::capacity(self, step, kind),
            Kind::Faults(kind) => faults::run(self, step, kind),
            Kind::Scaling(kind) => scaling::run(self, step, kind),
            Kind::Wipe(_) => self.wipe(step.settings.format.format()),
            Kind::Pause(kind) => {
                self.stop.sleep(Duration::from_secs_f64(kind.pause_seconds));
                Ok(())
            }
        }
    }

    /// Sees to it that there are servers, and looks which of them live.
    fn prepare(&mut self, format: Format) -> Result<(), String> {
        if self.ground.is_none() {
            let home = self
                .home
                .clone()
                .ok_or("there are no servers: name them with --servers, or name --violet")?;
            let nodes = self.plan.cluster.nodes;
            self.say(&format!("starting {nodes} nodes of {}", home.violet.display()));
            let cluster = OwnCluster::start(&home, nodes, &self.stop)?;
            self.note_servers(&cluster.servers);
            self.ground = Some(Ground::Own(cluster));
        }
        let servers = self.all_servers();
        let alive = match self.alive.len() == servers.len() {
            true => alive::still_alive(&servers, &self.alive, format)?,
            false => alive::alive(&servers, format)?,
        };
        if alive != self.alive
            && let Some(text) = alive::silence_text(&servers, &alive, format)
        {
            self.say(&text);
            let name =
                if self.alive.is_empty() { "all listed servers answer" } else { "all servers still answer" };
            self.check(name, Some(false), text.clone());
            if !alive.contains(&true) {
                let other = if format == Format::Raw { Format::Protobuf } else { Format::Raw };
                if alive::alive(&servers, other)?.contains(&true) {
                    let word = format!("{other:?}").to_lowercase();
                    return Err(format!("{text}; they answer in the other format: --set format={word}"));
                }
                self.alive = alive;
                return Err(format!("{text}; start them, or correct the list"));
            }
            self.say("going on with the others");
        }
        self.alive = alive;
        if self.alive.contains(&true) { Ok(()) } else { Err("no server answers any more".to_owned()) }
    }

    /// Notes the servers in the result.
    pub fn note_servers(&mut self, servers: &[SocketAddr]) {
        self.result.servers = servers.iter().map(ToString::to_string).collect();
    }

    /// The whole list.
    pub fn all_servers(&self) -> Vec<SocketAddr> {
        self.ground.as_ref().map_or(Vec::new(), |ground| ground.servers().to_vec())
    }

    /// Those of the list that live.
    pub fn servers(&self) -> Vec<SocketAddr> {
        let all = self.all_servers();
        all.into_iter().zip(&self.alive).filter(|(_, alive)| **alive).map(|(server, _)| server).collect()
    }

    /// Notes a checked statement.
    pub fn check(&mut self, name: &str, passed: Option<bool>, seen: String) {
        let word = match passed {
            Some(true) => "PASS",
            Some(false) => "FAIL",
            None => "UNDECIDED",
        };
        self.say(&format!("{word} {name}: {seen}"));
        self.result.checks.push(Check { name: name.to_owned(), passed, seen });
    }

    /// Notes what was done to servers.
    pub fn event(&mut self, event: Event) {
        self.say(&format!("{} {}: {}", event.kind, event.servers.join(", "), event.outcome));
        self.result.events.push(event);
    }

    /// Wipes all living servers.
    pub fn wipe(&mut self, format: Format) -> Result<(), String> {
        let servers = self.servers();
        let everyone: Vec<usize> = (0..servers.len()).collect();
        let failed = batch::wipe_out(&servers, &everyone, format)?;
        self.forget();
        match failed.first() {
            None => Ok(()),
            Some((server, what)) => Err(format!(
                "{} of {} servers were not wiped; {} {what}",
                failed.len(),
                servers.len(),
                servers[*server]
            )),
        }
    }

    /// What was written is no longer there, or may not be.
    pub fn forget(&mut self) {
        self.loader.forget();
        self.marks = None;
    }

    /// An order for a phase on the living servers.
    pub fn order(&mut self, name: &str, group: &str, timing: Loop, settings: &Settings) -> Order {
        Order {
            name: name.to_owned(),
            group: group.to_owned(),
            timing,
            work: Work::Mixed,
            settings: settings.clone(),
            servers: self.servers(),
            keys_seed: self.keys_seed,
            mark: self.mark,
            seed: self.random.next(),
        }
    }

    /// Makes a phase, with what it cost where that can be known, and notes it.
    ///
    /// # Errors
    /// One sentence, when it could not be made.
    pub fn load(&mut self, order: &Order) -> Result<Phase, String> {
        let pids = self.ground.as_ref().and_then(Ground::own_pids);
        let format = order.settings.format.format();
        if self.marks.is_none() {
            self.marks = Some(Marks::leave(&order.servers, format, self.mark, self.random.next())?);
        }
        self.warm_up(order)?;
        let order = &Order { settings: Settings { warm_up: 0.0, ..order.settings.clone() }, ..order.clone() };
        let mut meter = Meter::new(&order.servers, format, pids)?;
        let before = meter.read();
        let at_seconds = self.now();
        let loaded = self.make(order);
        self.note_losses();
        let mut phase = loaded?;
        phase.at_seconds = at_seconds;
        phase.cost = meter.read().cost_since(&before);
        self.note_phase(phase.clone());
        for remark in self.loader.remarks() {
            self.progress.line(&format!("           {remark}"));
        }
        let faults = self.loader.faults();
        if 0 < phase.counts.wrong || !faults.is_empty() {
            let mut seen = format!("{} wrong answers: {}", phase.counts.wrong, faults.join("; "));
            if let Some(loss) = self.marks.as_ref().and_then(|marks| marks.loss(&order.servers, format)) {
                seen.push_str(&format!("; {loss}"));
            }
            if self.forgives {
                seen.push_str("; forgiven, because strict = false");
            }
            self.check(&format!("{}: every answer is right", phase.name), Some(self.forgives), seen);
        }
        Ok(phase)
    }

    /// The warm-up is a phase of its own that nobody looks at, so that the meters do not run in it.
    fn warm_up(&mut self, order: &Order) -> Result<(), String> {
        if order.settings.warm_up == 0.0 || order.work != Work::Mixed {
            return Ok(());
        }
        let mut warm = order.clone();
        warm.name = format!("{} warm-up", order.name);
        warm.settings.seconds = order.settings.warm_up;
        warm.settings.warm_up = 0.0;
        warm.seed = self.random.next();
        self.make(&warm).map(drop)
    }

    /// Has a phase made, in view of whoever watches.
    fn make(&mut self, order: &Order) -> Result<Phase, String> {
        self.progress.clear();
        let mut live = None;
        let (number, steps, stop) = (self.step_number, &self.plan.steps, &self.stop);
        let last_event = self.result.events.last();
        let happenings = self.happenings.clone();
        let mut watch = |glimpse: &Glimpse| {
            // What is over in a moment is told at its end.
            if glimpse.at_seconds < SHOWN_FROM_SECONDS && live.is_none() {
                return;
            }
            let mut scene = scene(&order.name, glimpse, number, steps, last_event);
            scene.happenings = happenings.all();
            if live.get_or_insert_with(Live::start).show(&scene) == Wish::End {
                stop.set();
            }
        };
        self.loader.load(order, stop, &mut watch)
    }

    /// Notes a phase and prints its line.
    pub fn note_phase(&mut self, phase: Phase) {
        let line = phase_line(&phase);
        self.say(&line);
        for remark in phase_remarks(&phase) {
            self.progress.line(&format!("           {remark}"));
        }
        self.result.phases.push(phase);
    }
}

/// What the live view shows of a phase in step `number`.
fn scene(name: &str, glimpse: &Glimpse, number: usize, steps: &[Step], last_event: Option<&Event>) -> Scene {
    Scene {
        phase: name.to_owned(),
        phase_number: number,
        phases: steps.len(),
        glimpse: *glimpse,
        happenings: Vec::new(),
        last_event: last_event
            .map(|event| format!("{} {}: {}", event.kind, event.servers.join(", "), event.outcome)),
        next: steps.get(number).map(|step| step.name.clone()),
    }
}

/// All operations of a phase in one: counts stand in the phase, latencies by operation.
pub fn corrected(phase: &Phase) -> crate::result::Latency {
    let mut all = crate::result::Latency::new();
    phase.operations.values().for_each(|operation| all.add(&operation.corrected));
    all
}

/// A phase as one line. Percentiles never stand alone: what makes them doubtful is in the same line.
pub fn phase_line(phase: &Phase) -> String {
    let counts = &phase.counts;
    let latency = corrected(phase);
    let (how, doubt) = match phase.timing {
        Loop::Open { rate, .. } => {
            // By what was offered: a Poisson schedule of a short phase holds more or less than its rate.
            let missed = (counts.answered as f64) < REACHED_SHARE * counts.offered as f64;
            let doubt =
                if missed { "; RATE NOT REACHED, percentiles are those of what was answered" } else { "" };
            (format!("{rate:.0} req/s offered"), doubt)
        }
        Loop::Closed { clients } => (format!("{clients} clients"), "; closed loop: tails not comparable"),
    };
    format!(
        "{:<14} {how}: {:.0} answered/s, {:.0} good/s, p50 {} ms, p99 {} ms, {} timed out, {} refused, {} wrong{doubt}",
        phase.name,
        phase.answered_per_second(),
        phase.good_per_second(),
        milliseconds(latency.ms(50.0)),
        milliseconds(latency.ms(99.0)),
        counts.timed_out,
        counts.refused,
        counts.wrong,
    )
}

/// What a reader of a phase's line should notice.
fn phase_remarks(phase: &Phase) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(why) = &phase.generator.limited {
        remarks.push(format!("generator-limited: {why}"));
    }
    if 0 < phase.counts.skipped {
        remarks
            .push(format!("{} slots were skipped, too many requests were under way", phase.counts.skipped));
    }
    // One server that fails shows in the figures of all; its name is what somebody has to know.
    let lost: u64 = phase.by_server.iter().map(|share| share.counts.timed_out).sum();
    let worst = phase.by_server.iter().max_by_key(|share| share.counts.timed_out);
    if let Some(worst) = worst.filter(|worst| {
        1 < phase.by_server.len() && LOST_NOTABLE <= lost && lost < 2 * worst.counts.timed_out
    }) {
        let counts = &worst.counts;
        remarks.push(format!(
            "{} of {lost} unanswered requests were asked of {}, which answered {} of {}",
            counts.timed_out, worst.server, counts.answered, counts.sent
        ));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fake;

    #[test]
    fn a_percentile_never_stands_beside_a_rate_that_was_not_reached_without_a_word() {
        let reached = phase_line(&fake::phase(100.0, 99, 1));
        assert!(
            reached.contains("100 req/s offered: 99 answered/s") && !reached.contains("NOT REACHED"),
            "{reached}"
        );
        let missed = phase_line(&fake::phase(100.0, 60, 40));
        assert!(missed.contains("p99 1.00 ms") && missed.contains("RATE NOT REACHED"), "{missed}");
        let mut closed = fake::phase(100.0, 99, 1);
        closed.timing = Loop::Closed { clients: 3 };
        assert!(phase_line(&closed).ends_with("closed loop: tails not comparable"));
    }

    #[test]
    fn what_spoils_a_phase_is_remarked() {
        let mut phase = fake::phase(100.0, 99, 1);
        assert!(phase_remarks(&phase).is_empty());
        phase.generator.limited = Some("late".to_owned());
        phase.counts.skipped = 5;
        let share = |server: &str, sent, answered| crate::result::ServerShare {
            server: server.to_owned(),
            counts: crate::result::Counts {
                sent,
                answered,
                timed_out: sent - answered,
                ..crate::result::Counts::default()
            },
            latency: crate::result::Latency::new(),
        };
        phase.by_server = vec![share("a:1", 50, 50), share("b:2", 50, 5), share("c:3", 2, 0)];
        let remarks = phase_remarks(&phase);
        assert_eq!(
            remarks,
            [
                "generator-limited: late",
                "5 slots were skipped, too many requests were under way",
                "45 of 47 unanswered requests were asked of b:2, which answered 5 of 50"
            ]
        );
    }
}
