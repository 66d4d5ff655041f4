//! Two profiles compared: by share and by processor time per request.
//!
//! Shares alone mislead: what stays the same looks larger when something else has gone. So every
//! figure comes in microseconds per request as well, and the pictures are drawn in nanoseconds per
//! request. There are two, since a stack that only one side has shows only in that side's shape.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::groups;
use super::picture;
use super::record::{Meta, STACKS_FILE};
use super::stacks::Stacks;
use crate::report::Table;

/// In the shape of the second profile.
pub const FORWARD_FILE: &str = "before-to-after.svg";
/// In the shape of the first profile.
pub const BACKWARD_FILE: &str = "after-to-before.svg";
/// The tables.
pub const TABLE_FILE: &str = "table.md";

/// Most rows of a table of frames.
const FRAMES_SHOWN_MAX: usize = 30;
/// Frames that have changed by less than this, in microseconds per request, are noise.
const CHANGE_SHOWN_MIN_US: f64 = 0.05;

/// Options of `diff`.
#[derive(Clone, Debug, Args)]
pub struct DiffArguments {
    /// Folder of the first profile; also a name below --out.
    #[arg(long, value_name = "FOLDER")]
    pub before: PathBuf,
    /// Folder of the second profile; also a name below --out.
    #[arg(long, value_name = "FOLDER")]
    pub after: PathBuf,
    /// Where profiles are.
    #[arg(long, default_value = "flamegraphs", value_name = "DIR")]
    pub out: PathBuf,
}

/// Compares and prints the tables.
///
/// # Errors
/// One sentence.
pub fn run(arguments: &DiffArguments) -> Result<bool, String> {
    let find = |named: &Path| {
        let inside = arguments.out.join(named);
        if inside.is_dir() { inside } else { named.to_owned() }
    };
    let (before, after) = (find(&arguments.before), find(&arguments.after));
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = arguments.out.join(format!("{}-to-{}", name(&before), name(&after)));
    println!("{}", write(&before, &after, &folder)?);
    println!("in {}", folder.display());
    Ok(true)
}

/// One side of a comparison.
struct Side {
    meta: Meta,
    stacks: Stacks,
    /// What a sample stands for.
    us_per_sample: f64,
}

impl Side {
    fn read(folder: &Path) -> Result<Self, String> {
        let meta = Meta::read(folder)?;
        let stacks = Stacks::read(&folder.join(STACKS_FILE))?;
        let Some(us) = meta.result.cpu_us_per_request else {
            return Err(format!("{}: the processor time per request is not known", folder.display()));
        };
        Ok(Self { us_per_sample: us / stacks.samples() as f64, meta, stacks })
    }

    fn percent(&self, samples: u64) -> f64 {
        100.0 * samples as f64 / self.stacks.samples() as f64
    }

    fn us(&self, samples: u64) -> f64 {
        samples as f64 * self.us_per_sample
    }

    /// Counts as nanoseconds per request.
    fn scaled(&self) -> Stacks {
        self.stacks.scaled(self.us_per_sample * 1_000.0)
    }
}

/// Writes pictures and tables into a folder; returns the tables.
///
/// # Errors
/// One sentence.
pub fn write(before: &Path, after: &Path, folder: &Path) -> Result<String, String> {
    let (before, after) = (Side::read(before)?, Side::read(after)?);
    if before.meta.load != after.meta.load {
        return Err(format!(
            "{} and {} were taken under different loads, so they cannot be compared",
            before.meta.name, after.meta.name
        ));
    }
    let cannot = |error: std::io::Error| format!("cannot write {}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(cannot)?;
    let text = tables(&before, &after);
    fs::write(folder.join(TABLE_FILE), &text).map_err(cannot)?;
    let (old, new) = (before.scaled(), after.scaled());
    let colours = "processor time per request; red: grew from before to after, blue: shrank";
    let title =
        |shape: &Meta| format!("{} to {}, in the shape of {}", before.meta.name, after.meta.name, shape.name);
    picture::draw_difference(&old, &new, false, &title(&after.meta), colours, &folder.join(FORWARD_FILE))?;
    picture::draw_difference(&new, &old, true, &title(&before.meta), colours, &folder.join(BACKWARD_FILE))?;
    Ok(text)
}

fn tables(before: &Side, after: &Side) -> String {
    let us = |side: &Side| side.meta.result.cpu_us_per_request.unwrap_or(f64::NAN);
    let mut text = format!("# {} to {}\n\n", before.meta.name, after.meta.name);
    for (what, side) in [("Before", before), ("After", after)] {
        let Meta { settings, load, result, .. } = &side.meta;
        let warning = if result.offered_was_reached { "" } else { " **The offered rate was not reached.**" };
        text += &format!(
            "{what}: `{}`: {:.0} of {} requests/s, {:.1} us CPU each, p50 {:.2} ms, p99 {:.2} ms.{warning}\n\n",
            settings.join(" "),
            result.rate_reached,
            load.rate_offered,
            us(side),
            result.p50_ms,
            result.p99_ms,
        );
    }
    let change = 100.0 * (us(after) / us(before) - 1.0);
    text +=
        &format!("Processor time per request: {:.1} to {:.1} us, {change:+.1} %.\n\n", us(before), us(after));
    text += &format!("## Groups\n\n{}\n\n", group_table(before, after).text());
    text += "## Frames with all that they call\n\n";
    text += &format!("{}\n\n", frame_table(before, after, |weight| weight.with_callees).text());
    text += "## Frames alone\n\n";
    text + &frame_table(before, after, |weight| weight.alone).text() + "\n"
}

const HEADINGS: [&str; 7] =
    ["frame", "before %", "after %", "change", "before us/request", "after us/request", "change us"];

fn row(name: &str, before: &Side, after: &Side, old: u64, new: u64) -> Vec<String> {
    let (old_percent, new_percent) = (before.percent(old), after.percent(new));
    let (old_us, new_us) = (before.us(old), after.us(new));
    vec![
        name.to_owned(),
        format!("{old_percent:.1}"),
        format!("{new_percent:.1}"),
        format!("{:+.1}", new_percent - old_percent),
        format!("{old_us:.2}"),
        format!("{new_us:.2}"),
        format!("{:+.2}", new_us - old_us),
    ]
}

/// From the shares of all samples where they are known: the stacks in files are cut.
fn group_table(before: &Side, after: &Side) -> Table {
    let headings = [&["group"], &HEADINGS[1..]].concat();
    let mut table = Table::new(&headings, 1);
    let samples = |side: &Side, group: groups::Group| {
        let known = side.meta.sampling.groups.iter().find(|(name, _)| name == group.name());
        let share = known.map(|(_, share)| *share);
        let share = share.unwrap_or_else(|| side.stacks.share(|frames| groups::group_of(frames) == group));
        (share * side.stacks.samples() as f64).round() as u64
    };
    for group in groups::Group::ALL {
        table.row(row(group.name(), before, after, samples(before, group), samples(after, group)));
    }
    table.row(row("all", before, after, before.stacks.samples(), after.stacks.samples()));
    table
}

/// The frames that have changed most.
fn frame_table(before: &Side, after: &Side, count: impl Fn(&super::stacks::Weight) -> u64) -> Table {
    let (old, new) = (before.stacks.by_frame(), after.stacks.by_frame());
    let names: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
    let of = |weights: &std::collections::HashMap<&str, super::stacks::Weight>, name| {
        weights.get(name).map_or(0, &count)
    };
    let mut rows: Vec<(f64, &str, u64, u64)> = names
        .into_iter()
        .map(|name| (name, of(&old, name), of(&new, name)))
        .map(|(name, old, new)| ((after.us(new) - before.us(old)).abs(), name, old, new))
        .filter(|(change, ..)| CHANGE_SHOWN_MIN_US <= *change)
        .collect();
    rows.sort_by(|one, other| other.0.total_cmp(&one.0));
    let mut table = Table::new(&HEADINGS, 1);
    for (_, name, old, new) in rows.into_iter().take(FRAMES_SHOWN_MAX) {
        table.row(row(&format!("`{name}`"), before, after, old, new));
    }
    table
}
