//! Foca's timers, in the order in which it wants them back.

use super::Name;
use crate::time::Instant;
use foca::Timer;
use std::collections::BTreeMap;

/// A timer that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) timer: Timer<Name>,
    /// When foca asked for it.
    pub(super) asked_at: Instant,
}

/// All that wait. Their number is bounded by what foca keeps running: a handful of periodic tasks and
/// one verdict for each probe that failed within the suspicion time.
#[derive(Debug, Default)]
pub(super) struct Timers {
    /// By deadline, foca's own order, and age.
    queue: BTreeMap<(Instant, u8, u64), Waiting>,
    made: u64,
}

impl Timers {
    pub(super) fn insert(&mut self, at: Instant, waiting: Waiting) {
        self.made += 1;
        self.queue.insert((at, order_of(&waiting.timer), self.made), waiting);
    }

    /// When the first is due.
    pub(super) fn next_deadline(&self) -> Instant {
        self.queue.first_key_value().map_or(Instant::FAR, |(key, _)| key.0)
    }

    pub(super) fn take_due(&mut self, now: Instant) -> Option<Waiting> {
        Some(self.queue.first_entry().filter(|entry| entry.key().0 <= now)?.remove())
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }
}

/// Foca orders timers of one moment by kind.
fn order_of(timer: &Timer<Name>) -> u8 {
    match timer {
        Timer::SendIndirectProbe { .. } => 0,
        Timer::ProbeRandomMember(_) => 1,
        Timer::ChangeSuspectToDown { .. } => 2,
        Timer::PeriodicAnnounce(_) => 3,
        Timer::PeriodicGossip(_) => 4,
        Timer::RemoveDown(_) => 5,
        Timer::PeriodicAnnounceDown(_) => 6,
    }
}
