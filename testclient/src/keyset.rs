//! Many keys at once: written in parallel, read back, and compared with what may be there.

use std::collections::BTreeMap;
use std::time::Duration;

use violet_client::{Format, Key, Status};

use crate::batch;
use crate::cluster::{Cluster, Finding, fail};
use crate::load::{Ask, Call, End};
use crate::names::Mark;
use crate::values::{Contents, Random, Sizes};

/// Parallel requests of these reads and writes.
const CLIENTS: usize = 16;
/// Above this share of time-outs nothing can be said.
const TIMEOUT_SHARE_MAX: f64 = 0.1;

/// What a GET may find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// No such key.
    Absent,
    /// A version from the first to the last, both included: the last acknowledged write, or a later one
    /// whose end is not known.
    Between(i32, i32),
}

/// Numbered keys whose values follow from number and version.
#[derive(Clone, Copy, Debug)]
pub struct KeySet {
    /// The values.
    pub contents: Contents,
    /// Distinguishes this set's keys from those of other stages.
    stage: u32,
    /// How many keys.
    pub count: u64,
}

impl KeySet {
    /// `count` keys that no other stage uses, and no other run.
    pub fn new(cluster: &mut Cluster, count: u64, sizes: Sizes) -> Self {
        Self { stage: cluster.fresh_tag(), ..Self::drawn(&mut cluster.random, count, sizes) }
    }

    /// The same keys under names that no other run has.
    pub fn of_run(self, mark: Mark) -> Self {
        Self { stage: mark.random(self.stage.into()).next() as u32, ..self }
    }

    /// `count` keys and their values as these draws decide.
    pub fn drawn(random: &mut Random, count: u64, sizes: Sizes) -> Self {
        let contents = Contents::new(random.next(), sizes);
        Self { contents, stage: random.next() as u32, count }
    }

    /// The key of a number.
    pub fn key(&self, number: u64) -> Key {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&(number as u32).to_le_bytes());
        bytes[4..].copy_from_slice(&self.stage.to_le_bytes());
        Key::parse(&bytes).expect("a key of eight bytes is legal")
    }

    /// The number of a key of this set.
    pub fn number(key: &Key) -> u64 {
        let bytes = key.as_bytes();
        u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Writes one version of all keys through random servers of `via`; every PUT must succeed.
    pub fn put_all(&self, cluster: &mut Cluster, via: &[usize], version: i32) -> Result<(), Finding> {
        let mut numbers = 0..self.count;
        let mut refused: BTreeMap<Option<Status>, u64> = BTreeMap::new();
        let (servers, format, random) = (&cluster.servers, cluster.format, &mut cluster.random);
        run(
            servers,
            format,
            |value| {
                let number = numbers.next()?;
                self.contents.write(number, version, value);
                let server = via[random.below(via.len())];
                Some(Call { server, ask: Ask::Put { key: self.key(number), version } })
            },
            |_, end| {
                if end.status() != Some(Status::Success) {
                    *refused.entry(end.status()).or_default() += 1;
                }
            },
        )?;
        match refused.first_key_value() {
            None => Ok(()),
            Some((Some(status), count)) => {
                fail(format!("{count} of {} PUTs were answered with {status}", self.count))
            }
            Some((None, count)) => {
                Err(Finding::Undecided(format!("{count} of {} PUTs were not answered", self.count)))
            }
        }
    }

    /// Reads all keys through random servers of `via`.
    pub fn read_all(
        &self,
        cluster: &mut Cluster,
        via: &[usize],
        expected: impl Fn(u64) -> Expected,
    ) -> Result<Reading, Finding> {
        self.read(cluster, via, 0..self.count, expected)
    }

    /// Reads some keys through random servers of `via`.
    pub fn read(
        &self,
        cluster: &mut Cluster,
        via: &[usize],
        mut numbers: impl Iterator<Item = u64>,
        expected: impl Fn(u64) -> Expected,
    ) -> Result<Reading, Finding> {
        let mut reading = Reading::default();
        let (servers, format, random) = (&cluster.servers, cluster.format, &mut cluster.random);
        run(
            servers,
            format,
            |_| {
                let key = self.key(numbers.next()?);
                Some(Call { server: via[random.below(via.len())], ask: Ask::Get { key } })
            },
            |call, end| {
                if let Ask::Get { key } = &call.ask {
                    let number = Self::number(key);
                    self.judge(format, number, expected(number), &end, &mut reading, || {
                        format!("GET of key {number} via {}", servers[call.server])
                    });
                }
            },
        )?;
        Ok(reading)
    }

    /// Compares what a GET brought with what may be there.
    pub fn judge(
        &self,
        format: Format,
        number: u64,
        expected: Expected,
        end: &End<'_>,
        reading: &mut Reading,
        place: impl Fn() -> String,
    ) {
        let End::Answered(response) = end else {
            reading.timeouts += 1;
            return;
        };
        let value = response.value.unwrap_or_default();
        let is_version = |version: i32| {
            (format == Format::Raw || value.version == version)
                && self.contents.matches(number, version, value.bytes)
        };
        let fault = match (response.status, expected) {
            (Status::NoSuchKey, Expected::Absent) => None,
            (Status::NoSuchKey, Expected::Between(..)) => {
                reading.missing += 1;
                Some("no such key".to_owned())
            }
            (Status::Success, Expected::Between(first, last)) => {
                if (first..=last).rev().any(is_version) {
                    None
                } else if let Some(old) =
                    (0..first).rev().take(VERSIONS_BACK_MAX).find(|&old| is_version(old))
                {
                    reading.stale += 1;
                    Some(format!("version {old}, but {first} was acknowledged"))
                } else {
                    reading.wrong += 1;
                    Some(format!("{value:?}, which was never written there"))
                }
            }
            (Status::Success, Expected::Absent) => {
                reading.revived += 1;
                Some(format!("{value:?}, although it is gone"))
            }
            (status, _) => {
                *reading.errors.entry(status).or_default() += 1;
                return;
            }
        };
        match fault {
            None => reading.right += 1,
            Some(fault) => {
                reading.first_fault.get_or_insert_with(|| format!("{}: {fault}", place()));
            }
        }
    }
}

/// How many superseded versions are tried to tell a stale value from a foreign one.
const VERSIONS_BACK_MAX: usize = 1_000;

fn run(
    servers: &[std::net::SocketAddr],
    format: Format,
    next: impl FnMut(&mut Vec<u8>) -> Option<Call>,
    on_end: impl FnMut(&Call, End<'_>),
) -> Result<(), Finding> {
    let waits: Vec<Duration> = crate::grid::course_policy(format).waits;
    batch::run(servers, format, &waits, CLIENTS, next, on_end).map(drop).map_err(Finding::Undecided)
}

/// What many GETs found.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// As expected.
    pub right: u64,
    /// "No such key" for a key that must be there.
    pub missing: u64,
    /// An older version than the last acknowledged one.
    pub stale: u64,
    /// Bytes that were never written under that key.
    pub wrong: u64,
    /// A value where nothing must be.
    pub revived: u64,
    /// Not answered.
    pub timeouts: u64,
    /// Other answers.
    pub errors: BTreeMap<Status, u64>,
    /// The first fault in words.
    pub first_fault: Option<String>,
}

impl Reading {
    /// Missing, stale, wrong and revived values together.
    pub fn faults(&self) -> u64 {
        self.missing + self.stale + self.wrong + self.revived
    }

    /// All GETs.
    pub fn total(&self) -> u64 {
        self.right + self.faults() + self.timeouts + self.errors.values().sum::<u64>()
    }

    /// Fails when a value was not what it must be; undecided when too many GETs were not answered.
    pub fn insist(&self, when: &str) -> Result<(), Finding> {
        let total = self.total();
        if 0 < self.faults() {
            let kinds = [
                (self.missing, "missing"),
                (self.stale, "stale"),
                (self.wrong, "wrong"),
                (self.revived, "back from the dead"),
            ];
            let kinds = kinds.iter().filter(|(count, _)| 0 < *count);
            let kinds: Vec<String> = kinds.map(|(count, kind)| format!("{count} {kind}")).collect();
            let first = self.first_fault.as_deref().unwrap_or_default();
            return fail(format!("{when}: of {total} values {}; first: {first}", kinds.join(", ")));
        }
        let unanswered = total - self.right;
        if TIMEOUT_SHARE_MAX * (total as f64) < unanswered as f64 {
            return Err(Finding::Undecided(format!(
                "{when}: {unanswered} of {total} GETs got {}",
                self.other_ends()
            )));
        }
        Ok(())
    }

    /// Time-outs and error codes in words; empty if there were none.
    pub fn other_ends(&self) -> String {
        let mut ends: Vec<String> =
            self.errors.iter().map(|(status, count)| format!("{count} x {status}")).collect();
        if 0 < self.timeouts {
            ends.push(format!("{} x no answer", self.timeouts));
        }
        ends.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use violet_client::{MessageId, Response, Value};

    /// What `judge` makes of a reply to key 7, as counts (right, missing, stale, wrong, revived, errors).
    fn judged(expected: Expected, status: Status, written: Option<(u64, i32)>) -> [u64; 6] {
        let keys = KeySet { contents: Contents::new(1, Sizes::Fixed(20)), stage: 3, count: 10 };
        let bytes = written.map(|(number, version)| keys.contents.make(number, version));
        let mut response = Response::of_status(MessageId([0; 16]), status);
        let version = written.map_or(0, |(_, version)| version);
        response.value = bytes.as_deref().map(|bytes| Value { bytes, version });
        let mut reading = Reading::default();
        let end = End::Answered(response);
        keys.judge(Format::Protobuf, 7, expected, &end, &mut reading, || "GET".to_owned());
        assert_eq!(reading.first_fault.is_some(), 0 < reading.faults());
        assert_eq!(reading.total(), 1);
        let errors = reading.errors.values().sum();
        [reading.right, reading.missing, reading.stale, reading.wrong, reading.revived, errors]
    }

    #[test]
    fn values_are_told_apart() {
        let written = Expected::Between(5, 7);
        assert_eq!(judged(written, Status::Success, Some((7, 5))), [1, 0, 0, 0, 0, 0]);
        assert_eq!(judged(written, Status::Success, Some((7, 7))), [1, 0, 0, 0, 0, 0]);
        assert_eq!(judged(written, Status::NoSuchKey, None), [0, 1, 0, 0, 0, 0]);
        assert_eq!(judged(written, Status::Success, Some((7, 4))), [0, 0, 1, 0, 0, 0]);
        assert_eq!(judged(written, Status::Success, Some((7, 8))), [0, 0, 0, 1, 0, 0]);
        assert_eq!(judged(written, Status::Success, Some((6, 5))), [0, 0, 0, 1, 0, 0]);
        assert_eq!(judged(written, Status::Overload, None), [0, 0, 0, 0, 0, 1]);
        assert_eq!(judged(Expected::Absent, Status::NoSuchKey, None), [1, 0, 0, 0, 0, 0]);
        assert_eq!(judged(Expected::Absent, Status::Success, Some((7, 1))), [0, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn faults_fail_and_silence_is_undecided() {
        let reading = Reading { right: 9, ..Reading::default() };
        assert_eq!(reading.insist("then"), Ok(()));
        let stale = Reading { stale: 1, ..reading.clone() };
        assert!(
            matches!(stale.insist("then"), Err(Finding::Fail(text)) if text.contains("of 10 values 1 stale"))
        );
        let silent = Reading { timeouts: 3, ..reading.clone() };
        assert!(
            matches!(silent.insist("then"), Err(Finding::Undecided(text)) if text.contains("3 x no answer"))
        );
    }
}
