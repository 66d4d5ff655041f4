//! The bulk transport's thread: flow-controlled TCP on the node's port number, for copying partitions
//! and comparing them between members.
//!
//! One thread, `v-bulk`, has the listening socket and all connections, none of which ever blocks it.
//! [`answering`] is the side that others connect to, [`asking`] the one that connects; a connection is
//! a [`pipe`] with a conversation ([`crate::peer::bulk`]) on it, a step it is at, and a deadline for
//! that step. The controller puts its requests in a bounded channel, and takes each one's outcome from
//! another ([`BulkLine`]); while that is full, no more responses are read. Others' requests are worked
//! off here, by [`BulkPlane::answer`]: this is never the request path, and may take its time.
//!
//! Whoever does not read its response, or trickles, stops only itself, and only until its deadline.
//! A connection at rest keeps no buffers. What a stranger sends takes no memory at all.
//!
//! Deliberately not here: asking again (the control plane knows whether that makes sense), and what
//! requests mean.

mod answering;
mod asking;
mod pipe;
#[cfg(test)]
mod tests;

use super::clock::Clock;
use crate::ids::{Generation, MemberId};
use crate::metrics::{Metric, Sheet};
use crate::node::Node;
use crate::outbox::BulkAsk;
use crate::peer::bulk::{BulkKey, NONCE_BYTES};
use crate::time::{Duration, Instant};
use answering::Answering;
use asking::Asking;
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use rand::TryRng;
use rand::rngs::SysRng;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Requests on their way from the controller.
const ASKS_PASSED_ON_MAX: usize = 64;
/// Outcomes on their way to the controller; each may be as large as a frame.
const OUTCOMES_PASSED_ON_MAX: usize = 16;
/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 128;
/// Connections accepted before others get their turn.
const ACCEPTS_A_ROUND_MAX: usize = 64;
/// How long nothing is accepted after the system had no file descriptor or memory for it.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest sleep; nothing depends on it.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Bytes read at once, for all connections in turn.
const SCRATCH_BYTES: usize = 64 * 1024;
const WAKER: Token = Token(0);
const LISTENER: Token = Token(1);
const CONNECTIONS_FROM: usize = 2;

/// What is behind the transport: the node, or a stand-in that a test has planned.
pub(super) trait BulkPlane: Send + Sync + 'static {
    /// Whether this is another member of the cluster.
    fn is_member(&self, id: MemberId) -> bool;
    /// Appends the response to a request; `false` when the request has no meaning.
    fn answer(&self, from: MemberId, request: &[u8], response: &mut Vec<u8>) -> bool;
}

impl BulkPlane for Node {
    fn is_member(&self, id: MemberId) -> bool {
        id != self.me() && self.view().index_of(id).is_some()
    }
    fn answer(&self, from: MemberId, request: &[u8], response: &mut Vec<u8>) -> bool {
        self.answer_bulk(from, request, response)
    }
}

/// How long the other side may take for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// For a connection to be there.
    pub(super) connect: Duration,
    /// For hello and proof.
    pub(super) handshake: Duration,
    /// For a whole frame from its first byte on, either way; and for a response to begin.
    pub(super) transfer: Duration,
    /// For the next request. The asker hangs up earlier, so that it never asks while the answerer is
    /// hanging up.
    pub(super) idle: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            handshake: Duration::from_secs(2),
            transfer: Duration::from_secs(10),
            idle: Duration::from_secs(30),
        }
    }
}

/// Who this node is to others.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) me: MemberId,
    pub(super) generation: Generation,
    pub(super) key: BulkKey,
}

/// What became of a request.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) ticket: u64,
    pub(super) response: Option<Vec<u8>>,
}

/// The controller's end.
#[derive(Debug)]
pub(super) struct BulkLine {
    asks: flume::Sender<BulkAsk>,
    outcomes: flume::Receiver<Outcome>,
    waker: Arc<Waker>,
}

impl BulkLine {
    /// Hands a request over; gives it back when too many are waiting.
    pub(super) fn ask(&self, ask: BulkAsk) -> Result<(), BulkAsk> {
        self.asks.try_send(ask).map_err(flume::TrySendError::into_inner)?;
        self.wake();
        Ok(())
    }

    /// The outcomes that are there, no more than fit in the channel at once. (For those that come
    /// meanwhile the controller is woken again.)
    pub(super) fn outcomes(&self) -> Vec<Outcome> {
        let outcomes: Vec<_> = self.outcomes.try_iter().take(OUTCOMES_PASSED_ON_MAX).collect();
        if !outcomes.is_empty() {
            // The thread may have stopped reading because this channel was full.
            self.wake();
        }
        outcomes
    }

    fn wake(&self) {
        // A failed wake-up only delays things until the thread's sleep is over.
        let _ = self.waker.wake();
    }
}

/// The running thread.
#[derive(Debug)]
pub(super) struct Bulk {
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    thread: JoinHandle<()>,
}

impl Bulk {
    /// Ends and joins the thread. What was being asked gets no outcome any more.
    pub(super) fn stop(self) {
        self.stop.store(true, Ordering::Release);
        // A failed wake-up only delays the end until the thread's sleep is over.
        let _ = self.waker.wake();
        super::join(self.thread);
    }
}

/// What the thread is made of.
pub(super) struct Parts<P> {
    pub(super) listener: TcpListener,
    pub(super) plane: Arc<P>,
    pub(super) identity: Identity,
    pub(super) clock: Clock,
    pub(super) sheet: Arc<Sheet>,
    pub(super) times: Times,
    pub(super) controller: Arc<Waker>,
}

/// Takes the TCP port of this address.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Connections of this node's last start may linger; that does not share the port with anybody.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from_std(socket.into()))
}

/// Starts the thread.
pub(super) fn start<P: BulkPlane>(parts: Parts<P>) -> io::Result<(Bulk, BulkLine)> {
    let Parts { mut listener, plane, identity, clock, sheet, times, controller } = parts;
    let poll = Poll::new()?;
    let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let (asks, asks_end) = flume::bounded(ASKS_PASSED_ON_MAX);
    let (outcomes, outcomes_end) = flume::bounded(OUTCOMES_PASSED_ON_MAX);
    let stop = Arc::new(AtomicBool::new(false));
    let tools = Tools {
        registry: poll.registry().try_clone()?,
        clock,
        sheet,
        times,
        identity,
        scratch: vec![0; SCRATCH_BYTES].into(),
        ready: VecDeque::new(),
        tokens_given: CONNECTIONS_FROM,
    };
    let thread = BulkThread {
        stop: Arc::clone(&stop),
        poll,
        listener,
        accept_at: Instant::ZERO,
        asks: asks_end,
        answering: Answering::new(plane),
        asking: Asking::new(outcomes, controller),
        tools,
    };
    let thread = super::spawn("v-bulk".into(), move || thread.run())?;
    let line = BulkLine { asks, outcomes: outcomes_end, waker: Arc::clone(&waker) };
    Ok((Bulk { stop, waker, thread }, line))
}

/// What both sides work with.
struct Tools {
    registry: Registry,
    clock: Clock,
    sheet: Arc<Sheet>,
    times: Times,
    identity: Identity,
    scratch: Box<[u8]>,
    /// Connections that can go on, besides those of which the poll tells.
    ready: VecDeque<Token>,
    /// Tokens are never used again, so that nothing late is taken for something new.
    tokens_given: usize,
}

impl Tools {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn count(&self, metric: Metric, amount: usize) {
        self.sheet.add(metric, amount as u64);
    }

    fn new_token(&mut self) -> Token {
        self.tokens_given += 1;
        Token(self.tokens_given)
    }
}

/// `None` when the system has no randomness, and then there can be no connection.
fn new_nonce() -> Option<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    SysRng.try_fill_bytes(&mut nonce).ok()?;
    Some(nonce)
}

/// Whether a connection can go on at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The poll will tell when.
    Waits,
    /// It can, but others come first.
    MayGoOn,
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The other side has hung up, or it was idle for long.
    Closed,
    /// Not of a member, or changed on the way.
    Forged,
    /// Too long a frame.
    TooLarge,
    /// Authentic, but no member.
    Unknown,
    /// Its member has too many connections.
    Full,
    /// A request without meaning.
    Malformed,
    /// Too slow.
    TimedOut,
    /// The answer ended in a panic.
    Panicked,
}

impl End {
    fn metric(self) -> Option<Metric> {
        match self {
            Self::Closed => None,
            Self::Forged => Some(Metric::BulkForged),
            Self::TooLarge => Some(Metric::BulkTooLarge),
            Self::Unknown => Some(Metric::BulkRefusedUnknown),
            Self::Full => Some(Metric::BulkRefusedFull),
            Self::Malformed => Some(Metric::BulkMalformed),
            Self::TimedOut => Some(Metric::BulkTimedOut),
            Self::Panicked => Some(Metric::Panics),
        }
    }

    fn count(self, tools: &Tools) {
        if let Some(metric) = self.metric() {
            tools.count(metric, 1);
        }
    }
}

/// The thread's state.
struct BulkThread<P> {
    stop: Arc<AtomicBool>,
    poll: Poll,
    listener: TcpListener,
    /// When to accept again; far when the poll will tell.
    accept_at: Instant,
    asks: flume::Receiver<BulkAsk>,
    answering: Answering<P>,
    asking: Asking,
    tools: Tools,
}

impl<P: BulkPlane> BulkThread<P> {
    /// # Errors
    /// When the system cannot poll.
    fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(128);
        while !self.stop.load(Ordering::Acquire) {
            self.sleep(&mut events)?;
            if self.accept_at <= self.tools.now() {
                self.accept();
            }
            self.asking.deliver(&mut self.tools);
            self.take_asks();
            self.drive_ready();
            self.answering.expire(&mut self.tools);
            self.asking.expire(&mut self.tools);
            self.asking.open_waiting(&mut self.tools);
        }
        Ok(())
    }

    fn sleep(&mut self, events: &mut Events) -> io::Result<()> {
        let now = self.tools.now();
        let has_asks = self.asking.takes_more() && !self.asks.is_empty();
        let has_work = has_asks || !self.tools.ready.is_empty();
        let deadline = self.answering.next_deadline().min(self.asking.next_deadline()).min(self.accept_at);
        let time = if has_work { Duration::ZERO } else { deadline.since(now).min(SLEEP_MAX) };
        match self.poll.poll(events, Some(time)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            Err(_) | Ok(()) => {}
        }
        for event in events.iter() {
            match event.token() {
                WAKER => {}
                LISTENER => self.accept_at = Instant::ZERO,
                token => self.tools.ready.push_back(token),
            }
        }
        Ok(())
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_A_ROUND_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => self.answering.accept(stream, &mut self.tools),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return self.accept_at = Instant::FAR,
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                    _ => return self.accept_at = self.tools.now() + ACCEPT_PAUSE,
                },
            }
        }
    }

    fn take_asks(&mut self) {
        for _ in 0..ASKS_PASSED_ON_MAX {
            if !self.asking.takes_more() {
                return;
            }
            let Ok(ask) = self.asks.try_recv() else { return };
            self.asking.ask(ask, &mut self.tools);
        }
    }

    /// Each connection that can go on gets one turn.
    fn drive_ready(&mut self) {
        for _ in 0..self.tools.ready.len() {
            let Some(token) = self.tools.ready.pop_front() else { break };
            self.answering.drive(token, &mut self.tools);
            self.asking.drive(token, &mut self.tools);
        }
    }
}
