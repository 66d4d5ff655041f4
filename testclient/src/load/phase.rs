//! One phase: an engine in each of several threads, watched from here, and one [`Phase`] made of what they counted.
//!
//! The threads hand in sheets four times a second. They are merged by quarter, so the account second by second has the
//! percentiles of all threads together, and who watches gets a [`Glimpse`] of each moment. Memory does not grow with
//! the number of requests.
//!
//! **When the generator was the limit.** The figures are called its own, not the servers', when in an open loop
//! requests left late (99 of 100 within more than [`LATENESS_MS_MAX`] or a tenth of the median latency, whichever is
//! more), or more than [`SKIPPED_SHARE_MAX`] of the slots were skipped because too many requests were under way; and in
//! both kinds of loop when its threads worked for more than [`BUSY_SHARE_MAX`] of the time.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use violet_client::Format;

use super::engine;
use super::plan::{Conduct, Pace, PhasePlan};
use super::schedule::Schedule;
use super::sheet::Sheet;
use super::{Signals, Workload};
use crate::machine;
use crate::result::{Generator, Latency, Loop, Phase, Second};
use crate::tally::Tally;
use crate::workload::Keys;

/// Lateness of 99 of 100 requests that is always all right, in milliseconds.
const LATENESS_MS_MAX: f64 = 1.0;
/// Share of the median latency that the lateness may have.
const LATENESS_SHARE_MAX: f64 = 0.1;
/// Share of the slots that may be skipped.
const SKIPPED_SHARE_MAX: f64 = 0.001;
/// Share of the time that the threads may work.
const BUSY_SHARE_MAX: f64 = 0.95;
/// How often who watches is shown something at least.
const LOOK: Duration = Duration::from_millis(250);
/// Quarters of a second in one.
const QUARTERS: u64 = 4;
/// Bytes of a reply around its value.
const REPLY_HEAD_BYTES: usize = 512;

/// The state of a running phase. While it is warmed up nothing counts, and all counts are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Glimpse {
    /// Seconds since requests count; negative while it is warmed up.
    pub at_seconds: f64,
    /// Seconds until requests are no longer made; `None` if the keys decide.
    pub left_seconds: Option<f64>,
    /// Requests that fell due so far.
    pub offered: u64,
    /// Answers so far.
    pub answered: u64,
    /// Good ones.
    pub good: u64,
    /// Wrong ones.
    pub wrong: u64,
    /// Requests given up.
    pub timed_out: u64,
    /// Requests under way.
    pub in_flight: usize,
    /// Answers a second, of the last quarter of a second.
    pub answered_per_second: f64,
    /// Corrected latency of this second so far, in milliseconds: median.
    pub p50_ms: f64,
    /// 99 of 100.
    pub p99_ms: f64,
}

/// Who watches a phase. [`ControlFlow::Break`] ends it: nothing new is asked, and what is under way is waited for.
pub type Observer<'a> = &'a mut dyn FnMut(&Glimpse) -> ControlFlow<()>;

/// Runs one phase on these keys. `observer` is shown the state about four times a second and may stop the phase.
///
/// # Errors
/// One sentence about what is wrong with the plan, or that there are no sockets.
pub fn run_phase(plan: &PhasePlan, keys: &mut Keys, observer: Observer<'_>) -> Result<Phase, String> {
    let (phase, _) = run_phase_counted(plan, keys, observer)?;
    Ok(phase)
}

/// The same, with all that was counted.
///
/// # Errors
/// As [`run_phase`].
pub fn run_phase_counted(
    plan: &PhasePlan,
    keys: &mut Keys,
    observer: Observer<'_>,
) -> Result<(Phase, Tally), String> {
    plan.check()?;
    let timing = plan.timing()?;
    let (target, threads) = (keys.target.clone(), keys.threads());
    let reply_bytes_max = keys.value_bytes_max() + REPLY_HEAD_BYTES;
    let run_started = keys.run_started;
    let (mut loads, seed) = keys.begin_phase(plan)?;
    let window = (0.0 < plan.seconds).then(|| Duration::from_secs_f64(plan.seconds));
    let threads = match timing {
        Loop::Open { .. } => threads,
        // A thread without a client would have nothing to do.
        Loop::Closed { clients } => threads.min(clients),
    };
    if threads < loads.len() {
        let keys = loads.len();
        return Err(format!(
            "{}: clients are fewer than the {keys} threads that the keys are dealt out to",
            plan.name
        ));
    }
    let conducts: Vec<Conduct> = (0..threads)
        .map(|thread| Conduct {
            servers: target.servers.clone(),
            format: target.format,
            waits: plan.waits_ms.iter().map(|&ms| Duration::from_millis(ms)).collect(),
            pace: match timing {
                Loop::Open { rate, arrivals } => Pace::Open {
                    schedule: Schedule::new(arrivals, rate, seed, thread, threads),
                    in_flight_max: plan.in_flight_max.div_ceil(threads),
                },
                Loop::Closed { clients } => Pace::Closed {
                    clients: clients / threads + usize::from(thread < clients % threads),
                    rest: Duration::ZERO,
                },
            },
            warm_up: Duration::from_secs_f64(plan.warm_up),
            window,
            overload_restarts_max: plan.overload_restarts,
            redraw_server: false,
            seed: seed ^ thread as u64,
            reply_bytes_max,
        })
        .collect();
    let at_seconds = run_started.elapsed().as_secs_f64() + plan.warm_up;
    let ran = run_threads(&conducts, &mut loads, observer)
        .map_err(|error| format!("{}: cannot make load: {error}", plan.name))?;
    let phase = ran.phase(&plan.name, plan.group(), timing, at_seconds, &target.servers, target.format);
    Ok((phase, ran.tally))
}

/// What the threads of a load saw.
#[derive(Clone, Debug)]
pub struct Ran {
    /// All that was counted.
    pub tally: Tally,
    /// Second by second, from where requests count on.
    pub seconds: Vec<Second>,
    /// Processor seconds of this process for each second, the warm-up included.
    pub processor_share: Option<f64>,
}

/// Runs one engine for each workload, and shows the state to `observer`.
///
/// # Errors
/// Sockets that cannot be opened or polled.
pub fn run_threads<W: Workload + Send>(
    conducts: &[Conduct],
    workloads: &mut [W],
    observer: Observer<'_>,
) -> io::Result<Ran> {
    assert_eq!(conducts.len(), workloads.len(), "each thread has its conduct and its workload");
    let signals: Vec<Signals> = conducts.iter().map(|_| Signals::default()).collect();
    let started = Instant::now();
    let processor_before = machine::processor_seconds();
    let mut tally = Tally::default();
    let mut book = Book::new(conducts.len());
    thread::scope(|scope| {
        let (send, receive) = mpsc::channel();
        let threads: Vec<_> = conducts
            .iter()
            .zip(workloads.iter_mut())
            .zip(&signals)
            .enumerate()
            .map(|(thread, ((conduct, workload), signals))| {
                let send = send.clone();
                scope.spawn(move || {
                    // The receiver outlives all senders.
                    let mut hand_in = |sheet| drop(send.send((thread, sheet)));
                    engine::conduct(conduct, workload, signals, &mut hand_in)
                })
            })
            .collect();
        drop(send);
        watch(&conducts[0], started, &receive, &mut book, &signals, observer);
        for thread in threads {
            tally.add(&thread.join().expect("an engine that panicked has said why")?);
        }
        Ok::<(), io::Error>(())
    })?;
    let used = machine::processor_seconds().zip(processor_before).map(|(after, before)| after - before);
    let processor_share = used.map(|used| used / started.elapsed().as_secs_f64());
    Ok(Ran { tally, seconds: book.seconds(), processor_share })
}

/// Takes sheets until all threads have ended.
fn watch(
    conduct: &Conduct,
    started: Instant,
    sheets: &Receiver<(usize, Sheet)>,
    book: &mut Book,
    signals: &[Signals],
    observer: Observer<'_>,
) {
    let mut shown = Instant::now();
    loop {
        let left = LOOK.saturating_sub(shown.elapsed());
        match sheets.recv_timeout(left) {
            Ok((thread, sheet)) => book.add(thread, sheet),
            Err(RecvTimeoutError::Timeout) => {
                shown = Instant::now();
                let at_seconds = started.elapsed().as_secs_f64() - conduct.warm_up.as_secs_f64();
                let left = conduct.window.map(|window| (window.as_secs_f64() - at_seconds).max(0.0));
                if observer(&book.glimpse(at_seconds, left)).is_break() {
                    signals.iter().for_each(|signals| signals.stop.store(true, Ordering::Relaxed));
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Sheets of all threads, merged.
struct Book {
    /// Seconds that are not complete, by number, with their latencies.
    open: BTreeMap<u64, (Second, Latency)>,
    complete: Vec<Second>,
    /// The latest quarter that each thread handed in.
    latest: Vec<Option<u64>>,
    in_flight: Vec<usize>,
    /// Answers of the last quarter of each thread.
    answered_lately: Vec<u64>,
    total: Second,
}

impl Book {
    fn new(threads: usize) -> Self {
        Self {
            open: BTreeMap::new(),
            complete: Vec::new(),
            latest: vec![None; threads],
            in_flight: vec![0; threads],
            answered_lately: vec![0; threads],
            total: Second::default(),
        }
    }

    fn add(&mut self, thread: usize, sheet: Sheet) {
        let at = sheet.quarter / QUARTERS;
        self.in_flight[thread] = sheet.in_flight;
        self.answered_lately[thread] = sheet.answered;
        self.latest[thread] = Some(sheet.quarter);
        let (second, latency) =
            self.open.entry(at).or_insert_with(|| (Second { at, ..Second::default() }, Latency::new()));
        for sum in [second, &mut self.total] {
            sum.offered += sheet.offered;
            sum.answered += sheet.answered;
            sum.good += sheet.good;
            sum.timed_out += sheet.timed_out;
            sum.wrong += sheet.wrong;
        }
        latency.add(&sheet.latency);
        self.complete_old();
    }

    /// Latencies of seconds that no thread adds to any more are reduced to percentiles.
    fn complete_old(&mut self) {
        let Some(slowest) = self.latest.iter().copied().min().flatten() else { return };
        while let Some(entry) = self.open.first_entry()
            && (entry.key() + 1) * QUARTERS <= slowest
        {
            self.complete.push(reduced(entry.remove()));
        }
    }

    fn glimpse(&self, at_seconds: f64, left_seconds: Option<f64>) -> Glimpse {
        let latest =
            self.open.last_key_value().map(|(_, (second, latency))| reduced((*second, latency.clone())));
        let latest = latest.or(self.complete.last().copied()).unwrap_or_default();
        let per_second = QUARTERS as f64;
        Glimpse {
            at_seconds,
            left_seconds,
            offered: self.total.offered,
            answered: self.total.answered,
            good: self.total.good,
            wrong: self.total.wrong,
            timed_out: self.total.timed_out,
            in_flight: self.in_flight.iter().sum(),
            answered_per_second: self.answered_lately.iter().sum::<u64>() as f64 * per_second,
            p50_ms: latest.p50_ms,
            p99_ms: latest.p99_ms,
        }
    }

    /// All seconds in order, those in which nothing happened as well.
    fn seconds(self) -> Vec<Second> {
        let all = self.complete.into_iter().chain(self.open.into_values().map(reduced));
        let mut seconds: Vec<Second> = Vec::new();
        for second in all {
            (seconds.len() as u64..second.at).for_each(|at| seconds.push(Second { at, ..Second::default() }));
            seconds.push(second);
        }
        seconds
    }
}

fn reduced((second, latency): (Second, Latency)) -> Second {
    Second { p50_ms: latency.ms(50.0), p99_ms: latency.ms(99.0), max_ms: latency.ms(100.0), ..second }
}

impl Ran {
    /// What was counted, as a phase of this name.
    pub fn phase(
        &self,
        name: &str,
        group: &str,
        timing: Loop,
        at_seconds: f64,
        servers: &[SocketAddr],
        format: Format,
    ) -> Phase {
        let tally = &self.tally;
        let counts = tally.counts();
        assert!(counts.is_balanced(), "every slot is sent or skipped, every request ends once: {counts:?}");
        Phase {
            name: name.to_owned(),
            group: group.to_owned(),
            at_seconds,
            window_seconds: tally.window.as_secs_f64(),
            format: format_name(format).to_owned(),
            timing,
            servers: servers.len(),
            counts,
            operations: tally.result_operations(format),
            seconds: self.seconds.clone(),
            by_server: tally.result_servers(servers),
            generator: self.generator(timing),
            cost: None,
        }
    }

    /// How well the threads did their part.
    fn generator(&self, timing: Loop) -> Generator {
        let tally = &self.tally;
        let is_open = matches!(timing, Loop::Open { .. });
        let lateness = if is_open { tally.lateness.clone() } else { Latency::new() };
        Generator {
            processor_share: self.processor_share,
            threads: tally.threads,
            lateness_p50_ms: lateness.ms(50.0),
            lateness_p99_ms: lateness.ms(99.0),
            lateness_max_ms: lateness.ms(100.0),
            receive_buffer_bytes: tally.receive_buffer_bytes.unwrap_or(0),
            limited: limited(tally, is_open),
        }
    }
}

/// Why the figures are the generator's own, if they are. See the head of this file.
fn limited(tally: &Tally, is_open: bool) -> Option<String> {
    let counts = tally.counts();
    let mut reasons = Vec::new();
    if is_open {
        let lateness_ms = tally.lateness.ms(99.0);
        let p50_ms = tally.latency(|operation| &operation.corrected).ms(50.0);
        let limit_ms = LATENESS_MS_MAX.max(LATENESS_SHARE_MAX * p50_ms);
        if limit_ms < lateness_ms {
            reasons.push(format!(
                "it was itself late: 99 of 100 requests left within {lateness_ms:.2} ms of their time, not {limit_ms:.2} ms"
            ));
        }
        let skipped = counts.skipped as f64 / counts.offered.max(1) as f64;
        if SKIPPED_SHARE_MAX < skipped {
            reasons.push(format!(
                "{:.2} % of the slots were skipped, too many requests being under way",
                100.0 * skipped
            ));
        }
    }
    let available = tally.window.as_secs_f64() * tally.threads as f64;
    let busy = tally.busy.as_secs_f64() / available.max(f64::MIN_POSITIVE);
    if 0.0 < available && BUSY_SHARE_MAX < busy {
        reasons.push(format!("its {} threads worked for {:.0} % of the time", tally.threads, 100.0 * busy));
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// As it stands in results.
pub fn format_name(format: Format) -> &'static str {
    match format {
        Format::Raw => "raw",
        Format::Protobuf => "protobuf",
    }
}
