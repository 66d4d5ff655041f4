//! The step `search`: at which rate the servers are saturated, and from which on they are overwhelmed.
//!
//! The search is the load engine's ([`crate::load::search`]); its steps are made like all loads of a plan, so by agents, too.

use super::course::Course;
use super::step::{self, Step};
use crate::load::PhasePlan;
use crate::load::search::{Found, SearchPlan, search_with};
use crate::result::Loop;

/// Tries rates until one is too much.
pub fn run(course: &mut Course<'_>, step: &Step, kind: &step::Search) -> Result<(), String> {
    let arrivals = step.settings.arrivals;
    let plan = SearchPlan {
        step: PhasePlan { name: step.name.clone(), arrivals, ..PhasePlan::default() },
        from_rate: kind.from_rate,
        to_rate: kind.rate_max,
        factor: kind.factor,
    };
    let found = search_with(&plan, &mut |wanted| {
        let timing = Loop::Open { rate: wanted.rate.unwrap_or(kind.from_rate), arrivals };
        let order = course.order(&wanted.name, &step.name, timing, &step.settings);
        let phase = course.load(&order)?;
        Ok((phase, course.stop.is_set()))
    })?;
    if course.stop.is_set() {
        return Err(text(&found));
    }
    let name = format!("{}: saturation and overwhelmed point", step.name);
    course.check(&name, found.overwhelmed.is_some().then_some(true), text(&found));
    Ok(())
}

fn text(found: &Found) -> String {
    let end = match (&found.overwhelmed, &found.unfinished) {
        (Some((rate, why)), _) => format!("overwhelmed at {rate:.0}/s: {why}"),
        (None, Some(why)) => format!("the overwhelmed point is not known: {why}"),
        (None, None) => "the overwhelmed point is not known".to_owned(),
    };
    format!("saturated at {:.0} good/s (offered {:.0}/s); {end}", found.peak_goodput, found.peak_rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_finding_is_a_sentence() {
        let mut found = Found {
            phases: Vec::new(),
            peak_goodput: 2_500.0,
            peak_rate: 4_000.0,
            overwhelmed: Some((6_000.0, "37.5 % of the requests failed".to_owned())),
            unfinished: None,
        };
        assert_eq!(
            text(&found),
            "saturated at 2500 good/s (offered 4000/s); overwhelmed at 6000/s: 37.5 % of the requests failed"
        );
        found.overwhelmed = None;
        found.unfinished = Some("at 6000/s the generator was the limit: late".to_owned());
        assert!(text(&found).ends_with("is not known: at 6000/s the generator was the limit: late"));
    }
}
