//! The step `faults`: an open load goes on while servers fail, and afterwards every key is judged.
//!
//! Two loads run at the same time. The open one asks the servers that are left alone, at a fixed rate, so its goodput
//! over time shows what the fault costs those who had nothing to do with it. Beside it a light one writes, removes and
//! reads keys whose whole history stands in a ledger ([`crate::endure::history`]); when all is over, every one of them
//! is read through every server until it is right, or has been wrong for too long. What is wrong then is lost,
//! stale, resurrected or wrong.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use violet_client::Format;

use super::course::Course;
use super::hand::Hand;
use super::happenings::Happenings;
use super::step::{self, Fault, Settings, Step};
use crate::endure::health::Doctor;
use crate::endure::history::{Deed, Fault as KeyFault, Ledger, Observations};
use crate::endure::sweep::{self, Swept, Task};
use crate::endure::traffic::{Kind, Shared, Traffic};
use crate::endure::writes::{self, Via};
use crate::grid::course_policy;
use crate::interrupt::Stop;
use crate::keyset::KeySet;
use crate::load::Plan;
use crate::result::{Event, Loop, Phase, Second};

/// Clients of the load with the ledger, and how long each rests between requests: it is there to know, not to load.
const WITNESSES: usize = 8;
const WITNESS_REST: Duration = Duration::from_millis(40);
/// Keys in the ledger at most: all are read through every server.
const LEDGER_KEYS_MAX: u64 = 2_000;
/// How often keys are written again at first that were not acknowledged.
const FILL_ROUNDS_MAX: usize = 5;
/// How long members may take to agree who is alive.
const AGREE_MAX: Duration = Duration::from_secs(15);
/// Goodput counts as recovered from this share of the median before the fault on.
const RECOVERED_SHARE: f64 = 0.9;

/// Everything about one fault that its thread needs.
struct Script<'a> {
    kind: &'a step::Faults,
    format: Format,
    servers: &'a [SocketAddr],
    victims: &'a [usize],
    survivors: &'a [usize],
    stop: &'a Stop,
    /// Where each deed is told as it is done.
    happenings: &'a Happenings,
    /// The moment that seconds of the run are counted from.
    epoch: Instant,
}

/// Runs the step.
pub fn run(course: &mut Course<'_>, step: &Step, kind: &step::Faults) -> Result<(), String> {
    let format = step.settings.format.format();
    let servers = course.all_servers();
    let victims = draw_victims(course, kind)?;
    let survivors: Vec<usize> =
        (0..servers.len()).filter(|server| course.alive[*server] && !victims.contains(server)).collect();
    if kind.restart && course.ground.as_ref().is_some_and(|ground| ground.own_pids().is_none()) {
        return Err(
            "restart = true needs nodes that the plan has started: --violet instead of --servers".to_owned()
        );
    }
    let by_signal = kind.fault != Fault::Shutdown;
    // The thread of the fault has the servers meanwhile, the load needs no more than their addresses.
    let mut ground = course.ground.take().ok_or("there are no servers")?;
    course.happenings = Happenings::default();
    let outcome = Hand::over(&mut ground, &victims, format, by_signal).and_then(|mut hand| {
        let script = Script {
            kind,
            format,
            servers: &servers,
            victims: &victims,
            survivors: &survivors,
            stop: &course.stop.clone(),
            happenings: &course.happenings.clone(),
            epoch: course.started(),
        };
        drill(course, step, &script, &mut hand)
    });
    course.ground = Some(ground);
    course.happenings = Happenings::default();
    let stay_away = matches!(kind.fault, Fault::Kill | Fault::Shutdown) && !kind.restart;
    for &victim in victims.iter().filter(|_| stay_away) {
        course.alive[victim] = false;
    }
    // The load's keys may have lost values by what was done to the servers.
    course.forget();
    outcome
}

/// Servers that shall fail: any but the first, which graders never touch.
fn draw_victims(course: &mut Course<'_>, kind: &step::Faults) -> Result<Vec<usize>, String> {
    let mut candidates: Vec<usize> = (1..course.alive.len()).filter(|&server| course.alive[server]).collect();
    if candidates.len() < kind.nodes {
        return Err(format!(
            "nodes = {} needs as many servers beside the first, there are {}",
            kind.nodes,
            candidates.len()
        ));
    }
    for index in 0..kind.nodes {
        let other = index + course.random.below(candidates.len() - index);
        candidates.swap(index, other);
    }
    candidates.truncate(kind.nodes);
    Ok(candidates)
}

fn drill(
    course: &mut Course<'_>,
    step: &Step,
    script: &Script<'_>,
    hand: &mut Hand<'_>,
) -> Result<(), String> {
    let shared = witness_keys(course, &step.settings)?;
    let everyone = [script.survivors, script.victims].concat();
    fill(course, script, &shared, &everyone)?;
    let traffic = start_witnesses(course, script, &shared)?;
    let settings = Settings { seconds: script.seconds(), warm_up: 0.0, ..step.settings.clone() };
    let timing = Loop::Open { rate: script.kind.rate, arrivals: settings.arrivals };
    let mut order = course.order(&step.name, &step.name, timing, &settings);
    order.servers = script.survivors.iter().map(|&server| script.servers[server]).collect();
    let (events, phase) = thread::scope(|scope| {
        let fault = scope.spawn(|| script.play(hand));
        course.forgives = !script.kind.strict;
        let phase = course.load(&order);
        course.forgives = false;
        let events = fault.join().unwrap_or_else(|_| Err("the thread of the fault panicked".to_owned()));
        (events, phase)
    });
    let tally = traffic.stop()?;
    let faults = events.map(|events| events.into_iter().for_each(|event| course.event(event)));
    let phase = phase?;
    faults?;
    if course.stop.is_set() {
        return Err("the load was cut short, so nothing is judged".to_owned());
    }
    course.say(&format!(
        "beside it: {} requests with a ledger, {} of them not answered",
        tally.counts().sent,
        tally.counts().timed_out
    ));
    judge_recovery(course, step, &phase);
    let stays_away = matches!(script.kind.fault, Fault::Kill | Fault::Shutdown) && !script.kind.restart;
    let via = if stays_away { script.survivors.to_vec() } else { everyone };
    let task = Task {
        servers: script.servers,
        format: script.format,
        via: &via,
        since: Instant::now(),
        limit: Duration::from_secs_f64(script.kind.settle_seconds),
    };
    let seen = std::mem::take(&mut *shared.seen());
    let swept = sweep::until_right(&task, &shared)?;
    judge_keys(course, step, script.kind, &shared, seen, &swept);
    for dead in hand.dead_by_themselves() {
        course.check(&format!("{}: nobody died by itself", step.name), Some(false), dead);
    }
    Ok(())
}

fn witness_keys(course: &mut Course<'_>, settings: &Settings) -> Result<Arc<Shared>, String> {
    let sizes = settings.value_bytes.load()?;
    let count = settings.keys.clamp(WITNESSES as u64, LEDGER_KEYS_MAX);
    Ok(Arc::new(Shared::new(Ledger::new(
        KeySet::drawn(&mut course.random, count, sizes).of_run(course.mark),
    ))))
}

fn fill(
    course: &mut Course<'_>,
    script: &Script<'_>,
    shared: &Shared,
    nodes: &[usize],
) -> Result<(), String> {
    let via = Via { servers: script.servers, format: script.format, nodes };
    let mut left: Vec<u64> = shared.readable().collect();
    for _ in 0..FILL_ROUNDS_MAX {
        left = writes::write_once(&via, shared, &mut course.random, Deed::Put, &left)?;
        if left.is_empty() {
            return Ok(());
        }
    }
    Err(format!("{} keys were not acknowledged in {FILL_ROUNDS_MAX} rounds before the fault", left.len()))
}

fn start_witnesses(
    course: &mut Course<'_>,
    script: &Script<'_>,
    shared: &Arc<Shared>,
) -> Result<Traffic, String> {
    let plan = Plan {
        servers: script.servers.to_vec(),
        format: script.format,
        waits: course_policy(script.format).waits,
        clients: 0,
        rest: Duration::ZERO,
        window: None,
        overload_restarts_max: 10,
        redraw_server: false,
        seed: course.random.next(),
    };
    let kind = Kind {
        clients: WITNESSES,
        rest: WITNESS_REST,
        // The others rest, so that something is there that no write brings back.
        numbers: 0..(shared.readable().end / 2).max(WITNESSES as u64),
        more: 0..0,
        via: script.survivors.to_vec(),
        split: None,
        seed: course.random.next(),
    };
    Traffic::start(plan, shared, &kind)
}

impl Script<'_> {
    /// How long the load goes on.
    fn seconds(&self) -> f64 {
        seconds(self.kind)
    }

    /// Does it, at its times; what was done.
    fn play(&self, hand: &mut Hand<'_>) -> Result<Vec<Event>, String> {
        let down = Duration::from_secs_f64(self.kind.seconds_down);
        if !self.stop.sleep(Duration::from_secs_f64(self.kind.seconds_before)) {
            return Ok(Vec::new());
        }
        let mut events = Vec::new();
        match self.kind.fault {
            Fault::Kill => {
                self.act(&mut events, "kill", self.victims, || hand.kill(self.victims))?;
                self.agree(&mut events, down);
            }
            Fault::Shutdown => {
                self.act(&mut events, "shutdown", self.victims, || {
                    hand.shut_down(self.victims, self.servers, self.format)
                })?;
                self.agree(&mut events, down);
            }
            Fault::Suspend => {
                self.act(&mut events, "suspend", self.victims, || hand.stop(self.victims))?;
                self.agree(&mut events, down);
                self.act(&mut events, "resume", self.victims, || hand.resume(self.victims))?;
            }
            Fault::Rolling => return self.roll(hand, down),
            Fault::BadNode => {
                let at_seconds = self.now();
                self.tell("slow", self.victims, ": it stands still half of the time from now on");
                let half_stopped = hand.half_stop(self.victims[0])?;
                self.stop.sleep(down);
                drop(half_stopped);
                self.tell("slow", self.victims, " is over");
                events.push(self.event(
                    "slow",
                    self.victims,
                    at_seconds,
                    "stood still half of the time, 10 ms of 20",
                ));
            }
        }
        if self.kind.restart && matches!(self.kind.fault, Fault::Kill | Fault::Shutdown) {
            self.act(&mut events, "start", self.victims, || hand.start_again(self.victims))?;
        }
        Ok(events)
    }

    /// Each victim is killed, away, started again, and has as long to come back.
    fn roll(&self, hand: &mut Hand<'_>, down: Duration) -> Result<Vec<Event>, String> {
        let mut events = Vec::new();
        for victim in self.victims {
            let one = std::slice::from_ref(victim);
            self.act(&mut events, "kill", one, || hand.kill(one))?;
            self.stop.sleep(down);
            self.act(&mut events, "start", one, || hand.start_again(one))?;
            let back = Instant::now();
            let healed = Doctor::new(self.servers, self.format)?.await_healed(&self.addresses(), down);
            if let Some(event) = events.last_mut() {
                event.outcome = match healed {
                    Ok(took) => format!("nothing left to repair {:.1} s later", took.as_secs_f64()),
                    Err(why) => why,
                };
                self.happenings.tell(event.outcome.clone());
            }
            if !self.stop.sleep(down.saturating_sub(back.elapsed())) {
                break;
            }
        }
        Ok(events)
    }

    fn now(&self) -> f64 {
        self.epoch.elapsed().as_secs_f64()
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.survivors.iter().chain(self.victims).map(|&server| self.servers[server]).collect()
    }

    fn event(&self, kind: &str, victims: &[usize], at_seconds: f64, outcome: &str) -> Event {
        Event {
            at_seconds,
            for_seconds: self.now() - at_seconds,
            kind: kind.to_owned(),
            servers: victims.iter().map(|&victim| self.servers[victim].to_string()).collect(),
            outcome: outcome.to_owned(),
        }
    }

    /// Tells who watches what begins to be done, or how it went.
    fn tell(&self, kind: &str, victims: &[usize], how: &str) {
        let names: Vec<String> = victims.iter().map(|&victim| self.servers[victim].to_string()).collect();
        self.happenings.tell(format!("{kind} {}{how}", names.join(", ")));
    }

    fn act(
        &self,
        events: &mut Vec<Event>,
        kind: &str,
        victims: &[usize],
        mut deed: impl FnMut() -> Result<(), String>,
    ) -> Result<(), String> {
        let at_seconds = self.now();
        self.tell(kind, victims, "");
        let outcome = deed();
        if let Err(why) = &outcome {
            self.tell(kind, victims, &format!(" failed: {why}"));
        }
        let text = outcome.as_ref().err().map_or("done", String::as_str);
        let mut event = self.event(kind, victims, at_seconds, text);
        event.for_seconds = 0.0;
        events.push(event);
        outcome
    }

    /// Waits for the length of the fault, and notes meanwhile when the survivors agree who is there.
    fn agree(&self, events: &mut [Event], down: Duration) {
        let since = Instant::now();
        let survivors: Vec<SocketAddr> = self.survivors.iter().map(|&server| self.servers[server]).collect();
        let agreed = Doctor::new(&survivors, self.format)
            .and_then(|mut doctor| doctor.await_counts(&survivors, AGREE_MAX.min(down)));
        if let Some(event) = events.last_mut() {
            event.for_seconds = self.kind.seconds_down;
            event.outcome = match agreed {
                Ok(took) => format!(
                    "the others counted {} members {:.1} s later",
                    survivors.len(),
                    took.as_secs_f64()
                ),
                Err(why) => format!("member counts: {why}"),
            };
            self.happenings.tell(event.outcome.clone());
        }
        self.stop.sleep(down.saturating_sub(since.elapsed()));
    }
}

/// How long the load of a fault step lasts.
pub fn seconds(kind: &step::Faults) -> f64 {
    let down = match kind.fault {
        Fault::Rolling => 2.0 * kind.nodes as f64 * kind.seconds_down,
        Fault::Kill | Fault::Shutdown | Fault::Suspend | Fault::BadNode => kind.seconds_down,
    };
    kind.seconds_before + down + kind.seconds_after
}

/// When goodput was back for good, in seconds after the beginning of the fault.
fn recovery(phase: &Phase, fault_at: f64) -> Option<f64> {
    let (before, after): (Vec<&Second>, Vec<&Second>) =
        phase.seconds.iter().partition(|second| (second.at + 1) as f64 <= fault_at);
    let mut usual: Vec<u64> = before.iter().map(|second| second.good).collect();
    usual.sort_unstable();
    let usual = *usual.get(usual.len() / 2)? as f64;
    let is_well = |good: u64, offered: u64| {
        // A last second that was cut short offers less and is not to be blamed for it.
        RECOVERED_SHARE * usual.min(offered as f64) <= good as f64
    };
    let last_bad = after.iter().rfind(|second| !is_well(second.good, second.offered));
    match last_bad {
        None => Some(0.0),
        Some(last) if after.last().is_some_and(|end| end.at == last.at) => None,
        Some(last) => Some(((last.at + 1) as f64 - fault_at).max(0.0)),
    }
}

fn judge_recovery(course: &mut Course<'_>, step: &Step, phase: &Phase) {
    let first = course.result.events.iter().find(|event| phase.at_seconds <= event.at_seconds);
    let Some(fault_at) = first.map(|event| event.at_seconds - phase.at_seconds) else { return };
    let name = format!("{}: goodput recovers", step.name);
    match recovery(phase, fault_at) {
        _ if phase.seconds.len() < 2 => {
            course.check(&name, None, "there are no figures by second".to_owned())
        }
        Some(seconds) => {
            let text =
                format!("{seconds:.0} s after the fault for good (to the second, 90 % of the median before)");
            course.check(&name, Some(true), text);
        }
        None => course.check(&name, Some(false), "not before the end of the load".to_owned()),
    }
}

fn keys_with(seen: &Observations, fault: KeyFault) -> usize {
    seen.faults.get(&fault).map_or(0, |occurrence| occurrence.keys.len())
}

/// When all was right again.
fn settled_text(kind: &step::Faults, swept: &Swept) -> String {
    match swept.converged_after {
        Some(after) => format!("all right {:.1} s after the load", after.as_secs_f64()),
        None => {
            let silent = swept.lasting.unanswered + swept.lasting.errors.values().sum::<u64>();
            format!("not all right {} s after the load, {silent} reads got no value", kind.settle_seconds)
        }
    }
}

fn judge_keys(
    course: &mut Course<'_>,
    step: &Step,
    kind: &step::Faults,
    shared: &Shared,
    mut seen: Observations,
    swept: &Swept,
) {
    let keys = shared.readable().end;
    let lasting = &swept.lasting;
    let [lost, stale, revived, wrong] =
        [KeyFault::Missing, KeyFault::Stale, KeyFault::Revived, KeyFault::Wrong]
            .map(|fault| keys_with(lasting, fault));
    // The first faults in words, where most of them are of one kind.
    let examples = if lasting.examples.is_empty() {
        String::new()
    } else {
        format!(": {}", lasting.examples.join("; "))
    };
    let (of_lost, of_others) = if 0 < lost { (examples.as_str(), "") } else { ("", examples.as_str()) };
    let lost_percent = 100.0 * lost as f64 / keys as f64;
    let settled = settled_text(kind, swept);
    course.check(
        &format!("{}: keys lost", step.name),
        Some(lost_percent <= kind.lost_percent_max),
        format!(
            "{lost} of {keys} ({lost_percent:.2} %, {} allowed); {settled}{of_lost}",
            kind.lost_percent_max
        ),
    );
    course.check(
        &format!("{}: keys stale, resurrected or wrong", step.name),
        Some(stale + revived + wrong == 0),
        format!("{stale} stale, {revived} resurrected, {wrong} wrong of {keys}{of_others}"),
    );
    seen.add(swept.seen.clone());
    let on_the_way = seen.fault_text().unwrap_or_else(|| "no wrong answer".to_owned());
    let passed = seen.faults.is_empty() || !kind.strict;
    let text = format!("{} reads right; {on_the_way}", seen.right);
    course.check(&format!("{}: answers on the way", step.name), Some(passed), text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fake;

    fn recovered(good: &[u64], fault_at: f64) -> Option<f64> {
        let mut phase = fake::phase(100.0, 0, 0);
        let second =
            |(at, &good): (usize, &u64)| Second { at: at as u64, offered: 100, good, ..Second::default() };
        phase.seconds = good.iter().enumerate().map(second).collect();
        recovery(&phase, fault_at)
    }

    #[test]
    fn recovery_is_counted_to_the_last_bad_second() {
        assert_eq!(recovered(&[100, 100, 100, 100], 2.0), Some(0.0));
        assert_eq!(recovered(&[100, 100, 20, 95, 70, 99, 98], 2.0), Some(3.0));
        assert_eq!(recovered(&[100, 100, 20, 95, 70], 2.0), None, "it may be bad still");
        assert_eq!(
            recovered(&[50, 50, 48, 46], 1.5),
            Some(0.0),
            "what is usual decides, not what was offered"
        );
        assert_eq!(recovered(&[100], 0.0), None, "nothing is known of before");
    }
}
