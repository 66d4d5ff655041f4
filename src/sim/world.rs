//! The world: machines, clients and the network between them, in virtual time.
//!
//! One queue of events, ordered by time and then by when they were made, drives everything; nothing
//! else moves. So a run follows from its seed alone, and [`World::trace_hash`] proves it: it covers
//! every event with its time, its place and its bytes.

use super::client::{Client, Letter};
use super::faults;
use super::history::{History, OpId};
use super::host::{Host, Plan, Plane, Report, State};
use super::message_count;
use super::network::{Network, Place};
use super::trace;
use crate::outbox::Outbox;
use crate::peer::{JOINED_BYTES_MAX, Message, PEER_MAGIC, glance};
use crate::time::{Duration, Instant};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use violet_link::{Control, Dice, Endpoint, Jitter, Settings};
use xxhash_rust::xxh3::xxh3_64;

/// When every simulation begins: a moment of 2025.
pub const BEGIN: Instant = Instant::from_nanos(1_750_000_000_000_000_000);

#[derive(Debug)]
enum Event {
    Arrive {
        from: SocketAddr,
        to: SocketAddr,
        bytes: Box<[u8]>,
    },
    Wake {
        node: usize,
        plane: Plane,
    },
    Client {
        client: usize,
    },
    /// A question of the bulk transport reaches its member.
    Question {
        ask: Ask,
        request: Vec<u8>,
    },
    /// Its answer, or the news that there is none, reaches the asker.
    Answer {
        ask: Ask,
        response: Option<Vec<u8>>,
    },
}

/// Who asked whom by the bulk transport.
#[derive(Clone, Copy, Debug)]
struct Ask {
    asker: usize,
    /// Which of the asker's processes.
    birth: u32,
    asked: usize,
    ticket: u64,
}

/// A connection on which nothing moves is given up after this long.
const BULK_PATIENCE: Duration = Duration::from_secs(10);
/// A member without a process refuses at once, or nearly so.
const BULK_REFUSAL: Duration = Duration::from_millis(2);
/// What a byte takes on its way by the bulk transport.
const BULK_PER_BYTE: Duration = Duration::from_nanos(10);
/// A lost packet is sent again within this time.
const BULK_RESEND: Duration = Duration::from_millis(400);

#[derive(Debug)]
struct Entry {
    at: Instant,
    sequence: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// Everything.
#[derive(Debug)]
pub struct World {
    /// The seed that all of it follows from.
    pub seed: u64,
    /// Now.
    pub now: Instant,
    /// The links.
    pub network: Network,
    /// The machines.
    pub hosts: Vec<Host>,
    /// The clients.
    pub clients: Vec<Client>,
    /// What the clients have seen.
    pub history: History,
    /// Datagrams that arrived so far.
    pub datagrams: u64,
    /// What was done to it, as commands of a script.
    pub journal: Vec<(Instant, String)>,
    /// Every event is printed.
    pub is_traced: bool,
    /// Datagrams that arrived and their bytes, by kind, if anybody wants to know.
    pub counted: Option<BTreeMap<trace::Kind, (u64, u64)>>,
    events: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
    hash: u64,
    letters: Vec<Letter>,
    bulk_dice: Dice,
}

impl World {
    /// A world of machines that are switched off. The first so many of them are on the first list of
    /// members, which all of these have; the others may join ([`World::join`]).
    #[must_use]
    pub fn new(seed: u64, plans: Vec<Plan>, first: usize, settings: Settings) -> Self {
        let members: Vec<SocketAddr> = (0..first).map(|node| Place::Node(node).address()).collect();
        let host = |(number, plan)| Host::new(number, plan, members.clone(), seed);
        Self {
            seed,
            now: BEGIN,
            network: Network::new(seed, settings),
            hosts: plans.into_iter().enumerate().map(host).collect(),
            clients: Vec::new(),
            history: History::default(),
            datagrams: 0,
            journal: Vec::new(),
            is_traced: false,
            counted: None,
            events: BinaryHeap::new(),
            sequence: 0,
            hash: seed,
            letters: Vec::new(),
            bulk_dice: Dice::of_part(seed, "bulk", 0),
        }
    }

    /// Starts a process on a machine; a running one is killed first.
    pub fn start(&mut self, node: usize) {
        self.write_down(format!("start n{node}"));
        self.launch(node);
    }

    /// Starts a process on a machine that knows of itself and one other, as somebody adds a node.
    pub fn join(&mut self, node: usize, via: usize) {
        self.write_down(format!("join n{node} via n{via}"));
        self.hosts[node].members = vec![self.hosts[node].address, self.hosts[via].address];
        self.launch(node);
    }

    fn launch(&mut self, node: usize) {
        if self.hosts[node].state != State::Down {
            self.end(node);
        }
        self.note("start", node as u64, 0);
        self.hosts[node].start(self.now);
        for plane in [Plane::Data, Plane::Control] {
            self.wake(node, plane, self.now);
        }
    }

    /// Asks a process to hand everything over and end; `false` when it runs not, or there is nobody.
    pub fn leave(&mut self, node: usize) -> bool {
        self.note("leave", node as u64, 0);
        self.write_down(format!("leave n{node}"));
        let host = &self.hosts[node];
        let process = host.process.as_ref().filter(|_| host.state == State::Up);
        process.is_some_and(|process| process.node.begin_leaving())
    }

    /// Kills a machine's process; its memory is lost.
    pub fn crash(&mut self, node: usize) {
        self.write_down(format!("crash n{node}"));
        self.end(node);
    }

    /// The process is gone; returns the acknowledged writes that went with it.
    fn end(&mut self, node: usize) -> Vec<OpId> {
        self.note("crash", node as u64, 0);
        let at_stake = self.history.keys_at_stake(&self.hosts[node]);
        self.hosts[node].crash();
        self.history.note_losses(&at_stake, self.now, &self.hosts)
    }

    /// Stops a machine's process.
    pub fn pause(&mut self, node: usize) {
        self.note("pause", node as u64, 0);
        self.write_down(format!("pause n{node}"));
        self.history.absences.push((node, self.now, Instant::FAR));
        self.hosts[node].pause();
    }

    /// Lets a stopped process go on.
    pub fn resume(&mut self, node: usize) {
        self.note("resume", node as u64, 0);
        self.write_down(format!("resume n{node}"));
        let of_node = |absence: &&mut (usize, Instant, Instant)| absence.0 == node;
        if let Some(absence) = self.history.absences.iter_mut().rev().find(of_node) {
            absence.2 = absence.2.min(self.now);
        }
        for (plane, at) in self.hosts[node].resume(self.now).into_iter().flatten() {
            self.wake(node, plane, at);
        }
    }

    /// From now on its threads lose their core now and then, for up to this long.
    pub fn starve(&mut self, node: usize, by: Duration) {
        self.history.starved.push((node, self.now));
        self.hosts[node].starved_by = by;
    }

    /// Cuts the links between two groups of nodes, in one direction or both.
    pub fn partition(&mut self, some: &[usize], others: &[usize], both_ways: bool) {
        self.note("partition", some.len() as u64, others.len() as u64);
        let names =
            |nodes: &[usize]| nodes.iter().map(|node| format!("n{node}")).collect::<Vec<_>>().join(" ");
        let (command, between) = if both_ways { ("partition", '|') } else { ("cut", '>') };
        self.write_down(format!("{command} {}{between}{}", names(some), names(others)));
        let places = |nodes: &[usize]| nodes.iter().map(|node| Place::Node(*node)).collect::<Vec<_>>();
        self.network.cut(&places(some), &places(others), both_ways);
        if both_ways && some.len() + others.len() == self.hosts.len() {
            let few = if some.len() < others.len() { some } else { others };
            self.history.begin_cut(few.to_vec(), self.now);
        }
    }

    /// Joins what was cut.
    pub fn heal(&mut self) {
        self.write_down("heal".into());
        self.network.links.heal();
        self.history.end_cuts(self.now);
    }

    /// Does what a timeline says: to processes what concerns nodes, all else to the links.
    ///
    /// # Errors
    /// The links do not take it.
    pub fn obey(&mut self, control: &Control) -> Result<(), String> {
        let nodes = |ends: &[Endpoint]| -> Vec<usize> {
            let nodes = ends.iter().filter(|end| !end.is_client());
            nodes.filter_map(|end| (end.0 as usize).checked_sub(1)).collect()
        };
        match control {
            Control::Pause(ends) => nodes(ends).into_iter().for_each(|node| self.pause(node)),
            Control::Resume(ends) => nodes(ends).into_iter().for_each(|node| self.resume(node)),
            Control::Crash(ends) => nodes(ends).into_iter().for_each(|node| self.crash(node)),
            Control::Start(ends) => nodes(ends).into_iter().for_each(|node| faults::revive(self, node)),
            Control::Partition(..)
            | Control::Oneway(..)
            | Control::Isolate(_)
            | Control::Heal
            | Control::Set(..)
            | Control::Bad(..)
            | Control::Limit(..)
            | Control::ScaleRtt(_)
            | Control::Reset => control.apply(&mut self.network.links)?,
        }
        match control {
            Control::Isolate(ends) => {
                let is_cut_off = |node: &usize| ends.contains(Endpoint(*node as u32 + 1));
                let few: Vec<usize> = (0..self.hosts.len()).filter(is_cut_off).collect();
                if few.len() * 2 <= self.hosts.len() {
                    self.history.begin_cut(few, self.now);
                }
            }
            Control::Heal | Control::Reset => self.history.end_cuts(self.now),
            _ => {}
        }
        self.note("control", xxh3_64(control.to_string().as_bytes()), 0);
        Ok(())
    }

    fn write_down(&mut self, command: String) {
        self.journal.push((self.now, command));
    }

    /// Adds a client; it acts when it is woken.
    pub fn add_client(&mut self, client: Client) -> usize {
        self.clients.push(client);
        self.clients.len() - 1
    }

    /// Lets a client act now.
    pub fn poke(&mut self, client: usize) {
        let Self { clients, history, hosts, letters, now, .. } = self;
        clients[client].act(*now, history, hosts, letters);
        self.post(client);
    }

    /// Lets everything happen that happens until then.
    pub fn run_until(&mut self, end: Instant) {
        while let Some(Reverse(entry)) = self.events.peek()
            && entry.at <= end
        {
            let Some(Reverse(Entry { at, event, .. })) = self.events.pop() else { break };
            self.now = self.now.max(at);
            match event {
                Event::Arrive { from, to, bytes } => self.arrive(from, to, bytes),
                Event::Wake { node, plane } => {
                    if self.hosts[node].take_wake(plane, at) {
                        self.step(node, plane);
                    }
                }
                Event::Client { client } => self.poke(client),
                Event::Question { ask, request } => self.answer_bulk(ask, &request),
                Event::Answer { ask, response } => self.take_bulk_answer(ask, response),
            }
        }
        self.now = self.now.max(end);
    }

    /// Lets everything happen that happens within this time.
    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    fn push(&mut self, at: Instant, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse(Entry { at, sequence: self.sequence, event }));
    }

    fn wake(&mut self, node: usize, plane: Plane, at: Instant) {
        if at != Instant::FAR && self.hosts[node].plan_wake(plane, at) {
            self.push(at, Event::Wake { node, plane });
        }
    }

    fn arrive(&mut self, from: SocketAddr, to: SocketAddr, bytes: Box<[u8]>) {
        self.datagrams += 1;
        if let Some(counts) = &mut self.counted {
            message_count::count(counts, to, &bytes);
        }
        let place = Place::of(to);
        self.mix(xxh3_64(&bytes));
        self.note("arrive", u64::from(to.port()), trace::number(place));
        if self.is_traced {
            println!("{:?} {}", self.now, trace::datagram(from, to, &bytes));
        }
        match place {
            Some(Place::Node(node)) => {
                let Some(plane) = self.hosts[node].receive(self.now, from, bytes) else { return };
                let free_at = self.hosts[node].busy_until(plane);
                if free_at <= self.now {
                    self.step(node, plane);
                } else {
                    self.wake(node, plane, free_at);
                }
            }
            Some(Place::Client(client)) => {
                let Self { clients, history, now, .. } = self;
                let Some(recipient) = clients.get_mut(client) else { return };
                if recipient.on_datagram(*now, from, to.port(), &bytes, history) {
                    self.poke(client);
                }
            }
            None => {}
        }
    }

    fn step(&mut self, node: usize, plane: Plane) {
        let wiped_at = self.hosts[node].wiped_at();
        let Some(stepped) = self.hosts[node].step(plane, self.now) else { return };
        if wiped_at < self.hosts[node].wiped_at() {
            let keys: Vec<usize> = self.history.newest_kept().map(|(key, ..)| key).collect();
            self.history.note_losses(&keys, self.now, &self.hosts);
        }
        if let Some(bytes) = stepped.handled {
            self.note("step", node as u64, bytes);
        }
        self.dispatch(node, stepped.leaves_at);
        self.wake(node, plane, stepped.next_at);
        if self.hosts[node].process.as_ref().is_some_and(|process| process.outbox.wants_exit()) {
            let is_planned = self.hosts[node].is_leaving();
            let lost = self.end(node);
            if is_planned {
                self.hosts[node].is_gone = true;
                self.history.lost_by_leaving.extend(lost);
            }
        }
    }

    /// Sends what a node wants sent.
    fn dispatch(&mut self, node: usize, leaves_at: Instant) {
        let Self { hosts, network, events, sequence, history, .. } = self;
        let host = &mut hosts[node];
        let Some(process) = &mut host.process else { return };
        for (address, bytes) in joined(&process.outbox, history) {
            let Some(to) = Place::of(address) else { continue };
            let bytes = &bytes[..];
            let deliveries = network.send(leaves_at, Place::Node(node), to, bytes);
            for delivery in deliveries {
                *sequence += 1;
                let bytes = damaged(bytes, delivery.damaged_bit);
                let event = Event::Arrive { from: host.address, to: address, bytes };
                events.push(Reverse(Entry { at: delivery.at, sequence: *sequence, event }));
            }
        }
        process.outbox.clear();
        for bulk in process.outbox.bulk_asks() {
            let Some(Place::Node(asked)) = Place::of(bulk.to) else { continue };
            let ask = Ask { asker: node, birth: host.births, asked, ticket: bulk.ticket };
            let link = network.settings(Place::Node(node), Place::Node(asked));
            let at = leaves_at + bulk_time(&mut self.bulk_dice, &link, bulk.request.len());
            *sequence += 1;
            let event = Event::Question { ask, request: bulk.request };
            events.push(Reverse(Entry { at, sequence: *sequence, event }));
        }
    }

    /// A question of the bulk transport arrives; its answer takes its time, too.
    fn answer_bulk(&mut self, ask: Ask, request: &[u8]) {
        self.note("bulk", ask.asker as u64, request.len() as u64);
        self.mix(xxh3_64(request));
        let is_cut = self.is_cut_between(ask);
        let asker = self.hosts[ask.asker].address;
        let host = &self.hosts[ask.asked];
        let (response, wait) = match host.state {
            State::Up if !is_cut => (host.answer_bulk(asker, request), Duration::ZERO),
            State::Down if !is_cut => (None, BULK_REFUSAL),
            State::Up | State::Paused | State::Down => (None, BULK_PATIENCE),
        };
        let bytes = response.as_ref().map_or(0, Vec::len);
        let link = self.network.settings(Place::Node(ask.asked), Place::Node(ask.asker));
        let at = self.now + wait + bulk_time(&mut self.bulk_dice, &link, bytes);
        self.push(at, Event::Answer { ask, response });
    }

    fn is_cut_between(&self, ask: Ask) -> bool {
        let (a, b) = (Place::Node(ask.asker), Place::Node(ask.asked));
        self.network.is_cut(a, b) || self.network.is_cut(b, a)
    }

    fn take_bulk_answer(&mut self, ask: Ask, response: Option<Vec<u8>>) {
        // What the process was that asked for it is gone.
        if self.hosts[ask.asker].births != ask.birth {
            return;
        }
        match self.hosts[ask.asker].state {
            State::Down => {}
            // The kernel keeps it.
            State::Paused => self.push(self.now + BULK_RESEND, Event::Answer { ask, response }),
            State::Up => {
                let response = response.filter(|_| !self.is_cut_between(ask));
                self.note("answer", ask.ticket, response.as_ref().map_or(0, |bytes| xxh3_64(bytes)));
                self.hosts[ask.asker].on_bulk(self.now, ask.ticket, response.as_deref());
                self.dispatch(ask.asker, self.now);
            }
        }
    }

    /// Sends one datagram for a client, beside what it sends itself.
    pub fn send_by_hand(&mut self, client: usize, port: u16, node: usize, bytes: Vec<u8>) {
        self.letters.push(Letter { node, port, bytes });
        self.post(client);
    }

    /// Sends what a client wants sent, and plans its next turn.
    fn post(&mut self, client: usize) {
        let place = Place::Client(client);
        for letter in std::mem::take(&mut self.letters) {
            let mut from = place.address();
            from.set_port(letter.port);
            let to = Place::Node(letter.node);
            let deliveries = self.network.send(self.now, place, to, &letter.bytes);
            for delivery in deliveries {
                let bytes = damaged(&letter.bytes, delivery.damaged_bit);
                self.push(delivery.at, Event::Arrive { from, to: to.address(), bytes });
            }
        }
        if let Some(at) = self.clients[client].plan_wake(self.now) {
            self.push(at, Event::Client { client });
        }
    }

    fn mix(&mut self, number: u64) {
        self.hash = (self.hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    fn note(&mut self, what: &str, a: u64, b: u64) {
        self.mix(xxh3_64(what.as_bytes()));
        self.mix(self.now.as_nanos());
        self.mix(a);
        self.mix(b);
        if self.is_traced && !matches!(what, "arrive" | "step") {
            println!("{:?} {what} {a} {b}", self.now);
        }
    }

    /// A number that covers everything that has happened.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.hash
    }

    /// The machines that have a process.
    #[must_use]
    pub fn living(&self) -> Vec<usize> {
        (0..self.hosts.len()).filter(|node| self.hosts[*node].state != State::Down).collect()
    }

    /// What every process says of itself.
    #[must_use]
    pub fn reports(&self) -> Vec<(usize, Report)> {
        self.hosts.iter().enumerate().filter_map(|(node, host)| Some((node, host.report()?))).collect()
    }

    /// Random numbers for a part of the run.
    #[must_use]
    pub fn dice(&self, part: &str, number: u64) -> Dice {
        Dice::of_part(self.seed, part, number)
    }
}

/// The datagrams of an outbox: frames in a row to one member are joined, as a real node does.
fn joined(outbox: &Outbox, history: &mut History) -> Vec<(SocketAddr, Vec<u8>)> {
    let mut datagrams: Vec<(SocketAddr, Vec<u8>)> = Vec::new();
    for send in outbox.sends() {
        let bytes = outbox.bytes(send);
        note_write(history, bytes);
        let joins = |(to, before): &&mut (SocketAddr, Vec<u8>)| {
            let are_frames = before.starts_with(&PEER_MAGIC) && bytes.starts_with(&PEER_MAGIC);
            *to == send.to && are_frames && before.len() + bytes.len() <= JOINED_BYTES_MAX
        };
        match datagrams.last_mut().filter(joins) {
            Some((_, before)) => before.extend_from_slice(bytes),
            None => datagrams.push((send.to, bytes.to_vec())),
        }
    }
    datagrams
}

/// The simulator reads what the nodes write to each other: which version a request was given.
fn note_write(history: &mut History, bytes: &[u8]) {
    if !bytes.starts_with(&PEER_MAGIC) {
        return;
    }
    if let Some((_, Message::Write { write, .. } | Message::Hint { write })) = glance(bytes) {
        history.note_write(&write);
    }
}

fn bulk_time(dice: &mut Dice, link: &Settings, bytes: usize) -> Duration {
    let is_lost = dice.chance(link.loss.average());
    let resend = if is_lost { dice.time(Duration::ZERO, BULK_RESEND) } else { Duration::ZERO };
    let (Jitter::Uniform(jitter) | Jitter::Lognormal(jitter)) = link.jitter;
    let way = link.delay + dice.time(Duration::ZERO, jitter);
    way + resend + BULK_PER_BYTE * bytes as u32
}

fn damaged(bytes: &[u8], bit: Option<usize>) -> Box<[u8]> {
    let mut bytes: Box<[u8]> = bytes.into();
    if let Some(bit) = bit {
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    bytes
}
