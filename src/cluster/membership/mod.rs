//! Who is alive: SWIM (Das et al. 2002) by the `foca` crate, and what it lacks.
//!
//! [`Membership`] owns a `Foca` and its timers, and is driven from outside: packets and the time come
//! in, packets go out. It adds:
//!
//! * the seed list as the first list of members, so that the count is right from the first second;
//! * dialling whoever is not an active member, seed or not, for ever and slowly, so that partitions
//!   heal (`pace` has the rates);
//! * comparing whole lists from time to time, so that everybody learns of everybody, the dead
//!   included, though one packet does not hold the list (`compare`);
//! * doubt of itself, when the node is late or its view of the others is bad (`health`);
//! * dropping the suspicion timer of a member that has refuted it: foca 2.0 would force that healthy
//!   member to rejoin.
//!
//! An address has one entry, here and in foca, whatever its generations: the larger generation wins,
//! and what is said about a smaller one is not believed. Every start and every rejoin has a larger one;
//! placement never looks at it. Nobody who was ever known is forgotten: placement needs the same list
//! on all members, and foca's forgetting (a timer on each node) would bring the dead back.
//!
//! What it costs and takes, measured by this module's tests (`lan`, a hundred members, 1 % loss): in calm
//! 4.6 packets and 400 B sent by each member a second, envelope included; with a restart or a pause every
//! 15 s and up to 5 % loss, 8 to 10 packets and 800 to 970 B. A death is noticed by all within 5 to 6 s (3 s
//! for three members, 4 s for twenty, 30 s for twenty of `wan`), a split heals within a second.
//!
//! What foca cannot do is not here: only the accuser's clock runs on a suspicion, so a suspicion whose
//! accuser dies is raised again by the next failing probe; a member wrongly called down cannot object,
//! only come back under a larger generation. A process whose wall clock was set back before its
//! restart looks like its own ghost until the clock has caught up.

mod compare;
mod health;
mod name;
mod pace;
#[cfg(test)]
mod tests;
mod timers;
mod wishes;
#[cfg(test)]
mod world;

use super::MemberState;
use crate::config::GossipPreset;
use crate::ids::{Generation, Site};
use crate::time::{Duration, Instant};
use compare::{Body, Comparison, KIND_FOCA};
use foca::{Codec, Foca, Identity, Member, PostcardCodec, State, Timer};
use health::{Health, Outcome};
use pace::Pace;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use timers::{Timers, Waiting};
use wishes::Wishes;

/// A seed that nobody has heard counts as alive for this long after the start.
const SEED_GRACE: Duration = Duration::from_secs(5);
/// The list of the known is brought in line at least so often.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// The loop is asked to come round at least so often, so that a gap in its time shows.
const ROUND_EVERY: Duration = Duration::from_millis(100);
/// After a gap of this length the node looks around as if it had just started.
const LONG_GAP: Duration = Duration::from_secs(1);

/// A member as gossip names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    address: SocketAddr,
    generation: Generation,
    site: Site,
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

/// The failure detector of one node.
pub struct Membership {
    me: SocketAddr,
    foca: Foca<Name, PostcardCodec, StdRng, foca::NoCustomBroadcast>,
    pace: Pace,
    health: Health,
    timers: Timers,
    dice: StdRng,
    born: Instant,
    /// Everyone ever known, this node not included.
    known: BTreeMap<SocketAddr, MemberState>,
    /// The sites of those of them that are on one.
    sites: BTreeMap<SocketAddr, Site>,
    changes: u64,
    /// `known` may be behind foca.
    dirty: bool,
    refresh_at: Instant,
    dial_at: Instant,
    /// The last address dialled: the next is the one behind it.
    dialled: SocketAddr,
    compare_at: Instant,
    /// Where the next answer to a comparison begins, when not all fits.
    next_record: usize,
    settling_until: Instant,
    /// The last round; none yet after the start.
    ticked_at: Option<Instant>,
    /// Foca's mark on the timers of the probe that runs.
    probing: foca::TimerToken,
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
        site: Site,
        seeds: &[SocketAddr],
        preset: GossipPreset,
        seed: u64,
        now: Instant,
    ) -> Self {
        let seeds: BTreeSet<SocketAddr> = seeds.iter().copied().filter(|seed| *seed != me).collect();
        let pace = Pace::new(preset);
        let name = Name { address: me, generation, site };
        let mut dice = StdRng::seed_from_u64(seed);
        // Not all begin with the same seed.
        let first = seeds.iter().nth(dice.random_range(0..seeds.len().max(1)));
        Self {
            me,
            foca: Foca::new(name, pace.config(), StdRng::seed_from_u64(dice.random()), PostcardCodec),
            pace,
            health: Health::new(pace.config().probe_rtt),
            timers: Timers::default(),
            dialled: first.copied().unwrap_or(me),
            dice,
            born: now,
            known: seeds.into_iter().map(|seed| (seed, MemberState::Alive)).collect(),
            sites: BTreeMap::from_iter((!site.is_none()).then_some((me, site))),
            changes: 0,
            dirty: false,
            refresh_at: now + REFRESH_EVERY,
            dial_at: now,
            compare_at: now + pace::COMPARE_QUICK,
            next_record: 0,
            settling_until: now + pace::SETTLING,
            ticked_at: None,
            probing: 0,
            leaving: false,
        }
    }

    /// Takes a packet in. `false` when it could not be used.
    pub fn handle(&mut self, now: Instant, packet: &[u8], sends: &mut Vec<(SocketAddr, Vec<u8>)>) -> bool {
        if self.leaving {
            return true;
        }
        match packet.split_first() {
            Some((&KIND_FOCA, packet)) => self.on_foca(now, packet, sends),
            Some(_) => {
                Comparison::parse(packet).is_some_and(|comparison| self.on_comparison(now, comparison, sends))
            }
            None => false,
        }
    }

    /// Works off what is due. Call after all waiting packets were handled: a refutation that waits
    /// must come before the verdict.
    pub fn tick(&mut self, now: Instant, sends: &mut Vec<(SocketAddr, Vec<u8>)>) {
        if self.leaving {
            return;
        }
        // Whatever a start takes is no gap.
        let gap = self.ticked_at.replace(now).map_or(Duration::ZERO, |ticked_at| now.since(ticked_at));
        if self.health.on_round(now, gap) && LONG_GAP <= gap {
            self.settle(now);
        }
        while let Some(waiting) = self.timers.take_due(now) {
            self.on_timer(now, waiting, sends);
        }
        if self.dial_at <= now {
            self.dial(now, sends);
        }
        if self.compare_at <= now {
            self.compare(now, sends);
        }
        if self.dirty || self.refresh_at <= now {
            self.refresh(now);
        }
    }

    /// When [`Membership::tick`] is due. Coming round later than that tells this node that it is late.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        if self.leaving {
            return Instant::FAR;
        }
        let round_at = self.ticked_at.map_or(self.born, |ticked_at| ticked_at + ROUND_EVERY);
        let own = self.dial_at.min(self.compare_at).min(self.refresh_at).min(round_at);
        self.timers.next_deadline().min(own)
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

    /// How often [`Membership::known`] has changed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// By how much this node's time-outs are longer than usual, 1 to 8: more than 1 when it has reason
    /// to doubt itself.
    #[must_use]
    pub fn health_multiplier(&self) -> u32 {
        self.health.multiplier()
    }

    /// The longest round trip to a member that is there is this long: no time-out may be shorter than that allows.
    pub fn allow_for(&mut self, round_trip: Duration) {
        self.pace.allow_for(round_trip);
        self.health.expect_within(self.pace.stretched(self.pace.config().probe_rtt));
    }

    fn on_foca(&mut self, now: Instant, packet: &[u8], sends: &mut Vec<(SocketAddr, Vec<u8>)>) -> bool {
        let Ok(header) = PostcardCodec.decode_header(packet) else { return false };
        if header.dst == *self.foca.identity() {
            self.health.on_heard(now, &header);
        } else if header.dst.address == self.me && header.message != foca::Message::Announce {
            // The sender believes in an earlier start of this node: foca would say nothing and be taken
            // for dead. A comparison tells who it is now.
            sends.push((
                header.src.address,
                compare::digest_packet(&self.myself(), &header.src, self.digest()),
            ));
        }
        let mut wishes = Wishes::default();
        let result = self.foca.handle_data(packet, &mut wishes);
        self.grant(now, wishes, sends);
        result.is_ok()
    }

    fn on_comparison(
        &mut self,
        now: Instant,
        comparison: Comparison,
        sends: &mut Vec<(SocketAddr, Vec<u8>)>,
    ) -> bool {
        let Comparison { from, to, body } = comparison;
        let sender = from.id().clone();
        if sender.address == self.me {
            return false;
        }
        // It means an earlier start, or does not count here: foca's own packets settle that.
        if to != *self.foca.identity() || !self.believe(now, [from], sends) || !self.is_active(&sender) {
            return true;
        }
        match body {
            Body::Digest(digest) if digest == self.digest() => true,
            Body::Digest(_) => {
                self.answer(&sender, sends);
                true
            }
            Body::Records(records) => self.believe(now, records, sends),
        }
    }

    /// Treats records like gossip, but for those about earlier starts of this node.
    fn believe(
        &mut self,
        now: Instant,
        records: impl IntoIterator<Item = Member<Name>>,
        sends: &mut Vec<(SocketAddr, Vec<u8>)>,
    ) -> bool {
        let (me, name) = (self.me, self.foca.identity().clone());
        let records = records.into_iter().filter(|record| record.id().address != me || *record.id() == name);
        let mut wishes = Wishes::default();
        let result = self.foca.apply_many(records, true, &mut wishes);
        // Of members that are down from the beginning there is no notification.
        self.dirty = true;
        self.grant(now, wishes, sends);
        result.is_ok()
    }

    fn answer(&mut self, to: &Name, sends: &mut Vec<(SocketAddr, Vec<u8>)>) {
        let members: Vec<_> = self.others().collect();
        let packets = compare::record_packets(&self.myself(), to, &members, self.next_record);
        self.next_record = self.next_record.wrapping_add(members.len() / 3 + 1);
        sends.extend(packets.into_iter().map(|packet| (to.address, packet)));
    }

    fn on_timer(&mut self, now: Instant, waiting: Waiting, sends: &mut Vec<(SocketAddr, Vec<u8>)>) {
        match &waiting.timer {
            Timer::ChangeSuspectToDown { .. } => {
                if self.is_refuted(&waiting.timer) {
                    return;
                }
                let due = self.health.verdict_at(waiting.asked_at, self.suspect_for());
                if now < due || !self.health.may_judge() {
                    let soon = now + Duration::from_millis(250);
                    return self.timers.insert(due.max(soon), waiting);
                }
            }
            Timer::ProbeRandomMember(token) if *token == self.probing => {
                if let Outcome::Pardoned(target, number) = self.health.on_probe_end() {
                    self.pardon(now, target, number, sends);
                }
            }
            Timer::ProbeRandomMember(_)
            | Timer::SendIndirectProbe { .. }
            | Timer::PeriodicAnnounce(_)
            | Timer::PeriodicGossip(_)
            | Timer::RemoveDown(_)
            | Timer::PeriodicAnnounceDown(_) => {}
        }
        let mut wishes = Wishes::default();
        // Errors tell of timers out of order after a pause; the next cycle is right again.
        let _ = self.foca.handle_timer(waiting.timer, &mut wishes);
        self.grant(now, wishes, sends);
    }

    /// Hands foca the answer that this node was not there to receive.
    fn pardon(&mut self, now: Instant, target: Name, number: u8, sends: &mut Vec<(SocketAddr, Vec<u8>)>) {
        let Some(member) = self.foca.iter_members().find(|member| *member.id() == target) else { return };
        let header = foca::Header {
            src: target,
            src_incarnation: member.incarnation(),
            dst: self.foca.identity().clone(),
            message: foca::Message::Ack(number),
        };
        let mut packet = Vec::new();
        PostcardCodec.encode_header(&header, &mut packet).expect("a vector has room for everything");
        let mut wishes = Wishes::default();
        let _ = self.foca.handle_data(&packet, &mut wishes);
        self.grant(now, wishes, sends);
    }

    fn grant(&mut self, now: Instant, wishes: Wishes, sends: &mut Vec<(SocketAddr, Vec<u8>)>) {
        for (_, packet) in &wishes.sends {
            let header = PostcardCodec.decode_header(&packet[1..]).expect("foca has just made it");
            self.health.on_sent(now, &header);
        }
        sends.extend(wishes.sends);
        self.dirty |= wishes.changed;
        if wishes.rejoined {
            self.health.on_rejoin();
        }
        if wishes.rejoined || wishes.arrived {
            self.settle(now);
        }
        for (after, timer) in wishes.timers {
            if let Timer::SendIndirectProbe { token, .. } = &timer {
                self.probing = *token;
            }
            let at = match &timer {
                Timer::SendIndirectProbe { .. } | Timer::ProbeRandomMember(_) => {
                    now + self.pace.stretched(after) * self.health.multiplier()
                }
                Timer::ChangeSuspectToDown { .. } => self.health.verdict_at(now, self.suspect_for()),
                Timer::PeriodicAnnounce(_)
                | Timer::PeriodicGossip(_)
                | Timer::RemoveDown(_)
                | Timer::PeriodicAnnounceDown(_) => now + after,
            };
            self.timers.insert(at, Waiting { timer, asked_at: now });
        }
    }

    fn suspect_for(&self) -> Duration {
        self.pace.suspect_for(self.known.len() + 1)
    }

    fn is_refuted(&self, timer: &Timer<Name>) -> bool {
        let Timer::ChangeSuspectToDown { member_id, incarnation, .. } = timer else { return false };
        let stands = |member: &Member<Name>| member.id() == member_id && member.incarnation() == *incarnation;
        !self.foca.iter_membership_state().any(stands)
    }

    /// The sites of members that are on one, this node included.
    #[must_use]
    pub fn sites(&self) -> &BTreeMap<SocketAddr, Site> {
        &self.sites
    }

    /// What a list says of other members' sites; what a member says of itself counts more.
    pub fn place_on_sites(&mut self, sites: impl Iterator<Item = (SocketAddr, Site)>) {
        self.sites.extend(sites);
    }

    fn settle(&mut self, now: Instant) {
        self.settling_until = now + pace::SETTLING;
        self.compare_at = self.compare_at.min(now + Duration::from_millis(100));
    }

    fn is_settling(&self, now: Instant) -> bool {
        now < self.settling_until || self.foca.num_members() == 0
    }

    /// Announces this node to some that are known and are not active members, in turn.
    fn dial(&mut self, now: Instant, sends: &mut Vec<(SocketAddr, Vec<u8>)>) {
        let (every, at_most) = if self.is_settling(now) { pace::DIAL_QUICK } else { pace::DIAL_SLOW };
        self.dial_at = now + every;
        let active: BTreeSet<SocketAddr> =
            self.foca.iter_members().map(|member| member.id().address).collect();
        let absent: BTreeSet<SocketAddr> =
            self.known.keys().copied().filter(|address| !active.contains(address)).collect();
        for _ in 0..absent.len().min(at_most) {
            let behind = absent.range((std::ops::Bound::Excluded(self.dialled), std::ops::Bound::Unbounded));
            let Some(address) = behind.chain(&absent).next().copied() else { return };
            self.dialled = address;
            let mut wishes = Wishes::default();
            // An announcement needs to know the address only.
            let _ = self.foca.announce(Name { address, generation: 0, site: Site::default() }, &mut wishes);
            self.grant(now, wishes, sends);
        }
    }

    /// Asks a member whether its list is the same.
    fn compare(&mut self, now: Instant, sends: &mut Vec<(SocketAddr, Vec<u8>)>) {
        let every = if self.is_settling(now) { pace::COMPARE_QUICK } else { pace::COMPARE_SLOW };
        self.compare_at = now + every;
        let members = self.foca.num_members();
        if members == 0 {
            return;
        }
        let chosen = self.foca.iter_members().nth(self.dice.random_range(0..members));
        let Some(to) = chosen.map(|member| member.id().clone()) else { return };
        sends.push((to.address, compare::digest_packet(&self.myself(), &to, self.digest())));
    }

    fn digest(&self) -> u64 {
        let myself = self.myself();
        compare::digest(self.others().chain([&myself]))
    }

    fn myself(&self) -> Member<Name> {
        Member::new(self.foca.identity().clone(), self.health.incarnation(), State::Alive)
    }

    /// What foca knows, without earlier starts of this node.
    fn others(&self) -> impl Iterator<Item = &Member<Name>> {
        self.foca.iter_membership_state().filter(|member| member.id().address != self.me)
    }

    fn is_active(&self, name: &Name) -> bool {
        self.foca.iter_members().any(|member| member.id() == name)
    }

    /// Brings the list of known members in line with foca's.
    fn refresh(&mut self, now: Instant) {
        self.dirty = false;
        self.refresh_at = now + REFRESH_EVERY;
        let mut heard = BTreeMap::new();
        for member in self.foca.iter_membership_state().filter(|member| member.id().address != self.me) {
            let Name { address, site, .. } = *member.id();
            heard.insert(address, member.state() != State::Down);
            if site.is_none() {
                self.sites.remove(&address);
            } else {
                self.sites.insert(address, site);
            }
        }
        let is_grace = now.since(self.born) < SEED_GRACE;
        for (address, state) in &mut self.known {
            let is_alive = match heard.remove(address) {
                Some(is_alive) => is_alive,
                None => is_grace && *state == MemberState::Alive,
            };
            let new = match (is_alive, *state) {
                (true, _) => MemberState::Alive,
                (false, MemberState::Alive) => MemberState::Down(now),
                (false, down @ MemberState::Down(_)) => down,
            };
            if *state != new {
                *state = new;
                self.changes += 1;
            }
        }
        if !heard.is_empty() {
            // Whoever is new may come with others, and with news of the dead.
            self.settle(now);
        }
        for (address, is_alive) in heard {
            self.known.insert(address, if is_alive { MemberState::Alive } else { MemberState::Down(now) });
            self.changes += 1;
        }
    }
}

#[cfg(test)]
impl Membership {
    /// Switches the doubt of itself off, for comparison.
    fn doubt_nothing(&mut self) {
        self.health.disable();
    }

    /// Entries of foca and of the timer queue: (members, updates to spread, timers).
    fn sizes(&self) -> (usize, usize, usize) {
        (self.foca.iter_membership_state().len(), self.foca.updates_backlog(), self.timers.len())
    }

    fn generation_of(&self, address: SocketAddr) -> Option<Generation> {
        self.foca
            .iter_membership_state()
            .map(Member::id)
            .find(|id| id.address == address)
            .map(|id| id.generation)
    }
}
