//! What one thread of a load does: take replies, look at deadlines, start what is due, send it, sleep.
//!
//! In one turn everything that is to leave is gathered and sent in batches; times of sending are taken right before.
//! Nothing is allocated per request: slots keep their datagrams for the retries, and are used again, the latest first.
//!
//! **Sleeping.** When there is nothing to do, the thread sleeps in `ppoll` until the next moment that it knows of. Its
//! timer slack is set to a nanosecond (50 µs is usual), and for the next request of an open loop it wakes [`SPIN`]
//! early and looks at the sockets again and again until the request is due, but only if requests are so far apart that
//! this takes a tenth of a processor at most. At higher rates it is late by what the system needs to wake it. Measured
//! on two processors beside three nodes: median and 99 of 100 of the lateness are 30 and 280 µs at 100/s, below 5 and
//! 60 µs at 1,000/s, 30 and 80 µs at 5,000/s, 20 and 240 µs at 50,000/s.
//!
//! How requests end is in [`ends`]. Deliberately not here: what is asked, threads, results.

mod ends;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use violet_client::wire::encode_request;
use violet_client::{Format, MessageId, Operation, Request, Response, Status, Value};

use super::deadlines::{Deadlines, Waiting};
use super::ids::Ids;
use super::ports::{BATCH, Leaving, Ports};
use super::punctual::{ProcessorTime, be_punctual};
use super::sheet::{SHEET, Sheet};
use super::slot::{Fate, Slot, State};
use super::{Ask, Conduct, End, NEVER, Nanos, Pace, Plan, Signals, Workload, nanos};
use crate::craft;
use crate::result::Counts;
use crate::tally::{Kind, Tally};
use crate::values::Random;

/// Clients of a closed loop that share a socket: their replies should fit its receive buffer while this thread waits
/// for a core.
const SOCKET_CLIENTS_MAX: usize = 128;
/// Most sockets; each is looked at in every turn.
const SOCKETS_MAX: usize = 16;
/// Sockets of an open loop.
const SOCKETS_OPEN: usize = 4;
/// How long before a request is due the thread wakes.
const SPIN: Nanos = 50_000;
/// Requests that are closer together than this on average are not waited for awake.
const SPIN_GAP_MIN: Nanos = 10 * SPIN;
/// Requests of which is remembered how they ended, to tell what a surplus reply is: some seconds at the highest rates.
const FATES: usize = 1 << 20;

struct Engine<'a, W> {
    conduct: &'a Conduct,
    workload: &'a mut W,
    signals: &'a Signals,
    hand_in: &'a mut dyn FnMut(Sheet),
    started: Instant,
    /// Requests that begin or are due from here on count, and up to `closes` they are made.
    counts_from: Nanos,
    closes: Nanos,
    /// Whether requests are still started.
    is_open: bool,
    pace: Pace,
    slots: Vec<Slot>,
    /// Slots of an open loop that are not in use.
    free: Vec<u32>,
    in_flight: usize,
    /// Clients of a closed loop that have not ended.
    active: usize,
    deadlines: Deadlines,
    resting: VecDeque<(Nanos, u32)>,
    paused: BinaryHeap<Reverse<(Nanos, u32)>>,
    /// By port: what is to leave.
    leaving: Vec<Vec<(u32, u64)>>,
    next_port: usize,
    next_number: u64,
    fates: Vec<Fate>,
    ids: Ids,
    random: Random,
    value: Vec<u8>,
    sheet: Sheet,
    sheet_ends: Nanos,
    tally: Tally,
    processor: ProcessorTime,
}

/// Runs a closed loop to its end and returns what was counted.
///
/// # Errors
/// Sockets that cannot be opened or polled.
pub fn run<W: Workload>(plan: &Plan, workload: &mut W, signals: &Signals) -> io::Result<Tally> {
    conduct(&plan.into(), workload, signals, &mut |_| {})
}

/// Runs a load of any kind to its end; sheets are handed in four times a second once requests count.
///
/// # Errors
/// Sockets that cannot be opened or polled.
pub(super) fn conduct<W: Workload>(
    conduct: &Conduct,
    workload: &mut W,
    signals: &Signals,
    hand_in: &mut dyn FnMut(Sheet),
) -> io::Result<Tally> {
    let sockets = match &conduct.pace {
        Pace::Closed { clients, .. } => clients.div_ceil(SOCKET_CLIENTS_MAX).clamp(1, SOCKETS_MAX),
        Pace::Open { .. } => SOCKETS_OPEN,
    };
    let mut ports = Ports::open(sockets, &conduct.servers, conduct.reply_bytes_max)?;
    let mut tally = Tally { threads: 1, ..Tally::new(conduct.servers.len()) };
    tally.receive_buffer_bytes = Some(ports.receive_buffer_bytes());
    let counts_from = nanos(conduct.warm_up);
    be_punctual();
    let engine = Engine {
        conduct,
        workload,
        signals,
        hand_in,
        started: Instant::now(),
        counts_from,
        closes: conduct.window.map_or(NEVER, |window| counts_from.saturating_add(nanos(window))),
        is_open: true,
        pace: conduct.pace.clone(),
        slots: Vec::new(),
        free: Vec::new(),
        in_flight: 0,
        active: 0,
        deadlines: Deadlines::new(conduct.waits.iter().map(|&wait| nanos(wait))),
        resting: VecDeque::new(),
        paused: BinaryHeap::new(),
        leaving: vec![Vec::with_capacity(BATCH); ports.count()],
        next_port: 0,
        next_number: 0,
        fates: vec![Fate::Open; FATES],
        ids: Ids::new(RandomState::new().hash_one(0)),
        random: Random::new(conduct.seed),
        value: Vec::new(),
        sheet: Sheet::new(0),
        sheet_ends: counts_from + SHEET,
        tally,
        processor: ProcessorTime::default(),
    };
    engine.run(&mut ports)
}

impl<W: Workload> Engine<'_, W> {
    fn run(mut self, ports: &mut Ports) -> io::Result<Tally> {
        self.begin(ports);
        let mut now = self.now();
        while 0 < self.in_flight || self.has_more() {
            self.turn_page(now);
            let received = self.receive(ports)?;
            let on_time = self.on_time(now, ports);
            let started = self.start_due(ports);
            self.flush(ports);
            let after = self.now();
            if received + on_time + started == 0 {
                self.rest(after, ports)?;
                now = self.now();
            } else {
                now = after;
            }
        }
        self.close(now);
        if 0 < self.sheet.answered + self.sheet.timed_out + self.sheet.offered {
            self.hand_in_sheet();
        }
        Ok(self.tally)
    }

    fn now(&self) -> Nanos {
        nanos(self.started.elapsed())
    }

    /// Whether anything may come when nothing is under way.
    fn has_more(&self) -> bool {
        match self.pace {
            Pace::Open { .. } => self.is_open,
            Pace::Closed { .. } => 0 < self.active,
        }
    }

    /// Starts all clients of a closed loop.
    fn begin(&mut self, ports: &mut Ports) {
        let now = self.now();
        if self.counts_from == 0 {
            self.processor.start();
        }
        let Pace::Closed { clients, .. } = self.pace else { return };
        self.active = clients;
        for client in 0..clients {
            let port = client / SOCKET_CLIENTS_MAX % ports.count();
            self.slots.push(Slot::new(port));
            self.start_next(client, now);
            self.flush_full(port, ports);
        }
        self.flush(ports);
    }

    /// Takes one batch from every socket; how many datagrams came.
    fn receive(&mut self, ports: &mut Ports) -> io::Result<usize> {
        let mut count = 0;
        for port in 0..ports.count() {
            let received = ports.receive(port)?;
            if received == 0 {
                continue;
            }
            count += received;
            // One look at the clock for the batch: what is in it came before.
            let now = self.now();
            self.turn_page(now);
            for (datagram, from) in ports.datagrams() {
                self.on_datagram(datagram, from, now);
            }
            self.flush(ports);
        }
        Ok(count)
    }

    /// Retries, gives up, wakes who rests or was told to pause. How many that were.
    fn on_time(&mut self, now: Nanos, ports: &mut Ports) -> usize {
        let mut count = 0;
        loop {
            let slots = &self.slots;
            let is_alive = |waiting: &Waiting, attempt: usize| {
                let slot = &slots[waiting.slot as usize];
                slot.number == waiting.number
                    && slot.state == State::Waiting
                    && slot.attempts as usize == attempt + 1
            };
            let Some((waiting, attempt)) = self.deadlines.take(now, is_alive) else { break };
            let slot = waiting.slot as usize;
            if attempt + 1 < self.deadlines.attempts() {
                self.retry(slot);
                self.flush_full(self.slots[slot].port as usize, ports);
            } else {
                self.on_timeout(slot, now);
            }
            count += 1;
        }
        while let Some(&(at, slot)) = self.resting.front()
            && at <= now
        {
            self.resting.pop_front();
            self.start_next(slot as usize, now);
            count += 1;
        }
        while let Some(&Reverse((at, slot))) = self.paused.peek()
            && at <= now
        {
            self.paused.pop();
            self.restart(slot as usize, now);
            count += 1;
        }
        self.flush(ports);
        count
    }

    /// Starts what is due in an open loop, a batch at most; how many slots that were.
    fn start_due(&mut self, ports: &mut Ports) -> usize {
        let now = self.now();
        if !self.is_open {
            return 0;
        }
        let port = self.next_port;
        let mut count = 0;
        while count < BATCH {
            let Pace::Open { schedule, in_flight_max } = &mut self.pace else { return 0 };
            let due = schedule.due();
            if self.closes <= due {
                // Only when that moment has come: a window is as long as it is said to be.
                self.check_window(now);
                break;
            }
            if now < due {
                break;
            }
            schedule.advance();
            count += 1;
            if *in_flight_max <= self.in_flight {
                self.skip(due);
                continue;
            }
            let slot = self.free.pop().unwrap_or_else(|| {
                self.slots.push(Slot::new(port));
                self.slots.len() as u32 - 1
            });
            self.slots[slot as usize].port = port as u32;
            if !self.start(slot as usize, due) {
                self.free.push(slot);
                self.close(now);
                break;
            }
        }
        if 0 < count {
            self.next_port = (port + 1) % ports.count();
        }
        count
    }

    fn skip(&mut self, due: Nanos) {
        if self.counts_from <= due {
            self.tally.loose.offered += 1;
            self.tally.loose.skipped += 1;
            self.sheet.offered += 1;
        }
    }

    /// Whether requests are still started in a closed loop. The first "no" ends the window.
    fn check_window(&mut self, now: Nanos) -> bool {
        if self.is_open && (self.closes <= now || self.signals.stop.load(Ordering::Relaxed)) {
            self.close(now);
        }
        self.is_open
    }

    /// Ends the window, once.
    fn close(&mut self, now: Nanos) {
        if !self.is_open {
            return;
        }
        self.is_open = false;
        self.tally.window = Duration::from_nanos(now.min(self.closes).saturating_sub(self.counts_from));
        self.tally.busy = self.processor.busy();
    }

    /// A client of a closed loop goes on, or ends.
    fn start_next(&mut self, client: usize, now: Nanos) {
        if !self.check_window(now) || !self.start(client, now) {
            self.slots[client].state = State::Idle;
            self.active -= 1;
        }
    }

    /// Starts the next request of the workload in a slot; whether there was one.
    fn start(&mut self, index: usize, due: Nanos) -> bool {
        self.value.clear();
        let Some(call) = self.workload.next(index, &mut self.value) else { return false };
        let operation = match call.ask {
            Ask::Put { key, version } => Operation::Put { key, value: Value { bytes: &self.value, version } },
            Ask::Get { key } => Operation::Get { key },
            Ask::Remove { key } => Operation::Remove { key },
            Ask::Wipeout => Operation::Wipeout,
            Ask::IsAlive => match self.conduct.format {
                Format::Raw => Operation::Unknown(99),
                Format::Protobuf => Operation::IsAlive,
            },
        };
        let format = self.conduct.format;
        let number = self.next_number;
        let slot = &mut self.slots[index];
        slot.server = call.server as u32;
        slot.command = operation.command();
        slot.kind = kind_of(&call.ask);
        slot.value_bytes = self.value.len() as u32;
        slot.restarts = 0;
        slot.datagram.clear();
        encode_request(&Request { format, id: self.ids.of(index, number), operation }, &mut slot.datagram);
        self.enter(index, due);
        true
    }

    /// Asks the same again under a new id.
    fn restart(&mut self, index: usize, now: Nanos) {
        if !self.check_window(now) {
            let status = Response::of_status(MessageId([0; 16]), Status::Overload);
            let _ = self.workload.on_end(index, End::Answered(status));
            self.start_next(index, now);
            return;
        }
        let id = self.ids.of(index, self.next_number);
        craft::replace_id(self.conduct.format, id, &mut self.slots[index].datagram);
        if self.conduct.redraw_server {
            self.slots[index].server = self.random.below(self.conduct.servers.len()) as u32;
        }
        self.enter(index, now);
    }

    /// A request whose datagram is written begins.
    fn enter(&mut self, index: usize, due: Nanos) {
        let slot = &mut self.slots[index];
        slot.number = self.next_number;
        slot.state = State::Waiting;
        slot.attempts = 1;
        slot.due = due;
        slot.is_counted = self.counts_from <= due;
        slot.first_sent = NEVER;
        self.fates[slot.number as usize % FATES] = Fate::Open;
        self.next_number += 1;
        self.in_flight += 1;
        self.leaving[slot.port as usize].push((index as u32, slot.number));
        if slot.is_counted {
            self.sheet.offered += 1;
            self.count(index, |counts| {
                counts.offered += 1;
                counts.sent += 1;
            });
        }
    }

    fn retry(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.attempts += 1;
        self.leaving[slot.port as usize].push((index as u32, slot.number));
    }

    /// Counts something of a request, for its operation and its server.
    fn count(&mut self, index: usize, change: impl Fn(&mut Counts)) {
        let slot = &self.slots[index];
        change(&mut self.tally.of(slot.kind).counts);
        change(&mut self.tally.servers[slot.server as usize].counts);
    }

    fn flush_full(&mut self, port: usize, ports: &mut Ports) {
        if BATCH <= self.leaving[port].len() {
            self.flush_port(port, ports);
        }
    }

    fn flush(&mut self, ports: &mut Ports) {
        for port in 0..self.leaving.len() {
            if !self.leaving[port].is_empty() {
                self.flush_port(port, ports);
            }
        }
    }

    /// Sends what is to leave by a socket.
    fn flush_port(&mut self, port: usize, ports: &mut Ports) {
        let mut leaving = std::mem::take(&mut self.leaving[port]);
        for chunk in leaving.chunks(BATCH) {
            let now = self.now();
            chunk.iter().for_each(|&(index, number)| self.note_sending(index as usize, number, now));
            let mut batch: [Leaving<'_>; BATCH] = [(&[], 0); BATCH];
            for (place, &(index, _)) in batch.iter_mut().zip(chunk) {
                let slot = &self.slots[index as usize];
                *place = (&slot.datagram, slot.server as usize);
            }
            self.tally.send_failures += ports.send(port, &mut batch[..chunk.len()]) as u64;
        }
        leaving.clear();
        self.leaving[port] = leaving;
    }

    /// Nothing ends between being put among what leaves and leaving, so the slot still holds that request.
    fn note_sending(&mut self, index: usize, number: u64, now: Nanos) {
        let slot = &mut self.slots[index];
        debug_assert_eq!(slot.number, number, "the slot was used again before its datagram left");
        slot.last_sent = now;
        let is_first = slot.first_sent == NEVER;
        if is_first {
            slot.first_sent = now;
        }
        self.deadlines.set(slot.attempts as usize - 1, now, index as u32, number);
        let (is_counted, due) = (slot.is_counted, slot.due);
        if is_counted {
            self.count(index, |counts| counts.datagrams += 1);
            if is_first {
                self.tally.lateness.record(Duration::from_nanos(now.saturating_sub(due)));
            }
        }
    }

    /// A request has ended: the slot is free, or its client asks again.
    fn go_on(&mut self, index: usize, now: Nanos) {
        match self.pace {
            Pace::Open { .. } => self.free.push(index as u32),
            Pace::Closed { rest, .. } if rest.is_zero() => self.start_next(index, now),
            Pace::Closed { rest, .. } => {
                self.slots[index].state = State::Resting;
                self.resting.push_back((now + nanos(rest), index as u32));
            }
        }
    }

    /// Hands in the sheet when its time is over, and looks at the signals.
    fn turn_page(&mut self, now: Nanos) {
        if now < self.sheet_ends && (self.processor.is_started() || now < self.counts_from) {
            return;
        }
        self.signals.answers.store(self.tally.answers_in_window, Ordering::Relaxed);
        self.check_window(now);
        if !self.processor.is_started() {
            self.processor.start();
        }
        if self.sheet_ends <= now {
            self.hand_in_sheet();
            let quarter = (now - self.counts_from) / SHEET;
            self.sheet = Sheet::new(quarter);
            self.sheet_ends = self.counts_from + (quarter + 1) * SHEET;
        }
    }

    fn hand_in_sheet(&mut self) {
        let mut sheet = std::mem::replace(&mut self.sheet, Sheet::new(0));
        sheet.in_flight = self.in_flight;
        (self.hand_in)(sheet);
    }

    /// Nothing was to do: sleeps until something is, or looks again if that is very soon.
    fn rest(&mut self, now: Nanos, ports: &mut Ports) -> io::Result<()> {
        let mut next = self.deadlines.next().min(self.sheet_ends);
        next = next.min(self.resting.front().map_or(NEVER, |&(at, _)| at));
        next = next.min(self.paused.peek().map_or(NEVER, |&Reverse((at, _))| at));
        if self.is_open {
            next = next.min(self.closes);
            if let Pace::Open { schedule, .. } = &self.pace {
                let early = if schedule.mean_gap() < SPIN_GAP_MIN { 0 } else { SPIN };
                next = next.min(schedule.due().saturating_sub(early));
            }
        }
        if now < next {
            ports.wait(Duration::from_nanos(next - now))?;
        } else {
            self.processor.idle(self.now() - now);
        }
        Ok(())
    }
}

fn kind_of(ask: &Ask) -> Kind {
    match ask {
        Ask::Put { .. } => Kind::Put,
        Ask::Get { .. } => Kind::Get,
        Ask::Remove { .. } => Kind::Remove,
        Ask::Wipeout | Ask::IsAlive => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Call, Verdict};
    use std::net::UdpSocket as StdSocket;
    use std::thread;
    use violet_client::Key;
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

        fn on_end(&mut self, _client: usize, end: End<'_>) -> Verdict {
            self.statuses.push(end.status());
            end.verdict()
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
            let counts = tally.counts();
            assert_eq!((counts.sent, counts.datagrams, counts.timed_out), (3, 6, 0));
            assert!(counts.is_balanced());
        }
    }

    #[test]
    fn silence_is_a_time_out_with_its_whole_patience() {
        let (tally, statuses) = run_against(Format::Raw, 1, |_, _, _| (0, Status::Success));
        assert_eq!(statuses, [None]);
        let counts = tally.counts();
        assert_eq!((counts.sent, counts.datagrams, counts.timed_out), (1, 2, 1));
        assert!(counts.is_balanced());
        assert!(999.0 < tally.latency_ms(100.0), "{}", tally.latency_ms(100.0));
    }

    #[test]
    fn an_overloaded_server_is_asked_again_under_a_new_id_but_not_for_ever() {
        let (tally, statuses) = run_against(Format::Protobuf, 1, |number, datagram, before| {
            assert_ne!(datagram, before);
            (1, if number < 2 { Status::Overload } else { Status::Success })
        });
        assert_eq!(statuses, [Some(Status::Success)]);
        assert_eq!((tally.counts().sent, tally.statuses()[&Status::Overload]), (3, 2));
        assert!(tally.counts().is_balanced());
        let (tally, statuses) = run_against(Format::Protobuf, 1, |_, _, _| (1, Status::Overload));
        assert_eq!(statuses, [Some(Status::Overload)]);
        assert_eq!(tally.counts().sent, 4);
    }

    #[test]
    fn a_second_reply_is_a_duplicate_without_a_retry_and_usual_after_one() {
        // The last request gets one reply: surplus replies to it would come when nobody listens.
        let (tally, _) = run_against(Format::Raw, 4, |number, _, _| (2 - number / 3, Status::Success));
        let counts = tally.counts();
        assert_eq!((counts.duplicates, counts.late, tally.surplus, counts.foreign), (3, 0, 0, 0));
        // The first datagram is answered only after its retry, and then twice.
        let (tally, _) = run_against(Format::Raw, 2, |number, _, _| ([0, 2, 1][number], Status::Success));
        let counts = tally.counts();
        assert_eq!((counts.duplicates, counts.late, tally.surplus, counts.foreign), (0, 0, 1, 0));
    }
}
