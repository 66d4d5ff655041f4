//! The data plane: the entry point of workers.
//!
//! [`Node::handle`] takes one datagram of the client or peer lane to completion: it authenticates
//! frames of members and passes each message to its handler; everything else is a client's. It never
//! blocks, reads no clock and sends nothing itself. Many threads call it at once.

use crate::cluster::fence::Fence;
use crate::cluster::link::Link;
use crate::cluster::{ClusterView, FrameLane, MemberState, Peer};
use crate::config::Config;
use crate::coordinator::reply_cache::ReplyCache;
use crate::coordinator::{Coordinator, NodeRequest, Parts, Settings, Turn};
use crate::ids::{Generation, HybridClock, MemberId, Site, Version};
use crate::metrics::{Group, Metric, Metrics};
use crate::outbox::{Datagram, Outbox};
use crate::peer::message::answered::split_answered;
use crate::peer::{MemberLists, Message, Standing, Write, frames};
use crate::replica::anti_entropy::{AntiEntropy, Scene};
use crate::replica::hint::Hints;
use crate::replica::{Replica, transfer};
use crate::storage::Budget;
use crate::storage::chunks::Chunks;
use crate::storage::ram::Ram;
use crate::time::{Duration, Instant};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use violet_client::{Key, Status};

/// What a process takes beside values, hints and records: code, stacks, tables, receive batches.
/// Measured; see "Memory" in ARCHITECTURE.md.
const PROCESS_BYTES: usize = 9 * 1024 * 1024;
/// One part in this many of the memory is never given to values: a full node must still be able to
/// recognise repeats and keep hints.
const RECORDS_SHARE: usize = 16;
/// How often the node does what has no deadline of its own.
const TICK_EVERY: Duration = Duration::from_millis(100);
/// For how long this node's own lateness excuses others.
const LATENESS_KEPT: Duration = Duration::from_secs(1);
/// How often old tombstones and hints are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Tombstones wait for this long for a member that is down and may come back with what was removed.
const COMES_BACK_WITHIN: Duration = Duration::from_secs(24 * 3_600);

/// What a member had not got for this long before it was last heard is taken for missed: clocks differ.
const DEPARTURE_MARGIN: Duration = Duration::from_secs(5);

/// What a process is born with.
#[derive(Clone, Debug)]
pub struct Birth {
    /// Moment of the start.
    pub now: Instant,
    /// The operating system's process id.
    pub pid: u32,
    /// Random seed, new at every start.
    pub seed: u64,
    /// The cluster's key.
    pub cluster_key: [u8; 32],
    /// The first member list (addresses), this node's own included or not.
    pub members: Vec<SocketAddr>,
    /// Sites of members that are on one, as the list has them.
    pub sites: BTreeMap<SocketAddr, Site>,
    /// Values go on large memory pages. Not where many nodes share a process and each holds little: to
    /// clear the pages takes longer than anything else then.
    pub large_pages: bool,
}

impl Birth {
    /// Which start this is.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.now.as_millis()
    }
}

/// This process's data plane.
#[derive(Debug)]
pub struct Node {
    me: MemberId,
    view: ArcSwap<ClusterView>,
    link: Link,
    fence: Arc<Fence>,
    replica: Arc<Replica>,
    anti_entropy: AntiEntropy,
    coordinator: Coordinator,
    budget: Arc<Budget>,
    metrics: Arc<Metrics>,
    suspect_after: Duration,
    stale_after: Duration,
    hint_keep: Duration,
    ticked_at: AtomicU64,
    swept_at: AtomicU64,
    /// How long a datagram waited for its turn lately, at most, and when that was.
    lateness: AtomicU64,
    late_at: AtomicU64,
    /// It is on its way out.
    leaving: AtomicBool,
    /// Layouts of other members that the controller has not seen yet. A leaf lock.
    heard_layouts: Mutex<Vec<HeardLayouts>>,
}

/// The layouts that a member uses, the one in force first.
#[derive(Clone, Debug)]
pub(crate) struct HeardLayouts {
    pub(crate) lists: Vec<Vec<MemberId>>,
}

impl Node {
    /// A node that holds nothing yet. Its view is made by the controller
    /// ([`crate::control::Control::new`]) before any datagram is handled.
    #[must_use]
    pub fn new(config: &Config, birth: &Birth, view: ClusterView, metrics: Arc<Metrics>) -> Self {
        let me = MemberId::of(config.address());
        let memory_bytes = config.memory_mib as usize * 1024 * 1024;
        let budget = Arc::new(Budget::new(memory_bytes - PROCESS_BYTES));
        let share = |mib: u64, part: usize| (mib as usize * 1024 * 1024).min(memory_bytes / part);
        let hints = Hints::new(Arc::clone(&budget), share(config.hints_mib, 4));
        let chunks = Chunks::new(Arc::clone(&budget), memory_bytes / RECORDS_SHARE, birth.large_pages);
        let engine = Ram::new(chunks, birth.seed);
        let replica = Arc::new(Replica::new(Box::new(engine), hints));
        let fence = Arc::new(Fence::new(Duration::from_millis(config.fence_after_ms), birth.now));
        let link = Link::new(me, birth.generation(), &birth.cluster_key);
        let window = Duration::from_millis(config.reply_window_ms);
        let stale_after = Duration::from_millis(config.stale_after_ms);
        let hint_keep = Duration::from_secs(config.hint_keep_s);
        let anti_entropy = AntiEntropy::new(stale_after);
        anti_entropy.adopt(&view, &fence);
        let coordinator = Coordinator::new(Parts {
            settings: Settings::new(config),
            pid: birth.pid,
            link: link.clone(),
            clock: HybridClock::new(birth.seed),
            replica: Arc::clone(&replica),
            fence: Arc::clone(&fence),
            reply_cache: ReplyCache::new(window, share(config.reply_cache_mib, 8), Arc::clone(&budget)),
            pending_max: config.pending_max,
            seed: birth.seed,
        });
        Self {
            me,
            view: ArcSwap::from_pointee(view),
            link,
            fence,
            replica,
            anti_entropy,
            coordinator,
            budget,
            metrics,
            suspect_after: Duration::from_millis(config.suspect_after_ms),
            stale_after,
            hint_keep,
            ticked_at: AtomicU64::new(0),
            swept_at: AtomicU64::new(birth.now.as_nanos()),
            lateness: AtomicU64::new(0),
            late_at: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            heard_layouts: Mutex::default(),
        }
    }

    /// Handles one datagram of the client or peer lane to completion; never blocks.
    pub fn handle(&self, now: Instant, datagram: &Datagram<'_>, outbox: &mut Outbox) {
        self.notice_gap(now, outbox);
        self.note_lateness(now, now.since(datagram.received_at));
        let view = self.view.load();
        let mut turn = Turn { now, view: &view, suspect_after: self.suspect_after(now), outbox };
        if self.link.key().claims(datagram.bytes) {
            let mut one = *datagram;
            return frames(datagram.bytes).for_each(|frame| {
                one.bytes = frame;
                self.on_frame(&mut turn, &one);
            });
        }
        if view.is_address_of_member(datagram.from) {
            // A reply, or a damaged or forged frame. Taken as a request it would be answered to a
            // member, which would take the answer as a request (a raw "unknown command" reads as WIPEOUT).
            return turn.outbox.count(Metric::DroppedFromMember);
        }
        if self.fence.is_behind(datagram.received_at) {
            return turn.outbox.count(Metric::DroppedFenced);
        }
        match self.coordinator.on_datagram(&mut turn, datagram) {
            Some((client, NodeRequest::Stats)) => {
                self.coordinator.answer_text(&mut turn, &client, &self.stats_json());
            }
            Some((client, NodeRequest::Leave)) => {
                let status = if self.begin_leaving() { Status::Success } else { Status::InternalFailure };
                self.coordinator.answer_status(&mut turn, &client, status);
            }
            None => {}
        }
    }

    /// Looks for a gap in time. After one, what was begun before it is given up, and nobody is blamed
    /// for having said nothing meanwhile: it was this node that was away.
    pub(crate) fn notice_gap(&self, now: Instant, outbox: &mut Outbox) {
        if !self.fence.check(now) {
            return;
        }
        self.give_up_what_was_begun(now, outbox);
    }

    /// Whether a frame shows that this node is cut off no more: it comes from the other side, or from somebody who hears
    /// both.
    pub(crate) fn ends_cut(&self, peer: &Peer, standing: Standing) -> bool {
        let hears_both = !standing.cut_off && self.fence.holds_for().is_some();
        peer.take_lost() || (hears_both && self.fence.is_active())
    }

    /// This node was cut off, and is not any more. The member that shows it was heard before at `heard_at`.
    pub(crate) fn rejoin(&self, now: Instant, heard_at: Instant, outbox: &mut Outbox) {
        self.fence.rejoin(now, heard_at);
        outbox.count(Metric::Rejoins);
        self.give_up_what_was_begun(now, outbox);
    }

    fn give_up_what_was_begun(&self, now: Instant, outbox: &mut Outbox) {
        outbox.count(Metric::Fences);
        let view = self.view.load();
        for member in view.members() {
            member.peer.forgive();
        }
        let suspect_after = self.suspect_after(now);
        self.coordinator.abandon(&mut Turn { now, view: &view, suspect_after, outbox });
    }

    fn note_lateness(&self, now: Instant, waited: Duration) {
        let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        if self.lateness.load(Ordering::Relaxed) <= waited || !self.was_late_lately(now) {
            self.lateness.store(waited, Ordering::Relaxed);
            self.late_at.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    fn was_late_lately(&self, now: Instant) -> bool {
        now.since(Instant::from_nanos(self.late_at.load(Ordering::Relaxed))) < LATENESS_KEPT
    }

    /// How long another member may be silent before it is bypassed.
    pub(crate) fn suspect_after(&self, now: Instant) -> Duration {
        let lateness = Duration::from_nanos(self.lateness.load(Ordering::Relaxed));
        self.suspect_after + if self.was_late_lately(now) { lateness } else { Duration::ZERO }
    }

    fn on_frame(&self, turn: &mut Turn<'_>, datagram: &Datagram<'_>) {
        if self.fence.is_behind(datagram.received_at) {
            return turn.outbox.count(Metric::PeerFenced);
        }
        let Some((envelope, body)) = self.link.key().open(self.me, datagram.bytes) else {
            return turn.outbox.count(Metric::PeerForged);
        };
        let Some(from) = turn.view.index_of(envelope.sender).filter(|from| *from != turn.view.me()) else {
            return turn.outbox.count(Metric::PeerUnknown);
        };
        let peer = &turn.view.member(from).peer;
        let heard_at = peer.heard_at();
        let accepted =
            peer.accept(FrameLane::Peer, &envelope, datagram.received_at, turn.now, self.stale_after);
        if let Err(metric) = accepted {
            return turn.outbox.count(metric);
        }
        if self.ends_cut(peer, envelope.standing) {
            self.rejoin(turn.now, heard_at, turn.outbox);
            return turn.outbox.count(Metric::PeerFenced);
        }
        let Some((answered, body)) = split_answered(body) else {
            return turn.outbox.count(Metric::PeerMalformed);
        };
        answered.for_each(|one| self.coordinator.on_answered(turn, from, &one));
        match Message::decode(body) {
            Some(message) => self.on_message(turn, from, &message, datagram),
            None => turn.outbox.count(Metric::PeerMalformed),
        }
    }

    fn on_message(&self, turn: &mut Turn<'_>, from: u16, message: &Message<'_>, frame: &Datagram<'_>) {
        let coordinator = &self.coordinator;
        match *message {
            Message::Forward { client, front_end, waited_ms, hops, datagram } => {
                let datagram = Datagram { bytes: datagram, from: client.address, ..*frame };
                let waited = Duration::from_millis(waited_ms.into());
                coordinator.on_forward(turn, front_end, client, waited, hops, &datagram);
            }
            Message::Reply { client, datagram } => coordinator.on_reply(turn, client, datagram),
            Message::Write { .. } => coordinator.on_write(turn, from, message),
            Message::Stored { token, outcome, existed } => {
                coordinator.on_stored(turn, from, token, outcome, existed);
            }
            Message::Undo { token, key, version, request } => {
                let write = Write { key, version, value: None, is_set: false, request };
                coordinator.on_undo(turn, from, token, &write);
            }
            Message::Undone { token } => coordinator.on_undone(turn, from, token),
            Message::Read { .. } => coordinator.on_read(turn, from, message),
            Message::ReadHit { token, version } => coordinator.on_read_hit(turn, from, token, version),
            Message::ReadMiss { token, unknown, removed } => {
                coordinator.on_read_miss(turn, from, token, unknown, removed);
            }
            Message::ReadValue { token, version, value } => {
                coordinator.on_read_value(turn, from, token, version, value);
            }
            Message::ReadRecord { .. } => coordinator.on_record(turn, from, message),
            Message::Hint { write } => coordinator.on_hint(turn, from, &write),
            Message::HintStored { key, version } => {
                if self.replica.hints.on_stored(turn.view.member(from).id, &key, version) {
                    turn.outbox.count(Metric::HintsDelivered);
                    self.drop_handed_over(turn, &key, version);
                }
            }
            Message::CatchUp { round } => {
                let hints = self.replica.hints.count_for(turn.view.member(from).id) as u64;
                let remembers = 0 < self.coordinator.reply_cache_bytes();
                let layouts = MemberLists::over(turn.view.layout_lists());
                self.answer_peer(turn, from, &Message::HintsLeft { round, hints, remembers, layouts });
            }
            Message::HintsLeft { round, hints, remembers, layouts } => {
                self.heard_layouts.lock().push(HeardLayouts { lists: layouts.to_vecs() });
                self.fence.on_hints_left(round, turn.view.member(from).id, hints, remembers);
            }
            Message::Compare { asked_at, wiped_at, roots } => {
                self.anti_entropy.on_compare(&mut self.scene(turn), from, asked_at, wiped_at, roots);
            }
            Message::Compared { asked_at, wiped_at, roots } => {
                self.anti_entropy.on_compared(&mut self.scene(turn), from, asked_at, wiped_at, roots);
            }
            Message::Covered { roots } => self.anti_entropy.on_covered(&self.scene(turn), from, roots),
            Message::Mend { key, to } => coordinator.on_mend(turn, key, to),
            Message::Recall { token, request } => coordinator.on_recall(turn, from, token, request),
            Message::Recalled { token, known } => coordinator.on_recalled(turn, from, token, known),
            Message::Settled { request, existed } => coordinator.on_settled(turn, request, existed),
            Message::Probe { stamp, late } => {
                turn.view.member(from).peer.lateness.on_accused(turn.now, late);
                self.answer_peer(turn, from, &Message::Echo { stamp });
            }
            Message::Echo { stamp } => coordinator.on_echo(turn, from, stamp),
            Message::Ping => self.answer_peer(turn, from, &Message::Pong),
            // Hearing it was all there is to it.
            Message::Pong => {}
        }
    }

    /// A copy that this node kept while it stood in has been handed over. Kept any longer it would be
    /// found, stale, the next time.
    fn drop_handed_over(&self, turn: &Turn<'_>, key: &Key, version: Version) {
        let partition = turn.view.partition_of(key.as_bytes());
        let is_mine = turn.view.is_owner(partition, turn.view.me());
        if !is_mine && !self.replica.hints.has_key(key) && !self.coordinator.is_writing(key) {
            self.replica.forget_record(partition, key, version);
        }
    }

    fn scene<'a>(&'a self, turn: &'a mut Turn<'_>) -> Scene<'a> {
        Scene {
            now: turn.now,
            view: turn.view,
            replica: &self.replica,
            fence: &self.fence,
            link: &self.link,
            suspect_after: turn.suspect_after,
            outbox: turn.outbox,
        }
    }

    /// Answers a bulk request of a member: appends the response and returns `true`, or returns `false`
    /// when the request has no meaning. It copies up to some hundred KiB: not for the request path.
    pub fn answer_bulk(&self, from: MemberId, request: &[u8], response: &mut Vec<u8>) -> bool {
        self.view.load().index_of(from).is_some() && transfer::answer(&self.replica, request, response)
    }

    /// Comparisons with the other members.
    pub(crate) fn anti_entropy(&self) -> &AntiEntropy {
        &self.anti_entropy
    }

    /// Starts a planned leave: the controller hands everything over and then asks for the end of this
    /// process. `false` when there is nobody to hand it to.
    pub fn begin_leaving(&self) -> bool {
        let view = self.view.load();
        let stays = |index: u16| view.is_up(index) && !view.member(index).peer.standing().leaving;
        let is_other = |index: &u16| *index != view.me() && stays(*index);
        let can_leave = (0..view.members().len() as u16).any(|index| is_other(&index));
        self.leaving.fetch_or(can_leave, Ordering::Relaxed);
        can_leave
    }

    /// Takes a leave back: there is nobody left to hand anything to.
    pub(crate) fn stay(&self) {
        self.leaving.store(false, Ordering::Relaxed);
    }

    /// Whether this node is on its way out.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// The layouts that others have told of since the last call.
    pub(crate) fn take_heard_layouts(&self) -> Vec<HeardLayouts> {
        std::mem::take(&mut self.heard_layouts.lock())
    }

    /// Whether anything still waits here for others: operations, hints or data.
    pub(crate) fn is_empty(&self) -> bool {
        let (writes, reads) = self.coordinator.in_progress();
        writes + reads + self.replica.hints.usage().0 == 0 && self.replica.partitions_held().is_empty()
    }

    fn answer_peer(&self, turn: &mut Turn<'_>, to: u16, message: &Message<'_>) {
        self.link.send(turn.now, turn.view, to, message, turn.outbox);
    }

    /// Works off what is due; called by the listener when [`Node::next_deadline`] has come.
    pub fn tick(&self, now: Instant, outbox: &mut Outbox) {
        self.notice_gap(now, outbox);
        let view = self.view.load();
        let mut turn = Turn { now, view: &view, suspect_after: self.suspect_after(now), outbox };
        self.coordinator.tick(&mut turn);
        let ticked_at = Instant::from_nanos(self.ticked_at.load(Ordering::Relaxed));
        if now.since(ticked_at) < TICK_EVERY {
            return;
        }
        self.ticked_at.store(now.as_nanos(), Ordering::Relaxed);
        self.coordinator.expire(now);
        self.ping_the_silent(&mut turn);
        let swept_at = Instant::from_nanos(self.swept_at.load(Ordering::Relaxed));
        if SWEEP_EVERY <= now.since(swept_at) {
            self.swept_at.store(now.as_nanos(), Ordering::Relaxed);
            let hints_before = (now - self.hint_keep).as_nanos();
            let swept = self.replica.sweep(hints_before, self.tombstones_until(&turn).as_nanos());
            turn.outbox.count_many(Metric::HintsDropped, swept as u64);
        }
    }

    /// Tombstones from before this may go, if nothing else speaks against it: older than
    /// `hint-keep-s`, and older than the departure of every member that may come back, or has just come back, with
    /// what it held.
    fn tombstones_until(&self, turn: &Turn<'_>) -> Instant {
        #[cfg(test)]
        if self.replica.planted().tombstones_without_agreement {
            return turn.now - self.hint_keep;
        }
        let departed = turn.view.members().iter().filter_map(|member| match member.state {
            MemberState::Down(since) if !member.peer.standing().leaving => {
                // It was gone before it was called down.
                let heard_at = member.peer.heard_at().min(since);
                (turn.now.since(since) < COMES_BACK_WITHIN).then_some(heard_at - DEPARTURE_MARGIN)
            }
            MemberState::Down(_) => None,
            MemberState::Alive => member.peer.apart_since(turn.now).map(|since| since - DEPARTURE_MARGIN),
        });
        departed.fold(turn.now - self.hint_keep, Instant::min)
    }

    /// A member that owes a sign of life is asked for one: some questions (a forwarded request) are
    /// answered to the client and not to this node.
    fn ping_the_silent(&self, turn: &mut Turn<'_>) {
        for index in 0..turn.view.members().len() as u16 {
            let peer = &turn.view.member(index).peer;
            let silent_for = peer.silent_for(turn.now);
            if index == turn.view.me() || silent_for < self.suspect_after / 8 {
                continue;
            }
            if peer.take_ping(turn.now, self.suspect_after / 4) {
                self.answer_peer(turn, index, &Message::Ping);
            }
        }
    }

    /// When [`Node::tick`] should be called next, at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let ticked_at = Instant::from_nanos(self.ticked_at.load(Ordering::Relaxed));
        self.coordinator.next_deadline().min(ticked_at + TICK_EVERY)
    }

    /// This node's name.
    #[must_use]
    pub fn me(&self) -> MemberId {
        self.me
    }

    /// The cluster as this node sees it now.
    #[must_use]
    pub fn view(&self) -> Arc<ClusterView> {
        self.view.load_full()
    }

    /// Puts a new view in force; the controller's alone.
    pub(crate) fn publish(&self, view: ClusterView) {
        self.view.store(Arc::new(view));
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    pub(crate) fn fence(&self) -> &Fence {
        &self.fence
    }

    /// This node's data.
    #[must_use]
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// The counts.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Counters and ledger as JSON, as the STATS command returns them.
    #[must_use]
    pub fn stats_json(&self) -> String {
        let metrics = &self.metrics;
        let group = |wanted: Group| {
            let of_group = Metric::ALL.iter().filter(|metric| metric.group() == wanted);
            of_group
                .map(|metric| (metric.name().to_owned(), metrics.total(*metric).into()))
                .collect::<serde_json::Map<String, serde_json::Value>>()
        };
        let (writes, reads) = self.coordinator.in_progress();
        let usage = self.replica.usage();
        let (hints, hint_bytes) = self.replica.hints.usage();
        let view = self.view.load();
        let backlog = self.anti_entropy.backlog(&self.fence);
        serde_json::json!({
            "address": view.member(view.me()).address.to_string(),
            "members_alive": view.alive_count(),
            "members_known": view.members().len(),
            "catching_up": !self.fence.is_active() || self.fence.is_aside(),
            "aside": self.fence.is_aside(),
            "leaving": self.is_leaving(),
            "ledger": {
                "entered": group(Group::Entered),
                "settled": group(Group::Settled),
                "lost": group(Group::Lost),
                // And the request for these numbers itself.
                "in_progress": self.coordinator.unanswered() + 1,
            },
            "repair": {
                // Nothing is left to do when this is 0 at every node.
                "unsettled": backlog.filling + backlog.strays + backlog.pulls + usize::from(!view.is_settled()),
                "filling_partitions": backlog.filling,
                "stray_partitions": backlog.strays,
                "pulls": backlog.pulls,
                "layout": format!("{:016x}", view.layout()),
                "layout_settled": view.is_settled(),
            },
            "operations": { "writes": writes, "reads": reads },
            "peer_lost": group(Group::PeerLost),
            "counters": group(Group::Other),
            "memory": {
                "limit_bytes": self.budget.limit_bytes() + PROCESS_BYTES,
                "budget_bytes": self.budget.limit_bytes(),
                "used_bytes": self.budget.used_bytes(),
                "keys": usage.keys,
                "tombstones": usage.tombstones,
                "payload_bytes": usage.payload_bytes,
                "engine_bytes": usage.held_bytes,
                "hints": hints,
                "hint_bytes": hint_bytes,
                "reply_cache_bytes": self.coordinator.reply_cache_bytes(),
            },
        })
        .to_string()
    }

    /// The request path's settings, for planting bugs.
    #[cfg(test)]
    pub(crate) fn plant(&mut self, bugs: crate::sim::Bugs) {
        self.coordinator.plant(bugs, self.me);
        self.replica.hints.keeps_older.store(bugs.hint_keeps_older, Ordering::Relaxed);
        self.replica.bugs.get_or_init(|| bugs);
    }
}
