//! The times of an open loop. They follow from seed, rate and the request's number alone: a generator that is late, or
//! a server that stalls, moves none of them.
//!
//! With several threads the requests of a constant schedule are dealt out in turn; of a Poisson schedule each thread has
//! one of its own with its share of the rate, which together are Poisson again.

use super::Nanos;
use crate::result::Arrivals;
use crate::values::Random;

/// When requests are due; the next is always known.
#[derive(Clone, Debug)]
pub struct Schedule {
    arrivals: Arrivals,
    /// Between two requests of this thread, on average.
    gap_nanos: f64,
    /// Of the first request, for constant distances.
    offset_nanos: f64,
    /// Of the next request.
    index: u64,
    random: Random,
    /// Sum of the distances so far; fractions of nanoseconds add up.
    at_nanos: f64,
}

impl Schedule {
    /// The part of thread `thread` of `threads` in a schedule of `rate` requests a second.
    pub fn new(arrivals: Arrivals, rate: f64, seed: u64, thread: usize, threads: usize) -> Self {
        let gap_nanos = 1e9 / rate;
        let mut schedule = Self {
            arrivals,
            gap_nanos: gap_nanos * threads as f64,
            offset_nanos: gap_nanos * thread as f64,
            index: 0,
            random: Random::new(seed ^ (thread as u64).wrapping_mul(0xd6e8_feb8_6659_fd93)),
            at_nanos: 0.0,
        };
        schedule.at_nanos = schedule.first();
        schedule
    }

    fn first(&mut self) -> f64 {
        match self.arrivals {
            Arrivals::Constant => self.offset_nanos,
            Arrivals::Poisson => self.draw(),
        }
    }

    /// An exponential distance: the logarithm of a number in (0, 1].
    fn draw(&mut self) -> f64 {
        let unit = ((self.random.next() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        -unit.ln() * self.gap_nanos
    }

    /// When the next request is due.
    pub fn due(&self) -> Nanos {
        self.at_nanos as Nanos
    }

    /// Between two requests, on average.
    pub fn mean_gap(&self) -> Nanos {
        self.gap_nanos as Nanos
    }

    /// Goes on to the request after it.
    pub fn advance(&mut self) {
        self.index += 1;
        self.at_nanos = match self.arrivals {
            // Not by adding up: after hours that would be off.
            Arrivals::Constant => self.offset_nanos + self.index as f64 * self.gap_nanos,
            Arrivals::Poisson => self.at_nanos + self.draw(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(mut schedule: Schedule, count: usize) -> Vec<Nanos> {
        let mut next = || {
            let due = schedule.due();
            schedule.advance();
            due
        };
        std::iter::repeat_with(&mut next).take(count).collect()
    }

    #[test]
    fn constant_times_are_exact_and_dealt_out_among_threads() {
        let whole = times(Schedule::new(Arrivals::Constant, 250_000.0, 1, 0, 1), 1_000_001);
        assert_eq!((whole[0], whole[1], whole[1_000_000]), (0, 4_000, 4_000_000_000));
        let parts: Vec<_> =
            (0..3).map(|part| times(Schedule::new(Arrivals::Constant, 250_000.0, 1, part, 3), 100)).collect();
        for (index, due) in whole[..300].iter().enumerate() {
            assert!(parts[index % 3][index / 3].abs_diff(*due) <= 1, "{index}");
        }
    }

    #[test]
    fn poisson_times_follow_from_the_seed_and_are_exponential() {
        let draw = |seed| times(Schedule::new(Arrivals::Poisson, 1_000.0, seed, 0, 1), 100_000);
        let drawn = draw(7);
        assert_eq!(drawn, draw(7));
        assert_ne!(drawn, draw(8));
        let gaps: Vec<f64> = drawn.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e6).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        assert!((0.99..1.01).contains(&mean), "{mean} ms");
        // Of an exponential distribution a share of 1/e lies beyond the mean, and of e^-3 beyond three of it.
        let beyond = |limit: f64| gaps.iter().filter(|&&gap| limit < gap).count() as f64 / gaps.len() as f64;
        assert!((beyond(1.0) - 0.3679).abs() < 0.01, "{}", beyond(1.0));
        assert!((beyond(3.0) - 0.0498).abs() < 0.005, "{}", beyond(3.0));
    }
}
