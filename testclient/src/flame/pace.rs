//! An open-loop generator: requests at a constant rate, whatever the servers do with them.
//!
//! Request number i is due at i / rate. Latency runs from that moment, not from when it was sent, so a
//! stall of the server (or of this thread) counts for every request that was due meanwhile. Nothing is
//! repeated: a request without an answer is lost and counted. One thread sends what is due, reads what
//! has come, and rests for [`REST_MAX`] at most, so latencies are about that coarse; and it notes how
//! late it was itself, to tell when the generator and not the servers was the limit.
//!
//! **Why not the load engine** (`load`). The episodes compare how nodes receive and send, so the load must reach them as
//! it always has, or graphs taken now could not be held against those in the folder. The number of sockets is a setting of
//! each episode, since few sockets make many replies go to one address, while the engine chooses it itself. And the engine
//! gathers what is due and lets the kernel cut packed bursts, which fills a node's receive batches and would
//! change the very thing that the episodes about batches show; here each request is a datagram and a call of its own.
//!
//! Deliberately not here: closed loops, retries and judged values (`load`), and several threads: one sends far more
//! than a cluster on the same machine can take.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use socket2::SockRef;
use violet_client::wire::{DATAGRAM_BYTES_MAX, decode_response, encode_request};
use violet_client::{Format, Key, MessageId, Operation, Request, Status, Value};

use super::episodes::Entry;
use crate::load::RECEIVE_BUFFER_BYTES;
use crate::values::Random;

/// Longest sleep between two looks at sockets and clock.
const REST_MAX: Duration = Duration::from_micros(100);
/// Requests sent before replies are looked at, when many are due.
const BURST_MAX: u64 = 32;
/// Requests that can be under way; an older one that is still unanswered then is lost.
const UNDER_WAY_MAX: usize = 1 << 16;
/// How long answers are waited for in the end.
const AFTERMATH: Duration = Duration::from_millis(500);
/// Longest latency that the histogram tells apart, in nanoseconds.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// What to ask.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Whom.
    pub servers: Vec<SocketAddr>,
    /// Which of them for each request.
    pub entry: Entry,
    /// Requests a second.
    pub rate: u32,
    /// Sockets that they are spread over.
    pub sockets: usize,
    /// Keys are the numbers below this.
    pub keys: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Gets of a hundred requests; the others are puts.
    pub gets_percent: usize,
    /// Requests due before this count for nothing.
    pub warm_up: Duration,
    /// Requests due for this long behind it are what is reported.
    pub window: Duration,
    /// Seed of the draws.
    pub seed: u64,
}

impl Pace {
    /// The key of a number.
    pub fn key(number: usize) -> Key {
        Key::parse(format!("flame-{number}").as_bytes()).expect("it has 7 to 26 bytes")
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Paced {
    /// Requests that were due in the window.
    pub due: u64,
    /// Those of them that were answered with success.
    pub succeeded: u64,
    /// Those that were answered with anything else.
    pub refused: u64,
    /// From the intended moment to the answer, in nanoseconds.
    pub latency: Histogram<u64>,
    /// From the intended moment to sending, in nanoseconds.
    pub lateness: Histogram<u64>,
}

impl Paced {
    /// Requests that nobody answered.
    pub fn lost(&self) -> u64 {
        self.due - self.succeeded - self.refused
    }
}

/// How others watch a run and end it.
#[derive(Debug, Default)]
pub struct Watch {
    /// Answers of the whole run so far.
    pub answers: AtomicU64,
    /// Set to end it early.
    pub stop: AtomicBool,
}

struct Engine<'a> {
    pace: &'a Pace,
    watch: &'a Watch,
    sockets: Vec<UdpSocket>,
    started: Instant,
    nonce: u64,
    random: Random,
    /// When each request under way was due, in nanoseconds plus one; 0 = not under way.
    due_at: Vec<u64>,
    value: Vec<u8>,
    datagram: Vec<u8>,
    paced: Paced,
}

/// Asks at the pace until the window is over.
///
/// # Errors
/// Sockets that cannot be opened.
pub fn run(pace: &Pace, watch: &Watch) -> io::Result<Paced> {
    let sockets = (0..pace.sockets).map(|_| open_socket()).collect::<io::Result<_>>()?;
    let histogram = || Histogram::new_with_bounds(1_000, LATENCY_NS_MAX, 3).expect("the bounds are in order");
    let mut random = Random::new(pace.seed);
    let mut engine = Engine {
        pace,
        watch,
        sockets,
        started: Instant::now(),
        nonce: Random::new(Random::fresh_seed()).next(),
        value: random.bytes(pace.value_bytes),
        random,
        due_at: vec![0; UNDER_WAY_MAX],
        datagram: Vec::new(),
        paced: Paced { due: 0, succeeded: 0, refused: 0, latency: histogram(), lateness: histogram() },
    };
    engine.run();
    Ok(engine.paced)
}

fn open_socket() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_nonblocking(true)?;
    SockRef::from(&socket).set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    Ok(socket)
}

impl Engine<'_> {
    fn run(&mut self) {
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        let end = self.pace.warm_up + self.pace.window;
        let total = self.number_due_before(end);
        let mut next = 0;
        while next < total && !self.watch.stop.load(Ordering::Relaxed) {
            let due = self.number_due_before(self.started.elapsed()).min(total);
            let until = due.min(next + BURST_MAX);
            (next..until).for_each(|number| self.send(number));
            next = until;
            self.drain(&mut buffer);
            if next == due {
                std::thread::sleep(REST_MAX.min(self.due(next).saturating_sub(self.started.elapsed())));
            }
        }
        let close = self.started.elapsed() + AFTERMATH;
        while self.paced.lost() != 0 && self.started.elapsed() < close {
            self.drain(&mut buffer);
            std::thread::sleep(REST_MAX);
        }
    }

    fn due(&self, number: u64) -> Duration {
        Duration::from_nanos((u128::from(number) * 1_000_000_000 / u128::from(self.pace.rate)) as u64)
    }

    fn number_due_before(&self, moment: Duration) -> u64 {
        (moment.as_nanos() * u128::from(self.pace.rate)).div_ceil(1_000_000_000) as u64
    }

    fn is_counted(&self, due: Duration) -> bool {
        self.pace.warm_up <= due && due < self.pace.warm_up + self.pace.window
    }

    fn send(&mut self, number: u64) {
        let due = self.due(number);
        self.due_at[number as usize % UNDER_WAY_MAX] = due.as_nanos() as u64 + 1;
        if self.is_counted(due) {
            self.paced.due += 1;
            let lateness = self.started.elapsed().saturating_sub(due);
            self.paced.lateness.saturating_record(lateness.as_nanos() as u64);
        }
        let key = Pace::key(self.random.below(self.pace.keys));
        let operation = if self.random.below(100) < self.pace.gets_percent {
            Operation::Get { key }
        } else {
            Operation::Put { key, value: Value { bytes: &self.value, version: 0 } }
        };
        let request = Request { format: Format::Protobuf, id: id_of(self.nonce, number), operation };
        self.datagram.clear();
        encode_request(&request, &mut self.datagram);
        let server = match self.pace.entry {
            Entry::First => 0,
            Entry::Random => self.random.below(self.pace.servers.len()),
        };
        let socket = &self.sockets[number as usize % self.sockets.len()];
        // What the kernel refuses gets no answer, and so is counted as lost.
        let _ = socket.send_to(&self.datagram, self.pace.servers[server]);
    }

    fn drain(&mut self, buffer: &mut [u8]) {
        for index in 0..self.sockets.len() {
            while let Ok(bytes) = self.sockets[index].recv(buffer) {
                self.on_reply(&buffer[..bytes]);
            }
        }
    }

    fn on_reply(&mut self, datagram: &[u8]) {
        let Ok(response) = decode_response(Format::Protobuf, 0, datagram) else { return };
        let Some(number) = number_of(self.nonce, response.id) else { return };
        let due = self.due(number);
        let place = &mut self.due_at[number as usize % UNDER_WAY_MAX];
        // A second reply, or one to a request whose place was taken over by a later one.
        if *place != due.as_nanos() as u64 + 1 {
            return;
        }
        *place = 0;
        self.watch.answers.fetch_add(1, Ordering::Relaxed);
        if !self.is_counted(due) {
            return;
        }
        let latency = self.started.elapsed().saturating_sub(due);
        self.paced.latency.saturating_record(latency.as_nanos() as u64);
        if response.status == Status::Success { self.paced.succeeded += 1 } else { self.paced.refused += 1 }
    }
}

fn id_of(nonce: u64, number: u64) -> MessageId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&nonce.to_le_bytes());
    id[8..].copy_from_slice(&number.to_le_bytes());
    MessageId(id)
}

fn number_of(nonce: u64, id: MessageId) -> Option<u64> {
    let (first, last) = id.0.split_first_chunk::<8>()?;
    let number = last.first_chunk::<8>()?;
    (u64::from_le_bytes(*first) == nonce).then(|| u64::from_le_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use violet_client::Response;
    use violet_client::wire::{Accept, decode_request, encode_response};

    #[test]
    fn every_request_is_sent_once_at_its_time_and_counted_by_what_came_of_it() {
        let server = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        server.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
        let pace = Pace {
            servers: vec![server.local_addr().expect("bound")],
            entry: Entry::Random,
            rate: 1_000,
            sockets: 3,
            keys: 10,
            value_bytes: 20,
            gets_percent: 50,
            warm_up: Duration::from_millis(100),
            window: Duration::from_millis(200),
            seed: 1,
        };
        let watch = Watch::default();
        let (paced, gets) = std::thread::scope(|scope| {
            let running = scope.spawn(|| run(&pace, &watch).expect("sockets"));
            let (mut buffer, mut gets) = ([0; 2_000], 0);
            for number in 0..300 {
                let (bytes, client) = server.recv_from(&mut buffer).expect("a request");
                let request = decode_request(&buffer[..bytes], Accept::Auto).expect("a request");
                gets += usize::from(matches!(request.operation, Operation::Get { .. }));
                // Of the window's 200, every fourth is refused and every fourth gets no answer.
                let status = match number % 4 {
                    0 => Status::NoSuchKey,
                    1 => continue,
                    _ => Status::Success,
                };
                let mut reply = Vec::new();
                encode_response(request.format, &Response::of_status(request.id, status), &mut reply);
                for _ in 0..2 {
                    server.send_to(&reply, client).expect("sent");
                }
            }
            (running.join().expect("no panic"), gets)
        });
        assert_eq!((paced.due, paced.succeeded, paced.refused, paced.lost()), (200, 100, 50, 50));
        assert_eq!((paced.latency.len(), paced.lateness.len()), (150, 200));
        assert_eq!(watch.answers.load(Ordering::Relaxed), 225);
        assert!((100..200).contains(&gets));
    }
}
