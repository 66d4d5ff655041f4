//! The listener: the one thread that receives clients' and members' datagrams.
//!
//! It polls the lanes, receives a batch at a time into pooled memory, the members' lane first and the
//! lanes in turn, and hands each batch to the workers. A small batch it works off itself while the
//! workers are idle, because waking one costs more than the work. And while the job channel is half
//! full it works, too, for each batch that it receives one: all hands are needed then, and the kernel's
//! buffers, which are far larger than the channel and cost us no memory, are the better place to
//! queue. What waits there is stamped, so requests that have become too old are still dropped before
//! any work. Of the clients' batches it takes the one that has waited longest, so that nobody is
//! overtaken; members' frames are worked off at once.
//!
//! With `inline-batch = 0` it works nothing off, and what finds no place in the channel is shed and
//! counted: clients when the channel is half full, members when it is full, gossip (which never enters
//! the channel) not at all. It never blocks either way. It also drives `tick`.
//!
//! With steered lanes it does not look into the datagrams; with a shared lane it looks at the first
//! four bytes and passes gossip on to the controller.

use super::alarm::{ALARM, Alarm};
use super::batch::{BatchPool, PooledBatch};
use super::controller::GossipInlet;
use super::job::{DataPlane, Job, Runner, Shared};
use super::transport;
use super::{is_gossip, is_peer};
use crate::metrics::Metric;
use crate::time::{Duration, Instant};
use crossbeam_channel::{Receiver, Sender, TrySendError};
use mio::{Events, Interest, Poll, Token};
use std::io;
use std::sync::Arc;

/// Longest sleep; nothing depends on it, since whoever sets an earlier deadline wakes the listener.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Shortest time between two ticks, so that a deadline that stays due cannot turn into a busy loop.
const TICK_INTERVAL_MIN: Duration = Duration::from_millis(1);
/// The token of the waker; lanes have their index.
pub(super) const WAKER: Token = Token(usize::MAX);

/// Which datagrams a receive socket gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intended {
    /// Frames of members.
    Peers,
    /// Everything that no member sends.
    Clients,
    /// Everything.
    All,
}

/// What the listener works off itself, of what it has received and what waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    /// Nothing: the batch is the workers'.
    None,
    /// The batch just received.
    This,
    /// One batch.
    One,
}

/// A receive socket and what is known of it.
pub(super) struct ReceiveLane {
    pub(super) intended: Intended,
    pub(super) receiver: transport::Receiver,
    /// Datagrams may be waiting. The poll tells only once, so this stays set until a batch came short.
    pub(super) is_ready: bool,
}

/// The listener's state.
pub(super) struct Listener<P> {
    pub(super) plane: Arc<P>,
    pub(super) poll: Poll,
    pub(super) alarm: Alarm,
    /// In the order in which they are served.
    pub(super) lanes: Vec<ReceiveLane>,
    pub(super) gossip: GossipInlet,
    pub(super) jobs: Sender<Job>,
    /// The other end of the channel: what the workers have not got to yet.
    pub(super) waiting: Receiver<Job>,
    pub(super) pool: BatchPool,
    /// The batch to receive into next; always empty between two calls.
    pub(super) batch: PooledBatch,
    pub(super) inline_batch: usize,
    pub(super) shared: Arc<Shared>,
    pub(super) runner: Runner,
    pub(super) ticked_at: Instant,
}

impl<P: DataPlane> Listener<P> {
    /// Listens until the node stops.
    ///
    /// # Errors
    /// When the system cannot poll.
    pub(super) fn run(mut self) -> io::Result<()> {
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            self.poll.registry().register(lane.receiver.socket_mut(), Token(index), Interest::READABLE)?;
        }
        let mut events = Events::with_capacity(16);
        while !self.shared.is_stopping() {
            self.sleep(&mut events)?;
            while self.serve_lanes() && !self.shared.is_stopping() {}
        }
        Ok(())
    }

    fn sleep(&mut self, events: &mut Events) -> io::Result<()> {
        let now = self.runner.clock.now();
        let until = self.tick_moment().min(now + SLEEP_MAX);
        let until = self.shared.announce_sleep(until, || self.tick_moment());
        let timeout = self.alarm.set(now, until);
        let result = self.poll.poll(events, timeout);
        self.shared.listener_is_awake();
        match result {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            Err(_) | Ok(()) => {}
        }
        for event in events.iter() {
            match event.token() {
                WAKER => {}
                ALARM => self.alarm.rang(),
                Token(lane) => self.lanes[lane].is_ready = true,
            }
        }
        Ok(())
    }

    fn tick_moment(&self) -> Instant {
        self.plane.next_deadline().max(self.ticked_at + TICK_INTERVAL_MIN)
    }

    /// One batch of each lane, and the tick if it is due; returns whether more may be waiting.
    fn serve_lanes(&mut self) -> bool {
        for index in 0..self.lanes.len() {
            if self.lanes[index].is_ready {
                self.receive(index);
            }
        }
        let now = self.runner.clock.now();
        if self.tick_moment() <= now {
            self.ticked_at = now;
            self.runner.tick(&*self.plane);
        }
        self.lanes.iter().any(|lane| lane.is_ready)
    }

    fn receive(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        let intended = lane.intended;
        let (more, lost) = lane.receiver.receive(&self.runner.clock, &mut self.batch);
        lane.is_ready = more;
        self.runner.outbox.count_many(Metric::KernelDrops, lost);
        self.sort_out(intended);
        if self.batch.is_empty() {
            return;
        }
        match self.share() {
            Share::None => self.hand_over(intended),
            Share::This => self.run_this(),
            Share::One => self.run_one(intended),
        }
    }

    /// What this thread works off itself; see the file's introduction.
    fn share(&self) -> Share {
        if self.inline_batch == 0 {
            return Share::None;
        }
        if self.is_half_full() {
            return Share::One;
        }
        let is_small = self.batch.len() <= self.inline_batch;
        if is_small && self.shared.no_job_is_open() { Share::This } else { Share::None }
    }

    fn run_this(&mut self) {
        self.runner.outbox.count(Metric::BatchesInline);
        self.runner.run_batch(&*self.plane, &self.batch);
        self.batch.clear();
    }

    /// Works off the batch that has waited longest, and queues the one just received behind the others.
    fn run_one(&mut self, intended: Intended) {
        let oldest = if intended == Intended::Peers { None } else { self.waiting.try_recv().ok() };
        let Some(oldest) = oldest else { return self.run_this() };
        let is_queued = self.enqueue();
        self.runner.outbox.count(Metric::BatchesInline);
        self.runner.run_batch(&*self.plane, &oldest.batch);
        drop(oldest);
        self.shared.job_closed();
        if !is_queued {
            self.run_this();
        }
    }

    fn is_half_full(&self) -> bool {
        let capacity = self.jobs.capacity().expect("the job channel is bounded");
        capacity <= self.jobs.len() * 2
    }

    /// Counts what has come and takes out what is not for the workers.
    fn sort_out(&mut self, intended: Intended) {
        let Self { batch, gossip, runner, .. } = self;
        let outbox = &runner.outbox;
        batch.retain(|datagram, truncated| {
            if truncated {
                outbox.count(Metric::ClientDatagrams);
                outbox.count(Metric::DroppedTruncated);
                return false;
            }
            if intended == Intended::All && is_gossip(datagram.bytes) {
                gossip.pass_on(datagram, outbox);
                return false;
            }
            let is_peer = belongs_to_peer(intended, datagram.bytes);
            outbox.count(if is_peer { Metric::PeerDatagrams } else { Metric::ClientDatagrams });
            true
        });
    }

    /// Queues the batch as a job, less what must be shed.
    fn hand_over(&mut self, intended: Intended) {
        if self.is_half_full() {
            self.shed(intended, false);
            if self.batch.is_empty() {
                return;
            }
        }
        if !self.enqueue() {
            self.shed(intended, true);
        }
    }

    /// Queues the batch as a job; without room for it, keeps it and says so.
    fn enqueue(&mut self) -> bool {
        let Some(fresh) = self.pool.take() else { return false };
        let batch = std::mem::replace(&mut self.batch, fresh);
        self.shared.job_opened();
        match self.jobs.try_send(Job { batch }) {
            Ok(()) => {
                self.runner.outbox.count(Metric::BatchesQueued);
                true
            }
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => {
                self.shared.job_closed();
                self.batch = job.batch;
                false
            }
        }
    }

    /// Sheds the clients' datagrams of the batch, and the members' too if `peers_too`.
    fn shed(&mut self, intended: Intended, peers_too: bool) {
        let Self { batch, runner, .. } = self;
        batch.retain(|datagram, _| {
            let is_peer = belongs_to_peer(intended, datagram.bytes);
            if is_peer && !peers_too {
                return true;
            }
            runner.outbox.count(if is_peer { Metric::PeerShed } else { Metric::ShedFull });
            false
        });
    }
}

fn belongs_to_peer(intended: Intended, bytes: &[u8]) -> bool {
    match intended {
        Intended::Peers => true,
        Intended::Clients => false,
        Intended::All => is_peer(bytes),
    }
}
