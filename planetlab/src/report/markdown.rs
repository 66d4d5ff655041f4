//! The report as Markdown, for a pull request or a mail.

use std::fmt::Write as _;

use super::Report;
use super::tables::Table;

/// The whole text.
pub fn text(report: &Report) -> String {
    let mut text = format!("# {}\n\n{}\n", plain(&report.title), plain(&report.about));
    list(&mut text, &report.findings);
    report.tables.iter().for_each(|table| section(&mut text, table));
    if !report.faults.is_empty() {
        text += "\n## What could not be read, and what did not hold\n";
        list(&mut text, &report.faults);
    }
    text
}

fn list(text: &mut String, sentences: &[String]) {
    if !sentences.is_empty() {
        text.push('\n');
    }
    for sentence in sentences {
        let _ = writeln!(text, "- {}", plain(sentence));
    }
}

fn section(text: &mut String, table: &Table) {
    let _ = write!(text, "\n## {}\n\n{}\n", plain(&table.title), plain(&table.about));
    if !table.finding.is_empty() {
        let _ = write!(text, "\n**{}**\n", plain(&table.finding));
    }
    let row =
        |cells: &mut dyn Iterator<Item = String>| format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "));
    text.push('\n');
    *text += &row(&mut table.head.iter().map(|head| plain(head)));
    *text += &row(&mut table
        .head
        .iter()
        .enumerate()
        .map(|(at, _)| if at == 0 { ":--" } else { "--:" }.to_owned()));
    for cells in &table.rows {
        *text += &row(&mut cells.iter().map(|cell| match cell.is_bad {
            true => format!("**{}**", plain(&cell.text)),
            false => plain(&cell.text),
        }));
    }
}

/// Text without what Markdown or a terminal would take for more than text.
fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '|' | '*' | '_' | '`' | '<' | '[' | ']' | '\\' => safe.extend(['\\', character]),
            character if character.is_control() => safe.push(' '),
            character => safe.push(character),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::super::tables::Cell;
    use super::*;

    #[test]
    fn tables_are_tables_whatever_stands_in_them() {
        let table = Table {
            title: "t".to_owned(),
            about: "a".to_owned(),
            head: vec!["n".to_owned(), "p99".to_owned()],
            rows: vec![vec![Cell::text("a|b"), Cell { is_bad: true, ..Cell::text("1 ms") }]],
            finding: "slow_one".to_owned(),
        };
        let report = Report {
            title: "T".to_owned(),
            about: "A".to_owned(),
            findings: vec!["one\ntwo".to_owned()],
            tables: vec![table],
            faults: Vec::new(),
        };
        let expected = "# T\n\nA\n\n- one two\n\n## t\n\na\n\n**slow\\_one**\n\n| n | p99 |\n| :-- | --: |\n| a\\|b | **1 ms** |\n";
        assert_eq!(text(&report), expected);
    }
}
