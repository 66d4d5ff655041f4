//! What the router did and how late it was: the self-report of a run.
//!
//! An emulator on a busy machine adds delay of its own, which would be blamed on the nodes. So the router measures
//! itself: how long after its due time each packet left, and how long a packet may have waited unseen before it was
//! read (the time between two looks, beyond the tick). A run in which either was above [`LATE_MAX`] for more than
//! one packet in a hundred is *emulator-limited*: its figures say something about this machine, not about the nodes.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// The 99th percentile of lateness up to which a run counts.
pub const LATE_MAX: Duration = Duration::from_millis(3);
/// Lateness above a minute is recorded as a minute.
const TRACKED_MAX: Duration = Duration::from_secs(60);

/// Durations, kept in microseconds.
#[derive(Debug, Clone)]
pub struct Spread(Histogram<u64>);

impl Default for Spread {
    fn default() -> Self {
        let most = u64::try_from(TRACKED_MAX.as_micros()).expect("a minute");
        Self(Histogram::new_with_max(most, 3).expect("the bounds are in order"))
    }
}

impl Spread {
    /// Adds `count` equal durations.
    pub fn add(&mut self, duration: Duration, count: u64) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.0.saturating_record_n(micros, count);
    }

    /// The duration that this share of all does not exceed.
    pub fn at(&self, share: f64) -> Duration {
        Duration::from_micros(self.0.value_at_quantile(share))
    }

    /// The longest.
    pub fn longest(&self) -> Duration {
        Duration::from_micros(self.0.max())
    }

    /// In milliseconds, for a report.
    pub fn summary(&self) -> Percentiles {
        let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
        Percentiles { p50: millis(self.at(0.5)), p99: millis(self.at(0.99)), max: millis(self.longest()) }
    }
}

/// Three points of a spread, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// Half are not above it.
    pub p50: f64,
    /// One in a hundred is above it.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl std::fmt::Display for Percentiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms", self.p50, self.p99, self.max)
    }
}

/// What the router counts while it runs.
#[derive(Debug, Default)]
pub struct Account {
    /// Packets read from devices.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets written to devices; doubled ones count twice.
    pub delivered: u64,
    /// Of those, the ones with a flipped bit.
    pub damaged: u64,
    /// Packets dropped, by cause.
    pub drops: BTreeMap<&'static str, u64>,
    /// The longest the queue was, in packets.
    pub queued_max: usize,
    /// How long after its due time each packet left.
    pub release_late: Spread,
    /// How long a packet may have waited before it was read, beyond the tick.
    pub read_late: Spread,
}

impl Account {
    /// Counts a dropped packet.
    pub fn drop(&mut self, cause: &'static str) {
        *self.drops.entry(cause).or_default() += 1;
    }

    /// The report at this moment. The caller adds what the router cannot see.
    pub fn report(&self, queued: usize, ran: Duration, router_processor: Duration) -> Report {
        let late = self.release_late.at(0.99).max(self.read_late.at(0.99));
        Report {
            seconds: ran.as_secs_f64(),
            packets: self.packets,
            bytes: self.bytes,
            delivered: self.delivered,
            damaged: self.damaged,
            drops: self.drops.iter().map(|(cause, count)| ((*cause).to_owned(), *count)).collect(),
            device_drops: 0,
            queued,
            queued_max: self.queued_max,
            release_late_ms: self.release_late.summary(),
            read_late_ms: self.read_late.summary(),
            router_processor_seconds: router_processor.as_secs_f64(),
            real_time: None,
            steal_seconds: 0.0,
            emulator_limited: LATE_MAX < late,
        }
    }
}

/// What a run tells of itself.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// How long the router has run.
    pub seconds: f64,
    /// Packets read from devices.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets written to devices.
    pub delivered: u64,
    /// Of those, the ones with a flipped bit, which the receiving kernel finds by the checksum and drops.
    pub damaged: u64,
    /// Packets dropped, by cause.
    pub drops: BTreeMap<String, u64>,
    /// Packets that devices dropped because the router did not fetch them in time.
    pub device_drops: u64,
    /// Packets under way.
    pub queued: usize,
    /// The most that ever were.
    pub queued_max: usize,
    /// How long after its due time each packet left.
    pub release_late_ms: Percentiles,
    /// How long a packet may have waited before it was read, beyond the tick.
    pub read_late_ms: Percentiles,
    /// What the router's thread used of a processor.
    pub router_processor_seconds: f64,
    /// Why the router has no real-time priority, if it has none.
    pub real_time: Option<String>,
    /// Time that the machine's host gave to others, summed over processors.
    pub steal_seconds: f64,
    /// Whether the router was later than [`LATE_MAX`] for more than one packet in a hundred.
    pub emulator_limited: bool,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} packets in {:.1} s ({:.0}/s), {} delivered, {} damaged",
            self.packets,
            self.seconds,
            self.packets as f64 / self.seconds.max(1e-9),
            self.delivered,
            self.damaged
        )?;
        for (cause, count) in &self.drops {
            writeln!(f, "  dropped: {count} {cause}")?;
        }
        if 0 < self.device_drops {
            writeln!(f, "  dropped by devices, unseen by the router: {}", self.device_drops)?;
        }
        writeln!(f, "packets under way: {}, at most {}", self.queued, self.queued_max)?;
        writeln!(f, "release lateness: {}", self.release_late_ms)?;
        writeln!(f, "read lateness, at most: {}", self.read_late_ms)?;
        write!(f, "router: {:.2} s of a processor", self.router_processor_seconds)?;
        if 0 < self.packets {
            write!(f, ", {:.1} µs a packet", self.router_processor_seconds * 1e6 / self.packets as f64)?;
        }
        writeln!(f, "; steal time {:.2} s", self.steal_seconds)?;
        if let Some(why) = &self.real_time {
            writeln!(f, "without real-time priority: {why}")?;
        }
        if self.emulator_limited {
            let bound = LATE_MAX.as_secs_f64() * 1e3;
            writeln!(
                f,
                "EMULATOR-LIMITED: a 99th percentile of lateness is above {bound:.0} ms; blame no node for this run"
            )?;
        }
        Ok(())
    }
}

/// Time that the host of this machine gave to others, since boot.
pub fn stolen() -> Duration {
    const TICKS_A_SECOND: f64 = 100.0;
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = stat.lines().next().and_then(|all| all.split_ascii_whitespace().nth(8)?.parse::<u64>().ok());
    Duration::from_secs_f64(ticks.unwrap_or(0) as f64 / TICKS_A_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_router_limits_the_run_and_a_rare_stall_does_not() {
        let report = |late: u64| {
            let mut account = Account::default();
            account.release_late.add(Duration::from_micros(200), 1_000 - late);
            account.release_late.add(Duration::from_millis(4), late);
            account.report(0, Duration::from_secs(1), Duration::ZERO)
        };
        assert!(!report(9).emulator_limited);
        assert!(report(11).emulator_limited);
        assert!(report(11).to_string().contains("EMULATOR-LIMITED"));
    }

    #[test]
    fn waiting_unseen_counts_as_being_late() {
        let mut account = Account::default();
        account.release_late.add(Duration::ZERO, 100);
        account.read_late.add(Duration::from_millis(50), 100);
        assert!(account.report(0, Duration::from_secs(1), Duration::ZERO).emulator_limited);
    }

    #[test]
    fn drops_are_told_by_cause() {
        let mut account = Account::default();
        account.drop("loss");
        account.drop("loss");
        account.drop("cut");
        let report = account.report(3, Duration::from_secs(1), Duration::ZERO);
        assert_eq!(report.drops, BTreeMap::from([("cut".to_owned(), 1), ("loss".to_owned(), 2)]));
        assert!(!report.emulator_limited);
    }
}
