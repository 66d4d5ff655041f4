//! The knee of a group with several rates: how goodput and latency go with what is offered, where goodput
//! peaks, and where the servers are overwhelmed.
//!
//! The overwhelmed point is the first load at which goodput falls a tenth below the peak, or at which more
//! than one request of a hundred fails. Deliberately not here: the search that makes the loads.

use super::digest::{Kind, Load, failure_share};
use super::words;
use crate::result::Loop;

/// Fewer rates make no curve.
const RATES_MIN: usize = 3;
/// Goodput below this share of the peak is a fall.
const FALLEN_SHARE: f64 = 0.9;
/// Failures above this share are too many.
const FAILURE_SHARE_MAX: f64 = 0.01;

/// The loads of one group by rate.
#[derive(Clone, Debug)]
pub struct Knee {
    /// The group.
    pub group: String,
    /// In order of the rate.
    pub points: Vec<Point>,
    /// The index of the point with most good answers.
    pub peak: usize,
    /// The index of the overwhelmed point, and why it is one.
    pub overwhelmed: Option<(usize, String)>,
}

/// One rate.
#[derive(Clone, Debug)]
pub struct Point {
    /// What was asked for, requests a second.
    pub offered: f64,
    /// Right answers a second: median of the repeats.
    pub good: f64,
    /// The repeat with the fewest.
    pub good_min: f64,
    /// The repeat with the most.
    pub good_max: f64,
    /// Corrected median in milliseconds.
    pub p50_ms: f64,
    /// Corrected 99th percentile in milliseconds.
    pub p99_ms: f64,
    /// Share that failed.
    pub failures: f64,
    /// Of the load.
    pub caveats: Vec<String>,
}

impl Knee {
    /// Of every group with enough rates.
    pub fn all(loads: &[Load]) -> Vec<Self> {
        let mut groups: Vec<&str> = loads.iter().map(|load| load.group).collect();
        groups.dedup();
        let mut seen = Vec::new();
        groups.retain(|group| {
            !seen.contains(group) && {
                seen.push(*group);
                true
            }
        });
        groups.into_iter().filter_map(|group| Self::of(group, loads)).collect()
    }

    fn of(group: &str, loads: &[Load]) -> Option<Self> {
        let of_group = loads.iter().filter(|load| load.group == group);
        let mut points: Vec<Point> = of_group.filter_map(Point::of).collect();
        points.sort_by(|one, other| one.offered.total_cmp(&other.offered));
        if points.len() < RATES_MIN || points.windows(2).any(|pair| pair[0].offered == pair[1].offered) {
            return None;
        }
        let by_good = |one: &(usize, &Point), other: &(usize, &Point)| one.1.good.total_cmp(&other.1.good);
        let (peak, _) = points.iter().enumerate().max_by(by_good)?;
        let overwhelmed = overwhelmed(&points, peak);
        Some(Self { group: group.to_owned(), points, peak, overwhelmed })
    }

    /// Peak and overwhelmed point in words.
    pub fn sentence(&self) -> String {
        let peak = &self.points[self.peak];
        let overwhelmed = match &self.overwhelmed {
            Some((index, why)) => {
                format!("overwhelmed from {} on: {why}", words::rate(self.points[*index].offered))
            }
            None => "not overwhelmed by any load that was tried".to_owned(),
        };
        let caveats = &peak.caveats;
        let caveat = if caveats.is_empty() { String::new() } else { format!("; {}", caveats.join("; ")) };
        format!(
            "Goodput in {} peaks at {} with {} offered (p99 {}{caveat}); {overwhelmed}.",
            self.group,
            words::rate(peak.good),
            words::rate(peak.offered),
            words::latency(peak.p99_ms),
        )
    }
}

impl Point {
    fn of(load: &Load) -> Option<Self> {
        let Loop::Open { rate, .. } = load.first().timing else { return None };
        let latency = load.latency(None, Kind::Corrected);
        let rates = load.rates(|counts| counts.good);
        Some(Self {
            offered: rate,
            good: load.rate(|counts| counts.good),
            good_min: rates.iter().copied().fold(f64::INFINITY, f64::min),
            good_max: rates.iter().copied().fold(0.0, f64::max),
            p50_ms: latency.ms(50.0),
            p99_ms: latency.ms(99.0),
            failures: failure_share(&load.counts()),
            caveats: load.caveats(),
        })
    }
}

fn overwhelmed(points: &[Point], peak: usize) -> Option<(usize, String)> {
    points.iter().enumerate().find_map(|(index, point)| {
        if FAILURE_SHARE_MAX < point.failures {
            return Some((index, format!("{} of the requests fail", words::percent(point.failures))));
        }
        let share = point.good / points[peak].good;
        let is_fallen = peak < index && share < FALLEN_SHARE;
        is_fallen.then(|| (index, format!("goodput falls to {} of the peak", words::percent(share))))
    })
}

#[cfg(test)]
mod tests {
    use super::super::{digest, samples};
    use super::*;

    fn point(offered: f64, good: f64, failures: f64) -> Point {
        let (good_min, good_max, caveats) = (good, good, Vec::new());
        Point { offered, good, good_min, good_max, p50_ms: 1.0, p99_ms: 2.0, failures, caveats }
    }

    #[test]
    fn a_fall_of_a_tenth_or_a_failure_of_a_hundredth_overwhelms() {
        let of = |points: &[Point], peak| overwhelmed(points, peak).map(|(index, _)| index);
        let falls =
            [point(1.0, 1.0, 0.0), point(2.0, 2.0, 0.01), point(3.0, 1.85, 0.0), point(4.0, 1.7, 0.0)];
        assert_eq!(of(&falls, 1), Some(3));
        let fails = [point(1.0, 1.0, 0.0), point(2.0, 1.9, 0.02), point(3.0, 2.0, 0.5)];
        assert_eq!(of(&fails, 2), Some(1));
        assert_eq!(of(&falls[..2], 1), None);
        // Before the peak, less is no fall.
        assert_eq!(of(&[point(1.0, 1.0, 0.0), point(2.0, 2.0, 0.0)], 1), None);
    }

    #[test]
    fn curves_are_drawn_of_groups_with_several_rates_only() {
        let scan = samples::scan();
        let knees = Knee::all(&digest::loads(&scan));
        assert_eq!(knees.len(), 1);
        let (index, _) = knees[0].overwhelmed.as_ref().unwrap();
        assert!(knees[0].peak < *index);
        assert_eq!(Knee::all(&digest::loads(&samples::grid())).len(), 0);
    }
}
