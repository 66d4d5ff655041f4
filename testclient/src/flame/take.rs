//! Taking a profile: a cluster, a constant load, a warm-up, samples, files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use clap::Args;
use violet_client::Format;

use super::cluster::{Cluster, Recipe, processor_nanos};
use super::episodes::{self, Entry, Episode, Side};
use super::pace::{self, Pace, Paced, Watch};
use super::record::{
    self, FLAME_FILE, LoadRecord, META_FILE, MachineRecord, Meta, ResultRecord, STACKS_FILE, SamplingRecord,
};
use super::sampler::{self, Sampler, Target};
use super::stacks::Stacks;
use super::{diff, picture};
use crate::batch;
use crate::load::{Ask, Call};
use crate::report;

const KEYS: usize = 10_000;
const VALUE_BYTES: usize = 100;
const GETS_PERCENT: usize = 50;
/// Clients that store the keys in the beginning.
const STORING_CLIENTS: usize = 32;
/// Waits of each attempt to store one.
const STORING_WAITS: [Duration; 10] = [Duration::from_millis(500); 10];
/// Most unknown frames that a graph may have.
pub const UNKNOWN_SHARE_MAX: f64 = 0.02;
/// A run that does not reach its rate, or whose generator was late, is made again: mostly something
/// else was using the machine.
const TRIES_MAX: usize = 2;
/// A generator that is later than this limits what it measures.
const LATE_MS_MAX: f64 = 5.0;

/// How profiles are taken, whatever of.
#[derive(Clone, Debug, Args)]
pub struct HowArguments {
    /// The violet binary to run.
    #[arg(long, value_name = "FILE")]
    pub violet: PathBuf,
    /// UDP port of the first node; the others follow.
    #[arg(long, default_value_t = 26_410)]
    pub port: u16,
    /// Where the cluster's files go.
    #[arg(long, default_value = ".violet/flame", value_name = "DIR")]
    pub dir: PathBuf,
    /// How often, each time with a new cluster; the sides of an episode take turns.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=20))]
    pub rounds: u64,
    /// How long to load and sample in each round.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    pub seconds: u64,
    /// How long to load before that.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=60))]
    pub warm_up_seconds: u64,
    /// Who takes the samples.
    #[arg(long, default_value = "auto")]
    pub sampler: Sampler,
    /// Samples per second of processor time (the nodes' own profiler takes 250 at most).
    #[arg(long, default_value_t = 999, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub hz: u32,
    /// Requests a second; each episode has its own when not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: Option<u32>,
    /// Number of nodes; each episode has its own when not given.
    #[arg(long)]
    pub nodes: Option<usize>,
    /// A setting more for every node, NAME=VALUE; see `violet serve --help`.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub settings: Vec<String>,
}

/// Options of `take`.
#[derive(Clone, Debug, Args)]
pub struct TakeArguments {
    /// Both sides of this episode, by number or name, and what has changed.
    #[arg(long)]
    pub episode: Option<String>,
    /// One configuration of an episode, by name.
    #[arg(long)]
    pub config: Option<String>,
    /// Folder of the one configuration; its name when not given.
    #[arg(long)]
    pub name: Option<String>,
    /// Where the folders go.
    #[arg(long, default_value = "flamegraphs", value_name = "DIR")]
    pub out: PathBuf,
    /// How.
    #[command(flatten)]
    pub how: HowArguments,
}

/// A profile, not yet written.
#[derive(Debug)]
pub struct Profile {
    /// All about it.
    pub meta: Meta,
    /// Every sample.
    pub stacks: Stacks,
}

/// Takes what was asked for.
///
/// # Errors
/// One sentence.
pub fn run(arguments: &TakeArguments) -> Result<bool, String> {
    let config = match (&arguments.episode, &arguments.config) {
        (Some(wanted), None) => {
            if arguments.name.is_some() {
                return Err("--name: an episode names its folders itself".into());
            }
            let (number, episode) = episodes::find(wanted)?;
            take_episode(number, episode, &arguments.how, &arguments.out)?;
            return super::index::write(&arguments.out).map(|()| true);
        }
        (None, Some(config)) => config,
        _ => return Err("name either an episode or a configuration; 'flame list' shows what there is".into()),
    };
    let (episode, side) = episodes::find_config(config)?;
    let name = arguments.name.as_ref().unwrap_or(config);
    if name.is_empty() || name.contains(['/', '.']) {
        return Err(format!("--name '{name}': must be the name of a folder, without '/' and '.'"));
    }
    let how = &arguments.how;
    let rounds = (0..how.rounds).map(|_| take(name, episode, side, how)).collect::<Result<_, _>>()?;
    Profile::of_rounds(rounds).write(&arguments.out)?;
    Ok(true)
}

/// Takes both sides of an episode and compares them.
///
/// # Errors
/// One sentence.
pub fn take_episode(number: usize, episode: &Episode, how: &HowArguments, out: &Path) -> Result<(), String> {
    println!("episode {number}, {}: {}", episode.name, episode.title);
    let folder = |what| episodes::folder(number, episode, what);
    let mut sides = [("before", episode.before, Vec::new()), ("after", episode.after, Vec::new())];
    for _ in 0..how.rounds {
        for (what, side, rounds) in &mut sides {
            rounds.push(take(&folder(what), episode, *side, how)?);
        }
        // What gets slower with time must not always hit the same side.
        sides.reverse();
    }
    for (_, _, rounds) in sides {
        Profile::of_rounds(rounds).write(out)?;
    }
    diff::write(&out.join(folder("before")), &out.join(folder("after")), &out.join(folder("diff")))?;
    Ok(())
}

/// Takes one profile, of a few tries the first that went well, or else the last.
///
/// # Errors
/// One sentence.
pub fn take(name: &str, episode: &Episode, side: Side, how: &HowArguments) -> Result<Profile, String> {
    let (sampler, note) = how.sampler.settle()?;
    if let Some(note) = &note {
        println!("{name}: {note}; the nodes' own profiler is used, which shows no kernel frames");
    }
    let mut tries = 1;
    loop {
        let profile = try_to_take(name, episode, side, how, sampler, note.clone())?;
        print_result(&profile.meta);
        let result = &profile.meta.result;
        let went_well = result.offered_was_reached && result.generator_late_p99_ms <= LATE_MS_MAX;
        if went_well || tries == TRIES_MAX {
            return Ok(profile);
        }
        tries += 1;
        println!("{name}: once more");
    }
}

/// Takes one profile, however it goes.
///
/// # Errors
/// One sentence.
pub fn try_to_take(
    name: &str,
    episode: &Episode,
    side: Side,
    how: &HowArguments,
    sampler: Sampler,
    note: Option<String>,
) -> Result<Profile, String> {
    let machine = MachineRecord::here();
    let own = episode.common.iter().chain(side.settings).map(|(name, value)| format!("{name}={value}"));
    let settings: Vec<String> = own.chain(how.settings.iter().cloned()).collect();
    let load = load(episode, how);
    let recipe = Recipe {
        violet: how.violet.clone(),
        nodes: load.nodes,
        port: how.port,
        directory: how.dir.clone(),
        settings: settings.clone(),
    };
    let cluster = Cluster::start(&recipe)?;
    store_keys(&cluster)?;
    let target = Target {
        pids: &cluster.pids,
        admins: &cluster.admins,
        binary: &how.violet,
        directory: &how.dir,
        seconds: how.seconds,
        hz: how.hz,
    };
    let measured = measure(&load, episode.entry, &cluster, sampler, &target)?;
    // The nodes have done their part; reading the samples takes no processor time from them.
    let stacks = measured.recording.stacks(&target)?;
    let (rate, cpu_us) = (load.rate_offered, measured.cpu_us_per_request);
    let meta = Meta {
        name: name.to_owned(),
        config: Some(side.config.to_owned()),
        commit: record::commit(),
        settings,
        result: ResultRecord::new(&measured.paced, rate, load.seconds, cpu_us),
        load,
        sampling: SamplingRecord::new(sampler.name(), note, how.hz, &stacks),
        machine,
    };
    Ok(Profile { meta, stacks })
}

fn load(episode: &Episode, how: &HowArguments) -> LoadRecord {
    LoadRecord {
        nodes: how.nodes.unwrap_or(episode.nodes),
        entry: episode.entry.name().into(),
        rate_offered: how.rate.unwrap_or(episode.rate),
        sockets: episode.sockets,
        keys: KEYS,
        value_bytes: VALUE_BYTES,
        gets_percent: GETS_PERCENT,
        warm_up_seconds: how.warm_up_seconds,
        seconds: how.seconds,
        rounds: 1,
    }
}

/// Puts every key once, so that every GET finds one.
fn store_keys(cluster: &Cluster) -> Result<(), String> {
    let mut number = 0;
    let mut failed = 0;
    let next = |value: &mut Vec<u8>| {
        let key = (number < KEYS).then(|| Pace::key(number))?;
        number += 1;
        value.resize(VALUE_BYTES, b'v');
        Some(Call { server: number % cluster.servers.len(), ask: Ask::Put { key, version: 0 } })
    };
    let on_end = |_: &Call, end: crate::load::End<'_>| {
        failed += usize::from(end.status() != Some(violet_client::Status::Success));
    };
    batch::run(&cluster.servers, Format::Protobuf, &STORING_WAITS, STORING_CLIENTS, next, on_end)?;
    if failed == 0 {
        Ok(())
    } else {
        Err(format!("{failed} of {KEYS} keys could not be stored before the start"))
    }
}

struct Measured {
    paced: Paced,
    cpu_us_per_request: Option<f64>,
    recording: sampler::Recording,
}

/// Loads, warms up, samples.
fn measure(
    load: &LoadRecord,
    entry: Entry,
    cluster: &Cluster,
    sampler: Sampler,
    target: &Target<'_>,
) -> Result<Measured, String> {
    let (warm_up, window) = (Duration::from_secs(load.warm_up_seconds), Duration::from_secs(load.seconds));
    let pace = Pace {
        servers: cluster.servers.clone(),
        entry,
        rate: load.rate_offered,
        sockets: load.sockets,
        keys: load.keys,
        value_bytes: load.value_bytes,
        gets_percent: load.gets_percent,
        warm_up,
        window,
        seed: 1,
    };
    let watch = Watch::default();
    let state = || (processor_nanos(target.pids), watch.answers.load(Ordering::Relaxed));
    thread::scope(|scope| {
        let loading = scope.spawn(|| pace::run(&pace, &watch));
        thread::sleep(warm_up);
        let (cpu_before, answers_before) = state();
        let recording = sampler::record(sampler, target);
        let (cpu_after, answers_after) = state();
        if recording.is_err() {
            watch.stop.store(true, Ordering::Relaxed);
        }
        let paced = loading.join().expect("the generator does not panic");
        let paced = paced.map_err(|error| format!("cannot open sockets: {error}"))?;
        let answers = answers_after - answers_before;
        let nanos = cpu_before.zip(cpu_after).map(|(before, after)| after.saturating_sub(before));
        let cpu_us_per_request =
            nanos.filter(|_| 0 < answers).map(|nanos| nanos as f64 / 1_000.0 / answers as f64);
        Ok(Measured { paced, cpu_us_per_request, recording: recording? })
    })
}

fn print_result(meta: &Meta) {
    let Meta { name, load, result, sampling, .. } = meta;
    let cpu = result.cpu_us_per_request.map_or("?".into(), |us| format!("{us:.1}"));
    println!(
        "{name}: {} of {} requests/s, {cpu} us CPU each, p50 {} ms, p99 {} ms; {} samples by {}, {:.1} % with unknown frames",
        result.rate_reached.round(),
        load.rate_offered,
        report::milliseconds(result.p50_ms),
        report::milliseconds(result.p99_ms),
        sampling.samples,
        sampling.sampler,
        sampling.unknown_share * 100.0,
    );
    if !result.offered_was_reached {
        println!(
            "{name}: THE OFFERED RATE WAS NOT REACHED ({} lost, {} refused): compare this graph with no other",
            result.lost, result.refused
        );
    }
    if LATE_MS_MAX < result.generator_late_p99_ms {
        let late = report::milliseconds(result.generator_late_p99_ms);
        println!(
            "{name}: the generator was {late} ms late (p99): the machine is busy, the latencies are its own"
        );
    }
    if UNKNOWN_SHARE_MAX < sampling.unknown_share {
        println!("{name}: more than {:.0} % of the samples have unknown frames", UNKNOWN_SHARE_MAX * 100.0);
    }
}

impl Profile {
    /// Puts rounds together; there is at least one.
    fn of_rounds(rounds: Vec<Self>) -> Self {
        let mut stacks = Stacks::default();
        let metas = rounds.into_iter().map(|round| {
            stacks.add_all(round.stacks);
            round.meta
        });
        let metas = metas.collect();
        Self { meta: Meta::of_rounds(metas, &stacks), stacks }
    }

    /// Writes the folder.
    ///
    /// # Errors
    /// One sentence.
    pub fn write(&self, out: &Path) -> Result<(), String> {
        let folder = out.join(&self.meta.name);
        let cannot = |error: std::io::Error| format!("cannot write {}: {error}", folder.display());
        fs::create_dir_all(&folder).map_err(cannot)?;
        let stacks = self.stacks.pruned();
        fs::write(folder.join(STACKS_FILE), stacks.text()).map_err(cannot)?;
        report::write_json(&folder.join(META_FILE), &self.meta)?;
        let settings =
            if self.meta.settings.is_empty() { "defaults".into() } else { self.meta.settings.join(", ") };
        let rate = self.meta.result.rate_reached.round();
        let cpu =
            self.meta.result.cpu_us_per_request.map_or(String::new(), |us| format!(", {us:.1} us CPU each"));
        let subtitle =
            format!("{settings}; {rate} requests/s{cpu}; sampled by {}", self.meta.sampling.sampler);
        picture::draw(&stacks, &self.meta.name, &subtitle, &folder.join(FLAME_FILE))
    }
}
