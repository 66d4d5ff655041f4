//! The steps `conformance` and `capacity`: stages of `check`, as checks of the result.

use super::course::Course;
use super::loader::{CheckOrder, Checked};
use super::step::{self, Step};
use crate::check_command::{self, Sign, StageRecord, Verdict};
use crate::cluster::Cluster;
use crate::interrupt::Stop;
use crate::result::Check;
use crate::settings::{CheckArguments, CommonArguments, FormatChoice, KillMode, RunArguments};
use crate::stages::{Needs, STAGES, Stage};

/// Runs stages. Those that do harm belong to other steps.
pub fn run(course: &mut Course<'_>, step: &Step, kind: &step::Conformance) -> Result<(), String> {
    let chosen: Vec<&'static Stage> = STAGES
        .iter()
        .filter(|stage| match kind.stages.is_empty() {
            true => stage.needs == Needs::Nothing,
            false => kind.stages.iter().any(|name| name == stage.name),
        })
        .filter(|stage| !kind.without.iter().any(|name| name == stage.name))
        .collect();
    run_stages(course, step, &chosen, 1)
}

/// Fills the cluster until it says that it is full, and looks what still works then.
pub fn capacity(course: &mut Course<'_>, step: &Step, kind: &step::Capacity) -> Result<(), String> {
    let chosen: Vec<&'static Stage> = STAGES.iter().filter(|stage| stage.name == "capacity").collect();
    run_stages(course, step, &chosen, kind.mib_max)
}

fn run_stages(
    course: &mut Course<'_>,
    step: &Step,
    chosen: &[&'static Stage],
    capacity_mib: u64,
) -> Result<(), String> {
    let order = CheckOrder {
        stages: chosen.iter().map(|stage| stage.name.to_owned()).collect(),
        servers: course.servers(),
        format: step.settings.format,
        seed: course.random.next(),
        capacity_mib,
    };
    let stop = course.stop.clone();
    let (progress, checks) = (&mut course.progress, &mut course.result.checks);
    let mut from = String::new();
    let outcome = course.loader.check(&order, &stop, &mut |checked| match checked {
        Checked::By { who } => {
            progress.line(&format!("           run by {who} alone: what one client sees is their subject"));
            from = format!(" (seen by {who})");
        }
        Checked::Begun { stage } => progress.show(&format!("{stage} …")),
        Checked::Ended { check, lines } => {
            lines.iter().for_each(|line| progress.line(line));
            checks.extend(check.map(|check| Check {
                name: format!("{}: {}", step.name, check.name),
                seen: check.seen + &from,
                ..check
            }));
        }
    });
    course.note_losses();
    // Stages write keys of their own, and wipe.
    course.forget();
    outcome
}

/// Runs stages from here.
///
/// # Errors
/// One sentence, when they were not run to the end.
pub fn carry_out(order: &CheckOrder, stop: &Stop, tell: &mut dyn FnMut(Checked)) -> Result<(), String> {
    let format = order.format.format();
    let options = CheckArguments {
        common: CommonArguments {
            servers: None,
            run: RunArguments { format: None::<FormatChoice>, seed: None, json: None },
        },
        stages: Vec::new(),
        list: false,
        destructive: true,
        suspend: true,
        kill_mode: KillMode::Shutdown,
        fault_nodes: None,
        suspend_seconds: 10,
        capacity_mib: order.capacity_mib,
    };
    let mut cluster = Cluster::new(order.servers.clone(), format, order.seed, options);
    let chosen = STAGES.iter().filter(|stage| order.stages.iter().any(|name| name == stage.name));
    // One after the other, so that a run can be interrupted between two.
    for stage in chosen {
        if stop.is_set() {
            return Err(format!("before stage {}", stage.name));
        }
        check_command::run_all(&mut cluster, &[stage], &[format], &mut |sign| match sign {
            Sign::Begun(stage) => tell(Checked::Begun { stage }),
            // What does not apply here is told; it is nothing that was checked.
            Sign::Ended(record) => tell(Checked::Ended {
                check: (record.verdict != Verdict::Skipped).then(|| check(record)),
                lines: check_command::lines(record),
            }),
        });
    }
    Ok(())
}

fn check(record: &StageRecord) -> Check {
    let passed = match record.verdict {
        Verdict::Pass => Some(true),
        Verdict::Fail => Some(false),
        Verdict::Undecided | Verdict::Skipped => None,
    };
    let parts: Vec<&str> =
        record.reason.as_deref().into_iter().chain(record.notes.iter().map(String::as_str)).collect();
    let seen = if parts.is_empty() { "as it must be".to_owned() } else { parts.join("; ") };
    Check { name: format!("{} ({})", record.stage, record.format), passed, seen }
}
