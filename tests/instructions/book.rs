//! The book of counts, `tests/instructions.txt`: written, read and compared.
//!
//! ```text
//! # words for the reader
//! machine rustc …
//! <instructions> <row>
//! ```

use std::fmt::Write as _;

use crate::callgrind::Row;
use crate::cluster::{REPLICAS, SIZES, holder_row};
use crate::paths::WHOLE;

/// A count may differ by this many parts in a thousand, in either direction: what has become better is to be
/// written down as well, or it can get lost unnoticed.
const TOLERANCE: u64 = 30;
/// The same where compiler, library, valgrind or processor are not those of the book.
const TOLERANCE_ELSEWHERE: u64 = 200;
/// However small a count is, so many instructions are no difference.
const SLACK: u64 = 2;
/// A read may grow by this many parts in a thousand from the smallest cluster to the largest.
const GROWTH_MAX: u64 = 30;
/// What a request of 100 bytes is to take at most from its bytes to those of the reply, and what would be a
/// triumph.
const GOALS: [(&str, u64, u64); 2] = [("raw", 250, 160), ("protobuf", 1_000, 800)];

const HEAD: &str = "\
# Instructions per request, counted by callgrind. `make instructions` compares, `UPDATE_EXPECT=1 make instructions`
# writes. What is counted: tests/instructions/. A count may differ by 3 %, on another machine line by 20 %.
";

/// The outcome of a comparison.
pub struct Comparison {
    /// For the user.
    pub text: String,
    /// A row differs by more than it may, or is missing on one side.
    pub differs: bool,
}

/// The text of the book.
pub fn write(machine: &str, rows: &[Row]) -> String {
    let mut text = format!("{HEAD}machine {machine}\n");
    for row in rows {
        line(&mut text, format_args!("{:>8} {}", row.each(), row.name));
    }
    text
}

/// Compares what was counted with the book.
pub fn compare(book: &str, machine: &str, rows: &[Row]) -> Comparison {
    let lines = || book.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let expected: Vec<(&str, u64)> = lines().filter_map(row_of).collect();
    let of_book = lines().find_map(|line| line.strip_prefix("machine ")).unwrap_or_default();
    let is_same = of_book == machine;
    let tolerance = if is_same { TOLERANCE } else { TOLERANCE_ELSEWHERE };
    let mut comparison = Comparison { text: String::new(), differs: false };
    if !is_same {
        line(
            &mut comparison.text,
            format_args!(
                "the book is from another machine, so {} % are allowed\n  book: {of_book}\n  here: {machine}",
                tolerance / 10
            ),
        );
    }
    for row in rows {
        let found = expected.iter().find(|(name, _)| *name == row.name).map(|&(_, count)| count);
        let verdict = match found {
            None => "NEW".to_owned(),
            Some(count) => verdict(count, row.each(), tolerance),
        };
        comparison.differs |= verdict.ends_with(|last: char| last.is_ascii_uppercase());
        line(
            &mut comparison.text,
            format_args!("{:>8} {}{} {verdict}", row.each(), row.name, goal(&row.name)),
        );
    }
    for (name, _) in expected.iter().filter(|(name, _)| rows.iter().all(|row| row.name != *name)) {
        comparison.differs = true;
        line(&mut comparison.text, format_args!("         {name} GONE"));
    }
    comparison
}

fn row_of(line: &str) -> Option<(&str, u64)> {
    let (count, name) = line.trim_start().split_once(' ')?;
    Some((name, count.parse().ok()?))
}

/// In words how a count differs; capitals at the end are a failure.
fn verdict(expected: u64, counted: u64, tolerance: u64) -> String {
    let difference = expected.abs_diff(counted);
    if difference == 0 {
        return String::new();
    }
    let share = difference as f64 * 100.0 / expected.max(1) as f64;
    let sign = if counted < expected { '-' } else { '+' };
    let said = format!("({sign}{share:.1} % of {expected})");
    if difference <= SLACK || difference * 1_000 <= expected * tolerance {
        said
    } else {
        format!("{said} {}", if counted < expected { "BETTER" } else { "WORSE" })
    }
}

/// What the whole way of a small request is to take.
fn goal(row: &str) -> String {
    let of_row = |(layout, _, _): &&(&str, u64, u64)| {
        row.starts_with(&format!("{WHOLE} {layout} ")) && row.ends_with(" 100 B")
    };
    let found = GOALS.iter().find(of_row);
    found.map_or_else(String::new, |(_, goal, best)| format!(" [goal {goal}, better {best}]"))
}

/// A read at a holder costs the same in a large cluster.
pub fn check_growth(rows: &[Row]) -> Result<(), String> {
    let each = |name: &str| rows.iter().find(|row| row.name == name).map(Row::each);
    for replicas in REPLICAS {
        let of_size = |members: usize| {
            let name = holder_row(replicas, members);
            each(&name).ok_or_else(|| format!("there is no row {name:?}"))
        };
        let (small, large) = (of_size(SIZES[0])?, of_size(SIZES[SIZES.len() - 1])?);
        if small * (1_000 + GROWTH_MAX) < large * 1_000 {
            return Err(format!(
                "with N={replicas} a GET takes {small} instructions among {} members and {large} \
                                among {}: more than {} % more",
                SIZES[0],
                SIZES[SIZES.len() - 1],
                GROWTH_MAX / 10
            ));
        }
    }
    Ok(())
}

fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    writeln!(text, "{what}").expect("a string takes everything");
}
