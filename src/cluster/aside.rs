//! Standing aside: a member that answers, but always late, must not make every write wait for it.
//!
//! Silence is dealt with elsewhere ([`Peer::is_silent`](super::Peer::is_silent)): a silent member is bypassed. One behind a slow or
//! lossy link is heard all the time and is late all the time. Bypassing it without its consent would be wrong, because
//! it still serves what it holds to whoever asks it. So it is told, and it gives way by itself:
//!
//! 1. Each coordinator notes whether the members that it asks are late ([`Lateness`]). One that is late too often, for
//!    [`LATE_FOR`], is *accused*: it is told so by [`Message::Probe`] every [`PROBE_EVERY`]. Whoever finds
//!    many members late accuses nobody; it is late itself.
//! 2. A member that enough others accuse *stands aside*: it serves nothing that it holds, coordinates nothing, and says so in
//!    every frame (`Standing::aside`). Only then the others bypass it from the start, as if it were absent: the next member on
//!    the list stands in and keeps a hint, which is delivered at once and until it is acknowledged. So it
//!    stays nearly up to date, and its clients are served through it by the others.
//! 3. The accusers go on probing. After [`ON_TIME_MIN`] answers in a row that were on time, an accusation ends. Once it is
//!    accused no more, the member first says that it is back, then catches up like after any gap
//!    ([`super::fence`]), and then serves again.
//!
//! One member in [`ASIDE_SHARE`] may stand aside at once, and only while nobody is down: a member that is late is better than
//! none.

use super::{ClusterView, MemberState};
use crate::time::{Duration, Instant};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Lateness is counted in this many parts of one, and so much of it is too much.
const ONE: u32 = 1 << 16;
const LATE_SHARE_MAX: u32 = ONE / 4;
/// One answer weighs one in so many.
const ANSWERS_WEIGHED: u32 = 16;
/// For how long a member must have been late too often before it is accused.
const LATE_FOR: Duration = Duration::from_secs(2);
/// An older impression means nothing.
const IMPRESSION_KEPT: Duration = Duration::from_secs(3);
/// How often an accused member is probed.
pub const PROBE_EVERY: Duration = Duration::from_millis(250);
/// How often the way to a member is measured when it begins to be known, one probe in each review.
const MEASURED_MIN: u32 = 4;
/// After that, in one review of so many: every ten seconds.
const MEASURE_ONE_IN: u64 = 40;
/// Answers in a row that end an accusation.
const ON_TIME_MIN: u32 = 20;
/// For how long an accusation counts that is not renewed.
const ACCUSATION_KEPT: Duration = Duration::from_millis(1_500);
/// One member in so many may stand aside; one at least.
const ASIDE_SHARE: usize = 8;
/// One member in so many may be accused by one node; one at least.
const ACCUSED_SHARE: usize = 4;
/// From so many members on, one accuser alone could be the one that is late.
const ACCUSERS_TWO_FROM: usize = 4;

/// What a node thinks of another member's answers, and what that member thinks of this node's.
#[derive(Debug, Default)]
pub struct Lateness {
    /// Share of late answers, smoothed, in parts of [`ONE`].
    share: AtomicU32,
    noted_at: AtomicU64,
    /// Since when the share is too large; 0 = it is not.
    late_since: AtomicU64,
    /// Since when it is accused; 0 = it is not.
    accused_at: AtomicU64,
    /// Stamp of the last probe, and of the last that was answered in time.
    probed_at: AtomicU64,
    answered: AtomicU64,
    /// Probes in a row that were answered in time.
    on_time: AtomicU32,
    /// When it last accused this node; 0 = never.
    accuses_me_at: AtomicU64,
}

impl Lateness {
    /// An answer came in time, or did not come in time although the member was there. Threads may race; a
    /// smoothed share does not mind.
    pub fn note(&self, now: Instant, is_late: bool) {
        let old = self.share.load(Ordering::Relaxed);
        if old == 0 && !is_late {
            // The usual case writes nothing.
            return;
        }
        let is_old = IMPRESSION_KEPT < now.since(at(&self.noted_at));
        let old = if is_old { 0 } else { old };
        let share = old - old / ANSWERS_WEIGHED + if is_late { ONE / ANSWERS_WEIGHED } else { 0 };
        self.share.store(share, Ordering::Relaxed);
        self.noted_at.store(now.as_nanos(), Ordering::Relaxed);
        if share <= LATE_SHARE_MAX {
            self.late_since.store(0, Ordering::Relaxed);
        } else if is_old || self.late_since.load(Ordering::Relaxed) == 0 {
            self.late_since.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Whether it has been late too often for long enough.
    fn is_late(&self, now: Instant) -> bool {
        let since = at(&self.late_since);
        since != Instant::ZERO
            && now.since(at(&self.noted_at)) < IMPRESSION_KEPT
            && LATE_FOR <= now.since(since)
    }

    /// Whether this node accuses it.
    #[must_use]
    pub fn is_accused(&self) -> bool {
        self.accused_at.load(Ordering::Relaxed) != 0
    }

    /// It says that this node is late, or that it is late no more.
    pub fn on_accused(&self, now: Instant, late: bool) {
        self.accuses_me_at.store(if late { now.as_nanos() } else { 0 }, Ordering::Relaxed);
    }

    fn accuses_me(&self, now: Instant) -> bool {
        let at = at(&self.accuses_me_at);
        at != Instant::ZERO && now.since(at) < ACCUSATION_KEPT
    }

    /// It has answered the probe that was sent at `stamp`.
    pub fn on_echo(&self, now: Instant, stamp: u64, late_after: Duration) {
        if now.since(Instant::from_nanos(stamp)) <= late_after {
            self.answered.store(stamp, Ordering::Relaxed);
        }
    }
}

fn at(nanos: &AtomicU64) -> Instant {
    Instant::from_nanos(nanos.load(Ordering::Relaxed))
}

/// A probe that is due: whom to send it to, its stamp, and what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueProbe {
    /// Index into the view.
    pub to: u16,
    /// To be repeated in the answer.
    pub stamp: u64,
    /// Whether the member is still late.
    pub late: bool,
}

/// Begins and ends accusations, and says which probes are due. To be called every [`PROBE_EVERY`].
#[must_use]
pub fn review(view: &ClusterView, now: Instant) -> Vec<DueProbe> {
    let others = || (0..view.members().len() as u16).filter(|member| *member != view.me());
    let lateness = |member: u16| &view.member(member).peer.lateness;
    let wrong = |member: &u16| lateness(*member).is_accused() || lateness(*member).is_late(now);
    if others().filter(wrong).count() <= share_of(view, ACCUSED_SHARE) {
        for member in
            others().filter(|member| !lateness(*member).is_accused() && lateness(*member).is_late(now))
        {
            lateness(member).accused_at.store(now.as_nanos(), Ordering::Relaxed);
            lateness(member).on_time.store(0, Ordering::Relaxed);
        }
    }
    let accused = others().filter(|member| lateness(*member).is_accused());
    accused.map(|to| probe(lateness(to), to, now, view.member(to).peer.round_trip())).collect()
}

/// Members whose way is to be measured now: all that were not measured a few times yet, and of the others each one
/// once in [`MEASURE_ONE_IN`] reviews. Accused ones are probed anyway.
pub fn unmeasured(view: &ClusterView, now: Instant) -> impl Iterator<Item = u16> + '_ {
    let round = now.as_nanos() / PROBE_EVERY.as_nanos() as u64;
    let is_due = move |to: &u16| {
        let peer = &view.member(*to).peer;
        let is_new = peer.way.samples() < MEASURED_MIN;
        *to != view.me()
            && !peer.lateness.is_accused()
            && view.is_up(*to)
            && (is_new || (round + u64::from(*to)).is_multiple_of(MEASURE_ONE_IN))
    };
    (0..view.members().len() as u16).filter(is_due)
}

fn probe(lateness: &Lateness, to: u16, now: Instant, round_trip: Duration) -> DueProbe {
    let answered = lateness.answered.load(Ordering::Relaxed);
    // When the way is longer than the time between probes, the answer to the last one cannot be here yet.
    let was_answered = answered == lateness.probed_at.load(Ordering::Relaxed)
        || PROBE_EVERY < round_trip
            && now.since(Instant::from_nanos(answered)) <= PROBE_EVERY * 3 / 2 + round_trip;
    let on_time = if was_answered { lateness.on_time.load(Ordering::Relaxed) + 1 } else { 0 };
    lateness.on_time.store(on_time, Ordering::Relaxed);
    let late = on_time <= ON_TIME_MIN;
    if !late {
        for cleared in [&lateness.accused_at, &lateness.late_since] {
            cleared.store(0, Ordering::Relaxed);
        }
        lateness.share.store(0, Ordering::Relaxed);
    }
    lateness.probed_at.store(now.as_nanos(), Ordering::Relaxed);
    DueProbe { to, stamp: now.as_nanos(), late }
}

fn share_of(view: &ClusterView, one_in: usize) -> usize {
    (view.members().len() / one_in).max(1)
}

/// Whether this node should stand aside now.
#[must_use]
pub fn should_stand_aside(view: &ClusterView, now: Instant) -> bool {
    let members = view.members();
    if members.iter().any(|member| member.state != MemberState::Alive) {
        return false;
    }
    let others = || members.iter().enumerate().filter(|(index, _)| *index != usize::from(view.me()));
    let aside = others().filter(|(_, member)| member.peer.standing().aside).count();
    let accusers = others().filter(|(_, member)| member.peer.lateness.accuses_me(now)).count();
    let accusers_min = if members.len() < ACCUSERS_TWO_FROM { 1 } else { 2 };
    aside < share_of(view, ASIDE_SHARE) && accusers_min <= accusers
}

#[cfg(test)]
mod tests {
    use super::super::layout::{Layout, Layouts};
    use super::super::{Member, Peer};
    use super::*;
    use crate::ids::MemberId;
    use crate::peer::Standing;
    use std::sync::Arc;

    /// A view of so many members, of which the first is this node.
    fn view(count: u16) -> ClusterView {
        let address = |number: u16| std::net::SocketAddr::from(([127, 0, 0, 1], 1 + number));
        let mut members: Vec<Member> = (0..count)
            .map(|number| Member {
                id: MemberId::of(address(number)),
                address: address(number),
                state: MemberState::Alive,
                peer: Arc::<Peer>::default(),
            })
            .collect();
        members.sort_by_key(|member| member.id);
        let me = members[0].id;
        let ids = members.iter().map(|member| member.id).collect();
        ClusterView::new(members, me, &Layouts::new(Layout::new(ids, 3, 6)))
    }

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 + millis * 1_000_000)
    }

    /// These members answer for so long, every 10 ms, one in `late_one_in` late.
    fn answer(view: &ClusterView, members: &[u16], from: u64, to: u64, late_one_in: u64) {
        for time in (from..to).step_by(10) {
            let lateness = |member: &u16| &view.member(*member).peer.lateness;
            members.iter().for_each(|member| lateness(member).note(at(time), (time / 10) % late_one_in == 0));
        }
    }

    #[test]
    fn one_that_is_late_for_long_is_accused_until_it_is_on_time() {
        let view = view(8);
        answer(&view, &[3], 0, 1_500, 2);
        assert_eq!(review(&view, at(1_500)), [], "not for long enough");
        answer(&view, &[3], 1_500, 2_500, 2);
        let due = review(&view, at(2_500));
        assert_eq!(due, [DueProbe { to: 3, stamp: at(2_500).as_nanos(), late: true }]);
        let lateness = &view.member(3).peer.lateness;
        let mut stamp = due[0].stamp;
        let mut probe = |now: u64, echoed_after: u64| {
            lateness.on_echo(at(now - 250 + echoed_after), stamp, Duration::from_millis(50));
            let due = review(&view, at(now));
            stamp = due[0].stamp;
            due[0].late
        };
        let mut now = 2_500;
        let mut later = || {
            now += 250;
            now
        };
        for _ in 0..10 {
            assert!(probe(later(), 20));
        }
        assert!(probe(later(), 200), "one late answer, and the row begins anew");
        for _ in 0..ON_TIME_MIN {
            assert!(probe(later(), 20));
        }
        assert!(!probe(later(), 20), "it is told that it is well");
        assert_eq!(review(&view, at(60_000)), []);
    }

    #[test]
    fn a_few_late_answers_and_many_late_members_accuse_nobody() {
        let view = view(8);
        answer(&view, &[3], 0, 9_000, 10);
        assert_eq!(review(&view, at(9_000)), []);
        answer(&view, &[1, 2, 3], 20_000, 29_000, 1);
        assert_eq!(review(&view, at(29_000)), [], "it is this node that is late");
    }

    #[test]
    fn two_accusers_send_it_aside_unless_others_stand_there() {
        let view = view(8);
        let lateness = |member: u16| &view.member(member).peer.lateness;
        lateness(1).on_accused(at(0), true);
        assert!(!should_stand_aside(&view, at(1)), "one alone may be the one that is late");
        lateness(2).on_accused(at(0), true);
        assert!(should_stand_aside(&view, at(1)));
        assert!(!should_stand_aside(&view, at(1_500)), "accusations end");
        lateness(1).on_accused(at(2_000), true);
        lateness(2).on_accused(at(2_000), true);
        lateness(2).on_accused(at(2_001), false);
        assert!(!should_stand_aside(&view, at(2_002)));
        lateness(2).on_accused(at(2_003), true);
        assert!(should_stand_aside(&view, at(2_004)));
        view.member(5).peer.say(Standing { aside: true, ..Standing::default() });
        assert!(!should_stand_aside(&view, at(2_004)), "one at a time");
    }

    #[test]
    fn who_stands_aside_holds_nothing_and_can_be_asked() {
        let view = view(8);
        let late = Duration::from_millis(350);
        let aside = view.primaries(0)[0];
        view.member(aside).peer.say(Standing { aside: true, ..Standing::default() });
        let holders = view.holders(0, at(0), late);
        assert!(holders.as_slice().iter().all(|holder| holder.member != aside));
        assert!(holders.as_slice().iter().any(|holder| holder.stands_in_for == Some(aside)));
        assert!(view.is_usable(aside, at(0), late));
    }
}
