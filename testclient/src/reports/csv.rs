//! The tables of results as CSV, for spreadsheets and scripts: phases, seconds, operations, events.
//!
//! One line a row, fields with commas, quotes or line ends in quotes, units in the headings, plain numbers. The first
//! column names the result, since several may go into one set of files. What is not known is left empty.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::cost;
use super::digest::{self, Kind};
use crate::result::{Arrivals, Counts, Latency, Loop, Phase, RunResult};

const COUNTS: &str = "offered,sent,skipped,answered,good,refused,wrong,timed_out,late,duplicates,foreign,\
undecodable,datagrams,value_bytes";
const PERCENTILES: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 100.0];

/// Writes the four files into a directory, which is made if need be.
///
/// # Errors
/// One sentence that names the file.
pub fn write(directory: &Path, results: &[(String, RunResult)]) -> Result<(), String> {
    let cannot = |path: &Path, error| format!("cannot write {}: {error}", path.display());
    fs::create_dir_all(directory).map_err(|error| cannot(directory, error))?;
    for (name, text) in [
        ("phases.csv", phases(results)),
        ("seconds.csv", seconds(results)),
        ("operations.csv", operations(results)),
        ("events.csv", events(results)),
    ] {
        let path = directory.join(name);
        fs::write(&path, text).map_err(|error| cannot(&path, error))?;
    }
    Ok(())
}

/// Every phase of every result with its name.
fn each(results: &[(String, RunResult)]) -> impl Iterator<Item = (String, &Phase)> {
    results.iter().flat_map(|(name, result)| result.phases.iter().map(move |phase| (field(name), phase)))
}

fn phases(results: &[(String, RunResult)]) -> String {
    let mut text = format!(
        "result,phase,group,at_s,window_s,format,loop,rate_per_s,arrivals,clients,servers,{COUNTS},answered_per_s,\
         good_per_s,{},{},lateness_p99_ms,generator_cores,server_cpu_us_per_good,resident_bytes,sent_again_per_request,caveats\n",
        latency_headings("corrected"),
        latency_headings("raw"),
    );
    for (result, phase) in results.iter().flat_map(|(name, result)| {
        let loads = digest::loads(result);
        let caveats = move |phase: &Phase| {
            let load = loads.iter().find(|load| load.phases.iter().any(|one| std::ptr::eq(*one, phase)));
            load.map_or(String::new(), |load| load.caveats().join("; "))
        };
        result.phases.iter().map(|phase| ((field(name), caveats(phase)), phase)).collect::<Vec<_>>()
    }) {
        let (name, caveats) = result;
        let corrected = digest::latency(phase, None, Kind::Corrected);
        let raw = digest::latency(phase, None, Kind::Raw);
        let rate = |count: u64| count as f64 / phase.window_seconds;
        let resident = phase.cost.map(|cost| cost.resident_bytes);
        let _ = writeln!(
            text,
            "{name},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            field(&phase.name),
            field(&phase.group),
            phase.at_seconds,
            phase.window_seconds,
            field(&phase.format),
            timing(&phase.timing),
            phase.servers,
            counts(&phase.counts),
            rate(phase.counts.answered),
            rate(phase.counts.good),
            latencies(&corrected),
            latencies(&raw),
            phase.generator.lateness_p99_ms,
            known(phase.generator.processor_share),
            known(digest::cost_us(phase)),
            known(resident),
            known(cost::sent_again_per_request(phase)),
            field(&caveats),
        );
    }
    text
}

fn seconds(results: &[(String, RunResult)]) -> String {
    let mut text =
        "result,phase,group,run_s,phase_s,offered,answered,good,timed_out,wrong,p50_ms,p99_ms,max_ms\n"
            .to_owned();
    for (name, phase) in each(results) {
        for second in &phase.seconds {
            let _ = writeln!(
                text,
                "{name},{},{},{},{},{},{},{},{},{},{},{},{}",
                field(&phase.name),
                field(&phase.group),
                phase.at_seconds + second.at as f64,
                second.at,
                second.offered,
                second.answered,
                second.good,
                second.timed_out,
                second.wrong,
                second.p50_ms,
                second.p99_ms,
                second.max_ms
            );
        }
    }
    text
}

fn operations(results: &[(String, RunResult)]) -> String {
    let mut text = format!(
        "result,phase,group,operation,{COUNTS},codes,{},{},{}\n",
        latency_headings("corrected"),
        latency_headings("raw"),
        latency_headings("last_try")
    );
    for (name, phase) in each(results) {
        for (operation, seen) in &phase.operations {
            let codes: Vec<String> =
                seen.codes.iter().map(|(code, count)| format!("{code}:{count}")).collect();
            let _ = writeln!(
                text,
                "{name},{},{},{},{},{},{},{},{}",
                field(&phase.name),
                field(&phase.group),
                field(operation),
                counts(&seen.counts),
                codes.join(" "),
                latencies(&seen.corrected),
                latencies(&seen.raw),
                latencies(&seen.last_try)
            );
        }
    }
    text
}

fn events(results: &[(String, RunResult)]) -> String {
    let mut text = "result,at_s,for_s,kind,servers,outcome\n".to_owned();
    for (name, result) in results {
        for event in &result.events {
            let _ = writeln!(
                text,
                "{},{},{},{},{},{}",
                field(name),
                event.at_seconds,
                event.for_seconds,
                field(&event.kind),
                field(&event.servers.join(" ")),
                field(&event.outcome)
            );
        }
    }
    text
}

/// Loop, rate, arrivals and clients.
fn timing(timing: &Loop) -> String {
    match timing {
        Loop::Open { rate, arrivals: Arrivals::Constant } => format!("open,{rate},constant,"),
        Loop::Open { rate, arrivals: Arrivals::Poisson } => format!("open,{rate},poisson,"),
        Loop::Closed { clients } => format!("closed,,,{clients}"),
    }
}

fn counts(counts: &Counts) -> String {
    let all = [
        counts.offered,
        counts.sent,
        counts.skipped,
        counts.answered,
        counts.good,
        counts.refused,
        counts.wrong,
        counts.timed_out,
        counts.late,
        counts.duplicates,
        counts.foreign,
        counts.undecodable,
        counts.datagrams,
        counts.value_bytes,
    ];
    all.map(|count| count.to_string()).join(",")
}

fn latency_headings(kind: &str) -> String {
    ["p50", "p90", "p99", "p99.9", "max"].map(|name| format!("{kind}_{name}_ms")).join(",")
}

fn latencies(latency: &Latency) -> String {
    let of =
        |percentile| if latency.0.is_empty() { String::new() } else { latency.ms(percentile).to_string() };
    PERCENTILES.map(of).join(",")
}

fn known(figure: Option<impl ToString>) -> String {
    figure.map_or(String::new(), |figure| figure.to_string())
}

/// A field, in quotes if it must be. A spreadsheet takes a leading sign for a formula; such text gets a quote before it.
fn field(text: &str) -> String {
    let text = match text.chars().next() {
        Some('=' | '+' | '-' | '@' | '\t' | '\r') => format!("'{text}"),
        _ => text.to_owned(),
    };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn every_row_has_as_many_fields_as_its_heading() {
        let results = [("a".to_owned(), samples::grid()), ("b".to_owned(), samples::scan())];
        for text in [phases(&results), seconds(&results), operations(&results), events(&results)] {
            // A comma inside of quotes parts nothing.
            let fields = |line: &str| {
                let outside = line.split('"').step_by(2);
                1 + outside.map(|part| part.matches(',').count()).sum::<usize>()
            };
            let heading = fields(text.lines().next().unwrap());
            for line in text.lines() {
                assert_eq!(fields(line), heading, "{line}");
            }
        }
        assert_eq!(phases(&results).lines().count(), 1 + 15 + 8);
        assert_eq!(seconds(&results).lines().count(), 1 + 15 * 5 + 8 * 10);
        assert_eq!(operations(&results).lines().count(), 1 + 2 * (15 + 8));
    }

    #[test]
    fn text_that_would_break_a_row_is_quoted() {
        assert_eq!(field("plain"), "plain");
        assert_eq!(field("a,b"), "\"a,b\"");
        assert_eq!(field("say \"no\"\n"), "\"say \"\"no\"\"\n\"");
        assert_eq!(field("=1+1"), "'=1+1");
        let text = events(&[("a".to_owned(), samples::faults())]);
        assert!(text.contains("suspend,127.0.0.1:4412,\"no key lost, 3 stale"), "{text}");
    }
}
