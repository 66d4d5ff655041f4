//! The result of a run as Markdown, for a person, and as JSON, for whatever comes later.
//!
//! Every figure is a median over the rounds, with its interval where a claim could rest on it. The JSON
//! holds every sample, so that anything here can be computed again. Deliberately not here: judging.

use std::fmt::Write;

use serde::Serialize;

use super::judge::{self, Judged, Verdict, Wanted};
use super::measure::{OTHERS_CORES_MAX, Sample};
use super::plan::{Cell, Group, KEYS, SOCKETS, Shape};
use super::probe::{LargePages, Machine};
use super::processors::{Pinning, Processors};
use super::rounds::{Run, ServerRecord};
use crate::report::{Preamble, Table};
use crate::sockets::Packing;
use crate::statistics::Estimate;

/// The share of value memory on large pages that must be reached, and that is hoped for.
const LARGE_PAGES: (f64, f64) = (0.8, 1.0);
/// What the issue also asks for and other commands tell.
const ELSEWHERE: &str = "Not measured here: fifteen nodes with three replicas (`make run`, `make grid`), \
                         instructions per request (callgrind), look-ups of preference lists.";

/// What is said of each cell.
const COLUMNS: [&str; 13] = [
    "server",
    "sent/s",
    "answered/s",
    "interval",
    "CPU us",
    "p50 us",
    "p99 us",
    "p99.9 us",
    "lost",
    "dropped",
    "wrong",
    "cores",
    "generator",
];

/// What is said of each goal.
const GOAL_COLUMNS: [&str; 9] =
    ["what", "ratio", "interval", "rounds", "at least", "verdict", "moonshot", "verdict", "notes"];

/// Everything that goes into the file.
#[derive(Debug, Serialize)]
pub struct Record<'a> {
    preamble: Preamble,
    machine: Machine,
    processors: &'a Processors,
    rounds: usize,
    warm_up_ms: u128,
    sample_ms: u128,
    keys: u32,
    sockets: usize,
    took_seconds: f64,
    skipped: &'a [String],
    servers: &'a [ServerRecord],
    cells: Vec<CellRecord>,
    goals: &'a [Judged],
    large_pages: Option<LargePages>,
    samples: &'a [Sample],
}

/// A cell in the file.
#[derive(Debug, Serialize)]
struct CellRecord {
    id: String,
    group: Group,
    server: String,
    value_bytes: usize,
    get_percent: u32,
    load: Shape,
    requests_packed: bool,
    pinning: Pinning,
}

impl<'a> Record<'a> {
    /// Puts a run's record together.
    pub fn new(run: &'a Run, machine: Machine, goals: &'a [Judged]) -> Self {
        let cell = |cell: &Cell| CellRecord {
            id: cell.id(),
            group: cell.group,
            server: cell.target.name(),
            value_bytes: cell.value_bytes,
            get_percent: cell.get_percent,
            load: cell.shape,
            requests_packed: cell.packing == Packing::Segments,
            pinning: cell.pinning,
        };
        Self {
            preamble: Preamble::new(run.seed, &[]),
            machine,
            processors: &run.processors,
            rounds: run.rounds,
            warm_up_ms: run.times.warm_up.as_millis(),
            sample_ms: run.times.measured.as_millis(),
            keys: KEYS,
            sockets: SOCKETS,
            took_seconds: run.took.as_secs_f64(),
            skipped: &run.skipped,
            servers: &run.commands,
            cells: run.cells.iter().map(cell).collect(),
            goals,
            large_pages: run.large_pages,
            samples: &run.samples,
        }
    }
}

/// The whole page.
pub fn markdown(run: &Run, machine: &Machine, goals: &[Judged]) -> String {
    let mut page = String::from("# Violet beside an echo server, memcached and Redis\n\n");
    page += &setting(run, machine);
    let _ = write!(page, "\n## What it must reach\n\n{}\n\n{ELSEWHERE}\n", goals_table(run, goals));
    for group in Group::ALL {
        let mut sizes: Vec<usize> =
            run.cells.iter().filter(|cell| cell.group == group).map(|cell| cell.value_bytes).collect();
        sizes.dedup();
        for value_bytes in sizes {
            page += &section(run, group, value_bytes);
        }
    }
    page
}

fn setting(run: &Run, machine: &Machine) -> String {
    let disturbed = run.samples.iter().filter(|sample| sample.is_disturbed).count();
    let steal = run.samples.iter().map(|sample| sample.steal_share).fold(0.0, f64::max);
    let load = run.samples.iter().filter_map(|sample| sample.load_average).fold(0.0, f64::max);
    let buffer = run.samples.iter().filter_map(|sample| sample.client_receive_buffer_bytes).min();
    let buffer = buffer.map_or("unknown".to_owned(), |bytes| format!("{bytes} bytes"));
    let Processors { server, client, .. } = &run.processors;
    let mut lines = vec![
        format!(
            "- {}, {} processors, Linux {}, large pages \"{}\", commit {}",
            machine.processor, machine.processors, machine.kernel, machine.large_pages, machine.commit
        ),
        format!(
            "- servers on processor {server:?}, generator on {client:?}; seed {}; {} rounds of {} ms samples \
             after {} ms of warming up; {:.0} s in all",
            run.seed,
            run.rounds,
            run.times.measured.as_millis(),
            run.times.warm_up.as_millis(),
            run.took.as_secs_f64()
        ),
        format!(
            "- {KEYS} keys of 32 bytes, all present; {SOCKETS} sockets, each with a receive buffer of {buffer}"
        ),
        format!(
            "- others used more than {OTHERS_CORES_MAX} cores in {disturbed} of {} samples; these are left out \
             where enough remain; steal at most {:.1} %, load average at most {load:.1}",
            run.samples.len(),
            steal * 100.0
        ),
    ];
    lines.extend(run.skipped.iter().map(|sentence| format!("- {sentence}")));
    lines.join("\n") + "\n"
}

fn goals_table(run: &Run, goals: &[Judged]) -> String {
    let mut table = Table::new(&GOAL_COLUMNS, 1);
    for goal in goals {
        let sign = if goal.larger_is_better { "" } else { "≤ " };
        let ratio = |text: fn(Estimate) -> String| goal.ratio.map_or("-".to_owned(), text);
        table.row(goal_row([
            goal.what.clone(),
            ratio(|ratio| format!("{:.2}", ratio.median)),
            ratio(|ratio| format!("{:.2}..{:.2}", ratio.low, ratio.high)),
            ratio(|ratio| ratio.count.to_string()),
            format!("{sign}{}", goal.target),
            goal.verdict.word().to_owned(),
            format!("{sign}{}", goal.moonshot),
            goal.moonshot_verdict.word().to_owned(),
            goal.notes.join(", "),
        ]));
    }
    table.row(goal_row(large_pages_row(run.large_pages)));
    let rounds = goals.iter().filter_map(|goal| goal.ratio).map(|ratio| ratio.count).min();
    let few = rounds.is_some_and(|rounds| rounds < 6);
    table.text() + if few { "\n\nFewer than six rounds decide nothing." } else { "" }
}

/// A row that has as many cells as the table has columns.
fn goal_row(row: [String; GOAL_COLUMNS.len()]) -> Vec<String> {
    row.to_vec()
}

/// Large pages are counted once, so there is no interval to be sure of.
fn large_pages_row(large_pages: Option<LargePages>) -> [String; GOAL_COLUMNS.len()] {
    let share = large_pages.and_then(LargePages::share);
    let exact = |share: f64| Estimate { median: share, low: share, high: share, coverage: 1.0, count: 1 };
    let verdict = |limit| Verdict::of(share.map(exact).as_ref(), Wanted::AtLeast, limit).word().to_owned();
    let or_dash = |text: Option<String>| text.unwrap_or("-".to_owned());
    [
        "share of the value memory on large pages".to_owned(),
        or_dash(share.map(|share| format!("{share:.2}"))),
        "-".to_owned(),
        or_dash(share.map(|_| "1".to_owned())),
        LARGE_PAGES.0.to_string(),
        verdict(LARGE_PAGES.0),
        LARGE_PAGES.1.to_string(),
        verdict(LARGE_PAGES.1),
        String::new(),
    ]
}

/// One table of cells that are compared with each other.
fn section(run: &Run, group: Group, value_bytes: usize) -> String {
    let cells: Vec<Cell> = run
        .cells
        .iter()
        .copied()
        .filter(|cell| cell.group == group && cell.value_bytes == value_bytes)
        .collect();
    let mut table = Table::new(&COLUMNS, 1);
    for cell in &cells {
        table.row(row(&run.samples, cell).to_vec());
    }
    let window = match cells[0].shape {
        Shape::Closed { window } => format!(", {window} requests under way"),
        Shape::Open { .. } | Shape::Ping => String::new(),
    };
    let winner = match group {
        Group::Saturation | Group::SmallWindow | Group::MostlyGet | Group::PlainClient => {
            judge::fastest(&run.samples, &cells)
        }
        Group::OpenLoop | Group::Unloaded | Group::Overload | Group::Workers => None,
    };
    let winner = winner.map_or(String::new(), |sentence| format!("\n{sentence}.\n"));
    let what = group.describe();
    format!("\n## {}, {value_bytes} B\n\n{what}{window}\n\n{}\n{winner}", group.name(), table.text())
}

fn row(samples: &[Sample], cell: &Cell) -> [String; COLUMNS.len()] {
    let id = cell.id();
    let all = || samples.iter().filter(|sample| sample.cell == id);
    let median = |figure: fn(&Sample) -> f64| {
        judge::estimate(samples, &id, figure).map_or(f64::NAN, |estimate| estimate.median)
    };
    let sum = |count: fn(&Sample) -> u64| all().map(count).sum::<u64>().to_string();
    let rate = judge::estimate(samples, &id, |sample| sample.answered_per_second);
    let share = match cell.shape {
        Shape::Open { share } => format!(", {:.0} %", share * 100.0),
        Shape::Closed { .. } | Shape::Ping => String::new(),
    };
    let limited = all().filter(|sample| sample.is_generator_limited).count();
    let limited = if 0 < limited { format!(" limited in {limited}") } else { String::new() };
    [
        cell.target.name() + &share,
        format!("{:.0}", median(|sample| sample.sent_per_second)),
        rate.map_or("-".to_owned(), |rate| format!("{:.0}", rate.median)),
        rate.map_or("-".to_owned(), |rate| format!("{:.0}..{:.0}", rate.low, rate.high)),
        format!("{:.2}", median(|sample| sample.server_cpu_us_per_request)),
        microseconds(median(|sample| sample.latency_us.p50)),
        microseconds(median(|sample| sample.latency_us.p99)),
        microseconds(median(|sample| sample.latency_us.p999)),
        sum(|sample| sample.lost),
        sum(|sample| sample.server_drops + sample.client_drops),
        sum(|sample| sample.wrong),
        format!("{:.2}", median(|sample| sample.server_cores)),
        format!("{:.2}{limited}", median(|sample| sample.generator_share)),
    ]
}

fn microseconds(us: f64) -> String {
    if us < 100.0 { format!("{us:.1}") } else { format!("{us:.0}") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::measure::Times;
    use super::super::plan::{MAIN_VALUE_BYTES, block};
    use super::*;

    /// A run in which every server answers alike, and as often in every round.
    fn run(rounds: usize) -> Run {
        let cells = block(MAIN_VALUE_BYTES);
        let sample = |cell: &Cell, round| Sample::example(&cell.id(), round, 1_000.0);
        let samples = (1..=rounds).flat_map(|round| cells.iter().map(move |cell| sample(cell, round)));
        Run {
            samples: samples.collect(),
            cells,
            processors: Processors { server: vec![1], client: vec![0], all: vec![0, 1] },
            seed: 7,
            rounds,
            times: Times { warm_up: Duration::from_millis(1), measured: Duration::from_secs(1) },
            skipped: vec!["redis-server is not installed: its rows are skipped".to_owned()],
            commands: Vec::new(),
            large_pages: Some(LargePages { advised_bytes: 4 << 20, large_bytes: 3 << 20 }),
            took: Duration::from_secs(9),
        }
    }

    fn machine() -> Machine {
        Machine {
            processor: "some processor".to_owned(),
            processors: 2,
            kernel: "6.1".to_owned(),
            large_pages: "madvise".to_owned(),
            commit: "abc".to_owned(),
        }
    }

    fn judged(run: &Run) -> Vec<Judged> {
        judge::goals().iter().map(|goal| judge::judge(&run.samples, goal)).collect()
    }

    #[test]
    fn a_page_has_every_group_every_goal_and_what_was_skipped() {
        let run = run(9);
        let page = markdown(&run, &machine(), &judged(&run));
        // As wide as a column may be.
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        for group in Group::ALL {
            assert!(page.contains(&format!("## {}, 100 B", group.name())), "{page}");
        }
        for expected in [
            "- redis-server is not installed: its rows are skipped",
            "no winner: the intervals of echo and violet raw overlap",
            "| 1.00 | 1.00..1.00 | 9 | 0.75 | reached | 0.9 | reached |",
            "| 0.75 | - | 1 | 0.8 | missed | 1 | missed |",
            "| not measured |",
        ] {
            assert!(page.contains(expected), "{expected} is not in {page}");
        }
    }

    #[test]
    fn few_rounds_decide_nothing_and_the_page_says_so() {
        let run = run(3);
        let page = markdown(&run, &machine(), &judged(&run));
        assert!(page.contains("Fewer than six rounds decide nothing."), "{page}");
        assert!(page.contains("no winner: too few rounds to name one"), "{page}");
    }

    #[test]
    fn the_record_holds_every_sample_and_its_setting() {
        let run = run(2);
        let goals = judged(&run);
        let record = serde_json::to_value(Record::new(&run, machine(), &goals)).unwrap();
        assert_eq!(record["samples"].as_array().unwrap().len(), run.samples.len());
        assert_eq!(record["cells"].as_array().unwrap().len(), run.cells.len());
        assert_eq!((&record["preamble"]["seed"], &record["rounds"]), (&7.into(), &2.into()));
        assert_eq!(record["cells"][0]["load"]["window"], 256);
    }
}
