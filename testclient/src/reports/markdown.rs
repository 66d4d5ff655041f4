//! A result in Markdown, short enough for a pull request: verdict, key table, grid, knee, checks, events, setting.
//!
//! Text from the result is escaped, so that a name can neither end a cell nor become a link or a tag.

use super::compare::Comparison;
use super::digest::{self, Load};
use super::knee::Knee;
use super::{cost, servers, text, words};
use crate::report::Table;
use crate::result::RunResult;

/// The whole page.
pub fn page(name: &str, result: &RunResult) -> String {
    let verdict = digest::verdict(result);
    let loads = digest::loads(result);
    let mut parts = vec![format!("## {}", escape(name))];
    parts.push(format!("**{}.** {}", verdict.tone.word(), escape(&verdict.sentences.join(" "))));
    if !loads.is_empty() {
        parts.push(safe(&text::key_table(&loads)));
    }
    if let Some(table) = cost::table(&loads) {
        parts.push(format!("### What the servers used\n\n{}", safe(&table)));
    }
    let cells = text::grid_cells(&loads);
    if !cells.is_empty() {
        parts.push("### The grid beside the original of 2015".to_owned());
        parts.push("Closed loops: these tails cannot be compared with those of an open loop.".to_owned());
        parts.push(safe(&text::grid_table(&cells)));
    }
    parts.extend(knees(&loads));
    parts.extend(servers::outliers(&loads).iter().map(|sentence| escape(sentence)));
    if !result.checks.is_empty() {
        parts.push(format!("### Checks\n\n{}", safe(&text::checks_table(&result.checks))));
    }
    if !result.events.is_empty() {
        parts.push(format!("### Events\n\n{}", safe(&text::events_table(result))));
    }
    parts.push(setting(result));
    parts.join("\n\n") + "\n"
}

/// A comparison; each result comes with its name.
pub fn comparison(results: &[(String, RunResult)], comparison: &Comparison, tolerance: f64) -> String {
    let names: Vec<&str> = results.iter().map(|(name, _)| name.as_str()).collect();
    let mut parts = vec![format!("## {}", escape(&names.join(" / ")))];
    parts.push(escape(&comparison.sentence(tolerance)));
    parts.push(safe(&comparison.table()));
    parts.extend(comparison.notes.iter().map(|note| escape(note)));
    parts.join("\n\n") + "\n"
}

fn knees(loads: &[Load]) -> Vec<String> {
    let knee = |knee: &Knee| {
        let mut table =
            Table::new(&["offered", "good", "p50", "p99", "failures", "note"], 0).with_words_last();
        for (index, point) in knee.points.iter().enumerate() {
            let mut notes = point.caveats.clone();
            if index == knee.peak {
                notes.insert(0, "peak".to_owned());
            }
            if let Some((_, why)) = knee.overwhelmed.as_ref().filter(|(first, _)| *first == index) {
                notes.insert(0, format!("overwhelmed: {why}"));
            }
            table.row(vec![
                words::rate(point.offered),
                words::rate(point.good),
                words::latency(point.p50_ms),
                words::latency(point.p99_ms),
                words::percent(point.failures),
                notes.join("; "),
            ]);
        }
        format!("### Knee\n\n{}\n\n{}", escape(&knee.sentence()), safe(&table))
    };
    Knee::all(loads).iter().map(knee).collect()
}

fn setting(result: &RunResult) -> String {
    let mut table = Table::new(&["setting", "value"], 2);
    text::settings(result).into_iter().for_each(|(name, value)| table.row(vec![name, value]));
    format!("<details><summary>Setting and machine</summary>\n\n{}\n\n</details>", safe(&table))
}

/// A table whose cells cannot break out.
fn safe(table: &Table) -> String {
    table.mapped(escape).text()
}

/// Text in which nothing has a meaning of its own.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' => escaped.extend(['\\', letter]),
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '&' => escaped += "&amp;",
            '\n' | '\r' => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn a_page_begins_with_the_verdict_and_the_key_table() {
        let page = page("knee", &samples::scan());
        let start: Vec<&str> = page.lines().take(5).collect();
        assert_eq!((start[0], start[1]), ("## knee", ""));
        assert!(start[2].starts_with("**Read with care.** None of"), "{page}");
        assert!(start[4].starts_with("| load "), "{page}");
        assert!(page.contains("overwhelmed: ") && page.contains("| peak "), "{page}");
    }

    #[test]
    fn names_cannot_break_out_of_their_cells() {
        let mut result = samples::grid();
        result.checks[0].seen = "a | b\n<script> [link](x)".to_owned();
        let page = page("grid", &result);
        assert!(page.contains("a \\| b &lt;script&gt; \\[link\\](x)"), "{page}");
        assert!(page.contains("### The grid beside the original of 2015"), "{page}");
    }
}
