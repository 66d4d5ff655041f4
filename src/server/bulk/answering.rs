//! The side that others connect to: proves who they are, answers one request after the other.
//!
//! A connection is unproven until its first frame verifies, and gets little time for it. Then it is
//! idle, or at work on one request: receiving it, answering it, until the response is written; only
//! then is the next request read. So that the buffers of requests and responses are bounded, only
//! [`WORKING_MAX`] connections are at work at a time; the others wait in line, with their requests in
//! the kernel.

use super::pipe::Pipe;
use super::{BulkPlane, End, Tools, Turn, new_nonce};
use crate::ids::MemberId;
use crate::metrics::Metric;
use crate::peer::bulk::{Conversation, FRAME_BYTES_MAX, Heard};
use crate::time::Instant;
use mio::Token;
use mio::net::TcpStream;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Connections that others have opened, proven or not.
pub(super) const INBOUND_MAX: usize = 64;
/// Proven connections of one member. It needs one; others may be left over from its last start.
pub(super) const INBOUND_PER_MEMBER_MAX: usize = 4;
/// Connections with a request or a response in memory.
const WORKING_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Hello or proof are still to come.
    Unproven,
    /// The next request is still to come.
    Idle,
    /// A request has begun to come, but too many are being worked on.
    InLine,
    /// A request is coming.
    Receiving,
    /// A response is being written.
    Answering,
}

struct Inbound {
    pipe: Pipe,
    step: Step,
    /// Who it is, once proven.
    from: Option<MemberId>,
    /// A request is there as a whole.
    has_request: bool,
}

impl Inbound {
    fn is_working(&self) -> bool {
        match self.step {
            Step::Receiving | Step::Answering => true,
            Step::Unproven | Step::Idle | Step::InLine => false,
        }
    }
}

/// All connections that others have opened.
pub(super) struct Answering<P> {
    plane: Arc<P>,
    connections: BTreeMap<Token, Inbound>,
    working: usize,
    in_line: VecDeque<Token>,
    /// The response that is being made; its memory is used again.
    response: Vec<u8>,
}

impl<P: BulkPlane> Answering<P> {
    pub(super) fn new(plane: Arc<P>) -> Self {
        let (connections, in_line) = (BTreeMap::new(), VecDeque::new());
        Self { plane, connections, working: 0, in_line, response: Vec::new() }
    }

    /// Takes in a new connection, if there is room: those that are there have come first.
    pub(super) fn accept(&mut self, stream: TcpStream, tools: &mut Tools) {
        if INBOUND_MAX <= self.connections.len() {
            return tools.count(Metric::BulkRefusedFull, 1);
        }
        let Some(nonce) = new_nonce() else { return };
        let identity = &tools.identity;
        let talk = Conversation::answer(identity.key.clone(), identity.me, identity.generation, nonce);
        let deadline = tools.now() + tools.times.handshake;
        let token = tools.new_token();
        let Some(pipe) = Pipe::open(stream, talk, token, deadline, tools) else { return };
        tools.count(Metric::BulkAccepted, 1);
        self.connections
            .insert(token, Inbound { pipe, step: Step::Unproven, from: None, has_request: false });
    }

    /// Goes on with a connection as far as it can now, or until one request is done.
    pub(super) fn drive(&mut self, token: Token, tools: &mut Tools) {
        let Some(mut inbound) = self.connections.remove(&token) else { return };
        match self.go_on(token, &mut inbound, tools) {
            Err(end) => return self.close(&inbound, end, tools),
            Ok(Turn::MayGoOn) => tools.ready.push_back(token),
            Ok(Turn::Waits) => {}
        }
        self.connections.insert(token, inbound);
    }

    /// When the next connection is too late.
    pub(super) fn next_deadline(&self) -> Instant {
        self.connections.values().map(|inbound| inbound.pipe.deadline).min().unwrap_or(Instant::FAR)
    }

    /// Closes connections that are too late.
    pub(super) fn expire(&mut self, tools: &mut Tools) {
        let now = tools.now();
        while let Some((token, _)) = self.connections.iter().find(|(_, inbound)| inbound.pipe.deadline <= now)
        {
            let token = *token;
            let inbound = self.connections.remove(&token).expect("it was just found");
            let end = if inbound.step == Step::Idle { End::Closed } else { End::TimedOut };
            self.close(&inbound, end, tools);
        }
    }

    fn close(&mut self, inbound: &Inbound, end: End, tools: &mut Tools) {
        end.count(tools);
        if inbound.is_working() {
            self.on_work_done(tools);
        }
    }

    fn go_on(&mut self, token: Token, inbound: &mut Inbound, tools: &mut Tools) -> Result<Turn, End> {
        loop {
            if !inbound.pipe.write(tools)? {
                return Ok(Turn::Waits);
            }
            match inbound.step {
                Step::Answering => {
                    self.rest(inbound, tools);
                    return Ok(Turn::MayGoOn);
                }
                Step::InLine => return Ok(Turn::Waits),
                Step::Receiving if inbound.has_request => {
                    self.answer(inbound, tools)?;
                    continue;
                }
                Step::Unproven | Step::Idle | Step::Receiving => {}
            }
            let Some(heard) = inbound.pipe.read(tools)? else { return Ok(Turn::Waits) };
            self.on_heard(token, inbound, heard, tools)?;
        }
    }

    fn on_heard(
        &mut self,
        token: Token,
        inbound: &mut Inbound,
        heard: Heard,
        tools: &mut Tools,
    ) -> Result<(), End> {
        match heard {
            Heard::Hello => inbound.pipe.greet(),
            Heard::Proof => self.admit(inbound, tools)?,
            Heard::Part | Heard::Frame => {
                inbound.has_request = heard == Heard::Frame;
                if inbound.step == Step::Idle {
                    self.begin_work(token, inbound, tools);
                }
            }
        }
        Ok(())
    }

    /// Decides about an asker that has proven to have the cluster's key.
    fn admit(&mut self, inbound: &mut Inbound, tools: &Tools) -> Result<(), End> {
        let from = inbound.pipe.talk().peer().expect("a proof comes after the hello").sender;
        if !self.plane.is_member(from) {
            return Err(End::Unknown);
        }
        let others = self.connections.values().filter(|other| other.from == Some(from)).count();
        if INBOUND_PER_MEMBER_MAX <= others {
            return Err(End::Full);
        }
        inbound.from = Some(from);
        inbound.step = Step::Idle;
        inbound.pipe.deadline = tools.now() + tools.times.idle;
        Ok(())
    }

    fn begin_work(&mut self, token: Token, inbound: &mut Inbound, tools: &Tools) {
        inbound.pipe.deadline = tools.now() + tools.times.transfer;
        if self.working < WORKING_MAX {
            self.working += 1;
            inbound.step = Step::Receiving;
        } else {
            self.in_line.push_back(token);
            inbound.step = Step::InLine;
        }
    }

    fn answer(&mut self, inbound: &mut Inbound, tools: &Tools) -> Result<(), End> {
        let from = inbound.from.expect("only a proven asker's requests are received");
        inbound.has_request = false;
        // It may have left since it was admitted.
        if !self.plane.is_member(from) {
            return Err(End::Unknown);
        }
        let request = inbound.pipe.talk().take_frame();
        self.response.clear();
        let Self { plane, response, .. } = self;
        let answer = AssertUnwindSafe(|| plane.answer(from, &request, response));
        // What is shared behind the unwound stack is guarded by locks that unwinding has released.
        match catch_unwind(answer) {
            Ok(true) => inbound.pipe.say(&self.response)?,
            Ok(false) => return Err(End::Malformed),
            Err(_) => return Err(End::Panicked),
        }
        self.response.shrink_to(FRAME_BYTES_MAX);
        inbound.step = Step::Answering;
        inbound.pipe.deadline = tools.now() + tools.times.transfer;
        Ok(())
    }

    /// The response is written.
    fn rest(&mut self, inbound: &mut Inbound, tools: &mut Tools) {
        tools.count(Metric::BulkServed, 1);
        inbound.step = Step::Idle;
        inbound.pipe.deadline = tools.now() + tools.times.idle;
        self.on_work_done(tools);
    }

    /// Lets the next one in line work.
    fn on_work_done(&mut self, tools: &mut Tools) {
        self.working -= 1;
        let deadline = tools.now() + tools.times.transfer;
        while let Some(token) = self.in_line.pop_front() {
            // Whoever has hung up or expired in line is passed over.
            let Some(inbound) = self.connections.get_mut(&token) else { continue };
            inbound.step = Step::Receiving;
            inbound.pipe.deadline = deadline;
            self.working += 1;
            tools.ready.push_back(token);
            return;
        }
    }
}
