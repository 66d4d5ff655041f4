//! How well this node itself is doing: local health in the spirit of Lifeguard (Dadgar, Phillips and
//! Currey 2017, sections IV.A and IV.B).
//!
//! A node that loses its core, or whose network is bad, sees everybody fail. It must doubt itself
//! first. [`Health`] keeps a score: up when the loop came round late, when this node had to refute a
//! suspicion or was called down, and when two members that it blamed proved to be alive; down with every
//! probe that is answered in time. The times of its probes and of its verdicts are multiplied by the
//! score plus one, 1 to 8. While several different members in a row do not answer, verdicts wait twice
//! as long.
//!
//! A gap in the loop's time is worse than slowness, because the control plane drops what arrived
//! meanwhile (see "Away and back" in ARCHITECTURE.md): answers were sent and are lost. So a probe whose
//! answer was to arrive in a gap blames nobody; foca is told that it was answered. And no verdict falls in a
//! late round, nor until the others have had some time to be heard. The price: a node whose every round
//! is late judges nobody, and a cluster of none but such nodes finds its dead when the load is gone.
//!
//! What foca cannot do: a suspicion does not carry its accuser, so independent accusations cannot be
//! counted and cannot shorten the time-out (Lifeguard's section IV.B proper); each accuser runs its own
//! clock, and the first verdict counts. There is no negative acknowledgement either; having heard
//! nobody at all during a probe stands in for its absence.

use super::Name;
use crate::time::{Duration, Instant};
use foca::{Header, Incarnation, Message, ProbeNumber};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Highest score: time-outs are eight times as long.
const SCORE_MAX: u32 = 7;
/// So many different members failed to answer, and nobody answered in between: either they are all
/// dead or this node is deaf, and it cannot tell.
const BLIND_AFTER: usize = 3;
/// Verdicts of a node that may be deaf wait so much longer. Not more, and its probes go on as quickly
/// as ever: the last survivor of a cluster must learn that it is alone.
const BLIND_MULTIPLIER: u32 = 2;
/// A loop that has not come round for so long was away. Less than the default of `fence-after-ms`: what
/// the fence drops must not be missed here.
const LATE: Duration = Duration::from_millis(250);
/// After a gap, verdicts wait for as long as it was, at most for so long: a refutation that was lost is
/// heard again within it.
const QUIET_MAX: Duration = Duration::from_secs(1);
/// So many failed probes in a row are forgiven for gaps, when somebody was heard meanwhile. Beyond it
/// a cluster in which every loop stumbles all the time would never find its dead.
const PARDONS_MAX: u32 = 8;
/// Members blamed and not yet heard again that are remembered.
const BLAMED_MAX: usize = 16;
/// Two wrong accusations within this time are no accident.
const PROOF_TIME: Duration = Duration::from_secs(30);

/// The probe that is under way.
#[derive(Debug)]
struct Probe {
    target: Name,
    number: ProbeNumber,
    answered: bool,
    /// When the last question was sent, to it or to others about it.
    asked_at: Instant,
    /// A gap fell into the time in which an answer was to be expected.
    late: bool,
    /// Anybody was heard in its time.
    heard: bool,
}

/// What to do with the probe that ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Leave it to foca.
    Stands,
    /// Its failure means nothing: pretend that this member has answered it.
    Pardoned(Name, ProbeNumber),
}

/// This node's opinion of itself.
#[derive(Debug)]
pub(super) struct Health {
    answer_within: Duration,
    score: u32,
    probe: Option<Probe>,
    /// Who failed to answer since the last answer.
    failing: BTreeSet<SocketAddr>,
    /// Whom this node accused lately.
    blamed: BTreeMap<SocketAddr, Name>,
    /// The last of them that proved to be alive.
    proof: Option<(SocketAddr, Instant)>,
    pardons: u32,
    /// No verdict before: there was a gap.
    quiet_until: Instant,
    is_late: bool,
    incarnation: Incarnation,
    /// Off in comparisons only.
    enabled: bool,
}

impl Health {
    /// Answers arrive within this time, unless they are lost.
    pub(super) fn new(answer_within: Duration) -> Self {
        Self {
            answer_within,
            score: 0,
            probe: None,
            failing: BTreeSet::new(),
            blamed: BTreeMap::new(),
            proof: None,
            pardons: 0,
            quiet_until: Instant::ZERO,
            is_late: false,
            incarnation: 0,
            enabled: true,
        }
    }

    /// Answers arrive within this time from now on.
    pub(super) fn expect_within(&mut self, answer_within: Duration) {
        self.answer_within = answer_within;
    }

    #[cfg(test)]
    pub(super) fn disable(&mut self) {
        self.enabled = false;
    }

    /// By how much time-outs are longer than usual.
    pub(super) fn multiplier(&self) -> u32 {
        if self.enabled { 1 + self.score } else { 1 }
    }

    /// How many times this identity has refuted a suspicion.
    pub(super) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The loop comes round, so long after the last time. Returns whether it was away.
    pub(super) fn on_round(&mut self, now: Instant, gap: Duration) -> bool {
        self.is_late = LATE < gap;
        if self.is_late {
            self.quiet_until = now + gap.min(QUIET_MAX);
            // A gap counts for what it is: a probe that takes twice as long as the loop was away is long
            // enough. Else a cluster in which all loops stumble would take minutes to find its dead.
            let enough = gap.as_millis() / LATE.as_millis();
            if u128::from(self.score) < enough {
                self.worsen(1 + gap.as_secs().min(2) as u32);
            }
            if let Some(probe) = &mut self.probe {
                probe.late |= now - gap < probe.asked_at + self.answer_within;
            }
        }
        self.is_late
    }

    /// Foca sends something.
    pub(super) fn on_sent(&mut self, now: Instant, header: &Header<Name>) {
        if self.incarnation < header.src_incarnation {
            self.worsen(1);
        }
        self.incarnation = header.src_incarnation;
        match (&header.message, &mut self.probe) {
            (Message::Ping(number), probe) => {
                let (target, number) = (header.dst.clone(), *number);
                let (answered, late, heard) = (false, false, false);
                *probe = Some(Probe { target, number, answered, asked_at: now, late, heard });
            }
            (Message::PingReq { target, .. }, Some(probe)) if *target == probe.target => probe.asked_at = now,
            _ => {}
        }
    }

    /// A packet for this node's present identity is taken in.
    pub(super) fn on_heard(&mut self, now: Instant, header: &Header<Name>) {
        if self.blamed.get(&header.src.address).is_some_and(|name| *name == header.src) {
            self.blamed.remove(&header.src.address);
            self.on_proof(now, header.src.address);
        }
        let Some(probe) = &mut self.probe else { return };
        probe.heard = true;
        probe.answered |= match &header.message {
            Message::Ack(number) => *number == probe.number && header.src == probe.target,
            Message::ForwardedAck { origin, probe_number } => {
                *probe_number == probe.number && *origin == probe.target
            }
            _ => false,
        };
    }

    /// This node was called down while it was alive.
    pub(super) fn on_rejoin(&mut self) {
        self.worsen(1);
        self.probe = None;
    }

    /// The time of the present probe is over.
    pub(super) fn on_probe_end(&mut self) -> Outcome {
        let Some(probe) = self.probe.take() else { return Outcome::Stands };
        if probe.answered {
            self.failing.clear();
            self.pardons = 0;
            if !probe.late {
                self.score = self.score.saturating_sub(1);
            }
            return Outcome::Stands;
        }
        if self.enabled && probe.late && (!probe.heard || self.pardons < PARDONS_MAX) {
            self.pardons += 1;
            return Outcome::Pardoned(probe.target, probe.number);
        }
        self.pardons = 0;
        self.failing.insert(probe.target.address);
        if self.blamed.len() < BLAMED_MAX {
            self.blamed.insert(probe.target.address, probe.target);
        }
        Outcome::Stands
    }

    /// When a verdict may fall on somebody suspected since then.
    pub(super) fn verdict_at(&self, suspected_at: Instant, suspect_for: Duration) -> Instant {
        if !self.enabled {
            return suspected_at + suspect_for;
        }
        let is_blind = BLIND_AFTER <= self.failing.len();
        let multiplier = self.multiplier().max(if is_blind { BLIND_MULTIPLIER } else { 1 });
        let at_last = suspected_at + suspect_for * (SCORE_MAX + 1);
        (suspected_at + suspect_for * multiplier).max(self.quiet_until.min(at_last))
    }

    /// Whether this round may pass verdicts at all.
    pub(super) fn may_judge(&self) -> bool {
        !(self.enabled && self.is_late)
    }

    fn on_proof(&mut self, now: Instant, address: SocketAddr) {
        let before = self.proof.replace((address, now));
        if before.is_some_and(|(other, at)| other != address && now.since(at) < PROOF_TIME) {
            self.worsen(1);
        }
    }

    fn worsen(&mut self, steps: u32) {
        self.score = (self.score + steps).min(SCORE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn name(port: u16) -> Name {
        Name {
            address: SocketAddr::from(([10, 0, 0, 1], port)),
            generation: 5,
            site: crate::ids::Site::default(),
        }
    }

    fn header(from: u16, to: u16, src_incarnation: Incarnation, message: Message<Name>) -> Header<Name> {
        Header { src: name(from), src_incarnation, dst: name(to), message }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    /// A probe of this member, answered or not.
    fn probe(health: &mut Health, target: u16, number: u8, is_answered: bool) -> Outcome {
        health.on_sent(at(100), &header(1, target, 0, Message::Ping(number)));
        if is_answered {
            health.on_heard(at(100), &header(target, 1, 0, Message::Ack(number)));
        }
        health.on_probe_end()
    }

    #[test]
    fn lateness_stretches_and_answered_probes_relax() {
        let mut health = Health::new(SECOND / 4);
        assert!(!health.on_round(at(1), LATE) && health.multiplier() == 1);
        assert!(health.on_round(at(2), LATE * 2) && health.multiplier() == 2 && !health.may_judge());
        (0..9).for_each(|_| assert!(health.on_round(at(2), LATE * 2)));
        assert_eq!(health.multiplier(), 3, "no more than gaps of this length deserve");
        (0..9).for_each(|_| assert!(health.on_round(at(2), 9 * SECOND)));
        assert_eq!(health.multiplier(), 8);
        assert!(!health.on_round(at(3), Duration::ZERO) && health.may_judge());
        for left in (1..8).rev() {
            assert_eq!(probe(&mut health, 2, left, true), Outcome::Stands);
            assert_eq!(health.multiplier(), u32::from(left));
        }
    }

    #[test]
    fn a_probe_with_a_gap_in_it_blames_nobody() {
        let mut health = Health::new(SECOND / 4);
        for number in 0..20 {
            health.on_sent(at(100), &header(1, 2, 0, Message::Ping(number)));
            health.on_round(at(101), SECOND);
            assert_eq!(health.on_probe_end(), Outcome::Pardoned(name(2), number), "it heard nobody");
        }
        let mut health = Health::new(SECOND / 4);
        let mut pardons = 0;
        loop {
            health.on_sent(at(100), &header(1, 2, 0, Message::Ping(1)));
            health.on_round(at(101), SECOND);
            health.on_heard(at(2), &header(3, 1, 0, Message::Gossip));
            if health.on_probe_end() == Outcome::Stands {
                break;
            }
            pardons += 1;
        }
        assert_eq!(pardons, PARDONS_MAX, "it hears others well enough");
        assert_eq!(probe(&mut health, 2, 2, false), Outcome::Stands, "there was no gap");
        health.on_sent(at(100), &header(1, 2, 0, Message::Ping(1)));
        health.on_round(at(102), SECOND);
        assert_eq!(health.on_probe_end(), Outcome::Stands, "the answer would have been heard before");
        health.on_sent(at(100), &header(1, 2, 0, Message::Ping(1)));
        let request = Message::PingReq { target: name(2), probe_number: 1 };
        health.on_sent(at(101), &header(1, 3, 0, request));
        health.on_round(at(102), SECOND);
        assert_eq!(health.on_probe_end(), Outcome::Pardoned(name(2), 1), "others may have answered");
    }

    #[test]
    fn only_the_right_answer_counts() {
        let mut health = Health::new(SECOND / 4);
        let forwarded =
            |origin: u16, probe_number| Message::ForwardedAck { origin: name(origin), probe_number };
        for (message, from, is_answer) in [
            (Message::Ack(7), 2, true),
            (Message::Ack(6), 2, false),
            (Message::Ack(7), 3, false),
            (forwarded(2, 7), 3, true),
            (forwarded(3, 7), 2, false),
        ] {
            health.worsen(1);
            let before = health.score;
            health.on_sent(at(100), &header(1, 2, 0, Message::Ping(7)));
            health.on_heard(at(1), &header(from, 1, 0, message));
            health.on_probe_end();
            assert_eq!(health.score < before, is_answer);
        }
    }

    #[test]
    fn two_wrong_accusations_and_refutations_count() {
        let mut health = Health::new(SECOND / 4);
        probe(&mut health, 2, 1, false);
        probe(&mut health, 3, 2, false);
        health.on_heard(at(100), &header(2, 1, 0, Message::Gossip));
        assert_eq!(health.multiplier(), 1, "one may be an accident");
        health.on_heard(at(101), &header(3, 1, 0, Message::Gossip));
        assert_eq!(health.multiplier(), 2);
        health.on_sent(at(100), &header(1, 3, 1, Message::Gossip));
        assert_eq!(health.multiplier(), 3, "it had to refute");
        health.on_rejoin();
        assert_eq!(health.multiplier(), 4);
    }

    #[test]
    fn verdicts_wait_for_the_deaf_and_after_gaps() {
        let mut health = Health::new(SECOND / 4);
        assert_eq!(health.verdict_at(at(100), 4 * SECOND), at(104));
        (2..5).for_each(|target| assert_eq!(probe(&mut health, target, 1, false), Outcome::Stands));
        assert_eq!(health.verdict_at(at(100), 4 * SECOND), at(108), "three are silent");
        probe(&mut health, 5, 1, true);
        assert_eq!(health.verdict_at(at(100), 4 * SECOND), at(104));
        health.on_round(at(120), SECOND);
        assert_eq!(health.verdict_at(at(100), 4 * SECOND), at(121), "the others are heard first");
        health.on_round(at(200), SECOND);
        assert_eq!(health.verdict_at(at(100), 4 * SECOND), at(132), "not for ever");
    }
}
