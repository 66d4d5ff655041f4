//! Jobs: running a batch of datagrams through the data plane, on whichever thread holds it.
//!
//! The worker and the listener (for small batches) run the same code. A job never blocks; a panic in
//! it costs the one datagram that caused it; and what the core wants sent is sent after every batch,
//! or earlier when much has gathered.

use super::batch::{Batch, PooledBatch};
use super::clock::Clock;
use super::transport::Sender;
use crate::metrics::Metric;
use crate::node::Node;
use crate::outbox::{Datagram, Outbox};
use crate::time::{Duration, Instant};
use mio::Waker;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// An outbox with this many datagrams is sent before the batch is done.
const OUTBOX_SENDS_MAX: usize = 64;
/// An outbox with this many bytes is sent before the batch is done.
const OUTBOX_BYTES_MAX: usize = 256 * 1024;
/// Deadlines are kept to about a millisecond: the poll cannot do better.
const DEADLINE_SLACK: Duration = Duration::from_millis(1);

/// What listener and workers drive: the node, or a stand-in that a test has planned.
pub(super) trait DataPlane: Send + Sync + 'static {
    /// Handles one datagram to completion.
    fn handle(&self, now: Instant, datagram: &Datagram<'_>, outbox: &mut Outbox);
    /// Works off what is due.
    fn tick(&self, now: Instant, outbox: &mut Outbox);
    /// When `tick` should be called next, at the latest.
    fn next_deadline(&self) -> Instant;
}

impl DataPlane for Node {
    fn handle(&self, now: Instant, datagram: &Datagram<'_>, outbox: &mut Outbox) {
        Self::handle(self, now, datagram, outbox);
    }
    fn tick(&self, now: Instant, outbox: &mut Outbox) {
        Self::tick(self, now, outbox);
    }
    fn next_deadline(&self) -> Instant {
        Self::next_deadline(self)
    }
}

/// One message of the job channel.
pub(super) struct Job {
    pub(super) batch: PooledBatch,
}

/// What the threads of a node share besides the channels.
#[derive(Debug)]
pub(super) struct Shared {
    stop: AtomicBool,
    /// Jobs in the channel or being worked on.
    jobs_open: AtomicUsize,
    /// What the listener sleeps until, in nanoseconds; 0 while it is awake.
    listener_sleeps_until: AtomicU64,
    listener_waker: Waker,
}

impl Shared {
    pub(super) fn new(listener_waker: Waker) -> Self {
        Self {
            stop: AtomicBool::new(false),
            jobs_open: AtomicUsize::new(0),
            listener_sleeps_until: AtomicU64::new(0),
            listener_waker,
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        // A failed wake-up only delays the end until the listener's sleep is over.
        let _ = self.listener_waker.wake();
    }

    pub(super) fn job_opened(&self) {
        self.jobs_open.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn job_closed(&self) {
        self.jobs_open.fetch_sub(1, Ordering::AcqRel);
    }

    pub(super) fn no_job_is_open(&self) -> bool {
        self.jobs_open.load(Ordering::Acquire) == 0
    }

    /// Says until when the listener is about to sleep; returns the moment, earlier if a deadline was
    /// set meanwhile. The fences here and in [`Shared::wake_for`] make sure that either this call sees
    /// the new deadline or the thread that set it sees the announcement.
    pub(super) fn announce_sleep(&self, until: Instant, next_deadline: impl Fn() -> Instant) -> Instant {
        self.listener_sleeps_until.store(until.as_nanos(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        until.min(next_deadline())
    }

    pub(super) fn listener_is_awake(&self) {
        self.listener_sleeps_until.store(0, Ordering::Relaxed);
    }

    /// Wakes the listener if it would sleep beyond `deadline()`. Every other thread that has run the
    /// core calls this.
    pub(super) fn wake_for(&self, deadline: impl Fn() -> Instant) {
        fence(Ordering::SeqCst);
        let sleeps_until = self.listener_sleeps_until.load(Ordering::Relaxed);
        let is_late = (deadline() + DEADLINE_SLACK).as_nanos() < sleeps_until;
        // Only one of several threads needs to do it.
        if is_late && self.listener_sleeps_until.swap(0, Ordering::Relaxed) != 0 {
            let _ = self.listener_waker.wake();
        }
    }
}

/// Runs the core on one thread: that thread's outbox, and the sockets to empty it by.
pub(super) struct Runner {
    pub(super) clock: Clock,
    pub(super) outbox: Outbox,
    pub(super) sender: Sender,
}

impl Runner {
    /// Handles every datagram of a batch and sends what came of it.
    pub(super) fn run_batch(&mut self, plane: &impl DataPlane, batch: &Batch) {
        let (mut sends_seen, mut bytes) = (0, 0);
        for datagram in batch.datagrams() {
            self.run_one(plane, &datagram);
            bytes += self.outbox.sends()[sends_seen..]
                .iter()
                .map(|send| send_bytes(&self.outbox, send))
                .sum::<usize>();
            sends_seen = self.outbox.sends().len();
            if OUTBOX_SENDS_MAX <= sends_seen || OUTBOX_BYTES_MAX <= bytes {
                self.flush();
                (sends_seen, bytes) = (0, 0);
            }
        }
        self.flush();
    }

    fn run_one(&mut self, plane: &impl DataPlane, datagram: &Datagram<'_>) {
        let Self { clock, outbox, .. } = self;
        let run = AssertUnwindSafe(|| plane.handle(clock.now(), datagram, outbox));
        // What is shared behind the unwound stack is guarded by locks that unwinding has released; the
        // request that was being worked on is lost, and counted.
        if catch_unwind(run).is_err() {
            self.outbox.count(Metric::Panics);
            if !super::is_peer(datagram.bytes) {
                self.outbox.count(Metric::DroppedPanic);
            }
        }
        self.exit_if_asked();
    }

    /// Works off what is due, and sends what came of it.
    pub(super) fn tick(&mut self, plane: &impl DataPlane) {
        let Self { clock, outbox, .. } = self;
        if catch_unwind(AssertUnwindSafe(|| plane.tick(clock.now(), outbox))).is_err() {
            self.outbox.count(Metric::Panics);
        }
        self.exit_if_asked();
        self.flush();
    }

    /// Sends everything.
    pub(super) fn flush(&mut self) {
        self.sender.flush(&mut self.outbox);
    }

    /// The SHUTDOWN command is meant as a crash: the reply leaves, and then the process ends without
    /// handing anything over.
    pub(super) fn exit_if_asked(&mut self) {
        if self.outbox.wants_exit() {
            self.flush();
            std::process::exit(0);
        }
    }
}

fn send_bytes(outbox: &Outbox, send: &crate::outbox::Send) -> usize {
    outbox.bytes(send).len()
}
