//! The result of a run: everything that was seen, as it stands in the JSON file and as reports read it.
//!
//! A run has phases: one load at one setting for one stretch of time each, in the order in which they were
//! made. A phase counts requests from their *intended* time on: every slot of the schedule is either sent
//! or skipped, every request that was sent is answered, late, or given up, so the counts add up
//! ([`Counts::is_balanced`]). Latencies are kept as whole histograms, so that any percentile can be
//! read later, results of several hosts can be merged, and two runs can be compared. Times are
//! seconds since the start of the run unless the name says otherwise.
//!
//! Deliberately not here: judgement (thresholds, comparisons) and drawing.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

/// Shortest latency that a histogram tells apart, in nanoseconds.
const LATENCY_NS_MIN: u64 = 1_000;
/// Longest, in nanoseconds.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Of the layout of the file. A reader refuses files of another layout.
pub const LAYOUT: u32 = 1;

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunResult {
    /// [`LAYOUT`].
    pub layout: u32,
    /// How it came about: the plan's name, or `load`.
    pub name: String,
    /// Of this program.
    pub version: String,
    /// The command line without the program's name.
    pub arguments: Vec<String>,
    /// Start of the run, from 1970, in seconds.
    pub started_unix_seconds: u64,
    /// Repeats the run: values and draws, not the timing, nor the names of keys.
    pub seed: u64,
    /// All settings, as text, by name.
    pub settings: BTreeMap<String, String>,
    /// The servers in the order of the list.
    pub servers: Vec<String>,
    /// The machines that made the load; one unless agents took part.
    pub machines: Vec<Machine>,
    /// The loads in order.
    pub phases: Vec<Phase>,
    /// What was done to the servers, in order of time.
    pub events: Vec<Event>,
    /// Statements that were checked: conformance stages, thresholds, balance of keys after faults.
    pub checks: Vec<Check>,
    /// Why the run ended before its end, if it did. Such a result is never compared or called passed.
    pub incomplete: Option<String>,
}

/// A machine that made load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub host: String,
    /// Kind of processor.
    pub processor: String,
    /// How many of them this process may use.
    pub processors: usize,
    /// Operating system and its version.
    pub system: String,
    /// One-minute load average before the run.
    pub load_average_before: Option<f64>,
    /// The same after it.
    pub load_average_after: Option<f64>,
    /// Share of processor time that the hypervisor gave to others during the run, 0 to 1.
    pub steal_share: Option<f64>,
}

/// How requests are timed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "loop")]
pub enum Loop {
    /// At times of a schedule, whatever the replies do.
    Open {
        /// Requests a second that the schedule holds.
        rate: f64,
        /// How the times lie.
        arrivals: Arrivals,
    },
    /// Each client asks when it is answered. Tails are not comparable with those of an open loop.
    Closed {
        /// Logical clients.
        clients: usize,
    },
}

/// How the times of an open loop lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// At equal distances.
    Constant,
    /// Independent of one another: exponential distances.
    Poisson,
}

/// One load at one setting.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Phase {
    /// What it is called: a grid cell (`R16`), a rate of a scan, a stage of a plan.
    pub name: String,
    /// What repeats of one setting have in common; phases of one group are repeats of each other.
    pub group: String,
    /// Start, in seconds of the run.
    pub at_seconds: f64,
    /// Seconds in which requests fell due; warm-up not counted.
    pub window_seconds: f64,
    /// `raw` or `protobuf`.
    pub format: String,
    /// How requests were timed.
    #[serde(flatten)]
    pub timing: Loop,
    /// Number of servers that took part when the phase began; the x axis of a scaling study.
    pub servers: usize,
    /// Of the whole phase.
    pub counts: Counts,
    /// By operation: `put`, `get`, `remove`.
    pub operations: BTreeMap<String, Operation>,
    /// Second by second, from the start of the phase.
    pub seconds: Vec<Second>,
    /// By server, in the order of [`RunResult::servers`]: by the one that was asked.
    pub by_server: Vec<ServerShare>,
    /// How well this program did its part.
    pub generator: Generator,
    /// What the servers' processes used, where they run on this machine or can be asked; else `None`.
    pub cost: Option<Cost>,
}

/// Counts of requests. Every slot is sent or skipped; every one that was sent ends in one of the ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests that the schedule held; in a closed loop, those begun.
    pub offered: u64,
    /// Those that left.
    pub sent: u64,
    /// Those that did not, because too many were under way already.
    pub skipped: u64,
    /// Answered in time, whatever the answer says.
    pub answered: u64,
    /// Of those, answered as they should be: success, or "no such key" where that is right.
    pub good: u64,
    /// Of those, refused: overload, out of space and other codes.
    pub refused: u64,
    /// Of those, with a value that cannot be right, or missing although stored.
    pub wrong: u64,
    /// Never answered, all retries included.
    pub timed_out: u64,
    /// Answers that came after their request was given up.
    pub late: u64,
    /// Second answers to a request that was sent once.
    pub duplicates: u64,
    /// Replies with an id that was never used, or from an address that was never asked.
    pub foreign: u64,
    /// Datagrams that are no reply of the format.
    pub undecodable: u64,
    /// Request datagrams, retries included.
    pub datagrams: u64,
    /// Bytes of values written and read.
    pub value_bytes: u64,
}

/// What is known of one operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// How many and how they ended.
    pub counts: Counts,
    /// Answers by code of the wire.
    pub codes: BTreeMap<u32, u64>,
    /// From the intended time to the answer.
    pub corrected: Latency,
    /// From the first datagram to the answer, as a generator without a schedule would see it.
    pub raw: Latency,
    /// From the latest datagram before the answer, so that waiting for retries is not in it.
    pub last_try: Latency,
}

/// A histogram of latencies in nanoseconds, 1 µs to 60 s at three digits. In the file: the base64 text
/// of HdrHistogram's V2 layout, deflated.
#[derive(Clone, Debug)]
pub struct Latency(pub Histogram<u64>);

/// One second of a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// From the start of the phase.
    pub at: u64,
    /// Requests that fell due in it.
    pub offered: u64,
    /// Answers that came in it.
    pub answered: u64,
    /// Good ones among them.
    pub good: u64,
    /// Given up in it.
    pub timed_out: u64,
    /// Wrong answers in it.
    pub wrong: u64,
    /// Corrected latency of the answers that came in it, in milliseconds: median.
    pub p50_ms: f64,
    /// 99 of 100.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// What one server was asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerShare {
    /// Its address.
    pub server: String,
    /// Requests that asked it first, and how they ended.
    pub counts: Counts,
    /// Of those: corrected.
    pub latency: Latency,
}

/// How well the generator kept to its schedule.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Generator {
    /// Processor seconds of this process for each second of the phase.
    pub processor_share: Option<f64>,
    /// Threads that made load.
    pub threads: usize,
    /// How late requests left, in milliseconds after their time: median.
    pub lateness_p50_ms: f64,
    /// 99 of 100.
    pub lateness_p99_ms: f64,
    /// The latest.
    pub lateness_max_ms: f64,
    /// Smallest receive buffer that the kernel granted, in bytes.
    pub receive_buffer_bytes: usize,
    /// Why the figures are the generator's rather than the servers', if they are.
    pub limited: Option<String>,
}

/// Resources of all servers' processes over a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Processor seconds.
    pub processor_seconds: f64,
    /// Resident bytes at the end.
    pub resident_bytes: u64,
    /// Datagrams that the servers sent, if they tell.
    pub datagrams_sent: Option<u64>,
    /// Bytes in them.
    pub bytes_sent: Option<u64>,
    /// Frames between servers that were sent again, if they tell; see `retransmissions` among Violet's counts.
    pub retransmissions: Option<u64>,
}

/// Something that was done to the servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// In seconds of the run.
    pub at_seconds: f64,
    /// How long it lasted; zero for a moment.
    pub for_seconds: f64,
    /// `kill`, `shutdown`, `suspend`, `resume`, `start`, `slow`, …
    pub kind: String,
    /// To which servers.
    pub servers: Vec<String>,
    /// What came of it, as a sentence.
    pub outcome: String,
}

/// A statement that was checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What was checked, for example `p99 < 20 ms in R16`.
    pub name: String,
    /// Whether it holds; `None` if that could not be found out.
    pub passed: Option<bool>,
    /// What was seen.
    pub seen: String,
}

impl Latency {
    /// No latencies yet.
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(LATENCY_NS_MIN, LATENCY_NS_MAX, 3).expect("the bounds are in order"))
    }

    /// Notes one; what is beyond the scale stands at its end.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds all of another.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// A percentile in milliseconds; zero of nothing.
    pub fn ms(&self, percentile: f64) -> f64 {
        self.0.value_at_percentile(percentile) as f64 / 1e6
    }

    /// The base64 text of HdrHistogram's compressed V2 layout, as it stands in `.hlog` files.
    pub fn text(&self) -> String {
        let mut bytes = Vec::new();
        let written = V2DeflateSerializer::new().serialize(&self.0, &mut bytes);
        written.expect("a vector takes everything, and counts fit into the layout");
        STANDARD.encode(bytes)
    }

    /// Reads what [`Self::text`] wrote.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bytes = STANDARD.decode(text).map_err(|error| format!("no base64: {error}"))?;
        let read: Histogram<u64> = Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .map_err(|error| format!("no histogram: {error:?}"))?;
        // Files of other programs may have other bounds; all of ours must add up.
        let mut latency = Self::new();
        latency.0.add(&read).map_err(|error| format!("beyond the scale: {error}"))?;
        Ok(latency)
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

impl Serialize for Latency {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl<'de> Deserialize<'de> for Latency {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

impl Phase {
    /// Answers a second while requests fell due. What was answered after the window is not in it, where the account
    /// second by second can tell.
    pub fn answered_per_second(&self) -> f64 {
        self.per_second(|second| second.answered, self.counts.answered)
    }

    /// Good answers a second, likewise.
    pub fn good_per_second(&self) -> f64 {
        self.per_second(|second| second.good, self.counts.good)
    }

    fn per_second(&self, of: impl Fn(&Second) -> u64, all: u64) -> f64 {
        let whole = self.window_seconds as u64;
        if whole == 0 {
            return all as f64 / self.window_seconds.max(f64::MIN_POSITIVE);
        }
        let inside = self.seconds.iter().filter(|second| second.at < whole);
        inside.map(of).sum::<u64>() as f64 / whole as f64
    }
}

impl Counts {
    /// Adds all of another.
    pub fn add(&mut self, other: &Self) {
        let Self {
            offered,
            sent,
            skipped,
            answered,
            good,
            refused,
            wrong,
            timed_out,
            late,
            duplicates,
            foreign,
            undecodable,
            datagrams,
            value_bytes,
        } = other;
        self.offered += offered;
        self.sent += sent;
        self.skipped += skipped;
        self.answered += answered;
        self.good += good;
        self.refused += refused;
        self.wrong += wrong;
        self.timed_out += timed_out;
        self.late += late;
        self.duplicates += duplicates;
        self.foreign += foreign;
        self.undecodable += undecodable;
        self.datagrams += datagrams;
        self.value_bytes += value_bytes;
    }

    /// Whether nothing got lost in counting: slots are sent or skipped, requests answered or given up,
    /// answers good, refused or wrong.
    pub fn is_balanced(&self) -> bool {
        self.offered == self.sent + self.skipped
            && self.sent == self.answered + self.timed_out
            && self.answered == self.good + self.refused + self.wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_come_back_from_their_text() {
        let mut latency = Latency::new();
        (1..=1_000).for_each(|number| latency.record(Duration::from_micros(number * 10)));
        latency.record(Duration::from_secs(600));
        let again = Latency::parse(&latency.text()).unwrap();
        assert_eq!(again.0, latency.0);
        assert!((4.9..5.1).contains(&again.ms(50.0)), "{}", again.ms(50.0));
        assert!(59_000.0 < again.ms(100.0));
        assert!(Latency::parse("x").unwrap_err().contains("base64"));
        assert!(Latency::parse("AAAA").unwrap_err().contains("histogram"));
    }

    #[test]
    fn a_request_that_vanished_is_noticed() {
        let counts = Counts {
            offered: 3,
            sent: 2,
            skipped: 1,
            answered: 1,
            good: 1,
            timed_out: 1,
            ..Counts::default()
        };
        assert!(counts.is_balanced());
        assert!(!Counts { timed_out: 0, ..counts }.is_balanced());
        assert!(!Counts { skipped: 0, ..counts }.is_balanced());
        assert!(!Counts { good: 0, ..counts }.is_balanced());
    }
}
