//! Reports about results: on a terminal, as a page, Markdown, CSV and HdrHistogram logs; comparisons; thresholds;
//! and a live view while load is made.
//!
//! All of them read [`crate::result::RunResult`] and say the same about it ([`digest`]): figures, and beside each figure
//! what keeps it from being what it seems. This file has the two commands, `report` and `compare`. Deliberately not
//! here: making load.

mod compare;
pub mod cost;
mod csv;
mod digest;
mod hdr_log;
mod html;
mod knee;
pub mod live;
mod markdown;
#[cfg(test)]
mod samples;
mod servers;
mod text;
pub mod thresholds;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;

use crate::result::{Check, LAYOUT, RunResult};

/// Options of `report`.
#[derive(Clone, Debug, Args)]
pub struct ReportArguments {
    /// Results as `load`, `run` and others write them with --json.
    #[arg(required = true, value_name = "RESULT.json")]
    pub results: Vec<PathBuf>,
    /// What is written besides the text.
    #[command(flatten)]
    pub outputs: Outputs,
    /// A statement that must hold, such as 'p99 < 20 ms', 'get.p99.9 < 50 ms in R16', 'failures < 1 %',
    /// 'goodput > 10000 /s' or 'wrong = 0'; may be given several times. Exit status 1 unless all hold.
    #[arg(long = "threshold", value_name = "STATEMENT")]
    pub thresholds: Vec<String>,
}

/// Files that a report can be written to; for every command that has a result.
#[derive(Clone, Debug, Default, Args)]
pub struct Outputs {
    /// Writes a page for a browser: one file, with all plots in it, that loads nothing from elsewhere.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Writes Markdown, for a pull request.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Writes phases.csv, seconds.csv, operations.csv and events.csv into this directory.
    #[arg(long, value_name = "DIR")]
    pub csv: Option<PathBuf>,
    /// Writes an interval log for HdrHistogram's tools.
    #[arg(long, value_name = "FILE")]
    pub hdr_log: Option<PathBuf>,
}

/// Options of `compare`.
#[derive(Clone, Debug, Args)]
pub struct CompareArguments {
    /// The result that the others are held against, then one or two others.
    #[arg(required = true, num_args = 2..=3, value_name = "RESULT.json")]
    pub results: Vec<PathBuf>,
    /// By how much a figure may be worse, in percent. Exit status 1 if one is surely worse by more.
    #[arg(long, default_value_t = 5.0, value_name = "PERCENT")]
    pub tolerance: f64,
    /// Settings that are meant to differ, comma separated, such as value-bytes or servers, timing, format, window; others make
    /// results incomparable.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub differs: Vec<String>,
    /// Writes a page for a browser.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Writes Markdown.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
}

/// Runs `report`; whether all thresholds hold.
///
/// # Errors
/// One sentence about a file or a threshold that cannot be used.
pub fn report(arguments: &ReportArguments) -> Result<bool, String> {
    let thresholds = thresholds::parse_all(&arguments.thresholds)?;
    let mut results = read_all(&arguments.results)?;
    let mut checks: Vec<Check> = Vec::new();
    for (_, result) in &mut results {
        let found = thresholds::check_all(&thresholds, result);
        result.checks.extend(found.iter().cloned());
        checks.extend(found);
    }
    let pages: Vec<String> = results.iter().map(|(name, result)| text::page(name, result)).collect();
    println!("{}", pages.join("\n\n\n"));
    write(&arguments.outputs, &results)?;
    Ok(thresholds::all_hold(&checks))
}

/// Writes the files that were asked for; each result comes with its name.
///
/// # Errors
/// One sentence that names the file.
pub fn write(outputs: &Outputs, results: &[(String, RunResult)]) -> Result<(), String> {
    if let Some(path) = &outputs.html {
        write_text(path, &html::page(results))?;
    }
    if let Some(path) = &outputs.markdown {
        let pages: Vec<String> = results.iter().map(|(name, result)| markdown::page(name, result)).collect();
        write_text(path, &pages.join("\n"))?;
    }
    if let Some(path) = &outputs.csv {
        csv::write(path, results)?;
    }
    if let Some(path) = &outputs.hdr_log {
        let [(_, result)] = results else {
            return Err("--hdr-log takes one result, since its times are those of one run".to_owned());
        };
        hdr_log::write(path, result)?;
    }
    Ok(())
}

/// What a person reads of one result at the end of a run.
pub fn summary(name: &str, result: &RunResult) -> String {
    text::page(name, result)
}

/// Runs `compare`; whether nothing is worse by more than is tolerated.
///
/// # Errors
/// One sentence about a file that cannot be used, or when nothing at all could be compared.
pub fn compare(arguments: &CompareArguments) -> Result<bool, String> {
    if !(0.0..100.0).contains(&arguments.tolerance) {
        return Err(format!("--tolerance {}: from 0 to less than 100 percent", arguments.tolerance));
    }
    let rules = compare::Rules { tolerance: arguments.tolerance / 100.0, meant: arguments.differs.clone() };
    let results = read_all(&arguments.results)?;
    let comparison = compare::Comparison::of(&results, &rules);
    let sentence = comparison.sentence(rules.tolerance);
    println!("{sentence}\n\n{}", comparison.table().text());
    comparison.notes.iter().for_each(|note| println!("\n{note}"));
    if let Some(path) = &arguments.html {
        write_text(path, &html::comparison_page(&results, &comparison, rules.tolerance))?;
    }
    if let Some(path) = &arguments.markdown {
        write_text(path, &markdown::comparison(&results, &comparison, rules.tolerance))?;
    }
    if !comparison.is_any_judged() {
        return Err("nothing could be compared; the table says why".to_owned());
    }
    Ok(!comparison.is_worse())
}

fn write_text(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Reads results and names them after their files, as briefly as tells them apart.
fn read_all(paths: &[PathBuf]) -> Result<Vec<(String, RunResult)>, String> {
    let stem = |path: &PathBuf| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let whole = |path: &PathBuf| path.display().to_string();
    let is_told_apart = {
        let mut stems: Vec<String> = paths.iter().map(stem).collect();
        stems.sort();
        stems.windows(2).all(|pair| pair[0] != pair[1])
    };
    let name = |path| if is_told_apart { stem(path) } else { whole(path) };
    paths.iter().map(|path| Ok((name(path), read(path)?))).collect()
}

/// What a file says of itself before its layout is known.
#[derive(Deserialize)]
struct Head {
    layout: Option<u32>,
}

/// Reads one result.
///
/// # Errors
/// One sentence that names the file and what would be right.
pub fn read(path: &Path) -> Result<RunResult, String> {
    let text =
        fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let of_json = |error: serde_json::Error| format!("{}: {error}", path.display());
    let head: Head = serde_json::from_str(&text).map_err(of_json)?;
    match head.layout {
        Some(LAYOUT) => {}
        Some(other) => {
            return Err(format!(
                "{} has layout {other}, this program reads layout {LAYOUT}: use the version that wrote it",
                path.display()
            ));
        }
        None => {
            return Err(format!(
                "{} is no result: it has no \"layout\"; files of load and run --json would be right",
                path.display()
            ));
        }
    }
    let result: RunResult = serde_json::from_str(&text).map_err(of_json)?;
    match result.phases.iter().find(|phase| !(phase.window_seconds.is_finite() && 0.0 < phase.window_seconds))
    {
        Some(phase) => Err(format!(
            "{}: phase {:?} lasts {} s; results have phases longer than nothing",
            path.display(),
            phase.name,
            phase.window_seconds
        )),
        None => Ok(result),
    }
}
