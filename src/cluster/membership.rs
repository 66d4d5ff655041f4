//! Who is alive: SWIM (Das et al. 2002) by the `foca` crate, and what it lacks.
//!
//! [`Membership`] owns a `Foca` and its timers. It adds: the seed list as the first list of members,
//! so that the count is right from the first second; announcing to seeds that are not members, for
//! ever, so that partitions heal; dropping the suspicion timer of a member that has refuted it (foca
//! 2.0 would force that healthy member to rejoin); lateness of the local loop, which puts off the
//! verdicts on others (in the spirit of Lifeguard, Dadgar et al. 2017). Every start and every rejoin
//! has a larger generation; placement never looks at it.

use super::MemberState;
use crate::config::GossipPreset;
use crate::ids::Generation;
use crate::time::{Duration, Instant};
use foca::{Foca, Identity, Notification, OwnedNotification, PeriodicParams, PostcardCodec, Timer};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::{NonZeroU8, NonZeroUsize};

/// A seed that nobody has heard counts as alive for this long after the start.
const SEED_GRACE: Duration = Duration::from_secs(5);
/// How often seeds that are not members are announced to.
const ANNOUNCE_EVERY: Duration = Duration::from_millis(500);
/// Seeds announced to each time.
const ANNOUNCE_MAX: usize = 3;
/// A loop that comes round this much too late does not trust its own verdicts.
const LATE: Duration = Duration::from_millis(250);
/// Largest gossip packet: 200 members fit.
const PACKET_BYTES_MAX: usize = 4_096;

/// A member as gossip names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name {
    address: SocketAddr,
    generation: Generation,
}

impl Identity for Name {
    type Addr = SocketAddr;

    fn renew(&self) -> Option<Self> {
        Some(Self { generation: self.generation + 1, ..self.clone() })
    }

    fn addr(&self) -> SocketAddr {
        self.address
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        adversary.generation < self.generation
    }
}

/// What foca wants done.
#[derive(Debug, Default)]
struct Wishes {
    sends: Vec<(SocketAddr, Vec<u8>)>,
    timers: Vec<(Duration, Timer<Name>)>,
    notices: Vec<OwnedNotification<Name>>,
}

impl foca::Runtime<Name> for Wishes {
    fn notify(&mut self, notification: Notification<'_, Name>) {
        self.notices.push(notification.to_owned());
    }

    fn send_to(&mut self, to: Name, data: &[u8]) {
        self.sends.push((to.address, data.to_vec()));
    }

    fn submit_after(&mut self, event: Timer<Name>, after: Duration) {
        self.timers.push((after, event));
    }
}

/// The failure detector of one node.
pub struct Membership {
    me: SocketAddr,
    foca: Foca<Name, PostcardCodec, StdRng, foca::NoCustomBroadcast>,
    /// Timers by deadline, foca's own order, and age.
    timers: BTreeMap<(Instant, u8, u64), Timer<Name>>,
    timers_made: u64,
    suspect_for: Duration,
    born: Instant,
    seeds: BTreeSet<SocketAddr>,
    /// Everyone ever known, this node not included.
    known: BTreeMap<SocketAddr, MemberState>,
    announced_at: Instant,
    next_seed: usize,
    ticked_at: Instant,
    leaving: bool,
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Membership").field("me", &self.me).field("known", &self.known).finish_non_exhaustive()
    }
}

impl Membership {
    /// The detector of a process that starts now; `seeds` may or may not contain `me`.
    #[must_use]
    pub fn new(
        me: SocketAddr,
        generation: Generation,
        seeds: &[SocketAddr],
        preset: GossipPreset,
        seed: u64,
        now: Instant,
    ) -> Self {
        let seeds: BTreeSet<SocketAddr> = seeds.iter().copied().filter(|seed| *seed != me).collect();
        let config = config(preset, seeds.len() + 1);
        let suspect_for = config.suspect_to_down_after;
        let name = Name { address: me, generation };
        let known = seeds.iter().map(|seed| (*seed, MemberState::Alive)).collect();
        Self {
            me,
            foca: Foca::new(name, config, StdRng::seed_from_u64(seed), PostcardCodec),
            timers: BTreeMap::new(),
            timers_made: 0,
            suspect_for,
            born: now,
            seeds,
            known,
            announced_at: Instant::ZERO,
            next_seed: seed as usize,
            ticked_at: now,
            leaving: false,
        }
    }

    /// Takes a packet in. `false` when it could not be used.
    pub fn handle(&mut self, now: Instant, packet: &[u8], sends: &mut Vec<(SocketAddr, Vec<u8>)>) -> bool {
        if self.leaving {
            return true;
        }
        let mut wishes = Wishes::default();
        let result = self.foca.handle_data(packet, &mut wishes);
        self.grant(now, wishes, sends);
        result.is_ok()
    }

    /// Works off what is due. Call after all waiting packets were handled: a refutation that waits
    /// must come before the verdict.
    pub fn tick(&mut self, now: Instant, sends: &mut Vec<(SocketAddr, Vec<u8>)>) {
        let gap = now.since(self.ticked_at);
        self.ticked_at = now;
        if LATE < gap {
            self.put_off_verdicts(gap);
        }
        while let Some(entry) = self.timers.first_entry().filter(|entry| entry.key().0 <= now) {
            let timer = entry.remove();
            if self.leaving || self.is_refuted(&timer) {
                continue;
            }
            let mut wishes = Wishes::default();
            // Errors tell of timers out of order after a pause; the next cycle is right again.
            let _ = self.foca.handle_timer(timer, &mut wishes);
            self.grant(now, wishes, sends);
        }
        self.announce(now, sends);
        self.refresh(now);
    }

    /// When [`Membership::tick`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let timer = self.timers.first_key_value().map_or(Instant::FAR, |(key, _)| key.0);
        timer.min(self.announced_at + ANNOUNCE_EVERY)
    }

    /// Tells some members that this node leaves; call a few times, then stop.
    pub fn leave(&mut self, now: Instant, sends: &mut Vec<(SocketAddr, Vec<u8>)>) {
        let mut wishes = Wishes::default();
        if self.leaving {
            let _ = self.foca.gossip(&mut wishes);
        } else {
            let _ = self.foca.leave_cluster(&mut wishes);
        }
        self.grant(now, wishes, sends);
        self.leaving = true;
    }

    /// Everyone known beside this node, and their state.
    #[must_use]
    pub fn known(&self) -> &BTreeMap<SocketAddr, MemberState> {
        &self.known
    }

    fn grant(&mut self, now: Instant, wishes: Wishes, sends: &mut Vec<(SocketAddr, Vec<u8>)>) {
        sends.extend(wishes.sends);
        for (after, timer) in wishes.timers {
            self.timers_made += 1;
            self.timers.insert((now + after, order_of(&timer), self.timers_made), timer);
        }
    }

    /// Verdicts that fell due while this loop was away are put off by as much: what the suspects sent
    /// meanwhile may still wait to be read.
    fn put_off_verdicts(&mut self, gap: Duration) {
        let is_verdict = |timer: &Timer<Name>| matches!(timer, Timer::ChangeSuspectToDown { .. });
        let verdicts: Vec<_> =
            self.timers.iter().filter(|(_, timer)| is_verdict(timer)).map(|(key, _)| *key).collect();
        for key in verdicts {
            if let Some(timer) = self.timers.remove(&key) {
                self.timers.insert((key.0 + gap.min(self.suspect_for), key.1, key.2), timer);
            }
        }
    }

    fn is_refuted(&self, timer: &Timer<Name>) -> bool {
        let Timer::ChangeSuspectToDown { member_id, incarnation, .. } = timer else { return false };
        let stands =
            |member: &foca::Member<Name>| member.id() == member_id && member.incarnation() == *incarnation;
        !self.foca.iter_membership_state().any(stands)
    }

    /// Announces to a few seeds that are not active members, in turn.
    fn announce(&mut self, now: Instant, sends: &mut Vec<(SocketAddr, Vec<u8>)>) {
        if self.leaving || now.since(self.announced_at) < ANNOUNCE_EVERY {
            return;
        }
        self.announced_at = now;
        let active: BTreeSet<SocketAddr> =
            self.foca.iter_members().map(|member| member.id().address).collect();
        let missing: Vec<SocketAddr> = self.seeds.difference(&active).copied().collect();
        for _ in 0..missing.len().min(ANNOUNCE_MAX) {
            self.next_seed = self.next_seed.wrapping_add(1);
            let address = missing[self.next_seed % missing.len()];
            let mut wishes = Wishes::default();
            let _ = self.foca.announce(Name { address, generation: 0 }, &mut wishes);
            self.grant(now, wishes, sends);
        }
    }

    /// Brings the list of known members in line with foca's.
    fn refresh(&mut self, now: Instant) {
        for member in self.foca.iter_membership_state() {
            let address = member.id().address;
            if address == self.me {
                continue;
            }
            let alive = member.state() != foca::State::Down;
            let old = self.known.entry(address).or_insert(MemberState::Alive);
            *old = match (alive, *old) {
                (true, _) => MemberState::Alive,
                (false, MemberState::Alive) => MemberState::Down(now),
                (false, down @ MemberState::Down(_)) => down,
            };
        }
        if now.since(self.born) < SEED_GRACE {
            return;
        }
        let heard: BTreeSet<SocketAddr> =
            self.foca.iter_membership_state().map(|member| member.id().address).collect();
        for (address, state) in &mut self.known {
            if *state == MemberState::Alive && !heard.contains(address) {
                *state = MemberState::Down(now);
            }
        }
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

/// Time-outs for a cluster of this size.
fn config(preset: GossipPreset, members: usize) -> foca::Config {
    let size = |number: usize| NonZeroUsize::new(number.max(1)).expect("at least one");
    let every = |millis: u64, members: usize| {
        Some(PeriodicParams { frequency: Duration::from_millis(millis), num_members: size(members) })
    };
    // Twice as long for every ten times as many members, in steps that no rounding can move.
    let suspect = Duration::from_millis(match members {
        0..=10 => 2_000,
        11..=31 => 3_000,
        32..=100 => 4_000,
        _ => 5_000,
    });
    let slower: u32 = match preset {
        GossipPreset::Lan => 1,
        GossipPreset::Wan => 6,
    };
    foca::Config {
        probe_period: Duration::from_millis(500) * slower,
        probe_rtt: Duration::from_millis(150) * slower,
        num_indirect_probes: size(3),
        max_transmissions: NonZeroU8::new(15).expect("fifteen"),
        suspect_to_down_after: suspect * slower,
        remove_down_after: Some(Duration::from_secs(24 * 3_600)),
        max_packet_size: size(PACKET_BYTES_MAX),
        notify_down_members: true,
        periodic_announce: every(10_000, 1),
        periodic_announce_to_down_members: every(3_000, 2),
        periodic_gossip: every(100 * u64::from(slower), 3),
    }
}
