//! The load generator: many logical clients in one thread, each with one request under way.
//!
//! A client is a slot. The slot's number and a running number stand in the message id, so a reply
//! finds its slot by an index; the slot keeps its datagram for the retries. Deadlines lie in one
//! dense array that is swept every [`SWEEP`]: with a few thousand clients that is cheaper than any
//! wheel, and a retry may be that much late. Sockets are not connected, because any server may
//! answer, and are drained until they are empty. Nothing is allocated per request.
//!
//! What to ask and what to make of the answers is the [`Workload`]'s. Deliberately not here: rates
//! (a client asks again as soon as it is answered) and anything that knows what a value should be.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mio::net::UdpSocket;
use mio::{Events, Interest, Poll, Token};
use socket2::{Domain, Socket, Type};
use violet_client::wire::{DATAGRAM_BYTES_MAX, decode_response, encode_request};
use violet_client::{Format, Key, MessageId, Operation, Request, Response, Status, Value};

use crate::craft;
use crate::tally::Tally;
use crate::values::Random;

/// How often deadlines are looked at; a retry is at most this late.
const SWEEP: Duration = Duration::from_millis(5);
/// Clients that share a socket: their replies must fit its receive buffer while this thread waits for a core.
const SOCKET_CLIENTS_MAX: usize = 128;
/// What is asked of the kernel for each receive buffer, in bytes; it may grant less.
pub const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Datagrams taken from one socket before the clock and the other sockets are looked at.
const DRAIN_MAX: usize = 64;
/// Longest pause that an "overloaded" answer can impose.
const OVERLOAD_WAIT_MAX: Duration = Duration::from_secs(5);

/// One request that a client wants to make.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Index of the server to ask.
    pub server: usize,
    /// What to ask.
    pub ask: Ask,
}

/// An operation without the bytes of its value.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    /// Store the value that the workload wrote.
    Put {
        /// Where.
        key: Key,
        /// The number stored with the value; not sent in the raw format.
        version: i32,
    },
    /// Read.
    Get {
        /// Which key.
        key: Key,
    },
    /// Forget a key.
    Remove {
        /// Which key.
        key: Key,
    },
    /// Forget everything that the server holds.
    Wipeout,
    /// Ask for a sign of life: ISALIVE, or command 99 in the raw format.
    IsAlive,
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
pub enum End<'a> {
    /// With this reply.
    Answered(Response<'a>),
    /// With nothing, after all retries.
    TimedOut,
}

impl End<'_> {
    /// The status of the reply, if there was one.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Answered(response) => Some(response.status),
            Self::TimedOut => None,
        }
    }
}

/// What the clients of one thread do.
pub trait Workload {
    /// The client's next request; a PUT's value goes into `value`, which comes empty. `None` ends the client.
    fn next(&mut self, client: usize, value: &mut Vec<u8>) -> Option<Call>;
    /// The client's request has ended.
    fn on_end(&mut self, client: usize, end: End<'_>);
}

/// How a run is done.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Whom to ask; calls name an index.
    pub servers: Vec<SocketAddr>,
    /// The protocol generation.
    pub format: Format,
    /// How long each attempt waits; their number is the number of attempts.
    pub waits: Vec<Duration>,
    /// Logical clients in this thread.
    pub clients: usize,
    /// How long a client rests between an answer and its next request; zero for a closed loop. It can be
    /// some milliseconds more.
    pub rest: Duration,
    /// When clients stop starting requests; without it they go on until the workload ends them.
    pub window: Option<Duration>,
    /// After "overloaded", how often a client waits and asks again before that counts as the answer.
    pub overload_restarts_max: u32,
    /// Whether such a restart draws a new server, as the 2019 clients do.
    pub redraw_server: bool,
    /// Seed of those draws.
    pub seed: u64,
}

/// Progress that other threads may look at, and their way to end a run early.
#[derive(Debug, Default)]
pub struct Signals {
    /// Answers so far.
    pub answers: AtomicU64,
    /// Set to make clients start nothing new.
    pub stop: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Between requests, or finished for good.
    Finished,
    /// Waiting for a reply.
    Waiting,
    /// Told to come back later.
    Paused,
    /// Answered, and not yet to ask again.
    Resting,
}

struct Slot {
    state: State,
    server: usize,
    command: u32,
    sequence: u32,
    attempt: usize,
    attempts_before: usize,
    restarts: u32,
    first_sent: Duration,
    datagram: Vec<u8>,
}

const NEVER: Duration = Duration::MAX;

struct Engine<'a, W> {
    plan: &'a Plan,
    workload: &'a mut W,
    signals: &'a Signals,
    started: Instant,
    sockets: Vec<UdpSocket>,
    slots: Vec<Slot>,
    deadlines: Vec<Duration>,
    active: usize,
    nonce: u64,
    random: Random,
    value: Vec<u8>,
    tally: Tally,
}

/// Runs a workload to its end and returns what was counted.
///
/// # Errors
/// Sockets that cannot be opened or polled.
pub fn run<W: Workload>(plan: &Plan, workload: &mut W, signals: &Signals) -> io::Result<Tally> {
    let mut poll = Poll::new()?;
    let sockets_wanted = plan.clients.div_ceil(SOCKET_CLIENTS_MAX).max(1);
    let mut tally = Tally::default();
    let mut sockets = Vec::with_capacity(sockets_wanted);
    for index in 0..sockets_wanted {
        let (mut socket, granted) = open_socket(plan.servers[0].is_ipv6())?;
        tally.receive_buffer_bytes = tally.receive_buffer_bytes.min(granted);
        poll.registry().register(&mut socket, Token(index), Interest::READABLE)?;
        sockets.push(socket);
    }
    let slot = || Slot {
        state: State::Finished,
        server: 0,
        command: 0,
        sequence: 0,
        attempt: 0,
        attempts_before: 0,
        restarts: 0,
        first_sent: Duration::ZERO,
        datagram: Vec::new(),
    };
    let mut engine = Engine {
        plan,
        workload,
        signals,
        started: Instant::now(),
        sockets,
        slots: std::iter::repeat_with(slot).take(plan.clients).collect(),
        deadlines: vec![NEVER; plan.clients],
        active: 0,
        nonce: RandomState::new().hash_one(0),
        random: Random::new(plan.seed),
        value: Vec::new(),
        tally,
    };
    engine.run(&mut poll)
}

/// A socket on any free port with a large receive buffer, and the bytes that were granted for it.
fn open_socket(ipv6: bool) -> io::Result<(UdpSocket, usize)> {
    let (domain, any) = if ipv6 {
        (Domain::IPV6, SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)))
    } else {
        (Domain::IPV4, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))
    };
    let socket = Socket::new(domain, Type::DGRAM, None)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    socket.set_send_buffer_size(RECEIVE_BUFFER_BYTES)?;
    let granted = socket.recv_buffer_size()?;
    socket.set_nonblocking(true)?;
    socket.bind(&any.into())?;
    Ok((UdpSocket::from_std(socket.into()), granted))
}

impl<W: Workload> Engine<'_, W> {
    fn run(&mut self, poll: &mut Poll) -> io::Result<Tally> {
        let mut events = Events::with_capacity(64);
        let mut readable = vec![false; self.sockets.len()];
        let mut buffer = vec![0u8; DATAGRAM_BYTES_MAX];
        let mut sweep_at = SWEEP;
        self.active = self.slots.len();
        for slot in 0..self.slots.len() {
            self.start_next(slot, self.started.elapsed());
        }
        while 0 < self.active {
            let now = self.started.elapsed();
            if sweep_at <= now {
                self.sweep(now);
                sweep_at = now + SWEEP;
            }
            let busy = readable.contains(&true);
            let patience = if busy { Duration::ZERO } else { sweep_at.saturating_sub(now) };
            match poll.poll(&mut events, Some(patience)) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            events.iter().for_each(|event| readable[event.token().0] = true);
            for (socket, readable) in readable.iter_mut().enumerate() {
                *readable = *readable && self.drain(socket, &mut buffer);
            }
        }
        if self.tally.window.is_zero() {
            self.tally.window = self.started.elapsed();
        }
        Ok(std::mem::take(&mut self.tally))
    }

    /// Takes replies from a socket; whether there may be more.
    fn drain(&mut self, socket: usize, buffer: &mut [u8]) -> bool {
        for _ in 0..DRAIN_MAX {
            match self.sockets[socket].recv(buffer) {
                Ok(bytes) => self.on_datagram(&buffer[..bytes]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Looks at all deadlines: retries, gives up, and wakes who was told to pause.
    fn sweep(&mut self, now: Duration) {
        self.signals.answers.store(self.tally.answers_in_window, Ordering::Relaxed);
        for slot in 0..self.slots.len() {
            if now < self.deadlines[slot] {
                continue;
            }
            match self.slots[slot].state {
                State::Finished => self.deadlines[slot] = NEVER,
                State::Paused => self.restart(slot, now),
                State::Resting => self.start_next(slot, now),
                State::Waiting if self.slots[slot].attempt < self.plan.waits.len() => self.send(slot, now),
                State::Waiting => self.on_timeout(slot, now),
            }
        }
    }

    fn on_timeout(&mut self, slot: usize, now: Duration) {
        self.tally.timeouts += 1;
        self.tally.record_latency(now - self.slots[slot].first_sent);
        self.workload.on_end(slot, End::TimedOut);
        self.go_on(slot, now);
    }

    fn on_datagram(&mut self, datagram: &[u8]) {
        // What the trailing bytes of a raw reply mean depends on the request, so its slot is found first.
        let slot_of_raw = || self.slot_of(MessageId(*datagram.first_chunk()?));
        let command = match self.plan.format {
            Format::Raw => slot_of_raw().map_or(0, |(index, _)| self.slots[index].command),
            Format::Protobuf => 0,
        };
        let Ok(response) = decode_response(self.plan.format, command, datagram) else {
            self.tally.undecodable += 1;
            return;
        };
        let Some((index, sequence)) = self.slot_of(response.id) else {
            self.tally.foreign += 1;
            return;
        };
        let slot = &self.slots[index];
        if sequence != slot.sequence || slot.state != State::Waiting {
            self.on_late(index, sequence);
            return;
        }
        if self.plan.format == Format::Protobuf && !craft::is_readable_by_proto2(datagram) {
            self.tally.unreadable_by_proto2 += 1;
        }
        self.on_reply(index, response);
    }

    /// A reply to a request that has ended. After a single attempt nothing explains a second reply.
    fn on_late(&mut self, slot: usize, sequence: u32) {
        let slot = &self.slots[slot];
        let attempts = match slot.sequence.wrapping_sub(sequence) {
            0 => slot.attempt,
            1 => slot.attempts_before,
            _ => usize::MAX,
        };
        if attempts == 1 { self.tally.duplicates += 1 } else { self.tally.late += 1 }
    }

    fn on_reply(&mut self, index: usize, response: Response<'_>) {
        let now = self.started.elapsed();
        *self.tally.statuses.entry(response.status).or_default() += 1;
        self.tally.record_latency(now - self.slots[index].first_sent);
        if self.is_open(now) {
            self.tally.answers_in_window += 1;
            self.tally.successes_in_window += u64::from(response.status == Status::Success);
        }
        let wait_ms = response.overload_wait_ms.unwrap_or(0);
        let restart = response.status == Status::Overload
            && self.slots[index].restarts < self.plan.overload_restarts_max
            && 0 <= wait_ms
            && self.is_open(now);
        if restart {
            let slot = &mut self.slots[index];
            slot.restarts += 1;
            slot.state = State::Paused;
            self.deadlines[index] =
                now + Duration::from_millis(wait_ms.unsigned_abs().into()).min(OVERLOAD_WAIT_MAX);
            return;
        }
        self.workload.on_end(index, End::Answered(response));
        self.go_on(index, now);
    }

    fn go_on(&mut self, index: usize, now: Duration) {
        if self.plan.rest.is_zero() {
            return self.start_next(index, now);
        }
        self.slots[index].state = State::Resting;
        self.deadlines[index] = now + self.plan.rest;
    }

    /// Whether clients still start requests. The first "no" ends the window.
    fn is_open(&mut self, now: Duration) -> bool {
        let over = self.plan.window.is_some_and(|window| window <= now)
            || self.signals.stop.load(Ordering::Relaxed)
            || !self.tally.window.is_zero();
        if over && self.tally.window.is_zero() {
            self.tally.window = now;
        }
        !over
    }

    fn start_next(&mut self, index: usize, now: Duration) {
        self.value.clear();
        let call = if self.is_open(now) { self.workload.next(index, &mut self.value) } else { None };
        let Some(call) = call else {
            self.slots[index].state = State::Finished;
            self.deadlines[index] = NEVER;
            self.active -= 1;
            return;
        };
        let operation = match call.ask {
            Ask::Put { key, version } => Operation::Put { key, value: Value { bytes: &self.value, version } },
            Ask::Get { key } => Operation::Get { key },
            Ask::Remove { key } => Operation::Remove { key },
            Ask::Wipeout => Operation::Wipeout,
            Ask::IsAlive => match self.plan.format {
                Format::Raw => Operation::Unknown(99),
                Format::Protobuf => Operation::IsAlive,
            },
        };
        let id = new_id(self.nonce, index, &mut self.slots[index]);
        let slot = &mut self.slots[index];
        slot.server = call.server;
        slot.command = operation.command();
        slot.restarts = 0;
        slot.datagram.clear();
        encode_request(&Request { format: self.plan.format, id, operation }, &mut slot.datagram);
        self.begin(index, now);
    }

    /// Asks the same again under a new id.
    fn restart(&mut self, index: usize, now: Duration) {
        if !self.is_open(now) {
            let status = Response::of_status(MessageId([0; 16]), Status::Overload);
            self.workload.on_end(index, End::Answered(status));
            self.start_next(index, now);
            return;
        }
        let id = new_id(self.nonce, index, &mut self.slots[index]);
        craft::replace_id(self.plan.format, id, &mut self.slots[index].datagram);
        if self.plan.redraw_server {
            self.slots[index].server = self.random.below(self.plan.servers.len());
        }
        self.begin(index, now);
    }

    fn begin(&mut self, index: usize, now: Duration) {
        self.tally.requests += 1;
        let slot = &mut self.slots[index];
        slot.state = State::Waiting;
        slot.attempt = 0;
        slot.first_sent = now;
        self.send(index, now);
    }

    fn send(&mut self, index: usize, now: Duration) {
        let slot = &mut self.slots[index];
        let socket = &self.sockets[index / SOCKET_CLIENTS_MAX];
        // A datagram that the kernel refuses is like one that the network lost: the retry deals with it.
        if socket.send_to(&slot.datagram, self.plan.servers[slot.server]).is_err() {
            self.tally.send_failures += 1;
        }
        self.tally.datagrams += 1;
        self.deadlines[index] = now + self.plan.waits[slot.attempt];
        slot.attempt += 1;
    }

    fn slot_of(&self, id: MessageId) -> Option<(usize, u32)> {
        let word = |at: usize| u32::from_le_bytes([id.0[at], id.0[at + 1], id.0[at + 2], id.0[at + 3]]);
        let nonce = u64::from(word(0)) | u64::from(word(12)) << 32;
        let slot = word(4) as usize;
        (nonce == fit(self.nonce) && slot < self.slots.len()).then(|| (slot, word(8)))
    }
}

/// Ids of this run: nonce, slot, running number, nonce.
fn new_id(nonce: u64, index: usize, slot: &mut Slot) -> MessageId {
    slot.attempts_before = slot.attempt;
    slot.sequence = slot.sequence.wrapping_add(1);
    let nonce = fit(nonce);
    let mut id = [0; 16];
    id[..4].copy_from_slice(&(nonce as u32).to_le_bytes());
    id[4..8].copy_from_slice(&(index as u32).to_le_bytes());
    id[8..12].copy_from_slice(&slot.sequence.to_le_bytes());
    id[12..].copy_from_slice(&((nonce >> 32) as u32).to_le_bytes());
    MessageId(id)
}

/// A raw datagram must not begin like a protobuf envelope (0x0a), so the first byte is kept above it.
fn fit(nonce: u64) -> u64 {
    nonce | 0x80
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket as StdSocket;
    use std::thread;
    use violet_client::wire::{Accept, decode_request, encode_response};

    /// Gets a few keys, one after the other.
    struct Gets {
        left: u32,
        statuses: Vec<Option<Status>>,
    }

    impl Workload for Gets {
        fn next(&mut self, _client: usize, _value: &mut Vec<u8>) -> Option<Call> {
            self.left = self.left.checked_sub(1)?;
            Some(Call { server: 0, ask: Ask::Get { key: Key::parse(b"k").unwrap() } })
        }

        fn on_end(&mut self, _client: usize, end: End<'_>) {
            self.statuses.push(end.status());
        }
    }

    /// Runs `gets` requests of one client, two attempts of half a second each, against a server that gets the
    /// number of each datagram and the datagram before it, and says how many replies to send and of what.
    fn run_against(
        format: Format,
        gets: u32,
        answer: impl Fn(usize, &[u8], &[u8]) -> (usize, Status) + Send + 'static,
    ) -> (Tally, Vec<Option<Status>>) {
        let server = StdSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let serving = thread::spawn(move || {
            let mut buffer = vec![0; 2_000];
            let mut before = Vec::new();
            for number in 0.. {
                let (bytes, client) = server.recv_from(&mut buffer).unwrap();
                if bytes == 0 {
                    return;
                }
                let (copies, status) = answer(number, &buffer[..bytes], &before);
                before = buffer[..bytes].to_vec();
                let request = decode_request(&before, Accept::Auto).unwrap();
                let mut response = Response::of_status(request.id, status);
                response.overload_wait_ms = (status == Status::Overload).then_some(1);
                let mut reply = Vec::new();
                encode_response(request.format, &response, &mut reply);
                for _ in 0..copies {
                    server.send_to(&reply, client).unwrap();
                }
            }
        });
        let plan = Plan {
            servers: vec![address],
            format,
            waits: vec![Duration::from_millis(500); 2],
            clients: 1,
            rest: Duration::ZERO,
            window: None,
            overload_restarts_max: 3,
            redraw_server: false,
            seed: 0,
        };
        let mut workload = Gets { left: gets, statuses: Vec::new() };
        let tally = run(&plan, &mut workload, &Signals::default()).unwrap();
        StdSocket::bind("127.0.0.1:0").unwrap().send_to(&[], address).unwrap();
        serving.join().expect("the server's own assertions hold");
        (tally, workload.statuses)
    }

    #[test]
    fn a_lost_datagram_is_sent_again_as_it_was() {
        for format in [Format::Raw, Format::Protobuf] {
            let (tally, statuses) = run_against(format, 3, |number, datagram, before| {
                if number % 2 == 1 {
                    assert_eq!(datagram, before, "a retry has the same bytes");
                } else {
                    assert_ne!(datagram, before, "another request has another id");
                }
                (number % 2, Status::NoSuchKey)
            });
            assert_eq!(statuses, [Some(Status::NoSuchKey); 3]);
            assert_eq!((tally.requests, tally.datagrams, tally.timeouts), (3, 6, 0));
        }
    }

    #[test]
    fn silence_is_a_time_out_with_its_whole_patience() {
        let (tally, statuses) = run_against(Format::Raw, 1, |_, _, _| (0, Status::Success));
        assert_eq!(statuses, [None]);
        assert_eq!((tally.requests, tally.datagrams, tally.timeouts), (1, 2, 1));
        assert!(999.0 < tally.latency_ms(100.0), "{}", tally.latency_ms(100.0));
    }

    #[test]
    fn an_overloaded_server_is_asked_again_under_a_new_id_but_not_for_ever() {
        let (tally, statuses) = run_against(Format::Protobuf, 1, |number, datagram, before| {
            assert_ne!(datagram, before);
            (1, if number < 2 { Status::Overload } else { Status::Success })
        });
        assert_eq!(statuses, [Some(Status::Success)]);
        assert_eq!((tally.requests, tally.statuses[&Status::Overload]), (3, 2));
        let (tally, statuses) = run_against(Format::Protobuf, 1, |_, _, _| (1, Status::Overload));
        assert_eq!(statuses, [Some(Status::Overload)]);
        assert_eq!(tally.requests, 4);
    }

    #[test]
    fn a_second_reply_is_surplus_without_a_retry_and_late_after_one() {
        // The last request gets one reply: surplus replies to it would come when nobody listens.
        let (tally, _) = run_against(Format::Raw, 4, |number, _, _| (2 - number / 3, Status::Success));
        assert_eq!((tally.duplicates, tally.late, tally.foreign), (3, 0, 0));
        // The first datagram is answered only after its retry, and then twice.
        let (tally, _) = run_against(Format::Raw, 2, |number, _, _| ([0, 2, 1][number], Status::Success));
        assert_eq!((tally.duplicates, tally.late, tally.foreign), (0, 1, 0));
    }
}
