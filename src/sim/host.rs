//! One simulated machine: a node's two planes, its receive queues, and what can happen to a process.
//!
//! The data plane and the control plane are two threads that take turns in virtual time. Each works
//! off one thing at a time and is busy meanwhile, so queues exist. Datagrams are sorted into lanes by
//! their first bytes, as the kernel does it, and each lane's buffer is bounded. A *paused* process
//! keeps its memory and its queues (SIGSTOP); a *down* one has lost both.

use super::Bugs;
use super::network::Place;
use crate::config::Config;
use crate::control::{Control, Planes};
use crate::ids::{MemberId, Version};
use crate::metrics::{Group, Metric, Metrics};
use crate::node::{Birth, Node};
use crate::outbox::{Datagram, Outbox};
use crate::peer::{GOSSIP_MAGIC, PEER_MAGIC};
use crate::time::{Duration, Instant};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use violet_client::Key;
use violet_link::Dice;

/// What a receive buffer holds, as the kernel counts: payload and what it keeps beside it.
const QUEUE_BYTES_MAX: usize = 2 * 1024 * 1024;
const DATAGRAM_OVERHEAD_BYTES: usize = 768;
/// What one datagram costs its thread.
const HANDLE_MIN: Duration = Duration::from_micros(5);
const HANDLE_MAX: Duration = Duration::from_micros(20);
/// As in the server: no two ticks closer than this.
const TICK_INTERVAL_MIN: Duration = Duration::from_millis(1);
/// How often a starved thread loses its core, per million steps.
const STARVED_STEPS: u32 = 30_000;
/// After a pause the threads come back in any order within this time.
const RESUME_WITHIN: Duration = Duration::from_millis(2);

/// Which thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Plane {
    /// Listener and workers.
    Data,
    /// The controller.
    Control,
}

/// What a machine's process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs.
    Up,
    /// It was stopped and can go on.
    Paused,
    /// There is none.
    Down,
}

#[derive(Debug)]
struct Queued {
    from: SocketAddr,
    received_at: Instant,
    bytes: Box<[u8]>,
}

#[derive(Debug, Default)]
struct Queue {
    datagrams: VecDeque<Queued>,
    bytes: usize,
}

impl Queue {
    /// `false` when the buffer is full.
    fn push(&mut self, datagram: Queued) -> bool {
        let cost = datagram.bytes.len() + DATAGRAM_OVERHEAD_BYTES;
        if QUEUE_BYTES_MAX < self.bytes + cost {
            return false;
        }
        self.bytes += cost;
        self.datagrams.push_back(datagram);
        true
    }

    fn pop(&mut self) -> Option<Queued> {
        let datagram = self.datagrams.pop_front()?;
        self.bytes -= datagram.bytes.len() + DATAGRAM_OVERHEAD_BYTES;
        Some(datagram)
    }

    fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    busy_until: Instant,
    ticked_at: Instant,
    /// The one wake-up that counts; others in the world's queue are stale.
    wakes_at: Instant,
    /// Back from a pause it looks at its deadlines before its queue.
    ticks_first: bool,
}

impl Thread {
    fn new(now: Instant) -> Self {
        Self { busy_until: now, ticked_at: Instant::ZERO, wakes_at: Instant::FAR, ticks_first: false }
    }
}

/// A running (or paused) process.
#[derive(Debug)]
pub struct Process {
    /// Its data plane.
    pub node: Arc<Node>,
    control: Control,
    /// Its counts.
    pub metrics: Arc<Metrics>,
    /// What it wants sent.
    pub outbox: Outbox,
    data: Thread,
    controller: Thread,
}

/// What a step leads to.
#[derive(Clone, Copy, Debug)]
pub struct Stepped {
    /// When what it wants sent leaves.
    pub leaves_at: Instant,
    /// When the thread has something to do again.
    pub next_at: Instant,
    /// It worked off a datagram of this many bytes.
    pub handled: Option<u64>,
}

/// The loss ledger of one process, and what it says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Requests that entered.
    pub entered: u64,
    /// Answered or passed on.
    pub settled: u64,
    /// Dropped, by reason.
    pub lost: u64,
    /// Neither.
    pub in_progress: u64,
    /// Members that it takes to be alive.
    pub members_alive: usize,
    /// It is fenced.
    pub catching_up: bool,
    /// Hints that it keeps.
    pub hints: usize,
    /// Partitions that are not compared, not handed over or being copied, and an unsettled layout.
    pub unsettled: u64,
}

/// What a host is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Settings of the node; its address is filled in.
    pub config: Config,
    /// How far its clock is ahead, in nanoseconds.
    pub skew_nanos: i64,
    /// Bugs planted in it (test builds only).
    pub bugs: Bugs,
}

/// One machine.
#[derive(Debug)]
pub struct Host {
    /// Its address.
    pub address: SocketAddr,
    /// What its process is doing.
    pub state: State,
    /// How many processes it has had.
    pub births: u32,
    /// The process.
    pub process: Option<Process>,
    /// Each step is late by up to this, now and then.
    pub starved_by: Duration,
    /// Back from a pause since then.
    pub resumed_at: Instant,
    /// It left as planned, or is not coming back: nobody waits for it.
    pub is_gone: bool,
    /// What its process reads when it starts: where to look for others.
    pub members: Vec<SocketAddr>,
    plan: Plan,
    dice: Dice,
    peers: Queue,
    clients: Queue,
    gossip: Queue,
    peers_turn: bool,
}

impl Host {
    /// A machine without a process.
    #[must_use]
    pub fn new(number: usize, mut plan: Plan, members: Vec<SocketAddr>, seed: u64) -> Self {
        let address = Place::Node(number).address();
        plan.config.listen = address;
        Self {
            address,
            state: State::Down,
            births: 0,
            process: None,
            starved_by: Duration::ZERO,
            resumed_at: Instant::ZERO,
            is_gone: false,
            members,
            plan,
            dice: Dice::of_part(seed, "host", number as u64),
            peers: Queue::default(),
            clients: Queue::default(),
            gossip: Queue::default(),
            peers_turn: true,
        }
    }

    fn local(&self, now: Instant) -> Instant {
        Instant::from_nanos(now.as_nanos().saturating_add_signed(self.plan.skew_nanos))
    }

    fn global(&self, local: Instant) -> Instant {
        if local == Instant::FAR {
            return local;
        }
        Instant::from_nanos(local.as_nanos().saturating_add_signed(-self.plan.skew_nanos))
    }

    /// Starts a process that knows nothing; one that runs is killed first.
    pub fn start(&mut self, now: Instant) {
        self.crash();
        self.is_gone = false;
        self.births += 1;
        let birth = Birth {
            now: self.local(now),
            pid: self.births,
            seed: self.dice.roll(),
            cluster_key: *b"a key that only simulations use.",
            members: self.members.clone(),
            large_pages: false,
            sites: std::collections::BTreeMap::new(),
        };
        let metrics = Arc::new(Metrics::default());
        let outbox = Outbox::new(metrics.sheet());
        let Planes { node, control } = start(&self.plan, &birth, Arc::clone(&metrics));
        let (data, controller) = (Thread::new(now), Thread::new(now));
        self.process = Some(Process { node, control, metrics, outbox, data, controller });
        self.state = State::Up;
    }

    /// Kills the process: memory and queues are lost.
    pub fn crash(&mut self) {
        self.state = State::Down;
        self.process = None;
        (self.peers, self.clients, self.gossip) = <(Queue, Queue, Queue)>::default();
    }

    /// Stops the process (SIGSTOP).
    pub fn pause(&mut self) {
        if self.state == State::Up {
            self.state = State::Paused;
        }
    }

    /// Lets it go on (SIGCONT); returns when each thread does.
    pub fn resume(&mut self, now: Instant) -> Option<[(Plane, Instant); 2]> {
        let process = self.process.as_mut().filter(|_| self.state == State::Paused)?;
        self.state = State::Up;
        self.resumed_at = now;
        for thread in [&mut process.data, &mut process.controller] {
            thread.busy_until = now + self.dice.time(Duration::ZERO, RESUME_WITHIN);
            thread.wakes_at = Instant::FAR;
        }
        process.data.ticks_first = self.dice.chance(500_000);
        Some([(Plane::Data, process.data.busy_until), (Plane::Control, process.controller.busy_until)])
    }

    /// Another machine asks by the bulk transport.
    pub fn answer_bulk(&self, from: SocketAddr, request: &[u8]) -> Option<Vec<u8>> {
        let mut response = Vec::new();
        let process = self.process.as_ref()?;
        let is_answer = process.node.answer_bulk(MemberId::of(from), request, &mut response);
        is_answer.then_some(response)
    }

    /// What became of a question that this machine asked.
    pub fn on_bulk(&mut self, now: Instant, ticket: u64, response: Option<&[u8]>) {
        let local = self.local(now);
        if let Some(process) = &mut self.process {
            process.control.on_bulk(local, ticket, response, &mut process.outbox);
        }
    }

    /// A datagram reaches the machine. Returns the thread that it is for, unless nobody gets it.
    pub fn receive(&mut self, now: Instant, from: SocketAddr, bytes: Box<[u8]>) -> Option<Plane> {
        let received_at = self.local(now);
        let process = self.process.as_ref()?;
        let (queue, plane) = if bytes.starts_with(&PEER_MAGIC) {
            (&mut self.peers, Plane::Data)
        } else if bytes.starts_with(&GOSSIP_MAGIC) {
            (&mut self.gossip, Plane::Control)
        } else {
            (&mut self.clients, Plane::Data)
        };
        if !queue.push(Queued { from, received_at, bytes }) {
            process.outbox.count(Metric::KernelDrops);
            return None;
        }
        Some(plane)
    }

    /// Notes a wake-up of a thread; `false` when an earlier one is planned already.
    pub fn plan_wake(&mut self, plane: Plane, at: Instant) -> bool {
        let Some(thread) = self.thread_mut(plane) else { return false };
        if thread.wakes_at <= at {
            return false;
        }
        thread.wakes_at = at;
        true
    }

    /// Whether this wake-up is the one that was planned last.
    pub fn take_wake(&mut self, plane: Plane, at: Instant) -> bool {
        let Some(thread) = self.thread_mut(plane) else { return false };
        let counts = thread.wakes_at == at;
        if counts {
            thread.wakes_at = Instant::FAR;
        }
        counts
    }

    /// Since when (or until when) a thread is free.
    pub fn busy_until(&mut self, plane: Plane) -> Instant {
        self.thread_mut(plane).map_or(Instant::FAR, |thread| thread.busy_until)
    }

    fn thread_mut(&mut self, plane: Plane) -> Option<&mut Thread> {
        let process = self.process.as_mut()?;
        Some(match plane {
            Plane::Data => &mut process.data,
            Plane::Control => &mut process.controller,
        })
    }

    /// Lets a thread do one thing. What it wants sent is in the process's outbox.
    pub fn step(&mut self, plane: Plane, now: Instant) -> Option<Stepped> {
        if self.state != State::Up {
            return None;
        }
        let busy_until = self.busy_until(plane);
        if now < busy_until {
            return Some(Stepped { leaves_at: now, next_at: busy_until, handled: None });
        }
        if !self.starved_by.is_zero() && self.dice.chance(STARVED_STEPS) {
            return Some(self.lose_core(now));
        }
        match plane {
            Plane::Data => self.step_data(now),
            Plane::Control => self.step_control(now),
        }
    }

    fn lose_core(&mut self, now: Instant) -> Stepped {
        let until = now + self.dice.time(Duration::ZERO, self.starved_by);
        for plane in [Plane::Data, Plane::Control] {
            if let Some(thread) = self.thread_mut(plane) {
                thread.busy_until = thread.busy_until.max(until);
            }
        }
        Stepped { leaves_at: now, next_at: until, handled: None }
    }

    /// One datagram, the lanes in turn, and the tick if it is due.
    fn step_data(&mut self, now: Instant) -> Option<Stepped> {
        let local = self.local(now);
        let cost = self.dice.time(HANDLE_MIN, HANDLE_MAX);
        let ticks_first = self.process.as_ref()?.data.ticks_first;
        let datagram = if ticks_first { None } else { self.take_datagram() };
        let process = self.process.as_mut()?;
        let mut done_at = now;
        if let Some(queued) = &datagram {
            let is_peer = queued.bytes.starts_with(&PEER_MAGIC);
            process.outbox.count(if is_peer { Metric::PeerDatagrams } else { Metric::ClientDatagrams });
            let Queued { from, received_at, ref bytes } = *queued;
            process.node.handle(local, &Datagram { from, received_at, bytes }, &mut process.outbox);
            done_at = now + cost;
        }
        let tick_moment = process.node.next_deadline().max(process.data.ticked_at + TICK_INTERVAL_MIN);
        if ticks_first || tick_moment <= local {
            process.data.ticks_first = false;
            process.data.ticked_at = local;
            process.node.tick(local, &mut process.outbox);
            done_at = done_at + cost;
        }
        process.data.busy_until = done_at;
        let tick_moment = process.node.next_deadline().max(process.data.ticked_at + TICK_INTERVAL_MIN);
        let is_idle = self.peers.is_empty() && self.clients.is_empty();
        let next_at = if is_idle { self.global(tick_moment).max(done_at) } else { done_at };
        let handled = datagram.map(|queued| queued.bytes.len() as u64);
        Some(Stepped { leaves_at: done_at, next_at, handled })
    }

    fn take_datagram(&mut self) -> Option<Queued> {
        self.peers_turn = !self.peers_turn;
        if self.peers_turn {
            self.clients.pop().or_else(|| self.peers.pop())
        } else {
            self.peers.pop().or_else(|| self.clients.pop())
        }
    }

    /// All gossip that waits, then the tick if it is due: a refutation must come before the verdict.
    fn step_control(&mut self, now: Instant) -> Option<Stepped> {
        let local = self.local(now);
        let mut done_at = now;
        let mut handled = 0;
        let process = self.process.as_mut()?;
        while let Some(Queued { from, received_at, bytes }) = self.gossip.pop() {
            process.outbox.count(Metric::GossipDatagrams);
            let datagram = Datagram { from, received_at, bytes: &bytes };
            process.control.handle(local, &datagram, &mut process.outbox);
            done_at = done_at + self.dice.time(HANDLE_MIN, HANDLE_MAX);
            handled += bytes.len() as u64;
        }
        let tick_moment =
            process.control.next_deadline().max(process.controller.ticked_at + TICK_INTERVAL_MIN);
        if tick_moment <= local {
            process.controller.ticked_at = local;
            process.control.tick(local, &mut process.outbox);
            done_at = done_at + HANDLE_MAX;
        }
        process.controller.busy_until = done_at;
        let tick_moment =
            process.control.next_deadline().max(process.controller.ticked_at + TICK_INTERVAL_MIN);
        let next_at = self.global(tick_moment).max(done_at);
        Some(Stepped { leaves_at: done_at, next_at, handled: (handled != 0).then_some(handled) })
    }

    /// What this machine holds under a key, if anything: the version, and the value unless removed.
    #[must_use]
    pub fn record(&self, key: &Key) -> Option<(Version, Option<Vec<u8>>)> {
        let node = &self.process.as_ref()?.node;
        let partition = node.view().partition_of(key.as_bytes());
        let mut value = Vec::new();
        let meta = node.replica().read(partition, key, &mut value)?;
        Some((meta.version, (!meta.removed).then_some(value)))
    }

    /// The version that this machine holds under a key, as a value or as the mark of a removal.
    #[must_use]
    pub fn version_of(&self, key: &Key) -> Option<Version> {
        let node = &self.process.as_ref()?.node;
        let partition = node.view().partition_of(key.as_bytes());
        node.replica().meta(partition, key).map(|meta| meta.version)
    }

    /// The time up to which its process has forgotten everything.
    #[must_use]
    pub fn wiped_at(&self) -> u64 {
        self.process.as_ref().map_or(0, |process| process.node.replica().wiped_at())
    }

    /// Its process is on its way out.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.node.is_leaving())
    }

    /// The key's preference list as this machine sees it, and how many of it are replicas; the first
    /// coordinates.
    #[must_use]
    pub fn preference_list(&self, key: &Key) -> (Vec<SocketAddr>, usize) {
        let Some(process) = &self.process else { return (Vec::new(), 0) };
        let view = process.node.view();
        let partition = view.partition_of(key.as_bytes());
        let (primaries, fallbacks) = (view.primaries(partition), view.fallbacks(partition));
        let list = primaries.iter().chain(fallbacks).map(|index| view.member(*index).address);
        (list.collect(), primaries.len())
    }

    /// Who is alive, as this machine sees it.
    #[must_use]
    pub fn alive(&self) -> Vec<SocketAddr> {
        let Some(process) = &self.process else { return Vec::new() };
        let view = process.node.view();
        let alive = view.members().iter().filter(|member| member.state == crate::cluster::MemberState::Alive);
        alive.map(|member| member.address).collect()
    }

    /// How many hints it keeps for a machine.
    #[must_use]
    pub fn hints_for(&self, owner: SocketAddr) -> usize {
        let process = self.process.as_ref();
        process.map_or(0, |process| process.node.replica().hints.count_for(MemberId::of(owner)))
    }

    /// The ledger, and what the process says of itself.
    #[must_use]
    pub fn report(&self) -> Option<Report> {
        let process = self.process.as_ref()?;
        let stats: serde_json::Value =
            serde_json::from_str(&process.node.stats_json()).expect("the core writes JSON");
        Some(Report {
            entered: process.metrics.group_total(Group::Entered),
            settled: process.metrics.group_total(Group::Settled),
            lost: process.metrics.group_total(Group::Lost),
            // These numbers count the request for them, which nobody has made here.
            in_progress: stats["ledger"]["in_progress"].as_u64().unwrap_or(u64::MAX) - 1,
            members_alive: process.node.view().alive_count(),
            catching_up: stats["catching_up"] == true,
            hints: process.node.replica().hints.usage().0,
            unsettled: stats["repair"]["unsettled"].as_u64().unwrap_or(u64::MAX),
        })
    }
}

impl Report {
    /// Whether every request that entered is accounted for.
    #[must_use]
    pub fn adds_up(&self) -> bool {
        self.entered == self.settled + self.lost + self.in_progress
    }
}

#[cfg(test)]
fn start(plan: &Plan, birth: &Birth, metrics: Arc<Metrics>) -> Planes {
    Control::start_with(&plan.config, birth, metrics, |node| node.plant(plan.bugs))
}

#[cfg(not(test))]
fn start(plan: &Plan, birth: &Birth, metrics: Arc<Metrics>) -> Planes {
    Control::start(&plan.config, birth, metrics)
}
