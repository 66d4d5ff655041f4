//! Thresholds: small statements about a result that decide an exit code.
//!
//! `[operation.]figure relation limit [unit] [in load]`, for example `p99 < 20 ms`, `get.p99.9 < 50 ms in R16`,
//! `failures < 1 %`, `goodput > 10000 /s`, `wrong = 0`. A statement without `in` is about every load, and so it
//! holds only if it holds in the worst. A figure that is not what it seems decides nothing: a latency at
//! a rate that was not reached never passes, and one that the generator spoiled neither passes nor fails.
//! Deliberately not here: comparisons with another result.

use std::ops::Range;

use super::digest::{self, Kind, Load};
use super::words;
use crate::result::{Check, Counts, RunResult};

/// What can be asked about.
const FIGURES: &str = "p50, p99.9 or another percentile, mean, max, raw.p99, goodput, answered, sent, failures, \
wrong, refused, timeouts, late, duplicates, foreign, undecodable, skipped, lateness, cpu";

/// A statement.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    text: String,
    operation: Option<String>,
    figure: Figure,
    relation: Relation,
    limit: f64,
    load: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Figure {
    Percentile { percent: f64, kind: LatencyKind },
    Mean,
    Goodput,
    Answered,
    Sent,
    Failures,
    Count(CountOf),
    Lateness,
    Cpu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LatencyKind {
    Corrected,
    Raw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountOf {
    Wrong,
    Refused,
    Timeouts,
    Late,
    Duplicates,
    Foreign,
    Undecodable,
    Skipped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Less,
    AtMost,
    More,
    AtLeast,
    Equal,
}

/// What a figure is measured in, and so which units its limit may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dimension {
    Milliseconds,
    PerSecond,
    Share,
    Count,
}

/// Reads statements, and names the first that is none.
///
/// # Errors
/// One sentence that says where it is wrong and what would be right.
pub fn parse_all(texts: &[String]) -> Result<Vec<Threshold>, String> {
    texts.iter().map(|text| Threshold::parse(text)).collect()
}

/// Holds a result against statements.
pub fn check_all(thresholds: &[Threshold], result: &RunResult) -> Vec<Check> {
    thresholds.iter().map(|threshold| threshold.check(result)).collect()
}

/// Whether all hold. What could not be decided has not been shown to hold.
pub fn all_hold(checks: &[Check]) -> bool {
    checks.iter().all(|check| check.passed == Some(true))
}

impl Threshold {
    /// Reads one statement.
    ///
    /// # Errors
    /// One sentence that says where it is wrong and what would be right.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut reader = Reader { text, at: 0 };
        let (operation, figure) = reader.figure()?;
        let relation = reader.relation()?;
        let limit = reader.limit(figure.dimension())?;
        let load = reader.load()?;
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(Self { text, operation, figure, relation, limit, load })
    }

    /// Holds a result against it.
    pub fn check(&self, result: &RunResult) -> Check {
        let loads = digest::loads(result);
        let is_meant = |load: &&Load| {
            self.load.as_ref().is_none_or(|name| {
                load.group == name
                    || load.name == *name
                    || load.phases.iter().any(|phase| phase.name == *name)
            })
        };
        let meant: Vec<&Load> = loads.iter().filter(is_meant).collect();
        if meant.is_empty() {
            let known: Vec<&str> = loads.iter().map(|load| load.name.as_str()).collect();
            let what = self.load.as_deref().map_or("any load".to_owned(), |name| format!("a load {name:?}"));
            return self.unknown(format!("the result has not {what}; it has: {}", known.join(", ")));
        }
        let seen: Vec<Seen> = meant.iter().map(|load| self.look(load)).collect();
        let Some(worst) = seen.iter().min_by_key(|seen| seen.rank()) else {
            return self.unknown("nothing was measured".to_owned());
        };
        let mut check = Check { name: self.text.clone(), passed: worst.passed, seen: worst.text.clone() };
        if let (Some(true), Some(why)) = (check.passed, &result.incomplete) {
            check.passed = None;
            check.seen += &format!("; but the run is incomplete: {why}");
        }
        check
    }

    fn unknown(&self, seen: String) -> Check {
        Check { name: self.text.clone(), passed: None, seen }
    }

    fn look(&self, load: &Load) -> Seen {
        let Some(figure) = self.value(load) else {
            return Seen { passed: None, text: format!("not known in {}", load.name) };
        };
        let holds = self.relation.holds(figure, self.limit);
        let caveats = load.caveats();
        let caveat = if caveats.is_empty() { String::new() } else { format!("; {}", caveats.join("; ")) };
        // How many requests ended how is true of those that were sent, whenever they were.
        let is_count = self.figure.dimension() == Dimension::Count || self.figure == Figure::Failures;
        let is_limited = load.phases.iter().any(|phase| phase.generator.limited.is_some());
        let is_reached = load.phases.iter().all(|phase| digest::is_rate_reached(phase));
        let passed = match (holds, is_limited && !is_count, is_reached || is_count) {
            (_, true, _) => None,
            (true, false, false) if self.figure.is_latency() => None,
            (holds, false, _) => Some(holds),
        };
        Seen { passed, text: format!("{} in {}{caveat}", self.figure.dimension().text(figure), load.name) }
    }

    fn value(&self, load: &Load) -> Option<f64> {
        let operation = self.operation.as_deref();
        let counts = self.counts(load)?;
        let seconds: f64 = load.phases.iter().map(|phase| phase.window_seconds).sum();
        let rate = |count: u64| (0.0 < seconds).then(|| count as f64 / seconds);
        let answered = |latency: crate::result::Latency| (!latency.0.is_empty()).then_some(latency);
        match self.figure {
            Figure::Percentile { percent, kind } => {
                let kind = match kind {
                    LatencyKind::Corrected => Kind::Corrected,
                    LatencyKind::Raw => Kind::Raw,
                };
                answered(load.latency(operation, kind)).map(|latency| latency.ms(percent))
            }
            Figure::Mean => {
                answered(load.latency(operation, Kind::Corrected)).map(|latency| latency.0.mean() / 1e6)
            }
            Figure::Goodput => rate(counts.good),
            Figure::Answered => rate(counts.answered),
            Figure::Sent => rate(counts.sent),
            Figure::Failures => (0 < counts.sent).then(|| 100.0 * digest::failure_share(&counts)),
            Figure::Count(count) => Some(count.of(&counts) as f64),
            Figure::Lateness => {
                load.phases.iter().map(|phase| phase.generator.lateness_p99_ms).reduce(f64::max)
            }
            Figure::Cpu => load.cost_us().into_iter().reduce(f64::max).map(|us| us / 1e3),
        }
    }

    fn counts(&self, load: &Load) -> Option<Counts> {
        let Some(operation) = &self.operation else { return Some(load.counts()) };
        let mut counts: Option<Counts> = None;
        for found in load.phases.iter().filter_map(|phase| phase.operations.get(operation)) {
            counts.get_or_insert_default().add(&found.counts);
        }
        counts
    }
}

struct Seen {
    passed: Option<bool>,
    text: String,
}

impl Seen {
    /// A failure says most, then what is not known.
    fn rank(&self) -> u8 {
        match self.passed {
            Some(false) => 0,
            None => 1,
            Some(true) => 2,
        }
    }
}

impl Figure {
    fn dimension(self) -> Dimension {
        match self {
            Self::Percentile { .. } | Self::Mean | Self::Lateness | Self::Cpu => Dimension::Milliseconds,
            Self::Goodput | Self::Answered | Self::Sent => Dimension::PerSecond,
            Self::Failures => Dimension::Share,
            Self::Count(_) => Dimension::Count,
        }
    }

    fn is_latency(self) -> bool {
        matches!(self, Self::Percentile { .. } | Self::Mean)
    }

    fn parse(name: &str) -> Option<Self> {
        let percentile = |text: &str, kind| {
            let percent: f64 = text.strip_prefix('p')?.parse().ok()?;
            (0.0..=100.0).contains(&percent).then_some(Self::Percentile { percent, kind })
        };
        Some(match name {
            "mean" => Self::Mean,
            "max" => Self::Percentile { percent: 100.0, kind: LatencyKind::Corrected },
            "goodput" => Self::Goodput,
            "answered" => Self::Answered,
            "sent" => Self::Sent,
            "failures" => Self::Failures,
            "wrong" => Self::Count(CountOf::Wrong),
            "refused" => Self::Count(CountOf::Refused),
            "timeouts" => Self::Count(CountOf::Timeouts),
            "late" => Self::Count(CountOf::Late),
            "duplicates" => Self::Count(CountOf::Duplicates),
            "foreign" => Self::Count(CountOf::Foreign),
            "undecodable" => Self::Count(CountOf::Undecodable),
            "skipped" => Self::Count(CountOf::Skipped),
            "lateness" => Self::Lateness,
            "cpu" => Self::Cpu,
            _ => match name.strip_prefix("raw.") {
                Some(raw) => percentile(raw, LatencyKind::Raw)?,
                None => percentile(name, LatencyKind::Corrected)?,
            },
        })
    }
}

impl CountOf {
    fn of(self, counts: &Counts) -> u64 {
        match self {
            Self::Wrong => counts.wrong,
            Self::Refused => counts.refused,
            Self::Timeouts => counts.timed_out,
            Self::Late => counts.late,
            Self::Duplicates => counts.duplicates,
            Self::Foreign => counts.foreign,
            Self::Undecodable => counts.undecodable,
            Self::Skipped => counts.skipped,
        }
    }
}

impl Relation {
    fn holds(self, figure: f64, limit: f64) -> bool {
        match self {
            Self::Less => figure < limit,
            Self::AtMost => figure <= limit,
            Self::More => limit < figure,
            Self::AtLeast => limit <= figure,
            Self::Equal => figure == limit,
        }
    }
}

impl Dimension {
    /// The factor of a unit to the figure's own.
    fn factor(self, unit: &str) -> Option<f64> {
        match (self, unit) {
            (Self::Milliseconds, "ns") => Some(1e-6),
            (Self::Milliseconds, "us" | "µs") => Some(1e-3),
            (Self::Milliseconds, "ms") => Some(1.0),
            (Self::Milliseconds, "s") => Some(1e3),
            (Self::PerSecond, "/s") => Some(1.0),
            (Self::PerSecond, "k/s") => Some(1e3),
            (Self::Share, "%") | (Self::Count, "") => Some(1.0),
            _ => None,
        }
    }

    fn units(self) -> &'static str {
        match self {
            Self::Milliseconds => "ns, us, ms or s",
            Self::PerSecond => "/s or k/s",
            Self::Share => "%",
            Self::Count => "no unit",
        }
    }

    fn text(self, figure: f64) -> String {
        match self {
            Self::Milliseconds => words::latency(figure),
            Self::PerSecond => words::rate(figure),
            Self::Share => words::percent(figure / 100.0),
            Self::Count => words::count(figure as u64),
        }
    }
}

/// Reads a statement from left to right and knows where it is.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    /// An error about what stands here.
    fn wrong(&self, place: Range<usize>, what: &str) -> String {
        let found = &self.text[place.clone()];
        let column = self.text[..place.start].chars().count() + 1;
        let found = if found.is_empty() { "the end".to_owned() } else { format!("{found:?}") };
        format!("threshold {:?}: at character {column}, {found} {what}", self.text)
    }

    fn skip_spaces(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    /// All characters from here on that belong to one word.
    fn take(&mut self, belongs: impl Fn(char) -> bool) -> Range<usize> {
        self.skip_spaces();
        let rest = &self.text[self.at..];
        let length = rest.find(|letter| !belongs(letter)).unwrap_or(rest.len());
        self.at += length;
        self.at - length..self.at
    }

    fn figure(&mut self) -> Result<(Option<String>, Figure), String> {
        let is_name = |letter: char| !letter.is_whitespace() && !"<>=≤≥".contains(letter);
        let place = self.take(is_name);
        let name = &self.text[place.clone()];
        if let Some(figure) = Figure::parse(name) {
            return Ok((None, figure));
        }
        let parted =
            name.split_once('.').filter(|(operation, _)| ["get", "put", "remove"].contains(operation));
        if let Some((operation, rest)) = parted {
            let figure = Figure::parse(rest);
            let whole_only = matches!(figure, Some(Figure::Lateness | Figure::Cpu));
            if let Some(figure) = figure.filter(|_| !whole_only) {
                return Ok((Some(operation.to_owned()), figure));
            }
        }
        Err(self.wrong(
            place,
            &format!("is no figure; there are {FIGURES}; all but the last two also as get.…, put.…"),
        ))
    }

    fn relation(&mut self) -> Result<Relation, String> {
        let place = self.take(|letter| "<>=≤≥!".contains(letter));
        match &self.text[place.clone()] {
            "<" => Ok(Relation::Less),
            "<=" | "≤" => Ok(Relation::AtMost),
            ">" => Ok(Relation::More),
            ">=" | "≥" => Ok(Relation::AtLeast),
            "=" | "==" => Ok(Relation::Equal),
            _ => Err(self.wrong(place, "is no relation; there are <, <=, >, >= and =")),
        }
    }

    fn limit(&mut self, dimension: Dimension) -> Result<f64, String> {
        let place = self.take(|letter| letter.is_ascii_digit() || ".,_-".contains(letter));
        let digits = self.text[place.clone()].replace([',', '_'], "");
        let number: f64 = match digits.parse() {
            Ok(number) if 0.0 <= number => number,
            _ => return Err(self.wrong(place, "is no limit; a number such as 20 or 0.5 would be right")),
        };
        self.skip_spaces();
        let is_load_next = {
            let rest = &self.text[self.at..];
            rest == "in" || rest.starts_with("in ")
        };
        let unit = if is_load_next { self.at..self.at } else { self.take(|letter| !letter.is_whitespace()) };
        match dimension.factor(&self.text[unit.clone()]) {
            Some(factor) => Ok(number * factor),
            None => {
                Err(self
                    .wrong(unit, &format!("is no unit of this figure; {} would be right", dimension.units())))
            }
        }
    }

    fn load(&mut self) -> Result<Option<String>, String> {
        let word = self.take(|letter| !letter.is_whitespace());
        match &self.text[word.clone()] {
            "" => Ok(None),
            "in" => match self.text[self.at..].trim() {
                "" => Err(self.wrong(self.at..self.at, "names no load; one such as R16 would be right")),
                name => Ok(Some(name.to_owned())),
            },
            _ => Err(self.wrong(word, "is more than a threshold has; \"in LOAD\" may come here, or the end")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn check(text: &str, result: &RunResult) -> Check {
        Threshold::parse(text).unwrap_or_else(|error| panic!("{error}")).check(result)
    }

    #[test]
    fn statements_hold_or_not() {
        let grid = samples::grid();
        for (text, passed, seen) in [
            ("p99 < 20 ms", Some(true), "closed loop: tails not comparable"),
            ("get.p99.9 < 50 ms in R16", Some(true), "in R16"),
            ("get.p99<50us", Some(false), "µs in S1"),
            ("raw.p50 > 0.001 ms", Some(true), "µs"),
            ("failures < 1 %", Some(true), "0 %"),
            ("goodput > 10,000 /s", Some(false), "/s in S1"),
            ("goodput >= 10 k/s in R64", Some(true), "/s in R64"),
            ("wrong = 0", Some(true), "0 in S1"),
            ("cpu < 1 s", Some(true), "µs"),
            ("remove.p99 < 1 s", None, "not known in S1"),
            ("p99 < 1 s in R17", None, "the result has not a load \"R17\"; it has: S1, S16"),
        ] {
            let check = check(text, &grid);
            assert_eq!(check.passed, passed, "{check:?}");
            assert!(check.seen.contains(seen), "{check:?}");
        }
    }

    #[test]
    fn a_figure_that_is_not_what_it_seems_decides_nothing() {
        let mut scan = samples::scan();
        let unreached = check("p99 < 9 s in 60000/s", &scan);
        assert_eq!(unreached.passed, None, "{unreached:?}");
        assert!(unreached.seen.contains("rate not reached"), "{unreached:?}");
        assert_eq!(check("p99 < 1 us in 60000/s", &scan).passed, Some(false));
        assert_eq!(check("goodput < 1 /s in 90000/s", &scan).passed, None, "the generator was the limit");
        assert_eq!(check("wrong = 0", &scan).passed, Some(true));
        assert!(check("failures < 100 % in 90000/s", &scan).passed.is_some());
        scan.incomplete = Some("it was interrupted".to_owned());
        assert_eq!(check("wrong = 0", &scan).passed, None);
        assert_eq!(check("wrong > 0", &scan).passed, Some(false));
        assert!(!all_hold(&[check("wrong = 0", &scan)]) && all_hold(&[]));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (text, expected) in [
            (
                "p99 < 20 sm",
                "at character 10, \"sm\" is no unit of this figure; ns, us, ms or s would be right",
            ),
            ("p99 < 20", "at character 9, the end is no unit"),
            ("p999 < 20 ms", "at character 1, \"p999\" is no figure; there are p50,"),
            ("", "at character 1, the end is no figure"),
            ("gat.p99 < 1 ms", "\"gat.p99\" is no figure"),
            ("get.cpu < 1 ms", "\"get.cpu\" is no figure"),
            ("p99 20 ms", "at character 5, the end is no relation"),
            ("p99 =< 20 ms", "at character 5, \"=<\" is no relation; there are <, <=, >, >= and ="),
            ("p99 < ms", "is no limit; a number"),
            ("p99 < -1 ms", "\"-1\" is no limit"),
            ("wrong = 0 ms", "\"ms\" is no unit of this figure; no unit would be right"),
            ("failures < 1", "% would be right"),
            ("µ < 1", "\"µ\" is no figure"),
            ("p99 < 20 ms R16", "at character 13, \"R16\" is more than a threshold has"),
            ("p99 < 20 ms in", "names no load"),
        ] {
            let error = Threshold::parse(text).unwrap_err();
            assert!(error.contains(expected) && error.starts_with("threshold "), "{text}: {error}");
            assert_eq!(error.lines().count(), 1);
        }
    }
}
