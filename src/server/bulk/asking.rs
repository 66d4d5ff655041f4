//! The side that connects: one connection to each member that is asked something, one request at a
//! time on it.
//!
//! Requests wait at their member, in order. A connection is opened when the first one comes, and kept
//! for a while after the last. When it breaks, everything that was asked of that member fails: whoever
//! asked knows better whether and when to ask again. Only a connection that broke *between* requests is
//! replaced in silence. When all [`OUTBOUND_MAX`] connections are busy, further members wait in line.

use super::pipe::Pipe;
use super::{End, Outcome, Tools, Turn, new_nonce};
use crate::ids::MemberId;
use crate::metrics::Metric;
use crate::outbox::BulkAsk;
use crate::peer::bulk::{Conversation, FRAME_BYTES_MAX, Heard, Hello};
use crate::time::Instant;
use mio::net::TcpStream;
use mio::{Token, Waker};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

/// Connections to other members; each may have a response in memory.
pub(super) const OUTBOUND_MAX: usize = 16;
/// Requests that wait behind the one that is being asked, for each member.
pub(super) const ASKS_PER_MEMBER_MAX: usize = 8;
/// Bytes of all requests that wait.
const ASKED_BYTES_MAX: usize = 4 * 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Connecting,
    /// The other side's hello is still to come.
    Greeting,
    /// Nothing is being asked. (There was something before: connections are opened to ask.)
    Idle,
    /// A request is being written.
    Asking,
    /// The response is still to come.
    Listening,
    /// It is coming.
    Receiving,
}

struct Outbound {
    token: Token,
    pipe: Pipe,
    step: Step,
    /// What is being asked.
    ticket: Option<u64>,
}

/// A member that is being asked something, or was lately.
struct Asked {
    to: SocketAddr,
    queue: VecDeque<BulkAsk>,
    connection: Option<Outbound>,
}

/// Everything that this node asks of others.
pub(super) struct Asking {
    /// An entry has a connection, or a place in `in_line`.
    members: BTreeMap<MemberId, Asked>,
    tokens: BTreeMap<Token, MemberId>,
    /// Members that are to be connected to.
    in_line: VecDeque<MemberId>,
    queued_bytes: usize,
    outcomes: Outcomes,
}

/// The way back to the controller.
struct Outcomes {
    channel: flume::Sender<Outcome>,
    controller: Arc<Waker>,
    /// Those that the channel has no room for. Then no response is read until it has.
    unsent: VecDeque<Outcome>,
    /// Connections that wait for that.
    held: Vec<Token>,
}

impl Outcomes {
    fn settle(&mut self, ticket: u64, response: Option<Vec<u8>>, tools: &Tools) {
        tools.count(Metric::BulkFailed, usize::from(response.is_none()));
        self.unsent.push_back(Outcome { ticket, response });
        self.deliver();
    }

    fn hold(&mut self, token: Token) {
        if !self.held.contains(&token) {
            self.held.push(token);
        }
    }

    fn deliver(&mut self) {
        let before = self.unsent.len();
        while let Some(outcome) = self.unsent.pop_front() {
            if let Err(error) = self.channel.try_send(outcome) {
                self.unsent.push_front(error.into_inner());
                break;
            }
        }
        if self.unsent.len() < before {
            // A failed wake-up only delays the outcomes until the controller's sleep is over.
            let _ = self.controller.wake();
        }
    }
}

impl Asking {
    pub(super) fn new(channel: flume::Sender<Outcome>, controller: Arc<Waker>) -> Self {
        let outcomes = Outcomes { channel, controller, unsent: VecDeque::new(), held: Vec::new() };
        Self {
            members: BTreeMap::new(),
            tokens: BTreeMap::new(),
            in_line: VecDeque::new(),
            queued_bytes: 0,
            outcomes,
        }
    }

    /// Takes a request in, or fails it at once.
    pub(super) fn ask(&mut self, ask: BulkAsk, tools: &mut Tools) {
        tools.count(Metric::BulkAsked, 1);
        let is_too_much = FRAME_BYTES_MAX < ask.request.len()
            || ASKED_BYTES_MAX < self.queued_bytes + ask.request.len()
            || self.members.get(&ask.member).is_some_and(Asked::is_full);
        if is_too_much || ask.member == tools.identity.me {
            return self.outcomes.settle(ask.ticket, None, tools);
        }
        let (member, to) = (ask.member, ask.to);
        self.queued_bytes += ask.request.len();
        let asked = self.members.entry(member).or_insert_with(|| {
            self.in_line.push_back(member);
            Asked { to, queue: VecDeque::new(), connection: None }
        });
        asked.queue.push_back(ask);
        if let Some(connection) = &asked.connection {
            tools.ready.push_back(connection.token);
        }
    }

    /// Whether there is room for outcomes, and so for requests.
    pub(super) fn takes_more(&self) -> bool {
        self.outcomes.unsent.is_empty()
    }

    /// Passes outcomes on, and goes on reading if they had been too many.
    pub(super) fn deliver(&mut self, tools: &mut Tools) {
        self.outcomes.deliver();
        if self.outcomes.unsent.is_empty() {
            tools.ready.extend(self.outcomes.held.drain(..));
        }
    }

    /// Connects to those that wait for it, as far as there is room.
    pub(super) fn open_waiting(&mut self, tools: &mut Tools) {
        while let Some(member) = self.in_line.front().copied() {
            if OUTBOUND_MAX <= self.tokens.len() && !self.close_an_idle_one(tools) {
                return;
            }
            self.in_line.pop_front();
            let asked = self.members.get_mut(&member).expect("who is in line is asked something");
            match connect(asked.to, member, tools) {
                Some(connection) => {
                    self.tokens.insert(connection.token, member);
                    asked.connection = Some(connection);
                }
                None => self.give_up(member, tools),
            }
        }
    }

    /// Goes on with a connection as far as it can now, or until one response is there.
    pub(super) fn drive(&mut self, token: Token, tools: &mut Tools) {
        let Some(member) = self.tokens.get(&token).copied() else { return };
        let asked = self.members.get_mut(&member).expect("who has a connection is known");
        let connection = asked.connection.as_mut().expect("a token has its connection");
        match connection.go_on(&mut asked.queue, &mut self.queued_bytes, &mut self.outcomes, tools) {
            Ok(Turn::Waits) => {}
            Ok(Turn::MayGoOn) => tools.ready.push_back(token),
            Err(end) => self.close(member, end, tools),
        }
    }

    /// When the next connection is too late.
    pub(super) fn next_deadline(&self) -> Instant {
        self.connections().map(|(_, connection)| connection.pipe.deadline).min().unwrap_or(Instant::FAR)
    }

    /// Closes connections that are too late.
    pub(super) fn expire(&mut self, tools: &mut Tools) {
        while let Some((member, step)) = self.late_one(tools.now()) {
            self.close(member, if step == Step::Idle { End::Closed } else { End::TimedOut }, tools);
        }
    }

    fn late_one(&self, now: Instant) -> Option<(MemberId, Step)> {
        let mut late = self.connections().filter(|(_, connection)| connection.pipe.deadline <= now);
        late.next().map(|(member, connection)| (member, connection.step))
    }

    fn connections(&self) -> impl Iterator<Item = (MemberId, &Outbound)> {
        let members = self.members.iter();
        members.filter_map(|(member, asked)| Some((*member, asked.connection.as_ref()?)))
    }

    /// Closes the connection that has been idle for longest; `false` when none is.
    fn close_an_idle_one(&mut self, tools: &mut Tools) -> bool {
        let is_idle = |asked: &Asked| asked.queue.is_empty();
        let idle = self
            .connections()
            .filter(|(member, connection)| {
                connection.step == Step::Idle && self.members.get(member).is_some_and(is_idle)
            })
            .min_by_key(|(_, connection)| connection.pipe.deadline)
            .map(|(member, _)| member);
        let Some(member) = idle else { return false };
        self.close(member, End::Closed, tools);
        true
    }

    fn close(&mut self, member: MemberId, end: End, tools: &mut Tools) {
        end.count(tools);
        let asked = self.members.get_mut(&member).expect("who has a connection is known");
        let connection = asked.connection.take().expect("it is being closed");
        self.tokens.remove(&connection.token);
        // It has answered before and nothing was being asked, so nothing fails.
        if connection.step == Step::Idle && !asked.queue.is_empty() {
            return self.in_line.push_back(member);
        }
        if let Some(ticket) = connection.ticket {
            self.outcomes.settle(ticket, None, tools);
        }
        self.give_up(member, tools);
    }

    /// Fails everything that is still to be asked of a member.
    fn give_up(&mut self, member: MemberId, tools: &Tools) {
        let Some(asked) = self.members.remove(&member) else { return };
        for ask in asked.queue {
            self.queued_bytes -= ask.request.len();
            self.outcomes.settle(ask.ticket, None, tools);
        }
    }
}

impl Asked {
    fn is_full(&self) -> bool {
        let is_asking = self.connection.as_ref().is_some_and(|connection| connection.ticket.is_some());
        // The first one does not wait behind any other.
        ASKS_PER_MEMBER_MAX + usize::from(!is_asking) <= self.queue.len()
    }
}

fn connect(to: SocketAddr, member: MemberId, tools: &mut Tools) -> Option<Outbound> {
    let identity = &tools.identity;
    let hello =
        Hello { sender: identity.me, receiver: member, generation: identity.generation, nonce: new_nonce()? };
    let talk = Conversation::ask(identity.key.clone(), hello);
    let stream = TcpStream::connect(to).ok()?;
    let token = tools.new_token();
    let mut pipe = Pipe::open(stream, talk, token, tools.now() + tools.times.connect, tools)?;
    pipe.hello();
    Some(Outbound { token, pipe, step: Step::Connecting, ticket: None })
}

impl Outbound {
    fn go_on(
        &mut self,
        queue: &mut VecDeque<BulkAsk>,
        queued_bytes: &mut usize,
        outcomes: &mut Outcomes,
        tools: &mut Tools,
    ) -> Result<Turn, End> {
        loop {
            if self.step == Step::Connecting {
                if !self.pipe.is_connected()? {
                    return Ok(Turn::Waits);
                }
                self.take_step(Step::Greeting, tools);
            }
            if !self.pipe.write(tools)? {
                return Ok(Turn::Waits);
            }
            if self.step == Step::Asking {
                self.take_step(Step::Listening, tools);
            }
            if self.is_listening() && !outcomes.unsent.is_empty() {
                outcomes.hold(self.token);
                return Ok(Turn::Waits);
            }
            let heard = self.pipe.read(tools)?;
            if let Some(heard) = heard {
                self.on_heard(heard, outcomes, tools)?;
            }
            match (heard, self.step) {
                // Others come first.
                (Some(Heard::Frame), _) => return Ok(Turn::MayGoOn),
                // In an idle connection nothing to read means that the other side has not hung up.
                (Some(Heard::Hello), _) | (None, Step::Idle) => {
                    let Some(ask) = queue.pop_front() else { return Ok(Turn::Waits) };
                    *queued_bytes -= ask.request.len();
                    self.ask(&ask, tools)?;
                }
                (None, _) => return Ok(Turn::Waits),
                (Some(Heard::Part | Heard::Proof), _) => {}
            }
        }
    }

    fn ask(&mut self, ask: &BulkAsk, tools: &Tools) -> Result<(), End> {
        self.ticket = Some(ask.ticket);
        self.take_step(Step::Asking, tools);
        self.pipe.say(&ask.request)
    }

    fn on_heard(&mut self, heard: Heard, outcomes: &mut Outcomes, tools: &Tools) -> Result<(), End> {
        match (heard, self.step) {
            (Heard::Part, Step::Greeting | Step::Receiving) => {}
            (Heard::Part, Step::Listening) => self.take_step(Step::Receiving, tools),
            (Heard::Hello, Step::Greeting) => self.pipe.greet(),
            (Heard::Frame, Step::Listening | Step::Receiving) => {
                let ticket = self.ticket.take().expect("whoever listens has asked");
                outcomes.settle(ticket, Some(self.pipe.talk().take_frame()), tools);
                self.take_step(Step::Idle, tools);
            }
            // It speaks without being asked.
            (Heard::Part | Heard::Hello | Heard::Proof | Heard::Frame, _) => return Err(End::Forged),
        }
        Ok(())
    }

    fn is_listening(&self) -> bool {
        match self.step {
            Step::Listening | Step::Receiving => true,
            Step::Connecting | Step::Greeting | Step::Idle | Step::Asking => false,
        }
    }

    fn take_step(&mut self, step: Step, tools: &Tools) {
        let times = &tools.times;
        let time = match step {
            Step::Connecting => times.connect,
            Step::Greeting => times.handshake,
            Step::Idle => times.idle * 2 / 3,
            Step::Asking | Step::Listening | Step::Receiving => times.transfer,
        };
        self.step = step;
        self.pipe.deadline = tools.now() + time;
    }
}
