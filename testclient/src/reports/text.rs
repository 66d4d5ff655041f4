//! A result on a terminal, and the tables that Markdown shares with it.
//!
//! Verdict first, then the key table with every load's caveats in its row, then what was checked and what
//! was done to the servers. Deliberately not here: plots, and the split by server.

use super::digest::{self, Kind, Load};
use super::{cost, words};
use crate::grid;
use crate::report::Table;
use crate::result::{Check, Loop, Phase, RunResult};

/// The whole text.
pub fn page(name: &str, result: &RunResult) -> String {
    let verdict = digest::verdict(result);
    let mut parts = vec![format!("{name}: {}. {}", verdict.tone.word(), verdict.sentences.join(" "))];
    let loads = digest::loads(result);
    if !loads.is_empty() {
        parts.push(key_table(&loads).text());
    }
    if let Some(table) = cost::table(&loads) {
        parts.push(table.text());
    }
    if !result.checks.is_empty() {
        parts.push(checks_table(&result.checks).text());
    }
    if !result.events.is_empty() {
        parts.push(events_table(result).text());
    }
    parts.join("\n\n")
}

/// The loads with their key figures and caveats.
pub fn key_table(loads: &[Load]) -> Table {
    let headings = [
        "load", "timing", "repeats", "answered", "good", "p50", "p99", "p99.9", "max", "failures", "wrong",
        "note",
    ];
    let mut table = Table::new(&headings, 2).with_words_last();
    for load in loads {
        table.row(key_row(load).to_vec());
    }
    table
}

/// One row of the key table.
pub fn key_row(load: &Load) -> [String; 12] {
    let counts = load.counts();
    let latency = load.latency(None, Kind::Corrected);
    let ms = |percentile| match latency.0.is_empty() {
        true => "-".to_owned(),
        false => words::latency(latency.ms(percentile)),
    };
    [
        load.name.clone(),
        words::timing(&load.first().timing),
        load.phases.len().to_string(),
        words::rate(load.rate(|counts| counts.answered)),
        words::rate(load.rate(|counts| counts.good)),
        ms(50.0),
        ms(99.0),
        ms(99.9),
        ms(100.0),
        words::percent(digest::failure_share(&counts)),
        words::count(counts.wrong),
        load.caveats().join("; "),
    ]
}

/// What was checked.
pub fn checks_table(checks: &[Check]) -> Table {
    let mut table = Table::new(&["check", "holds", "seen"], 3);
    for check in checks {
        table.row(vec![check.name.clone(), holds(check.passed).to_owned(), check.seen.clone()]);
    }
    table
}

/// Whether something holds, in a word.
pub fn holds(passed: Option<bool>) -> &'static str {
    match passed {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "not known",
    }
}

/// What was done to the servers.
pub fn events_table(result: &RunResult) -> Table {
    let mut table = Table::new(&["at", "for", "event", "servers", "outcome"], 5);
    for event in &result.events {
        let length =
            if event.for_seconds == 0.0 { "-".to_owned() } else { words::seconds(event.for_seconds) };
        table.row(vec![
            words::seconds(event.at_seconds),
            length,
            event.kind.clone(),
            event.servers.join(" "),
            event.outcome.clone(),
        ]);
    }
    table
}

/// Cells of the graders' grid among the loads, with what the original reached in 2015.
pub fn grid_cells<'a, 'b>(loads: &'b [Load<'a>]) -> Vec<(&'b Load<'a>, Option<u32>)> {
    let cell = |load: &&Load| {
        let is_closed = matches!(load.first().timing, Loop::Closed { .. });
        grid::Cell::parse(load.group).ok().filter(|_| is_closed)
    };
    loads.iter().filter_map(|load| Some((load, cell(&load)?.original()))).collect()
}

/// The grid beside the original's figures.
pub fn grid_table(cells: &[(&Load, Option<u32>)]) -> Table {
    let headings = ["cell", "answered", "good", "original 2015", "times", "p50", "p99", "failures"];
    let mut table = Table::new(&headings, 1);
    for (load, original) in cells {
        let key = key_row(load);
        let [_, _, _, answered, good, p50, p99, _, _, failures, _, _] = key;
        let rate = load.rate(|counts| counts.answered);
        let original_text = original.map_or("-".to_owned(), |original| words::rate(f64::from(original)));
        let times = original.map_or("-".to_owned(), |original| format!("{:.1}", rate / f64::from(original)));
        table.row(vec![load.name.clone(), answered, good, original_text, times, p50, p99, failures]);
    }
    table
}

/// Operations of a load: corrected and raw side by side.
pub fn operations_table(loads: &[Load]) -> Table {
    let headings = [
        "load",
        "operation",
        "answered",
        "failures",
        "p50",
        "p99",
        "p99.9",
        "raw p50",
        "raw p99",
        "raw p99.9",
        "last try p99",
        "note",
    ];
    let mut table = Table::new(&headings, 2).with_words_last();
    for load in loads {
        for operation in load.operations() {
            let of = |kind| load.latency(Some(operation), kind);
            let (corrected, raw) = (of(Kind::Corrected), of(Kind::Raw));
            let mut counts = crate::result::Counts::default();
            let seen = load.phases.iter().filter_map(|phase: &&Phase| phase.operations.get(operation));
            seen.for_each(|seen| counts.add(&seen.counts));
            let mut row = vec![load.name.clone(), operation.to_owned(), words::count(counts.answered)];
            row.push(words::percent(digest::failure_share(&counts)));
            let figures = [&corrected, &raw].into_iter();
            row.extend(
                figures.flat_map(|latency| [50.0, 99.0, 99.9].map(|at| words::latency(latency.ms(at)))),
            );
            row.push(words::latency(of(Kind::LastTry).ms(99.0)));
            row.push(load.caveats().join("; "));
            table.row(row);
        }
    }
    table
}

/// How the run was made: names and what they are.
pub fn settings(result: &RunResult) -> Vec<(String, String)> {
    let mut rows = vec![
        ("made by".to_owned(), format!("violet-testclient {}", result.version)),
        ("command".to_owned(), result.arguments.join(" ")),
        ("started".to_owned(), words::moment(result.started_unix_seconds)),
        ("seed".to_owned(), result.seed.to_string()),
        ("servers".to_owned(), result.servers.join(" ")),
    ];
    let known = |figure: Option<f64>| figure.map_or("unknown".to_owned(), |figure| format!("{figure:.2}"));
    for machine in &result.machines {
        let steal = machine.steal_share.map_or("unknown".to_owned(), words::percent);
        let what = format!(
            "{}, {}, {}; load average {} before, {} after; steal {steal}",
            machine.processor,
            words::several(machine.processors as u64, "processor", "processors"),
            machine.system,
            known(machine.load_average_before),
            known(machine.load_average_after),
        );
        rows.push((format!("machine {}", machine.host), what));
    }
    rows.extend(result.settings.iter().map(|(name, value)| (name.clone(), value.clone())));
    rows
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn the_text_begins_with_the_verdict_and_has_every_caveat_in_its_row() {
        let text = page("scan", &samples::scan());
        assert!(text.starts_with("scan: Read with care. None of"), "{text}");
        let row = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().to_owned();
        assert!(row("| search · 90,000 /s").contains("rate not reached: "), "{text}");
        assert!(!row("| search · 5,000 /s").contains("not reached"), "{text}");
        let text = page("faults", &samples::faults());
        assert!(text.contains("| NO "), "{text}");
        assert!(text.contains("suspend") && text.contains("15 s"), "{text}");
    }

    #[test]
    fn cells_stand_beside_the_original() {
        let grid = samples::grid();
        let loads = digest::loads(&grid);
        let text = grid_table(&grid_cells(&loads)).text();
        assert!(text.contains("1,190 /s") && text.contains("2,600 /s"), "{text}");
        assert!(grid_cells(&digest::loads(&samples::scan())).is_empty());
    }
}
