//! The control plane: the entry point of the controller thread.
//!
//! [`Control`] owns membership, publishes each change as a whole new [`ClusterView`], drives catching
//! up after a gap in time, and delivers hints. It sends gossip frames under their own key, by its own
//! lane, and never waits behind requests.

use crate::cluster::fence::Pursuit;
use crate::cluster::membership::Membership;
use crate::cluster::{ClusterView, FrameLane, Member, MemberState, Peer};
use crate::config::Config;
use crate::ids::MemberId;
use crate::metrics::Metric;
use crate::node::{Birth, Node};
use crate::outbox::{Datagram, Lane, Outbox};
use crate::peer::{Envelope, FrameKey, Message};
use crate::time::{Duration, Instant};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// How often the controller beats, asks and delivers.
const TICK_EVERY: Duration = Duration::from_millis(50);
/// Hints sent to one member per tick, and how long one waits for its acknowledgement.
const HINTS_PER_TICK: usize = 64;
const HINT_AGAIN_AFTER: Duration = Duration::from_millis(250);

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
    replicas: usize,
    partitions_log2: u8,
    stale_after: Duration,
    ticked_at: Instant,
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
        let membership = Membership::new(
            address,
            birth.generation(),
            &birth.members,
            config.gossip,
            birth.seed,
            birth.now,
        );
        let me =
            Member { id: MemberId::of(address), address, state: MemberState::Alive, peer: Arc::default() };
        let mut peers = BTreeMap::new();
        let view = view_of(&me, &membership, &mut peers, config.replicas, config.partitions_log2);
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
            replicas: config.replicas,
            partitions_log2: config.partitions_log2,
            stale_after: Duration::from_millis(config.stale_after_ms),
            ticked_at: Instant::ZERO,
        };
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
            let received_at = datagram.received_at;
            let accepted = peer.accept(FrameLane::Gossip, &envelope, received_at, now, self.stale_after);
            if let Err(metric) = accepted {
                return outbox.count(metric);
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
        self.publish_changes(outbox);
        self.send(now, sends, outbox);
        if now.since(self.ticked_at) < TICK_EVERY {
            return;
        }
        self.ticked_at = now;
        self.catch_up(now, outbox);
        self.deliver_hints(now, outbox);
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

    fn publish_changes(&mut self, outbox: &Outbox) {
        if self.published == *self.membership.known() {
            return;
        }
        self.published.clone_from(self.membership.known());
        let view = view_of(&self.me, &self.membership, &mut self.peers, self.replicas, self.partitions_log2);
        self.node.publish(view);
        outbox.count(Metric::ViewsPublished);
    }

    fn send(&mut self, now: Instant, sends: Vec<(SocketAddr, Vec<u8>)>, outbox: &mut Outbox) {
        for (to, packet) in sends {
            let peer = self.peers.entry(to).or_default();
            let envelope = Envelope {
                sender: self.me.id,
                generation: self.generation,
                sequence: peer.next_sequence(FrameLane::Gossip),
                sent_at: now,
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
        let is_up = |member: &&Member| match member.state {
            MemberState::Alive => true,
            MemberState::Down(since) => since < member.peer.heard_at(),
        };
        let others = view.members().iter().filter(|member| member.id != self.me.id);
        let living = others.filter(is_up).map(|member| member.id);
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
            let Some(index) = view.index_of(owner) else { continue };
            if !view.is_usable(index, now, self.node.suspect_after(now)) {
                continue;
            }
            let due = self.node.replica().hints.take_due(owner, now, HINT_AGAIN_AFTER, HINTS_PER_TICK);
            for (key, hint) in due {
                let message = Message::Hint { write: hint.write(key) };
                self.node.link().send(now, &view, index, &message, outbox);
            }
        }
    }
}

/// The view that follows from what membership knows.
fn view_of(
    me: &Member,
    membership: &Membership,
    peers: &mut BTreeMap<SocketAddr, Arc<Peer>>,
    replicas: usize,
    partitions_log2: u8,
) -> ClusterView {
    let mut members = vec![me.clone()];
    members.extend(membership.known().iter().map(|(address, state)| Member {
        id: MemberId::of(*address),
        address: *address,
        state: *state,
        peer: Arc::clone(peers.entry(*address).or_default()),
    }));
    ClusterView::new(members, me.id, replicas, partitions_log2)
}
