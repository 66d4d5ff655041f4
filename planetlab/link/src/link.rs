//! One direction of a link: its random numbers, its memory, its queue.
//!
//! A packet takes one number from the link's sequence, whatever becomes of it, and draws everything else from a
//! sequence that begins with that number. So a setting that makes one packet draw more does not shift what the
//! next ones draw, and runs that differ in one knob stay comparable.

use crate::dice::Dice;
use crate::network::Counts;
use crate::roster::Endpoint;
use crate::settings::{Jitter, Loss, Settings};
use std::time::Duration;

/// The offset of a link changes from one random value to the next within this time.
const DRIFT_PERIOD: Duration = Duration::from_secs(60);
/// Datagrams whose fragments may come mixed.
const GROUPS: usize = 4;
/// Fragments later than this are of another datagram with the same number.
const GROUP_WITHIN: Duration = Duration::from_secs(1);

/// A limited rate and the queue before it: what is sent leaves when all before it has left.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shaper {
    free_at: Duration,
}

impl Shaper {
    /// When a packet has left that comes now; `None` when there is no room for it. One packet always has.
    pub(crate) fn pass(
        &mut self,
        now: Duration,
        bytes: usize,
        rate: Option<u64>,
        queue_bytes: u64,
    ) -> Option<Duration> {
        let Some(rate) = rate else { return Some(now) };
        let nanos =
            |bytes: u64| Duration::from_nanos((u128::from(bytes) * 8_000_000_000 / u128::from(rate)) as u64);
        let begin = self.free_at.max(now);
        if now < begin && nanos(queue_bytes) < begin - now + nanos(bytes as u64) {
            return None;
        }
        self.free_at = begin + nanos(bytes as u64);
        Some(self.free_at)
    }
}

/// What all fragments of a datagram have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    /// Beyond the delay.
    pub(crate) jitter: Duration,
    /// Held back by this.
    pub(crate) held: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct Link {
    seed: u64,
    dice: Dice,
    pub(crate) settings: Settings,
    pub(crate) is_cut: bool,
    /// Of the rules by which the two above were found.
    pub(crate) revision: u64,
    pub(crate) counts: Counts,
    pub(crate) shaper: Shaper,
    last_at: Duration,
    is_bad: bool,
    /// The last normal number of the lognormal jitter, and when it was drawn.
    normal: Option<(f64, Duration)>,
    groups: [Option<(u64, Duration, Draw)>; GROUPS],
    next_group: usize,
}

impl Link {
    pub(crate) fn new(seed: u64, from: Endpoint, to: Endpoint) -> Self {
        let mut dice = Dice::of_part(seed, "link", u64::from(from.0) << 32 | u64::from(to.0));
        Self {
            seed: dice.roll(),
            dice,
            settings: Settings::default(),
            is_cut: false,
            revision: 0,
            counts: Counts::default(),
            shaper: Shaper::default(),
            last_at: Duration::ZERO,
            is_bad: false,
            normal: None,
            groups: [None; GROUPS],
            next_group: 0,
        }
    }

    /// The random numbers of one more packet.
    pub(crate) fn dice_of_packet(&mut self) -> Dice {
        Dice::new(self.dice.roll())
    }

    /// Whether chance takes the next packet.
    pub(crate) fn loses(&mut self, dice: &mut Dice) -> bool {
        match self.settings.loss {
            Loss::Each(chance) => dice.chance(chance),
            Loss::Gilbert { worsens, mends, bad, good } => {
                let turns = dice.chance(if self.is_bad { mends } else { worsens });
                self.is_bad ^= turns;
                dice.chance(if self.is_bad { bad } else { good })
            }
        }
    }

    /// What is drawn for a datagram, or was drawn for its first fragment.
    pub(crate) fn draw(&mut self, now: Duration, group: Option<u64>, dice: &mut Dice) -> Draw {
        let known = self
            .groups
            .iter()
            .flatten()
            .find(|(known, since, _)| Some(*known) == group && now.saturating_sub(*since) < GROUP_WITHIN);
        if let Some((.., draw)) = known {
            return *draw;
        }
        let jitter = self.jitter(now, dice);
        let is_held = dice.chance(self.settings.reorder);
        let held = is_held.then(|| dice.time(Duration::ZERO, self.settings.reorder_by));
        let draw = Draw { jitter, held };
        if let Some(group) = group {
            self.groups[self.next_group] = Some((group, now, draw));
            self.next_group = (self.next_group + 1) % GROUPS;
        }
        draw
    }

    fn jitter(&mut self, now: Duration, dice: &mut Dice) -> Duration {
        match self.settings.jitter {
            Jitter::Uniform(most) => dice.time(Duration::ZERO, most),
            Jitter::Lognormal(median) => {
                let fresh = normal(dice);
                let normal = self.normal.map_or(fresh, |(last, at)| {
                    let kept = exp(-(now.saturating_sub(at).as_secs_f64() / Jitter::MEMORY.as_secs_f64()));
                    kept * last + (1.0 - kept * kept).max(0.0).sqrt() * fresh
                });
                self.normal = Some((normal, now));
                median.mul_f64(exp(Jitter::SIGMA * normal))
            }
        }
    }

    /// The offset at a moment: it follows from the seed and the time alone, so packets do not change it.
    pub(crate) fn drift(&self, now: Duration) -> Duration {
        if self.settings.drift.is_zero() {
            return Duration::ZERO;
        }
        /// One in twenty normal numbers is above it.
        const ONE_IN_TWENTY: f64 = 1.645;
        let at = |period: u64| {
            let share = normal(&mut Dice::of_part(self.seed, "drift", period)) / ONE_IN_TWENTY;
            self.settings.drift.mul_f64(share.max(0.0))
        };
        let period = now.as_secs() / DRIFT_PERIOD.as_secs();
        let part = now.as_secs_f64() / DRIFT_PERIOD.as_secs_f64() - period as f64;
        at(period).mul_f64((1.0 - part).max(0.0)) + at(period + 1).mul_f64(part.max(0.0))
    }

    /// When a packet arrives that would do so at `earliest`: behind the one before it, unless it is held back.
    pub(crate) fn arrival(&mut self, earliest: Duration, held: Option<Duration>) -> Duration {
        let at = earliest.max(self.last_at + Duration::from_nanos(1));
        match held {
            Some(held) => at + held,
            None => {
                self.last_at = at;
                at
            }
        }
    }
}

/// A normal number, as the sum of twelve even ones: no logarithm and no sine, which differ from machine to machine.
fn normal(dice: &mut Dice) -> f64 {
    const BITS: u32 = 53;
    let sum: u64 = (0..12).map(|_| dice.roll() >> (64 - BITS + 4)).sum();
    sum as f64 / (1u64 << (BITS - 4)) as f64 - 6.0
}

/// e to this power, by arithmetic that is the same on every machine.
fn exp(power: f64) -> f64 {
    const HALVINGS: u32 = 10;
    let small = power.clamp(-700.0, 700.0) / f64::from(1u32 << HALVINGS);
    let series = 1.0 + small * (1.0 + small / 2.0 * (1.0 + small / 3.0 * (1.0 + small / 4.0)));
    (0..HALVINGS).fold(series, |value, _| value * value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_made_functions_are_what_they_are_named_after() {
        for power in [-20.0, -3.0, -0.5, 0.0, 0.1, 1.0, 4.8] {
            let ratio = exp(power) / f64::exp(power);
            assert!((ratio - 1.0).abs() < 1e-6, "{power}: {ratio}");
        }
        let mut dice = Dice::new(1);
        let drawn: Vec<f64> = (0..100_000).map(|_| normal(&mut dice)).collect();
        let mean = drawn.iter().sum::<f64>() / 1e5;
        let variance = drawn.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }

    #[test]
    fn the_offset_is_slow_and_stays_in_its_range() {
        let mut link = Link::new(1, Endpoint(1), Endpoint(2));
        link.settings.drift = Duration::from_millis(20);
        let hours = 10_000u64;
        let offsets: Vec<Duration> =
            (0..hours).map(|second| link.drift(Duration::from_secs(second * 7))).collect();
        let above = offsets.iter().filter(|offset| Duration::from_millis(20) < **offset).count();
        assert!((50..600).contains(&above), "{above} of 10,000");
        let steps = (0..hours)
            .map(|ms| (link.drift(Duration::from_millis(ms)), link.drift(Duration::from_millis(ms + 1))));
        assert!(steps.into_iter().all(|(a, b)| a.abs_diff(b) < Duration::from_micros(5)));
    }
}
