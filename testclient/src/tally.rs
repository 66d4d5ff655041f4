//! What one engine, or several over the same time, counted: how requests ended, how long they took, and odd datagrams.
//!
//! Counts and latencies are kept by operation and by the server that was asked; the sums are made when they are read.
//! A latency is that of an answer; requests that nobody answered are counted, and the patience that they took is kept
//! apart ([`Tally::given_up`]), so that a closed loop's table can add it ([`Tally::patience`]). Tails of closed loops
//! say less than those of an open loop and cannot be compared with them: a slow server also slows the asking.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use violet_client::{Format, Status};

use crate::result::{Counts, Latency, Operation, ServerShare};

/// What is asked, as far as counting tells it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Store.
    Put,
    /// Read.
    Get,
    /// Forget.
    Remove,
    /// Forget everything, signs of life.
    Other,
}

impl Kind {
    /// All of them, in their order.
    pub const ALL: [Self; 4] = [Self::Put, Self::Get, Self::Remove, Self::Other];

    /// As it stands in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Remove => "remove",
            Self::Other => "other",
        }
    }
}

/// Of one operation.
#[derive(Clone, Debug, Default)]
pub struct OfOperation {
    /// How many and how they ended.
    pub counts: Counts,
    /// Answers by status.
    pub statuses: BTreeMap<Status, u64>,
    /// From the intended time to the answer.
    pub corrected: Latency,
    /// From the first datagram to the answer.
    pub raw: Latency,
    /// From the latest datagram before the answer.
    pub last_try: Latency,
}

/// Of one server, as the one that was asked first.
#[derive(Clone, Debug, Default)]
pub struct OfServer {
    /// How many and how they ended.
    pub counts: Counts,
    /// Corrected.
    pub latency: Latency,
}

/// Counts of one run; those of several threads add up.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// By [`Kind`]; nothing of what was never asked.
    pub operations: [Option<Box<OfOperation>>; 4],
    /// By index of the server.
    pub servers: Vec<OfServer>,
    /// What belongs to no operation: skipped slots, and datagrams from nowhere.
    pub loose: Counts,
    /// Answers, whatever they say, that came while requests were still being started.
    pub answers_in_window: u64,
    /// Those of them that say "success".
    pub successes_in_window: u64,
    /// Answers of which the request had been sent more than once, and one had come before: normal after a retry.
    pub surplus: u64,
    /// Protobuf replies without an explicit error code, at which every client before 2021 fails.
    pub unreadable_by_proto2: u64,
    /// Datagrams that the kernel refused to take.
    pub send_failures: u64,
    /// The first address that was never asked and replied.
    pub stranger: Option<std::net::SocketAddr>,
    /// The longest wait that an "overloaded" answer asked for, in milliseconds.
    pub overload_wait_ms_max: i32,
    /// From a request's first datagram to when it was given up.
    pub given_up: Latency,
    /// From when a request was due to when it left.
    pub lateness: Latency,
    /// From the first request to the end of the window.
    pub window: Duration,
    /// Processor time of the threads that made the load, over the window, without that in which they only waited.
    pub busy: Duration,
    /// How many threads that were.
    pub threads: usize,
    /// Smallest receive buffer that the kernel granted, in bytes; `None` before there is a socket.
    pub receive_buffer_bytes: Option<usize>,
}

impl Tally {
    /// Nothing counted of this many servers.
    pub fn new(servers: usize) -> Self {
        Self { servers: vec![OfServer::default(); servers], ..Self::default() }
    }

    /// The counts of an operation, from the first that is asked on.
    pub fn of(&mut self, kind: Kind) -> &mut OfOperation {
        self.operations[kind as usize].get_or_insert_default()
    }

    /// Adds what another thread counted over the same window.
    pub fn add(&mut self, other: &Self) {
        for (own, other) in self.operations.iter_mut().zip(&other.operations) {
            let Some(other) = other else { continue };
            let own = own.get_or_insert_default();
            own.counts.add(&other.counts);
            add_statuses(&mut own.statuses, &other.statuses);
            own.corrected.add(&other.corrected);
            own.raw.add(&other.raw);
            own.last_try.add(&other.last_try);
        }
        self.servers.resize_with(self.servers.len().max(other.servers.len()), OfServer::default);
        for (own, other) in self.servers.iter_mut().zip(&other.servers) {
            own.counts.add(&other.counts);
            own.latency.add(&other.latency);
        }
        self.loose.add(&other.loose);
        self.answers_in_window += other.answers_in_window;
        self.successes_in_window += other.successes_in_window;
        self.surplus += other.surplus;
        self.unreadable_by_proto2 += other.unreadable_by_proto2;
        self.send_failures += other.send_failures;
        self.stranger = self.stranger.or(other.stranger);
        self.overload_wait_ms_max = self.overload_wait_ms_max.max(other.overload_wait_ms_max);
        self.given_up.add(&other.given_up);
        self.lateness.add(&other.lateness);
        self.window = self.window.max(other.window);
        self.busy += other.busy;
        self.threads += other.threads;
        let granted = [self.receive_buffer_bytes, other.receive_buffer_bytes];
        self.receive_buffer_bytes = granted.into_iter().flatten().min();
    }

    fn asked(&self) -> impl Iterator<Item = (Kind, &OfOperation)> {
        let pairs = Kind::ALL.into_iter().zip(&self.operations);
        pairs.filter_map(|(kind, operation)| operation.as_deref().map(|operation| (kind, operation)))
    }

    /// All counts.
    pub fn counts(&self) -> Counts {
        let mut counts = self.loose;
        self.asked().for_each(|(_, operation)| counts.add(&operation.counts));
        counts
    }

    /// Answers by status.
    pub fn statuses(&self) -> BTreeMap<Status, u64> {
        let mut statuses = BTreeMap::new();
        self.asked().for_each(|(_, operation)| add_statuses(&mut statuses, &operation.statuses));
        statuses
    }

    /// One latency of all operations.
    pub fn latency(&self, of: impl Fn(&OfOperation) -> &Latency) -> Latency {
        let mut sum = Latency::new();
        self.asked().for_each(|(_, operation)| sum.add(of(operation)));
        sum
    }

    /// From first datagram to answer, or to when the request was given up.
    pub fn patience(&self) -> Latency {
        let mut sum = self.latency(|operation| &operation.raw);
        sum.add(&self.given_up);
        sum
    }

    /// The operations as they stand in a result.
    pub fn result_operations(&self, format: Format) -> BTreeMap<String, Operation> {
        let of = |operation: &OfOperation| Operation {
            counts: operation.counts,
            codes: operation.statuses.iter().map(|(status, &count)| (status.code(format), count)).collect(),
            corrected: operation.corrected.clone(),
            raw: operation.raw.clone(),
            last_try: operation.last_try.clone(),
        };
        self.asked().map(|(kind, operation)| (kind.name().to_owned(), of(operation))).collect()
    }

    /// The servers as they stand in a result.
    pub fn result_servers(&self, servers: &[std::net::SocketAddr]) -> Vec<ServerShare> {
        let share = |(server, of): (&std::net::SocketAddr, &OfServer)| ServerShare {
            server: server.to_string(),
            counts: of.counts,
            latency: of.latency.clone(),
        };
        servers.iter().zip(&self.servers).map(share).collect()
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
        let Counts { datagrams, sent, .. } = self.counts();
        datagrams.saturating_sub(sent) as f64 / datagrams.max(1) as f64
    }

    /// Answers other than success and "no such key", by code.
    pub fn errors(&self, format: Format) -> Vec<(u32, u64)> {
        let statuses = self.statuses();
        let wrong =
            statuses.iter().filter(|(status, _)| !matches!(status, Status::Success | Status::NoSuchKey));
        wrong.map(|(status, &count)| (status.code(format), count)).collect()
    }

    /// A percentile of [`Self::patience`] in milliseconds.
    pub fn latency_ms(&self, percentile: f64) -> f64 {
        self.patience().ms(percentile)
    }
}

fn add_statuses(to: &mut BTreeMap<Status, u64>, from: &BTreeMap<Status, u64>) {
    for (&status, count) in from {
        *to.entry(status).or_default() += count;
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
        let counts = tally.counts();
        let patience = tally.patience();
        Self {
            requests: counts.sent,
            datagrams: counts.datagrams,
            throughput_per_second: tally.throughput(),
            goodput_per_second: tally.goodput(),
            retry_share: tally.retry_share(),
            window_seconds: tally.window.as_secs_f64(),
            p50_ms: patience.ms(50.0),
            p99_ms: patience.ms(99.0),
            p999_ms: patience.ms(99.9),
            max_ms: patience.ms(100.0),
            answers_by_code: tally
                .statuses()
                .iter()
                .map(|(status, &count)| (status.code(format), count))
                .collect(),
            timeouts: counts.timed_out,
            duplicate_replies: counts.duplicates,
            late_replies: counts.late + tally.surplus,
            foreign_replies: counts.foreign,
            undecodable_replies: counts.undecodable,
            unreadable_by_proto2: tally.unreadable_by_proto2,
            send_failures: tally.send_failures,
            receive_buffer_bytes: tally.receive_buffer_bytes.unwrap_or(0),
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
            let mut tally = Tally { answers_in_window: 10, threads: 1, ..Tally::new(1) };
            tally.window = Duration::from_secs(2);
            let gets = tally.of(Kind::Get);
            gets.counts =
                Counts { offered: 10, sent: 10, answered: 9, good: 7, refused: 2, ..Counts::default() };
            (gets.counts.timed_out, gets.counts.datagrams) = (1, 11);
            gets.statuses.insert(Status::Overload, 2);
            gets.raw.record(Duration::from_millis(latency_ms));
            tally.given_up.record(Duration::from_secs(600));
            sum.add(&tally);
        }
        let counts = sum.counts();
        assert!(counts.is_balanced());
        assert_eq!((counts.sent, counts.datagrams, sum.threads, sum.servers.len()), (20, 22, 2, 1));
        assert!((sum.throughput() - 10.0).abs() < 1e-9);
        assert!((sum.retry_share() - 2.0 / 22.0).abs() < 1e-9);
        assert_eq!(sum.errors(Format::Raw), [(3, 4)]);
        assert!((sum.latency(|get| &get.raw).ms(100.0) - 3.0).abs() < 0.01);
        assert!(59_000.0 < sum.latency_ms(100.0), "what was given up counts with its patience");
        let operations = sum.result_operations(Format::Raw);
        assert_eq!(operations.keys().collect::<Vec<_>>(), ["get"]);
        assert_eq!(operations["get"].codes[&3], 4);
    }
}
