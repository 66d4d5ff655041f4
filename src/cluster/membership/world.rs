//! A test network of members only: one event queue, virtual time, everything drawn from one seed.
//!
//! Packets are lost, delayed and cut off. A host runs its loop like the controller does: all waiting
//! packets, then the tick if it is due; a host that is starved runs it late, and loses its core between
//! reading and ticking as well. Like the control plane, a loop that was away for longer than the fence
//! allows drops what waited.

use super::{MemberState, Membership};
use crate::config::GossipPreset;
use crate::ids::Site;
use crate::peer::ENVELOPE_BYTES;
use crate::time::{Duration, Instant};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;

const FENCE_AFTER: Duration = Duration::from_millis(300);
/// The virtual moment at which every run begins.
pub(super) const BEGIN: Instant = Instant::from_nanos(1_790_000_000_000_000_000);

/// How a host is short of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Starved {
    No,
    /// For spells of 10 to 30 s, with 10 to 20 s in between, its loop comes round only every 0.5 to 2 s.
    Slow,
    /// It loses its core for 1 to 3 s, every 1 to 4 s.
    Stalls,
    /// It loses its core for 300 to 500 ms, every 0.5 to 1.5 s.
    Stumbles,
}

#[derive(Debug)]
enum Event {
    Packet {
        to: usize,
        bytes: Vec<u8>,
    },
    /// The loop comes round, if nobody has set another moment meanwhile.
    Run {
        host: usize,
        stamp: u64,
    },
}

#[derive(Debug)]
struct Queued {
    at: Instant,
    number: u64,
    event: Event,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl Eq for Queued {}
impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) address: SocketAddr,
    pub(super) process: Option<Membership>,
    pub(super) site: Site,
    pub(super) starved: Starved,
    inbox: Vec<(Instant, Vec<u8>)>,
    stamp: u64,
    run_at: Instant,
    /// It has no core until then.
    away_until: Instant,
    stall_at: Instant,
    spell: (Instant, Instant),
    /// It has read, and has yet to tick.
    has_read: bool,
    ticked_at: Instant,
    seen: BTreeMap<SocketAddr, MemberState>,
    seen_changes: u64,
    pub(super) packets_sent: u64,
    pub(super) bytes_sent: u64,
}

/// Somebody called somebody down who was running.
#[derive(Clone, Copy, Debug)]
pub(super) struct FalseDown {
    pub(super) at: Instant,
    pub(super) subject: usize,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Instant,
    pub(super) dice: StdRng,
    pub(super) hosts: Vec<Host>,
    queue: BinaryHeap<Reverse<Queued>>,
    numbers: u64,
    preset: GossipPreset,
    pub(super) lifeguard: bool,
    /// Of a million packets.
    pub(super) loss: u32,
    /// Of a million packets, those that come a second time, 1 to 3 s later.
    pub(super) copies: u32,
    pub(super) delay: (Duration, Duration),
    /// Hosts below and from this index do not hear each other.
    pub(super) cut_at: Option<usize>,
    pub(super) false_downs: Vec<FalseDown>,
    pub(super) bytes_max: usize,
}

pub(super) fn address_of(host: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, (host / 250) as u8, (host % 250) as u8], 40_000 + host as u16))
}

pub(super) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl World {
    /// So many hosts, none of which runs.
    pub(super) fn new(seed: u64, hosts: usize, preset: GossipPreset) -> Self {
        let host = |index| Host {
            address: address_of(index),
            process: None,
            site: Site::default(),
            starved: Starved::No,
            inbox: Vec::new(),
            stamp: 0,
            run_at: Instant::FAR,
            away_until: Instant::ZERO,
            stall_at: Instant::ZERO,
            spell: (Instant::ZERO, Instant::ZERO),
            has_read: false,
            ticked_at: Instant::ZERO,
            seen: BTreeMap::new(),
            seen_changes: 0,
            packets_sent: 0,
            bytes_sent: 0,
        };
        Self {
            now: BEGIN,
            dice: StdRng::seed_from_u64(seed),
            hosts: (0..hosts).map(host).collect(),
            queue: BinaryHeap::new(),
            numbers: 0,
            preset,
            lifeguard: true,
            loss: 0,
            copies: 0,
            delay: (Duration::from_micros(100), Duration::from_micros(800)),
            cut_at: None,
            false_downs: Vec::new(),
            bytes_max: 0,
        }
    }

    pub(super) fn time(&mut self, min: Duration, max: Duration) -> Duration {
        Duration::from_nanos(self.dice.random_range(min.as_nanos() as u64..=max.as_nanos() as u64))
    }

    /// Starts a process, under a new generation; what waited for an old one is lost.
    pub(super) fn start(&mut self, host: usize, seeds: &[SocketAddr]) {
        let seed = self.dice.random();
        let me = &mut self.hosts[host];
        let mut process =
            Membership::new(me.address, self.now.as_millis(), me.site, seeds, self.preset, seed, self.now);
        if !self.lifeguard {
            process.doubt_nothing();
        }
        me.seen = process.known().clone();
        me.seen_changes = process.changes();
        me.process = Some(process);
        me.inbox.clear();
        me.has_read = false;
        me.away_until = self.now;
        me.stall_at = self.now;
        me.ticked_at = self.now;
        self.run_host_at(host, self.now);
    }

    /// Starts all, each knowing all, within a second.
    pub(super) fn start_all(&mut self) {
        let all: Vec<SocketAddr> = self.hosts.iter().map(|host| host.address).collect();
        for host in 0..self.hosts.len() {
            let wait = ms(1_000) / self.hosts.len() as u32;
            self.start(host, &all);
            self.run(wait);
        }
    }

    pub(super) fn kill(&mut self, host: usize) {
        self.hosts[host].process = None;
        self.hosts[host].inbox.clear();
        self.hosts[host].run_at = Instant::FAR;
    }

    /// The host loses its core for so long; the process does not know.
    pub(super) fn pause(&mut self, host: usize, time: Duration) {
        self.hosts[host].away_until = self.now + time;
        self.run_host_at(host, self.now + time);
    }

    pub(super) fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.queue.peek().is_some_and(|Reverse(next)| next.at <= until) {
            let Some(Reverse(next)) = self.queue.pop() else { break };
            self.now = next.at;
            match next.event {
                Event::Packet { to, bytes } => self.on_packet(to, bytes),
                Event::Run { host, stamp } if stamp == self.hosts[host].stamp => self.run_host(host),
                Event::Run { .. } => {}
            }
        }
        self.now = until;
    }

    /// Runs until something holds, at most for so long; returns how long it took.
    pub(super) fn run_until(&mut self, limit: Duration, holds: impl Fn(&Self) -> bool) -> Option<Duration> {
        let begin = self.now;
        while self.now.since(begin) < limit {
            if holds(self) {
                return Some(self.now.since(begin));
            }
            self.run(ms(50));
        }
        holds(self).then(|| self.now.since(begin))
    }

    /// Whether this host sees exactly the running ones of `all` alive, and all others down.
    pub(super) fn sees_right(&self, viewer: usize, all: std::ops::Range<usize>) -> bool {
        let Some(process) = &self.hosts[viewer].process else { return true };
        let others = all.filter(|host| *host != viewer);
        let right = others.map(|host| {
            let state = process.known().get(&self.hosts[host].address);
            match (state, self.hosts[host].process.is_some()) {
                (Some(MemberState::Alive), true) | (Some(MemberState::Down(_)), false) => 1,
                _ => usize::MAX / 1_000,
            }
        });
        right.sum::<usize>() == process.known().len()
    }

    pub(super) fn all_see_right(&self) -> bool {
        (0..self.hosts.len()).all(|viewer| self.sees_right(viewer, 0..self.hosts.len()))
    }

    /// Alive as seen by this host, itself included.
    pub(super) fn count(&self, viewer: usize) -> usize {
        let known = self.hosts[viewer].process.as_ref().map(Membership::known);
        1 + known.map_or(0, |known| known.values().filter(|state| **state == MemberState::Alive).count())
    }

    fn push(&mut self, at: Instant, event: Event) {
        self.numbers += 1;
        self.queue.push(Reverse(Queued { at, number: self.numbers, event }));
    }

    fn run_host_at(&mut self, host: usize, at: Instant) {
        let me = &mut self.hosts[host];
        me.stamp += 1;
        me.run_at = at;
        let stamp = me.stamp;
        self.push(at, Event::Run { host, stamp });
    }

    fn on_packet(&mut self, to: usize, bytes: Vec<u8>) {
        let now = self.now;
        let host = &mut self.hosts[to];
        if host.process.is_none() {
            return;
        }
        host.inbox.push((now, bytes));
        let at = now.max(host.away_until);
        if at < host.run_at {
            self.run_host_at(to, at);
        }
    }

    fn run_host(&mut self, host: usize) {
        if self.now < self.hosts[host].away_until {
            return self.run_host_at(host, self.hosts[host].away_until);
        }
        if !std::mem::replace(&mut self.hosts[host].has_read, true) {
            self.read(host);
            if let Some(time) = self.stall(host) {
                self.hosts[host].away_until = self.now + time;
                return self.run_host_at(host, self.now + time);
            }
        }
        self.tick(host);
    }

    /// For how long a host that is short of time is away now, in between reading and ticking.
    fn stall(&mut self, host: usize) -> Option<Duration> {
        match self.hosts[host].starved {
            Starved::No => None,
            Starved::Slow => {
                let is_away = self.is_in_spell(host) && self.dice.random_bool(0.5);
                is_away.then(|| self.time(ms(500), ms(2_000)))
            }
            Starved::Stalls | Starved::Stumbles if self.now < self.hosts[host].stall_at => None,
            kind @ (Starved::Stalls | Starved::Stumbles) => {
                let (away, healthy) = if kind == Starved::Stalls {
                    (self.time(ms(1_000), ms(3_000)), self.time(ms(1_000), ms(4_000)))
                } else {
                    (self.time(ms(300), ms(500)), self.time(ms(500), ms(1_500)))
                };
                self.hosts[host].stall_at = self.now + away + healthy;
                Some(away)
            }
        }
    }

    fn is_in_spell(&mut self, host: usize) -> bool {
        let (begin, end) = self.hosts[host].spell;
        if end <= self.now {
            let begin = self.now + self.time(ms(10_000), ms(20_000));
            self.hosts[host].spell = (begin, begin + self.time(ms(10_000), ms(30_000)));
        }
        begin <= self.now && self.now < end
    }

    fn read(&mut self, host: usize) {
        let now = self.now;
        let me = &mut self.hosts[host];
        let Some(process) = &mut me.process else { return };
        let is_fenced = FENCE_AFTER < now.since(me.ticked_at);
        let mut sends = Vec::new();
        for (at, bytes) in std::mem::take(&mut me.inbox) {
            if !is_fenced || at == now {
                process.handle(now, &bytes, &mut sends);
            }
        }
        self.send(host, sends);
    }

    fn tick(&mut self, host: usize) {
        let now = self.now;
        let me = &mut self.hosts[host];
        me.has_read = false;
        me.run_at = Instant::FAR;
        let Some(process) = &mut me.process else { return };
        let mut sends = Vec::new();
        // The control plane comes round every 50 ms.
        let beat = ms(50);
        if process.next_deadline() <= now || me.ticked_at + beat <= now {
            me.ticked_at = now;
            process.tick(now, &mut sends);
        }
        let at = process.next_deadline().min(me.ticked_at + beat).max(now + Duration::from_micros(50));
        if me.seen_changes != process.changes() {
            self.note_changes(host);
        }
        self.send(host, sends);
        let is_waiting = !self.hosts[host].inbox.is_empty();
        let mut at = if is_waiting { now } else { at };
        if self.hosts[host].starved == Starved::Slow && self.is_in_spell(host) {
            at = now + self.time(ms(500), ms(2_000));
            self.hosts[host].away_until = at;
        }
        self.run_host_at(host, at);
    }

    fn note_changes(&mut self, viewer: usize) {
        let me = &mut self.hosts[viewer];
        let Some(process) = &me.process else { return };
        me.seen_changes = process.changes();
        let before = std::mem::replace(&mut me.seen, process.known().clone());
        let down = |state: Option<&MemberState>| matches!(state, Some(MemberState::Down(_)));
        let fallen: Vec<SocketAddr> = process
            .known()
            .iter()
            .filter(|(address, state)| down(Some(*state)) && !down(before.get(*address)))
            .map(|(address, _)| *address)
            .collect();
        for address in fallen {
            let subject = self.hosts.iter().position(|host| host.address == address).expect("a host");
            if self.hosts[subject].process.is_some() {
                self.false_downs.push(FalseDown { at: self.now, subject });
            }
        }
    }

    fn send(&mut self, from: usize, sends: Vec<(SocketAddr, Vec<u8>)>) {
        for (to, bytes) in sends {
            let datagram_bytes = bytes.len() + ENVELOPE_BYTES;
            self.hosts[from].packets_sent += 1;
            self.hosts[from].bytes_sent += datagram_bytes as u64;
            self.bytes_max = self.bytes_max.max(datagram_bytes);
            let to = usize::from(to.port()) - 40_000;
            let is_cut = self.cut_at.is_some_and(|at| (from < at) != (to < at));
            let (min, max) = self.delay;
            let delay = self.time(min, max);
            if self.dice.random_range(0..1_000_000) < self.copies && !is_cut {
                let late = self.time(ms(1_000), ms(3_000));
                self.push(self.now + late, Event::Packet { to, bytes: bytes.clone() });
            }
            if !is_cut && self.loss <= self.dice.random_range(0..1_000_000) {
                self.push(self.now + delay, Event::Packet { to, bytes });
            }
        }
    }
}
