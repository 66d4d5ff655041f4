//! Phases for tests that nobody has made.

use std::collections::BTreeMap;

use crate::result::{Arrivals, Counts, Generator, Latency, Loop, Operation, Phase, Second};

/// A phase of one second of an open loop.
pub fn phase(rate: f64, good: u64, failed: u64) -> Phase {
    let counts = Counts {
        offered: good + failed,
        sent: good + failed,
        answered: good,
        good,
        timed_out: failed,
        datagrams: good + failed,
        ..Counts::default()
    };
    let mut latency = Latency::new();
    latency.0.saturating_record_n(1_000_000, good);
    let operation = Operation {
        counts,
        codes: BTreeMap::from([(0, good)]),
        corrected: latency.clone(),
        raw: latency.clone(),
        last_try: latency,
    };
    Phase {
        name: format!("{rate}/s"),
        group: "group".to_owned(),
        at_seconds: 0.0,
        window_seconds: 1.0,
        format: "protobuf".to_owned(),
        timing: Loop::Open { rate, arrivals: Arrivals::Constant },
        servers: 3,
        counts,
        operations: BTreeMap::from([("get".to_owned(), operation)]),
        seconds: vec![Second {
            offered: good + failed,
            answered: good,
            good,
            timed_out: failed,
            ..Second::default()
        }],
        by_server: Vec::new(),
        generator: Generator { threads: 1, ..Generator::default() },
        cost: None,
    }
}
