//! What `--dry-run` shows: the steps of a plan and how long they take.
//!
//! Loads take what they are told to; all else is an allowance, marked `≈`.

use super::faults;
use super::loads::rest_seconds;
use super::scaling;
use super::step::{Kind, Plan, Step, mean_bytes};
use crate::report::Table;

/// What a conformance stage takes, in seconds, on a healthy cluster.
const STAGE_SECONDS: f64 = 1.0;
/// Transactions a second that a bulk load is taken to reach.
const BULK_RATE: f64 = 5_000.0;
/// Filling a cluster and emptying it.
const CAPACITY_SECONDS: f64 = 30.0;
/// Starting a cluster.
const START_SECONDS: f64 = 3.0;
/// Steps of a search for saturation.
const SEARCH_STEPS: f64 = 10.0;
/// Reading all keys after a fault.
const SWEEP_SECONDS: f64 = 10.0;

/// What a step does in a few words, how long, and whether that is certain.
fn describe(step: &Step) -> (String, f64, bool) {
    let settings = &step.settings;
    let each = settings.seconds + settings.warm_up;
    match &step.kind {
        Kind::Conformance(kind) => {
            let harmless =
                crate::stages::STAGES.iter().filter(|stage| stage.needs == crate::stages::Needs::Nothing);
            let count = if kind.stages.is_empty() { harmless.count() } else { kind.stages.len() };
            let count = count.saturating_sub(if kind.stages.is_empty() { kind.without.len() } else { 0 });
            (
                format!("{count} conformance stages, {}", settings.format.word()),
                count as f64 * STAGE_SECONDS,
                false,
            )
        }
        Kind::Load(kind) => {
            let rates = kind.rates.iter().map(|rate| format!("{rate}/s"));
            let clients = kind.clients.iter().map(|clients| format!("{clients} clients"));
            let what: Vec<String> = rates.chain(clients).collect();
            let fill = if kind.fill { settings.keys as f64 / BULK_RATE } else { 0.0 };
            let runs = what.len() * settings.repeats;
            (
                format!("{} × {} of {} s", settings.repeats, what.join(", "), settings.seconds),
                runs as f64 * each + fill,
                !kind.fill,
            )
        }
        Kind::Grid(kind) => {
            let names: Vec<String> = kind.cells.iter().map(|cell| cell.0.name()).collect();
            let rests: f64 = kind.cells.iter().map(|cell| rest_seconds(kind, cell.0.clients)).sum();
            let seconds = settings.repeats as f64 * (kind.cells.len() as f64 * settings.seconds + rests);
            (format!("cells {} of {} s", names.join(" "), settings.seconds), seconds, true)
        }
        Kind::Search(kind) => (
            format!("rates from {}/s on, each × {}", kind.from_rate, kind.factor),
            SEARCH_STEPS * each,
            false,
        ),
        Kind::Bulk(kind) => {
            let what = match kind.memory_multiple {
                Some(multiple) => format!("{multiple} × {} MiB", kind.of_memory_mib),
                None => format!("{} keys", settings.keys),
            };
            let bytes =
                kind.memory_multiple.map(|multiple| multiple * kind.of_memory_mib as f64 * 1_048_576.0);
            let keys = bytes.map_or(settings.keys as f64, |bytes| {
                bytes / mean_bytes(&settings.value_bytes).unwrap_or(500.0)
            });
            (format!("{what} by {} clients", kind.clients), keys / BULK_RATE, false)
        }
        Kind::Capacity(kind) => {
            (format!("fills to out of space, {} MiB at most", kind.mib_max), CAPACITY_SECONDS, false)
        }
        Kind::Faults(kind) => (
            format!("{} of {} under {}/s", kind.fault.word(), kind.nodes, kind.rate),
            faults::seconds(kind) + SWEEP_SECONDS,
            false,
        ),
        Kind::Scaling(kind) => {
            let sizes: Vec<String> = kind.nodes.iter().map(ToString::to_string).collect();
            let starts = (kind.nodes.len() * settings.repeats.max(3)) as f64 * START_SECONDS;
            (format!("clusters of {} nodes", sizes.join(", ")), scaling::seconds(step, kind) + starts, false)
        }
        Kind::Wipe(_) => ("wipes every server".to_owned(), 0.1, false),
        Kind::Pause(kind) => ("waits".to_owned(), kind.pause_seconds, true),
    }
}

/// The table of steps, with the sum under it.
pub fn table(plan: &Plan) -> String {
    let mut table = Table::new(&["step", "does", "takes s"], 2);
    let mut sum = 0.0;
    for step in &plan.steps {
        let (what, seconds, is_certain) = describe(step);
        sum += seconds;
        let about = if is_certain { "" } else { "≈" };
        table.row(vec![step.name.clone(), what, format!("{about}{seconds:.0}")]);
    }
    format!("{}\n\nAbout {} in all.", table.text(), duration_text(sum))
}

fn duration_text(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 90.0 => format!("{seconds:.0} s"),
        seconds if seconds < 5_400.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3_600.0),
    }
}
