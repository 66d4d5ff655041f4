//! One bad node among good ones: what it costs everybody, as ratios to healthy runs of the same session.
//!
//! It is made bad in the ways that need nothing but signals and settings: it stands still half of the time,
//! its receive buffer is tiny, or it shares its core with programs that never rest. Delay and loss on its
//! links are not here: the kernels that this is made for have no means for them (netem).
//! Clients do not know which node is bad and ask it as often as any other.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use violet_client::Status;

use super::traffic::Kind;
use super::trial::Trial;
use crate::cluster::{Finding, StageResult};
use crate::machine::ResumeWatch;
use crate::report::{Table, milliseconds};

/// Length of each run, and of the load before it that does not count.
const RUN_SECONDS: u64 = 8;
const WARM_UP: Duration = Duration::from_secs(2);
/// Clients, and how long each rests: the machine must not be the limit, or a node that does nothing would be
/// a gain for the others.
const CLIENTS: usize = 32;
const REST: Duration = Duration::from_millis(5);
/// How long the node stands still and runs, in turn.
const HALF_PERIOD: Duration = Duration::from_millis(10);
/// Programs that share the node's core.
const SPINNERS: usize = 2;
const HEALTHY: &str = "healthy";

struct Run {
    name: &'static str,
    good_per_second: f64,
    p99_ms: f64,
    longest_ms: f64,
    unanswered: u64,
}

/// Bad and healthy runs in turn: the machine is not the same from minute to minute.
pub fn bad_node(trial: &mut Trial) -> StageResult {
    let everyone: Vec<usize> = (0..trial.nodes.addresses().len()).collect();
    trial.start_cluster(&everyone)?;
    trial.fill()?;
    trial.remark("delay and loss of the bad node's traffic are left out: there is no netem to make them");
    let bad = everyone[everyone.len() / 2];
    let mut runs = vec![measure(trial, HEALTHY, &everyone)?];
    for way in [half_stopped, tiny_buffer, busy_core] {
        runs.push(way(trial, bad, &everyone)?);
        runs.push(measure(trial, HEALTHY, &everyone)?);
    }
    report(trial, &runs);
    trial.final_sweep(&everyone)?;
    trial.check_processes();
    Ok(())
}

fn measure(trial: &mut Trial, name: &'static str, everyone: &[usize]) -> Result<Run, Finding> {
    let mut kind = Kind {
        clients: CLIENTS,
        rest: REST,
        numbers: 0..trial.busy(),
        more: 0..0,
        via: everyone.to_vec(),
        seed: trial.random.next(),
    };
    let warm_up = trial.load_of(&kind)?;
    thread::sleep(WARM_UP);
    warm_up.stop().map_err(Finding::Undecided)?;
    kind.seed = trial.random.next();
    let traffic = trial.load_of(&kind)?;
    thread::sleep(trial.seconds_or(RUN_SECONDS));
    let tally = trial.end_load(traffic)?;
    trial.judge_load(name);
    let good: u64 = [Status::Success, Status::NoSuchKey]
        .iter()
        .map(|status| tally.statuses.get(status).copied().unwrap_or(0))
        .sum();
    Ok(Run {
        name,
        good_per_second: good as f64 / tally.window.as_secs_f64(),
        p99_ms: tally.latency_ms(99.0),
        longest_ms: tally.latency_ms(100.0),
        unanswered: tally.timeouts,
    })
}

/// The node's process is stopped and continued in turn.
fn half_stopped(trial: &mut Trial, bad: usize, everyone: &[usize]) -> Result<Run, Finding> {
    let Some(pid) = trial.nodes.pid(bad) else {
        return Err(Finding::Undecided(format!("node {bad} does not run")));
    };
    let _watch = ResumeWatch::start(&[pid.as_raw_nonzero().get()]).map_err(Finding::Undecided)?;
    let over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&over);
    let alternate = thread::spawn(move || {
        // The process is our child and is not waited for while this runs, so the id is its own.
        let send = |signal| rustix::process::kill_process(pid, signal);
        while !seen.load(Ordering::Relaxed) {
            let stopped = send(Signal::STOP);
            thread::sleep(HALF_PERIOD);
            if stopped.and(send(Signal::CONT)).is_err() {
                return;
            }
            thread::sleep(HALF_PERIOD);
        }
    });
    let run = measure(trial, "stops half of the time", everyone);
    over.store(true, Ordering::Relaxed);
    alternate.join().map_err(|_| Finding::Undecided("the alternating thread panicked".to_owned()))?;
    run
}

fn restart(trial: &mut Trial, bad: usize, settings: &[&str], everyone: &[usize]) -> StageResult {
    trial.nodes.set(bad, settings);
    trial.nodes.kill(&[bad]);
    trial.nodes.start_again(bad).map_err(Finding::Undecided)?;
    trial.await_healed(&format!("node {bad} restarted with {settings:?}"), everyone);
    Ok(())
}

fn tiny_buffer(trial: &mut Trial, bad: usize, everyone: &[usize]) -> Result<Run, Finding> {
    restart(trial, bad, &["receive-buffer-kib=16"], everyone)?;
    let run = measure(trial, "tiny receive buffer", everyone)?;
    restart(trial, bad, &[], everyone)?;
    Ok(run)
}

/// Programs that do nothing but run; they end when this is dropped.
struct Spinners(Vec<Child>);

impl Drop for Spinners {
    fn drop(&mut self) {
        for spinner in &mut self.0 {
            // One that has ended already is as good.
            let _ = spinner.kill();
            let _ = spinner.wait();
        }
    }
}

fn busy_core(trial: &mut Trial, bad: usize, everyone: &[usize]) -> Result<Run, Finding> {
    let Some(pid) = trial.nodes.pid(bad) else {
        return Err(Finding::Undecided(format!("node {bad} does not run")));
    };
    let pid = pid.as_raw_nonzero().to_string();
    let pinned = Command::new("taskset").args(["-acp", "0", &pid]).stdout(Stdio::null()).status();
    if !pinned.is_ok_and(|status| status.success()) {
        return Err(Finding::Undecided("cannot pin a node to a core: needs `taskset`".to_owned()));
    }
    let mut spinners = Spinners(Vec::new());
    for _ in 0..SPINNERS {
        let spinner = Command::new("taskset").args(["-c", "0", "sh", "-c", "while :; do :; done"]).spawn();
        spinners.0.push(spinner.map_err(|error| Finding::Undecided(format!("taskset: {error}")))?);
    }
    let run = measure(trial, "busy core", everyone)?;
    drop(spinners);
    restart(trial, bad, &[], everyone)?;
    Ok(run)
}

fn report(trial: &mut Trial, runs: &[Run]) {
    let headings = ["one node …", "good/s", "ratio", "p99 ms", "ratio", "longest ms", "not answered"];
    let mut table = Table::new(&headings, 1);
    for (index, run) in runs.iter().enumerate() {
        let ratio = |of: fn(&Run) -> f64| {
            // Every second run is healthy, the first and the last included.
            let is_bad = index % 2 == 1;
            is_bad.then(|| 2.0 * of(run) / (of(&runs[index - 1]) + of(&runs[index + 1])))
        };
        let (good, p99) = (ratio(|run| run.good_per_second), ratio(|run| run.p99_ms));
        let shown = |ratio: Option<f64>| ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
        table.row(vec![
            run.name.to_owned(),
            format!("{:.0}", run.good_per_second),
            shown(good),
            milliseconds(run.p99_ms),
            shown(p99),
            milliseconds(run.longest_ms),
            run.unanswered.to_string(),
        ]);
        for (what, ratio) in [("goodput", good), ("p99", p99)] {
            if let Some(ratio) = ratio {
                trial.figure(format!("{}: {what} ratio", run.name), ratio, "");
            }
        }
    }
    trial.remark(format!("ratios to the mean of the healthy runs before and after:\n{}", table.text()));
}
