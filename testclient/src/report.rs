//! What a person reads: one rewriting line on a terminal while something runs, and text tables.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::machine;

/// Where progress goes: standard error, rewritten in place if that is a terminal.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
    dirty: bool,
}

impl Progress {
    /// Looks whether standard error is a terminal.
    pub fn new() -> Self {
        Self { terminal: io::stderr().is_terminal(), dirty: false }
    }

    /// Shows what goes on at this moment; nothing unless a person watches.
    pub fn show(&mut self, text: &str) {
        if self.terminal {
            let text: String = text.chars().take(100).collect();
            eprint!("\r\x1b[K{text}");
            // Progress is a courtesy: a terminal that went away must not end the run.
            let _ = io::stderr().flush();
            self.dirty = true;
        }
    }

    /// Removes the rewriting line, so that ordinary output can follow.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.dirty) {
            eprint!("\r\x1b[K");
        }
    }

    /// Prints a line that stays.
    pub fn line(&mut self, text: &str) {
        self.clear();
        println!("{text}");
    }
}

/// The setting of a run, as it stands in front of every result file.
#[derive(Clone, Debug, Serialize)]
pub struct Preamble {
    program: &'static str,
    version: &'static str,
    started_unix_seconds: u64,
    arguments: Vec<String>,
    seed: u64,
    servers: Vec<String>,
    load_average_at_start: Option<f64>,
}

impl Preamble {
    /// Notes the moment and the machine.
    pub fn new(seed: u64, servers: &[std::net::SocketAddr]) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self {
            program: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            started_unix_seconds: since_epoch.as_secs(),
            arguments: std::env::args().skip(1).collect(),
            seed,
            servers: servers.iter().map(ToString::to_string).collect(),
            load_average_at_start: machine::load_average(),
        }
    }

    /// One line for the head of the output.
    pub fn summary(&self) -> String {
        let load = self.load_average_at_start.map_or("unknown".to_owned(), |load| format!("{load:.2}"));
        let servers = match self.servers.as_slice() {
            [one] => format!("1 server ({one})"),
            many => format!("{} servers ({} …)", many.len(), many[0]),
        };
        format!("{servers}, seed {}, load average {load}", self.seed)
    }
}

/// Writes a result file.
///
/// # Errors
/// One sentence that names the file.
pub fn write_json(path: &Path, record: &impl Serialize) -> Result<(), String> {
    let text =
        serde_json::to_string_pretty(record).map_err(|error| format!("cannot encode results: {error}"))?;
    fs::write(path, text + "\n").map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// A table in Markdown, its columns padded so that it also reads well as it is.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
    left_columns: usize,
    is_last_left: bool,
}

impl Table {
    /// A table with these headings; the first `left_columns` are set flush left, the others flush right.
    pub fn new(headings: &[&str], left_columns: usize) -> Self {
        Self {
            rows: vec![headings.iter().map(ToString::to_string).collect()],
            left_columns,
            is_last_left: false,
        }
    }

    /// The same with its last column, which holds words, flush left.
    pub fn with_words_last(mut self) -> Self {
        self.is_last_left = true;
        self
    }

    /// Whether a column is flush left.
    pub fn is_left(&self, column: usize) -> bool {
        column < self.left_columns || (self.is_last_left && column + 1 == self.rows[0].len())
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The same table with every cell changed.
    pub fn mapped(&self, change: impl Fn(&str) -> String) -> Self {
        let row = |row: &Vec<String>| row.iter().map(|cell| change(cell)).collect();
        Self { rows: self.rows.iter().map(row).collect(), ..*self }
    }

    /// The headings and the rows.
    pub fn parts(&self) -> (&[String], &[Vec<String>]) {
        self.rows.split_first().map_or((&[], &[]), |(headings, rows)| (headings, rows))
    }

    /// The whole text, without a line end behind it.
    pub fn text(&self) -> String {
        let columns = self.rows[0].len();
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut lines: Vec<String> = self.rows.iter().map(|row| self.line(row, &widths)).collect();
        let dashes = widths.iter().enumerate().map(|(column, &width)| match self.is_left(column) {
            true => "-".repeat(width.max(3)),
            false => "-".repeat(width.max(3) - 1) + ":",
        });
        lines.insert(1, format!("| {} |", dashes.collect::<Vec<_>>().join(" | ")));
        lines.join("\n")
    }

    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = widths[column].max(3);
            if self.is_left(column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
    }
}

/// A time in milliseconds with three digits that matter.
pub fn milliseconds(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.2}"),
        ms if ms < 100.0 => format!("{ms:.1}"),
        _ => format!("{ms:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up() {
        let mut table = Table::new(&["name", "count"], 1);
        table.row(vec!["a".to_owned(), "12345".to_owned()]);
        table.row(vec!["längere".to_owned(), "1".to_owned()]);
        assert_eq!(
            table.text(),
            "| name    | count |\n| ------- | ----: |\n| a       | 12345 |\n| längere |     1 |"
        );
    }
}
