//! `report`: all probes and runs of a directory on one page.
//!
//! [`results`] reads what the test client wrote, [`tables`] makes tables of results and probes, [`html`] and
//! [`markdown`] write them down. The page is one file without script and without a reference to anything outside it.

mod command;
mod html;
mod markdown;
pub mod overview;
pub mod results;
mod tables;
mod words;

pub use command::{command, run};

use self::results::Measured;
use self::tables::Table;
use crate::campaign::record::{Ending, Run};
use crate::probe::record::Probe;
use crate::when;

/// A report, ready to be written down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Its name.
    pub title: String,
    /// What it is made of.
    pub about: String,
    /// What stands out, in sentences.
    pub findings: Vec<String>,
    /// The tables.
    pub tables: Vec<Table>,
    /// What could not be read, runs that failed, checks that did not hold.
    pub faults: Vec<String>,
}

impl Report {
    /// Of these probes and runs, the oldest first, and the results that could be read of them.
    pub fn new(probes: &[Probe], runs: &[Run], results: &[Measured], faults: Vec<String>) -> Self {
        let latest = probes.last();
        let nodes = tables::nodes(latest, results);
        let mut all: Vec<Table> = latest.map(tables::round_trips).into_iter().collect();
        if !nodes.is_empty() {
            all.extend([tables::per_node(latest, &nodes), tables::without(latest, &nodes)]);
        }
        all.extend(tables::by_hour(results));
        let findings =
            all.iter().filter(|table| !table.finding.is_empty() && !table.finding.starts_with('*'));
        Self {
            title: "Violet on several sites".to_owned(),
            about: about(probes, runs, results),
            findings: findings.map(|table| table.finding.clone()).collect(),
            faults: faults.into_iter().chain(broken(runs)).chain(unheld(results)).collect(),
            tables: all,
        }
    }
}

fn about(probes: &[Probe], runs: &[Run], results: &[Measured]) -> String {
    let probed = probes.iter().map(|probe| probe.started_unix_seconds);
    let moments = probed.chain(runs.iter().map(|run| run.started_unix_seconds));
    let (first, last) =
        moments.fold((u64::MAX, 0), |(first, last), moment| (first.min(moment), last.max(moment)));
    let stretch = match first <= last {
        true => format!(", {} to {}", when::for_people(first), when::for_people(last)),
        false => String::new(),
    };
    format!("{} probes, {} runs with {} results{stretch}.", probes.len(), runs.len(), results.len())
}

fn broken(runs: &[Run]) -> Vec<String> {
    let hosts = runs.iter().flat_map(|run| run.from.iter().map(move |from| (run, from)));
    let told = hosts.filter_map(|(run, from)| {
        let how = match &from.ending {
            Ending::Ended(0) => return None,
            Ending::Ended(status) => format!("the test client ended with status {status}"),
            Ending::Open => "its end is not known; 'violet-testbed fetch' asks".to_owned(),
            Ending::Failed(reason) => reason.clone(),
        };
        Some(format!("{} from {}: {how}", run.id, from.name))
    });
    told.collect()
}

fn unheld(results: &[Measured]) -> Vec<String> {
    let told = results.iter().flat_map(|result| {
        let checks = result.failed_checks.iter().map(|check| format!("did not hold: {check}"));
        let incomplete = result.incomplete.iter().map(|reason| format!("incomplete: {reason}"));
        checks.chain(incomplete).map(|what| format!("{} from {}: {what}", result.run, result.from.name))
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::results::tests::sample;
    use super::*;
    use crate::probe::samples::probe;

    #[test]
    fn a_report_holds_the_map_the_nodes_the_hours_and_what_failed() {
        let mut result = sample("eu", 1, 20.0, 0);
        result.failed_checks = vec!["p99 < 1 ms: 20 ms".to_owned()];
        let run = Run {
            layout: 1,
            id: result.run.clone(),
            plan: "grid".to_owned(),
            started_unix_seconds: 1_000_300,
            servers: result.servers.clone(),
            from: vec![crate::campaign::record::From {
                ending: Ending::Failed("dead host".to_owned()),
                ..result.from.clone()
            }],
        };
        let probe = probe(&[&[0.0, 10.0, 90.0], &[10.0, 0.0, 90.0], &[90.0, 90.0, 0.0]]);
        let report = Report::new(&[probe], &[run], &[result], vec!["x is no result".to_owned()]);
        assert_eq!(
            report.about,
            "1 probes, 1 runs with 1 results, 1970-01-12 13:46 UTC to 1970-01-12 13:51 UTC."
        );
        let titles: Vec<&str> = report.tables.iter().map(|table| table.title.as_str()).collect();
        let expected = [
            "Round trips between hosts, in milliseconds",
            "Nodes",
            "Without one node",
            "grid, R16: by region and hour",
        ];
        assert_eq!(titles, expected);
        assert_eq!(
            report.findings,
            ["Without h2: p99 20.0 ms instead of 20.0 ms, worst round trip 10.0 ms instead of 90.0 ms."]
        );
        let faults = [
            "x is no result",
            "run-1 from fra: dead host",
            "run-1 from fra: did not hold: p99 < 1 ms: 20 ms",
        ];
        assert_eq!(report.faults, faults);
        assert_eq!(Report::new(&[], &[], &[], Vec::new()).about, "0 probes, 0 runs with 0 results.");
    }
}
