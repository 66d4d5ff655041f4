//! What every kind of report says about a result: loads with their repeats, key figures, caveats, and a
//! verdict in a few sentences.
//!
//! A [`Load`] is one setting of one group with all its repeats. Rates are medians over the repeats, latencies
//! come from the repeats' histograms added up. Whatever keeps a figure from being what it seems is a caveat,
//! and every report prints a load's caveats beside its figures. Deliberately not here: how it is drawn, and
//! comparisons between results.

use super::knee::Knee;
use super::words;
use crate::result::{Arrivals, Counts, Latency, Loop, Phase, RunResult};
use crate::statistics::Estimate;

/// A rate counts as reached from this share of it on.
const REACHED_SHARE_MIN: f64 = 0.99;
/// A random count may lie so many times its root beside what was expected before it is remarked on.
const POISSON_SIGMAS: f64 = 4.0;
/// The most names of failed checks in a verdict.
const FAILURES_NAMED_MAX: usize = 3;

/// One setting with all its repeats.
#[derive(Clone, Debug)]
pub struct Load<'a> {
    /// The group, with the timing if the group has several.
    pub name: String,
    /// What the repeats have in common.
    pub group: &'a str,
    /// The repeats in order; at least one.
    pub phases: Vec<&'a Phase>,
}

/// Which latency is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From the intended time.
    Corrected,
    /// From the first datagram.
    Raw,
    /// From the latest datagram before the answer.
    LastTry,
}

/// Whether a result is good news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// All that was checked holds.
    Good,
    /// Nothing failed, but something must be known before the figures are used.
    Doubtful,
    /// Something failed.
    Bad,
}

impl Tone {
    /// One word for the head of a report.
    pub fn word(self) -> &'static str {
        match self {
            Self::Good => "Good",
            Self::Doubtful => "Read with care",
            Self::Bad => "Failed",
        }
    }
}

/// The first thing that is said.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// In a word.
    pub tone: Tone,
    /// In one to three sentences.
    pub sentences: Vec<String>,
}

/// The loads of a result in the order of their first phases.
pub fn loads(result: &RunResult) -> Vec<Load<'_>> {
    let mut loads: Vec<Load> = Vec::new();
    for phase in &result.phases {
        match loads.iter_mut().find(|load| load.is_repeated_by(phase)) {
            Some(load) => load.phases.push(phase),
            None => loads.push(Load { name: phase.group.clone(), group: &phase.group, phases: vec![phase] }),
        }
    }
    name_apart(&mut loads);
    loads
}

/// Groups with several settings get these into their names, as far as they differ.
fn name_apart(loads: &mut [Load]) {
    let differs = |group: &str, of: &dyn Fn(&Phase) -> String| {
        let mut all = loads.iter().filter(|load| load.group == group).map(|load| of(load.first()));
        let first = all.next();
        all.any(|one| Some(one) != first)
    };
    // Briefly if that is enough.
    let is_brief_enough = |group: &str| {
        let of_group = || loads.iter().filter(|load| load.group == group).map(|load| load.first().timing);
        let mut brief: Vec<String> = of_group().map(|timing| words::brief_timing(&timing)).collect();
        let mut whole: Vec<String> = of_group().map(|timing| words::timing(&timing)).collect();
        [&mut brief, &mut whole].into_iter().for_each(|names| {
            names.sort();
            names.dedup();
        });
        brief.len() == whole.len()
    };
    let timing = |phase: &Phase| match is_brief_enough(&phase.group) {
        true => words::brief_timing(&phase.timing),
        false => words::timing(&phase.timing),
    };
    let servers = |phase: &Phase| words::several(phase.servers as u64, "server", "servers");
    let format = |phase: &Phase| phase.format.clone();
    let parts: [&dyn Fn(&Phase) -> String; 3] = [&timing, &servers, &format];
    let names: Vec<String> = loads
        .iter()
        .map(|load| {
            let differing = parts.iter().filter(|part| differs(load.group, *part));
            let mut name = load.group.to_owned();
            for (index, part) in differing.enumerate() {
                name += if index == 0 { " · " } else { ", " };
                name += &part(load.first());
            }
            name
        })
        .collect();
    loads.iter_mut().zip(names).for_each(|(load, name)| load.name = name);
}

impl<'a> Load<'a> {
    fn is_repeated_by(&self, phase: &Phase) -> bool {
        let first = self.first();
        self.group == phase.group
            && first.timing == phase.timing
            && first.servers == phase.servers
            && first.format == phase.format
    }

    /// The first repeat.
    pub fn first(&self) -> &'a Phase {
        self.phases[0]
    }

    /// All repeats' counts.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.phases.iter().for_each(|phase| counts.add(&phase.counts));
        counts
    }

    /// A rate of each repeat.
    pub fn rates(&self, count: impl Fn(&Counts) -> u64) -> Vec<f64> {
        let rate = |phase: &&Phase| count(&phase.counts) as f64 / phase.window_seconds;
        self.phases.iter().map(rate).filter(|rate| rate.is_finite()).collect()
    }

    /// The median of a rate over the repeats.
    pub fn rate(&self, count: impl Fn(&Counts) -> u64) -> f64 {
        Estimate::of(&self.rates(count)).map_or(0.0, |estimate| estimate.median)
    }

    /// All repeats' latencies of one operation, or of all.
    pub fn latency(&self, operation: Option<&str>, kind: Kind) -> Latency {
        let mut all = Latency::new();
        self.phases.iter().for_each(|phase| all.add(&latency(phase, operation, kind)));
        all
    }

    /// The operations that any repeat has.
    pub fn operations(&self) -> Vec<&'a str> {
        let mut names: Vec<&str> =
            self.phases.iter().flat_map(|phase| phase.operations.keys().map(String::as_str)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The servers' processor time for a good answer in microseconds, of each repeat that knows it.
    pub fn cost_us(&self) -> Vec<f64> {
        self.phases.iter().filter_map(|phase| cost_us(phase)).collect()
    }

    /// What must be known to read this load's figures; one short clause each.
    pub fn caveats(&self) -> Vec<String> {
        let mut caveats = Vec::new();
        if matches!(self.first().timing, Loop::Closed { .. }) {
            caveats.push("closed loop: tails not comparable".to_owned());
        }
        self.push_unreached(&mut caveats);
        let limited: Vec<&str> =
            self.phases.iter().filter_map(|phase| phase.generator.limited.as_deref()).collect();
        if let Some(first) = limited.first() {
            caveats.push(format!("generator limited{}: {first}", self.of_repeats(limited.len())));
        }
        let counts = self.counts();
        if 0 < counts.skipped {
            let share = words::percent(counts.skipped as f64 / counts.offered.max(1) as f64);
            caveats.push(format!("{share} of the requests were never sent: too many under way"));
        }
        if self.phases.iter().any(|phase| !phase.counts.is_balanced()) {
            caveats.push("counts do not add up: requests are unaccounted for".to_owned());
        }
        caveats
    }

    fn push_unreached(&self, caveats: &mut Vec<String>) {
        let unreached: Vec<&&Phase> = self.phases.iter().filter(|phase| !is_rate_reached(phase)).collect();
        if let (Some(worst), Loop::Open { rate, .. }) =
            (unreached.iter().min_by_key(|phase| phase.counts.answered), self.first().timing)
        {
            let answered = worst.counts.answered as f64 / worst.window_seconds;
            caveats.push(format!(
                "rate not reached{}: {} answered of {}",
                self.of_repeats(unreached.len()),
                words::rate(answered),
                words::rate(rate)
            ));
        }
    }

    fn of_repeats(&self, count: usize) -> String {
        match self.phases.len() {
            1 => String::new(),
            all => format!(" in {count} of {all} repeats"),
        }
    }

    /// What else a reader should notice: counts that are zero on a healthy system.
    pub fn remarks(&self) -> Vec<String> {
        let counts = self.counts();
        let sent = counts.sent.max(1) as f64;
        let mut remarks = Vec::new();
        for (count, what) in [
            (counts.wrong, "wrong answers"),
            (counts.timed_out, "requests were never answered"),
            (counts.refused, "were refused"),
            (counts.late, "answers came after their request was given up"),
            (counts.duplicates, "second answers to requests sent once"),
            (counts.foreign, "replies with an id or from an address never used"),
            (counts.undecodable, "datagrams were no reply of the format"),
        ] {
            if 0 < count {
                remarks.push(format!(
                    "{} {what} ({})",
                    words::count(count),
                    words::percent(count as f64 / sent)
                ));
            }
        }
        let retries = counts.datagrams.saturating_sub(counts.sent);
        if 0.01 * sent < retries as f64 {
            remarks.push(format!("{} retries for each request", words::percent(retries as f64 / sent)));
        }
        remarks
    }
}

/// Of one phase: all latencies of one operation, or of all.
pub fn latency(phase: &Phase, operation: Option<&str>, kind: Kind) -> Latency {
    let mut all = Latency::new();
    let wanted = |name: &str| operation.is_none_or(|operation| operation == name);
    for (_, operation) in phase.operations.iter().filter(|(name, _)| wanted(name)) {
        all.add(match kind {
            Kind::Corrected => &operation.corrected,
            Kind::Raw => &operation.raw,
            Kind::LastTry => &operation.last_try,
        });
    }
    all
}

/// The servers' processor time for a good answer, in microseconds.
pub fn cost_us(phase: &Phase) -> Option<f64> {
    let cost = phase.cost.as_ref()?;
    (0 < phase.counts.good).then(|| 1e6 * cost.processor_seconds / phase.counts.good as f64)
}

/// The share of requests sent that did not end well.
pub fn failure_share(counts: &Counts) -> f64 {
    (counts.refused + counts.wrong + counts.timed_out) as f64 / counts.sent.max(1) as f64
}

/// Whether an open loop was offered and answered at its rate; a closed loop has none to miss.
pub fn is_rate_reached(phase: &Phase) -> bool {
    let Loop::Open { rate, arrivals } = phase.timing else { return true };
    let due = rate * phase.window_seconds;
    let chance = match arrivals {
        Arrivals::Constant => 1.0,
        Arrivals::Poisson => POISSON_SIGMAS * due.sqrt(),
    };
    let is_offered = REACHED_SHARE_MIN * due - chance <= phase.counts.offered as f64;
    is_offered && REACHED_SHARE_MIN * phase.counts.offered as f64 <= phase.counts.answered as f64
}

/// The verdict on a result.
pub fn verdict(result: &RunResult) -> Verdict {
    let loads = loads(result);
    let mut sentences = Vec::new();
    let mut tone = Tone::Good;
    if let Some(why) = &result.incomplete {
        tone = Tone::Bad;
        sentences.push(format!("Incomplete: {why}. What follows is only what was seen until then."));
    }
    let (checks_tone, sentence) = checks_sentence(result, &loads);
    tone = worse(tone, checks_tone);
    sentences.push(sentence);
    sentences.extend(speed_sentence(&loads));
    let doubtful = doubts(&loads);
    if !doubtful.is_empty() {
        tone = worse(tone, Tone::Doubtful);
        sentences.push(capitalised(&doubtful.join("; ")) + ".");
    }
    Verdict { tone, sentences }
}

fn worse(one: Tone, other: Tone) -> Tone {
    match (one, other) {
        (Tone::Bad, _) | (_, Tone::Bad) => Tone::Bad,
        (Tone::Doubtful, _) | (_, Tone::Doubtful) => Tone::Doubtful,
        (Tone::Good, Tone::Good) => Tone::Good,
    }
}

fn checks_sentence(result: &RunResult, loads: &[Load]) -> (Tone, String) {
    let wrong: u64 = loads.iter().map(|load| load.counts().wrong).sum();
    let failed: Vec<&str> = named(result, Some(false));
    let unknown = named(result, None).len();
    let all = result.checks.len() as u64;
    let mut parts = Vec::new();
    if !failed.is_empty() {
        let shown = failed.iter().take(FAILURES_NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
        let more = if FAILURES_NAMED_MAX < failed.len() { ", …" } else { "" };
        parts.push(format!(
            "{} of {} failed: {shown}{more}",
            failed.len(),
            words::several(all, "check", "checks")
        ));
    }
    if 0 < wrong {
        parts.push(format!(
            "{} with a value that cannot be right",
            words::several(wrong, "answer", "answers")
        ));
    }
    if 0 < unknown {
        parts.push(format!("{} could not be decided", words::several(unknown as u64, "check", "checks")));
    }
    let tone = match (failed.is_empty() && wrong == 0, unknown) {
        (true, 0) => Tone::Good,
        (true, _) => Tone::Doubtful,
        (false, _) => Tone::Bad,
    };
    if !parts.is_empty() {
        return (tone, capitalised(&parts.join("; ")) + ".");
    }
    let checks = match all {
        0 => String::new(),
        1 => "The one check holds. ".to_owned(),
        all => format!("All {} checks hold. ", words::count(all)),
    };
    let answered: u64 = loads.iter().map(|load| load.counts().answered).sum();
    let values = match answered {
        0 => "Nothing was answered".to_owned(),
        answered => format!("None of {} answers was wrong", words::count(answered)),
    };
    let is_silent = answered == 0 && !loads.is_empty();
    let text = if loads.is_empty() { "No load was made".to_owned() } else { values };
    (if is_silent { Tone::Bad } else { Tone::Good }, format!("{checks}{text}."))
}

fn named(result: &RunResult, passed: Option<bool>) -> Vec<&str> {
    result.checks.iter().filter(|check| check.passed == passed).map(|check| check.name.as_str()).collect()
}

/// Makes a sentence of a clause.
pub fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// The figure that most readers look for: the knee if there is one, else the load with most good answers.
fn speed_sentence(loads: &[Load]) -> Option<String> {
    if let Some(knee) = Knee::all(loads).into_iter().next() {
        return Some(knee.sentence());
    }
    let best = loads
        .iter()
        .max_by(|one, other| one.rate(|counts| counts.good).total_cmp(&other.rate(|counts| counts.good)))?;
    if best.counts().answered == 0 {
        return None;
    }
    let latency = best.latency(None, Kind::Corrected);
    let caveats = best.caveats();
    let caveat = if caveats.is_empty() { String::new() } else { format!(" ({})", caveats.join("; ")) };
    let which = if loads.len() == 1 { String::new() } else { format!("Most in {}: ", best.name) };
    Some(format!(
        "{which}{} good answers a second; half of all answers came within {}, 99 of 100 within {}{caveat}.",
        words::per_second(best.rate(|counts| counts.good)),
        words::latency(latency.ms(50.0)),
        words::latency(latency.ms(99.0)),
    ))
}

fn doubts(loads: &[Load]) -> Vec<String> {
    let of = |count: usize| format!("{count} of {}", words::several(loads.len() as u64, "load", "loads"));
    let any = |is: &dyn Fn(&Phase) -> bool| {
        loads.iter().filter(|load| load.phases.iter().any(|phase| is(phase))).count()
    };
    let mut doubts = Vec::new();
    for (count, what) in [
        (any(&|phase| !is_rate_reached(phase)), "the rate was not reached in"),
        (any(&|phase| phase.generator.limited.is_some()), "the generator was the limit in"),
        (any(&|phase| !phase.counts.is_balanced()), "the counts do not add up in"),
    ] {
        if 0 < count {
            doubts.push(format!("{what} {}", of(count)));
        }
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn repeats_are_one_load_and_rates_of_a_group_are_told_apart() {
        let result = samples::grid();
        let loads = loads(&result);
        let names: Vec<&str> = loads.iter().map(|load| load.name.as_str()).collect();
        assert_eq!(names, ["S1", "S16", "R1", "R16", "R64"]);
        assert!(loads.iter().all(|load| load.phases.len() == 3));
        let scan = samples::scan();
        let names: Vec<String> = super::loads(&scan).into_iter().map(|load| load.name).collect();
        assert_eq!(names[0], "search · 5,000 /s");
    }

    #[test]
    fn caveats_stand_beside_what_they_spoil() {
        let scan = samples::scan();
        let loads = loads(&scan);
        assert_eq!(loads[0].caveats(), Vec::<String>::new());
        let last = loads.last().unwrap().caveats();
        assert!(last[0].starts_with("rate not reached: "), "{last:?}");
        assert!(last.iter().any(|caveat| caveat.starts_with("generator limited: ")), "{last:?}");
        let grid = samples::grid();
        assert_eq!(super::loads(&grid)[0].caveats(), ["closed loop: tails not comparable"]);
    }

    #[test]
    fn a_poisson_count_may_miss_its_rate_by_chance() {
        let mut result = samples::scan();
        let phase = &mut result.phases[0];
        let lost = 2.0 * (phase.counts.offered as f64).sqrt();
        phase.counts.offered -= lost as u64;
        phase.counts.answered = phase.counts.offered;
        assert!(is_rate_reached(phase));
        phase.counts.answered = phase.counts.offered * 98 / 100;
        assert!(!is_rate_reached(phase));
    }

    #[test]
    fn the_verdict_names_what_failed_first() {
        let mut result = samples::faults();
        let said = |result: &RunResult| verdict(result).sentences.join(" ");
        assert_eq!(verdict(&result).tone, Tone::Bad);
        assert!(said(&result).contains("1 of 4 checks failed: no key is stale"), "{}", said(&result));
        result.checks.clear();
        result.incomplete = Some("it was interrupted".to_owned());
        assert!(said(&result).starts_with("Incomplete: it was interrupted."), "{}", said(&result));
        assert_eq!(verdict(&result).tone, Tone::Bad);
        let grid = samples::grid();
        assert_eq!(verdict(&grid).tone, Tone::Good);
        assert!(said(&grid).contains("closed loop: tails not comparable"), "{}", said(&grid));
        let scan = samples::scan();
        assert_eq!(verdict(&scan).tone, Tone::Doubtful);
        assert!(said(&scan).contains("overwhelmed from"), "{}", said(&scan));
    }
}
