//! What the clients have asked and been told, and what the nodes held at that moment.
//!
//! A client knows when it asked, when it was answered and what the answer was. The simulator knows
//! more: at the moment of an answer it looks into all nodes and notes which of them hold the write.
//! So an acknowledged write that is gone later can be told apart from one whose holders all died.

use super::host::{Host, State};
use crate::ids::Version;
use crate::time::Instant;
use std::collections::BTreeMap;
use violet_client::{Key, Status};
use xxhash_rust::xxh3::xxh3_64;

/// A place in [`History::ops`].
pub type OpId = usize;

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Keep these bytes; no two PUTs of a random run have the same.
    Put {
        /// The value.
        value: Vec<u8>,
        /// The client's number beside it.
        version: i32,
    },
    /// Look it up.
    Get,
    /// Remove it.
    Remove,
    /// One node forgets everything; a round of these covers all nodes.
    Wipe {
        /// Which round.
        round: u64,
    },
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing, so far or for ever.
    Nothing,
    /// Success of a mutation.
    Done,
    /// There is no such key.
    Missing,
    /// The value of this PUT.
    Found(OpId),
    /// Something that nobody wrote to that key.
    Invented(String),
    /// Another status.
    Refused(Status),
}

/// One request of one client, retries included.
#[derive(Clone, Debug)]
pub struct Op {
    /// Who.
    pub client: usize,
    /// Index into [`History::keys`]; of no meaning for a wipe-out.
    pub key: usize,
    /// What.
    pub action: Action,
    /// The node asked first.
    pub asked: usize,
    /// When.
    pub invoked: Instant,
    /// When its datagram was last sent; it may be executed some time after that.
    pub last_sent: Instant,
    /// When it was answered, or given up.
    pub returned: Option<Instant>,
    /// How it was answered.
    pub seen: Seen,
    /// The node whose answer it was.
    pub answered_by: Option<usize>,
    /// The version that the nodes gave the write (or, for a GET, the newest version under which any
    /// node held the value that was returned), as found at the moment of the answer.
    pub version: Option<Version>,
    /// The processes that held the write at the moment of the answer: node, and which start of it.
    pub holders: Vec<(usize, u32)>,
}

impl Op {
    /// Whether its effect is certain.
    #[must_use]
    pub fn is_acknowledged(&self) -> bool {
        self.seen == Seen::Done
    }

    /// Whether it changes something, as far as its client knows.
    #[must_use]
    pub fn is_mutation(&self) -> bool {
        !matches!(self.action, Action::Get)
    }

    /// The moment after which it has no effect any more; `None` when that is not known.
    #[must_use]
    pub fn ended(&self) -> Option<Instant> {
        match self.seen {
            Seen::Nothing => None,
            Seen::Done | Seen::Missing | Seen::Found(_) | Seen::Invented(_) | Seen::Refused(_) => {
                self.returned
            }
        }
    }
}

/// Everything that clients asked.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The keys in use.
    pub keys: Vec<Key>,
    /// The requests, in the order in which they were made.
    pub ops: Vec<Op>,
    /// Two different answers to one mutation, in words.
    pub contradictions: Vec<String>,
    /// Nodes that were paused: which, since when, until when.
    pub absences: Vec<(usize, Instant, Instant)>,
    values: BTreeMap<u64, OpId>,
}

impl History {
    /// The number of a key; a new one is added.
    pub fn key(&mut self, key: Key) -> usize {
        self.keys.iter().rposition(|known| *known == key).unwrap_or_else(|| {
            self.keys.push(key);
            self.keys.len() - 1
        })
    }

    /// A request is made.
    pub fn begin(&mut self, client: usize, key: usize, action: Action, asked: usize, now: Instant) -> OpId {
        let id = self.ops.len();
        if let Action::Put { value, .. } = &action {
            self.values.insert(xxh3_64(value), id);
        }
        self.ops.push(Op {
            client,
            key,
            action,
            asked,
            invoked: now,
            last_sent: now,
            returned: None,
            seen: Seen::Nothing,
            answered_by: None,
            version: None,
            holders: Vec::new(),
        });
        id
    }

    /// A request is answered, or given up.
    pub fn finish(&mut self, id: OpId, now: Instant, seen: Seen, by: Option<usize>, hosts: &[Host]) {
        let found = self.look_at(id, &seen, hosts);
        let op = &mut self.ops[id];
        op.returned = Some(now);
        op.seen = seen;
        op.answered_by = by;
        (op.version, op.holders) = found;
    }

    /// The PUT that wrote these bytes to this key with this client version.
    #[must_use]
    pub fn writer_of(&self, key: usize, bytes: &[u8], version: Option<i32>) -> Seen {
        let of_put = |id: OpId| match &self.ops[id].action {
            Action::Put { value, version } => Some((value, *version)),
            Action::Get | Action::Remove | Action::Wipe { .. } => None,
        };
        let shown = || format!("{} bytes \"{}\"", bytes.len(), bytes[..bytes.len().min(40)].escape_ascii());
        let Some(&id) = self.values.get(&xxh3_64(bytes)) else {
            return Seen::Invented(format!("{}, which nobody wrote", shown()));
        };
        let (value, stored_version) = of_put(id).expect("only PUTs are noted by value");
        if value != bytes || self.ops[id].key != key {
            return Seen::Invented(format!("{}, the value of another key", shown()));
        }
        if version.is_some_and(|version| version != stored_version) {
            return Seen::Invented(format!("{} with version {version:?}, not {stored_version}", shown()));
        }
        Seen::Found(id)
    }

    /// The version of a write, and who holds it or something newer.
    fn look_at(&self, id: OpId, seen: &Seen, hosts: &[Host]) -> (Option<Version>, Vec<(usize, u32)>) {
        let op = &self.ops[id];
        let wanted: Option<&[u8]> = match (&op.action, seen) {
            (Action::Put { value, .. }, Seen::Done) => Some(value),
            (Action::Remove, Seen::Done) => None,
            (Action::Get, Seen::Found(put)) => match &self.ops[*put].action {
                Action::Put { value, .. } => Some(value),
                Action::Get | Action::Remove | Action::Wipe { .. } => return (None, Vec::new()),
            },
            _ => return (None, Vec::new()),
        };
        let key = &self.keys[op.key];
        let records: Vec<_> = hosts.iter().map(|host| host.record(key)).collect();
        let same = records.iter().flatten().filter(|(_, value)| value.as_deref() == wanted);
        let Some(version) = same.map(|(version, _)| *version).max() else { return (None, Vec::new()) };
        let holds = |node: &usize| records[*node].as_ref().is_some_and(|(held, _)| version <= *held);
        let holders = (0..hosts.len()).filter(holds).map(|node| (node, hosts[node].births));
        (Some(version), holders.collect())
    }

    /// Whether one of those who held a write when it was acknowledged still has its memory.
    #[must_use]
    pub fn has_survivor(&self, op: &Op, hosts: &[Host]) -> bool {
        op.holders
            .iter()
            .any(|(node, births)| hosts[*node].births == *births && hosts[*node].state != State::Down)
    }
}
