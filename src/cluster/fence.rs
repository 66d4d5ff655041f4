//! Self-fencing: a process that was away must not serve what it missed.
//!
//! A suspended process (SIGSTOP, a paused virtual machine, a starved core) does not notice that it
//! was away: it would answer old questions, apply old writes and serve old values. So the controller
//! beats here at every tick, and whoever notices that the last beat is too long ago raises the fence:
//! everything received before that moment is dropped, and the node counts as *catching up* until
//! every member that is alive has said that it keeps no hint for it. Meanwhile the node takes writes
//! and passes requests on, but its own misses and values mean nothing. A start is a gap like any
//! other. See "Away and back" in ARCHITECTURE.md.

use crate::ids::MemberId;
use crate::time::{Duration, Instant};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Whether this process may serve what it holds.
#[derive(Debug)]
pub struct Fence {
    after: Duration,
    beat: AtomicU64,
    floor: AtomicU64,
    active: AtomicBool,
    /// A leaf lock.
    catch_up: Mutex<CatchUp>,
}

#[derive(Debug, Default)]
struct CatchUp {
    round: u64,
    since: Instant,
    /// Members that have not yet said that they keep nothing for us; `None` before the first question.
    waiting: Option<BTreeSet<MemberId>>,
}

impl Fence {
    /// The fence of a process that starts now: up, until it has caught up.
    #[must_use]
    pub fn new(after: Duration, now: Instant) -> Self {
        let fence = Self {
            after,
            beat: AtomicU64::new(now.as_nanos()),
            floor: AtomicU64::new(0),
            active: AtomicBool::new(true),
            catch_up: Mutex::default(),
        };
        fence.raise(now);
        fence
    }

    /// Whether the node may serve what it holds.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Looks for a gap; returns `true` when this call raised the fence.
    pub fn check(&self, now: Instant) -> bool {
        let beat = Instant::from_nanos(self.beat.load(Ordering::Relaxed));
        if now.since(beat) <= self.after || !self.active.swap(false, Ordering::AcqRel) {
            return false;
        }
        self.raise(now);
        true
    }

    fn raise(&self, now: Instant) {
        self.active.store(false, Ordering::Release);
        self.floor.store(now.as_nanos(), Ordering::Relaxed);
        let mut catch_up = self.catch_up.lock();
        *catch_up = CatchUp { round: catch_up.round + 1, since: now, waiting: None };
    }

    /// The controller lives. Look for a gap with [`Fence::check`] first.
    pub fn beat(&self, now: Instant) {
        self.beat.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Whether there was a gap, a start included, within this span.
    #[must_use]
    pub fn was_raised_within(&self, now: Instant, span: Duration) -> bool {
        now.since(Instant::from_nanos(self.floor.load(Ordering::Relaxed))) < span
    }

    /// Whether something received at this moment belongs to the time before the gap.
    #[must_use]
    pub fn is_behind(&self, received_at: Instant) -> bool {
        received_at.as_nanos() < self.floor.load(Ordering::Relaxed)
    }

    /// Whom to ask for what was missed, of the members that are alive: those that have not answered
    /// this round. Empty and caught up: lowers the fence and returns how long it was up.
    pub fn pursue(&self, now: Instant, alive: impl Iterator<Item = MemberId>) -> Pursuit {
        if self.is_active() {
            return Pursuit::Idle;
        }
        let mut catch_up = self.catch_up.lock();
        let alive: BTreeSet<MemberId> = alive.collect();
        let waiting = match catch_up.waiting.take() {
            None => alive,
            Some(waiting) => waiting.intersection(&alive).copied().collect(),
        };
        if waiting.is_empty() {
            self.active.store(true, Ordering::Release);
            return Pursuit::CaughtUp(now.since(catch_up.since));
        }
        let pursuit = Pursuit::Ask { round: catch_up.round, members: waiting.iter().copied().collect() };
        catch_up.waiting = Some(waiting);
        pursuit
    }

    /// A member says how many hints it still keeps for us.
    pub fn on_hints_left(&self, round: u64, member: MemberId, hints: u64) {
        let mut catch_up = self.catch_up.lock();
        if hints == 0
            && catch_up.round == round
            && let Some(waiting) = &mut catch_up.waiting
        {
            waiting.remove(&member);
        }
    }
}

/// What catching up needs next.
#[derive(Debug, PartialEq, Eq)]
pub enum Pursuit {
    /// Nothing: the fence is down.
    Idle,
    /// Ask these members how many hints they keep for us.
    Ask {
        /// Which catch-up.
        round: u64,
        /// Whom.
        members: Vec<MemberId>,
    },
    /// The fence was just lowered, after this long.
    CaughtUp(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_gap_raises_the_fence_until_every_living_member_has_nothing_left() {
        let (a, b, c) = (MemberId(1), MemberId(2), MemberId(3));
        let fence = Fence::new(Duration::from_millis(300), at(0));
        assert!(!fence.is_active());
        assert_eq!(fence.pursue(at(5), std::iter::empty()), Pursuit::CaughtUp(Duration::from_millis(5)));
        fence.beat(at(1_000));
        assert!(!fence.check(at(1_300)));
        assert!(fence.check(at(1_301)));
        assert!(!fence.check(at(1_302)), "raised once");
        assert!(fence.is_behind(at(1_300)) && !fence.is_behind(at(1_301)));
        let members = [a, b, c];
        let ask = fence.pursue(at(1_310), members.into_iter());
        assert_eq!(ask, Pursuit::Ask { round: 2, members: vec![a, b, c] });
        fence.on_hints_left(2, a, 0);
        fence.on_hints_left(2, b, 7);
        fence.on_hints_left(1, b, 0);
        assert_eq!(
            fence.pursue(at(1_400), members.into_iter()),
            Pursuit::Ask { round: 2, members: vec![b, c] }
        );
        fence.on_hints_left(2, b, 0);
        let alive = [a, b].into_iter();
        assert_eq!(fence.pursue(at(1_501), alive), Pursuit::CaughtUp(Duration::from_millis(200)));
        assert!(fence.is_active());
    }
}
