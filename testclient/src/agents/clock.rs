//! How far another clock is from ours, by the best of several round trips (Cristian 1989).
//!
//! The answer was written somewhere between question and reply; the middle is the best guess, and half the round
//! trip is how wrong it can be. Of several the shortest round trip is the one to believe.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// So many questions are asked.
pub const QUESTIONS: usize = 16;
/// Loads that shall start together must not be further apart than this: beyond it, an agent is refused.
pub const ERROR_MAX: Duration = Duration::from_millis(100);
/// A clock that is further away than this is worth a warning. It is corrected, but the agent's own logs will not fit.
pub const OFFSET_NOTABLE: Duration = Duration::from_millis(500);

/// Another clock, as seen from here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset {
    /// That clock minus ours.
    pub nanos: i128,
    /// By how much that can be wrong.
    pub error: Duration,
}

/// One question: ours when it was sent, theirs, and ours when the answer was here.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    /// In nanoseconds, by our clock.
    pub asked: u64,
    /// In nanoseconds, by theirs.
    pub theirs: u64,
    /// In nanoseconds, by our clock.
    pub answered: u64,
}

/// The best guess from these; `None` from none.
pub fn best(trips: &[RoundTrip]) -> Option<Offset> {
    let trip = trips.iter().min_by_key(|trip| trip.answered.saturating_sub(trip.asked))?;
    let half = trip.answered.saturating_sub(trip.asked) / 2;
    let middle = i128::from(trip.asked) + i128::from(half);
    Some(Offset { nanos: i128::from(trip.theirs) - middle, error: Duration::from_nanos(half) })
}

impl Offset {
    /// A moment of our clock, by the other one.
    pub fn theirs(&self, ours_unix_nanos: u64) -> u64 {
        u64::try_from(i128::from(ours_unix_nanos) + self.nanos).unwrap_or(0)
    }

    /// What to say about it; `Err` if it is not good enough for a common start.
    ///
    /// # Errors
    /// Why the agent cannot take part.
    pub fn judge(&self, agent: &str) -> Result<Option<String>, String> {
        let (ms, error_ms) = (self.nanos as f64 / 1e6, self.error.as_secs_f64() * 1e3);
        if ERROR_MAX < self.error {
            return Err(format!(
                "agent {agent}: its clock can only be read to ±{error_ms:.0} ms (the best of {QUESTIONS} round \
                 trips); loads start together only within ±{} ms",
                ERROR_MAX.as_millis()
            ));
        }
        let is_notable = OFFSET_NOTABLE.as_nanos() < self.nanos.unsigned_abs();
        Ok(is_notable.then(|| {
            format!("agent {agent}: its clock is {ms:+.0} ms from this one (±{error_ms:.1} ms); starts are corrected for that")
        }))
    }
}

/// Now, in nanoseconds from 1970.
pub fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_shortest_round_trip_is_believed() {
        // Their clock is 5 s ahead; the way back of the first question was slow.
        let slow = RoundTrip { asked: 100 * MS, theirs: 5_101 * MS, answered: 190 * MS };
        let fast = RoundTrip { asked: 200 * MS, theirs: 5_201 * MS, answered: 202 * MS };
        let offset = best(&[slow, fast, slow]).unwrap();
        assert_eq!(offset, Offset { nanos: 5_000_000_000, error: Duration::from_millis(1) });
        assert_eq!(offset.theirs(1_000 * MS), 6_000 * MS);
        assert_eq!(best(&[]), None);
        let behind = best(&[RoundTrip { asked: 300 * MS, theirs: 100 * MS, answered: 300 * MS }]).unwrap();
        assert_eq!(behind.theirs(1_000 * MS), 800 * MS);
    }

    #[test]
    fn clocks_that_cannot_be_read_are_refused_and_far_ones_named() {
        let of = |nanos, error| Offset { nanos, error }.judge("a:1");
        assert_eq!(of(3_000_000, Duration::from_millis(1)), Ok(None));
        let far = of(-2_000_000_000, Duration::from_millis(2)).unwrap().unwrap();
        assert!(far.contains("agent a:1: its clock is -2000 ms from this one (±2.0 ms)"), "{far}");
        let vague = of(0, Duration::from_millis(400)).unwrap_err();
        assert!(vague.contains("agent a:1: its clock can only be read to ±400 ms"), "{vague}");
    }
}
