//! What is kept of a profile besides its stacks: `meta.json`.

use std::cmp::Ordering;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::groups;
use super::pace::Paced;
use super::stacks::Stacks;
use crate::machine;

/// Names of the files in a profile's folder.
pub const META_FILE: &str = "meta.json";
/// The stacks, as text.
pub const STACKS_FILE: &str = "stacks.folded";
/// The picture.
pub const FLAME_FILE: &str = "flame.svg";

/// A run of less than this share of the offered rate has not reached it.
const REACHED_SHARE_MIN: f64 = 0.98;

/// How a profile came about, and what was measured meanwhile.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Meta {
    /// Its folder.
    pub name: String,
    /// The configuration, if it is one of the episodes'.
    pub config: Option<String>,
    /// The commit that was checked out, "-dirty" behind it if files had been changed.
    pub commit: String,
    /// Settings that differ from the defaults, `name=value`.
    pub settings: Vec<String>,
    /// What was asked.
    pub load: LoadRecord,
    /// What came of it.
    pub result: ResultRecord,
    /// How it was sampled.
    pub sampling: SamplingRecord,
    /// Where.
    pub machine: MachineRecord,
}

/// What was asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadRecord {
    /// Nodes of the cluster.
    pub nodes: usize,
    /// Whom the clients asked: first or random.
    pub entry: String,
    /// Requests a second.
    pub rate_offered: u32,
    /// Sockets of the generator.
    pub sockets: usize,
    /// Different keys.
    pub keys: usize,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Gets of a hundred requests; the others were puts.
    pub gets_percent: usize,
    /// Before the measurement.
    pub warm_up_seconds: u64,
    /// How long was measured and sampled in each round.
    pub seconds: u64,
    /// Rounds, each with a new cluster; an episode's sides take turns.
    pub rounds: usize,
}

/// What came of the load, in the round with the median processor time. The loop is open: latency runs
/// from the moment when a request was due.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResultRecord {
    /// Answers with success per second.
    pub rate_reached: f64,
    /// Whether that is what was offered.
    pub offered_was_reached: bool,
    /// Processor time of all nodes per answer, from the scheduler.
    pub cpu_us_per_request: Option<f64>,
    /// The same of every round, sorted.
    pub cpu_us_rounds: Vec<f64>,
    /// Median.
    pub p50_ms: f64,
    /// One of a hundred is slower.
    pub p99_ms: f64,
    /// One of a thousand is slower.
    pub p999_ms: f64,
    /// Slowest.
    pub max_ms: f64,
    /// How late the generator itself sent, 99th percentile.
    pub generator_late_p99_ms: f64,
    /// Requests without an answer.
    pub lost: u64,
    /// Requests with an answer other than success.
    pub refused: u64,
}

/// How the samples were taken.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SamplingRecord {
    /// perf or pprof.
    pub sampler: String,
    /// Why it is not perf.
    pub note: Option<String>,
    /// Samples per second of processor time.
    pub hz: u32,
    /// Samples of all nodes.
    pub samples: u64,
    /// Share of the samples with a frame whose name is not known.
    pub unknown_share: f64,
    /// Share of the samples in each named group.
    pub groups: Vec<(String, f64)>,
}

/// Where it ran.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MachineRecord {
    /// As the processor names itself.
    pub processor: String,
    /// How many of them.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// One-minute load average before the cluster was started.
    pub load_average_before: Option<f64>,
}

impl ResultRecord {
    /// From what the generator counted and the processor time of the nodes per answer.
    pub fn new(paced: &Paced, rate_offered: u32, seconds: u64, cpu_us_per_request: Option<f64>) -> Self {
        let ms = |percentile| paced.latency.value_at_percentile(percentile) as f64 / 1e6;
        let rate_reached = paced.succeeded as f64 / seconds as f64;
        Self {
            rate_reached,
            offered_was_reached: f64::from(rate_offered) * REACHED_SHARE_MIN <= rate_reached,
            cpu_us_per_request,
            cpu_us_rounds: cpu_us_per_request.into_iter().collect(),
            p50_ms: ms(50.0),
            p99_ms: ms(99.0),
            p999_ms: ms(99.9),
            max_ms: paced.latency.max() as f64 / 1e6,
            generator_late_p99_ms: paced.lateness.value_at_percentile(99.0) as f64 / 1e6,
            lost: paced.lost(),
            refused: paced.refused,
        }
    }
}

impl Meta {
    /// Puts rounds of the same load together. The samples are those of all of them.
    ///
    /// # Panics
    /// Without any round.
    pub fn of_rounds(mut rounds: Vec<Self>, stacks: &Stacks) -> Self {
        rounds.sort_by(|one, other| {
            one.result.cpu_us_rounds.partial_cmp(&other.result.cpu_us_rounds).unwrap_or(Ordering::Equal)
        });
        let all: Vec<f64> = rounds.iter().flat_map(|round| round.result.cpu_us_rounds.clone()).collect();
        let all_reached = rounds.iter().all(|round| round.result.offered_was_reached);
        let count = rounds.len();
        let mut median = rounds.swap_remove(count / 2);
        median.load.rounds = count;
        median.result.cpu_us_rounds = all;
        median.result.offered_was_reached = all_reached;
        let SamplingRecord { sampler, note, hz, .. } = median.sampling;
        median.sampling = SamplingRecord::new(&sampler, note, hz, stacks);
        median
    }
}

impl SamplingRecord {
    /// What the stacks say of themselves.
    pub fn new(sampler: &str, note: Option<String>, hz: u32, stacks: &Stacks) -> Self {
        Self {
            sampler: sampler.to_owned(),
            note,
            hz,
            samples: stacks.samples(),
            unknown_share: stacks.unknown_share(),
            groups: groups::shares(stacks)
                .into_iter()
                .map(|(group, share)| (group.name().to_owned(), share))
                .collect(),
        }
    }
}

impl MachineRecord {
    /// This machine; unknown is what the system does not tell.
    pub fn here() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            processor: model.map_or("unknown", |(_, model)| model).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_average_before: machine::load_average(),
        }
    }
}

impl Meta {
    /// Reads a folder's record.
    ///
    /// # Errors
    /// One sentence that names the file and what is wrong.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let path = folder.join(META_FILE);
        let text =
            fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// The commit of the working directory.
pub fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".into() };
    // What this program writes itself is no change of what it measures.
    let changed = git(&["status", "--porcelain", "--untracked-files=no", "--", ".", ":!flamegraphs"]);
    if changed.is_some_and(|lines| lines.is_empty()) { commit } else { format!("{commit}-dirty") }
}
