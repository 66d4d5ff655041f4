//! What a run of the generator counted: answers, latencies, retries and odd datagrams.
//!
//! Latency runs from a request's first datagram to its answer, retries included; a request that was
//! never answered counts with its whole patience. These are closed loops: a slow server also slows
//! the asking, so the tails say less than those of an open loop and cannot be compared with them.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use violet_client::{Format, Status};

/// Longest latency that the histogram tells apart, in nanoseconds.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Counts of one run; those of several threads add up.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Requests begun; a restart after "overloaded" is a new one.
    pub requests: u64,
    /// Request datagrams sent, retries included.
    pub datagrams: u64,
    /// Answers, whatever they say, that came while requests were still being started.
    pub answers_in_window: u64,
    /// Those of them that say "success".
    pub successes_in_window: u64,
    /// Answers by status code, from the whole run.
    pub statuses: BTreeMap<Status, u64>,
    /// Requests that nobody answered.
    pub timeouts: u64,
    /// Replies to a request that was sent once and answered before.
    pub duplicates: u64,
    /// Replies to requests that were retried or given up before: normal after a retry.
    pub late: u64,
    /// Replies with an id that this run never used.
    pub foreign: u64,
    /// Datagrams that are no reply of the format.
    pub undecodable: u64,
    /// Protobuf replies without an explicit error code, at which every client before 2021 fails.
    pub unreadable_by_proto2: u64,
    /// Datagrams that the kernel refused to take.
    pub send_failures: u64,
    /// From the first request to the end of the window.
    pub window: Duration,
    /// Smallest receive buffer that the kernel granted, in bytes.
    pub receive_buffer_bytes: usize,
    /// From first datagram to answer, in nanoseconds.
    pub latency: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            requests: 0,
            datagrams: 0,
            answers_in_window: 0,
            successes_in_window: 0,
            statuses: BTreeMap::new(),
            timeouts: 0,
            duplicates: 0,
            late: 0,
            foreign: 0,
            undecodable: 0,
            unreadable_by_proto2: 0,
            send_failures: 0,
            window: Duration::ZERO,
            receive_buffer_bytes: usize::MAX,
            latency: Histogram::new_with_bounds(1_000, LATENCY_NS_MAX, 3).expect("the bounds are in order"),
        }
    }
}

impl Tally {
    /// Notes one latency.
    pub fn record_latency(&mut self, latency: Duration) {
        self.latency.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds what another thread counted over the same window.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.datagrams += other.datagrams;
        self.answers_in_window += other.answers_in_window;
        self.successes_in_window += other.successes_in_window;
        for (&status, count) in &other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        self.timeouts += other.timeouts;
        self.duplicates += other.duplicates;
        self.late += other.late;
        self.foreign += other.foreign;
        self.undecodable += other.undecodable;
        self.unreadable_by_proto2 += other.unreadable_by_proto2;
        self.send_failures += other.send_failures;
        self.window = self.window.max(other.window);
        self.receive_buffer_bytes = self.receive_buffer_bytes.min(other.receive_buffer_bytes);
        self.latency.add(&other.latency).expect("all histograms have the same bounds");
    }

    /// All answers per second.
    pub fn throughput(&self) -> f64 {
        per_second(self.answers_in_window, self.window)
    }

    /// Successful answers per second.
    pub fn goodput(&self) -> f64 {
        per_second(self.successes_in_window, self.window)
    }

    /// Share of the datagrams that were sent again.
    pub fn retry_share(&self) -> f64 {
        self.datagrams.saturating_sub(self.requests) as f64 / self.datagrams.max(1) as f64
    }

    /// Answers other than success and "no such key", as `code 3: 17` and so on.
    pub fn errors(&self, format: Format) -> Vec<(u32, u64)> {
        let wrong =
            self.statuses.iter().filter(|(status, _)| !matches!(status, Status::Success | Status::NoSuchKey));
        wrong.map(|(status, &count)| (status.code(format), count)).collect()
    }

    /// A percentile in milliseconds.
    pub fn latency_ms(&self, percentile: f64) -> f64 {
        self.latency.value_at_percentile(percentile) as f64 / 1e6
    }
}

fn per_second(count: u64, window: Duration) -> f64 {
    if window.is_zero() { 0.0 } else { count as f64 / window.as_secs_f64() }
}

/// A tally as it stands in a result file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TallyRecord {
    requests: u64,
    datagrams: u64,
    throughput_per_second: f64,
    goodput_per_second: f64,
    retry_share: f64,
    window_seconds: f64,
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    max_ms: f64,
    answers_by_code: BTreeMap<u32, u64>,
    timeouts: u64,
    duplicate_replies: u64,
    late_replies: u64,
    foreign_replies: u64,
    undecodable_replies: u64,
    unreadable_by_proto2: u64,
    send_failures: u64,
    receive_buffer_bytes: usize,
}

impl TallyRecord {
    /// The numbers of a tally.
    pub fn of(tally: &Tally, format: Format) -> Self {
        Self {
            requests: tally.requests,
            datagrams: tally.datagrams,
            throughput_per_second: tally.throughput(),
            goodput_per_second: tally.goodput(),
            retry_share: tally.retry_share(),
            window_seconds: tally.window.as_secs_f64(),
            p50_ms: tally.latency_ms(50.0),
            p99_ms: tally.latency_ms(99.0),
            p999_ms: tally.latency_ms(99.9),
            max_ms: tally.latency_ms(100.0),
            answers_by_code: tally
                .statuses
                .iter()
                .map(|(status, &count)| (status.code(format), count))
                .collect(),
            timeouts: tally.timeouts,
            duplicate_replies: tally.duplicates,
            late_replies: tally.late,
            foreign_replies: tally.foreign,
            undecodable_replies: tally.undecodable,
            unreadable_by_proto2: tally.unreadable_by_proto2,
            send_failures: tally.send_failures,
            receive_buffer_bytes: tally.receive_buffer_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up() {
        let mut sum = Tally::default();
        for latency_ms in [1, 3] {
            let mut tally = Tally { requests: 10, datagrams: 11, answers_in_window: 10, ..Tally::default() };
            tally.window = Duration::from_secs(2);
            tally.statuses.insert(Status::Overload, 2);
            tally.record_latency(Duration::from_millis(latency_ms));
            sum.add(&tally);
        }
        assert_eq!((sum.requests, sum.datagrams), (20, 22));
        assert!((sum.throughput() - 10.0).abs() < 1e-9);
        assert!((sum.retry_share() - 2.0 / 22.0).abs() < 1e-9);
        assert_eq!(sum.errors(Format::Raw), [(3, 4)]);
        assert!((sum.latency_ms(100.0) - 3.0).abs() < 0.01);
    }

    #[test]
    fn a_latency_beyond_the_scale_is_kept_at_its_end() {
        let mut tally = Tally::default();
        tally.record_latency(Duration::from_secs(600));
        assert!(59_000.0 < tally.latency_ms(100.0));
    }
}
