//! The load generator of the measurements: one thread, a few connected sockets, batches in and out.
//!
//! Every request has a running number on its socket; its entry lies in a ring at that number, so a reply
//! finds it by an index and the oldest unanswered request is always known. *Closed*: as many requests as
//! the window says are under way; the thread sleeps when nothing has come. *Open*: requests are due at
//! fixed times, whatever the replies do, and latency counts from the time a request was *due*, so a server
//! that stalls is charged for all that queued up meanwhile; the thread never sleeps, since the system's
//! timer would be later than a whole queue is long. Requests that fall due together leave together, GETs
//! and PUTs each as one run of equal length ([`crate::sockets::send_run`]).
//!
//! Deliberately not here: retries. A request without a reply after [`PATIENCE`] is lost and counted.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::MsgFlags;

use super::codec::{Answer, Asked, Codec, Kind};
use super::load::{Mix, Stream, Tally};
use crate::sockets::{self, BATCH, Inbox, Outbox, Packing};
use crate::values::Random;

/// After this long a request counts as lost; queues of 4 MiB are emptied in a tenth of it.
pub const PATIENCE: Duration = Duration::from_millis(250);
/// Longest sleep while nothing comes; lost requests are looked for as often.
const SLEEP: Duration = Duration::from_millis(5);
/// Requests per socket that are kept in mind, counted from the oldest that is open: in a closed load, too,
/// one reply may be late while all others come. memcached's ids have 16 bits.
const RING: usize = 1 << 16;
/// How many unanswered PUTs of a filling are sent again before the server is given up.
const FILL_RETRIES_MAX: usize = 100_000;

/// When requests are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// This many are under way, all sockets together.
    Closed {
        /// The window.
        window: usize,
    },
    /// This many a second, evenly.
    Open {
        /// Requests a second.
        rate: f64,
    },
}

/// A load on one server.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The server.
    pub server: SocketAddr,
    /// Sockets that the requests are spread over.
    pub sockets: usize,
    /// When requests are made.
    pub pace: Pace,
    /// How they leave.
    pub packing: Packing,
    /// Seed of the draws.
    pub seed: u64,
}

/// When the requests of an open load are due. Times follow from the number of the request alone, so being
/// late never moves a later request.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    nanos_per_request: f64,
}

impl Schedule {
    /// Evenly spread, this many a second.
    pub fn new(rate: f64) -> Self {
        Self { nanos_per_request: 1e9 / rate.max(1e-3) }
    }

    /// When request number `index` is due, in nanoseconds from the start.
    pub fn due_nanos(&self, index: u64) -> u64 {
        (index as f64 * self.nanos_per_request) as u64
    }

    /// How many requests are due by this time.
    pub fn due_by(&self, nanos: u64) -> u64 {
        (nanos as f64 / self.nanos_per_request) as u64 + 1
    }
}

#[derive(Clone, Copy)]
struct Entry {
    /// As it stands on the wire.
    number: u64,
    since_nanos: u64,
    asked: Asked,
    is_open: bool,
}

/// One socket with its requests.
struct Port {
    socket: std::net::UdpSocket,
    ring: Vec<Entry>,
    /// The number of the next request; numbers count up from 0 on every port.
    next: u64,
    /// No request before this one is open.
    oldest: u64,
    open: usize,
    gets: Vec<u8>,
    puts: Vec<u8>,
}

impl Port {
    fn entry(&mut self, number: u64) -> &mut Entry {
        let slot = number as usize & (self.ring.len() - 1);
        &mut self.ring[slot]
    }

    /// Closes what can be closed at the old end: what is answered, and what is older than the limit, or
    /// anything if there is no room for a new request. Calls back for each that is lost.
    fn sweep(&mut self, lost_before_nanos: u64, mut on_lost: impl FnMut(Asked)) {
        while self.oldest < self.next {
            let is_full = self.ring.len() as u64 <= self.next - self.oldest;
            let entry = self.entry(self.oldest);
            if entry.is_open {
                if lost_before_nanos <= entry.since_nanos && !is_full {
                    return;
                }
                entry.is_open = false;
                let asked = entry.asked;
                self.open -= 1;
                on_lost(asked);
            }
            self.oldest += 1;
        }
    }
}

/// A load that is running. Ports and entries live as long as it does, so that warming up and measuring are
/// one stream.
pub struct Generator<'a> {
    codec: &'a Codec,
    mix: Mix,
    load: Load,
    ports: Vec<Port>,
    inbox: Inbox<()>,
    outbox: Outbox<()>,
    random: Random,
    started: Instant,
    schedule: Schedule,
    /// Requests of the schedule that were sent.
    scheduled: u64,
    /// The socket that the next burst of an open load goes to.
    turn_of: usize,
    puts: u32,
    swept_nanos: u64,
    tally: Tally,
}

impl<'a> Generator<'a> {
    /// Opens the sockets.
    ///
    /// # Errors
    /// As the system says.
    pub fn new(codec: &'a Codec, mix: Mix, load: Load) -> io::Result<Self> {
        let mut tally = Tally::new();
        let mut ports = Vec::with_capacity(load.sockets);
        for _ in 0..load.sockets {
            let opened = sockets::open(0)?;
            opened.socket.connect(load.server)?;
            tally.receive_buffer_bytes = tally.receive_buffer_bytes.min(opened.receive_buffer_bytes);
            let asked = Asked { kind: Kind::Get, key: 0, pieces_seen: 0 };
            let entry = Entry { number: 0, since_nanos: 0, asked, is_open: false };
            let (gets, puts) = (Vec::new(), Vec::new());
            let ring = vec![entry; RING];
            ports.push(Port { socket: opened.socket, ring, next: 0, oldest: 0, open: 0, gets, puts });
        }
        let schedule = Schedule::new(match load.pace {
            Pace::Open { rate } => rate,
            Pace::Closed { .. } => f64::INFINITY,
        });
        Ok(Self {
            inbox: Inbox::new(codec.reply_bytes_max().next_multiple_of(64)),
            codec,
            mix,
            ports,
            outbox: Outbox::new(),
            random: Random::new(load.seed),
            started: Instant::now(),
            load,
            schedule,
            scheduled: 0,
            turn_of: 0,
            puts: 0,
            swept_nanos: 0,
            tally,
        })
    }

    fn now_nanos(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Puts all keys of a [`Mix::Fill`].
    ///
    /// # Errors
    /// One sentence, when the server does not take them.
    pub fn fill(&mut self) -> Result<(), String> {
        loop {
            let now_nanos = self.now_nanos();
            self.turn(now_nanos).map_err(|error| format!("while filling: {error}"))?;
            let Mix::Fill { keys, next, again, losses } = &self.mix else {
                unreachable!("the caller fills with a filling mix")
            };
            let is_open = self.ports.iter().any(|port| 0 < port.open);
            if *next == *keys && again.is_empty() && !is_open {
                return match self.tally.wrong {
                    0 => Ok(()),
                    wrong => Err(format!("{wrong} PUTs were not answered with success")),
                };
            }
            if FILL_RETRIES_MAX < *losses {
                return Err(format!("{losses} PUTs were not answered"));
            }
        }
    }

    /// Receives, sends, and sleeps if there was nothing to do and the pace allows. Whether there was.
    fn turn(&mut self, now_nanos: u64) -> io::Result<bool> {
        let received = self.receive()?;
        let sent = match self.load.pace {
            Pace::Closed { window } => self.send_window(window)?,
            Pace::Open { .. } => self.send_due()?,
        };
        if SLEEP.as_nanos() as u64 <= now_nanos - self.swept_nanos {
            self.sweep(now_nanos);
        }
        if 0 < received + sent {
            return Ok(true);
        }
        if matches!(self.load.pace, Pace::Closed { .. }) {
            self.sleep()?;
        }
        Ok(false)
    }

    fn sweep(&mut self, now_nanos: u64) {
        self.swept_nanos = now_nanos;
        let before_nanos = now_nanos.saturating_sub(PATIENCE.as_nanos() as u64);
        let (tally, mix) = (&mut self.tally, &mut self.mix);
        for port in &mut self.ports {
            port.sweep(before_nanos, |asked| Self::on_lost(tally, mix, asked));
        }
    }

    fn on_lost(tally: &mut Tally, mix: &mut Mix, asked: Asked) {
        tally.lost += 1;
        mix.on_lost(asked.key);
    }

    fn sleep(&self) -> io::Result<()> {
        let mut descriptors: Vec<PollFd<'_>> =
            self.ports.iter().map(|port| PollFd::new(port.socket.as_fd(), PollFlags::POLLIN)).collect();
        let limit = PollTimeout::try_from(SLEEP).expect("a few milliseconds");
        match poll(&mut descriptors, limit) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// One batch from every socket.
    fn receive(&mut self) -> io::Result<usize> {
        let mut count = 0;
        for index in 0..self.ports.len() {
            let socket = self.ports[index].socket.as_raw_fd();
            let received = self.inbox.receive(socket, MsgFlags::MSG_DONTWAIT)?;
            if received == 0 {
                continue;
            }
            count += received;
            // One look at the clock for the batch: what is in it came before.
            let now_nanos = self.now_nanos();
            let port = &mut self.ports[index];
            for (datagram, _) in self.inbox.datagrams() {
                Self::on_datagram(self.codec, port, &mut self.tally, &mut self.mix, now_nanos, datagram);
            }
        }
        Ok(count)
    }

    fn on_datagram(
        codec: &Codec,
        port: &mut Port,
        tally: &mut Tally,
        mix: &mut Mix,
        now_nanos: u64,
        datagram: &[u8],
    ) {
        let Some(carried) = codec.number(datagram) else {
            tally.stray += 1;
            return;
        };
        let entry = port.entry(carried);
        if !entry.is_open || !codec.is_number(entry.number, carried) {
            tally.stray += 1;
            return;
        }
        let answer = codec.check(&mut entry.asked, datagram);
        if answer == Answer::Partial {
            return;
        }
        entry.is_open = false;
        let (asked, since_nanos) = (entry.asked, entry.since_nanos);
        port.open -= 1;
        match answer {
            Answer::Right => tally.answer(now_nanos.saturating_sub(since_nanos)),
            Answer::Wrong => tally.wrong += 1,
            Answer::Refused => {
                tally.refused += 1;
                mix.on_lost(asked.key);
            }
            Answer::Partial => unreachable!("left above"),
        }
    }

    /// Writes a request into the port's runs.
    fn write(&mut self, index: usize, kind: Kind, key: u32, since_nanos: u64) {
        self.puts = self.puts.wrapping_add(u32::from(kind == Kind::Put));
        let port = &mut self.ports[index];
        let (tally, mix) = (&mut self.tally, &mut self.mix);
        if port.ring.len() as u64 <= port.next - port.oldest {
            port.sweep(0, |asked| Self::on_lost(tally, mix, asked));
        }
        let number = wire_number(index, port.next);
        let asked = Asked { kind, key, pieces_seen: 0 };
        *port.entry(number) = Entry { number, since_nanos, asked, is_open: true };
        (port.next, port.open) = (port.next + 1, port.open + 1);
        let run = match kind {
            Kind::Get => &mut port.gets,
            Kind::Put => &mut port.puts,
        };
        self.codec.write(kind, key, number, self.puts, run);
        self.tally.sent += 1;
    }

    fn flush(&mut self, index: usize) -> io::Result<()> {
        let port = &mut self.ports[index];
        for (kind, run) in [(Kind::Get, &mut port.gets), (Kind::Put, &mut port.puts)] {
            if !run.is_empty() {
                let bytes = self.codec.request_bytes(kind);
                sockets::send_run(&mut self.outbox, &port.socket, run, bytes, self.load.packing)?;
                run.clear();
            }
        }
        Ok(())
    }

    /// Fills every socket's share of the window.
    fn send_window(&mut self, window: usize) -> io::Result<usize> {
        let mut sent = 0;
        for index in 0..self.ports.len() {
            let share = window * (index + 1) / self.ports.len() - window * index / self.ports.len();
            let room = share.saturating_sub(self.ports[index].open);
            if room == 0 {
                continue;
            }
            let now_nanos = self.now_nanos();
            for _ in 0..room {
                let Some((kind, key)) = self.mix.draw(&mut self.random) else { break };
                self.write(index, kind, key, now_nanos);
                sent += 1;
            }
            self.flush(index)?;
        }
        Ok(sent)
    }

    /// Sends what is due, at most one batch for each socket, so that replies are not kept waiting.
    fn send_due(&mut self) -> io::Result<usize> {
        let now_nanos = self.now_nanos();
        let due = self.schedule.due_by(now_nanos).saturating_sub(self.scheduled);
        let count = due.min((BATCH * self.ports.len()) as u64) as usize;
        // Bursts go to the sockets in turn: packed, one socket's share of a burst is one message.
        let share = count.div_ceil(self.ports.len());
        let mut left = count;
        while 0 < left {
            let index = self.turn_of;
            self.turn_of = (index + 1) % self.ports.len();
            let burst = left.min(share);
            for _ in 0..burst {
                let due_nanos = self.schedule.due_nanos(self.scheduled);
                self.tally.lateness.saturating_record(now_nanos.saturating_sub(due_nanos));
                let Some((kind, key)) = self.mix.draw(&mut self.random) else { break };
                self.write(index, kind, key, due_nanos);
                self.scheduled += 1;
            }
            self.flush(index)?;
            left -= burst;
        }
        Ok(count)
    }
}

impl Stream for Generator<'_> {
    fn run(&mut self, duration: Duration) -> io::Result<()> {
        let end_nanos = self.now_nanos() + duration.as_nanos() as u64;
        let mut now_nanos = self.now_nanos();
        while now_nanos < end_nanos {
            let is_working = self.turn(now_nanos)?;
            let after_nanos = self.now_nanos();
            if !is_working {
                self.tally.idle += Duration::from_nanos(after_nanos - now_nanos);
            }
            now_nanos = after_nanos;
        }
        Ok(())
    }

    fn drain(&mut self) -> io::Result<()> {
        let limit_nanos = self.now_nanos() + PATIENCE.as_nanos() as u64 + SLEEP.as_nanos() as u64;
        while self.ports.iter().any(|port| 0 < port.open) && self.now_nanos() < limit_nanos {
            if self.receive()? == 0 {
                self.sleep()?;
            }
        }
        let tally = &mut self.tally;
        self.ports.iter_mut().for_each(|port| port.sweep(u64::MAX, |_| tally.lost += 1));
        Ok(())
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    fn local_ports(&self) -> Vec<u16> {
        let address = |port: &Port| port.socket.local_addr().map(|address| address.port());
        self.ports.iter().filter_map(|port| address(port).ok()).collect()
    }
}

/// The number on the wire: it differs between the sockets of a run, and its low bits are those of the
/// number on the socket.
fn wire_number(port: usize, number: u64) -> u64 {
    (port as u64) << 48 | number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_times_follow_from_the_number_alone() {
        let schedule = Schedule::new(250_000.0);
        assert_eq!(
            (schedule.due_nanos(0), schedule.due_nanos(1), schedule.due_nanos(250_000)),
            (0, 4_000, 1_000_000_000)
        );
        for index in [0, 1, 2, 1_000, 123_456] {
            let due = schedule.due_nanos(index);
            assert_eq!(schedule.due_by(due), index + 1, "exactly at its time it is due");
            assert!(schedule.due_by(due.saturating_sub(1)) <= index + 1);
        }
        // A generator that stalls for a second finds all of that second's requests due, at their own times.
        let (before, after) = (schedule.due_by(1_000_000), schedule.due_by(1_001_000_000));
        assert_eq!(after - before, 250_000);
        assert_eq!(schedule.due_nanos(before), 1_004_000);
    }

    fn port(ring: usize) -> Port {
        let socket = sockets::open(0).unwrap().socket;
        let asked = Asked { kind: Kind::Get, key: 0, pieces_seen: 0 };
        let entry = Entry { number: 0, since_nanos: 0, asked, is_open: false };
        Port { socket, ring: vec![entry; ring], next: 0, oldest: 0, open: 0, gets: vec![], puts: vec![] }
    }

    fn open(port: &mut Port, since_nanos: u64) {
        let number = port.next;
        let asked = Asked { kind: Kind::Put, key: number as u32, pieces_seen: 0 };
        *port.entry(number) = Entry { number, since_nanos, asked, is_open: true };
        (port.next, port.open) = (number + 1, port.open + 1);
    }

    #[test]
    fn old_requests_are_lost_and_a_full_ring_gives_up_its_oldest() {
        let mut port = port(4);
        (0..3).for_each(|number| open(&mut port, number * 100));
        let mut lost = Vec::new();
        port.sweep(101, |asked| lost.push(asked.key));
        assert_eq!((lost.as_slice(), port.open, port.oldest), (&[0, 1][..], 1, 2));
        (0..3).for_each(|_| open(&mut port, 1_000));
        port.sweep(0, |asked| lost.push(asked.key));
        assert_eq!((lost.as_slice(), port.open), (&[0, 1, 2][..], 3), "one makes room, no more");
    }

    #[test]
    fn every_request_of_a_closed_load_is_answered_and_right() {
        let server = sockets::open(0).unwrap().socket;
        let contents = super::super::contents::Contents::new(1, 100);
        let codec = Codec::new(super::super::codec::Dialect::Echo, contents, 1);
        for packing in [Packing::Single, Packing::Segments] {
            let load = Load {
                server: server.local_addr().unwrap(),
                sockets: 3,
                pace: Pace::Closed { window: 10 },
                packing,
                seed: 1,
            };
            let mix = Mix::fill(500);
            let mut generator = Generator::new(&codec, mix, load).unwrap();
            assert_eq!(generator.local_ports().len(), 3);
            server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut buffer = [0; 1_024];
                    for _ in 0..500 {
                        let (bytes, from) = server.recv_from(&mut buffer).unwrap();
                        server.send_to(&buffer[..bytes], from).unwrap();
                    }
                });
                generator.fill().unwrap();
            });
            let tally = &generator.tally;
            assert_eq!((tally.answered, tally.wrong, tally.stray, tally.latency.len()), (500, 0, 0, 500));
        }
    }
}
