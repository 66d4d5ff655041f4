//! The control plane: the entry point of the controller thread.
//!
//! [`Control`] owns membership and the layouts that follow from it, publishes each change as a whole
//! new [`ClusterView`], drives catching up after a gap in time and anti-entropy, and delivers hints. It
//! sends gossip frames under their own key, by its own lane, and never waits behind requests.

use crate::cluster::aside;
use crate::cluster::fence::Pursuit;
use crate::cluster::isolation;
use crate::cluster::layout::{Layout, Layouts};
use crate::cluster::membership::Membership;
use crate::cluster::{ClusterView, FrameLane, Member, MemberState, Peer};
use crate::config::Config;
use crate::ids::MemberId;
use crate::metrics::Metric;
use crate::node::{Birth, Node};
use crate::outbox::{Datagram, Lane, Outbox};
use crate::peer::{Envelope, FrameKey, Message, Standing};
use crate::replica::anti_entropy::{Scene, Verdict};
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// How often the controller beats, asks and delivers.
const TICK_EVERY: Duration = Duration::from_millis(50);
/// Hints sent to one member per tick, and how long one waits for its acknowledgement.
const HINTS_PER_TICK: usize = 64;
const HINT_AGAIN_AFTER: Duration = Duration::from_millis(250);
/// How often members are asked for their standing while the layout is not settled.
const STANDING_EVERY: Duration = Duration::from_millis(500);
/// For how long a node that has handed everything over says that it goes.
const FAREWELL: Duration = Duration::from_millis(300);

/// This process's control plane.
#[derive(Debug)]
pub struct Control {
    node: Arc<Node>,
    key: FrameKey,
    me: Member,
    generation: u64,
    membership: Membership,
    peers: BTreeMap<SocketAddr, Arc<Peer>>,
    published: BTreeMap<SocketAddr, MemberState>,
    layouts: Layouts,
    /// Members that others told this process, when it was new, not to place.
    unplaced: BTreeSet<MemberId>,
    replicas: usize,
    partitions_log2: u8,
    stale_after: Duration,
    forget_after: Duration,
    reply_window: Duration,
    ticked_at: Instant,
    asked_standing_at: Instant,
    probed_at: Instant,
    farewell_until: Option<Instant>,
}

/// A node's two planes.
#[derive(Debug)]
pub struct Planes {
    /// The data plane, for the workers.
    pub node: Arc<Node>,
    /// The control plane, for the controller.
    pub control: Control,
}

impl Control {
    /// Both planes of a process that starts now.
    #[must_use]
    pub fn start(config: &Config, birth: &Birth, metrics: Arc<crate::metrics::Metrics>) -> Planes {
        Self::start_with(config, birth, metrics, |_| {})
    }

    /// [`Control::start`], with a last change to the node before anyone shares it.
    pub(crate) fn start_with(
        config: &Config,
        birth: &Birth,
        metrics: Arc<crate::metrics::Metrics>,
        change: impl FnOnce(&mut Node),
    ) -> Planes {
        let address = config.address();
        let listed = birth.sites.get(&address).copied().unwrap_or_default();
        let site = if config.site.is_none() { listed } else { config.site };
        let mut membership = Membership::new(
            address,
            birth.generation(),
            site,
            &birth.members,
            config.gossip,
            birth.seed,
            birth.now,
        );
        let others = birth.sites.iter().filter(|(other, _)| **other != address);
        membership.place_on_sites(others.map(|(other, site)| (*other, *site)));
        let me =
            Member { id: MemberId::of(address), address, state: MemberState::Alive, peer: Arc::default() };
        let mut peers = BTreeMap::new();
        let known = membership.known().keys().map(|address| MemberId::of(*address));
        let placed = known.chain([me.id]).collect();
        let sites = site_numbers(&membership);
        let layouts = Layouts::new(Layout::on_sites(placed, &sites, config.replicas, config.partitions_log2));
        let view = view_of(&me, &membership, &mut peers, &layouts);
        let mut node = Node::new(config, birth, view, metrics);
        change(&mut node);
        let node = Arc::new(node);
        let control = Self {
            node: Arc::clone(&node),
            key: FrameKey::gossip(&birth.cluster_key),
            me,
            generation: birth.generation(),
            published: membership.known().clone(),
            membership,
            peers,
            layouts,
            unplaced: BTreeSet::new(),
            replicas: config.replicas,
            partitions_log2: config.partitions_log2,
            stale_after: Duration::from_millis(config.stale_after_ms),
            forget_after: Duration::from_millis(config.forget_after_ms),
            reply_window: Duration::from_millis(config.reply_window_ms),
            ticked_at: Instant::ZERO,
            asked_standing_at: Instant::ZERO,
            probed_at: Instant::ZERO,
            farewell_until: None,
        };
        control.node.link().say(control.standing(false));
        Planes { node, control }
    }

    /// Handles one datagram of the gossip lane.
    pub fn handle(&mut self, now: Instant, datagram: &Datagram<'_>, outbox: &mut Outbox) {
        self.node.notice_gap(now, outbox);
        if self.node.fence().is_behind(datagram.received_at) {
            return outbox.count(Metric::PeerFenced);
        }
        let Some((envelope, packet)) = self.key.open(self.me.id, datagram.bytes) else {
            return outbox.count(Metric::PeerForged);
        };
        // A member that is not known yet announces itself; gossip itself decides about it.
        let view = self.node.view();
        if let Some(from) = view.index_of(envelope.sender) {
            let peer = &view.member(from).peer;
            let (received_at, heard_at) = (datagram.received_at, peer.heard_at());
            let accepted = peer.accept(FrameLane::Gossip, &envelope, received_at, now, self.stale_after);
            if let Err(metric) = accepted {
                return outbox.count(metric);
            }
            if self.node.ends_cut(peer, envelope.standing) {
                // What gossip has to say is of use all the same.
                self.node.rejoin(now, heard_at, outbox);
            }
        }
        let mut sends = Vec::new();
        if !self.membership.handle(now, packet, &mut sends) {
            outbox.count(Metric::GossipRejected);
        }
        self.send(now, sends, outbox);
    }

    /// Works off what is due. Call *after* all waiting datagrams were handled.
    pub fn tick(&mut self, now: Instant, outbox: &mut Outbox) {
        self.node.notice_gap(now, outbox);
        self.node.fence().beat(now);
        let mut sends = Vec::new();
        self.membership.tick(now, &mut sends);
        self.follow_members(now, outbox);
        self.send(now, sends, outbox);
        if now.since(self.ticked_at) < TICK_EVERY {
            return;
        }
        self.ticked_at = now;
        self.note_apart(now);
        self.note_isolation(now, outbox);
        self.catch_up(now, outbox);
        self.give_way(now, outbox);
        let verdict = self.repair(now, outbox);
        self.say_standing(now, verdict, outbox);
        self.deliver_hints(now, outbox);
    }

    /// Takes the outcome of [`Outbox::ask_bulk`]: the response, or `None` when there is none (nobody
    /// there, too slow, too much asked at once, a wrong key). Every ticket comes here exactly once.
    pub fn on_bulk(&mut self, now: Instant, ticket: u64, response: Option<&[u8]>, outbox: &mut Outbox) {
        self.node.notice_gap(now, outbox);
        self.with_scene(now, outbox, |node, scene| node.anti_entropy().on_bulk(scene, ticket, response));
    }

    fn with_scene<R>(
        &self,
        now: Instant,
        outbox: &mut Outbox,
        act: impl FnOnce(&Node, &mut Scene<'_>) -> R,
    ) -> R {
        let node = &*self.node;
        let mut scene = Scene {
            now,
            view: &node.view(),
            replica: node.replica(),
            fence: node.fence(),
            link: node.link(),
            suspect_after: node.suspect_after(now),
            outbox,
        };
        act(node, &mut scene)
    }

    /// Remembers whom this node has to do without.
    fn note_apart(&self, now: Instant) {
        let (view, suspect_after) = (self.node.view(), self.node.suspect_after(now));
        for (index, member) in (0..).zip(view.members()) {
            if !view.is_usable(index, now, suspect_after) {
                member.peer.note_apart(now);
            }
        }
    }

    /// Keeps in touch with the others, and notes when most of them cannot be heard.
    fn note_isolation(&self, now: Instant, outbox: &mut Outbox) {
        let (view, fence) = (self.node.view(), self.node.fence());
        #[cfg(test)]
        if self.node.replica().planted().cut_offs_are_not_noticed {
            return;
        }
        let review = isolation::review(&view, now, fence.gap_at(), self.node.suspect_after(now));
        for to in review.ping {
            self.node.link().send(now, &view, to, &Message::Ping, outbox);
        }
        let mut heard_at = now;
        for member in review.lost {
            let peer = &view.member(member).peer;
            heard_at = heard_at.min(peer.heard_at());
            peer.mark_lost();
        }
        fence.hold(review.hold, heard_at);
    }

    /// Tells members that they are late, and stands aside while others say so of this node.
    fn give_way(&mut self, now: Instant, outbox: &mut Outbox) {
        let view = self.node.view();
        if aside::PROBE_EVERY <= now.since(self.probed_at) {
            self.probed_at = now;
            for due in aside::review(&view, now) {
                outbox.count(Metric::ProbesSent);
                let message = Message::Probe { stamp: due.stamp, late: due.late };
                self.node.link().send(now, &view, due.to, &message, outbox);
            }
            for to in aside::unmeasured(&view, now) {
                let message = Message::Probe { stamp: now.as_nanos(), late: false };
                self.node.link().send(now, &view, to, &message, outbox);
            }
            let alive = view.members().iter().filter(|member| member.state == MemberState::Alive);
            let farthest = alive.map(|member| member.peer.round_trip()).max();
            self.membership.allow_for(farthest.unwrap_or_default());
        }
        let fence = self.node.fence();
        let should = aside::should_stand_aside(&view, now);
        if should && !fence.is_aside() && fence.is_active() {
            fence.stand_aside(now);
            outbox.count(Metric::StoodAside);
        } else if !should && fence.is_aside() {
            fence.come_back(now);
        }
    }

    /// Compares with the other owners, and settles the layout when everybody is full.
    fn repair(&mut self, now: Instant, outbox: &mut Outbox) -> Verdict {
        let verdict = self.with_scene(now, outbox, |node, scene| node.anti_entropy().tick(scene));
        if verdict.counting && self.node.fence().is_active() {
            self.node.fence().join();
            self.layouts.found();
        }
        if verdict.everyone_full && !(self.layouts.is_founded() && self.layouts.previous().is_empty()) {
            self.layouts.settle(now);
            self.publish(outbox);
        }
        let is_done = self.node.is_leaving() && verdict.everyone_full && self.node.is_empty();
        // Once it has said farewell it hears no gossip any more: there is no way back.
        if is_done || self.farewell_until.is_some() {
            let until = *self.farewell_until.get_or_insert(now + FAREWELL);
            self.leave(now, outbox);
            if until <= now {
                outbox.request_exit();
            }
        }
        verdict
    }

    fn standing(&self, full: bool) -> Standing {
        Standing {
            layout: self.layouts.current().hash(),
            full,
            leaving: self.node.is_leaving(),
            settled: self.layouts.previous().is_empty(),
            aside: self.node.fence().is_aside(),
            cut_off: self.node.fence().holds_for().is_some(),
        }
    }

    /// Every frame says where this node stands; a change is told to all at once, and while others are
    /// not where this node is they are asked now and then.
    fn say_standing(&mut self, now: Instant, verdict: Verdict, outbox: &mut Outbox) {
        let standing = self.standing(verdict.full);
        let has_changed = standing != self.node.link().standing();
        self.node.link().say(standing);
        self.me.peer.say(standing);
        let asks = !verdict.everyone_full && STANDING_EVERY <= now.since(self.asked_standing_at);
        if !has_changed && !asks {
            return;
        }
        self.asked_standing_at = now;
        let view = self.node.view();
        for index in 0..view.members().len() as u16 {
            let member = view.member(index);
            let theirs = member.peer.standing();
            let is_where_we_are = theirs.layout == standing.layout && theirs.full;
            if member.id != self.me.id && view.is_up(index) && (has_changed || !is_where_we_are) {
                self.node.link().send(now, &view, index, &Message::Ping, outbox);
            }
        }
    }

    /// When [`Control::tick`] should be called next, at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        self.membership.next_deadline().min(self.ticked_at + TICK_EVERY)
    }

    /// Tells the others that this node leaves; call a few times, some 50 ms apart, then stop.
    pub fn leave(&mut self, now: Instant, outbox: &mut Outbox) {
        let mut sends = Vec::new();
        self.membership.leave(now, &mut sends);
        self.send(now, sends, outbox);
    }

    /// Puts in force what follows from the members that are known now.
    fn follow_members(&mut self, now: Instant, outbox: &Outbox) {
        let mut has_changed = self.published != *self.membership.known();
        has_changed |= self.hear_layouts();
        let placed = self.placed(now);
        let sites = self.sites();
        if !self.layouts.current().is_on(&placed, &sites) {
            self.layouts.replace(Layout::on_sites(placed, &sites, self.replicas, self.partitions_log2));
            has_changed = true;
        }
        has_changed |= self.layouts.expire(now, self.reply_window);
        if has_changed {
            self.publish(outbox);
        }
    }

    /// The members that are to hold data: all that are known, but for those that have left or are
    /// leaving, and those that have been down for too long.
    fn placed(&self, now: Instant) -> BTreeSet<MemberId> {
        let is_placed = |(address, state): &(&SocketAddr, &MemberState)| {
            let peer = self.peers.get(*address);
            let was_heard = peer.is_some_and(|peer| Instant::ZERO < peer.heard_at());
            let is_gone = match state {
                MemberState::Alive => false,
                MemberState::Down(since) => self.forget_after < now.since(*since),
            };
            let is_unplaced = !was_heard && self.unplaced.contains(&MemberId::of(**address));
            !is_gone && !is_unplaced && !peer.is_some_and(|peer| peer.standing().leaving)
        };
        let known = self.membership.known().iter().filter(is_placed);
        let mut placed: BTreeSet<MemberId> = known.map(|(address, _)| MemberId::of(*address)).collect();
        if placed.is_empty() && self.farewell_until.is_none() {
            // Everybody else wants to leave as well, or is gone: somebody must keep the data.
            self.node.stay();
        }
        if !self.node.is_leaving() {
            placed.insert(self.me.id);
        }
        placed
    }

    /// The sites of those members that are on one.
    fn sites(&self) -> BTreeMap<MemberId, u64> {
        #[cfg(test)]
        if self.node.replica().planted().sites_are_ignored {
            return BTreeMap::new();
        }
        site_numbers(&self.membership)
    }

    /// A process that has just started, or was away, learns from the others which layouts are in force.
    fn hear_layouts(&mut self) -> bool {
        let mut is_news = false;
        let sites = self.sites();
        for heard in self.node.take_heard_layouts() {
            let Some(current) = heard.lists.first() else { continue };
            if !self.layouts.is_founded() {
                let known = self.membership.known().keys().map(|address| MemberId::of(*address));
                self.unplaced.extend(known.filter(|id| !current.contains(id)));
                current.iter().for_each(|id| {
                    self.unplaced.remove(id);
                });
            }
            // The oldest one first, the one in force there last.
            for list in heard.lists.iter().cycle().skip(1).take(heard.lists.len()) {
                // Lists name members; where they are this node knows itself.
                let ids = || list.iter().copied().collect();
                let make = || Layout::on_sites(ids(), &sites, self.replicas, self.partitions_log2);
                is_news |= self.layouts.learn(list, make);
            }
        }
        is_news
    }

    fn publish(&mut self, outbox: &Outbox) {
        self.published.clone_from(self.membership.known());
        let view = view_of(&self.me, &self.membership, &mut self.peers, &self.layouts);
        // What this node gains must not be served by anyone who sees the view.
        self.node.anti_entropy().adopt(&view, self.node.fence());
        self.node.publish(view);
        outbox.count(Metric::ViewsPublished);
    }

    fn send(&mut self, now: Instant, sends: Vec<(SocketAddr, Vec<u8>)>, outbox: &mut Outbox) {
        let standing = self.node.link().standing();
        for (to, packet) in sends {
            let peer = self.peers.entry(to).or_default();
            let envelope = Envelope {
                sender: self.me.id,
                generation: self.generation,
                sequence: peer.next_sequence(FrameLane::Gossip),
                sent_at: now,
                standing,
            };
            let key = &self.key;
            outbox.send(Lane::Gossip, to, |out| {
                key.seal(MemberId::of(to), &envelope, out, |out| out.extend_from_slice(&packet));
            });
        }
    }

    /// After a gap: asks every living member what it keeps for this node, until none has anything.
    fn catch_up(&mut self, now: Instant, outbox: &mut Outbox) {
        let view = self.node.view();
        // Silence does not count here: whoever was away, or is late, hears nothing.
        let others = (0..view.members().len() as u16).filter(|index| *index != view.me());
        let living = others.filter(|index| view.is_up(*index)).map(|index| view.member(index).id);
        match self.node.fence().pursue(now, living) {
            Pursuit::Idle => {}
            Pursuit::CaughtUp(after) => {
                outbox.count_many(Metric::FenceMillis, after.as_millis() as u64);
            }
            Pursuit::Ask { round, members } => {
                for index in members.into_iter().filter_map(|member| view.index_of(member)) {
                    self.node.link().send(now, &view, index, &Message::CatchUp { round }, outbox);
                }
            }
        }
    }

    fn deliver_hints(&self, now: Instant, outbox: &mut Outbox) {
        let view = self.node.view();
        for owner in self.node.replica().hints.owners() {
            if view.is_settled() && !view.is_placed(owner) {
                // What it was kept for is owned by others now; this node's copy is handed over to them.
                let inherited = self.node.replica().hints.forget_owner(owner);
                outbox.count_many(Metric::HintsInherited, inherited as u64);
                continue;
            }
            let Some(index) = view.index_of(owner) else { continue };
            if !view.is_usable(index, now, self.node.suspect_after(now)) {
                continue;
            }
            let again_after = HINT_AGAIN_AFTER + view.member(index).peer.round_trip();
            let due = self.node.replica().hints.take_due(owner, now, again_after, HINTS_PER_TICK);
            for (key, hint) in due {
                let message = Message::Hint { write: hint.write(key) };
                self.node.link().send(now, &view, index, &message, outbox);
            }
        }
    }
}

fn site_numbers(membership: &Membership) -> BTreeMap<MemberId, u64> {
    let sites = membership.sites().iter();
    sites.map(|(address, site)| (MemberId::of(*address), site.number())).collect()
}

/// The view that follows from what membership knows.
fn view_of(
    me: &Member,
    membership: &Membership,
    peers: &mut BTreeMap<SocketAddr, Arc<Peer>>,
    layouts: &Layouts,
) -> ClusterView {
    let mut members = vec![me.clone()];
    members.extend(membership.known().iter().map(|(address, state)| Member {
        id: MemberId::of(*address),
        address: *address,
        state: *state,
        peer: Arc::clone(peers.entry(*address).or_default()),
    }));
    ClusterView::new(members, me.id, layouts)
}
