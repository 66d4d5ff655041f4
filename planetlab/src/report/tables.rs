//! The tables of a report, ready for any way of writing them down: text with units, a tone where a value stands out, a
//! share of the scale where a table is a heat map.
//!
//! What is added up and what is not: requests of one plan's setting (a grid cell, a rate) are added over hosts and
//! repeats, never over different settings, since a percentile of two loads is one of neither.

use std::collections::{BTreeMap, BTreeSet};

use super::overview::Sum;
use super::results::{Counts, Latency, Measured};
use super::words;
use crate::probe::mesh;
use crate::probe::record::Probe;
use crate::probe::table::median;
use crate::when;

/// Settings that have a table by region and hour; beyond it only the first ones, by name.
const SETTINGS_MAX: usize = 24;
/// A node stands out when its p99 is this many times the middle one's …
const SLOW_TIMES: f64 = 1.5;
/// … and that much above it: on one site half a millisecond may be twice as long.
const SLOW_MS: f64 = 5.0;
/// Or when this much more of its requests fail than at the middle one.
const FAILED_MORE: f64 = 0.01;

/// A table with its heading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// How to read it.
    pub about: String,
    /// Heads of columns; the first one names the rows.
    pub head: Vec<String>,
    /// Rows; the first cell is the row's name.
    pub rows: Vec<Vec<Cell>>,
    /// What was seen, in a sentence; empty if nothing stands out.
    pub finding: String,
}

/// One cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// What it says.
    pub text: String,
    /// More of it, for whoever points at it.
    pub more: String,
    /// Place on the scale of a heat map, 0 to 1.
    pub heat: Option<f64>,
    /// Whether it stands out for the worse.
    pub is_bad: bool,
}

impl Cell {
    /// Plain text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    fn bad_if(self, is_bad: bool) -> Self {
        Self { is_bad, ..self }
    }
}

/// The heat map of round trips in the latest probe.
pub fn round_trips(probe: &Probe) -> Table {
    let order = order(probe);
    let trips = |one: usize, other: usize| probe.round_trip(one, other);
    let pairs = order.iter().flat_map(|one| order.iter().map(move |other| (*one, *other)));
    let worst =
        pairs.filter_map(|(one, other)| trips(one, other)).map(|trip| trip.p50_ms).fold(0.0, f64::max);
    let cell = |one: usize, other: usize| {
        let names = format!("{} – {}", probe.hosts[one].name, probe.hosts[other].name);
        match trips(one, other) {
            _ if one == other => Cell::text("·"),
            None => Cell {
                text: "none".to_owned(),
                more: format!("{names}: no answer"),
                is_bad: true,
                heat: None,
            },
            Some(trip) => Cell {
                text: if trip.p50_ms < 9.95 {
                    format!("{:.1}", trip.p50_ms)
                } else {
                    format!("{:.0}", trip.p50_ms)
                },
                more: format!(
                    "{names}: median {}, p95 {}, jitter {}{}",
                    words::ms(Some(trip.p50_ms)),
                    words::ms(Some(trip.p95_ms)),
                    words::ms(Some(trip.jitter_ms)),
                    loss_words(probe, one, other)
                ),
                heat: Some(trip.p50_ms / worst.max(f64::MIN_POSITIVE)),
                is_bad: false,
            },
        }
    };
    let rows = order.iter().map(|one| {
        let name = Cell { more: place(probe, *one), ..Cell::text(&probe.hosts[*one].name) };
        std::iter::once(name).chain(order.iter().map(|other| cell(*one, *other))).collect()
    });
    Table {
        title: "Round trips between hosts, in milliseconds".to_owned(),
        about: format!(
            "Median of 64-byte packets in the probe of {}, the worse account of the two ends; hosts by region and site.",
            when::for_people(probe.started_unix_seconds)
        ),
        head: std::iter::once("ms".to_owned())
            .chain(order.iter().map(|at| probe.hosts[*at].name.clone()))
            .collect(),
        rows: rows.collect(),
        finding: silent(probe),
    }
}

fn loss_words(probe: &Probe, one: usize, other: usize) -> String {
    match probe.loss(one, other) {
        None => String::new(),
        Some((small, large)) => {
            format!("; lost {} of 64 B, {} of 10 KB", words::percent(small), words::percent(large))
        }
    }
}

fn place(probe: &Probe, at: usize) -> String {
    let host = &probe.hosts[at];
    if host.region.is_empty() { host.site.clone() } else { format!("{}, {}", host.site, host.region) }
}

/// By region, then site, then name.
fn order(probe: &Probe) -> Vec<usize> {
    let mut order: Vec<usize> = (0..probe.hosts.len()).collect();
    order.sort_by_key(|at| {
        let host = &probe.hosts[*at];
        (&host.region, &host.site, &host.name)
    });
    order
}

fn silent(probe: &Probe) -> String {
    let silent: Vec<String> = (0..probe.hosts.len())
        .filter(|at| probe.hosts[*at].report.is_none())
        .map(|at| format!("{} ({})", probe.hosts[at].name, mesh::complaints(probe, at).join("; ")))
        .collect();
    if silent.is_empty() { String::new() } else { format!("Without a report: {}.", silent.join(", ")) }
}

/// Sums by region and hour of the day.
type ByHour<'a> = BTreeMap<(&'a str, u32), Sum>;

/// For each setting a table of rate and p99 by region and hour of the day.
pub fn by_hour(all: &[Measured]) -> Vec<Table> {
    let mut settings: BTreeMap<(&str, &str), ByHour> = BTreeMap::new();
    for measured in all {
        for phase in &measured.phases {
            let cells = settings.entry((&measured.plan, &phase.group)).or_default();
            cells.entry((measured.region(), measured.hour())).or_default().add(phase);
        }
    }
    let zone = match all.iter().all(|measured| measured.from.local_minutes.is_some()) {
        true => "Hours are those of the day at the host that asked.",
        false => "Hours are UTC for hosts whose time zone the inventory does not say.",
    };
    settings
        .into_iter()
        .take(SETTINGS_MAX)
        .map(|((plan, group), cells)| hours(plan, group, &cells, zone))
        .collect()
}

fn hours(plan: &str, group: &str, cells: &ByHour, zone: &str) -> Table {
    let hours: BTreeSet<u32> = cells.keys().map(|(_, hour)| *hour).collect();
    let regions: BTreeSet<&str> = cells.keys().map(|(region, _)| *region).collect();
    let p99 = |sum: &Sum| sum.latency.ms(99.0).unwrap_or(0.0);
    let worst = cells.values().map(p99).fold(0.0, f64::max);
    let cell = |region: &str, hour: u32| match cells.get(&(region, hour)) {
        None => Cell::text("–"),
        Some(sum) => {
            let caveat = sum.caveat();
            let mark = if caveat.is_empty() { "" } else { " *" };
            Cell {
                text: format!(
                    "{} · p99 {}{mark}",
                    words::rate(sum.good_per_second()),
                    words::ms(sum.latency.ms(99.0))
                ),
                more: format!(
                    "{region} at {hour:02}:00: {} requests, {} failed{}{caveat}",
                    words::grouped(sum.counts.sent),
                    words::percent(sum.counts.failed()),
                    if caveat.is_empty() { "" } else { "; " }
                ),
                heat: Some(p99(sum) / worst.max(f64::MIN_POSITIVE)),
                is_bad: false,
            }
        }
    };
    let rows = regions.iter().map(|region| {
        let cells = hours.iter().map(|hour| cell(region, *hour));
        std::iter::once(Cell::text(*region)).chain(cells).collect()
    });
    let starred = cells.iter().filter(|(_, sum)| !sum.caveat().is_empty());
    let starred: Vec<String> =
        starred.map(|((region, hour), sum)| format!("{region} at {hour:02}:00: {}", sum.caveat())).collect();
    Table {
        title: format!("{plan}, {group}: by region and hour"),
        about: format!("Good answers a second of one host that asks, and p99 of all its requests. {zone}"),
        head: std::iter::once("from".to_owned())
            .chain(hours.iter().map(|hour| format!("{hour:02}:00")))
            .collect(),
        rows: rows.collect(),
        finding: if starred.is_empty() { String::new() } else { format!("* {}.", starred.join("; ")) },
    }
}

/// What all results say of one node.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Its host's name.
    pub name: String,
    /// How requests ended that asked it first.
    pub counts: Counts,
    /// Their latency.
    pub latency: Latency,
    /// Place in the probe, if it was probed.
    pub probed: Option<usize>,
}

/// All nodes that were asked or probed, by name.
pub fn nodes(probe: Option<&Probe>, all: &[Measured]) -> Vec<Node> {
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    for measured in all {
        for share in measured.phases.iter().flat_map(|phase| &phase.by_server) {
            let known = measured.servers.iter().find(|server| server.address.to_string() == share.server);
            let name = known.map_or(&share.server, |server| &server.name);
            let node = nodes.entry(name.clone()).or_default();
            node.counts.add(&share.counts);
            node.latency.add(&share.latency);
        }
    }
    for (at, host) in probe.iter().flat_map(|probe| probe.hosts.iter().enumerate()) {
        nodes.entry(host.name.clone()).or_default().probed = Some(at);
    }
    nodes.into_iter().map(|(name, node)| Node { name, ..node }).collect()
}

/// The nodes that stand out, the worst first, each with the reason.
pub fn outliers(nodes: &[Node]) -> Vec<(usize, String)> {
    let asked: Vec<usize> = (0..nodes.len()).filter(|at| 0 < nodes[*at].counts.sent).collect();
    if asked.len() < 3 {
        // Of two nodes nobody can say which one is the odd one.
        return Vec::new();
    }
    let p99 = |at: usize| nodes[at].latency.ms(99.0).unwrap_or(0.0);
    let failed = |at: usize| nodes[at].counts.failed();
    // Without the node itself: in a small cluster it would shift the middle towards itself.
    let middle = |of: &dyn Fn(usize) -> f64, but: usize| {
        median(asked.iter().filter(|at| **at != but).map(|at| of(*at))).unwrap_or(0.0)
    };
    let mut found: Vec<(f64, usize, String)> = Vec::new();
    for at in &asked {
        let (usual, usual_failed) = (middle(&p99, *at), middle(&failed, *at));
        let mut reasons = Vec::new();
        if SLOW_TIMES * usual <= p99(*at) && usual + SLOW_MS <= p99(*at) {
            reasons.push(format!("p99 {} against {}", words::ms(Some(p99(*at))), words::ms(Some(usual))));
        }
        if usual_failed + FAILED_MORE <= failed(*at) {
            reasons.push(format!(
                "{} failed against {}",
                words::percent(failed(*at)),
                words::percent(usual_failed)
            ));
        }
        if !reasons.is_empty() {
            let weight = p99(*at) / usual.max(0.001) + 100.0 * (failed(*at) - usual_failed);
            found.push((weight, *at, reasons.join(", ")));
        }
    }
    found.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
    found.into_iter().map(|(_, at, reason)| (at, reason)).collect()
}

/// One row for each node.
pub fn per_node(probe: Option<&Probe>, nodes: &[Node]) -> Table {
    let outliers = outliers(nodes);
    let row = |(at, node): (usize, &Node)| {
        let is_bad = outliers.iter().any(|(outlier, _)| *outlier == at);
        let mut row = vec![Cell::text(&node.name).bad_if(is_bad)];
        row.extend(asked_cells(node, is_bad));
        row.extend(probed_cells(probe, node));
        row
    };
    let head = [
        "node",
        "asked",
        "failed",
        "p50",
        "p99",
        "RTT",
        "worst RTT",
        "loss 64 B",
        "loss 10 KB",
        "clock",
        "load",
    ];
    let told = outliers.iter().map(|(at, reason)| format!("{} ({reason})", nodes[*at].name));
    let told: Vec<String> = told.collect();
    Table {
        title: "Nodes".to_owned(),
        about: "Requests by the node that was asked first, over all settings and hosts; round trips and loss are medians \
                over the other hosts in the latest probe, clocks against the median clock, load for each core."
            .to_owned(),
        head: head.map(str::to_owned).to_vec(),
        rows: nodes.iter().enumerate().map(row).collect(),
        finding: if told.is_empty() { String::new() } else { format!("Outlier: {}.", told.join("; ")) },
    }
}

fn asked_cells(node: &Node, is_bad: bool) -> Vec<Cell> {
    if node.counts.sent == 0 {
        return vec![Cell::text("–"); 4];
    }
    vec![
        Cell::text(words::grouped(node.counts.sent)),
        Cell::text(words::percent(node.counts.failed())).bad_if(is_bad),
        Cell::text(words::ms(node.latency.ms(50.0))),
        Cell::text(words::ms(node.latency.ms(99.0))).bad_if(is_bad),
    ]
}

fn probed_cells(probe: Option<&Probe>, node: &Node) -> Vec<Cell> {
    let known = probe.and_then(|probe| Some((probe, node.probed?)));
    let Some((probe, at)) = known else { return vec![Cell::text("–"); 6] };
    let host = &probe.hosts[at];
    let Some(report) = &host.report else {
        let reason = host.failure.clone().unwrap_or_default();
        let silent = Cell { more: reason, is_bad: true, ..Cell::text("no report") };
        return std::iter::once(silent).chain(vec![Cell::text("–"); 5]).collect();
    };
    let others: Vec<usize> =
        (0..probe.hosts.len()).filter(|other| *other != at && probe.hosts[*other].report.is_some()).collect();
    let trips: Vec<_> = others.iter().filter_map(|other| probe.round_trip(at, *other)).collect();
    let losses: Vec<_> = others.iter().filter_map(|other| probe.loss(at, *other)).collect();
    let share = |value: Option<f64>| value.map_or("–".to_owned(), words::percent);
    let load = report.facts.load.map(|load| load / report.facts.cores.max(1) as f64);
    vec![
        Cell::text(words::ms(median(trips.iter().map(|trip| trip.p50_ms)))),
        Cell::text(words::ms(trips.iter().map(|trip| trip.p95_ms).reduce(f64::max))),
        Cell::text(share(median(losses.iter().map(|(small, _)| *small)))),
        Cell::text(share(median(losses.iter().map(|(_, large)| *large)))),
        Cell::text(host.clock_ahead_ms.map_or("–".to_owned(), |ahead| format!("{ahead:+.1} ms"))),
        Cell::text(load.map_or("–".to_owned(), |load| format!("{load:.2}"))),
    ]
}

/// What the cluster would have looked like without each node.
pub fn without(probe: Option<&Probe>, nodes: &[Node]) -> Table {
    let all = rest(probe, nodes, None);
    let mut rows = vec![what_if_row("all nodes".to_owned(), &all, &all)];
    let parts: Vec<WhatIf> = (0..nodes.len()).map(|at| rest(probe, nodes, Some(at))).collect();
    rows.extend(
        nodes
            .iter()
            .zip(&parts)
            .map(|(node, part)| what_if_row(format!("without {}", node.name), part, &all)),
    );
    let best = (0..nodes.len()).min_by(|a, b| parts[*a].key().total_cmp(&parts[*b].key()));
    let gain = best.map(|at| (at, all.key() - parts[at].key())).filter(|(_, gain)| SLOW_MS <= *gain);
    Table {
        title: "Without one node".to_owned(),
        about: "An estimate: requests that asked the node first are left out, and its row and column of the round trips. \
                Requests that other nodes passed on to it still count, so the true gain may be larger."
            .to_owned(),
        head: ["", "p99", "failed", "worst RTT", "mean RTT"].map(str::to_owned).to_vec(),
        rows,
        finding: gain.map_or(String::new(), |(at, _)| {
            let part = &parts[at];
            let p99 = format!("p99 {} instead of {}", words::ms(part.p99), words::ms(all.p99));
            let worst = format!("worst round trip {} instead of {}", words::ms(part.worst_ms), words::ms(all.worst_ms));
            let told = match (part.p99.is_some(), part.worst_ms.is_some()) {
                (true, true) => format!("{p99}, {worst}"),
                (true, false) => p99,
                (false, _) => worst,
            };
            format!("Without {}: {told}.", nodes[at].name)
        }),
    }
}

#[derive(Clone, Debug, Default)]
struct WhatIf {
    p99: Option<f64>,
    failed: Option<f64>,
    worst_ms: Option<f64>,
    mean_ms: Option<f64>,
}

impl WhatIf {
    /// What is compared: the tail, and the worst way.
    fn key(&self) -> f64 {
        self.p99.unwrap_or(0.0) + self.worst_ms.unwrap_or(0.0)
    }
}

fn rest(probe: Option<&Probe>, nodes: &[Node], but: Option<usize>) -> WhatIf {
    let (mut counts, mut latency) = (Counts::default(), Latency::default());
    let others: Vec<&Node> =
        nodes.iter().enumerate().filter(|(at, _)| Some(*at) != but).map(|(_, node)| node).collect();
    for node in &others {
        counts.add(&node.counts);
        latency.add(&node.latency);
    }
    let places: Vec<usize> = others.iter().filter_map(|node| node.probed).collect();
    let pairs = places.iter().flat_map(|one| places.iter().map(move |other| (*one, *other)));
    let pairs = pairs.filter(|(one, other)| one < other);
    let trips: Vec<_> = probe
        .map(|probe| pairs.filter_map(|(one, other)| probe.round_trip(one, other)).collect())
        .unwrap_or_default();
    WhatIf {
        p99: latency.ms(99.0),
        failed: (0 < counts.sent).then(|| counts.failed()),
        worst_ms: trips.iter().map(|trip| trip.p95_ms).reduce(f64::max),
        mean_ms: (!trips.is_empty())
            .then(|| trips.iter().map(|trip| trip.p50_ms).sum::<f64>() / trips.len() as f64),
    }
}

fn what_if_row(name: String, part: &WhatIf, all: &WhatIf) -> Vec<Cell> {
    let change = |ms: Option<f64>, before: Option<f64>| {
        let text = words::ms(ms);
        let ratio = ms.zip(before).map(|(ms, before)| ms / before.max(f64::MIN_POSITIVE) - 1.0);
        match ratio.filter(|ratio| 0.005 <= ratio.abs()) {
            Some(ratio) => Cell::text(format!("{text} ({:+.0} %)", 100.0 * ratio)),
            None => Cell::text(text),
        }
    };
    vec![
        Cell::text(name),
        change(part.p99, all.p99),
        Cell::text(part.failed.map_or("–".to_owned(), words::percent)),
        change(part.worst_ms, all.worst_ms),
        change(part.mean_ms, all.mean_ms),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::sample;
    use super::super::results::{Counts, Latency, Share};
    use super::*;
    use crate::probe::samples::probe;

    /// Three nodes of which the last is slow and loses.
    fn measured() -> Measured {
        let mut measured = sample("eu", 1, 12.0, 0);
        let mut latency = Latency::default();
        latency.record_ms(300.0, 90);
        let counts = Counts { offered: 100, sent: 100, good: 90, timed_out: 10, ..Counts::default() };
        measured.phases[0].by_server.push(Share { server: "10.0.0.3:4410".to_owned(), counts, latency });
        measured
    }

    #[test]
    fn the_outlier_is_named_and_the_cluster_is_better_without_it() {
        let nodes = nodes(None, &[measured()]);
        let table = per_node(None, &nodes);
        // The third is in no list of servers, so its address is its name; it sorts first.
        assert_eq!(
            table.finding,
            "Outlier: 10.0.0.3:4410 (p99 300 ms against 12.0 ms, 10 % failed against 0 %)."
        );
        assert!(table.rows[0][0].is_bad && !table.rows[1][0].is_bad);
        let table = without(None, &nodes);
        assert_eq!(table.finding, "Without 10.0.0.3:4410: p99 12.0 ms instead of 300 ms.");
        let texts: Vec<&str> = table.rows[1].iter().map(|cell| cell.text.as_str()).collect();
        assert_eq!(texts, ["without 10.0.0.3:4410", "12.0 ms (-96 %)", "0 %", "–", "–"]);
    }

    #[test]
    fn healthy_nodes_and_pairs_of_nodes_have_no_outlier() {
        let mut healthy = measured();
        healthy.phases[0].by_server[2] =
            Share { server: "10.0.0.3:4410".to_owned(), ..healthy.phases[0].by_server[1].clone() };
        assert!(outliers(&nodes(None, &[healthy])).is_empty());
        assert!(outliers(&nodes(None, &[sample("eu", 1, 500.0, 50)])).is_empty());
    }

    #[test]
    fn round_trips_are_a_map_in_the_order_of_regions() {
        let mut probe = probe(&[&[0.0, 10.0, 80.0], &[10.0, 0.0, 5.25], &[80.0, 5.25, 0.0]]);
        let table = round_trips(&probe);
        assert_eq!(table.head, ["ms", "h0", "h2", "h1"]);
        let texts: Vec<&str> = table.rows[1].iter().map(|cell| cell.text.as_str()).collect();
        assert_eq!(texts, ["h2", "80", "·", "5.2"]);
        assert_eq!(table.rows[0][2].heat, Some(1.0));
        assert_eq!(
            table.rows[0][2].more,
            "h0 – h2: median 80.0 ms, p95 80.0 ms, jitter 0.1 ms; lost 0 % of 64 B, 0 % of 10 KB"
        );
        probe.hosts[1].report = None;
        probe.hosts[1].failure = Some("dead host".to_owned());
        assert_eq!(round_trips(&probe).finding, "Without a report: h1 (dead host).");
    }

    #[test]
    fn what_the_matrix_says_without_a_node() {
        let probe = probe(&[&[0.0, 10.0, 80.0], &[10.0, 0.0, 90.0], &[80.0, 90.0, 0.0]]);
        let nodes = nodes(Some(&probe), &[]);
        let table = without(Some(&probe), &nodes);
        assert_eq!(table.finding, "Without h2: worst round trip 10.0 ms instead of 90.0 ms.");
        assert_eq!(table.rows[3][4].text, "10.0 ms (-83 %)");
    }

    #[test]
    fn hours_and_regions_span_the_table_and_settings_do_not_mix() {
        let mut other = sample("na", 9, 50.0, 50);
        other.phases[0].group = "S1".to_owned();
        let tables = by_hour(&[sample("eu", 1, 20.0, 0), sample("na", 13, 30.0, 0), other]);
        assert_eq!(tables.len(), 2);
        assert_eq!(tables[0].title, "grid, R16: by region and hour");
        assert_eq!(tables[0].head, ["from", "02:00", "14:00"]);
        let texts: Vec<Vec<&str>> =
            tables[0].rows.iter().map(|row| row.iter().map(|cell| cell.text.as_str()).collect()).collect();
        assert_eq!(texts, [["eu", "20.0/s · p99 20.0 ms", "–"], ["na", "–", "20.0/s · p99 30.0 ms"]]);
        assert_eq!(tables[1].rows[0][1].text, "15.0/s · p99 50.0 ms *");
        assert_eq!(tables[1].finding, "* na at 10:00: only 75 % of what was offered was answered well.");
    }
}
