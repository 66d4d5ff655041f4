//! Medians and intervals that assume nothing about how the figures are spread.
//!
//! The interval of a median is between two order statistics: that the true median lies outside has the
//! probability of that many heads (or tails) of as many coins, whatever the distribution. Nine rounds leave
//! out the smallest and the largest and cover 96 %. The interval of a ratio of two independent sets of figures lies
//! in the same way between two of all their pairwise ratios; how likely the true one lies outside is known from the
//! rank-sum test. Deliberately not here: means and standard deviations,
//! which one disturbed second would spoil.

use serde::Serialize;

/// How often figures are drawn again to see how they scatter.
const RESAMPLES: usize = 1_000;

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

    /// The ratio of the medians of two independent sets of figures, and where the true one lies: four figures on
    /// each side are the fewest that can be sure. `None` if there is nothing to divide.
    pub fn of_ratio(figures: &[f64], by: &[f64]) -> Option<Self> {
        let (own, by) = (positive(figures), positive(by));
        let median = Self::of(&own)?.median / Self::of(&by)?.median;
        let mut ratios: Vec<f64> =
            own.iter().flat_map(|one| by.iter().map(move |other| one / other)).collect();
        ratios.sort_by(f64::total_cmp);
        let ways = rank_sum_ways(own.len(), by.len());
        let all: f64 = ways.iter().sum();
        let coverage = |outside: usize| 1.0 - 2.0 * ways[..=outside].iter().sum::<f64>() / all;
        let candidates = 1..ratios.len().div_ceil(2);
        let outside = candidates.take_while(|&outside| COVERAGE_MIN <= coverage(outside)).last().unwrap_or(0);
        let (low, high) = (ratios[outside], ratios[ratios.len() - 1 - outside]);
        Some(Self { median, low, high, coverage: coverage(outside).max(0.0), count: own.len().min(by.len()) })
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

fn positive(figures: &[f64]) -> Vec<f64> {
    figures.iter().copied().filter(|figure| figure.is_finite() && 0.0 < *figure).collect()
}

/// In how many of all orders of two sets of figures exactly 0, 1, 2 … pairs stand the wrong way round.
fn rank_sum_ways(own: usize, by: usize) -> Vec<f64> {
    // With none on one side there is one order, and no pair.
    let mut row: Vec<Vec<f64>> = vec![vec![1.0]; by + 1];
    for one in 1..=own {
        let mut next = vec![vec![1.0]];
        for other in 1..=by {
            // The largest of all is one of ours, and above all of theirs, or one of theirs.
            let mut ways = vec![0.0; one * other + 1];
            row[other].iter().enumerate().for_each(|(pairs, count)| ways[pairs + other] += count);
            next[other - 1].iter().enumerate().for_each(|(pairs, count)| ways[pairs] += count);
            next.push(ways);
        }
        row = next;
    }
    row.swap_remove(by)
}

/// Where the ratio of the means of two series lies, if their parts are drawn again in blocks, which keeps what
/// follows on one another together. It knows only the scatter within the series. `None` for short series.
pub fn resampled_ratio(figures: &[f64], by: &[f64], block: usize) -> Option<(f64, f64)> {
    if figures.len() < 2 * block || by.len() < 2 * block {
        return None;
    }
    let mut state = 1u64;
    let mut below = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as usize) % limit
    };
    let mut mean = |series: &[f64]| {
        let blocks = series.len().div_ceil(block);
        let mut sum = 0.0;
        for _ in 0..blocks {
            let start = below(series.len());
            sum += (start..start + block).map(|place| series[place % series.len()]).sum::<f64>();
        }
        sum / (blocks * block) as f64
    };
    let mut ratios: Vec<f64> = (0..RESAMPLES).map(|_| mean(figures) / mean(by)).collect();
    ratios.sort_by(f64::total_cmp);
    let outside = ((1.0 - COVERAGE_MIN) / 2.0 * RESAMPLES as f64) as usize;
    let (low, high) = (ratios[outside], ratios[RESAMPLES - 1 - outside]);
    (low.is_finite() && high.is_finite()).then_some((low, high))
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
    fn ratios_of_independent_figures_have_the_intervals_of_the_rank_sum_test() {
        assert_eq!(rank_sum_ways(2, 2), [1.0, 1.0, 2.0, 1.0, 1.0]);
        assert_eq!(rank_sum_ways(3, 3).iter().sum::<f64>(), 20.0);
        let of = |count: u32| (1..=count).map(|index| 10.0 + f64::from(index)).collect::<Vec<_>>();
        let coverage = |own: u32, by: u32| Estimate::of_ratio(&of(own), &of(by)).unwrap().coverage;
        // 1 - 2/20, 1 - 2/70, and the tabled critical value 2 of 5 and 5.
        assert!((coverage(3, 3) - 0.90).abs() < 1e-9);
        assert!((coverage(4, 4) - 0.971).abs() < 5e-4);
        assert!((coverage(5, 5) - 0.968).abs() < 5e-4);
        assert_eq!(coverage(1, 1), 0.0);
        let ratio = Estimate::of_ratio(&[2.0, 4.0, 6.0], &[1.0, 2.0, 4.0]).unwrap();
        assert_eq!((ratio.median, ratio.low, ratio.high, ratio.count), (2.0, 0.5, 6.0, 3));
        assert_eq!(Estimate::of_ratio(&[1.0], &[0.0]), None);
    }

    #[test]
    fn resampling_sees_a_difference_beyond_the_scatter_and_none_within_it() {
        let series = |mean: f64| (0..60).map(|at| mean + f64::from(at % 7)).collect::<Vec<_>>();
        let (low, high) = resampled_ratio(&series(100.0), &series(100.0), 5).unwrap();
        assert!(low <= 1.0 && 1.0 <= high && high - low < 0.05, "{low} {high}");
        let (low, high) = resampled_ratio(&series(200.0), &series(100.0), 5).unwrap();
        assert!(1.9 < low && high < 2.1, "{low} {high}");
        assert_eq!(resampled_ratio(&[1.0; 9], &[1.0; 60], 5), None);
        assert_eq!(resampled_ratio(&[1.0; 60], &[0.0; 60], 5), None);
    }

    #[test]
    fn intervals_overlap_when_they_share_a_figure() {
        let of = |low: f64, high: f64| Estimate { median: low, low, high, coverage: 1.0, count: 9 };
        assert!(of(1.0, 2.0).overlaps(&of(2.0, 3.0)));
        assert!(of(1.0, 5.0).overlaps(&of(2.0, 3.0)) && of(2.0, 3.0).overlaps(&of(1.0, 5.0)));
        assert!(!of(1.0, 2.0).overlaps(&of(2.1, 3.0)) && !of(2.1, 3.0).overlaps(&of(1.0, 2.0)));
    }
}
