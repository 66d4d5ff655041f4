//! The test client's results as reports need them: read from their JSON, with whole histograms, so that results of
//! several hosts and hours can be added up.
//!
//! Only what is used is read; the layout number guards against a file of another meaning.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use serde::Deserialize;

use crate::campaign::record::{Ending, From, Run, Server};

/// Layout of the test client's results that this program reads.
const LAYOUT: u32 = 1;
/// Bytes of a result at most.
const RESULT_BYTES_MAX: u64 = 256 << 20;

/// One host's part of one run.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The run's name.
    pub run: String,
    /// The plan's name.
    pub plan: String,
    /// Start, in seconds from 1970.
    pub started_unix_seconds: u64,
    /// The host that made the load.
    pub from: From,
    /// The nodes that were asked.
    pub servers: Vec<Server>,
    /// The loads.
    pub phases: Vec<Phase>,
    /// Checks that did not hold, with what was seen.
    pub failed_checks: Vec<String>,
    /// Why the run ended before its end, if it did.
    pub incomplete: Option<String>,
}

/// One load.
#[derive(Clone, Debug)]
pub struct Phase {
    /// What repeats of one setting have in common.
    pub group: String,
    /// Seconds in which requests fell due.
    pub window_seconds: f64,
    /// Good answers in that time.
    pub good_in_window: u64,
    /// Whole counts.
    pub counts: Counts,
    /// Latency of all operations.
    pub latency: Latency,
    /// By node that was asked first.
    pub by_server: Vec<Share>,
    /// Why the figures are the generator's, if they are.
    pub limited: Option<String>,
}

/// What one node was asked.
#[derive(Clone, Debug)]
pub struct Share {
    /// Its address.
    pub server: String,
    /// How its requests ended.
    pub counts: Counts,
    /// Their latency.
    pub latency: Latency,
}

/// Counts of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Counts {
    /// That the schedule held.
    pub offered: u64,
    /// That left.
    pub sent: u64,
    /// Answered as they should be.
    pub good: u64,
    /// Refused.
    pub refused: u64,
    /// Answered with what cannot be right.
    pub wrong: u64,
    /// Never answered.
    pub timed_out: u64,
}

/// A histogram of nanoseconds.
#[derive(Clone, Debug)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1_000, 60_000_000_000, 3).expect("the bounds are in order"))
    }
}

impl Latency {
    /// Reads the text in a result: base64 of HdrHistogram's compressed layout.
    fn parse(text: &str) -> Result<Self, String> {
        let bytes = STANDARD.decode(text).map_err(|error| format!("a latency is no base64: {error}"))?;
        let read: Histogram<u64> = Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .map_err(|error| format!("a latency is no histogram: {error:?}"))?;
        let mut latency = Self::default();
        latency.0.add(&read).map_err(|error| format!("a latency is beyond the scale: {error}"))?;
        Ok(latency)
    }

    /// Adds all of another.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// A percentile in milliseconds; nothing of nothing.
    pub fn ms(&self, percentile: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.value_at_percentile(percentile) as f64 / 1e6)
    }

    /// Notes one latency, for tests that build results.
    #[cfg(test)]
    pub fn record_ms(&mut self, ms: f64, times: u64) {
        self.0.record_n((ms * 1e6) as u64, times).unwrap();
    }
}

impl Counts {
    /// Adds all of another.
    pub fn add(&mut self, other: &Self) {
        self.offered += other.offered;
        self.sent += other.sent;
        self.good += other.good;
        self.refused += other.refused;
        self.wrong += other.wrong;
        self.timed_out += other.timed_out;
    }

    /// Share of the requests that left and got no good answer, 0 to 1.
    pub fn failed(&self) -> f64 {
        let failed = self.refused + self.wrong + self.timed_out;
        failed as f64 / self.sent.max(1) as f64
    }
}

#[derive(Deserialize)]
struct ResultFile {
    layout: u32,
    phases: Vec<PhaseFile>,
    #[serde(default)]
    checks: Vec<CheckFile>,
    incomplete: Option<String>,
}

#[derive(Deserialize)]
struct PhaseFile {
    name: String,
    group: String,
    window_seconds: f64,
    counts: Counts,
    operations: BTreeMap<String, OperationFile>,
    seconds: Vec<SecondFile>,
    by_server: Vec<ShareFile>,
    generator: GeneratorFile,
}

#[derive(Deserialize)]
struct OperationFile {
    corrected: String,
}

#[derive(Deserialize)]
struct SecondFile {
    at: u64,
    good: u64,
}

#[derive(Deserialize)]
struct ShareFile {
    server: String,
    counts: Counts,
    latency: String,
}

#[derive(Deserialize)]
struct GeneratorFile {
    limited: Option<String>,
}

#[derive(Deserialize)]
struct CheckFile {
    name: String,
    passed: Option<bool>,
    seen: String,
}

/// The results of these runs, and in sentences what could not be read.
pub fn load(directory: &Path, runs: &[Run]) -> (Vec<Measured>, Vec<String>) {
    let (mut all, mut faults) = (Vec::new(), Vec::new());
    for run in runs {
        for from in &run.from {
            let file = run.folder(directory).join(&from.name).join("result.json");
            if !file.exists() {
                // A plan that is refused leaves no result; its status says so already.
                if from.ending == Ending::Ended(0) {
                    faults.push(format!("{}: {} is not there", run.id, file.display()));
                }
                continue;
            }
            match read(&file) {
                Ok(result) => match measured(run, from, result) {
                    Ok(measured) => all.push(measured),
                    Err(error) => faults.push(format!("{}: {error}", file.display())),
                },
                Err(error) => faults.push(format!("{}: {error}", file.display())),
            }
        }
    }
    (all, faults)
}

fn read(file: &Path) -> Result<ResultFile, String> {
    let bytes = fs::metadata(file).map_err(|error| error.to_string())?.len();
    if RESULT_BYTES_MAX < bytes {
        return Err(format!("has {} MiB, more than {}", bytes >> 20, RESULT_BYTES_MAX >> 20));
    }
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    let result: ResultFile = serde_json::from_str(&text).map_err(|error| format!("is no result: {error}"))?;
    match result.layout == LAYOUT {
        true => Ok(result),
        false => Err(format!("has layout {}, this program reads {LAYOUT}", result.layout)),
    }
}

fn measured(run: &Run, from: &From, result: ResultFile) -> Result<Measured, String> {
    let failed = result.checks.iter().filter(|check| check.passed != Some(true));
    Ok(Measured {
        run: run.id.clone(),
        plan: run.plan.clone(),
        started_unix_seconds: run.started_unix_seconds,
        from: from.clone(),
        servers: run.servers.clone(),
        failed_checks: failed.map(|check| format!("{}: {}", check.name, check.seen)).collect(),
        phases: result.phases.into_iter().map(phase).collect::<Result<_, String>>()?,
        incomplete: result.incomplete,
    })
}

fn phase(file: PhaseFile) -> Result<Phase, String> {
    let mut latency = Latency::default();
    for operation in file.operations.values() {
        latency.add(&Latency::parse(&operation.corrected)?);
    }
    let by_server = file.by_server.into_iter().map(|share| {
        Ok(Share { server: share.server, counts: share.counts, latency: Latency::parse(&share.latency)? })
    });
    // Answers that came after the window belong to requests of it, not to its rate; what is shorter than a second has
    // no account second by second.
    let whole = file.window_seconds as u64;
    let inside = file.seconds.iter().filter(|second| second.at < whole);
    let (window_seconds, good_in_window) = match whole {
        0 => (file.window_seconds, file.counts.good),
        _ => (whole as f64, inside.map(|second| second.good).sum()),
    };
    Ok(Phase {
        group: if file.group.is_empty() { file.name } else { file.group },
        window_seconds,
        good_in_window,
        counts: file.counts,
        latency,
        by_server: by_server.collect::<Result<_, String>>()?,
        limited: file.generator.limited,
    })
}

impl Measured {
    /// Hour of the day at the host, or of UTC if its time zone is not known.
    pub fn hour(&self) -> u32 {
        let minutes = i64::from(self.from.local_minutes.unwrap_or(0));
        let local = self.started_unix_seconds as i64 + minutes * 60;
        u32::try_from(local.rem_euclid(86_400) / 3_600).expect("a remainder of a day is some hour of it")
    }

    /// Region of the host, or its site.
    pub fn region(&self) -> &str {
        if self.from.region.is_empty() { &self.from.site } else { &self.from.region }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::campaign::record;

    /// A result from one host that asked two nodes; the second takes `slow_ms` and loses `lost` of 100.
    pub fn sample(region: &str, hour: u64, slow_ms: f64, lost: u64) -> Measured {
        let names = ["fra", "nyc"];
        let servers = names.iter().enumerate().map(|(at, name)| Server {
            name: (*name).to_owned(),
            address: ([10, 0, 0, at as u8 + 1], 4_410).into(),
            site: format!("site-{name}"),
            region: region.to_owned(),
        });
        let share = |server: &str, ms: f64, lost: u64| {
            let mut latency = Latency::default();
            latency.record_ms(ms, 100 - lost);
            let counts =
                Counts { offered: 100, sent: 100, good: 100 - lost, timed_out: lost, ..Counts::default() };
            Share { server: server.to_owned(), counts, latency }
        };
        let by_server = vec![share("10.0.0.1:4410", 10.0, 0), share("10.0.0.2:4410", slow_ms, lost)];
        let (mut counts, mut latency) = (Counts::default(), Latency::default());
        by_server.iter().for_each(|share| {
            counts.add(&share.counts);
            latency.add(&share.latency);
        });
        let phase = Phase {
            group: "R16".to_owned(),
            window_seconds: 10.0,
            good_in_window: counts.good,
            counts,
            latency,
            by_server,
            limited: None,
        };
        Measured {
            run: format!("run-{hour}"),
            plan: "grid".to_owned(),
            started_unix_seconds: hour * 3_600,
            from: From {
                name: "fra".to_owned(),
                site: "site-fra".to_owned(),
                region: region.to_owned(),
                local_minutes: Some(60),
                ending: Ending::Ended(0),
            },
            servers: servers.collect(),
            phases: vec![phase],
            failed_checks: Vec::new(),
            incomplete: None,
        }
    }

    #[test]
    fn hours_are_those_of_the_place() {
        assert_eq!(sample("eu", 23, 1.0, 0).hour(), 0);
        assert_eq!(sample("eu", 5, 1.0, 0).hour(), 6);
    }

    #[test]
    fn a_file_that_is_no_result_is_named_and_the_rest_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let from = sample("eu", 1, 1.0, 0).from;
        let run = Run {
            layout: record::LAYOUT,
            id: "1-x".to_owned(),
            plan: "x".to_owned(),
            started_unix_seconds: 0,
            servers: Vec::new(),
            from: vec![From { name: "a".to_owned(), ..from.clone() }, From { name: "b".to_owned(), ..from }],
        };
        let good =
            r#"{"layout":1,"phases":[],"checks":[{"name":"c","passed":false,"seen":"d"}],"incomplete":null}"#;
        record::write(&run.folder(directory.path()).join("a/result.json"), b"{").unwrap();
        record::write(&run.folder(directory.path()).join("b/result.json"), good.as_bytes()).unwrap();
        let (all, faults) = load(directory.path(), &[run]);
        assert_eq!((all.len(), faults.len()), (1, 1));
        assert_eq!(all[0].failed_checks, ["c: d"]);
        assert!(faults[0].contains("a/result.json: is no result"), "{faults:?}");
    }
}
