//! Two or three results held against each other, load by load, with a verdict that knows about noise.
//!
//! A figure of each repeat on one side is divided by that of each repeat on the other; if the whole interval of the
//! ratio lies on one side of one, the second result is better or worse, else no difference can be told. That
//! takes four repeats a side; of one repeat the spread between runs is unknown, and only the scatter of its seconds
//! is shown. What differs in its settings, is incomplete, or does not show the servers is not compared, and it is
//! said why. Deliberately not here: results with disturbed rounds taken in turns (`bench`), which cancel drift.

use std::collections::BTreeSet;

use super::digest::{self, Kind, Load, is_rate_reached};
use super::words;
use crate::report::Table;
use crate::result::{Phase, RunResult};
use crate::statistics::{COVERAGE_MIN, Estimate, resampled_ratio};

/// What settings may differ in without changing what is measured.
const HARMLESS_SETTINGS: [&str; 7] = ["seed", "json", "html", "markdown", "csv", "hdr-log", "servers"];
/// Fewer than this many answers above a percentile make it a matter of chance.
const ANSWERS_ABOVE_MIN: f64 = 10.0;
/// Seconds that are drawn together, since what slows one often slows the next.
const BLOCK_SECONDS: usize = 5;
/// Windows may differ by this share.
const WINDOW_SHARE: f64 = 0.01;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// Good answers a second.
    Goodput,
    /// A corrected percentile.
    Percentile(f64),
    /// The share of requests that ended well.
    Success,
    /// The servers' processor time for a good answer.
    Cost,
    /// Answers that cannot be right.
    Wrong,
}

/// What can be said of a figure.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Surely better than the first result.
    Better,
    /// Surely worse.
    Worse,
    /// The noise is larger than the difference.
    NoDifference,
    /// Why nothing can be said.
    CannotBeCompared(String),
}

/// One figure of one load of one result beside the first.
#[derive(Clone, Debug)]
pub struct Row {
    /// The load's name.
    pub load: String,
    /// The result that is held against the first.
    pub other: String,
    /// The figure.
    pub measure: Measure,
    /// Its medians, first and other.
    pub figures: [f64; 2],
    /// Other divided by first.
    pub ratio: Option<Estimate>,
    /// What can be said.
    pub verdict: Verdict,
    /// Whether it is worse by more than is tolerated.
    pub is_beyond: bool,
}

/// Everything that was found.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// What applies to the whole.
    pub notes: Vec<String>,
    /// By load and figure.
    pub rows: Vec<Row>,
}

/// How to compare.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The share by which a figure may be worse.
    pub tolerance: f64,
    /// Settings that are meant to differ.
    pub meant: Vec<String>,
}

impl Verdict {
    /// In words.
    pub fn text(&self) -> String {
        match self {
            Self::Better => "better".to_owned(),
            Self::Worse => "worse".to_owned(),
            Self::NoDifference => "no difference can be told".to_owned(),
            Self::CannotBeCompared(why) => format!("cannot be compared because {why}"),
        }
    }
}

impl Measure {
    /// Its name with its unit.
    pub fn name(self) -> String {
        match self {
            Self::Goodput => "goodput".to_owned(),
            Self::Percentile(percent) => format!("p{percent}"),
            Self::Success => "requests that end well".to_owned(),
            Self::Cost => "server CPU per request".to_owned(),
            Self::Wrong => "wrong answers".to_owned(),
        }
    }

    /// A figure of it.
    pub fn text(self, figure: f64) -> String {
        match self {
            _ if figure.is_nan() => "-".to_owned(),
            Self::Goodput => words::rate(figure),
            Self::Percentile(_) => words::latency(figure),
            Self::Success => words::percent(figure),
            Self::Cost => format!("{figure:.2} µs"),
            Self::Wrong => words::count(figure as u64),
        }
    }

    fn is_larger_better(self) -> bool {
        matches!(self, Self::Goodput | Self::Success)
    }

    /// The figure of one repeat.
    fn of(self, phase: &Phase) -> Option<f64> {
        match self {
            Self::Goodput => Some(phase.counts.good as f64 / phase.window_seconds),
            Self::Percentile(percent) => {
                let latency = digest::latency(phase, None, Kind::Corrected);
                let above = latency.0.len() as f64 * (1.0 - percent / 100.0);
                (ANSWERS_ABOVE_MIN <= above).then(|| latency.ms(percent))
            }
            Self::Success => {
                (0 < phase.counts.sent).then(|| phase.counts.good as f64 / phase.counts.sent as f64)
            }
            Self::Cost => digest::cost_us(phase),
            Self::Wrong => Some(phase.counts.wrong as f64),
        }
    }

    /// The figure second by second, where there is one.
    fn by_second(self, phase: &Phase) -> Option<Vec<f64>> {
        let of = |figure: fn(&crate::result::Second) -> f64| phase.seconds.iter().map(figure).collect();
        match self {
            Self::Goodput => Some(of(|second| second.good as f64)),
            Self::Percentile(50.0) => Some(of(|second| second.p50_ms)),
            Self::Percentile(99.0) => Some(of(|second| second.p99_ms)),
            Self::Percentile(_) | Self::Success | Self::Cost | Self::Wrong => None,
        }
    }
}

impl Comparison {
    /// Holds all results against the first; each comes with its name.
    pub fn of(results: &[(String, RunResult)], rules: &Rules) -> Self {
        let mut notes = Vec::new();
        let mut rows = Vec::new();
        if let Some(((first_name, first), others)) = results.split_first() {
            for (name, other) in others {
                notes.extend(machine_note(first_name, first, name, other));
                let whole = refusal(first_name, first, name, other, rules);
                rows.extend(pair(first, name, other, whole.as_deref(), rules));
                notes.extend(unmatched(first_name, first, name, other));
            }
        }
        let judged = rows.iter().filter(|row| row.is_judged()).count();
        if 1 < judged {
            let expected = judged as f64 * (1.0 - COVERAGE_MIN);
            notes.push(format!(
                "{judged} figures were judged at {:.0} %: of figures that are the same, chance alone would name about \
                 {expected:.1} as different.",
                100.0 * COVERAGE_MIN
            ));
        }
        Self { notes, rows }
    }

    /// Whether anything is worse by more than is tolerated.
    pub fn is_worse(&self) -> bool {
        self.rows.iter().any(|row| row.is_beyond)
    }

    /// Whether anything could be compared at all.
    pub fn is_any_judged(&self) -> bool {
        self.rows.iter().any(Row::is_judged)
    }

    /// The verdict in a sentence.
    pub fn sentence(&self, tolerance: f64) -> String {
        let count = |verdict: &Verdict| self.rows.iter().filter(|row| row.verdict == *verdict).count();
        let beyond = self.rows.iter().filter(|row| row.is_beyond).count();
        let refused = self.rows.iter().filter(|row| !row.is_judged()).count();
        if !self.is_any_judged() {
            return "Nothing could be compared.".to_owned();
        }
        format!(
            "{} worse ({beyond} by more than {}), {} better, {} without a difference that can be told, {refused} not \
             compared.",
            words::several(count(&Verdict::Worse) as u64, "figure", "figures"),
            words::percent(tolerance),
            count(&Verdict::Better),
            count(&Verdict::NoDifference),
        )
    }

    /// All rows as a table.
    pub fn table(&self) -> Table {
        let mut table =
            Table::new(&["load", "result", "figure", "first", "this", "ratio", "interval", "verdict"], 3)
                .with_words_last();
        for row in &self.rows {
            let ratio = |text: &dyn Fn(Estimate) -> String| row.ratio.map_or("-".to_owned(), text);
            table.row(vec![
                row.load.clone(),
                row.other.clone(),
                row.measure.name(),
                row.measure.text(row.figures[0]),
                row.measure.text(row.figures[1]),
                ratio(&|ratio| format!("{:.3}", ratio.median)),
                ratio(&|ratio| match ratio.is_sure() {
                    true => format!("{:.3}..{:.3}", ratio.low, ratio.high),
                    false => "-".to_owned(),
                }),
                row.verdict.text() + if row.is_beyond { ", beyond the tolerance" } else { "" },
            ]);
        }
        table
    }
}

impl Row {
    fn is_judged(&self) -> bool {
        !matches!(self.verdict, Verdict::CannotBeCompared(_))
    }
}

/// Why two results cannot be compared at all.
fn refusal(
    first_name: &str,
    first: &RunResult,
    name: &str,
    other: &RunResult,
    rules: &Rules,
) -> Option<String> {
    for (name, result) in [(first_name, first), (name, other)] {
        if let Some(why) = &result.incomplete {
            return Some(format!("{name} is incomplete: {why}"));
        }
    }
    let names: BTreeSet<&String> = first.settings.keys().chain(other.settings.keys()).collect();
    let is_free =
        |name: &str| HARMLESS_SETTINGS.contains(&name) || rules.meant.iter().any(|meant| meant == name);
    let value = |result: &RunResult, name: &String| {
        result.settings.get(name).cloned().unwrap_or("not set".to_owned())
    };
    let differing: Vec<String> = names
        .into_iter()
        .filter(|name| !is_free(name))
        .filter(|name| first.settings.get(*name) != other.settings.get(*name))
        .map(|name| format!("{name}: {} / {}", value(first, name), value(other, name)))
        .collect();
    (!differing.is_empty()).then(|| format!("the settings differ ({})", differing.join(", ")))
}

fn machine_note(first_name: &str, first: &RunResult, name: &str, other: &RunResult) -> Option<String> {
    let machines = |result: &RunResult| {
        let kind =
            |machine: &crate::result::Machine| format!("{} × {}", machine.processors, machine.processor);
        result.machines.iter().map(kind).collect::<Vec<_>>().join(", ")
    };
    let (one, two) = (machines(first), machines(other));
    (one != two).then(|| format!("{first_name} and {name} were made on different machines: {one} / {two}."))
}

/// Loads that only one side has.
fn unmatched(first_name: &str, first: &RunResult, name: &str, other: &RunResult) -> Vec<String> {
    let lacking = |own: &RunResult, own_name: &str, theirs: &RunResult| {
        let theirs = digest::loads(theirs);
        let alone = digest::loads(own).into_iter().filter(|load| partner(load, &theirs).is_none());
        let names: Vec<String> = alone.map(|load| load.name).collect();
        (!names.is_empty()).then(|| format!("Only in {own_name}: {}.", names.join(", ")))
    };
    [lacking(first, first_name, other), lacking(other, name, first)].into_iter().flatten().collect()
}

/// The load of the other side that is the same, or at least of the same group and timing.
fn partner<'a, 'b>(load: &Load, others: &'b [Load<'a>]) -> Option<&'b Load<'a>> {
    let (one, mut candidates) = (load.first(), others.iter().filter(|other| other.group == load.group));
    let same_timing: Vec<_> = candidates.clone().filter(|other| other.first().timing == one.timing).collect();
    let is_same = |other: &&&Load| other.first().servers == one.servers && other.first().format == one.format;
    if let Some(found) = same_timing.iter().find(is_same).or(same_timing.first()) {
        return Some(found);
    }
    // A group with one setting on each side is meant to be the same.
    let only = candidates.next()?;
    candidates.next().is_none().then_some(only)
}

fn pair(first: &RunResult, name: &str, other: &RunResult, whole: Option<&str>, rules: &Rules) -> Vec<Row> {
    let others = digest::loads(other);
    let mut rows = Vec::new();
    for load in digest::loads(first) {
        let Some(partner) = partner(&load, &others) else { continue };
        let refused = whole.map(str::to_owned).or_else(|| setting_difference(&load, partner, rules));
        let measures = [
            Measure::Goodput,
            Measure::Percentile(50.0),
            Measure::Percentile(99.0),
            Measure::Percentile(99.9),
            Measure::Success,
            Measure::Cost,
        ];
        for measure in measures {
            rows.extend(row(&load, partner, name, measure, refused.as_deref(), rules.tolerance));
        }
        rows.extend(wrong_row(&load, partner, name, refused.as_deref()));
    }
    rows
}

/// What is not the same in two loads.
fn setting_difference(load: &Load, other: &Load, rules: &Rules) -> Option<String> {
    let (one, two) = (load.first(), other.first());
    let is_meant = |name: &str| rules.meant.iter().any(|meant| meant == name);
    let windows = (one.window_seconds - two.window_seconds).abs() / one.window_seconds;
    let differs = [
        ("timing", one.timing != two.timing, words::timing(&one.timing), words::timing(&two.timing)),
        ("format", one.format != two.format, one.format.clone(), two.format.clone()),
        ("servers", one.servers != two.servers, one.servers.to_string(), two.servers.to_string()),
        (
            "window",
            WINDOW_SHARE < windows,
            words::seconds(one.window_seconds),
            words::seconds(two.window_seconds),
        ),
    ];
    let found = differs.into_iter().find(|(name, is_different, ..)| *is_different && !is_meant(name));
    found.map(|(name, _, one, two)| format!("the loads differ ({name}: {one} / {two})"))
}

/// Why a figure of a load does not show the servers.
fn spoiled(load: &Load, measure: Measure) -> Option<String> {
    if let Some(why) = load.phases.iter().find_map(|phase| phase.generator.limited.as_ref()) {
        return Some(format!("the generator was the limit: {why}"));
    }
    let is_unreached = load.phases.iter().any(|phase| !is_rate_reached(phase));
    (is_unreached && matches!(measure, Measure::Percentile(_))).then(|| "the rate was not reached".to_owned())
}

fn row(
    load: &Load,
    other: &Load,
    name: &str,
    measure: Measure,
    refused: Option<&str>,
    tolerance: f64,
) -> Option<Row> {
    let figures =
        |load: &Load| load.phases.iter().filter_map(|phase| measure.of(phase)).collect::<Vec<f64>>();
    let (own, theirs) = (figures(load), figures(other));
    let median = |figures: &[f64]| Estimate::of(figures).map(|estimate| estimate.median);
    let medians = [median(&own)?, median(&theirs)?];
    let ratio = Estimate::of_ratio(&theirs, &own);
    let refused =
        refused.map(str::to_owned).or_else(|| spoiled(load, measure)).or_else(|| spoiled(other, measure));
    let verdict = match (refused, &ratio) {
        (Some(why), _) => Verdict::CannotBeCompared(why),
        (None, None) => Verdict::CannotBeCompared("one of them is zero".to_owned()),
        (None, Some(_)) if own.len() < 2 || theirs.len() < 2 => {
            Verdict::CannotBeCompared(single(load, other, measure))
        }
        (None, Some(ratio)) => judge(ratio, measure),
    };
    let is_beyond =
        verdict == Verdict::Worse && ratio.is_some_and(|ratio| is_beyond(&ratio, measure, tolerance));
    Some(Row {
        load: load.name.clone(),
        other: name.to_owned(),
        measure,
        figures: medians,
        ratio,
        verdict,
        is_beyond,
    })
}

/// What can be said of single repeats.
fn single(load: &Load, other: &Load, measure: Measure) -> String {
    let seconds = |load: &Load| measure.by_second(load.first());
    let within = seconds(load)
        .zip(seconds(other))
        .and_then(|(own, theirs)| resampled_ratio(&theirs, &own, BLOCK_SECONDS));
    let what = "there is only one repeat, so the spread between runs is unknown";
    match within {
        Some((low, high)) => format!("{what}; the seconds within these two runs give {low:.3}..{high:.3}"),
        None => what.to_owned(),
    }
}

fn judge(ratio: &Estimate, measure: Measure) -> Verdict {
    if ratio.low == 1.0 && ratio.high == 1.0 {
        return Verdict::NoDifference;
    }
    if !ratio.is_sure() {
        let coverage = 100.0 * ratio.coverage;
        return Verdict::CannotBeCompared(format!(
            "the repeats are too few to tell noise from a difference (these are {coverage:.0} % sure at best; four a \
             side are enough)"
        ));
    }
    match (1.0 < ratio.low, ratio.high < 1.0, measure.is_larger_better()) {
        (true, _, true) | (_, true, false) => Verdict::Better,
        (true, _, false) | (_, true, true) => Verdict::Worse,
        (false, false, _) => Verdict::NoDifference,
    }
}

fn is_beyond(ratio: &Estimate, measure: Measure, tolerance: f64) -> bool {
    match measure.is_larger_better() {
        true => ratio.high < 1.0 - tolerance,
        false => 1.0 + tolerance < ratio.low,
    }
}

/// Wrong answers are no matter of noise: one is too many.
fn wrong_row(load: &Load, other: &Load, name: &str, refused: Option<&str>) -> Option<Row> {
    let figures = [load, other].map(|load| load.counts().wrong as f64);
    if figures == [0.0, 0.0] {
        return None;
    }
    let verdict = match (refused, figures[0] == 0.0, figures[1] == 0.0) {
        (Some(why), ..) => Verdict::CannotBeCompared(why.to_owned()),
        (None, true, _) => Verdict::Worse,
        (None, _, true) => Verdict::Better,
        (None, false, false) => Verdict::NoDifference,
    };
    let is_beyond = verdict == Verdict::Worse;
    let (load, other) = (load.name.clone(), name.to_owned());
    Some(Row { load, other, measure: Measure::Wrong, figures, ratio: None, verdict, is_beyond })
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn rules() -> Rules {
        Rules { tolerance: 0.05, meant: Vec::new() }
    }

    fn compare(first: RunResult, other: RunResult, rules: &Rules) -> Comparison {
        Comparison::of(&[("a".to_owned(), first), ("b".to_owned(), other)], rules)
    }

    fn verdict(comparison: &Comparison, load: &str, measure: Measure) -> String {
        let found = comparison.rows.iter().find(|row| row.load == load && row.measure == measure);
        found.unwrap_or_else(|| panic!("{comparison:?}")).verdict.text()
    }

    #[test]
    fn a_change_beyond_the_noise_is_told_and_one_within_it_is_not() {
        let (first, slower) = (samples::repeats(5, 1.0, 0), samples::repeats(5, 0.8, 50));
        let worse = compare(first.clone(), slower.clone(), &rules());
        assert_eq!(verdict(&worse, "R16", Measure::Goodput), "worse");
        assert_eq!(verdict(&worse, "R16", Measure::Percentile(99.0)), "worse");
        assert!(worse.is_worse());
        let better = compare(slower, first.clone(), &rules());
        assert_eq!(verdict(&better, "R16", Measure::Goodput), "better");
        assert!(!better.is_worse() && better.is_any_judged());
        let same = compare(first, samples::repeats(5, 1.0, 50), &rules());
        assert_eq!(verdict(&same, "R16", Measure::Goodput), "no difference can be told");
        assert!(!same.is_worse());
    }

    #[test]
    fn a_sure_difference_within_the_tolerance_is_worse_but_tolerated() {
        let rules = Rules { tolerance: 0.5, ..rules() };
        let found = compare(samples::repeats(5, 1.0, 0), samples::repeats(5, 0.8, 50), &rules);
        assert_eq!(verdict(&found, "R16", Measure::Goodput), "worse");
        assert!(!found.is_worse());
    }

    #[test]
    fn what_cannot_be_compared_says_why() {
        let first = || samples::repeats(5, 1.0, 0);
        let check = |other: RunResult, expected: &str| {
            let found = compare(first(), other, &rules());
            let text = verdict(&found, "R16", Measure::Percentile(99.0));
            assert!(text.starts_with("cannot be compared because ") && text.contains(expected), "{text}");
            assert!(!found.is_worse());
        };
        check(
            RunResult { incomplete: Some("interrupted".to_owned()), ..first() },
            "b is incomplete: interrupted",
        );
        let mut other = first();
        other.settings.insert("keys".to_owned(), "5".to_owned());
        check(other.clone(), "the settings differ (keys: 100000 / 5)");
        let meant = Rules { meant: vec!["keys".to_owned()], ..rules() };
        assert_eq!(
            verdict(&compare(first(), other, &meant), "R16", Measure::Goodput),
            "no difference can be told"
        );
        let mut other = first();
        other.phases[0].generator.limited = Some("late".to_owned());
        check(other, "the generator was the limit: late");
        let mut other = first();
        other.phases.iter_mut().for_each(|phase| phase.servers = 9);
        check(other, "the loads differ (servers: 5 / 9)");
        check(samples::repeats(2, 0.5, 50), "too few");
    }

    #[test]
    fn of_one_repeat_only_the_scatter_of_its_seconds_is_known() {
        let found = compare(samples::faults(), samples::faults(), &rules());
        let text = verdict(&found, "faults", Measure::Goodput);
        assert!(
            text.contains("only one repeat, so the spread between runs is unknown; the seconds"),
            "{text}"
        );
        assert!(!found.is_any_judged());
        assert_eq!(found.sentence(0.05), "Nothing could be compared.");
    }

    #[test]
    fn a_wrong_answer_is_worse_whatever_the_noise() {
        let mut other = samples::repeats(5, 1.0, 50);
        other.phases[0].counts.wrong = 1;
        let found = compare(samples::repeats(5, 1.0, 0), other, &rules());
        assert_eq!(verdict(&found, "R16", Measure::Wrong), "worse");
        assert!(found.is_worse());
    }

    #[test]
    fn loads_of_one_side_only_are_named() {
        let found = compare(samples::grid(), samples::repeats(3, 1.0, 0), &rules());
        assert!(found.notes.iter().any(|note| note == "Only in a: S1, S16, R1, R64."), "{:?}", found.notes);
        let text = verdict(&found, "R16", Measure::Goodput);
        assert!(text.contains("too few") && text.contains("90 % sure"), "{text}");
    }
}
