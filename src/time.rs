//! Time as the core sees it: a number handed in by whoever drives it.
//!
//! The server reads one steady clock and adds the wall clock of its start; the simulator counts. So
//! an [`Instant`] never runs backwards inside a process and is roughly the same on all members, which
//! version numbers like and nothing relies on.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};
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
}
