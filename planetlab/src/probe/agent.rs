//! The agent: measures the ways to and from all others over one UDP socket, within a hard time limit.
//!
//! All agents of a probe start when ssh gets to them, which may be seconds apart. So each one first says hello until it
//! has heard all others or its time for that is over, then asks every other at even distances for the time of
//! measuring, then goes on answering until the others are done as well. A host that stays silent costs the others their
//! time of gathering, no more. Round trips come from this machine's own clock, the difference of clocks from the four
//! times of an exchange.
//!
//! Deliberately not here: threads, a socket per size, sending as fast as the path takes. One loop sends what is due and
//! waits for packets until the next is due.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use socket2::{Domain, Protocol, Socket, Type};

use super::facts;
use super::packet::{Kind, LARGE_BYTES, Packet, SMALL_BYTES, State};
use super::record::{AgentPlan, AgentReport};
use super::tally::{Asked, PeerTally};

/// How often an agent that gathers or is done says so to the others.
const HELLO_EVERY: Duration = Duration::from_millis(200);
/// How long answers are waited for after the last ask.
const ANSWERS_WAIT: Duration = Duration::from_secs(2);
/// Longest wait for a packet, so that the clock is looked at.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// Asked for; what is granted stands in the report. A large packet from each of a hundred others at once fits.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Kinds of errors in sending that are told apart.
const SEND_ERRORS_MAX: usize = 8;

/// Limits of a plan, so that a wrong one neither floods nor runs for ever.
const SECONDS_MAX: f64 = 3_600.0;
const PER_SECOND_MAX: f64 = 1_000.0;
const PEERS_MAX: usize = 1_000;

/// Why an agent could not measure: one sentence.
#[derive(Debug, PartialEq, Eq)]
pub struct AgentError(pub String);

impl fmt::Display for AgentError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for AgentError {}

/// When an agent of this plan has ended, at the latest, counted from its start.
pub fn time_limit(plan: &AgentPlan) -> Duration {
    // Others may have started as late as this one's gathering allows, and then take as long as this one.
    Duration::from_secs_f64(2.0 * plan.gather_seconds + plan.seconds) + 2 * ANSWERS_WAIT
}

/// Measures as planned.
///
/// # Errors
/// A plan that cannot be, or a socket that cannot be had.
pub fn measure(plan: &AgentPlan) -> Result<AgentReport, AgentError> {
    check(plan)?;
    let facts = facts::gather(Path::new("."));
    let (socket, receive_buffer_bytes) = open(plan.listen)?;
    let mut agent = Agent::new(plan, socket);
    agent.run().map_err(|error| AgentError(format!("cannot receive on {}: {error}", plan.listen)))?;
    Ok(AgentReport {
        facts,
        receive_buffer_bytes,
        send_errors: agent.send_errors,
        links: plan.peers.iter().zip(&agent.tallies).map(|(peer, tally)| tally.link(peer.index)).collect(),
    })
}

/// Whether a plan is within limits.
///
/// # Errors
/// What is not, and the limit.
pub fn check(plan: &AgentPlan) -> Result<(), AgentError> {
    let in_range = |name: &str, value: f64, max: f64| match 0.0 <= value && value <= max {
        true => Ok(()),
        false => Err(AgentError(format!("the plan's {name} is {value}, not 0 to {max}"))),
    };
    in_range("gather_seconds", plan.gather_seconds, SECONDS_MAX)?;
    in_range("seconds", plan.seconds, SECONDS_MAX)?;
    in_range("small_per_second", plan.small_per_second, PER_SECOND_MAX)?;
    in_range("large_per_second", plan.large_per_second, PER_SECOND_MAX)?;
    match plan.peers.len() <= PEERS_MAX {
        true => Ok(()),
        false => Err(AgentError(format!("the plan has {} peers, more than {PEERS_MAX}", plan.peers.len()))),
    }
}

/// The socket, and the receive buffer that it got.
fn open(listen: SocketAddr) -> Result<(UdpSocket, usize), AgentError> {
    let opened = || -> io::Result<(UdpSocket, usize)> {
        let socket = Socket::new(Domain::for_address(listen), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
        socket.bind(&listen.into())?;
        let granted = socket.recv_buffer_size()?;
        Ok((socket.into(), granted))
    };
    opened().map_err(|error| {
        AgentError(match error.kind() {
            ErrorKind::AddrInUse => {
                format!(
                    "UDP port {listen} is in use, by a node perhaps: stop it, or probe another with --port"
                )
            }
            ErrorKind::AddrNotAvailable => format!("{listen} is no address of this host"),
            _ => format!("cannot listen on {listen}: {error}"),
        })
    })
}

/// A size of packets and its timetable: asks to all peers, one after the other, at even distances.
struct Round {
    bytes: usize,
    every: Option<Duration>,
    asked: u32,
}

impl Round {
    fn new(bytes: usize, per_second: f64, peers: usize) -> Self {
        let all = per_second * peers as f64;
        let every = (0.0 < all).then(|| Duration::from_secs_f64(1.0 / all));
        Self { bytes, every, asked: 0 }
    }

    /// When the next ask is due, from the start of measuring.
    fn due(&self) -> Option<Duration> {
        self.every.map(|every| every * self.asked)
    }
}

struct Agent<'plan> {
    plan: &'plan AgentPlan,
    socket: UdpSocket,
    tallies: Vec<PeerTally>,
    /// What each peer last said of itself.
    states: Vec<Option<State>>,
    send_errors: BTreeMap<String, u64>,
    state: State,
    buffer: Vec<u8>,
    /// Clock of 1970 and own clock at one moment: the wall clock may be set while we measure.
    wall: (u64, Instant),
}

impl<'plan> Agent<'plan> {
    fn new(plan: &'plan AgentPlan, socket: UdpSocket) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let nanoseconds = u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX);
        Self {
            plan,
            socket,
            tallies: plan.peers.iter().map(|_| PeerTally::default()).collect(),
            states: vec![None; plan.peers.len()],
            send_errors: BTreeMap::new(),
            state: State::Gathering,
            buffer: vec![0; 65_536],
            wall: (nanoseconds, Instant::now()),
        }
    }

    fn run(&mut self) -> io::Result<()> {
        let start = Instant::now();
        let end = start + time_limit(self.plan);
        let gathered = start + Duration::from_secs_f64(self.plan.gather_seconds);
        self.greet_until(gathered, |agent| agent.tallies.iter().all(PeerTally::is_heard))?;
        self.state = State::Measuring;
        self.ask_all()?;
        self.answer_until(Instant::now() + ANSWERS_WAIT)?;
        self.state = State::Done;
        self.greet_until(end, |agent| {
            // One that was never heard is not waited for: its time of gathering is over.
            agent.states.iter().flatten().all(|state| *state == State::Done)
        })?;
        // The last word of whoever leaves first must arrive, or others wait for their limit.
        (0..3).for_each(|_| self.greet());
        Ok(())
    }

    /// Says hello and answers until the time is over or the agent is content.
    fn greet_until(&mut self, end: Instant, is_content: impl Fn(&Self) -> bool) -> io::Result<()> {
        let mut next = Instant::now();
        // Those that start after us hear at least one hello of ours, and answer it by their own.
        while !is_content(self) && Instant::now() < end {
            if next <= Instant::now() {
                self.greet();
                next = Instant::now() + HELLO_EVERY;
            }
            self.receive(next.min(end))?;
        }
        self.greet();
        Ok(())
    }

    fn greet(&mut self) {
        for index in 0..self.plan.peers.len() {
            self.send(index, Kind::Hello, 0, SMALL_BYTES);
        }
    }

    fn answer_until(&mut self, end: Instant) -> io::Result<()> {
        while Instant::now() < end {
            self.receive(end)?;
        }
        Ok(())
    }

    /// Sends what is due until the time of measuring is over.
    fn ask_all(&mut self) -> io::Result<()> {
        let peers = self.plan.peers.len();
        if peers == 0 {
            return Ok(());
        }
        let mut rounds = [
            Round::new(SMALL_BYTES, self.plan.small_per_second, peers),
            Round::new(LARGE_BYTES, self.plan.large_per_second, peers),
        ];
        let start = Instant::now();
        let end = start + Duration::from_secs_f64(self.plan.seconds);
        while Instant::now() < end {
            let mut next = end;
            for round in &mut rounds {
                let Some(due) = round.due() else { continue };
                if start + due <= Instant::now() {
                    self.ask(round.asked as usize % peers, round.bytes);
                    round.asked += 1;
                }
                next = next.min(start + round.due().unwrap_or_default());
            }
            self.receive(next)?;
        }
        Ok(())
    }

    fn ask(&mut self, index: usize, bytes: usize) {
        let sequence = self.asked(index, bytes).next_sequence();
        match self.send(index, Kind::Ask, sequence, bytes) {
            true => self.asked(index, bytes).on_sent(),
            false => self.asked(index, bytes).take_back(),
        }
    }

    fn asked(&mut self, index: usize, bytes: usize) -> &mut Asked {
        let tally = &mut self.tallies[index];
        if bytes <= SMALL_BYTES { &mut tally.small } else { &mut tally.large }
    }

    /// Sends a packet of our own to a peer; whether it left.
    fn send(&mut self, index: usize, kind: Kind, sequence: u32, bytes: usize) -> bool {
        let packet = Packet {
            run: self.plan.run,
            from: self.plan.me,
            kind,
            state: self.state,
            sequence,
            asked: self.now(),
            came: 0,
            left: 0,
        };
        let mut buffer = [0; LARGE_BYTES];
        packet.write(&mut buffer[..bytes]);
        self.send_bytes(&buffer[..bytes], self.plan.peers[index].address)
    }

    fn send_bytes(&mut self, bytes: &[u8], to: SocketAddr) -> bool {
        let Err(error) = self.socket.send_to(bytes, to) else { return true };
        // A refusal is an answer of the network to an earlier packet, not about this one.
        if error.kind() == ErrorKind::ConnectionRefused {
            return self.socket.send_to(bytes, to).is_ok();
        }
        let told = format!("{to}: {error}");
        if self.send_errors.len() < SEND_ERRORS_MAX || self.send_errors.contains_key(&told) {
            *self.send_errors.entry(told).or_default() += 1;
        }
        false
    }

    /// Handles what comes until then, at most one packet after it.
    fn receive(&mut self, until: Instant) -> io::Result<()> {
        let wait = until.saturating_duration_since(Instant::now()).min(WAIT_MAX);
        // Zero would mean "for ever".
        self.socket.set_read_timeout(Some(wait.max(Duration::from_micros(1))))?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let received = self.socket.recv_from(&mut buffer);
        let came = self.now();
        if let Ok((bytes, from)) = received {
            self.handle(&mut buffer[..bytes], from, came);
        }
        self.buffer = buffer;
        match received {
            Ok(_) => Ok(()),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock
                | ErrorKind::TimedOut
                | ErrorKind::Interrupted
                | ErrorKind::ConnectionRefused => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn handle(&mut self, bytes: &mut [u8], from: SocketAddr, came: u64) {
        let Some(packet) = Packet::parse(bytes).filter(|packet| packet.run == self.plan.run) else { return };
        let Some(index) = self.plan.peers.iter().position(|peer| peer.index == packet.from) else { return };
        let was_heard = self.tallies[index].is_heard();
        self.tallies[index].on_heard(from, self.plan.peers[index].address);
        self.states[index] = self.states[index].max(Some(packet.state));
        match packet.kind {
            // Whoever we meet late must not wait for our next hello: there may be none.
            Kind::Hello if !was_heard => {
                self.send(index, Kind::Hello, 0, SMALL_BYTES);
            }
            Kind::Hello => {}
            Kind::Ask => {
                self.asked(index, bytes.len()).on_asked();
                self.answer(&packet, bytes, from, came);
            }
            Kind::Answer => self.on_answer(index, &packet, bytes.len(), came),
        }
    }

    /// Answers to where the packet came from, with its own length.
    fn answer(&mut self, packet: &Packet, bytes: &mut [u8], from: SocketAddr, came: u64) {
        let answer = Packet {
            from: self.plan.me,
            kind: Kind::Answer,
            state: self.state,
            came,
            left: self.now(),
            ..*packet
        };
        answer.write(bytes);
        self.send_bytes(bytes, from);
    }

    fn on_answer(&mut self, index: usize, packet: &Packet, bytes: usize, back: u64) {
        // Both times are ours and come from a clock that only goes forward.
        let round_trip = Duration::from_nanos(back.saturating_sub(packet.asked));
        let is_first = self.asked(index, bytes).on_answer(packet.sequence, round_trip);
        if is_first && bytes <= SMALL_BYTES {
            self.tallies[index].on_clocks(round_trip, packet.asked, packet.came, packet.left, back);
        }
    }

    /// Nanoseconds from 1970, even if the wall clock is set meanwhile.
    fn now(&self) -> u64 {
        let (wall, at) = self.wall;
        wall.saturating_add(u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::thread;

    use super::super::record::Peer;
    use super::*;

    /// Plans for agents on these loopback addresses; the ports were free a moment ago.
    fn plans(hosts: &[&str]) -> Vec<AgentPlan> {
        let sockets: Vec<UdpSocket> = hosts.iter().map(|host| UdpSocket::bind((*host, 0)).unwrap()).collect();
        let addresses: Vec<SocketAddr> = sockets.iter().map(|socket| socket.local_addr().unwrap()).collect();
        let peers = addresses.iter().enumerate();
        let peers: Vec<Peer> =
            peers.map(|(index, address)| Peer { index: index as u16, address: *address }).collect();
        (0..hosts.len())
            .map(|me| AgentPlan {
                run: 77,
                me: me as u16,
                listen: addresses[me],
                gather_seconds: 3.0,
                seconds: 0.5,
                small_per_second: 20.0,
                large_per_second: 10.0,
                peers: peers.iter().filter(|peer| usize::from(peer.index) != me).cloned().collect(),
            })
            .collect()
    }

    #[test]
    fn three_agents_measure_each_other_in_both_sizes() {
        let plans = plans(&["127.0.0.1", "127.0.0.2", "127.0.0.3"]);
        let agents = plans.into_iter().map(|plan| thread::spawn(move || measure(&plan).unwrap()));
        let agents: Vec<_> = agents.collect();
        for (me, agent) in agents.into_iter().enumerate() {
            let report = agent.join().unwrap();
            assert_eq!(report.links.len(), 2);
            assert!(report.links.iter().all(|link| usize::from(link.peer) != me));
            for link in &report.links {
                assert!(link.is_heard && link.seen_as.is_none(), "{link:?}");
                for exchange in [link.small, link.large] {
                    assert!(0 < exchange.sent && 0 < exchange.received, "{link:?}");
                    assert!(0 < exchange.answered && exchange.answered <= exchange.sent, "{link:?}");
                    assert!(0.0 < exchange.round_trip.unwrap().min_ms, "{link:?}");
                }
                assert!(link.clock_ahead_ms.unwrap().abs() < 1_000.0, "{link:?}");
            }
        }
    }

    #[test]
    fn a_silent_peer_is_not_heard_and_the_other_is_measured() {
        let plans = plans(&["127.0.0.1", "127.0.0.2", "127.0.0.3"]);
        let agents = plans.into_iter().take(2);
        let agents: Vec<_> = agents
            .map(|plan| thread::spawn(move || measure(&AgentPlan { gather_seconds: 0.5, ..plan }).unwrap()))
            .collect();
        for agent in agents {
            let report = agent.join().unwrap();
            let heard: Vec<_> = report.links.iter().map(|link| (link.peer == 2, link.is_heard)).collect();
            assert!(heard.contains(&(true, false)) && heard.contains(&(false, true)), "{heard:?}");
            let silent = report.links.iter().find(|link| link.peer == 2).unwrap();
            assert_eq!(silent.small.answered + silent.large.answered, 0);
        }
    }

    #[test]
    fn a_taken_port_and_a_wild_plan_are_named() {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut plan = plans(&["127.0.0.1"]).remove(0);
        plan.listen = taken.local_addr().unwrap();
        assert!(measure(&plan).unwrap_err().0.contains("in use"));
        plan.small_per_second = 1e9;
        assert!(measure(&plan).unwrap_err().0.contains("small_per_second"));
        plan.small_per_second = f64::NAN;
        assert!(measure(&plan).unwrap_err().0.contains("small_per_second"));
    }

    #[test]
    fn a_packet_of_another_probe_is_not_answered() {
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        stranger.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let plan = plans(&["127.0.0.1"]).remove(0);
        let mut plan = AgentPlan { seconds: 0.0, gather_seconds: 0.2, ..plan };
        plan.peers = vec![Peer { index: 9, address: stranger.local_addr().unwrap() }];
        let listen = plan.listen;
        let agent = thread::spawn(move || measure(&plan).unwrap());
        let mut bytes = [0; SMALL_BYTES];
        let ask = Packet {
            run: 78,
            from: 9,
            kind: Kind::Ask,
            state: State::Measuring,
            sequence: 0,
            asked: 0,
            came: 0,
            left: 0,
        };
        let mut answers = 0;
        while !agent.is_finished() {
            ask.write(&mut bytes);
            // It may not listen yet, or no longer.
            let _sent = stranger.send_to(&bytes, listen);
            let mut got = [0; 100];
            if let Ok((length, _)) = stranger.recv_from(&mut got) {
                let packet = Packet::parse(&got[..length]).unwrap();
                answers += u32::from(packet.kind == Kind::Answer);
            }
        }
        assert_eq!(answers, 0);
        assert!(!agent.join().unwrap().links[0].is_heard);
    }
}
