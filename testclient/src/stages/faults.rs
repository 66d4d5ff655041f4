//! Servers that die or stand still while clients write: what was acknowledged must survive.
//!
//! Writers own their keys, so they know which version was acknowledged last and which were attempted
//! since; a GET may bring any of these and nothing older. They ask only servers that are to survive,
//! as a client with a list of live servers would. The first server of the list is never touched.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use violet_client::wire::decode_response;
use violet_client::{Format, Operation, Status};

use super::identity;
use crate::cluster::{Cluster, Finding, StageResult, fail};
use crate::grid::course_policy;
use crate::keyset::{Expected, KeySet, Reading};
use crate::load::{self, Ask, Call, End, Plan, Signals, Verdict, Workload};
use crate::machine::{self, ResumeWatch, Signal};
use crate::settings::KillMode;
use crate::tally::Tally;
use crate::values::{Random, Sizes};

const WRITERS: usize = 8;
const KEYS_PER_WRITER: u64 = 60;
/// Load before the fault, and at least so much after it.
const LOAD_BEFORE: Duration = Duration::from_secs(1);
const LOAD_AFTER: Duration = Duration::from_secs(3);
/// How long the members may take to agree who is alive.
const AGREEMENT: Duration = Duration::from_secs(10);
const AGREEMENT_POLL: Duration = Duration::from_millis(200);
/// How long a server may take to die of SHUTDOWN.
const DEATH: Duration = Duration::from_secs(5);
/// How long reads through resumed servers go on, from the moment they resume.
const READS_AFTER_RESUME: Duration = Duration::from_secs(3);

/// The writers' knowledge and what their own reads found.
struct Writers {
    keys: KeySet,
    format: Format,
    via: Vec<usize>,
    random: Random,
    /// Last acknowledged and last attempted version of each key.
    versions: Vec<(i32, i32)>,
    under_way: Vec<(u64, bool)>,
    reading: Reading,
}

impl Workload for Writers {
    fn next(&mut self, client: usize, value: &mut Vec<u8>) -> Option<Call> {
        let server = self.via[self.random.below(self.via.len())];
        let number = client as u64 * KEYS_PER_WRITER + self.random.below(KEYS_PER_WRITER as usize) as u64;
        let put = self.random.below(4) != 0;
        self.under_way[client] = (number, put);
        let key = self.keys.key(number);
        if !put {
            return Some(Call { server, ask: Ask::Get { key } });
        }
        let (_, attempted) = &mut self.versions[number as usize];
        *attempted += 1;
        self.keys.contents.write(number, *attempted, value);
        Some(Call { server, ask: Ask::Put { key, version: *attempted } })
    }

    fn on_end(&mut self, client: usize, end: End<'_>) -> Verdict {
        let (number, put) = self.under_way[client];
        let (acknowledged, attempted) = &mut self.versions[number as usize];
        if !put {
            let expected = Expected::Between(*acknowledged, *attempted);
            let place = || format!("GET of key {number} by its only writer");
            self.keys.judge(self.format, number, expected, &end, &mut self.reading, place);
        } else if end.status() == Some(Status::Success) {
            *acknowledged = *attempted;
        }
        end.verdict()
    }
}

impl Writers {
    /// Writes a first version of everything.
    fn new(cluster: &mut Cluster, via: &[usize]) -> Result<Self, Finding> {
        let count = WRITERS as u64 * KEYS_PER_WRITER;
        let keys = KeySet::new(cluster, count, Sizes::UpTo(1_000));
        keys.put_all(cluster, via, 1)?;
        Ok(Self {
            keys,
            format: cluster.format,
            via: via.to_vec(),
            random: Random::new(cluster.random.next()),
            versions: vec![(1, 1); count as usize],
            under_way: vec![(0, false); WRITERS],
            reading: Reading::default(),
        })
    }

    fn read_all(&self, cluster: &mut Cluster, via: &[usize]) -> Result<Reading, Finding> {
        self.keys.read_all(cluster, via, |number| {
            let (acknowledged, attempted) = self.versions[number as usize];
            Expected::Between(acknowledged, attempted)
        })
    }
}

/// Runs the writers while `fault` happens in this thread, and stops them when it returns.
fn under_load<T>(
    cluster: &mut Cluster,
    writers: &mut Writers,
    fault: impl FnOnce(&mut Cluster) -> Result<T, Finding>,
) -> Result<(T, Tally), Finding> {
    let plan = Plan {
        servers: cluster.servers.clone(),
        format: cluster.format,
        waits: course_policy(cluster.format).waits,
        clients: WRITERS,
        rest: Duration::ZERO,
        window: None,
        overload_restarts_max: 10,
        redraw_server: false,
        seed: cluster.random.next(),
    };
    let signals = Signals::default();
    let (outcome, tally) = thread::scope(|scope| {
        let load = scope.spawn(|| load::run(&plan, writers, &signals));
        let outcome = fault(cluster);
        signals.stop.store(true, Ordering::Relaxed);
        (outcome, load.join())
    });
    let tally = match tally {
        Ok(Ok(tally)) => tally,
        Ok(Err(error)) => return Err(Finding::Undecided(error.to_string())),
        Err(_) => return Err(Finding::Undecided("the load thread panicked".to_owned())),
    };
    Ok((outcome?, tally))
}

/// Draws the servers that get into trouble; never the first.
fn victims(cluster: &mut Cluster) -> Result<Vec<usize>, Finding> {
    let mut candidates: Vec<usize> = cluster.live().into_iter().filter(|&server| server != 0).collect();
    let count = cluster.options.fault_nodes.unwrap_or(if cluster.servers.len() < 5 { 1 } else { 2 });
    if count == 0 || candidates.len() < count {
        let have = candidates.len();
        return Err(Finding::Skip(format!("needs {count} servers beside the first, there are {have}")));
    }
    for index in 0..count {
        let other = index + cluster.random.below(candidates.len() - index);
        candidates.swap(index, other);
    }
    candidates.truncate(count);
    Ok(candidates)
}

fn names(cluster: &Cluster, servers: &[usize]) -> String {
    servers.iter().map(|&server| cluster.servers[server].to_string()).collect::<Vec<_>>().join(", ")
}

/// Waits until these servers all count `expected` members; how long that took.
fn agreement(
    cluster: &mut Cluster,
    on: &[usize],
    expected: usize,
    since: Instant,
) -> Result<Duration, Finding> {
    loop {
        let wrong = match identity::counts(cluster) {
            Ok(counts) => {
                let wrong = counts.into_iter().filter(|(server, _)| on.contains(server));
                wrong.filter(|&(_, count)| usize::try_from(count) != Ok(expected)).collect::<Vec<_>>()
            }
            Err(Finding::Skip(_)) => return Ok(Duration::ZERO),
            Err(other) => return Err(other),
        };
        let Some(&(server, count)) = wrong.first() else { return Ok(since.elapsed()) };
        if AGREEMENT < since.elapsed() {
            let seconds = AGREEMENT.as_secs();
            let place = cluster.servers[server];
            return fail(format!(
                "{seconds} s later {place} counts {count} members, expected {expected} ({} servers are wrong)",
                wrong.len()
            ));
        }
        thread::sleep(AGREEMENT_POLL);
    }
}

/// Kills servers under load.
pub fn crash(cluster: &mut Cluster) -> StageResult {
    let victims = victims(cluster)?;
    let mode = cluster.options.kill_mode;
    if mode == KillMode::Kill9 && !cluster.is_on_loopback() {
        return Err(Finding::Skip("kill9 works only on loopback".to_owned()));
    }
    let pids = identity::pids(cluster);
    let survivors: Vec<usize> =
        cluster.live().into_iter().filter(|server| !victims.contains(server)).collect();
    let mut writers = Writers::new(cluster, &survivors)?;
    cluster.note(format!("killed {} ({mode:?})", names(cluster, &victims)));
    let (agreed, tally) = under_load(cluster, &mut writers, |cluster| {
        thread::sleep(LOAD_BEFORE);
        let since = Instant::now();
        for &victim in &victims {
            let pid = pids.as_ref().ok().and_then(|pids| pids.get(&victim).copied());
            kill(cluster, victim, pid)?;
            cluster.killed.push(victim);
        }
        let agreed = agreement(cluster, &survivors, survivors.len(), since)?;
        thread::sleep(LOAD_AFTER.saturating_sub(since.elapsed()));
        Ok(agreed)
    })?;
    cluster.note(format!("members agreed after {:.1} s", agreed.as_secs_f64()));
    note_load(cluster, &writers, &tally);
    writers.reading.insist("while servers died")?;
    writers.read_all(cluster, &survivors)?.insist("after servers died")?;
    writers.keys.put_all(cluster, &survivors, i32::MAX)?;
    writers
        .keys
        .read_all(cluster, &survivors, |_| Expected::Between(i32::MAX, i32::MAX))?
        .insist("written again after servers died")
}

fn note_load(cluster: &mut Cluster, writers: &Writers, tally: &Tally) {
    cluster.note(format!(
        "load: {} requests, {} not answered, errors by code {:?}, longest {:.0} ms; {} own reads right",
        tally.counts().sent,
        tally.counts().timed_out,
        tally.errors(cluster.format),
        tally.latency_ms(100.0),
        writers.reading.right,
    ));
}

fn kill(cluster: &mut Cluster, victim: usize, pid: Option<i32>) -> StageResult {
    let place = cluster.servers[victim];
    match (cluster.options.kill_mode, pid) {
        (KillMode::Kill9, Some(pid)) => machine::signal(pid, place, Signal::Kill).map_err(Finding::Skip)?,
        (KillMode::Kill9, None) => {
            return Err(Finding::Skip(format!("{place} does not report its process id")));
        }
        (KillMode::Shutdown, _) => shutdown(cluster, victim)?,
    }
    await_death(cluster, victim, pid)
}

/// SHUTDOWN: a reply is optional, but it must not be a refusal.
fn shutdown(cluster: &mut Cluster, victim: usize) -> StageResult {
    let packet = cluster.packet(Operation::Shutdown);
    for reply in cluster.listen(victim, &packet.bytes, Duration::from_millis(300), Duration::ZERO)? {
        if let Ok(response) = decode_response(cluster.format, packet.command, &reply)
            && response.id == packet.id
            && response.status != Status::Success
        {
            return fail(format!("{} answers SHUTDOWN with {}", cluster.servers[victim], response.status));
        }
    }
    Ok(())
}

fn await_death(cluster: &mut Cluster, victim: usize, pid: Option<i32>) -> StageResult {
    let place = cluster.servers[victim];
    let local_pid = pid.filter(|_| place.ip().is_loopback());
    let deadline = Instant::now() + DEATH;
    loop {
        let gone = match local_pid {
            // A dead process that its parent has not asked about yet is a zombie, Z.
            Some(pid) => matches!(machine::process_state(pid), None | Some('Z' | 'X')),
            None => {
                let packet = cluster.packet(cluster.alive_operation());
                cluster.listen(victim, &packet.bytes, Duration::from_secs(1), Duration::ZERO)?.is_empty()
            }
        };
        if gone {
            return Ok(());
        }
        if deadline < Instant::now() {
            return fail(format!("{place} is still alive {} s after it was told to die", DEATH.as_secs()));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Stopped processes; they go on when this is dropped, however the stage or this program ends.
struct Stopped {
    processes: Vec<(i32, SocketAddr)>,
    _watch: ResumeWatch,
}

impl Stopped {
    /// Stops these processes, all or none.
    fn stop(processes: &[(i32, SocketAddr)]) -> Result<Self, Finding> {
        let pids: Vec<i32> = processes.iter().map(|&(pid, _)| pid).collect();
        let watch = ResumeWatch::start(&pids).map_err(Finding::Skip)?;
        let mut stopped = Self { processes: Vec::new(), _watch: watch };
        for &(pid, place) in processes {
            machine::signal(pid, place, Signal::Stop).map_err(Finding::Skip)?;
            stopped.processes.push((pid, place));
        }
        Ok(stopped)
    }

    fn resume(&mut self) -> Result<(), Finding> {
        let stopped = std::mem::take(&mut self.processes);
        let results = stopped.into_iter().map(|(pid, place)| machine::signal(pid, place, Signal::Continue));
        // All are tried before the first error counts.
        results.collect::<Vec<_>>().into_iter().collect::<Result<(), String>>().map_err(Finding::Undecided)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Nobody is left to hear of an error here.
        let _ = self.resume();
    }
}

/// Stops servers under load, resumes them, and reads through them at once.
pub fn suspend(cluster: &mut Cluster) -> StageResult {
    if !cluster.is_on_loopback() {
        return Err(Finding::Skip("works only on loopback".to_owned()));
    }
    let victims = victims(cluster)?;
    let pids = identity::pids(cluster)?;
    let everyone = cluster.live();
    let survivors: Vec<usize> = everyone.iter().copied().filter(|server| !victims.contains(server)).collect();
    let mut writers = Writers::new(cluster, &survivors)?;
    cluster.note(format!("stopped {}", names(cluster, &victims)));
    let pause = Duration::from_secs(cluster.options.suspend_seconds);
    let (mut stopped, tally) = under_load(cluster, &mut writers, |cluster| {
        thread::sleep(LOAD_BEFORE);
        let since = Instant::now();
        let processes: Vec<_> =
            victims.iter().map(|victim| (pids[victim], cluster.servers[*victim])).collect();
        let stopped = Stopped::stop(&processes)?;
        // The stopped ones cannot be asked; they are taken for dead until they resume.
        cluster.killed.extend(&victims);
        let agreed = match pause < AGREEMENT {
            true => Ok(None),
            false => agreement(cluster, &survivors, survivors.len(), since).map(Some),
        };
        if agreed.is_ok() {
            thread::sleep(pause.saturating_sub(since.elapsed()));
        }
        cluster.killed.retain(|server| !victims.contains(server));
        if let Some(agreed) = agreed? {
            cluster.note(format!("members agreed after {:.1} s", agreed.as_secs_f64()));
        }
        Ok(stopped)
    })?;
    note_load(cluster, &writers, &tally);
    writers.reading.insist("while servers stood still")?;
    writers.read_all(cluster, &survivors)?.insist("before the stopped servers resume")?;
    stopped.resume()?;
    after_resume(cluster, &writers, &victims, &everyone)
}

fn after_resume(
    cluster: &mut Cluster,
    writers: &Writers,
    victims: &[usize],
    everyone: &[usize],
) -> StageResult {
    let resumed = Instant::now();
    let mut silent = 0;
    while resumed.elapsed() < READS_AFTER_RESUME {
        let reading = writers.read_all(cluster, victims)?;
        silent += reading.timeouts + reading.errors.values().sum::<u64>();
        // Silence and errors are right while a server catches up; an old or missing value never is.
        if 0 < reading.faults() {
            reading.insist("through a server that has just resumed")?;
        }
    }
    let agreed = agreement(cluster, everyone, everyone.len(), resumed)?;
    cluster.note(format!(
        "members agreed at most {:.1} s after the resume; {silent} reads through resumed servers got no value at first",
        agreed.as_secs_f64()
    ));
    writers.read_all(cluster, everyone)?.insist("after the resume")?;
    writers.keys.put_all(cluster, victims, i32::MAX)?;
    writers
        .keys
        .read_all(cluster, everyone, |_| Expected::Between(i32::MAX, i32::MAX))?
        .insist("written through resumed servers")
}
