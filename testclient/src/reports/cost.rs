//! What the servers used for a load, by request.
//!
//! Processor time and memory are the kernel's figures; datagrams, bytes and what was sent again are the servers' own
//! counts, which only Violet tells. What is not told is not zero, and the table says so. Each figure is the median of the
//! repeats.

use super::digest::{Load, cost_us};
use super::words;
use crate::report::Table;
use crate::result::{Cost, Phase};
use crate::statistics::Estimate;

/// Where no server tells a figure.
pub const NOT_TOLD: &str = "not told";

/// Datagrams between servers that were sent again for each request, where the servers tell.
pub fn sent_again_per_request(phase: &Phase) -> Option<f64> {
    per_request(phase, phase.cost?.retransmissions?)
}

fn per_request(phase: &Phase, count: u64) -> Option<f64> {
    (0 < phase.counts.sent).then(|| count as f64 / phase.counts.sent as f64)
}

/// The figures of all loads; `None` where nothing is known of any.
pub fn table(loads: &[Load]) -> Option<Table> {
    let headings = [
        "load",
        "CPU per good answer",
        "memory of all",
        "datagrams per request",
        "bytes per request",
        "sent again per request",
    ];
    let is_known = |load: &&Load| load.phases.iter().any(|phase| phase.cost.is_some());
    loads.iter().any(|load| is_known(&load)).then(|| {
        let mut table = Table::new(&headings, 1);
        loads.iter().filter(is_known).for_each(|load| table.row(row(load)));
        table
    })
}

fn row(load: &Load) -> Vec<String> {
    let median = |figure: &dyn Fn(&Phase) -> Option<f64>| {
        let figures: Option<Vec<f64>> = load.phases.iter().map(|phase| figure(phase)).collect();
        Some(Estimate::of(&figures?)?.median)
    };
    let told =
        |figure: fn(&Cost) -> Option<u64>| median(&|phase| per_request(phase, figure(phase.cost.as_ref()?)?));
    let text = |figure: Option<f64>, words: fn(f64) -> String| figure.map_or(NOT_TOLD.to_owned(), words);
    vec![
        load.name.clone(),
        text(median(&cost_us), |us| words::latency(us / 1e3)),
        text(median(&|phase| Some(phase.cost?.resident_bytes as f64)), words::bytes),
        text(told(|cost| cost.datagrams_sent), |count| format!("{count:.2}")),
        text(told(|cost| cost.bytes_sent), |count| format!("{count:.0}")),
        text(median(&sent_again_per_request), few),
    ]
}

/// A number that is usually far below one; what is not nothing never looks like nothing.
pub fn few(number: f64) -> String {
    match number {
        0.0 => "0".to_owned(),
        number if number < 0.00001 => "<0.00001".to_owned(),
        number if number < 0.001 => format!("{number:.5}"),
        number => format!("{number:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{digest, samples};
    use super::*;

    #[test]
    fn what_servers_do_not_tell_is_not_zero() {
        let mut grid = samples::grid();
        grid.phases.truncate(2);
        let known = table(&digest::loads(&grid)).unwrap().text();
        assert!(known.contains(" 0.00020 |"), "{known}");
        let cost = grid.phases[1].cost.as_mut().unwrap();
        (cost.retransmissions, cost.bytes_sent, cost.datagrams_sent) = (None, None, Some(0));
        let partly = table(&digest::loads(&grid)).unwrap().text();
        let row: Vec<&str> = partly.lines().last().unwrap().split('|').map(str::trim).collect();
        assert_eq!(&row[4..7], ["0.00", "not told", "not told"], "{partly}");
        grid.phases.iter_mut().for_each(|phase| phase.cost = None);
        assert!(table(&digest::loads(&grid)).is_none());
    }
}
