//! Self-fencing: a process that was away must not serve what it missed.
//!
//! A suspended process (SIGSTOP, a paused virtual machine, a starved core) does not notice that it
//! was away: it would answer old questions, apply old writes and serve old values. So the controller
//! beats here at every tick, and whoever notices that the last beat is too long ago raises the fence:
//! everything received before that moment is dropped, and the node counts as *catching up* until
//! every member that is alive has said that it keeps no hint for it. Meanwhile the node takes writes
//! and passes requests on, but its own misses and values mean nothing. A start is a gap like any
//! other. See "Away and back" in ARCHITECTURE.md.
//!
//! Beside that, each partition has a mark of its own: it is *filling* from a gap, or from the moment
//! at which this node became one of its owners, until it was compared with all other owners
//! ([`crate::replica::anti_entropy`]). What is filling is not served ([`Fence::serves`]).

use crate::ids::MemberId;
use crate::time::{Duration, Instant};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How often a member that has not answered a catch-up is asked again.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// A member that was asked so often and said nothing is not waited for. Counted in questions, not in
/// time: a loop that is late itself must not take the others for dead.
const ASKS_MAX: u32 = 10;
const PARTITION_WORDS: usize = (1 << crate::cluster::placement::PARTITIONS_LOG2_MAX) / 64;

/// Whether this process may serve what it holds.
#[derive(Debug)]
pub struct Fence {
    after: Duration,
    beat: AtomicU64,
    floor: AtomicU64,
    /// The last beat before the gap.
    away_since: AtomicU64,
    active: AtomicBool,
    /// The node knows the cluster well enough to take part.
    joined: AtomicBool,
    /// It gives way to others ([`super::aside`]).
    aside: AtomicBool,
    /// How long a request is held while this node is cut off ([`super::isolation`]), in nanoseconds; 0 = it is not.
    hold: AtomicU64,
    /// Whether anyone remembers requests that this node may have missed, or has not said.
    missed: AtomicBool,
    /// Until when it could hear the others, if it is cut off.
    cut_since: AtomicU64,
    /// When the last gap was found; a cut is none.
    gap_at: AtomicU64,
    /// One bit for each partition that is filling.
    filling: Vec<AtomicU64>,
    /// One bit for each partition that this node owns and got from nobody: all its owners were given up
    /// at once, and may come back.
    orphans: Vec<AtomicU64>,
    /// A leaf lock.
    catch_up: Mutex<CatchUp>,
}

#[derive(Debug, Default)]
struct CatchUp {
    round: u64,
    since: Instant,
    asked_at: Instant,
    /// Someone remembers requests, or was not heard.
    missed: bool,
    /// Someone has answered.
    is_answered: bool,
    /// Whom this has been about so far.
    known: BTreeSet<MemberId>,
    /// Members that have not yet said that they keep nothing for us, and how often each was asked since
    /// it was last heard; `None` before the first question.
    waiting: Option<BTreeMap<MemberId, u32>>,
}

impl Fence {
    /// The fence of a process that starts now: up, until it has caught up.
    #[must_use]
    pub fn new(after: Duration, now: Instant) -> Self {
        let fence = Self {
            after,
            beat: AtomicU64::new(now.as_nanos()),
            floor: AtomicU64::new(0),
            away_since: AtomicU64::new(now.as_nanos()),
            active: AtomicBool::new(true),
            joined: AtomicBool::new(false),
            aside: AtomicBool::new(false),
            hold: AtomicU64::new(0),
            missed: AtomicBool::new(true),
            cut_since: AtomicU64::new(0),
            gap_at: AtomicU64::new(now.as_nanos()),
            filling: (0..PARTITION_WORDS).map(|_| AtomicU64::new(u64::MAX)).collect(),
            orphans: (0..PARTITION_WORDS).map(|_| AtomicU64::new(0)).collect(),
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

    /// Whether what this node holds of a partition may be served.
    #[must_use]
    pub fn serves(&self, partition: u16) -> bool {
        self.has_joined() && self.is_active() && !self.is_aside() && !self.is_filling(partition)
    }

    /// The node takes part from now on.
    pub fn join(&self) {
        self.joined.store(true, Ordering::Release);
    }

    /// Whether this process has ever known who holds what. Until then it takes no keys of clients.
    #[must_use]
    pub fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Acquire)
    }

    /// Whether the node gives way to others.
    #[must_use]
    pub fn is_aside(&self) -> bool {
        self.aside.load(Ordering::Acquire)
    }

    /// From now on others answer for what this node holds.
    pub fn stand_aside(&self, now: Instant) {
        self.away_since.store(now.as_nanos(), Ordering::Relaxed);
        self.aside.store(true, Ordering::Release);
    }

    /// The node gives way no more. What it missed meanwhile it fetches as after a gap.
    pub fn come_back(&self, now: Instant) {
        self.raise(now);
        self.aside.store(false, Ordering::Release);
    }

    /// This node is cut off from most others, so that requests are to be held for this long; zero when it is not. It was
    /// not cut off at `since`.
    pub fn hold(&self, time: Duration, since: Instant) {
        let was_cut_off = self.hold.swap(time.as_nanos() as u64, Ordering::Relaxed) != 0;
        if !was_cut_off {
            self.cut_since.store(since.as_nanos(), Ordering::Relaxed);
        }
    }

    /// For how long a client's request is held before it is served.
    #[must_use]
    pub fn holds_for(&self) -> Option<Duration> {
        match self.hold.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    /// The others are heard again, the last time was then. What they did meanwhile is fetched as after a gap.
    pub fn rejoin(&self, now: Instant, heard_at: Instant) {
        let was_cut_off = self.holds_for().is_some();
        let cut_since = Instant::from_nanos(self.cut_since.load(Ordering::Relaxed));
        let since = if was_cut_off { heard_at.min(cut_since) } else { heard_at };
        if self.is_active() && !self.is_aside() {
            self.away_since.store(since.as_nanos(), Ordering::Relaxed);
        }
        self.raise(now);
    }

    /// When this node was last found to have been away itself: it cannot have heard anybody before that.
    #[must_use]
    pub fn gap_at(&self) -> Instant {
        Instant::from_nanos(self.gap_at.load(Ordering::Relaxed))
    }

    /// Whether a partition has not been compared with its other owners yet.
    #[must_use]
    pub fn is_filling(&self, partition: u16) -> bool {
        let (word, bit) = Self::place(partition);
        self.filling[word].load(Ordering::Acquire) & bit != 0
    }

    /// This node has become an owner of a partition.
    pub fn begin_filling(&self, partition: u16) {
        let (word, bit) = Self::place(partition);
        self.filling[word].fetch_or(bit, Ordering::AcqRel);
    }

    /// A partition was compared with all other owners, or has no need to be, as of this round
    /// ([`Fence::round`]); does nothing when there was another gap since.
    pub fn end_filling(&self, round: u64, partition: u16) {
        let catch_up = self.catch_up.lock();
        if catch_up.round == round {
            let (word, bit) = Self::place(partition);
            self.filling[word].fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// A partition is filled, but none of those who held it could be asked.
    pub fn note_orphan(&self, partition: u16) {
        let (word, bit) = Self::place(partition);
        self.orphans[word].fetch_or(bit, Ordering::Relaxed);
    }

    /// Whether those who held a partition before this node may come back with what nobody here knows.
    #[must_use]
    pub fn is_orphan(&self, partition: u16) -> bool {
        let (word, bit) = Self::place(partition);
        self.orphans[word].load(Ordering::Relaxed) & bit != 0
    }

    /// When this node was last certainly there before the last gap.
    #[must_use]
    pub fn away_since(&self) -> Instant {
        Instant::from_nanos(self.away_since.load(Ordering::Relaxed))
    }

    fn place(partition: u16) -> (usize, u64) {
        (usize::from(partition) / 64, 1 << (partition % 64))
    }

    /// Counts the gaps, and when the last one was.
    #[must_use]
    pub fn round(&self) -> (u64, Instant) {
        let catch_up = self.catch_up.lock();
        (catch_up.round, Instant::from_nanos(self.floor.load(Ordering::Relaxed)))
    }

    /// Looks for a gap; returns `true` when this call raised the fence.
    pub fn check(&self, now: Instant) -> bool {
        let beat = self.beat.load(Ordering::Relaxed);
        if now.since(Instant::from_nanos(beat)) <= self.after {
            return false;
        }
        // Many threads may see the gap; the one that moves the beat raises the fence. It may be up
        // already: a second gap while catching up is a gap as well.
        let moved = self.beat.compare_exchange(beat, now.as_nanos(), Ordering::AcqRel, Ordering::Relaxed);
        if moved.is_ok() {
            if self.is_active() && !self.is_aside() {
                self.away_since.store(beat, Ordering::Relaxed);
            }
            self.gap_at.store(now.as_nanos(), Ordering::Relaxed);
            self.raise(now);
        }
        moved.is_ok()
    }

    fn raise(&self, now: Instant) {
        let mut catch_up = self.catch_up.lock();
        let was_active = self.active.swap(false, Ordering::AcqRel);
        self.floor.store(now.as_nanos(), Ordering::Relaxed);
        self.filling.iter().for_each(|word| word.store(u64::MAX, Ordering::Release));
        let since = if was_active { now } else { catch_up.since };
        let round = catch_up.round + 1;
        self.missed.store(true, Ordering::Relaxed);
        *catch_up = CatchUp { round, since, ..CatchUp::default() };
    }

    /// The controller lives. Look for a gap with [`Fence::check`] first.
    pub fn beat(&self, now: Instant) {
        self.beat.fetch_max(now.as_nanos(), Ordering::Relaxed);
    }

    /// Whether requests may have been missed that are remembered elsewhere for `window`: there was a
    /// gap (a start included) within that time, and not everybody has said that there were none.
    #[must_use]
    pub fn may_have_missed(&self, now: Instant, window: Duration) -> bool {
        let floor = Instant::from_nanos(self.floor.load(Ordering::Relaxed));
        now.since(floor) < window && self.missed.load(Ordering::Relaxed)
    }

    /// Whether something received at this moment belongs to the time before the gap.
    #[must_use]
    pub fn is_behind(&self, received_at: Instant) -> bool {
        received_at.as_nanos() < self.floor.load(Ordering::Relaxed)
    }

    /// Whom to ask now for what was missed, of the members that are not known to be down: those that
    /// have not said that nothing is left. When there is none: lowers the fence and tells how long it
    /// was up.
    pub fn pursue(&self, now: Instant, members: impl Iterator<Item = MemberId>) -> Pursuit {
        if self.is_active() {
            return Pursuit::Idle;
        }
        let mut catch_up = self.catch_up.lock();
        let members: BTreeSet<MemberId> = members.collect();
        let is_new = !self.has_joined();
        let mut waiting = match catch_up.waiting.take() {
            None => {
                catch_up.known.clone_from(&members);
                members.into_iter().map(|member| (member, 0)).collect()
            }
            Some(mut waiting) => {
                let asked = waiting.len();
                // A new process that has heard nobody knows nothing of those who are there.
                let may_give_up = catch_up.is_answered || !is_new;
                let is_given_up = |asks: u32| may_give_up && ASKS_MAX <= asks;
                waiting.retain(|member, asks| members.contains(member) && !is_given_up(*asks));
                catch_up.missed |= waiting.len() < asked;
                if is_new {
                    let news = members.into_iter().filter(|member| catch_up.known.insert(*member));
                    waiting.extend(news.map(|member| (member, 0)));
                }
                waiting
            }
        };
        if waiting.is_empty() {
            self.missed.store(catch_up.missed, Ordering::Relaxed);
            self.active.store(true, Ordering::Release);
            return Pursuit::CaughtUp(now.since(catch_up.since));
        }
        let is_due = ASK_EVERY <= now.since(catch_up.asked_at);
        let pursuit = if is_due {
            catch_up.asked_at = now;
            waiting.values_mut().for_each(|asks| *asks += 1);
            Pursuit::Ask { round: catch_up.round, members: waiting.keys().copied().collect() }
        } else {
            Pursuit::Idle
        };
        catch_up.waiting = Some(waiting);
        pursuit
    }

    /// A member says how many hints it still keeps for us, and whether it remembers any requests.
    pub fn on_hints_left(&self, round: u64, member: MemberId, hints: u64, remembers: bool) {
        let mut catch_up = self.catch_up.lock();
        if catch_up.round != round {
            return;
        }
        catch_up.missed |= remembers;
        catch_up.is_answered = true;
        let Some(waiting) = &mut catch_up.waiting else { return };
        if hints == 0 {
            waiting.remove(&member);
        } else if let Some(asks) = waiting.get_mut(&member) {
            *asks = 0;
        }
    }
}

/// What catching up needs next.
#[derive(Debug, PartialEq, Eq)]
pub enum Pursuit {
    /// Nothing now.
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
    fn a_gap_leaves_every_partition_to_be_filled_again() {
        let fence = Fence::new(Duration::from_millis(300), at(0));
        let (round, raised_at) = fence.round();
        assert_eq!(raised_at, at(0));
        assert_eq!(fence.pursue(at(5), std::iter::empty()), Pursuit::CaughtUp(Duration::from_millis(5)));
        fence.end_filling(round, 7);
        assert!(!fence.serves(7), "it does not know the cluster");
        fence.join();
        assert!(fence.serves(7) && !fence.serves(8));
        fence.begin_filling(7);
        assert!(!fence.serves(7));
        fence.end_filling(round, 7);
        assert!(fence.check(at(1_000)));
        fence.end_filling(round, 7);
        assert!(fence.is_filling(7), "that was before the gap");
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
        let ask = |now: u64, of: &[MemberId]| fence.pursue(at(now), of.iter().copied());
        let asked = |members: &[MemberId]| Pursuit::Ask { round: 2, members: members.to_vec() };
        assert_eq!(ask(1_310, &members), asked(&members));
        fence.on_hints_left(2, a, 0, false);
        fence.on_hints_left(2, b, 7, false);
        fence.on_hints_left(1, b, 0, false);
        assert_eq!(ask(1_360, &members), Pursuit::Idle, "not again so soon");
        assert_eq!(ask(1_410, &members), asked(&[b, c]));
        assert_eq!(ask(1_510, &[a, b]), asked(&[b]), "c is down");
        for round in 0..30 {
            fence.on_hints_left(2, b, 7, false);
            assert_eq!(ask(1_610 + 100 * round, &members), asked(&[b]));
        }
        fence.on_hints_left(2, b, 0, false);
        assert_eq!(ask(4_601, &members), Pursuit::CaughtUp(Duration::from_millis(3_300)));
        assert!(fence.is_active());
    }

    #[test]
    fn a_second_gap_while_catching_up_starts_over() {
        let (fence, a) = (Fence::new(Duration::from_millis(300), at(0)), MemberId(1));
        let ask = |now: u64| fence.pursue(at(now), [a].into_iter());
        assert_eq!(ask(100), Pursuit::Ask { round: 1, members: vec![a] });
        assert!(fence.check(at(1_000)) && !fence.check(at(1_001)));
        assert!(fence.is_behind(at(999)));
        fence.on_hints_left(1, a, 0, false);
        assert_eq!(ask(1_100), Pursuit::Ask { round: 2, members: vec![a] }, "old answers do not count");
        fence.on_hints_left(2, a, 0, false);
        assert_eq!(ask(1_150), Pursuit::CaughtUp(Duration::from_millis(1_150)));
        let window = Duration::from_secs(10);
        assert!(!fence.may_have_missed(at(1_150), window), "nobody remembers anything");
        assert!(fence.check(at(2_000)) && fence.may_have_missed(at(2_000), window));
        assert_eq!(ask(2_100), Pursuit::Ask { round: 3, members: vec![a] });
        fence.on_hints_left(3, a, 0, true);
        assert_eq!(ask(2_150), Pursuit::CaughtUp(Duration::from_millis(150)));
        assert!(fence.may_have_missed(at(11_999), window) && !fence.may_have_missed(at(12_000), window));
    }

    #[test]
    fn a_new_process_waits_until_it_was_answered_and_asks_whom_it_gets_to_know() {
        let (silent, other) = (MemberId(1), MemberId(2));
        let fence = Fence::new(Duration::from_millis(300), at(0));
        let ask = |now: u64, of: &[MemberId]| fence.pursue(at(now), of.iter().copied());
        for round in 1..=u64::from(ASKS_MAX) * 2 {
            assert_eq!(ask(200 * round, &[silent]), Pursuit::Ask { round: 1, members: vec![silent] });
        }
        let both = Pursuit::Ask { round: 1, members: vec![silent, other] };
        assert_eq!(ask(9_000, &[silent, other]), both);
        fence.on_hints_left(1, other, 0, false);
        assert_eq!(ask(9_100, &[silent, other]), Pursuit::CaughtUp(Duration::from_millis(9_100)));
    }

    #[test]
    fn who_never_answers_is_not_waited_for() {
        let silent = MemberId(1);
        let fence = Fence::new(Duration::from_millis(300), at(0));
        fence.join();
        for round in 0..u64::from(ASKS_MAX) {
            let ask = Pursuit::Ask { round: 1, members: vec![silent] };
            assert_eq!(fence.pursue(at(200 * (round + 1)), [silent].into_iter()), ask);
        }
        let caught_up = Pursuit::CaughtUp(Duration::from_millis(9_000));
        assert_eq!(fence.pursue(at(9_000), [silent].into_iter()), caught_up);
    }
}
