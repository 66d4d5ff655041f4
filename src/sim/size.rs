//! How many nodes a run has: a number, or a range from which each seed draws one.
//!
//! A range is drawn log-uniformly, so that as many runs have between 5 and 10 nodes as have between 10
//! and 20: small clusters show more per second, large ones show what small ones cannot. The dice for it
//! are the seed's own for this purpose: a run with a drawn number is the run with that number given.

use std::ops::RangeInclusive;
use std::str::FromStr;
use violet_link::Dice;

/// What a run may have.
const ALLOWED: RangeInclusive<usize> = 1..=200;

/// A number of nodes, or a range of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    fewest: usize,
    most: usize,
}

impl Size {
    /// The number of nodes of the run with this seed.
    #[must_use]
    pub fn of_run(self, seed: u64) -> usize {
        // The logarithm of (n + 1) / n in whole numbers, so that every machine draws the same.
        let weight = |nodes: usize| (1u64 << 32) / (2 * nodes as u64 + 1);
        let total = (self.fewest..=self.most).map(weight).sum();
        let mut left = Dice::of_part(seed, "size", 0).below(total);
        let is_drawn = |nodes: &usize| match left.checked_sub(weight(*nodes)) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        };
        (self.fewest..=self.most)
            .find(is_drawn)
            .expect("the number drawn is less than the sum of all weights")
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (fewest, most) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| {
            let number = text.parse().ok().filter(|number| ALLOWED.contains(number));
            let wanted = || format!("{} to {}, or a range like 5-30", ALLOWED.start(), ALLOWED.end());
            number.ok_or_else(|| format!("allowed: {}", wanted()))
        };
        let (fewest, most) = (number(fewest)?, number(most)?);
        if most < fewest {
            return Err(format!("the smaller number comes first: {most}-{fewest}"));
        }
        Ok(Self { fewest, most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ranges_are_read_and_others_refused() {
        let read = |text: &str| text.parse::<Size>();
        assert_eq!(read("7"), Ok(Size { fewest: 7, most: 7 }));
        assert_eq!(read("1-200"), Ok(Size { fewest: 1, most: 200 }));
        assert_eq!(read("5-5"), read("5"));
        assert_eq!(read("30-5"), Err("the smaller number comes first: 5-30".into()));
        for wrong in ["", "-", "5-", "-5", "0", "0-5", "5-201", "5-10-20", "5..30", "many", "5 - 30", "-1-5"]
        {
            assert_eq!(read(wrong), Err("allowed: 1 to 200, or a range like 5-30".into()), "{wrong}");
        }
    }

    #[test]
    fn small_and_large_runs_are_as_frequent_as_the_logarithm_says() {
        let size: Size = "5-30".parse().expect("a range");
        let drawn: Vec<usize> = (0..10_000).map(|seed| size.of_run(seed)).collect();
        let count =
            |range: std::ops::Range<usize>| drawn.iter().filter(|nodes| range.contains(nodes)).count();
        assert_eq!(count(5..31), drawn.len());
        assert!((5..31).all(|nodes| 0 < count(nodes..nodes + 1)));
        // ln 2 / ln (31 / 5) = 38 % each.
        for count in [count(5..10), count(10..20)] {
            assert!((3_600..4_000).contains(&count), "{count}");
        }
        assert_eq!("9".parse::<Size>().expect("a number").of_run(3), 9);
    }
}
