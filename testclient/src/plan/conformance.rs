//! The steps `conformance` and `capacity`: stages of `check`, as checks of the result.

use super::course::Course;
use super::step::{self, Step};
use crate::check_command::{self, StageRecord, Verdict};
use crate::cluster::Cluster;
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
    let format = step.settings.format.format();
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
        capacity_mib,
    };
    let mut cluster = Cluster::new(course.servers(), format, course.random.next(), options);
    // One after the other, so that a run can be interrupted between two.
    for stage in chosen {
        if course.stop.is_set() {
            return Err(format!("before stage {}", stage.name));
        }
        let records = check_command::run_all(&mut cluster, &[stage], &[format], &mut course.progress);
        // What does not apply here was printed; it is nothing that was checked.
        let ran = records.iter().filter(|record| record.verdict != Verdict::Skipped);
        course.result.checks.extend(ran.map(|record| check(&step.name, record)));
    }
    // Stages write keys of their own, and wipe.
    course.forget();
    Ok(())
}

fn check(step: &str, record: &StageRecord) -> crate::result::Check {
    let passed = match record.verdict {
        Verdict::Pass => Some(true),
        Verdict::Fail => Some(false),
        Verdict::Undecided | Verdict::Skipped => None,
    };
    let parts: Vec<&str> =
        record.reason.as_deref().into_iter().chain(record.notes.iter().map(String::as_str)).collect();
    let seen = if parts.is_empty() { "as it must be".to_owned() } else { parts.join("; ") };
    crate::result::Check { name: format!("{step}: {} ({})", record.stage, record.format), passed, seen }
}
