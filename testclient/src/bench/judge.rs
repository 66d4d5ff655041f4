//! Holds the samples against what Violet must reach, and says who is fastest where that can be said.
//!
//! A ratio is taken in each round between two samples of that round, so that what disturbs both cancels.
//! Rounds in which others used the processors are left out as long as enough remain, and it is said when they
//! did not. A target is *reached* when the whole interval of the ratio is on its good side, *missed* when it
//! is on the other, and *undecided* otherwise, also when there are too few rounds. Deliberately not here:
//! how the figures came about.

use serde::Serialize;

use super::measure::Sample;
use super::plan::{Cell, Group, MAIN_VALUE_BYTES, Target, block};
use crate::statistics::Estimate;

/// Rounds without disturbance that are enough to do without the others.
const QUIET_ROUNDS_MIN: usize = 6;

/// What is compared of two samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Right answers a second.
    Rate,
    /// The median latency.
    P50,
    /// The 99th percentile.
    P99,
    /// The server's processor time for an answer.
    Cpu,
}

impl Measure {
    fn of(self, sample: &Sample) -> f64 {
        match self {
            Self::Rate => sample.answered_per_second,
            Self::P50 => sample.latency_us.p50,
            Self::P99 => sample.latency_us.p99,
            Self::Cpu => sample.server_cpu_us_per_request,
        }
    }
}

/// Which side of a target is the good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// This or more.
    AtLeast,
    /// This or less.
    AtMost,
}

/// One thing that Violet must reach.
#[derive(Clone, Debug)]
pub struct Goal {
    /// In words.
    pub what: String,
    /// The cell whose figure is divided.
    pub cell: String,
    /// The cell that it is divided by.
    pub by: String,
    /// The figure.
    pub measure: Measure,
    /// The good side.
    pub wanted: Wanted,
    /// The least that must be reached.
    pub target: f64,
    /// What is hoped for.
    pub moonshot: f64,
}

/// How a ratio stands to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Surely on the good side.
    Reached,
    /// Surely not.
    Missed,
    /// The interval holds the limit, or is of too few rounds.
    Undecided,
    /// One of its cells was not measured.
    NotMeasured,
}

impl Verdict {
    /// As it stands in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Reached => "reached",
            Self::Missed => "missed",
            Self::Undecided => "undecided",
            Self::NotMeasured => "not measured",
        }
    }

    /// Of an interval.
    pub fn of(ratio: Option<&Estimate>, wanted: Wanted, limit: f64) -> Self {
        let Some(ratio) = ratio else { return Self::NotMeasured };
        let (is_good, is_bad) = match wanted {
            Wanted::AtLeast => (limit <= ratio.low, ratio.high < limit),
            Wanted::AtMost => (ratio.high <= limit, limit < ratio.low),
        };
        match (ratio.is_sure(), is_good, is_bad) {
            (true, true, _) => Self::Reached,
            (true, _, true) => Self::Missed,
            _ => Self::Undecided,
        }
    }
}

/// A goal with what was found.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// In words.
    pub what: String,
    /// The two cells.
    pub cells: [String; 2],
    /// The ratio over the rounds.
    pub ratio: Option<Estimate>,
    /// Whether a larger ratio is better.
    pub larger_is_better: bool,
    /// The least that must be reached.
    pub target: f64,
    /// What is hoped for.
    pub moonshot: f64,
    /// Against the target.
    pub verdict: Verdict,
    /// Against the hope.
    pub moonshot_verdict: Verdict,
    /// What must be known to read the ratio; empty when nothing.
    pub notes: Vec<String>,
}

/// What the median is taken of: the quiet samples if they are enough, else all.
pub fn usable<'a>(samples: &'a [Sample], cell: &str) -> (Vec<&'a Sample>, bool) {
    let all: Vec<&Sample> = samples.iter().filter(|sample| sample.cell == cell).collect();
    let quiet: Vec<&Sample> = all.iter().copied().filter(|sample| !sample.is_disturbed).collect();
    if QUIET_ROUNDS_MIN.min(all.len()) <= quiet.len() { (quiet, true) } else { (all, false) }
}

/// The estimate of one figure of a cell.
pub fn estimate(samples: &[Sample], cell: &str, figure: impl Fn(&Sample) -> f64) -> Option<Estimate> {
    let figures: Vec<f64> = usable(samples, cell).0.into_iter().map(figure).collect();
    Estimate::of(&figures)
}

/// The ratio of two cells over the rounds that both have, and whether disturbed rounds could be left out.
fn paired(samples: &[Sample], goal: &Goal) -> (Option<Estimate>, bool) {
    let of =
        |cell: &str, round: usize| samples.iter().find(|sample| sample.cell == cell && sample.round == round);
    let rounds = samples.iter().filter(|sample| sample.cell == goal.cell);
    let pairs: Vec<(&Sample, &Sample)> =
        rounds.filter_map(|sample| Some((sample, of(&goal.by, sample.round)?))).collect();
    let ratio = |&(sample, by): &(&Sample, &Sample)| goal.measure.of(sample) / goal.measure.of(by);
    let is_quiet = |&(sample, by): &(&Sample, &Sample)| !sample.is_disturbed && !by.is_disturbed;
    let quiet: Vec<f64> = pairs.iter().filter(|pair| is_quiet(pair)).map(ratio).collect();
    if QUIET_ROUNDS_MIN.min(pairs.len()) <= quiet.len() {
        return (Estimate::of(&quiet), true);
    }
    (Estimate::of(&pairs.iter().map(ratio).collect::<Vec<_>>()), false)
}

/// Judges one goal.
pub fn judge(samples: &[Sample], goal: &Goal) -> Judged {
    let (ratio, is_quiet) = paired(samples, goal);
    let notes = if ratio.is_some() { notes(samples, goal, is_quiet) } else { Vec::new() };
    Judged {
        what: goal.what.clone(),
        cells: [goal.cell.clone(), goal.by.clone()],
        ratio,
        larger_is_better: goal.wanted == Wanted::AtLeast,
        target: goal.target,
        moonshot: goal.moonshot,
        verdict: Verdict::of(ratio.as_ref(), goal.wanted, goal.target),
        moonshot_verdict: Verdict::of(ratio.as_ref(), goal.wanted, goal.moonshot),
        notes,
    }
}

/// What must be known to read a ratio, in few words each.
fn notes(samples: &[Sample], goal: &Goal, is_quiet: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if goal.cell.starts_with(Group::Overload.name()) {
        let (sent, peak) = (
            estimate(samples, &goal.cell, |sample| sample.sent_per_second),
            estimate(samples, &goal.by, |sample| sample.answered_per_second),
        );
        // The generator may not have been able to offer all of it.
        let times = sent.zip(peak).map(|(sent, peak)| format!("sent {:.1} x", sent.median / peak.median));
        notes.extend(times);
    }
    if !is_quiet {
        notes.push("others busy".to_owned());
    }
    for (cell, place) in [(&goal.cell, "first"), (&goal.by, "second")] {
        let of_cell = || samples.iter().filter(|sample| sample.cell == *cell);
        let limited = of_cell().filter(|sample| sample.is_generator_limited).count();
        if 0 < limited {
            notes.push(format!("generator-limited: {place}, {limited} of {}", of_cell().count()));
        }
        // No ratio can be taken of these.
        let silent = of_cell().filter(|sample| sample.answered_per_second == 0.0).count();
        if 0 < silent {
            notes.push(format!("nothing answered: {place}, {silent} of {}", of_cell().count()));
        }
        let lost: u64 = of_cell().map(|sample| sample.lost).sum();
        if 0 < lost && !cell.starts_with(Group::Overload.name()) {
            notes.push(format!("{lost} lost: {place}"));
        }
    }
    notes
}

/// Who is fastest of the cells of one group and value size; a sentence.
pub fn fastest(samples: &[Sample], cells: &[Cell]) -> Option<String> {
    let rate = |cell: &Cell| estimate(samples, &cell.id(), |sample| sample.answered_per_second);
    let mut rated: Vec<(&Cell, Estimate)> =
        cells.iter().filter_map(|cell| Some((cell, rate(cell)?))).collect();
    rated.sort_by(|one, other| other.1.median.total_cmp(&one.1.median));
    let [(first, best), (second, next), ..] = rated.as_slice() else { return None };
    let (first, second) = (first.target.name(), second.target.name());
    Some(match best.is_sure() && next.is_sure() && !best.overlaps(next) {
        true => format!("{first} answers most: its interval lies above that of {second}, the next"),
        false if !best.is_sure() || !next.is_sure() => "no winner: too few rounds to name one".to_owned(),
        false => format!("no winner: the intervals of {first} and {second} overlap"),
    })
}

/// What Violet must reach, as far as this program measures it.
pub fn goals() -> Vec<Goal> {
    let mut goals = Vec::new();
    let main = |group, target| id(group, MAIN_VALUE_BYTES, target, None);
    let mut rate = |what: &str, cell: String, by: String, target, moonshot| {
        let (measure, wanted, what) = (Measure::Rate, Wanted::AtLeast, what.to_owned());
        goals.push(Goal { what, cell, by, measure, wanted, target, moonshot });
    };
    let echo = || main(Group::Saturation, Target::ECHO);
    let saturated = |target| main(Group::Saturation, target);
    rate("raw / echo, 100 B, replies single", saturated(Target::RAW_SINGLE), echo(), 0.75, 0.90);
    rate("raw / echo, 100 B", saturated(Target::RAW), echo(), 1.0, 1.3);
    rate("protobuf / echo, 100 B", saturated(Target::PROTOBUF), echo(), 0.85, 1.1);
    for (target, layout, at_100, moonshot_at_100) in
        [(Target::RAW, "raw", 3.0, 5.0), (Target::PROTOBUF, "protobuf", 2.5, 4.0)]
    {
        for (value_bytes, least, moonshot) in
            [(100, at_100, moonshot_at_100), (1_000, 1.6, 2.5), (10_000, 1.6, 2.5)]
        {
            // Nobody's buffer may overflow.
            let group = if value_bytes <= 100 { Group::SmallWindow } else { Group::Saturation };
            let of = |target| id(group, value_bytes, target, None);
            let what = format!("{layout} / memcached UDP, {value_bytes} B");
            rate(&what, of(target), of(Target::MEMCACHED), least, moonshot);
        }
    }
    rate("raw / redis TCP pipelined, 100 B", saturated(Target::RAW), saturated(Target::REDIS), 0.9, 1.0);
    for (target, layout) in [(Target::RAW, "raw"), (Target::PROTOBUF, "protobuf")] {
        let overload = id(Group::Overload, MAIN_VALUE_BYTES, target, Some(super::plan::OVERLOAD_FACTOR));
        let what = format!("goodput at 4 x the saturating load / peak, {layout}");
        rate(&what, overload, saturated(target), 0.90, 0.97);
    }
    let mut at_most = |what: &str, group, targets: [Target; 2], measure, target, moonshot| {
        let [cell, by] = targets.map(|target| main(group, target));
        goals.push(Goal {
            what: what.to_owned(),
            cell,
            by,
            measure,
            wanted: Wanted::AtMost,
            target,
            moonshot,
        });
    };
    let unloaded = [Target::RAW, Target::ECHO];
    at_most("unloaded p50, raw / echo", Group::Unloaded, unloaded, Measure::P50, 1.2, 1.05);
    at_most("unloaded p99, raw / echo", Group::Unloaded, unloaded, Measure::P99, 1.4, 1.1);
    let workers = [Target::RAW_FOUR, Target::RAW];
    at_most("CPU per request, 4 workers / 1", Group::Workers, workers, Measure::Cpu, 1.15, 1.0);
    goals
}

/// The id of a cell of the plan.
fn id(group: Group, value_bytes: usize, target: Target, share: Option<f64>) -> String {
    let is_share = |cell: &Cell| match (cell.shape, share) {
        (super::plan::Shape::Open { share }, Some(wanted)) => share == wanted,
        (_, wanted) => wanted.is_none(),
    };
    let cells = block(value_bytes);
    let found = cells.iter().find(|cell| cell.group == group && cell.target == target && is_share(cell));
    found.expect("goals are about cells of the plan; a test reads them all").id()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(cell: &str, rates: &[f64]) -> Vec<Sample> {
        rates.iter().enumerate().map(|(index, &rate)| Sample::example(cell, index + 1, rate)).collect()
    }

    fn goal(target: f64) -> Goal {
        Goal {
            what: "a / b".to_owned(),
            cell: "a".to_owned(),
            by: "b".to_owned(),
            measure: Measure::Rate,
            wanted: Wanted::AtLeast,
            target,
            moonshot: 1e9,
        }
    }

    /// Nine rounds in which the machine gets slower and slower, and a is always a fifth faster than b.
    fn drifting() -> Vec<Sample> {
        let b: Vec<f64> = (1..=9).map(|round| 1_000.0 / f64::from(round)).collect();
        let a: Vec<f64> = b.iter().map(|rate| rate * 1.2).collect();
        [samples("a", &a), samples("b", &b)].concat()
    }

    #[test]
    fn a_ratio_is_taken_within_rounds_so_that_drift_cancels() {
        let check = |target, expected| {
            let judged = judge(&drifting(), &goal(target));
            assert_eq!(judged.verdict, expected, "{target}: {judged:?}");
            assert_eq!(judged.moonshot_verdict, Verdict::Missed);
        };
        check(1.1, Verdict::Reached);
        check(1.3, Verdict::Missed);
    }

    #[test]
    fn a_target_inside_the_interval_or_too_few_rounds_decide_nothing() {
        let rates = [0.8, 0.9, 0.95, 1.0, 1.0, 1.0, 1.05, 1.1, 1.2];
        let all = [samples("a", &rates), samples("b", &[1.0; 9])].concat();
        assert_eq!(judge(&all, &goal(1.02)).verdict, Verdict::Undecided);
        assert_eq!(judge(&all, &goal(0.85)).verdict, Verdict::Reached, "the smallest is left out");
        assert_eq!(judge(&all, &goal(1.15)).verdict, Verdict::Missed);
        let few = [samples("a", &[2.0; 5]), samples("b", &[1.0; 5])].concat();
        let judged = judge(&few, &goal(1.0));
        assert_eq!(judged.verdict, Verdict::Undecided, "too few rounds");
        assert_eq!(judge(&samples("a", &[1.0; 9]), &goal(1.0)).verdict, Verdict::NotMeasured);
    }

    #[test]
    fn at_most_is_the_other_way_round() {
        let estimate = Estimate { median: 1.0, low: 0.9, high: 1.1, coverage: 0.96, count: 9 };
        let verdict = |limit| Verdict::of(Some(&estimate), Wanted::AtMost, limit);
        assert_eq!([1.1, 1.0, 0.8].map(verdict), [Verdict::Reached, Verdict::Undecided, Verdict::Missed]);
    }

    #[test]
    fn disturbed_rounds_are_left_out_while_enough_remain() {
        let mut all = [samples("a", &[2.0; 9]), samples("b", &[1.0; 9])].concat();
        for sample in &mut all[..3] {
            (sample.answered_per_second, sample.is_disturbed) = (0.1, true);
        }
        let judged = judge(&all, &goal(1.5));
        assert_eq!((judged.verdict, judged.ratio.unwrap().count), (Verdict::Reached, 6));
        all[3].is_disturbed = true;
        let judged = judge(&all, &goal(1.5));
        assert_eq!((judged.verdict, judged.ratio.unwrap().count), (Verdict::Undecided, 9));
        assert_eq!(judged.notes, ["others busy"]);
    }

    #[test]
    fn losses_and_a_generator_at_its_limit_are_noted() {
        let mut all = [samples("a", &[2.0; 9]), samples("b", &[1.0; 9])].concat();
        all[2].lost = 7;
        all[9].is_generator_limited = true;
        all[10].answered_per_second = 0.0;
        let judged = judge(&all, &goal(1.5));
        assert_eq!(
            judged.notes,
            ["7 lost: first", "generator-limited: second, 1 of 9", "nothing answered: second, 1 of 9"]
        );
        assert_eq!(judged.ratio.unwrap().count, 8);
    }

    #[test]
    fn an_overload_says_how_much_was_sent() {
        let overload = goals().into_iter().find(|goal| goal.cell.starts_with("overload")).unwrap();
        let mut all = [samples(&overload.cell, &[1.0; 9]), samples(&overload.by, &[1.0; 9])].concat();
        all[..9].iter_mut().for_each(|sample| sample.sent_per_second = 3.5);
        assert_eq!(judge(&all, &overload).notes, ["sent 3.5 x"]);
    }

    #[test]
    fn no_winner_is_named_when_intervals_overlap() {
        let cells: Vec<Cell> = block(100)
            .into_iter()
            .filter(|cell| cell.group == Group::Saturation)
            .filter(|cell| [Target::ECHO, Target::RAW].contains(&cell.target))
            .collect();
        let [echo, raw] = [cells[0].id(), cells[1].id()];
        let check = |echo_rates: &[f64], raw_rates: &[f64], expected: &str| {
            let all = [samples(&echo, echo_rates), samples(&raw, raw_rates)].concat();
            let sentence = fastest(&all, &cells).unwrap();
            assert!(sentence.starts_with(expected), "{sentence}");
        };
        let slow = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8];
        let overlapping = slow.map(|rate| rate + 0.5);
        let fast = slow.map(|rate| rate + 0.7);
        check(&slow, &overlapping, "no winner: the intervals of violet raw and echo overlap");
        check(&slow, &fast, "violet raw answers most");
        check(&fast, &slow, "echo answers most");
        check(&slow[..5], &[9.0; 5], "no winner: too few rounds");
        assert_eq!(fastest(&samples(&echo, &slow), &cells), None, "nobody to compare with");
    }

    #[test]
    fn goals_are_about_cells_of_the_plan() {
        let goals = goals();
        assert_eq!(goals.len(), 15);
        let plan: Vec<String> = super::super::plan::VALUE_SIZES
            .iter()
            .flat_map(|&bytes| block(bytes))
            .map(|cell| cell.id())
            .collect();
        assert!(goals.iter().all(|goal| plan.contains(&goal.cell) && plan.contains(&goal.by)));
    }
}
