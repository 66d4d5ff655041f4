//! Probes for tests: written down from matrices rather than measured.

use super::record::{AgentReport, Exchange, Facts, Host, LAYOUT, Link, Probe, RoundTrip};

/// A probe of healthy hosts `h0`, `h1`, …, each on a site of its own, with these round trips in milliseconds.
pub fn probe(round_trips_ms: &[&[f64]]) -> Probe {
    let hosts = round_trips_ms.iter().enumerate().map(|(me, row)| Host {
        name: format!("h{me}"),
        site: format!("s{me}"),
        region: if me % 2 == 0 { "eu".to_owned() } else { "na".to_owned() },
        address: Some(([127, 0, 0, 1], 4_410).into()),
        failure: None,
        report: Some(report(me, row)),
        clock_ahead_ms: None,
        clock_error_ms: None,
    });
    Probe { layout: LAYOUT, started_unix_seconds: 1_000_000, seconds: 10.0, hosts: hosts.collect() }
}

fn report(me: usize, row: &[f64]) -> AgentReport {
    let links = row.iter().enumerate().filter(|(peer, _)| *peer != me);
    AgentReport {
        facts: facts(),
        receive_buffer_bytes: 4 << 20,
        links: links.map(|(peer, round_trip_ms)| link(peer, *round_trip_ms)).collect(),
        ..AgentReport::default()
    }
}

/// Of a machine that nothing is wrong with.
pub fn facts() -> Facts {
    Facts {
        cores: 4,
        load: Some(0.4),
        memory_free_bytes: Some(8 << 30),
        memory_bytes: Some(16 << 30),
        disk_free_bytes: Some(100 << 30),
        kernel: "Linux 6.1".to_owned(),
        rmem_max_bytes: Some(4 << 20),
    }
}

fn link(peer: usize, ms: f64) -> Link {
    let round_trip = RoundTrip { min_ms: ms, p50_ms: ms, p95_ms: ms, max_ms: ms, jitter_ms: 0.1 };
    let exchange =
        Exchange { sent: 100, answered: 100, received: 100, duplicates: 0, round_trip: Some(round_trip) };
    Link {
        peer: peer as u16,
        is_heard: true,
        seen_as: None,
        small: exchange,
        large: exchange,
        clock_ahead_ms: None,
    }
}
