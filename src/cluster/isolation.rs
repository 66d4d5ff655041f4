//! Noticing that this node is cut off: it can no longer hear most of the others.
//!
//! A process that was suspended finds a gap in its own time ([`super::fence`]). One behind a cut link has none, and an idle
//! one asks nobody, so nothing tells it that the others have long passed it over and write without it. So each
//! node keeps in touch with *witnesses*, the next members after it by id: who of them was not heard of late is pinged.
//! When most of them are silent the node counts as cut off:
//!
//! - Requests about keys are *held* for as long as a ping takes to be answered ([`Review::hold`]). If the cut is still
//!   there, they are then served from what this side has, as before: Violet stays available on both sides.
//! - All members that it cannot hear are marked ([`Peer::mark_lost`](super::Peer::mark_lost)). The first frame of one of
//!   them ends it: before that frame is looked at, the node raises its fence, gives up the reads it has begun and the requests it
//!   holds (their clients repeat them), and catches up like after any gap. Who is cut off says so in every frame
//!   (`Standing::cut_off`), and takes a frame of a member that is not, or not any more, for such a first one: it is asked by
//!   somebody who hears the larger side.
//!
//! So what the larger side has acknowledged is never answered from before the cut once the cut is over. Only the smaller
//! side does this, or both when they are equal: it is the one that missed most, and the larger one goes on serving.
//! A cut that is shorter than the silence which shows it, and writes of the smaller side that the larger one has not got yet, are
//! not covered: there a read may be stale until the hint has come.

use super::ClusterView;
use crate::time::{Duration, Instant};

/// So many members are kept in touch with; in a larger cluster they stand for all.
const WITNESSES_MAX: usize = 31;
/// How often a member is pinged that this node was cut off from and that is no witness (any more).
const LOST_EVERY: Duration = Duration::from_secs(1);
/// What a node that looks at its witnesses adds to the time of a ping: how often it looks, and as much again for its own
/// delays.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What follows from who was heard.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Review {
    /// Members to be pinged: witnesses, and those that this node was cut off from.
    pub ping: Vec<u16>,
    /// Whether most witnesses are silent.
    pub is_cut_off: bool,
    /// How long a request has to be held until a ping that was sent after it came would be answered.
    pub hold: Duration,
    /// Members that are silent, when this node is cut off.
    pub lost: Vec<u16>,
}

/// Looks who was heard; to be called every 50 ms, after all that has come was handled.
///
/// `since`: nobody is blamed for silence before that (this node was away itself).
#[must_use]
pub fn review(view: &ClusterView, now: Instant, since: Instant, suspect_after: Duration) -> Review {
    let peer = |member: u16| &*view.member(member).peer;
    let quiet_for = |member: u16| now.since(peer(member).heard_at().max(since));
    // Three times what has others bypass a member: a few pings in a row must have been lost.
    let is_silent = |member: u16| 3 * suspect_after + peer(member).round_trip() < quiet_for(member);
    let witnesses = witnesses(view);
    let silent = witnesses.iter().filter(|member| is_silent(**member)).count();
    let is_cut_off = witnesses.len() < 2 * silent;
    let is_due = |member: &u16| {
        let every = if is_cut_off { LOOK_EVERY } else { LOOK_EVERY + peer(*member).round_trip() };
        2 * suspect_after < quiet_for(*member) && peer(*member).take_ping(now, every)
    };
    let others = || (0..view.members().len() as u16).filter(|member| *member != view.me());
    let is_still_lost = |member: &u16| peer(*member).is_lost() && peer(*member).take_ping(now, LOST_EVERY);
    let ping = witnesses.iter().copied().filter(is_due).chain(others().filter(is_still_lost)).collect();
    if !is_cut_off {
        return Review { ping, ..Review::default() };
    }
    let farthest = witnesses.iter().map(|member| peer(*member).round_trip()).max();
    Review {
        ping,
        is_cut_off,
        hold: LOOK_EVERY * 2 + farthest.unwrap_or_default(),
        lost: others()
            .filter(|member| Instant::ZERO < peer(*member).heard_at() && is_silent(*member))
            .collect(),
    }
}

/// The next placed members after this node, in a ring; who was never heard bears no witness.
fn witnesses(view: &ClusterView) -> Vec<u16> {
    let (count, me) = (view.members().len() as u16, view.me());
    let ring = (1..count).map(|step| (me + step) % count);
    let bears_witness = |member: &u16| {
        let member = view.member(*member);
        view.is_placed(member.id) && Instant::ZERO < member.peer.heard_at()
    };
    ring.filter(bears_witness).take(WITNESSES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::super::layout::{Layout, Layouts};
    use super::super::{Member, MemberState, Peer};
    use super::*;
    use crate::ids::{Generation, MemberId};
    use crate::peer::{Envelope, Standing};
    use std::sync::Arc;

    const SUSPECT_AFTER: Duration = Duration::from_millis(350);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 + millis * 1_000_000)
    }

    fn view(count: u16) -> ClusterView {
        let member = |number: u16| {
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], 1 + number));
            Member {
                id: MemberId::of(address),
                address,
                state: MemberState::Alive,
                peer: Arc::<Peer>::default(),
            }
        };
        let members: Vec<Member> = (0..count).map(member).collect();
        let me = members[0].id;
        let ids = members.iter().map(|member| member.id).collect();
        ClusterView::new(members, me, &Layouts::new(Layout::new(ids, 3, 6)))
    }

    fn hear(view: &ClusterView, member: u16, generation: Generation, now: Instant) {
        let peer = &view.member(member).peer;
        let envelope = Envelope {
            sender: view.member(member).id,
            generation,
            sequence: peer.next_sequence(super::super::FrameLane::Peer),
            sent_at: now,
            standing: Standing::default(),
        };
        peer.accept(super::super::FrameLane::Peer, &envelope, now, now, Duration::from_secs(1)).expect("new");
    }

    fn look(view: &ClusterView, now: Instant) -> Review {
        review(view, now, at(0), SUSPECT_AFTER)
    }

    fn others(view: &ClusterView) -> Vec<u16> {
        (0..view.members().len() as u16).filter(|member| *member != view.me()).collect()
    }

    #[test]
    fn silence_of_most_is_a_cut_and_silence_of_half_is_none() {
        let view = view(5);
        let others = others(&view);
        assert_eq!(look(&view, at(9_000)), Review::default(), "nobody was ever heard");
        others.iter().for_each(|member| hear(&view, *member, 1, at(0)));
        assert_eq!(look(&view, at(700)), Review::default());
        assert_eq!(look(&view, at(701)).ping.len(), 4, "they are asked for a sign of life");
        assert!(look(&view, at(702)).ping.is_empty(), "not at once again");
        others[..2].iter().for_each(|member| hear(&view, *member, 1, at(1_000)));
        assert!(!look(&view, at(1_100)).is_cut_off, "two of four are heard");
        let review = look(&view, at(2_060));
        assert!(review.is_cut_off && review.lost == others, "{review:?}");
        assert!(LOOK_EVERY < review.hold, "a ping is sent and answered meanwhile");
        hear(&view, others[3], 1, at(2_100));
        hear(&view, others[1], 1, at(2_100));
        assert!(!look(&view, at(2_150)).is_cut_off);
    }

    #[test]
    fn who_was_away_itself_blames_nobody() {
        let view = view(3);
        others(&view).iter().for_each(|member| hear(&view, *member, 1, at(0)));
        assert!(look(&view, at(60_000)).is_cut_off);
        assert!(!review(&view, at(60_000), at(59_900), SUSPECT_AFTER).is_cut_off);
    }

    #[test]
    fn lost_ones_are_pinged_until_they_are_heard_or_start_anew() {
        let view = view(40);
        let others = others(&view);
        others.iter().for_each(|member| hear(&view, *member, 1, at(0)));
        let review = look(&view, at(2_000));
        assert_eq!((review.lost.len(), review.ping.len()), (39, WITNESSES_MAX));
        review.lost.iter().for_each(|member| view.member(*member).peer.mark_lost());
        assert_eq!(look(&view, at(3_000)).ping.len(), 39);
        let peer = |place: usize| &view.member(others[place]).peer;
        hear(&view, others[0], 1, at(3_100));
        assert!(peer(0).take_lost() && !peer(0).take_lost(), "it is noticed once");
        hear(&view, others[1], 2, at(3_100));
        assert!(!peer(1).take_lost(), "another process knows nothing of the time between");
    }
}
