//! A probe as text: one line a host, then the pairs that are worse than the rest.

use std::fmt::Write as _;

use super::mesh;
use super::record::{Facts, Probe};
use crate::when;

/// Pairs that are printed by name.
const WORST_PAIRS: usize = 5;

/// The whole text.
pub fn text(probe: &Probe) -> String {
    let width = probe.hosts.iter().map(|host| host.name.len()).max().unwrap_or(0).max(4);
    let started = when::for_people(probe.started_unix_seconds);
    let mut text = format!("Probe of {started}, {:.0} s a pair\n\n", probe.seconds);
    let _ = writeln!(
        text,
        "{:width$}  {:>9}  {:>9}  {:>7}  {:>7}  {:>8}  {:>5}  {:>5}  {:>8}  {:>8}  {:>9}",
        "host", "RTT", "worst", "loss", "10 KB", "jitter", "cores", "load", "memory", "disk", "clock"
    );
    for at in 0..probe.hosts.len() {
        let _ = writeln!(text, "{:width$}  {}", probe.hosts[at].name, line(probe, at));
        for complaint in mesh::complaints(probe, at) {
            let _ = writeln!(text, "{:width$}  - {complaint}", "");
        }
    }
    text += &worst_pairs(probe);
    text
}

fn line(probe: &Probe, at: usize) -> String {
    let Some(report) = &probe.hosts[at].report else { return "no report".to_owned() };
    // Who is not there is nobody else's loss.
    let is_there = |other: &usize| *other != at && probe.hosts[*other].report.is_some();
    let others: Vec<usize> = (0..probe.hosts.len()).filter(is_there).collect();
    let trips: Vec<_> = others.iter().filter_map(|other| probe.round_trip(at, *other)).collect();
    let losses: Vec<_> = others.iter().filter_map(|other| probe.loss(at, *other)).collect();
    let ms = |value: Option<f64>| value.map_or("-".to_owned(), |ms| format!("{ms:.1} ms"));
    let percent =
        |value: Option<f64>| value.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share));
    let clock = &probe.hosts[at].clock_ahead_ms;
    let Facts { cores, load, memory_free_bytes, disk_free_bytes, .. } = &report.facts;
    format!(
        "{:>9}  {:>9}  {:>7}  {:>7}  {:>8}  {cores:>5}  {:>5}  {:>8}  {:>8}  {:>9}",
        ms(median(trips.iter().map(|trip| trip.p50_ms))),
        ms(trips.iter().map(|trip| trip.p95_ms).reduce(f64::max)),
        percent(median(losses.iter().map(|(small, _)| *small))),
        percent(median(losses.iter().map(|(_, large)| *large))),
        ms(median(trips.iter().map(|trip| trip.jitter_ms))),
        load.map_or("-".to_owned(), |load| format!("{load:.2}")),
        bytes(*memory_free_bytes),
        bytes(*disk_free_bytes),
        clock.map_or("-".to_owned(), |ahead| format!("{ahead:+.1} ms")),
    )
}

/// The middle one; the upper of two.
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// A number of bytes as people read it.
fn bytes(number: Option<u64>) -> String {
    match number {
        None => "-".to_owned(),
        Some(number) if number < 10 << 30 => format!("{} MiB", number >> 20),
        Some(number) => format!("{} GiB", number >> 30),
    }
}

fn worst_pairs(probe: &Probe) -> String {
    let count = probe.hosts.len();
    let pairs = (0..count).flat_map(|one| (one + 1..count).map(move |other| (one, other)));
    let mut pairs: Vec<_> =
        pairs.filter_map(|(one, other)| Some((probe.round_trip(one, other)?, one, other))).collect();
    pairs.sort_by(|(a, ..), (b, ..)| b.p95_ms.total_cmp(&a.p95_ms));
    if pairs.is_empty() {
        return String::new();
    }
    let mut text = "\nSlowest pairs (p95):\n".to_owned();
    for (trip, one, other) in pairs.iter().take(WORST_PAIRS) {
        let way = |from: usize, to: usize| match probe.loss_one_way(from, to) {
            Some((small, large)) => format!("{:.1} / {:.1} %", 100.0 * small, 100.0 * large),
            None => "unknown".to_owned(),
        };
        let _ = writeln!(
            text,
            "  {} - {}: {:.1} ms (median {:.1}, jitter {:.1}); lost of 64 B / 10 KB there {}, back {}",
            probe.hosts[*one].name,
            probe.hosts[*other].name,
            trip.p95_ms,
            trip.p50_ms,
            trip.jitter_ms,
            way(*one, *other),
            way(*other, *one)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::samples::probe;
    use super::*;

    #[test]
    fn each_host_has_its_line_and_the_dead_one_its_reason() {
        let mut probe = probe(&[&[0.0, 10.0, 30.0], &[10.0, 0.0, 20.0], &[30.0, 20.0, 0.0]]);
        probe.hosts[1].report = None;
        probe.hosts[1].failure = Some("timed out: not done after 40.0 s".to_owned());
        let text = text(&probe);
        assert!(text.starts_with("Probe of 1970-01-12 13:46 UTC, 10 s a pair\n"), "{text}");
        assert!(text.contains("h1    no report\n      - timed out: not done after 40.0 s\n"), "{text}");
        assert!(text.contains(
            "  h0 - h2: 30.0 ms (median 30.0, jitter 0.1); lost of 64 B / 10 KB there 0.0 / 0.0 %"
        ));
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
    }
}
