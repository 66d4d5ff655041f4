//! The request path: what a front end does with a client's datagram, and how the coordinator drives
//! one operation over the replicas.
//!
//! [`Coordinator::on_datagram`] decodes and dispatches. A mutation goes to the first usable member of
//! its key's preference list (`put`), a read fans out from the front end (`get`, `siblings`). What must wait for
//! another member sits in a [`pending`] table with a deadline. Every request is settled in the loss
//! ledger exactly once: answered, passed on, or dropped under one reason.

pub mod answer;
pub mod clients;
pub mod directory;
pub mod get;
pub mod holder;
pub mod late;
pub mod mend;
pub mod pending;
pub mod put;
pub mod read_op;
pub mod recall;
pub mod replicate;
pub mod reply_cache;
pub mod siblings;

use crate::cluster::ClusterView;
use crate::cluster::fence::Fence;
use crate::cluster::link::Link;
use crate::config::{Config, FanOut, ReadRule, ReplyMode, WriteRule};
use crate::ids::{HybridClock, MemberId, RequestKey, Token};
use crate::metrics::Metric;
use crate::outbox::{Datagram, Outbox};
use crate::peer::{ClientAddress, Message};
use crate::replica::Replica;
use crate::time::{Duration, Instant, UsualDuration};
use clients::Clients;
use pending::{Next, Pending};
use put::Change;
use read_op::ReadOp;
use recall::RecallOp;
use replicate::WriteOp;
use reply_cache::{Admission, Progress, ReplyCache};
use siblings::Gather;
use smallvec::SmallVec;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use violet_client::wire::{self, Accept, Format};
use violet_client::{Key, MessageId, Operation, Request, Response, Status};

/// As many as answer for a key, which is seldom more than four: then they need no memory of their own.
type Few<T> = SmallVec<[T; 4]>;

/// Most members that a request passes through on its way to its coordinator: all holders, and one more.
const HOPS_MAX: u8 = crate::cluster::REPLICAS_MAX as u8 + 1;
/// The word that a read was answered is held back for this long at most, and for a third of `hedge-after-ms`.
const ANSWER_HOLD_MAX: Duration = Duration::from_millis(10);
/// Most requests that are held while this node looks whether it is cut off; of 10 KB each they take 10 MB.
const HELD_MAX: usize = 1_024;
/// One member may have one in so many of the operations in progress waiting for it.
const PEER_SHARE: usize = 8;

/// The settings of the request path, as they are used.
#[derive(Clone, Debug)]
pub struct Settings {
    replicas: usize,
    write_rule: WriteRule,
    read_rule: ReadRule,
    fan_out: FanOut,
    reply_mode: ReplyMode,
    accept: Accept,
    hint_after: Duration,
    hedge_after: Duration,
    /// For how long a front end may wait for the word that its read was answered.
    answer_hold: Duration,
    suspect_after: Duration,
    patience: Duration,
    reply_window: Duration,
    /// Most operations that wait for one member.
    peer_pending_max: i64,
    /// Planted bugs, for proving that the simulator's checker finds them.
    #[cfg(test)]
    pub bugs: crate::sim::Bugs,
}

impl Settings {
    /// The part of the configuration that the request path needs.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            replicas: config.replicas,
            write_rule: config.write_rule,
            read_rule: config.read_rule,
            fan_out: config.fan_out,
            reply_mode: config.reply_mode,
            accept: match config.protocol {
                crate::config::Protocol::Auto => Accept::Auto,
                crate::config::Protocol::Raw => Accept::Raw,
                crate::config::Protocol::Protobuf => Accept::Protobuf,
            },
            hint_after: Duration::from_millis(config.hint_after_ms),
            hedge_after: Duration::from_millis(config.hedge_after_ms),
            answer_hold: (Duration::from_millis(config.hedge_after_ms) / 3).min(ANSWER_HOLD_MAX),
            suspect_after: Duration::from_millis(config.suspect_after_ms),
            patience: Duration::from_millis(config.patience_ms),
            reply_window: Duration::from_millis(config.reply_window_ms),
            peer_pending_max: i64::try_from(config.pending_max / PEER_SHARE).unwrap_or(i64::MAX),
            #[cfg(test)]
            bugs: crate::sim::Bugs::default(),
        }
    }

    /// A majority of the replicas.
    fn majority(&self, primaries: usize) -> usize {
        self.replicas.min(primaries) / 2 + 1
    }
}

/// What a handler works with: the moment, the cluster, and where to put what is to be sent.
#[derive(Debug)]
pub struct Turn<'a> {
    /// Now.
    pub now: Instant,
    /// The cluster as this turn sees it.
    pub view: &'a ClusterView,
    /// A member that has been silent for longer is bypassed. Longer than the setting while this node is
    /// late itself: answers may be waiting to be read (Lifeguard, Dadgar et al. 2017).
    pub suspect_after: Duration,
    /// What is to be sent and counted.
    pub outbox: &'a mut Outbox,
}

impl Turn<'_> {
    /// How long the way to a member and back takes; zero when that is not known.
    fn round_trip(&self, member: MemberId) -> Duration {
        self.view.index_of(member).map_or(Duration::ZERO, |index| self.view.member(index).peer.round_trip())
    }

    /// The longest of the ways to these members.
    fn farthest(&self, members: impl Iterator<Item = MemberId>) -> Duration {
        members.map(|member| self.round_trip(member)).max().unwrap_or_default()
    }
}

/// Who asked, and how it can be answered.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// Where it sent from.
    address: SocketAddr,
    format: Format,
    id: MessageId,
    /// The front end that passed the request on; `None` when this node is it.
    front_end: Option<MemberId>,
    /// It takes replies only from its front end.
    needs_proxy: bool,
}

/// What only the node as a whole can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRequest {
    /// Its counts.
    Stats,
    /// Hand everything over and go.
    Leave,
}

/// A mutation or read on its way through this node.
#[derive(Clone, Copy, Debug)]
struct Arrival<'a> {
    client: Client,
    request: RequestKey,
    datagram: &'a [u8],
    waited: Duration,
    hops: u8,
}

/// A client's request that waits until this node, cut off, knows whether it still is.
#[derive(Debug)]
struct Held {
    client: Client,
    received_at: Instant,
    datagram: Box<[u8]>,
}

/// Drives requests; shared by all workers.
#[derive(Debug)]
pub struct Coordinator {
    /// The settings in force.
    pub settings: Settings,
    pid: u32,
    link: Link,
    clock: HybridClock,
    replica: Arc<Replica>,
    fence: Arc<Fence>,
    reply_cache: ReplyCache,
    clients: Clients,
    writes: Pending<WriteOp>,
    recalls: Pending<RecallOp>,
    reads: Pending<ReadOp>,
    gathers: Pending<Gather>,
    held: Pending<Held>,
    /// Time until a replica acknowledges a write.
    usual_ack: UsualDuration,
    /// When a read last went out to replicas, in nanoseconds.
    last_read_at: AtomicU64,
    /// When somebody has to be told at last of a read that was answered, in nanoseconds.
    tell_at: AtomicU64,
    /// Reads that may still be hedged, in hundredths.
    hedge_credit: AtomicU64,
    /// Until when the budget for read repair is spent, in nanoseconds.
    mended_until: AtomicU64,
}

/// What a coordinator is built from.
#[derive(Debug)]
pub struct Parts {
    /// Settings.
    pub settings: Settings,
    /// The operating system's process id.
    pub pid: u32,
    /// How frames are sent.
    pub link: Link,
    /// Assigns versions.
    pub clock: HybridClock,
    /// This node's data.
    pub replica: Arc<Replica>,
    /// Whether that data may be served.
    pub fence: Arc<Fence>,
    /// Records of mutations.
    pub reply_cache: ReplyCache,
    /// Most operations in progress.
    pub pending_max: usize,
    /// Seed of the tables' hashing.
    pub seed: u64,
}

impl Coordinator {
    /// A coordinator.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self {
            settings: parts.settings,
            pid: parts.pid,
            link: parts.link,
            clock: parts.clock,
            replica: parts.replica,
            fence: parts.fence,
            reply_cache: parts.reply_cache,
            clients: Clients::new(parts.seed),
            writes: Pending::new(parts.pending_max, parts.seed),
            recalls: Pending::new(parts.pending_max, parts.seed),
            reads: Pending::new(parts.pending_max, parts.seed),
            gathers: Pending::new(siblings::GATHERS_MAX.min(parts.pending_max), parts.seed),
            held: Pending::new(HELD_MAX.min(parts.pending_max), parts.seed),
            usual_ack: UsualDuration::default(),
            last_read_at: AtomicU64::new(0),
            tell_at: AtomicU64::new(u64::MAX),
            hedge_credit: AtomicU64::new(get::HEDGE_CREDIT_MAX),
            mended_until: AtomicU64::new(0),
        }
    }

    /// A client's datagram, at its front end. Returns what it asks of the node as a whole: only the
    /// caller sees the whole process. A node that has not joined does not know yet who holds what.
    pub fn on_datagram(&self, turn: &mut Turn<'_>, datagram: &Datagram<'_>) -> Option<(Client, NodeRequest)> {
        let waited = turn.now.since(datagram.received_at);
        if self.settings.patience < waited {
            turn.outbox.count(Metric::DroppedOld);
            return None;
        }
        let request = match wire::decode_request(datagram.bytes, self.settings.accept) {
            Ok(request) => request,
            Err(rejected) => {
                self.reject(turn, datagram.from, rejected);
                return None;
            }
        };
        let needs_proxy = match self.settings.reply_mode {
            ReplyMode::Direct => false,
            ReplyMode::Proxy => true,
            ReplyMode::Auto => self.clients.needs_proxy(turn.now, datagram.from.ip()),
        };
        let client = Client {
            address: datagram.from,
            format: request.format,
            id: request.id,
            front_end: None,
            needs_proxy,
        };
        let arrival = Arrival {
            client,
            request: RequestKey::of(datagram.bytes),
            datagram: datagram.bytes,
            waited,
            hops: 0,
        };
        turn.outbox.count(match request.operation {
            Operation::Put { .. } => Metric::RequestsPut,
            Operation::Get { .. } => Metric::RequestsGet,
            Operation::Remove { .. } => Metric::RequestsRemove,
            _ => Metric::RequestsOther,
        });
        match request.operation {
            Operation::GetStats => return Some((client, NodeRequest::Stats)),
            Operation::Leave => return Some((client, NodeRequest::Leave)),
            _ => {}
        }
        if request.operation.key().is_some() && !self.fence.has_joined() {
            turn.outbox.count(Metric::DroppedFenced);
            return None;
        }
        if let Some(time) = self.fence.holds_for().filter(|_| request.operation.key().is_some()) {
            self.hold(turn, &arrival, datagram.received_at, time);
            return None;
        }
        self.dispatch(turn, &arrival, &request);
        None
    }

    /// Keeps a request back for this long: this node is cut off, and looks whether it still is.
    fn hold(&self, turn: &mut Turn<'_>, arrival: &Arrival<'_>, received_at: Instant, time: Duration) {
        if self.held.is_full() {
            return self.shed(turn, &arrival.client, Metric::ShedPending);
        }
        turn.outbox.count(Metric::RequestsHeld);
        let held = Held { client: arrival.client, received_at, datagram: arrival.datagram.into() };
        self.held.insert(self.held.token(), turn.now + time, held);
    }

    /// Nobody was heard again while this request was held.
    fn serve_held(&self, turn: &mut Turn<'_>, token: Token) {
        let Some(((), Some(held))) = self.held.update(token, |_| (Next::Remove, ())) else { return };
        let request = wire::decode_request(&held.datagram, self.settings.accept);
        let request = request.expect("it was decoded before it was held");
        let arrival = Arrival {
            client: held.client,
            request: RequestKey::of(&held.datagram),
            datagram: &held.datagram,
            waited: turn.now.since(held.received_at),
            hops: 0,
        };
        self.dispatch(turn, &arrival, &request);
    }

    /// A request that another member's front end passed on.
    pub fn on_forward(
        &self,
        turn: &mut Turn<'_>,
        front_end: MemberId,
        client: ClientAddress,
        waited: Duration,
        hops: u8,
        datagram: &Datagram<'_>,
    ) {
        turn.outbox.count(Metric::ForwardsReceived);
        if !self.fence.has_joined() {
            return turn.outbox.count(Metric::DroppedFenced);
        }
        let waited = waited + turn.now.since(datagram.received_at);
        if self.settings.patience < waited {
            return turn.outbox.count(Metric::DroppedOld);
        }
        let Ok(request) = wire::decode_request(datagram.bytes, Accept::Auto) else {
            return turn.outbox.count(Metric::DroppedTooShort);
        };
        let arrival = Arrival {
            client: Client {
                address: client.address,
                format: request.format,
                id: request.id,
                front_end: Some(front_end),
                needs_proxy: client.needs_proxy,
            },
            request: RequestKey::of(datagram.bytes),
            datagram: datagram.bytes,
            waited,
            hops,
        };
        self.dispatch(turn, &arrival, &request);
    }

    fn dispatch(&self, turn: &mut Turn<'_>, arrival: &Arrival<'_>, request: &Request<'_>) {
        let mut answer = |response: Response<'_>| self.answer(turn, &arrival.client, &response);
        let response = Response::of_status(request.id, Status::Success);
        match request.operation {
            Operation::Put { key, value } => self.route_write(turn, arrival, key, Change::Put(value)),
            Operation::Remove { key } => self.route_write(turn, arrival, key, Change::Remove),
            Operation::PutWithContext { key, context, value } => {
                if siblings::is_possible(context, turn.now) {
                    return self.route_write(turn, arrival, key, Change::PutWithContext(context, value));
                }
                self.answer_status(turn, &arrival.client, Status::Malformed);
            }
            Operation::GetSiblings { key } => self.start_gather(turn, arrival, key),
            Operation::Get { key } => self.start_read(turn, arrival, key),
            Operation::Wipeout => self.wipe(turn, arrival),
            Operation::Shutdown => {
                self.answer(turn, &arrival.client, &response);
                turn.outbox.request_exit();
            }
            Operation::IsAlive => answer(response),
            Operation::GetPid => answer(Response { pid: i32::try_from(self.pid).ok(), ..response }),
            Operation::GetMembershipCount => {
                let count = i32::try_from(turn.view.alive_count()).ok();
                self.answer(turn, &arrival.client, &Response { membership_count: count, ..response });
            }
            Operation::GetMembershipList => {
                let text = directory::list_members(turn.view);
                self.answer_text(turn, &arrival.client, &text);
            }
            Operation::Locate { key } => {
                let text = directory::locate(turn, &key);
                self.answer_text(turn, &arrival.client, &text);
            }
            Operation::GetPlacement { offset } => self.tell_placement(turn, arrival, offset),
            // The first two are answered by the node at the front end; nobody passes them on.
            Operation::GetStats | Operation::Leave | Operation::Unknown(_) => {
                answer(Response::of_status(request.id, Status::UnknownCommand));
            }
        }
    }

    /// Whether so many operations wait for a member that it gets no more: it is stuck, or nearly so, and must not
    /// fill the tables of those who are well.
    fn is_full(&self, turn: &Turn<'_>, member: u16) -> bool {
        #[cfg(test)]
        if self.settings.bugs.no_bound_per_peer {
            return false;
        }
        self.settings.peer_pending_max <= turn.view.member(member).peer.in_flight()
    }

    /// Looks a mutation up before it starts. `Ok` = it is new and now recorded as running, or it was
    /// replicated by a coordinator that may not have finished it (`true`). `Err` = it is settled.
    fn admit(&self, turn: &mut Turn<'_>, arrival: &Arrival<'_>, token: Token) -> Result<bool, ()> {
        match self.reply_cache.begin(turn.now, arrival.request, token) {
            Admission::New => Ok(false),
            #[cfg(test)]
            Admission::Known(_) if self.settings.bugs.no_dedup => Ok(false),
            Admission::Known(Progress::Replicated) => {
                self.reply_cache.record(turn.now, arrival.request, Progress::Running(token));
                Ok(true)
            }
            Admission::Known(Progress::Running(_)) => {
                turn.outbox.count(Metric::DroppedDuplicate);
                Err(())
            }
            Admission::Known(Progress::Done(status)) => {
                self.answer_again(turn, &arrival.client, arrival.datagram, status);
                Err(())
            }
            Admission::Full => {
                self.shed(turn, &arrival.client, Metric::ShedPending);
                Err(())
            }
        }
    }

    /// WIPEOUT: this node forgets what it holds, once per request.
    fn wipe(&self, turn: &mut Turn<'_>, arrival: &Arrival<'_>) {
        if self.admit(turn, arrival, self.writes.token()).is_err() {
            return;
        }
        self.replica.wipe(self.clock.next(turn.now));
        // Whoever wipes one node wipes all: what they refused before says nothing of what comes.
        turn.view.members().iter().for_each(|member| member.peer.forget_refused_space());
        self.reply_cache.record(turn.now, arrival.request, Progress::Done(Status::Success));
        self.answer(turn, &arrival.client, &Response::of_status(arrival.client.id, Status::Success));
    }

    /// Passes a request on to another member, which answers the client.
    fn forward(&self, turn: &mut Turn<'_>, to: u16, arrival: &Arrival<'_>) {
        if HOPS_MAX <= arrival.hops {
            return turn.outbox.count(Metric::DroppedHops);
        }
        turn.outbox.count(Metric::Forwarded);
        let client =
            ClientAddress { address: arrival.client.address, needs_proxy: arrival.client.needs_proxy };
        let message = Message::Forward {
            client,
            front_end: arrival.client.front_end.unwrap_or(turn.view.member(turn.view.me()).id),
            waited_ms: u32::try_from(arrival.waited.as_millis()).unwrap_or(u32::MAX),
            hops: arrival.hops + 1,
            datagram: arrival.datagram,
        };
        self.link.send(turn.now, turn.view, to, &message, turn.outbox);
    }

    /// Works off the deadlines that have come, a bounded number of them.
    pub fn tick(&self, turn: &mut Turn<'_>) {
        const DUE_MAX: usize = 1_024;
        self.tell_the_untold(turn);
        for _ in 0..DUE_MAX {
            let Some(token) = self.writes.due(turn.now) else { break };
            self.on_write_timeout(turn, token);
        }
        for _ in 0..DUE_MAX {
            let Some(token) = self.recalls.due(turn.now) else { break };
            self.on_recall_timeout(turn, token);
        }
        for _ in 0..DUE_MAX {
            let Some(token) = self.reads.due(turn.now) else { break };
            self.on_read_timeout(turn, token);
        }
        for _ in 0..DUE_MAX {
            let Some(token) = self.gathers.due(turn.now) else { break };
            self.on_gather_timeout(turn, token);
        }
        for _ in 0..DUE_MAX {
            let Some(token) = self.held.due(turn.now) else { break };
            self.serve_held(turn, token);
        }
    }

    /// This node was away: reads and questions that were open then are given up. Writes go on; their
    /// versions are old and lose against newer ones.
    pub fn abandon(&self, turn: &mut Turn<'_>) {
        for op in self.reads.drain() {
            self.release(turn, &op);
            turn.outbox.count(Metric::DroppedFenced);
        }
        for _ in self.gathers.drain() {
            turn.outbox.count(Metric::DroppedFenced);
        }
        for _ in self.held.drain() {
            turn.outbox.count(Metric::DroppedFenced);
        }
        for op in self.recalls.drain() {
            self.give_up(turn, &op);
        }
    }

    /// Gives back the memory of records that are too old, also where nobody reads.
    pub fn expire(&self, now: Instant) {
        self.reply_cache.expire(now);
    }

    /// The earliest deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let reads = self.reads.earliest().min(self.gathers.earliest()).min(self.held.earliest());
        let tell_at = Instant::from_nanos(self.tell_at.load(Ordering::Relaxed));
        self.writes.earliest().min(reads).min(self.recalls.earliest()).min(tell_at)
    }

    /// Operations in progress: writes, reads.
    #[must_use]
    pub fn in_progress(&self) -> (usize, usize) {
        (self.writes.len(), self.reads.len() + self.gathers.len() + self.held.len())
    }

    /// Requests that entered and wait for other members: the ledger's remainder, counted by itself.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        let reads = self.reads.len() + self.gathers.len() + self.held.len();
        self.writes.count(WriteOp::is_unanswered) + reads + self.recalls.len()
    }

    /// Bytes taken by the reply cache.
    #[must_use]
    pub fn reply_cache_bytes(&self) -> usize {
        self.reply_cache.bytes()
    }

    /// Whether what this node holds of a partition is an answer: it has missed nothing, and misses nothing now.
    fn serves(&self, turn: &Turn<'_>, partition: u16) -> bool {
        self.fence.serves(partition) && turn.view.is_written_here(partition)
    }

    fn partition_of(turn: &Turn<'_>, key: &Key) -> u16 {
        turn.view.partition_of(key.as_bytes())
    }
}
