//! What a plan can hold: its steps, and the settings of the loads in them.
//!
//! Each field is one word of the file, with dashes for underscores; its comment is its documentation. What a step
//! does not say about its load comes from the plan's `[defaults]`, and what these do not say from the
//! [`Default`] here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};
use violet_client::Format;

use crate::grid::Cell;
use crate::names::{KEY_BYTES_MAX, KEY_BYTES_MIN};
use crate::result::Arrivals;
use crate::workload::{KeyOrder, Mix, Route, ValueBytes};

/// A whole plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it is called.
    pub name: String,
    /// What it is for, in a sentence or a few.
    pub description: String,
    /// The cluster that it starts, unless servers are given.
    pub cluster: ClusterSettings,
    /// Repeats a run; drawn when neither the plan nor the command line says.
    pub seed: Option<u64>,
    /// Statements about the result that decide the exit code, such as `p99 < 20 ms in R16`.
    pub thresholds: Vec<String>,
    /// In the order in which they are done.
    pub steps: Vec<Step>,
}

/// The words that stand before the first table of a plan.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Head {
    /// See [`Plan`].
    pub name: String,
    /// See [`Plan`].
    pub description: String,
    /// See [`Plan`].
    #[serde(default)]
    pub seed: Option<u64>,
    /// See [`Plan`].
    #[serde(default)]
    pub thresholds: Vec<String>,
}

/// `[cluster]`: the nodes that a plan starts on loopback when it is given a binary and no servers.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ClusterSettings {
    /// How many.
    pub nodes: usize,
    /// Settings of every node, NAME=VALUE; see `violet serve --help`.
    pub settings: Vec<String>,
}

impl Default for ClusterSettings {
    fn default() -> Self {
        Self { nodes: 5, settings: Vec::new() }
    }
}

/// One step.
#[derive(Clone, Debug)]
pub struct Step {
    /// What it is called in results; the word of its kind when the plan gives none.
    pub name: String,
    /// Where it stands, `FILE:LINE`.
    pub place: String,
    /// What is done.
    pub kind: Kind,
    /// How its loads are made.
    pub settings: Settings,
}

/// What is done in a step.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Conformance stages of `check`.
    Conformance(Conformance),
    /// Loads at rates or with numbers of clients.
    Load(Load),
    /// Closed loops in the manner of the graders.
    Grid(Grid),
    /// Saturation and the overwhelmed point.
    Search(Search),
    /// Writes the whole data set.
    Bulk(Bulk),
    /// Fills the cluster until it is out of space.
    Capacity(Capacity),
    /// Treats servers badly under load.
    Faults(Faults),
    /// Fresh clusters of several sizes.
    Scaling(Scaling),
    /// Wipes every server.
    Wipe(Wipe),
    /// Waits.
    Pause(Pause),
}

/// The kinds of steps, as plans write them.
pub const KINDS: [&str; 10] =
    ["conformance", "load", "grid", "search", "bulk", "capacity", "faults", "scaling", "wipe", "pause"];

/// `do = "conformance"`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Conformance {
    /// The stages; all that do no harm when not given. `violet-testclient check --list` shows them.
    pub stages: Vec<String>,
    /// Stages left out.
    pub without: Vec<String>,
}

/// `do = "load"`: one phase for each rate and each number of clients.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Load {
    /// Open loops: requests a second.
    pub rates: Vec<f64>,
    /// Closed loops: logical clients.
    pub clients: Vec<usize>,
    /// Writes all keys first.
    pub fill: bool,
}

/// `do = "grid"`: each cell on an empty cluster.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Grid {
    /// `S16`, `R64`, `Z4`, …: all clients ask the first server, a random one, or one that holds the key.
    pub cells: Vec<CellName>,
    /// Seconds of rest behind each cell with 64 or more clients, twice as long from 128 on and three times from 256 on, as the
    /// grader of 2016 takes them.
    pub rest_seconds: f64,
    /// Whether each client keeps to one key, as in the first evaluations of 2019, instead of a new one in each loop.
    pub same_key: bool,
}

/// `do = "search"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Search {
    /// The first rate that is tried, requests a second.
    pub from_rate: f64,
    /// Each rate is this many times the one before.
    pub factor: f64,
    /// No rate above this is tried.
    pub rate_max: f64,
}

impl Default for Search {
    fn default() -> Self {
        Self { from_rate: 500.0, factor: 1.6, rate_max: 1_000_000.0 }
    }
}

/// `do = "bulk"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Bulk {
    /// Logical clients that write at the same time.
    pub clients: usize,
    /// The data set as a multiple of `of-memory-mib`: replaces `keys`.
    pub memory_multiple: Option<f64>,
    /// The memory that is meant, replicas not counted.
    pub of_memory_mib: u64,
    /// Whether servers may refuse what does not fit into their memory.
    pub may_overflow: bool,
    /// Reads the keys afterwards, in order, for `seconds`: what was acknowledged must be there.
    pub read_back: bool,
}

impl Default for Bulk {
    fn default() -> Self {
        Self { clients: 64, memory_multiple: None, of_memory_mib: 64, may_overflow: false, read_back: false }
    }
}

/// `do = "capacity"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Capacity {
    /// At most this much is stored.
    pub mib_max: u64,
}

impl Default for Capacity {
    fn default() -> Self {
        Self { mib_max: 2_048 }
    }
}

/// Ways to treat servers badly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// SIGKILL to the processes at once.
    Kill,
    /// The SHUTDOWN command to the servers at once.
    Shutdown,
    /// SIGSTOP, and later SIGCONT.
    Suspend,
    /// One server after the other is killed and started again.
    Rolling,
    /// One server stands still half of the time, 10 ms on, 10 ms off.
    BadNode,
}

impl Fault {
    /// As plans write it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Shutdown => "shutdown",
            Self::Suspend => "suspend",
            Self::Rolling => "rolling",
            Self::BadNode => "bad-node",
        }
    }
}

/// `do = "faults"`: a load goes on while servers fail, and every key is judged afterwards.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Faults {
    /// What is done to them.
    pub fault: Fault,
    /// To how many at once; the first server of the list is never touched. Rolling takes as many in all.
    #[serde(default = "one")]
    pub nodes: usize,
    /// Requests a second of the open loop that goes on.
    #[serde(default = "fault_rate")]
    pub rate: f64,
    /// Seconds of load before.
    #[serde(default = "five")]
    pub seconds_before: f64,
    /// Seconds that servers are stopped, bad, or away before they are started again.
    #[serde(default = "ten")]
    pub seconds_down: f64,
    /// Seconds of load after.
    #[serde(default = "ten")]
    pub seconds_after: f64,
    /// How long wrong answers may go on after the load before they count as lasting, in seconds.
    #[serde(default = "settle")]
    pub settle_seconds: f64,
    /// Whether killed servers are started again, empty. Only for a cluster that the plan has started.
    #[serde(default)]
    pub restart: bool,
    /// Whether a wrong answer on the way is a failure, even if all is right in the end.
    #[serde(default = "yes")]
    pub strict: bool,
    /// How many keys, in hundredths, may be lost without a failure: more servers than replicas may die.
    #[serde(default)]
    pub lost_percent_max: f64,
}

fn yes() -> bool {
    true
}

fn one() -> usize {
    1
}

fn five() -> f64 {
    5.0
}

fn ten() -> f64 {
    10.0
}

fn settle() -> f64 {
    30.0
}

fn fault_rate() -> f64 {
    500.0
}

/// `do = "scaling"`: fresh clusters of each size, again and again.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Scaling {
    /// The sizes.
    pub nodes: Vec<usize>,
    /// The open loop at each size: the same work, so that its cost can be compared.
    pub rate: f64,
    /// The closed loop at each size, for throughput; 0 for none.
    pub clients: usize,
    /// Sizes for which the simulator is asked what a request takes.
    pub simulated: Vec<usize>,
}

impl Default for Scaling {
    fn default() -> Self {
        Self { nodes: vec![1, 2, 3, 4, 5], rate: 1_000.0, clients: 32, simulated: Vec::new() }
    }
}

/// `do = "wipe"`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wipe {}

/// `do = "pause"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Pause {
    /// How long.
    pub pause_seconds: f64,
}

/// How a load is made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Settings {
    /// The generation of the protocol: `protobuf` or `raw`.
    pub format: FormatName,
    /// How many keys there are.
    pub keys: u64,
    /// How long keys are, 8 to 32 bytes; in the raw format shorter ones are padded with zeros on the way.
    pub key_bytes: usize,
    /// Which of them is next: `sequential`, `uniform`, `zipf:0.99`, `hot:90:10` or `absent`.
    pub key_order: KeyOrder,
    /// How long values are: `100`, `"1-1000"`, `"lognormal:300:1.2"` (median and deviation), or `"file:PATH"`.
    #[serde(deserialize_with = "text_of")]
    pub value_bytes: ValueBytes,
    /// Shares of the operations, in any unit: `"get:95,put:5"`.
    pub mix: Mix,
    /// How the times of an open loop lie: `constant` or `poisson`.
    pub arrivals: Arrivals,
    /// Who is asked: `random`, `first`, or `zero-hop` (a server that holds the key; Violet only).
    pub route: Route,
    /// How long a phase lasts.
    pub seconds: f64,
    /// Load before each phase that does not count, in seconds.
    pub warm_up: f64,
    /// How often each phase is made; the repeats of one form a group.
    pub repeats: usize,
    /// How long each try waits for an answer, in milliseconds; as many tries as there are numbers.
    pub waits_ms: Vec<u64>,
    /// Requests under way at most; what would be more is skipped and counted.
    pub in_flight_max: usize,
    /// Threads of the generator.
    pub threads: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            format: FormatName::Protobuf,
            keys: 10_000,
            key_bytes: KEY_BYTES_MIN,
            key_order: KeyOrder::Uniform,
            value_bytes: ValueBytes::Uniform(1, 1_000),
            mix: Mix::default(),
            arrivals: Arrivals::Poisson,
            route: Route::Random,
            seconds: 5.0,
            warm_up: 0.5,
            repeats: 1,
            waits_ms: vec![100, 200, 400, 800],
            in_flight_max: 8_192,
            threads: 1,
        }
    }
}

/// The words of [`Settings`].
pub const SETTINGS: [&str; 14] = [
    "format",
    "keys",
    "key-bytes",
    "key-order",
    "value-bytes",
    "mix",
    "arrivals",
    "route",
    "seconds",
    "warm-up",
    "repeats",
    "waits-ms",
    "in-flight-max",
    "threads",
];

/// Longest phase in seconds: a day.
const SECONDS_MAX: f64 = 86_400.0;
/// Most keys: their numbers have four bytes.
const KEYS_MAX: u64 = 1 << 32;

impl Settings {
    /// Whether every value is in its range; the word of one that is not, and what would be right.
    ///
    /// # Errors
    /// Both, as a pair.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let seconds = |word, value: f64, least: f64| {
            let right = format!("must be {least} to {SECONDS_MAX} seconds, not {value}");
            if (least..=SECONDS_MAX).contains(&value) { Ok(()) } else { Err((word, right)) }
        };
        let count = |word, value: u64, most: u64| {
            let right = format!("must be 1 to {most}, not {value}");
            if (1..=most).contains(&value) { Ok(()) } else { Err((word, right)) }
        };
        seconds("seconds", self.seconds, 0.1)?;
        seconds("warm-up", self.warm_up, 0.0)?;
        count("keys", self.keys, KEYS_MAX)?;
        if !(KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&self.key_bytes) {
            let right = format!("must be {KEY_BYTES_MIN} to {KEY_BYTES_MAX}, not {}", self.key_bytes);
            return Err(("key-bytes", right));
        }
        count("repeats", self.repeats as u64, 1_000)?;
        count("threads", self.threads as u64, 64)?;
        if self.waits_ms.is_empty() || 16 < self.waits_ms.len() || self.waits_ms.contains(&0) {
            return Err(("waits-ms", "must be 1 to 16 numbers above 0, one for each try".to_owned()));
        }
        count("in-flight-max", self.in_flight_max as u64, 1 << 20)?;
        Ok(())
    }
}

/// The protocol generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FormatName {
    /// 2017 to 2025.
    Protobuf,
    /// 2015 and 2016.
    Raw,
}

impl FormatName {
    /// As the client library calls it.
    pub fn format(self) -> Format {
        match self {
            Self::Protobuf => Format::Protobuf,
            Self::Raw => Format::Raw,
        }
    }

    /// As it stands in results.
    pub fn word(self) -> &'static str {
        match self {
            Self::Protobuf => "protobuf",
            Self::Raw => "raw",
        }
    }
}

/// The mean length of values in bytes, as far as it is known without reading a file.
pub fn mean_bytes(value_bytes: &ValueBytes) -> Option<f64> {
    match *value_bytes {
        ValueBytes::Fixed(bytes) => Some(bytes as f64),
        ValueBytes::Uniform(from, to) => Some((from + to) as f64 / 2.0),
        ValueBytes::LogNormal { median, sigma } => Some(median * (sigma * sigma / 2.0).exp()),
        ValueBytes::File(_) => None,
    }
}

/// A cell of the grid, as plans write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellName(pub Cell);

impl FromStr for CellName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Cell::parse(text).map(Self)
    }
}

/// Text that parses itself, in files; a number is as good as its text.
struct TextOf<T>(std::marker::PhantomData<T>);

impl<T: FromStr<Err = String>> serde::de::Visitor<'_> for TextOf<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a number")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

fn text_of<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err = String>,
{
    deserializer.deserialize_any(TextOf(std::marker::PhantomData))
}

impl<'de> Deserialize<'de> for CellName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_of(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_settings_is_the_struct() {
        let json = serde_json::to_value(Settings::default()).unwrap();
        let mut words: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let mut listed = SETTINGS.to_vec();
        words.sort_unstable();
        listed.sort_unstable();
        assert_eq!(words, listed);
        let again: Settings = serde_json::from_value(json).unwrap();
        assert_eq!(again, Settings::default());
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let check = |settings: Settings, word: &str| assert_eq!(settings.check().unwrap_err().0, word);
        assert_eq!(Settings::default().check(), Ok(()));
        check(Settings { seconds: 0.0, ..Settings::default() }, "seconds");
        check(Settings { seconds: f64::NAN, ..Settings::default() }, "seconds");
        check(Settings { keys: 0, ..Settings::default() }, "keys");
        check(Settings { key_bytes: 7, ..Settings::default() }, "key-bytes");
        check(Settings { key_bytes: 33, ..Settings::default() }, "key-bytes");
        check(Settings { repeats: 0, ..Settings::default() }, "repeats");
    }
}
