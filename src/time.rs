//! Time as the core sees it: a number handed in by whoever drives it.
//!
//! The server reads one steady clock and adds the wall clock of its start; the simulator counts. So
//! an [`Instant`] never runs backwards inside a process and is roughly the same on all members, which
//! version numbers like and nothing relies on.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub use std::time::Duration;

/// A moment, in nanoseconds since the UNIX epoch on this process's steady clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The beginning of time; earlier than every real moment.
    pub const ZERO: Self = Self(0);
    /// Later than every real moment: the deadline of what has none.
    pub const FAR: Self = Self(u64::MAX);

    /// The moment this many nanoseconds after the epoch.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Milliseconds since the epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Time since `earlier`; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000_000, self.0 / 1_000 % 1_000_000)
    }
}

/// How long something usually takes: an exponentially smoothed mean that many threads feed. Races
/// between them lose a sample now and then, which a mean does not mind.
#[derive(Debug, Default)]
pub struct UsualDuration(AtomicU64);

impl UsualDuration {
    /// One more sample; it weighs a sixteenth.
    pub fn note(&self, sample: Duration) {
        let sample = u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX);
        let old = self.0.load(Ordering::Relaxed);
        self.0.store(old - old / 16 + sample / 16, Ordering::Relaxed);
    }

    /// The mean.
    #[must_use]
    pub fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    /// From when on something counts as late: `floor`, or eight times the usual while everything is
    /// slow, so that load alone does not make everything late; at most `ceiling`.
    #[must_use]
    pub fn late_after(&self, floor: Duration, ceiling: Duration) -> Duration {
        floor.max((self.get() * 8).min(ceiling))
    }
}

/// How long the way to somewhere and back takes by itself: the least that was seen, which may rise again by 1 ms a
/// second. So a queue or a lost packet does not lengthen it, a member that has become slow does not get more time for
/// that, and a route that has become longer is known within a minute or two.
#[derive(Debug, Default)]
pub struct LeastDuration {
    nanos: AtomicU64,
    noted_at: AtomicU64,
    samples: AtomicU32,
}

impl LeastDuration {
    /// It may rise by one part in so many of the time that passes.
    const RISE: u64 = 1_000;

    /// One more sample.
    pub fn note(&self, now: Instant, sample: Duration) {
        let sample = u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX);
        let passed = now.since(Instant::from_nanos(self.noted_at.swap(now.as_nanos(), Ordering::Relaxed)));
        let risen = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX) / Self::RISE;
        let least = match self.samples.fetch_add(1, Ordering::Relaxed) {
            0 => sample,
            _ => self.nanos.load(Ordering::Relaxed).saturating_add(risen).min(sample),
        };
        self.nanos.store(least, Ordering::Relaxed);
    }

    /// The least; zero before the first sample.
    #[must_use]
    pub fn get(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    /// How many samples there were.
    #[must_use]
    pub fn samples(&self) -> u32 {
        self.samples.load(Ordering::Relaxed)
    }
}

/// The time within which about 95 of 100 things are done, estimated one sample at a time: a sample above the
/// estimate raises it nineteen times as far as one below lowers it, so it rests where one in twenty is above
/// (Ma, Muthukrishnan and Sandler, Frugal Streaming, 2013; but with steps in proportion, because the right
/// magnitude is not known). It keeps one number, draws none, and follows when things change. Only whether a
/// sample is above counts, so one that was given up is as good as one that ended. Races lose a sample now and then.
#[derive(Debug, Default)]
pub struct TailDuration(AtomicU64);

impl TailDuration {
    /// One sample below lowers the estimate by one part in so many.
    const STEP: u64 = 100;
    /// The least that it is raised by, in nanoseconds.
    const RAISE_MIN: u64 = 1_000;

    /// One more sample.
    pub fn note(&self, sample: Duration) {
        let sample = u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX);
        let new = match self.0.load(Ordering::Relaxed) {
            // Of one sample nobody knows the tail.
            0 => sample.saturating_mul(2),
            old if old < sample => old.saturating_add((old / Self::STEP * 19).max(Self::RAISE_MIN)),
            old => old - old / Self::STEP,
        };
        self.0.store(new.max(1), Ordering::Relaxed);
    }

    /// The estimate; `None` before the first sample.
    #[must_use]
    pub fn get(&self) -> Option<Duration> {
        let nanos = self.0.load(Ordering::Relaxed);
        (nanos != 0).then(|| Duration::from_nanos(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_is_the_floor_until_everything_is_slow() {
        let (floor, ceiling) = (Duration::from_millis(50), Duration::from_millis(350));
        let usual = UsualDuration::default();
        assert_eq!(usual.late_after(floor, ceiling), floor);
        (0..200).for_each(|_| usual.note(Duration::from_millis(15)));
        let late = usual.late_after(floor, ceiling);
        assert!(Duration::from_millis(115) < late && late <= Duration::from_millis(120), "{late:?}");
        (0..200).for_each(|_| usual.note(Duration::from_secs(9)));
        assert_eq!(usual.late_after(floor, ceiling), ceiling);
    }

    #[test]
    fn the_least_does_not_follow_queues_and_follows_a_new_route_slowly() {
        let (ms, at) = (Duration::from_millis, |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000));
        let least = LeastDuration::default();
        assert_eq!(least.get(), Duration::ZERO);
        for (second, sample) in [(10, 120), (11, 100), (12, 900)] {
            least.note(at(second), ms(sample));
        }
        assert_eq!(least.get(), ms(101));
        (3..6).for_each(|tens| least.note(at(tens * 10), ms(700)));
        assert_eq!((least.get(), least.samples()), (ms(139), 6));
        least.note(at(60), ms(100));
        assert_eq!(least.get(), ms(100));
    }

    /// Feeds so many durations, 1 µs to 1 s by 1 / `below` with every power the same chance, and says how many
    /// in a hundred of the later half were above the estimate.
    fn share_above(tail: &TailDuration, samples: u32, sample: impl Fn(u32) -> Duration) -> u32 {
        let mut above = 0;
        for number in 0..samples {
            let sample = sample(number.wrapping_mul(2_654_435_761) >> 16);
            let is_above = tail.get().is_some_and(|estimate| estimate < sample);
            above += u32::from(is_above && samples / 2 <= number);
            tail.note(sample);
        }
        above * 200 / samples
    }

    #[test]
    fn one_in_twenty_is_above_the_tail_whatever_the_distribution() {
        let tail = TailDuration::default();
        assert_eq!(tail.get(), None);
        let even = |drawn: u32| Duration::from_micros(1_000 + u64::from(drawn % 4_000));
        let long = |drawn: u32| Duration::from_micros(100 << (drawn % 14));
        let halves = |drawn: u32| Duration::from_millis(if drawn.is_multiple_of(10) { 300 } else { 2 });
        assert!((3..=7).contains(&share_above(&tail, 4_000, even)));
        let of_even = tail.get().expect("it was fed");
        assert!((4_400..=5_400).contains(&of_even.as_micros()), "{of_even:?}");
        assert!((3..=8).contains(&share_above(&tail, 4_000, long)));
        assert!((3..=10).contains(&share_above(&tail, 4_000, halves)));
        let slow = tail.get().expect("it was fed");
        assert!(Duration::from_millis(200) < slow, "one in ten is slow: {slow:?}");
        share_above(&tail, 1_000, even);
        let again = tail.get().expect("it was fed");
        assert!(again < Duration::from_millis(7), "it comes back: {again:?}");
    }
}
