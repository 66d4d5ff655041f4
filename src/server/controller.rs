//! The controller's thread: drives the control plane.
//!
//! It has the gossip lane to itself, so that heartbeats never queue behind requests. In every round it
//! reads *all* waiting gossip before it looks at deadlines: an expired suspicion must not win over the
//! refutation that is already in the buffer. A panic here ends the process: a node without membership
//! must not go on pretending.

use super::batch::Batch;
use super::bulk::BulkLine;
use super::job::{Runner, Shared};
use super::transport::Receiver;
use crate::control::Control;
use crate::metrics::Metric;
use crate::node::Node;
use crate::outbox::{Datagram, Outbox};
use crate::time::{Duration, Instant};
use mio::{Events, Interest, Poll, Token, Waker};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Longest sleep of the controller.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Most batches read before deadlines get their turn, so that a flood cannot stop the clock.
const BATCHES_A_ROUND_MAX: usize = 64;
/// How long a leaving node keeps telling the others.
const LEAVE_TIME: Duration = Duration::from_millis(300);
/// Frames on their way from the listener to the controller when the lane is shared.
const FRAMES_PASSED_ON_MAX: usize = 256;
/// Shortest time between two ticks, so that a deadline that stays due cannot turn into a busy loop.
const TICK_INTERVAL_MIN: Duration = Duration::from_millis(1);
/// The token of the gossip socket.
const GOSSIP: Token = Token(0);
/// The token of the waker.
pub(super) const WAKER: Token = Token(1);

/// What others ask of the controller.
#[derive(Debug)]
pub(super) enum Command {
    /// Leave the cluster; told when that is done.
    Leave(flume::Sender<()>),
    /// End the thread.
    Stop,
}

/// A gossip frame that the listener found on the shared lane.
#[derive(Debug)]
pub(super) struct PassedOn {
    from: SocketAddr,
    received_at: Instant,
    bytes: Box<[u8]>,
}

/// The listener's way to the controller.
#[derive(Debug)]
pub(super) struct GossipInlet {
    frames: flume::Sender<PassedOn>,
    waker: Arc<Waker>,
}

impl GossipInlet {
    /// A way, and its end at the controller.
    pub(super) fn new(waker: Arc<Waker>) -> (Self, flume::Receiver<PassedOn>) {
        let (frames, end) = flume::bounded(FRAMES_PASSED_ON_MAX);
        (Self { frames, waker }, end)
    }

    /// Copies a frame to the controller. This allocates; gossip is rare.
    pub(super) fn pass_on(&self, datagram: &Datagram<'_>, outbox: &Outbox) {
        let Datagram { from, received_at, bytes } = *datagram;
        if self.frames.try_send(PassedOn { from, received_at, bytes: bytes.into() }).is_err() {
            outbox.count(Metric::GossipDatagrams);
            outbox.count(Metric::GossipRejected);
            return;
        }
        // A failed wake-up only delays the frame until the controller's sleep is over.
        let _ = self.waker.wake();
    }
}

/// The controller's state.
pub(super) struct Controller {
    pub(super) control: Control,
    pub(super) node: Arc<Node>,
    pub(super) poll: Poll,
    /// The gossip lane, when there is one.
    pub(super) lane: Option<Receiver>,
    /// Gossip from the shared lane.
    pub(super) passed_on: flume::Receiver<PassedOn>,
    pub(super) commands: flume::Receiver<Command>,
    pub(super) bulk: BulkLine,
    /// Bulk requests that could not even be handed over; their outcome is still to be told.
    pub(super) bulk_refused: Vec<u64>,
    pub(super) batch: Batch,
    pub(super) shared: Arc<Shared>,
    pub(super) runner: Runner,
    pub(super) ticked_at: Instant,
}

/// What a leaving node still has to do.
struct Leaving {
    until: Instant,
    done: flume::Sender<()>,
}

impl Controller {
    /// Drives the control plane until told to stop.
    ///
    /// # Errors
    /// When the system cannot poll.
    pub(super) fn run(mut self) -> io::Result<()> {
        if let Some(lane) = &mut self.lane {
            self.poll.registry().register(lane.socket_mut(), GOSSIP, Interest::READABLE)?;
        }
        let mut events = Events::with_capacity(16);
        let mut leaving: Option<Leaving> = None;
        // Set until a batch came short: the poll tells only once.
        let mut lane_is_ready = true;
        loop {
            self.sleep(&mut events, lane_is_ready, leaving.as_ref())?;
            lane_is_ready |= events.iter().any(|event| event.token() == GOSSIP);
            lane_is_ready = lane_is_ready && self.read_lane();
            self.read_passed_on();
            while let Ok(command) = self.commands.try_recv() {
                match command {
                    Command::Leave(done) => leaving = Some(self.leave(done)),
                    Command::Stop => return Ok(()),
                }
            }
            self.read_bulk();
            self.tick();
            self.hand_over_asks();
            leaving = leaving.filter(|leaving| !self.has_left(leaving));
        }
    }

    fn sleep(
        &mut self,
        events: &mut Events,
        lane_is_ready: bool,
        leaving: Option<&Leaving>,
    ) -> io::Result<()> {
        let now = self.runner.clock.now();
        let mut until = self.tick_moment().min(now + SLEEP_MAX);
        if let Some(leaving) = leaving {
            until = until.min(leaving.until);
        }
        let time = if lane_is_ready { Duration::ZERO } else { until.since(now) };
        match self.poll.poll(events, Some(time)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            Err(_) | Ok(()) => Ok(()),
        }
    }

    fn tick_moment(&self) -> Instant {
        self.control.next_deadline().max(self.ticked_at + TICK_INTERVAL_MIN)
    }

    /// Reads what waits in the lane; returns whether more may be waiting.
    fn read_lane(&mut self) -> bool {
        let Some(lane) = &mut self.lane else { return false };
        let Self { control, batch, runner, .. } = self;
        for _ in 0..BATCHES_A_ROUND_MAX {
            let (more, lost) = lane.receive(&runner.clock, batch);
            runner.outbox.count_many(Metric::KernelDrops, lost);
            runner.outbox.count_many(Metric::GossipDatagrams, batch.len() as u64);
            batch.retain(|datagram, truncated| {
                if truncated {
                    runner.outbox.count(Metric::GossipRejected);
                } else {
                    control.handle(runner.clock.now(), datagram, &mut runner.outbox);
                }
                false
            });
            runner.flush();
            if !more {
                return false;
            }
        }
        true
    }

    fn read_passed_on(&mut self) {
        for _ in 0..FRAMES_PASSED_ON_MAX {
            let Ok(frame) = self.passed_on.try_recv() else { break };
            self.runner.outbox.count(Metric::GossipDatagrams);
            let datagram = Datagram { from: frame.from, received_at: frame.received_at, bytes: &frame.bytes };
            self.control.handle(self.runner.clock.now(), &datagram, &mut self.runner.outbox);
        }
        self.runner.flush();
    }

    /// Tells what became of bulk requests.
    fn read_bulk(&mut self) {
        let Self { control, runner, .. } = self;
        for ticket in std::mem::take(&mut self.bulk_refused) {
            control.on_bulk(runner.clock.now(), ticket, None, &mut runner.outbox);
        }
        for outcome in self.bulk.outcomes() {
            let response = outcome.response.as_deref();
            control.on_bulk(runner.clock.now(), outcome.ticket, response, &mut runner.outbox);
        }
        self.runner.flush();
    }

    /// Passes on what the control plane has asked in this round. What finds no place fails; that is told
    /// in the next round, so that asking again at once cannot turn into a busy loop.
    fn hand_over_asks(&mut self) {
        for ask in self.runner.outbox.bulk_asks() {
            if let Err(ask) = self.bulk.ask(ask) {
                self.runner.outbox.count(Metric::BulkAsked);
                self.runner.outbox.count(Metric::BulkFailed);
                self.bulk_refused.push(ask.ticket);
            }
        }
    }

    fn tick(&mut self) {
        let now = self.runner.clock.now();
        if self.tick_moment() <= now {
            self.ticked_at = now;
            self.control.tick(now, &mut self.runner.outbox);
        }
        self.runner.exit_if_asked();
        self.runner.flush();
        self.shared.wake_for(|| self.node.next_deadline());
    }

    fn leave(&mut self, done: flume::Sender<()>) -> Leaving {
        let now = self.runner.clock.now();
        self.control.leave(now, &mut self.runner.outbox);
        self.runner.flush();
        Leaving { until: now + LEAVE_TIME, done }
    }

    fn has_left(&self, leaving: &Leaving) -> bool {
        let has_left = leaving.until <= self.runner.clock.now();
        if has_left {
            // Whoever asked may have stopped waiting.
            let _ = leaving.done.try_send(());
        }
        has_left
    }
}
