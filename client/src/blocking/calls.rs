//! Exchanges under way: any number at once, over one socket for each address family.
//!
//! A [`Call`] is one exchange with one server, or with several that take turns. [`Sockets::run`] sends what is
//! due, waits for the next datagram or the next deadline, and ends when all calls have. Replies find their call
//! by the message id alone, because any member may answer.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::Error;
use crate::exchange::{Exchange, Outcome, Reply, RetryPolicy, Step, Verdict};
use crate::wire::{DATAGRAM_BYTES_MAX, Format, MessageId, Operation, Request};

/// The shortest time-out that a socket is given: zero would mean "for ever".
const RECEIVE_WAIT_MIN: Duration = Duration::from_millis(1);

/// One exchange, with one server or with several that take turns.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) servers: Vec<SocketAddr>,
    /// Datagrams so far.
    pub(super) sent: usize,
    pub(super) exchange: Exchange,
    pub(super) answered_by: Option<SocketAddr>,
    failure: Option<io::Error>,
}

impl Call {
    pub(super) fn new(
        servers: Vec<SocketAddr>,
        format: Format,
        id: MessageId,
        operation: Operation<'_>,
        policy: &RetryPolicy,
    ) -> Self {
        let exchange = Exchange::new(&Request { format, id, operation }, policy);
        Self { servers, sent: 0, exchange, answered_by: None, failure: None }
    }

    /// The server that was asked last; before that, the one that is asked first.
    pub(super) fn server(&self) -> SocketAddr {
        self.servers[self.sent.saturating_sub(1) % self.servers.len()]
    }

    /// Sends what is due and returns when something is due next; `None` when this call is over.
    fn advance(&mut self, now: Duration, socket: &UdpSocket) -> Option<Duration> {
        while self.failure.is_none() {
            match self.exchange.poll(now) {
                Step::WaitUntil(time) => return Some(time),
                Step::Done => return None,
                Step::Send => self.send(socket),
            }
        }
        None
    }

    fn send(&mut self, socket: &UdpSocket) {
        self.sent += 1;
        match socket.send_to(self.exchange.datagram(), self.server()) {
            Ok(_) => {}
            // It is the next one's turn after this attempt.
            Err(_) if 1 < self.servers.len() => {}
            // A datagram that the system could not take now is as good as lost; the retries see to it.
            Err(error) if is_passing(&error) => {}
            Err(error) => self.failure = Some(error),
        }
    }

    /// Takes a datagram; whether it is the answer.
    fn on_datagram(&mut self, now: Duration, from: SocketAddr, bytes: &[u8]) -> bool {
        let is_answer = self.exchange.on_datagram(now, bytes) == Verdict::Accepted;
        if is_answer {
            self.answered_by = Some(from);
        }
        is_answer
    }

    /// Ends a call that has no outcome because its socket failed.
    fn fail(&mut self, error: &io::Error) {
        if self.failure.is_none() && self.exchange.outcome().is_none() {
            self.failure = Some(io::Error::new(error.kind(), error.to_string()));
        }
    }

    pub(super) fn into_result(self) -> Result<Reply, Error> {
        let server = self.server();
        if let Some(source) = self.failure {
            return Err(Error::Io { server, source });
        }
        match self.exchange.outcome() {
            Some(Outcome::Answered(reply)) => Ok(reply),
            Some(Outcome::Overloaded) => Err(Error::Overloaded(server)),
            Some(Outcome::TimedOut) | None => {
                Err(Error::TimedOut { server, attempts: self.exchange.attempts() })
            }
        }
    }
}

/// The sockets of a client, one per address family, opened when needed and kept.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) started: Instant,
    ipv4: Option<UdpSocket>,
    ipv6: Option<UdpSocket>,
    buffer: Vec<u8>,
}

impl Sockets {
    pub(super) fn new() -> Self {
        Self { started: Instant::now(), ipv4: None, ipv6: None, buffer: vec![0; DATAGRAM_BYTES_MAX] }
    }

    /// Runs calls to their ends: those to IPv4 servers all at once, then those to IPv6 servers.
    pub(super) fn run(&mut self, calls: &mut [Call]) {
        let (mut ipv4, mut ipv6): (Vec<&mut Call>, Vec<&mut Call>) =
            calls.iter_mut().partition(|call| call.server().is_ipv4());
        for calls in [&mut ipv4, &mut ipv6] {
            if let Err(error) = self.run_family(calls) {
                calls.iter_mut().for_each(|call| call.fail(&error));
            }
        }
    }

    fn run_family(&mut self, calls: &mut [&mut Call]) -> io::Result<()> {
        let Some(first) = calls.first() else { return Ok(()) };
        let slot = if first.server().is_ipv4() { &mut self.ipv4 } else { &mut self.ipv6 };
        let socket = match slot.take() {
            Some(socket) => socket,
            None => open(first.server())?,
        };
        let socket = slot.insert(socket);
        loop {
            let now = self.started.elapsed();
            let next = calls.iter_mut().filter_map(|call| call.advance(now, socket)).min();
            let Some(next) = next else { return Ok(()) };
            let wait = next.saturating_sub(self.started.elapsed()).max(RECEIVE_WAIT_MIN);
            socket.set_read_timeout(Some(wait))?;
            let (bytes, from) = match socket.recv_from(&mut self.buffer) {
                Ok((length, from)) => (&self.buffer[..length], from),
                Err(error) if is_passing(&error) => continue,
                Err(error) => return Err(error),
            };
            let now = self.started.elapsed();
            // The id tells which call a reply belongs to. Replies to nobody are late or foreign.
            let _ = calls.iter_mut().any(|call| call.on_datagram(now, from, bytes));
        }
    }
}

/// A socket that can reach a server and hear any member: bound to all addresses, connected to none.
fn open(server: SocketAddr) -> io::Result<UdpSocket> {
    match server {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
    }
}

/// Errors that say nothing about the next datagram: a time-out, a signal, a full buffer, or the
/// message of a network that somebody was not there.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock
            | io::ErrorKind::TimedOut
            | io::ErrorKind::Interrupted
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
    )
}
