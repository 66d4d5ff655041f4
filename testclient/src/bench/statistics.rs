//! Medians and intervals that assume nothing about how the figures are spread.
//!
//! The interval of a median is between two order statistics: that the true median lies outside has the
//! probability of that many heads (or tails) of as many coins, whatever the distribution. Nine rounds leave
//! out the smallest and the largest and cover 96 %. Deliberately not here: means and standard deviations,
//! which one disturbed second would spoil.

use serde::Serialize;

/// What an interval must cover to decide anything.
pub const COVERAGE_MIN: f64 = 0.95;

/// A median, and where the true one lies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// The probability that the true median lies between.
    pub coverage: f64,
    /// How many figures there were.
    pub count: usize,
}

impl Estimate {
    /// Of these figures; `None` if there are none.
    pub fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.iter().copied().filter(|figure| figure.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        if count == 0 {
            return None;
        }
        let median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0;
        let outside = left_out(count);
        let coverage = 1.0 - 2.0 * tail(count, outside);
        Some(Self { median, low: sorted[outside], high: sorted[count - 1 - outside], coverage, count })
    }

    /// Whether the interval is sure enough to decide something.
    pub fn is_sure(&self) -> bool {
        COVERAGE_MIN <= self.coverage
    }

    /// Whether two intervals have a figure in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

/// How many figures can be left out at each end, so that the rest still covers enough.
fn left_out(count: usize) -> usize {
    let covers = |outside: usize| COVERAGE_MIN <= 1.0 - 2.0 * tail(count, outside);
    (1..count.div_ceil(2)).take_while(|&outside| covers(outside)).last().unwrap_or(0)
}

/// The probability of at most `heads` heads of `coins` fair coins.
fn tail(coins: usize, heads: usize) -> f64 {
    let mut ways = 1.0;
    let mut sum = 0.0;
    for index in 0..=heads {
        sum += ways;
        ways *= (coins - index) as f64 / (index + 1) as f64;
    }
    sum / 2f64.powi(i32::try_from(coins).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(figures: &[f64], expected: (f64, f64, f64), coverage: f64) {
        let estimate = Estimate::of(figures).unwrap();
        assert_eq!((estimate.median, estimate.low, estimate.high), expected);
        assert!((estimate.coverage - coverage).abs() < 5e-4, "{estimate:?}");
    }

    #[test]
    fn intervals_are_those_of_the_sign_test() {
        // The coverages stand in any table of the sign test.
        check(&[5.0, 1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0], (5.0, 2.0, 8.0), 0.961);
        check(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], (3.5, 1.0, 6.0), 0.969);
        check(&[1.0, 2.0, 3.0], (2.0, 1.0, 3.0), 0.75);
        check(&[4.0], (4.0, 4.0, 4.0), 0.0);
        let fifteen: Vec<f64> = (1..=15).map(f64::from).collect();
        check(&fifteen, (8.0, 4.0, 12.0), 0.965);
    }

    #[test]
    fn only_enough_figures_decide_and_one_wild_one_changes_nothing() {
        let sure = |figures: &[f64]| Estimate::of(figures).unwrap().is_sure();
        assert!(!sure(&[1.0; 5]) && sure(&[1.0; 6]));
        check(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1e9], (1.0, 1.0, 1.0), 0.961);
        assert_eq!(Estimate::of(&[]), None);
        assert_eq!(Estimate::of(&[f64::NAN]), None);
    }

    #[test]
    fn intervals_overlap_when_they_share_a_figure() {
        let of = |low: f64, high: f64| Estimate { median: low, low, high, coverage: 1.0, count: 9 };
        assert!(of(1.0, 2.0).overlaps(&of(2.0, 3.0)));
        assert!(of(1.0, 5.0).overlaps(&of(2.0, 3.0)) && of(2.0, 3.0).overlaps(&of(1.0, 5.0)));
        assert!(!of(1.0, 2.0).overlaps(&of(2.1, 3.0)) && !of(2.1, 3.0).overlaps(&of(1.0, 2.0)));
    }
}
