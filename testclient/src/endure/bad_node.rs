//! One bad node among good ones: what it costs everybody, as ratios to healthy runs of the same session.
//!
//! It is made bad in five ways, one after the other: its traffic is 300 ms late in each direction, or 30 % of
//! its packets are lost in each direction (both by [`super::bad_link`], left out where there can be none), it
//! stands still half of the time, its receive buffer is tiny, or it shares a core with programs that never rest (and is compared with runs beside such a core).
//!
//! Every client stays with one node: those of the bad node are its own share, and have to live with it. So
//! goodput over all clients may fall by that share, one in as many as there are nodes, and anything
//! beyond is what the others suffer. Latencies are told apart in the same way: a request for a key that the
//! bad node does not hold, asked of another node, must not notice anything. Who holds a key is asked of the
//! nodes themselves (the private 0x27).
//!
//! A p99 of a few milliseconds is easily disturbed by whatever else a small machine does: healthy runs may differ by
//! more than what is promised. So their ratios are reported beside the others', and what is within nine tenths of
//! those breaks nothing; the report says when that was needed. The simulator asks the same question
//! without a machine (`sim/bad_node_tests`).

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use violet_client::Status;

use super::bad_link::{self, BadLink};
use super::traffic::{Kind, Share, Split};
use super::trial::Trial;
use crate::cluster::{Finding, StageResult};
use crate::machine::ResumeWatch;
use crate::report::{Table, milliseconds};

/// Length of each run, and how often all ways are gone through.
const RUN_SECONDS: u64 = 6;
const ROUNDS: usize = 3;
/// Load before a run that does not count: with a bad node, the time that the others have to get over it.
const WARM_UP: Duration = Duration::from_secs(3);
const GET_OVER_IT: Duration = Duration::from_secs(10);
/// Clients for each node, and how long each rests: the machine must not be the limit, or a node that does
/// nothing would be a gain for the others.
const CLIENTS_PER_NODE: usize = 2;
const REST: Duration = Duration::from_millis(10);
/// How bad the link is.
const DELAY_MS: u64 = 300;
const LOSS_PERCENT: u64 = 30;
/// How long the node stands still and runs, in turn.
const HALF_PERIOD: Duration = Duration::from_millis(10);
/// Programs that share the node's core.
const SPINNERS: usize = 2;
/// What is promised, medians over the rounds.
const GOODPUT_RATIO_MIN: f64 = 0.85;
const P99_RATIO_MAX: f64 = 1.5;

/// A way of being bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Delay,
    Loss,
    HalfStopped,
    TinyBuffer,
    BusyCore,
}

impl Way {
    const ALL: [Self; 5] = [Self::Delay, Self::Loss, Self::HalfStopped, Self::TinyBuffer, Self::BusyCore];

    fn name(self) -> &'static str {
        match self {
            Self::Delay => "300 ms delay",
            Self::Loss => "30 % loss",
            Self::HalfStopped => "stops half of the time",
            Self::TinyBuffer => "tiny receive buffer",
            Self::BusyCore => "busy core",
        }
    }

    fn needs_link(self) -> bool {
        matches!(self, Self::Delay | Self::Loss)
    }
}

/// The bad node and what it has to do with the load.
struct Subject {
    node: usize,
    everyone: Vec<usize>,
    link: Option<BadLink>,
    split: Arc<Split>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    good_per_second: f64,
    /// Of each share.
    p99_ms: [f64; 3],
    unanswered: u64,
}

const SHARES: [Share; 3] = [Share::Others, Share::ItsKeys, Share::ItsClients];

/// Bad and healthy runs in turn: the machine is not the same from minute to minute.
pub fn bad_node(trial: &mut Trial) -> StageResult {
    let everyone: Vec<usize> = (0..trial.nodes.addresses().len()).collect();
    let node = bad_link::bad_one(everyone.len());
    let link = match trial.options.inside_namespace {
        true => {
            let link = BadLink::build(trial.random.next()).map_err(Finding::Undecided)?;
            trial.nodes.place_in_namespace(node, bad_link::NODE_NAMESPACE.to_owned());
            Some(link)
        }
        false => None,
    };
    trial.start_cluster(&everyone)?;
    trial.fill()?;
    let its_keys = trial.keys_of(node)?;
    trial.say(&format!("node {node} is the bad one; it holds {} of the keys", its_keys.len()));
    let split = Arc::new(Split::new(node, its_keys));
    let subject = Subject { node, everyone, link, split };
    let ways: Vec<Way> =
        Way::ALL.into_iter().filter(|way| subject.link.is_some() || !way.needs_link()).collect();
    if subject.link.is_none() {
        trial.remark(
            "skipped: delay and loss of the bad node's traffic, which need root, `ip` and VXLAN devices",
        );
    }
    let mut runs = Vec::new();
    let mut healthy = measure(trial, &subject, "healthy", WARM_UP)?;
    for _ in 0..trial.rounds_or(ROUNDS) {
        for &way in &ways {
            let (bad, beside) = measure_way(trial, &subject, way)?;
            let after = measure(trial, &subject, "healthy", WARM_UP)?;
            let compared = beside.unwrap_or([healthy, after]);
            runs.push(Round { way, healthy: [healthy, after], bad, compared });
            healthy = after;
        }
    }
    let noise = ratios_of_healthy(&healthy_of(&runs), |run| run.p99_ms[0]);
    let noise = noise.get(noise.len() * 9 / 10).copied().unwrap_or_default();
    ways.iter().for_each(|way| judge(trial, *way, &runs, noise));
    report(trial, &ways, &runs);
    trial.final_sweep(&subject.everyone)?;
    trial.check_processes();
    Ok(())
}

fn measure(trial: &mut Trial, subject: &Subject, name: &str, warm_up: Duration) -> Result<Run, Finding> {
    let mut kind = Kind {
        clients: CLIENTS_PER_NODE * subject.everyone.len(),
        rest: REST,
        numbers: 0..trial.busy(),
        more: 0..0,
        via: subject.everyone.clone(),
        split: Some(Arc::clone(&subject.split)),
        seed: trial.random.next(),
    };
    let before = trial.load_of(&kind)?;
    thread::sleep(warm_up);
    before.stop().map_err(Finding::Undecided)?;
    SHARES.iter().for_each(|&share| drop(subject.split.take(share)));
    kind.seed = trial.random.next();
    trial.say(&format!("{name}:"));
    let traffic = trial.load_of(&kind)?;
    thread::sleep(trial.seconds_or(RUN_SECONDS));
    let tally = trial.end_load(traffic)?;
    trial.judge_load(name);
    let statuses = tally.statuses();
    let good: u64 = [Status::Success, Status::NoSuchKey]
        .iter()
        .map(|status| statuses.get(status).copied().unwrap_or(0))
        .sum();
    let p99_ms = |share| subject.split.take(share).value_at_quantile(0.99) as f64 / 1e3;
    Ok(Run {
        good_per_second: good as f64 / tally.window.as_secs_f64(),
        p99_ms: SHARES.map(p99_ms),
        unanswered: tally.counts().timed_out,
    })
}

/// A run of this way, and what to compare it with if not with the healthy runs before and after.
fn measure_way(trial: &mut Trial, subject: &Subject, way: Way) -> Result<(Run, Option<[Run; 2]>), Finding> {
    let pid = trial.nodes.pid(subject.node);
    let pid = pid.ok_or_else(|| Finding::Undecided(format!("node {} does not run", subject.node)))?;
    let bad = |trial: &mut Trial| measure(trial, subject, way.name(), GET_OVER_IT);
    let run = match (way, &subject.link) {
        (Way::Delay | Way::Loss, None) => Err(Finding::Undecided("there is no link to make bad".to_owned())),
        (Way::Delay | Way::Loss, Some(link)) => {
            let (delay_ms, loss_percent) = if way == Way::Delay { (DELAY_MS, 0) } else { (0, LOSS_PERCENT) };
            link.set(delay_ms, loss_percent);
            let run = bad(trial);
            link.set(0, 0);
            trial.await_healed("the link is good again", &subject.everyone);
            run
        }
        (Way::HalfStopped, _) => {
            let half_stopped = HalfStopped::start(pid)?;
            let run = bad(trial);
            drop(half_stopped);
            trial.await_healed("the node stops no more", &subject.everyone);
            run
        }
        (Way::TinyBuffer, _) => {
            restart(trial, subject, &["receive-buffer-kib=16"])?;
            let run = bad(trial);
            restart(trial, subject, &[])?;
            run
        }
        (Way::BusyCore, _) => {
            let spinners = Spinners::start()?;
            // A core that never rests costs everybody on a small machine; the node is to be compared with that.
            let before = measure(trial, subject, "healthy, beside a busy core", WARM_UP)?;
            Spinners::join(pid)?;
            let run = bad(trial)?;
            restart(trial, subject, &[])?;
            let after = measure(trial, subject, "healthy, beside a busy core", WARM_UP)?;
            drop(spinners);
            return Ok((run, Some([before, after])));
        }
    };
    Ok((run?, None))
}

/// The node's process is stopped and continued in turn, until this is dropped.
/// A process that stands still half of the time, until this is dropped.
pub struct HalfStopped {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _watch: ResumeWatch,
}

impl HalfStopped {
    /// Begins; the process must be one that nobody else waits for meanwhile.
    ///
    /// # Errors
    /// There is no shell to resume it if this program is killed.
    pub fn start(pid: Pid) -> Result<Self, Finding> {
        let watch = ResumeWatch::start(&[pid.as_raw_nonzero().get()]).map_err(Finding::Undecided)?;
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let thread = thread::spawn(move || {
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
        Ok(Self { over, thread: Some(thread), _watch: watch })
    }
}

impl Drop for HalfStopped {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // One that panicked has ended, too; the watch resumes the node.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn restart(trial: &mut Trial, subject: &Subject, settings: &[&str]) -> StageResult {
    let node = subject.node;
    trial.nodes.set(node, settings);
    trial.nodes.kill(&[node]);
    trial.nodes.start_again(node).map_err(Finding::Undecided)?;
    trial.await_healed(&format!("node {node} restarted with {settings:?}"), &subject.everyone);
    Ok(())
}

/// Programs that do nothing but run; they end when this is dropped.
struct Spinners(Vec<Child>);

impl Spinners {
    /// They run on one core, and only when nobody else wants to (`SCHED_IDLE`): the other nodes merely happen to be
    /// on the same machine.
    fn start() -> Result<Self, Finding> {
        let mut spinners = Self(Vec::new());
        for _ in 0..SPINNERS {
            let line = ["-i", "0", "taskset", "-c", "0", "sh", "-c", "while :; do :; done"];
            let spinner = Command::new("chrt").args(line).spawn();
            spinners.0.push(spinner.map_err(|error| Finding::Undecided(format!("chrt: {error}")))?);
        }
        Ok(spinners)
    }

    /// From now on a node shares the core with them, as an equal.
    fn join(pid: Pid) -> StageResult {
        let pid = pid.as_raw_nonzero().to_string();
        for command in [["taskset", "-acp", "0"], ["chrt", "-aip", "0"]] {
            let mut line = Command::new(command[0]);
            let status = line.args(&command[1..]).arg(&pid).stdout(Stdio::null()).status();
            if !status.is_ok_and(|status| status.success()) {
                return Err(Finding::Undecided(format!(
                    "cannot pin a node to a core: needs `{}`",
                    command[0]
                )));
            }
        }
        Ok(())
    }
}

impl Drop for Spinners {
    fn drop(&mut self) {
        for spinner in &mut self.0 {
            // One that has ended already is as good.
            let _ = spinner.kill();
            let _ = spinner.wait();
        }
    }
}

/// A bad run, the healthy ones before and after, and those that it is compared with.
struct Round {
    way: Way,
    healthy: [Run; 2],
    bad: Run,
    compared: [Run; 2],
}

/// The ratios of a figure to the mean of the runs that it is compared with, of each round.
fn ratios(runs: &[Round], way: Way, of: impl Fn(&Run) -> f64) -> Vec<f64> {
    let of_way = runs.iter().filter(|round| round.way == way);
    let ratio = |round: &Round| 2.0 * of(&round.bad) / (of(&round.compared[0]) + of(&round.compared[1]));
    let mut ratios: Vec<f64> = of_way.map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    ratios
}

/// The ratios of a figure of each healthy run to the mean of the healthy runs before and after: what the machine
/// alone does to the ratios of the bad ones.
fn ratios_of_healthy(healthy: &[Run], of: impl Fn(&Run) -> f64) -> Vec<f64> {
    let of_run = |runs: &[Run]| 2.0 * of(&runs[1]) / (of(&runs[0]) + of(&runs[2]));
    let mut ratios: Vec<f64> = healthy.windows(3).map(of_run).collect();
    ratios.sort_by(f64::total_cmp);
    ratios
}

/// The healthy runs, in the order in which they were.
fn healthy_of(runs: &[Round]) -> Vec<Run> {
    let first = runs.first().map(|round| round.healthy[0]);
    first.into_iter().chain(runs.iter().map(|round| round.healthy[1])).collect()
}

/// `noise`: what nine tenths of the ratios of healthy runs stay below.
fn judge(trial: &mut Trial, way: Way, runs: &[Round], noise: f64) {
    let goodput = median(&ratios(runs, way, |run| run.good_per_second));
    let p99 = median(&ratios(runs, way, |run| run.p99_ms[0]));
    let name = way.name();
    trial.figure(format!("{name}: goodput ratio"), goodput, "");
    trial.figure(format!("{name}: p99 ratio of keys that it does not hold"), p99, "");
    trial.claim(GOODPUT_RATIO_MIN <= goodput, || {
        format!("{name}: goodput falls to {goodput:.2} of healthy; promised: {GOODPUT_RATIO_MIN}")
    });
    if P99_RATIO_MAX < p99 && p99 <= noise {
        trial.remark(format!(
            "{name}: p99 of keys that it does not hold rises to {p99:.2} of healthy, which proves nothing: healthy runs \
             rise to {noise:.2} by themselves; promised: {P99_RATIO_MAX}"
        ));
    }
    trial.claim(p99 <= P99_RATIO_MAX.max(noise), || {
        format!("{name}: p99 of keys that it does not hold rises to {p99:.2} of healthy; promised: {P99_RATIO_MAX}")
    });
}

fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn report(trial: &mut Trial, ways: &[Way], runs: &[Round]) {
    let headings = [
        "one node …",
        "good/s",
        "ratio",
        "p99 ms others",
        "ratio",
        "its keys",
        "ratio",
        "its clients",
        "silent",
    ];
    let mut table = Table::new(&headings, 1);
    let spread = |values: &[f64]| match values {
        [] => String::new(),
        [one] => format!("{one:.2}"),
        [least, .., most] => format!("{:.2} ({least:.2} to {most:.2})", median(values)),
    };
    let healthy = healthy_of(runs);
    let noise = ratios_of_healthy(&healthy, |run| run.p99_ms[0]);
    if let [.., most] = noise[..] {
        trial.figure(
            "healthy runs among themselves: largest p99 ratio of keys that the bad node does not hold",
            most,
            "",
        );
    }
    let mut rows = vec![("healthy", None, healthy.clone())];
    rows.extend(ways.iter().map(|&way| {
        let bad = runs.iter().filter(|round| round.way == way).map(|round| round.bad);
        (way.name(), Some(way), bad.collect())
    }));
    for (name, way, its) in &rows {
        let middle = |of: &dyn Fn(&Run) -> f64| {
            let mut values: Vec<f64> = its.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            median(&values)
        };
        let ratio = |of: &dyn Fn(&Run) -> f64| match way {
            Some(way) => spread(&ratios(runs, *way, of)),
            None => spread(&ratios_of_healthy(&healthy, of)),
        };
        table.row(vec![
            (*name).to_owned(),
            format!("{:.0}", middle(&|run| run.good_per_second)),
            ratio(&|run| run.good_per_second),
            milliseconds(middle(&|run| run.p99_ms[0])),
            ratio(&|run| run.p99_ms[0]),
            milliseconds(middle(&|run| run.p99_ms[1])),
            ratio(&|run| run.p99_ms[1]),
            milliseconds(middle(&|run| run.p99_ms[2])),
            its.iter().map(|run| run.unanswered).sum::<u64>().to_string(),
        ]);
    }
    trial.remark(format!(
        "medians (and spread) of {} rounds; ratios to the mean of the healthy runs before and after (for healthy runs, too: \
         what is within their spread is the machine's; for the busy core: of healthy runs beside such a core); p99 of \
         requests by share: to other nodes for keys that it does not hold, for its keys, and to it:\n{}",
        runs.len() / ways.len().max(1),
        table.text()
    ));
}
