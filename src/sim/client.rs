//! Clients: the real retry logic of the client library, driven by scripts or by habit.
//!
//! Each logical client has its own address and one request in progress. Retries are the exchange's;
//! beside them a client may send *repeats*: the same bytes from another port to another front end, up
//! to eight seconds later, as networks and impatient users do. A client that *needs its front end*
//! takes replies only from the address it asked, as a connected socket does.

use super::history::{Action, History, OpId, Seen};
use super::host::Host;
use super::network::Place;
use super::world::BEGIN;
use crate::time::{Duration, Instant};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use violet_client::wire::{self, KEY_BYTES_MAX};
use violet_client::{
    Exchange, Format, Key, MessageId, Operation, Outcome, Request, RetryPolicy, Status, Step, Value, Verdict,
};
use violet_link::Dice;

/// The port of a client's exchange; repeats leave from others.
const PORT: u16 = 5000;
/// A repeat comes at most this long after the request was first sent: what a server must recognise.
pub const REPEAT_WITHIN: Duration = Duration::from_secs(8);

/// A datagram that a client wants sent.
#[derive(Clone, Debug)]
pub struct Letter {
    /// To which node.
    pub node: usize,
    /// From which port.
    pub port: u16,
    /// What.
    pub bytes: Vec<u8>,
}

/// What a client does on its own. Chances are per million requests.
#[derive(Clone, Debug)]
pub struct Habits {
    /// It asks nothing new after this.
    pub until: Instant,
    /// It pauses for up to this between requests.
    pub think: Duration,
    /// The keys that all clients use.
    pub keys: Vec<usize>,
    /// PUTs.
    pub put: u32,
    /// REMOVEs; the rest is GETs.
    pub remove: u32,
    /// Repeats of a request.
    pub repeat: u32,
    /// PUTs of a key of its own, which is then read.
    pub unique: u32,
    /// Rounds of wipe-outs over all nodes.
    pub wipe: u32,
    /// Longest value.
    pub value_bytes_max: usize,
}

/// How a client behaves on the wire.
#[derive(Clone, Debug)]
pub struct Manners {
    /// Its layout.
    pub format: Format,
    /// It takes replies only from the node it asked.
    pub needs_front_end: bool,
    /// When it asks again.
    pub policy: RetryPolicy,
}

#[derive(Debug)]
struct Running {
    op: OpId,
    exchange: Exchange,
    id: MessageId,
    node: usize,
    answered_by: Option<usize>,
}

#[derive(Debug)]
struct Repeat {
    at: Instant,
    op: OpId,
    letter: Letter,
}

/// A logical client.
#[derive(Debug)]
pub struct Client {
    number: usize,
    manners: Manners,
    habits: Option<Habits>,
    nodes: usize,
    dice: Dice,
    running: Option<Running>,
    repeats: Vec<Repeat>,
    /// Mutations by id, with the first answer to each.
    answers: BTreeMap<MessageId, (OpId, Option<Status>)>,
    count: u64,
    idle_until: Instant,
    next_at: Instant,
    wakes_at: Instant,
    /// The key to read next, after a PUT.
    curious: Option<usize>,
    /// Nodes still to be wiped in this round.
    wiping: Vec<usize>,
    wipe_round: u64,
    /// The last datagram it sent for a request, for repeating it by hand.
    pub last_sent: Option<Vec<u8>>,
    /// The last reply that was no answer to its running request: who, and what it says.
    pub stray: Option<(usize, String)>,
    /// The last reply of any kind.
    pub last_heard: Option<Vec<u8>>,
}

impl Client {
    /// A client that asks `nodes` nodes.
    #[must_use]
    pub fn new(number: usize, nodes: usize, manners: Manners, habits: Option<Habits>, seed: u64) -> Self {
        Self {
            number,
            manners,
            habits,
            nodes,
            dice: Dice::of_part(seed, "client", number as u64),
            running: None,
            repeats: Vec::new(),
            answers: BTreeMap::new(),
            count: 0,
            idle_until: BEGIN,
            next_at: Instant::FAR,
            wakes_at: Instant::ZERO,
            curious: None,
            wiping: Vec::new(),
            wipe_round: 0,
            last_sent: None,
            stray: None,
            last_heard: None,
        }
    }

    /// Whether it waits for nothing.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.running.is_none() && self.repeats.is_empty()
    }

    /// Asks nothing of its own any more.
    pub fn retire(&mut self) {
        self.habits = None;
    }

    /// Starts a request; the next turn sends it.
    pub fn begin(
        &mut self,
        now: Instant,
        key: usize,
        action: Action,
        node: usize,
        history: &mut History,
    ) -> OpId {
        self.count += 1;
        let id = self.draw_id();
        let op = history.begin(self.number, key, action, node, now);
        let key = history.keys.get(key).copied();
        let key = key.unwrap_or_else(|| Key::parse(b"none").expect("it is short enough"));
        let action = &history.ops[op].action;
        let operation = match action {
            Action::Put { value, version } => {
                Operation::Put { key, value: Value { bytes: value, version: *version } }
            }
            Action::Get => Operation::Get { key },
            Action::Remove => Operation::Remove { key },
            Action::Wipe { .. } => Operation::Wipeout,
        };
        let request = Request { format: self.manners.format, id, operation };
        let exchange = Exchange::new(&request, &self.manners.policy);
        if *action != Action::Get {
            self.answers.insert(id, (op, None));
        }
        self.running = Some(Running { op, exchange, id, node, answered_by: None });
        op
    }

    fn draw_id(&mut self) -> MessageId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.dice.roll().to_be_bytes());
        bytes[8..].copy_from_slice(&((self.number as u64) << 32 | self.count).to_be_bytes());
        // No raw request may look like an envelope.
        bytes[0] |= 0x80;
        MessageId(bytes)
    }

    /// Takes its turn: sends what is due, ends what is over, starts something new.
    pub fn act(&mut self, now: Instant, history: &mut History, hosts: &[Host], letters: &mut Vec<Letter>) {
        loop {
            self.send_repeats(now, history, letters);
            let next_repeat = self.repeats.iter().map(|repeat| repeat.at).min().unwrap_or(Instant::FAR);
            let Some(running) = &mut self.running else {
                let next = self.start_something(now, history, hosts);
                if next == now {
                    continue;
                }
                self.next_at = next.min(next_repeat);
                return;
            };
            match running.exchange.poll(now.since(BEGIN)) {
                Step::Send => self.send(now, history, hosts, letters),
                Step::WaitUntil(time) => {
                    self.next_at = (BEGIN + time).min(next_repeat);
                    return;
                }
                Step::Done => self.end(now, history, hosts),
            }
        }
    }

    /// The moment of its next turn, if that is not planned already.
    pub fn plan_wake(&mut self, now: Instant) -> Option<Instant> {
        if self.next_at == Instant::FAR || (now < self.wakes_at && self.wakes_at <= self.next_at) {
            return None;
        }
        self.wakes_at = self.next_at;
        Some(self.next_at)
    }

    fn send(&mut self, now: Instant, history: &mut History, hosts: &[Host], letters: &mut Vec<Letter>) {
        const ASK_ANOTHER: u32 = 300_000;
        let Some(running) = &mut self.running else { return };
        let is_first = running.exchange.attempts() == 1;
        // A wipe-out is for one node.
        let is_wipe = matches!(history.ops[running.op].action, Action::Wipe { .. });
        let may_ask_another = !self.manners.needs_front_end && self.habits.is_some() && !is_wipe;
        if !is_first && may_ask_another && self.dice.chance(ASK_ANOTHER) {
            running.node = pick(&mut self.dice, hosts);
        }
        if running.id != running.exchange.id() {
            // Refused for overload, it starts over as another request: the old one must not run late.
            let op = running.op;
            self.repeats.retain(|repeat| repeat.op != op);
            running.id = running.exchange.id();
            if history.ops[op].action != Action::Get {
                self.answers.insert(running.id, (op, None));
            }
        }
        history.ops[running.op].last_sent = now;
        let bytes = running.exchange.datagram().to_vec();
        history.note_request(running.op, &bytes);
        history.look_for_holders(running.op, now, hosts);
        self.last_sent = Some(bytes.clone());
        letters.push(Letter { node: running.node, port: PORT, bytes });
        if is_first && !is_wipe {
            self.plan_repeats(now, hosts);
        }
    }

    fn plan_repeats(&mut self, now: Instant, hosts: &[Host]) {
        const SHORTLY: Duration = Duration::from_millis(60);
        let (Some(habits), Some(running)) = (&self.habits, &self.running) else { return };
        while self.dice.chance(habits.repeat) {
            let within = if self.dice.chance(600_000) { SHORTLY } else { REPEAT_WITHIN };
            let letter = Letter {
                node: pick(&mut self.dice, hosts),
                port: PORT + 1 + self.dice.below(3) as u16,
                bytes: running.exchange.datagram().to_vec(),
            };
            let at = now + self.dice.time(Duration::ZERO, within);
            self.repeats.push(Repeat { at, op: running.op, letter });
        }
    }

    fn send_repeats(&mut self, now: Instant, history: &mut History, letters: &mut Vec<Letter>) {
        let due = |repeat: &mut Repeat| repeat.at <= now;
        for repeat in self.repeats.extract_if(.., due) {
            let op = &mut history.ops[repeat.op];
            op.last_sent = op.last_sent.max(now);
            letters.push(repeat.letter);
        }
    }

    /// A datagram reached one of its ports; `true` when it is to take its turn.
    pub fn on_datagram(
        &mut self,
        now: Instant,
        from: SocketAddr,
        port: u16,
        bytes: &[u8],
        history: &mut History,
    ) -> bool {
        let Some(Place::Node(node)) = Place::of(from) else { return false };
        self.last_heard = Some(bytes.to_vec());
        self.compare(node, bytes, history);
        let Some(running) = &mut self.running else { return false };
        if port != PORT || (self.manners.needs_front_end && node != running.node) {
            return false;
        }
        let is_answer = running.exchange.on_datagram(now.since(BEGIN), bytes) == Verdict::Accepted;
        if is_answer {
            running.answered_by = Some(node);
        }
        is_answer
    }

    /// All answers to one mutation must say the same.
    fn compare(&mut self, node: usize, bytes: &[u8], history: &mut History) {
        const PUT: u32 = 1;
        const GET: u32 = 2;
        let decode = |command| wire::decode_response(self.manners.format, command, bytes);
        let Ok(response) = decode(GET).or_else(|_| decode(PUT)) else { return };
        let said = response.value.filter(|value| !value.bytes.is_empty()).map_or_else(
            || response.status.to_string(),
            |value| value.bytes[..value.bytes.len().min(40)].escape_ascii().to_string(),
        );
        self.stray = Some((node, said));
        let Some((op, first)) = self.answers.get_mut(&response.id) else { return };
        if !matches!(response.status, Status::Success | Status::NoSuchKey) {
            return;
        }
        match first {
            None => *first = Some(response.status),
            Some(first) if *first == response.status => {}
            Some(first) => {
                let line = format!("op {op}: answered '{first}', then n{node} said '{}'", response.status);
                history.contradictions.push(line);
            }
        }
    }

    fn end(&mut self, now: Instant, history: &mut History, hosts: &[Host]) {
        let Some(running) = self.running.take() else { return };
        let op = &history.ops[running.op];
        let seen = match running.exchange.outcome() {
            Some(Outcome::Answered(reply)) => match (reply.status, &op.action) {
                (Status::Success, Action::Get) => {
                    let bytes = reply.value.unwrap_or_default();
                    let version = (self.manners.format == Format::Protobuf).then_some(reply.version);
                    history.writer_of(op.key, &bytes, version)
                }
                (Status::Success, _) => Seen::Done,
                (Status::NoSuchKey, _) => Seen::Missing,
                (status, _) => Seen::Refused(status),
            },
            Some(Outcome::TimedOut | Outcome::Overloaded) | None => Seen::Nothing,
        };
        history.finish(running.op, now, seen, running.answered_by, hosts);
        if let Some(habits) = &self.habits {
            self.idle_until = now + self.dice.time(Duration::ZERO, habits.think);
        }
    }

    /// Follows its habits; returns when it wants its next turn.
    fn start_something(&mut self, now: Instant, history: &mut History, hosts: &[Host]) -> Instant {
        let Some(habits) = &self.habits else { return Instant::FAR };
        if habits.until <= now {
            return Instant::FAR;
        }
        if now < self.idle_until {
            return self.idle_until;
        }
        let node = pick(&mut self.dice, hosts);
        if let Some(node) = self.wiping.pop() {
            let action = Action::Wipe { round: self.wipe_round };
            self.begin(now, usize::MAX, action, node, history);
            return now;
        }
        if let Some(key) = self.curious.take() {
            self.begin(now, key, Action::Get, node, history);
            return now;
        }
        let (key, action) = self.choose(history);
        if let Action::Wipe { .. } = action {
            self.wiping = (0..self.nodes).collect();
            self.wipe_round = (self.number as u64) << 32 | self.count;
            return now;
        }
        self.begin(now, key, action, node, history);
        now
    }

    fn choose(&mut self, history: &mut History) -> (usize, Action) {
        const READ_BACK: u32 = 300_000;
        let Some(habits) = &self.habits else { return (0, Action::Get) };
        if self.dice.chance(habits.wipe) {
            return (usize::MAX, Action::Wipe { round: 0 });
        }
        let hot = habits.keys[self.dice.index(habits.keys.len())];
        if self.dice.chance(habits.unique) {
            let key = history.key(key_of(&format!("own {}.{}", self.number, self.count)));
            self.curious = Some(key);
            return (key, self.new_value());
        }
        if self.dice.chance(habits.put) {
            self.curious = self.dice.chance(READ_BACK).then_some(hot);
            return (hot, self.new_value());
        }
        let action = if self.dice.chance(habits.remove) { Action::Remove } else { Action::Get };
        (hot, action)
    }

    fn new_value(&mut self) -> Action {
        let max = self.habits.as_ref().map_or(0, |habits| habits.value_bytes_max) as u64;
        let mut value = format!("value {}.{} ", self.number, self.count).into_bytes();
        // Most values are small.
        let bytes = self.dice.below(max + 1) * self.dice.below(max + 1) / (max + 1);
        let start = value.len() as u64 + self.count;
        value.extend((0..bytes).map(|at| b'a' + ((at + start) % 26) as u8));
        let version = match self.manners.format {
            Format::Raw => 0,
            Format::Protobuf => self.dice.roll() as i32,
        };
        Action::Put { value, version }
    }
}

/// A node to ask. Machines that were never part of the cluster or have left it are on nobody's list.
fn pick(dice: &mut Dice, hosts: &[Host]) -> usize {
    const TRIES_MAX: usize = 8;
    let mut node = dice.index(hosts.len());
    for _ in 0..TRIES_MAX {
        if 0 < hosts[node].births && !hosts[node].is_gone {
            break;
        }
        node = dice.index(hosts.len());
    }
    node
}

/// A key that both layouts write alike: as long as the raw one.
///
/// # Panics
/// When the name is too long for a key.
#[must_use]
pub fn key_of(name: &str) -> Key {
    let mut bytes = [0; KEY_BYTES_MAX];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    Key::parse(&bytes).expect("it has the length of a raw key")
}
