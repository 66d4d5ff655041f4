//! Which keys are asked for.
//!
//! Zipf numbers are drawn by rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates from
//! monotone discrete distributions", 1996): exact for any number of keys without a table of them, about one try each.
//! Key 0 is the most popular one; where a key lies in a cluster has nothing to do with its number. With several threads
//! each has every n-th key and draws among its own, so the n most popular keys are equally popular.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::as_text;
use crate::values::Random;

/// How keys are chosen: `uniform`, `sequential`, `zipf:THETA`, `hot:REQUESTS:KEYS` (percent of the requests go to percent
/// of the keys), `absent`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum KeyOrder {
    /// All alike.
    #[default]
    Uniform,
    /// One after the other, and again from the first.
    Sequential,
    /// The n-th most popular with a probability that falls with n to the power of theta.
    Zipf {
        /// 0.99 is what YCSB calls zipfian.
        theta: f64,
    },
    /// A share of the requests on a share of the keys, both in percent; inside and outside all alike.
    Hot {
        /// Of the requests.
        requests_percent: f64,
        /// Of the keys.
        keys_percent: f64,
    },
    /// Keys that are never written, one after the other.
    Absent,
}

impl FromStr for KeyOrder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no key order: uniform, sequential, absent, zipf:0.99 (0 to 10), hot:90:10 (percents)"
            )
        };
        let mut parts = text.split(':');
        let name = parts.next();
        let numbers: Vec<f64> = parts.map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
        match (name, numbers.as_slice()) {
            (Some("uniform"), []) => Ok(Self::Uniform),
            (Some("sequential"), []) => Ok(Self::Sequential),
            (Some("absent"), []) => Ok(Self::Absent),
            (Some("zipf"), &[theta]) if 0.0 < theta && theta <= 10.0 => Ok(Self::Zipf { theta }),
            (Some("hot"), &[requests_percent, keys_percent])
                if (0.0..=100.0).contains(&requests_percent)
                    && 0.0 < keys_percent
                    && keys_percent <= 100.0 =>
            {
                Ok(Self::Hot { requests_percent, keys_percent })
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for KeyOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Sequential => f.write_str("sequential"),
            Self::Zipf { theta } => write!(f, "zipf:{theta}"),
            Self::Hot { requests_percent, keys_percent } => {
                write!(f, "hot:{requests_percent}:{keys_percent}")
            }
            Self::Absent => f.write_str("absent"),
        }
    }
}

as_text!(KeyOrder);

/// Draws indices below a number in a key order.
#[derive(Clone, Debug)]
pub enum Draw {
    /// Any.
    Uniform(usize),
    /// The next.
    Sequential {
        /// How many there are.
        count: usize,
        /// Which is next.
        next: usize,
    },
    /// A Zipf number.
    Zipf(Zipf),
    /// A hot one or another.
    Hot {
        /// Of all requests, in 2^32nds.
        share: u64,
        /// So many keys are hot.
        hot: usize,
        /// How many there are.
        count: usize,
    },
}

impl Draw {
    /// Draws among `count` keys, which is at least one; [`KeyOrder::Absent`] is the next, too.
    pub fn new(order: KeyOrder, count: usize) -> Self {
        match order {
            KeyOrder::Uniform => Self::Uniform(count),
            KeyOrder::Sequential | KeyOrder::Absent => Self::Sequential { count, next: 0 },
            KeyOrder::Zipf { theta } => Self::Zipf(Zipf::new(count as u64, theta)),
            KeyOrder::Hot { requests_percent, keys_percent } => Self::Hot {
                share: (requests_percent / 100.0 * (1u64 << 32) as f64) as u64,
                hot: ((keys_percent / 100.0 * count as f64).round() as usize).clamp(1, count),
                count,
            },
        }
    }

    /// The next index.
    pub fn next(&mut self, random: &mut Random) -> usize {
        match self {
            Self::Uniform(count) => random.below(*count),
            Self::Sequential { count, next } => {
                let index = *next;
                *next = if index + 1 == *count { 0 } else { index + 1 };
                index
            }
            Self::Zipf(zipf) => zipf.draw(random) as usize - 1,
            Self::Hot { share, hot, count } => {
                let is_hot = random.next() >> 32 < *share || *hot == *count;
                if is_hot { random.below(*hot) } else { *hot + random.below(*count - *hot) }
            }
        }
    }
}

/// Zipf numbers from 1 to `count`. The names of the constants are those of the paper.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    theta: f64,
    count: f64,
    h_x1: f64,
    h_count: f64,
    s: f64,
}

impl Zipf {
    fn new(count: u64, theta: f64) -> Self {
        let mut zipf = Self { theta, count: count as f64, h_x1: 0.0, h_count: 0.0, s: 0.0 };
        zipf.h_x1 = zipf.h_integral(1.5) - 1.0;
        zipf.h_count = zipf.h_integral(count as f64 + 0.5);
        zipf.s = 2.0 - zipf.h_integral_inverse(zipf.h_integral(2.5) - zipf.h(2.0));
        zipf
    }

    /// The density that is drawn from, x to the power of -theta.
    fn h(&self, x: f64) -> f64 {
        (-self.theta * x.ln()).exp()
    }

    /// Its integral, (x^(1-theta) - 1) / (1 - theta), written so that it is right for theta near and at 1.
    fn h_integral(&self, x: f64) -> f64 {
        let log_x = x.ln();
        let t = (1.0 - self.theta) * log_x;
        let quotient = if t.abs() < 1e-8 { 1.0 + t / 2.0 } else { t.exp_m1() / t };
        quotient * log_x
    }

    fn h_integral_inverse(&self, x: f64) -> f64 {
        // Rounding can go below the value at zero.
        let t = (x * (1.0 - self.theta)).max(-1.0);
        let quotient = if t.abs() < 1e-8 { 1.0 - t / 2.0 } else { t.ln_1p() / t };
        (quotient * x).exp()
    }

    /// A number.
    pub fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let unit = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
            let u = self.h_count + unit * (self.h_x1 - self.h_count);
            let x = self.h_integral_inverse(u);
            let k = (x + 0.5).floor().clamp(1.0, self.count);
            if k - x <= self.s || self.h_integral(k + 0.5) - self.h(k) <= u {
                return k as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_and_bad_ones_named() {
        for text in ["uniform", "sequential", "zipf:0.99", "hot:90:10", "absent"] {
            assert_eq!(text.parse::<KeyOrder>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "zipf",
            "zipf:0",
            "zipf:-1",
            "zipf:11",
            "hot:90",
            "hot:101:1",
            "hot:1:0",
            "uniform:1",
            "zipf:x",
        ] {
            assert!(text.parse::<KeyOrder>().unwrap_err().contains("zipf:0.99"), "{text}");
        }
    }

    #[test]
    fn zipf_numbers_have_their_probabilities() {
        for theta in [0.5, 0.99, 1.0, 1.4] {
            let (count, draws) = (1_000u64, 400_000);
            let zipf = Zipf::new(count, theta);
            let mut random = Random::new(5);
            let mut seen = vec![0u32; count as usize + 1];
            (0..draws).for_each(|_| seen[zipf.draw(&mut random) as usize] += 1);
            let sum: f64 = (1..=count).map(|k| (k as f64).powf(-theta)).sum();
            for k in [1, 2, 3, 10, 100] {
                let expected = draws as f64 * (k as f64).powf(-theta) / sum;
                let error = (f64::from(seen[k as usize]) - expected).abs();
                assert!(
                    error < 5.0 * expected.sqrt(),
                    "theta {theta}, {k}: {} not {expected}",
                    seen[k as usize]
                );
            }
            let beyond = seen[501..].iter().sum::<u32>();
            let expected = draws as f64 * (501..=count).map(|k| (k as f64).powf(-theta)).sum::<f64>() / sum;
            assert!((f64::from(beyond) - expected).abs() < 5.0 * expected.sqrt(), "theta {theta}: the tail");
        }
    }

    #[test]
    fn zipf_reaches_to_the_end_of_ten_million_keys() {
        let zipf = Zipf::new(10_000_000, 0.99);
        let mut random = Random::new(1);
        let drawn: Vec<u64> = (0..200_000).map(|_| zipf.draw(&mut random)).collect();
        assert!(drawn.iter().all(|k| (1..=10_000_000).contains(k)));
        let upper = drawn.iter().filter(|&&k| 5_000_000 < k).count() as f64 / 200_000.0;
        // The sum of k^-0.99 over the upper half, over that of all, by integrals.
        let expected =
            (1e7f64.powf(0.01) - 5e6f64.powf(0.01)) / 0.01 / ((1e7f64.powf(0.01) - 1.0) / 0.01 + 0.577);
        assert!((upper - expected).abs() < 0.003, "{upper} not {expected}");
    }

    #[test]
    fn hot_keys_get_their_share_and_sequences_go_round() {
        let mut random = Random::new(2);
        let order = KeyOrder::Hot { requests_percent: 90.0, keys_percent: 10.0 };
        let mut draw = Draw::new(order, 1_000);
        let drawn: Vec<usize> = (0..20_000).map(|_| draw.next(&mut random)).collect();
        let hot = drawn.iter().filter(|&&index| index < 100).count();
        assert!((17_800..18_200).contains(&hot), "{hot}");
        assert!(drawn.iter().all(|&index| index < 1_000));
        let mut draw = Draw::new(KeyOrder::Sequential, 3);
        let drawn: Vec<usize> = (0..7).map(|_| draw.next(&mut random)).collect();
        assert_eq!(drawn, [0, 1, 2, 0, 1, 2, 0]);
        let mut all = Draw::new(KeyOrder::Hot { requests_percent: 0.0, keys_percent: 100.0 }, 2);
        assert!((0..10).all(|_| all.next(&mut random) < 2));
    }
}
