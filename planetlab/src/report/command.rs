//! The command `report`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};

use super::{Report, html, markdown, results};
use crate::Failure;
use crate::campaign::record::{self, Run};
use crate::probe::store;

/// Describes `report`.
pub fn command() -> Command {
    let file = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("file").help(help).value_parser(value_parser!(PathBuf))
    };
    Command::new("report")
        .about("Write all kept probes and runs down as one page that needs no network")
        .arg(
            file("dir", "Where probes and runs are kept.")
                .value_name("directory")
                .default_value(".violet/testbed"),
        )
        .arg(file("html", "The page [default: report.html in the directory]."))
        .arg(file("markdown", "The same as Markdown."))
        .arg(Arg::new("run").long("run").value_name("run,…").help("Only these runs.").value_delimiter(','))
}

/// Does `report`.
///
/// # Errors
/// Nothing to report, an unknown run, or a file that cannot be read or written.
pub fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let directory = matches.get_one::<PathBuf>("dir").expect("it has a default");
    let probes = store::load_all(directory)?;
    let runs = chosen(directory, matches)?;
    if probes.is_empty() && runs.is_empty() {
        return Err(format!(
            "{} has neither probes nor runs; 'violet-testbed probe' and 'violet-testbed run PLAN' make them",
            directory.display()
        )
        .into());
    }
    let (measured, faults) = results::load(directory, &runs);
    let report = Report::new(&probes, &runs, &measured, faults);
    let page = matches.get_one::<PathBuf>("html").cloned().unwrap_or_else(|| directory.join("report.html"));
    write(&page, &html::page(&report))?;
    if let Some(file) = matches.get_one::<PathBuf>("markdown") {
        write(file, &markdown::text(&report))?;
    }
    report.findings.iter().for_each(|finding| println!("{finding}"));
    Ok(ExitCode::SUCCESS)
}

fn chosen(directory: &Path, matches: &ArgMatches) -> Result<Vec<Run>, Failure> {
    let mut runs = Run::load_all(directory)?;
    if let Some(names) = matches.get_many::<String>("run") {
        let names: Vec<&String> = names.collect();
        if let Some(name) = names.iter().find(|name| runs.iter().all(|run| run.id != ***name)) {
            return Err(format!("--run {name}: {} has no such run", directory.display()).into());
        }
        runs.retain(|run| names.contains(&&run.id));
    }
    Ok(runs)
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    record::write(file, text.as_bytes())?;
    println!("Written to {}", file.display());
    Ok(())
}
