//! The `check` command: runs stages in both formats and reports.

use std::time::Instant;

use serde::Serialize;
use violet_client::Format;

use crate::cluster::{Cluster, Finding};
use crate::machine;
use crate::report::{self, Preamble, Progress, Table};
use crate::settings::CheckArguments;
use crate::stages::{Needs, STAGES, Stage};
use crate::values::Random;

/// How a stage ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// As it must be.
    Pass,
    /// A server did what it must not.
    Fail,
    /// Nothing can be said.
    Undecided,
    /// Not run.
    Skipped,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Undecided => "UNDECIDED",
            Self::Skipped => "SKIPPED",
        }
    }
}

/// What a stage found.
#[derive(Clone, Debug, Serialize)]
pub struct StageRecord {
    /// Its name.
    pub stage: &'static str,
    about: &'static str,
    /// `raw` or `protobuf`.
    pub format: String,
    /// How it ended.
    pub verdict: Verdict,
    /// Why it did not pass.
    pub reason: Option<String>,
    /// Remarks that decide nothing.
    pub notes: Vec<String>,
    seconds: f64,
}

#[derive(Serialize)]
struct CheckRecord {
    #[serde(flatten)]
    preamble: Preamble,
    stages: Vec<StageRecord>,
    load_average_at_end: Option<f64>,
    failed: bool,
}

/// Runs the command; whether every stage that ran passed.
///
/// # Errors
/// Wrong usage, in one sentence.
pub fn run(arguments: &CheckArguments) -> Result<bool, String> {
    let chosen = chosen_stages(arguments)?;
    if arguments.list {
        print_list(&chosen);
        return Ok(true);
    }
    let servers = arguments.common.servers()?;
    let formats = match arguments.common.run.format {
        Some(format) => vec![Format::from(format)],
        None => vec![Format::Protobuf, Format::Raw],
    };
    let seed = arguments.common.run.seed.unwrap_or_else(Random::fresh_seed);
    let preamble = Preamble::new(seed, &servers);
    let mut progress = Progress::new();
    progress.line(&format!("check: {}", preamble.summary()));
    let mut cluster = Cluster::new(servers, formats[0], seed, arguments.clone());
    let records = run_all(&mut cluster, &chosen, &formats, &mut |sign| match sign {
        Sign::Begun(stage) => progress.show(&format!("{stage} …")),
        Sign::Ended(record) => lines(record).iter().for_each(|line| progress.line(line)),
    });
    progress.line(&format!("\n{}\n", table(&records, &formats).text()));
    progress.line(&totals(&records));
    let failed = records.iter().any(|record| matches!(record.verdict, Verdict::Fail | Verdict::Undecided));
    if let Some(path) = &arguments.common.run.json {
        let load_average_at_end = machine::load_average();
        report::write_json(path, &CheckRecord { preamble, stages: records, load_average_at_end, failed })?;
    }
    Ok(!failed)
}

fn chosen_stages(arguments: &CheckArguments) -> Result<Vec<&'static Stage>, String> {
    let wanted: Vec<&str> = arguments.stages.iter().map(|name| name.trim()).collect();
    if let Some(unknown) = wanted.iter().find(|name| STAGES.iter().all(|stage| stage.name != **name)) {
        return Err(format!("--stages: there is no stage {unknown:?}; --list shows all"));
    }
    Ok(STAGES.iter().filter(|stage| wanted.is_empty() || wanted.contains(&stage.name)).collect())
}

fn print_list(stages: &[&Stage]) {
    let mut table = Table::new(&["stage", "needs", "shows that"], 3);
    for stage in stages {
        let needs = match (stage.needs, stage.only) {
            (Needs::Nothing, None) => "",
            (Needs::Nothing, Some(Format::Protobuf)) => "protobuf",
            (Needs::Nothing, Some(Format::Raw)) => "raw",
            (Needs::Suspend, _) => "--suspend",
            (Needs::Destructive, _) => "--destructive",
        };
        table.row(vec![stage.name.to_owned(), needs.to_owned(), stage.about.to_owned()]);
    }
    println!("{}", table.text());
}

/// How a check goes.
pub enum Sign<'a> {
    /// Format and name of a stage that begins.
    Begun(String),
    /// What a stage found.
    Ended(&'a StageRecord),
}

/// Everything harmless in every format, then what does harm, in the first format only.
pub fn run_all(
    cluster: &mut Cluster,
    chosen: &[&'static Stage],
    formats: &[Format],
    tell: &mut dyn FnMut(Sign<'_>),
) -> Vec<StageRecord> {
    let mut records = Vec::new();
    let mut runs: Vec<(Format, &Stage)> = Vec::new();
    let harmless = |stage: &&&'static Stage| stage.needs == Needs::Nothing;
    for &format in formats {
        runs.extend(chosen.iter().filter(harmless).map(|&stage| (format, stage)));
    }
    runs.extend(chosen.iter().filter(|stage| !harmless(stage)).map(|&stage| (formats[0], stage)));
    let mut reachable: Vec<(Format, bool)> = Vec::new();
    for (format, stage) in runs {
        cluster.format = format;
        tell(Sign::Begun(format!("{} {}", format_name(format), stage.name)));
        let alive = reachable.iter().find(|(known, _)| *known == format).map(|&(_, alive)| alive);
        let started = Instant::now();
        let finding = match alive {
            Some(false) => Some(Finding::Skip("a server gives no sign of life".to_owned())),
            _ => stage.reason_to_skip(cluster).or_else(|| (stage.run)(cluster).err()),
        };
        if alive.is_none() {
            // Without a first sign of life each stage would wait for its time-outs in vain.
            let alive = match (stage.name, &finding) {
                ("alive", finding) => finding.is_none(),
                _ => (STAGES[0].run)(cluster).is_ok(),
            };
            reachable.push((format, alive));
        }
        let record = record(stage, format, finding, std::mem::take(&mut cluster.notes), started);
        tell(Sign::Ended(&record));
        records.push(record);
    }
    records
}

fn record(
    stage: &Stage,
    format: Format,
    finding: Option<Finding>,
    notes: Vec<String>,
    started: Instant,
) -> StageRecord {
    let (verdict, reason) = match finding {
        None => (Verdict::Pass, None),
        Some(Finding::Fail(text)) => (Verdict::Fail, Some(text)),
        Some(Finding::Undecided(text)) => (Verdict::Undecided, Some(text)),
        Some(Finding::Skip(text)) => (Verdict::Skipped, Some(text)),
    };
    StageRecord {
        stage: stage.name,
        about: stage.about,
        format: format_name(format).to_owned(),
        verdict,
        reason,
        notes,
        seconds: started.elapsed().as_secs_f64(),
    }
}

/// A record for a person.
pub fn lines(record: &StageRecord) -> Vec<String> {
    let StageRecord { stage, format, verdict, seconds, .. } = record;
    let reason = match (verdict, &record.reason) {
        (Verdict::Skipped, Some(reason)) => format!("({reason})"),
        _ => format!("{seconds:.2} s"),
    };
    let mut lines = vec![format!("{:<9} {format:<8} {stage:<20} {reason}", verdict.word())];
    if let (Verdict::Fail | Verdict::Undecided, Some(reason)) = (verdict, &record.reason) {
        lines.push(format!("          {reason}"));
    }
    lines.extend(record.notes.iter().map(|note| format!("          note: {note}")));
    lines
}

fn format_name(format: Format) -> &'static str {
    match format {
        Format::Raw => "raw",
        Format::Protobuf => "protobuf",
    }
}

/// A row per stage, a column per format.
fn table(records: &[StageRecord], formats: &[Format]) -> Table {
    let names: Vec<&str> = formats.iter().map(|&format| format_name(format)).collect();
    let mut headings = vec!["stage"];
    headings.extend(&names);
    headings.push("s");
    let mut table = Table::new(&headings, 1 + names.len());
    for stage in STAGES {
        let of_stage = || records.iter().filter(|record| record.stage == stage.name);
        if of_stage().next().is_none() {
            continue;
        }
        let mut row = vec![stage.name.to_owned()];
        row.extend(names.iter().map(|name| {
            let record = of_stage().find(|record| record.format == *name);
            record.map_or("-", |record| record.verdict.word()).to_owned()
        }));
        row.push(format!("{:.1}", of_stage().map(|record| record.seconds).sum::<f64>()));
        table.row(row);
    }
    table
}

fn totals(records: &[StageRecord]) -> String {
    let count = |verdict| records.iter().filter(|record| record.verdict == verdict).count();
    format!(
        "{} passed, {} failed, {} undecided, {} skipped",
        count(Verdict::Pass),
        count(Verdict::Fail),
        count(Verdict::Undecided),
        count(Verdict::Skipped)
    )
}
