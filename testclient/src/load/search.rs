//! Looks for the rate at which servers are saturated, and for the one at which they are overwhelmed.
//!
//! Rates of an open loop rise by a constant factor; each is a phase. The *peak* is the largest goodput seen. The
//! *overwhelmed point* is the first rate at which goodput is [`COLLAPSED_SHARE`] below that peak, or failures pass
//! [`FAILURE_SHARE_MAX`]. The rate of the peak is then looked at more closely, between its neighbours. A step in which
//! the generator was the limit ends the search, since what lies beyond would be its own limit.

use serde::{Deserialize, Serialize};

use super::{Observer, PhasePlan, run_phase};
use crate::result::Phase;
use crate::workload::Keys;

/// How far goodput falls below the peak when servers are overwhelmed.
const COLLAPSED_SHARE: f64 = 0.1;
/// A generator whose requests are later than this on average does not keep up, and what is late by less does no harm to
/// the count of good answers.
const LATENESS_MS_MAX: f64 = 10.0;
/// Share of requests that may fail.
const FAILURE_SHARE_MAX: f64 = 0.01;

/// How a search is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SearchPlan {
    /// What each step is but for its rate; its seconds are those of one step.
    pub step: PhasePlan,
    /// The first rate, in requests a second.
    pub from_rate: f64,
    /// No rate above this is tried.
    pub to_rate: f64,
    /// From one rate to the next.
    pub factor: f64,
}

impl Default for SearchPlan {
    fn default() -> Self {
        Self {
            step: PhasePlan { name: "search".to_owned(), seconds: 3.0, warm_up: 1.0, ..PhasePlan::default() },
            from_rate: 1_000.0,
            to_rate: 2_000_000.0,
            factor: 1.4,
        }
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// All steps, in the order of their rates, one group.
    pub phases: Vec<Phase>,
    /// The largest goodput, in good answers a second.
    pub peak_goodput: f64,
    /// The rate at which it was reached.
    pub peak_rate: f64,
    /// The first rate at which the servers were overwhelmed, and how that showed.
    pub overwhelmed: Option<(f64, String)>,
    /// Why the search ended before it found that.
    pub unfinished: Option<String>,
}

/// Searches. `observer` sees each step as it runs and may stop it, which ends the search.
///
/// # Errors
/// One sentence about what is wrong with the plan, or that there are no sockets.
pub fn search(plan: &SearchPlan, keys: &mut Keys, observer: Observer<'_>) -> Result<Found, String> {
    search_with(plan, &mut |step| {
        let mut is_stopped = false;
        let phase = run_phase(step, keys, &mut |glimpse| {
            let wish = observer(glimpse);
            is_stopped |= wish.is_break();
            wish
        })?;
        Ok((phase, is_stopped))
    })
}

/// Makes a step of a search; whether it was stopped early, which ends the search.
type Make<'a> = &'a mut dyn FnMut(&PhasePlan) -> Result<(Phase, bool), String>;

/// Searches with somebody else's steps.
///
/// # Errors
/// One sentence about what is wrong with the plan, or why a step could not be made.
pub fn search_with(plan: &SearchPlan, make: Make<'_>) -> Result<Found, String> {
    plan.check()?;
    let mut found =
        Found { phases: Vec::new(), peak_goodput: 0.0, peak_rate: 0.0, overwhelmed: None, unfinished: None };
    let mut rate = plan.from_rate;
    while found.overwhelmed.is_none() && found.unfinished.is_none() {
        if plan.to_rate < rate {
            found.unfinished = Some(format!("{:.0}/s is as far as it goes", plan.to_rate));
            break;
        }
        found.step(plan, rate, make)?;
        rate *= plan.factor;
    }
    if found.overwhelmed.is_some() {
        // The neighbours of the peak are a factor away; the middle is worth a look on both sides.
        let middle = plan.factor.sqrt();
        for rate in [found.peak_rate / middle, found.peak_rate * middle] {
            let before = found.overwhelmed.clone();
            found.step(plan, rate, make)?;
            found.overwhelmed = match (before, found.overwhelmed.take()) {
                (Some(old), Some(new)) if new.0 < old.0 => Some(new),
                (old, _) => old,
            };
        }
    }
    found.phases.sort_by(|one, other| rate_of(one).total_cmp(&rate_of(other)));
    Ok(found)
}

impl SearchPlan {
    fn check(&self) -> Result<(), String> {
        let place = &self.step.name;
        if !(1.01..=10.0).contains(&self.factor) {
            return Err(format!("{place}: factor {} is not 1.01 to 10", self.factor));
        }
        if !(0.0 < self.from_rate && self.from_rate <= self.to_rate && self.to_rate <= 1e7) {
            let (from, to) = (self.from_rate, self.to_rate);
            return Err(format!(
                "{place}: from-rate {from} and to-rate {to} are not in order, above 0, up to 10000000"
            ));
        }
        self.at(self.from_rate).check()
    }

    fn at(&self, rate: f64) -> PhasePlan {
        let name = format!("{} {rate:.0}/s", self.step.name);
        PhasePlan {
            name,
            group: self.step.name.clone(),
            rate: Some(rate),
            clients: None,
            ..self.step.clone()
        }
    }
}

impl Found {
    fn step(&mut self, plan: &SearchPlan, rate: f64, make: Make<'_>) -> Result<(), String> {
        let (phase, is_stopped) = make(&plan.at(rate))?;
        self.judge(rate, &phase, is_stopped);
        self.phases.push(phase);
        Ok(())
    }

    fn judge(&mut self, rate: f64, phase: &Phase, is_stopped: bool) {
        if is_stopped {
            self.unfinished = Some("it was stopped".to_owned());
            return;
        }
        let goodput = phase.good_per_second();
        let counts = &phase.counts;
        let failed = counts.timed_out + counts.refused + counts.wrong;
        let failures = failed as f64 / counts.sent.max(1) as f64;
        if self.peak_goodput < goodput {
            (self.peak_goodput, self.peak_rate) = (goodput, rate);
        }
        // Below the peak's rate less is asked for, so less goodput there says nothing.
        if self.peak_rate < rate && goodput < (1.0 - COLLAPSED_SHARE) * self.peak_goodput {
            let below = 100.0 * (1.0 - goodput / self.peak_goodput);
            self.overwhelmed = Some((rate, format!("goodput {goodput:.0}/s is {below:.0} % below the peak")));
        } else if FAILURE_SHARE_MAX < failures {
            self.overwhelmed = Some((rate, format!("{:.1} % of the requests failed", 100.0 * failures)));
        } else if LATENESS_MS_MAX < phase.generator.lateness_p50_ms {
            let late_ms = phase.generator.lateness_p50_ms;
            self.unfinished =
                Some(format!("at {rate:.0}/s the generator was the limit, late by {late_ms:.0} ms"));
        }
    }
}

fn rate_of(phase: &Phase) -> f64 {
    match phase.timing {
        crate::result::Loop::Open { rate, .. } => rate,
        crate::result::Loop::Closed { .. } => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fake;

    /// Searches on servers that answer so much at a rate: good requests and failed ones.
    fn search_on(servers: impl Fn(f64) -> (u64, u64)) -> Found {
        let plan = SearchPlan { from_rate: 400.0, to_rate: 10_000.0, factor: 1.5, ..SearchPlan::default() };
        let mut make = |step: &PhasePlan| {
            let rate = step.rate.unwrap();
            let (good, failed) = servers(rate);
            Ok((fake::phase(rate, good, failed), false))
        };
        search_with(&plan, &mut make).unwrap()
    }

    #[test]
    fn a_collapse_of_goodput_is_found_above_the_peak_and_never_below_it() {
        let found = search_on(|rate| if rate < 1_000.0 { (rate as u64, 0) } else { (500, 0) });
        // 400, 600, 900, 1350; and the neighbours of 900.
        assert_eq!(found.phases.len(), 6);
        assert_eq!(found.peak_rate, 900.0);
        let (rate, why) = found.overwhelmed.unwrap();
        assert!((1_102.0..1_103.0).contains(&rate), "{rate}");
        assert_eq!(why, "goodput 500/s is 44 % below the peak");
    }

    #[test]
    fn failures_overwhelm_as_well_and_a_limit_of_rates_is_told() {
        let found =
            search_on(|rate| if rate < 1_000.0 { (rate as u64, 0) } else { (1_000, rate as u64 - 1_000) });
        assert!(found.overwhelmed.unwrap().1.ends_with("of the requests failed"));
        let found = search_on(|rate| (rate as u64, 0));
        assert_eq!(
            (found.overwhelmed, found.unfinished.unwrap()),
            (None, "10000/s is as far as it goes".to_owned())
        );
    }
}
