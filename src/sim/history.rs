//! What the clients have asked and been told, and what the nodes held at that moment.
//!
//! A client knows when it asked, when it was answered and what the answer was. The simulator knows
//! more: at the moment of an answer it looks into all nodes and notes which of them hold the write.
//! From the frames between the nodes it learns which version each write was given, and whenever a
//! process dies or is wiped it looks which acknowledged writes nobody holds any more, nor anything newer
//! ([`History::note_losses`]). Only those are excused later; everything else must be there.

use super::host::{Host, State};
use crate::ids::{RequestKey, Version};
use crate::peer::Write;
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};
use violet_client::{Key, Status};
use xxhash_rust::xxh3::xxh3_64;

/// A process that was stopped serves again after this long: it hears what it missed first.
const BACK_AFTER: Duration = Duration::from_millis(500);

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
    /// The moment since which no process holds this acknowledged write or anything newer of its key.
    pub lost_at: Option<Instant>,
    /// While it was asked for, all who held the newest acknowledged write of its key were stopped, or had just
    /// come back: nobody could know better.
    pub is_excused: bool,
    /// The versions that coordinators gave it, as seen in their frames: one, unless it was repeated.
    given: Vec<Version>,
}

impl Op {
    /// Whether it was lost before then.
    #[must_use]
    pub fn is_lost_by(&self, moment: Instant) -> bool {
        self.lost_at.is_some_and(|at| at <= moment)
    }

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

/// Some nodes were cut off from all others.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The nodes on the smaller side: half of all at most.
    pub few: Vec<usize>,
    /// The beginning.
    pub since: Instant,
    /// The end; far away while it lasts.
    pub until: Instant,
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
    /// Cuts between two groups of nodes, in both directions.
    pub cuts: Vec<Cut>,
    /// Nodes that lose their core now and then: which, and from when on.
    pub starved: Vec<(usize, Instant)>,
    /// Acknowledged writes that were lost when a node left as planned.
    pub lost_by_leaving: Vec<OpId>,
    values: BTreeMap<u64, OpId>,
    requests: BTreeMap<RequestKey, OpId>,
    /// For each key its acknowledged writes that are not lost.
    kept: Vec<Vec<(Version, OpId)>>,
    /// For each key the versions of removals, those of repeats included.
    removals: BTreeMap<usize, BTreeSet<Version>>,
}

impl History {
    /// The number of a key; a new one is added.
    pub fn key(&mut self, key: Key) -> usize {
        self.keys.iter().rposition(|known| *known == key).unwrap_or_else(|| {
            self.keys.push(key);
            self.keys.len() - 1
        })
    }

    /// A cut begins, when there is none.
    pub fn begin_cut(&mut self, few: Vec<usize>, now: Instant) {
        self.cuts.push(Cut { few, since: now, until: Instant::FAR });
    }

    /// All cuts end.
    pub fn end_cuts(&mut self, now: Instant) {
        self.cuts.iter_mut().for_each(|cut| cut.until = cut.until.min(now));
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
            lost_at: None,
            is_excused: false,
            given: Vec::new(),
        });
        id
    }

    /// A datagram of this request is sent.
    pub fn note_request(&mut self, id: OpId, datagram: &[u8]) {
        if self.ops[id].is_mutation() {
            self.requests.insert(RequestKey::of(datagram), id);
        }
    }

    /// A read is asked or answered now: looks whether anybody is there who knows what it should see.
    pub fn look_for_holders(&mut self, id: OpId, now: Instant, hosts: &[Host]) {
        let op = &self.ops[id];
        let newest = self.kept.get(op.key).and_then(|kept| kept.iter().max());
        let (Action::Get, Some((version, _))) = (&op.action, newest) else { return };
        let key = &self.keys[op.key];
        let is_there = |host: &Host| host.state == State::Up && host.resumed_at + BACK_AFTER < now;
        let knows = |host: &Host| is_there(host) && Some(*version) <= host.version_of(key);
        let is_excused = !hosts.iter().any(knows);
        self.ops[id].is_excused |= is_excused;
    }

    /// A coordinator sends a write to a holder. What is sent again may be a newer write under the old
    /// request's name, so a PUT's value is compared, and of a removal only the first version counts.
    pub fn note_write(&mut self, write: &Write<'_>) {
        let Some(&id) = self.requests.get(&write.request) else { return };
        let op = &mut self.ops[id];
        let is_it = match (&op.action, &write.value) {
            (Action::Put { value, .. }, Some(sent)) => {
                !op.given.contains(&write.version) && *value == sent.bytes
            }
            (Action::Remove, None) => op.given.is_empty(),
            _ => false,
        };
        if write.value.is_none() {
            self.removals.entry(op.key).or_default().insert(write.version);
        }
        if is_it {
            op.given.push(write.version);
        }
    }

    /// Whether a removal of a key, perhaps a repeat of an old one, came after this version and before then.
    #[must_use]
    pub fn is_removed_after(&self, key: usize, version: Option<Version>, until: Instant) -> bool {
        let removals = self.removals.get(&key).into_iter().flatten();
        removals.into_iter().any(|removal| version < Some(*removal) && removal.time <= until.as_nanos())
    }

    /// A request is answered, or given up.
    pub fn finish(&mut self, id: OpId, now: Instant, seen: Seen, by: Option<usize>, hosts: &[Host]) {
        let found = self.look_at(id, &seen, hosts);
        self.look_for_holders(id, now, hosts);
        let op = &mut self.ops[id];
        op.returned = Some(now);
        op.seen = seen;
        op.answered_by = by;
        (op.version, op.holders) = found;
        if op.is_acknowledged() && matches!(op.action, Action::Put { .. } | Action::Remove) {
            self.keep(id, now, hosts);
        }
    }

    /// An acknowledged write is to be kept from now on, unless nobody has it any more even now.
    fn keep(&mut self, id: OpId, now: Instant, hosts: &[Host]) {
        let op = &mut self.ops[id];
        let held = newest(hosts, &self.keys[op.key]);
        let Some(version) = op.version else {
            // Its only holder has died since, or something newer has taken its place before anyone looked.
            let is_superseded = held.is_some_and(|held| op.invoked.as_nanos() <= held.time);
            op.lost_at = (!is_superseded).then_some(now);
            return;
        };
        if held < Some(version) {
            op.lost_at = Some(now);
            return;
        }
        self.kept.resize_with(self.keys.len(), Vec::new);
        self.kept[self.ops[id].key].push((version, id));
    }

    /// The keys of which a process holds something that may be the last of its kind.
    #[must_use]
    pub fn keys_at_stake(&self, host: &Host) -> Vec<usize> {
        let is_at_stake =
            |key: &usize| !self.kept[*key].is_empty() && host.version_of(&self.keys[*key]).is_some();
        (0..self.kept.len()).filter(is_at_stake).collect()
    }

    /// A process is gone, or has forgotten everything: of these keys, what nobody holds any more (nor
    /// anything newer) is lost. Returns what that is. Hints need no look: whoever keeps one keeps a copy.
    pub fn note_losses(&mut self, keys: &[usize], now: Instant, hosts: &[Host]) -> Vec<OpId> {
        let mut lost = Vec::new();
        for &key in keys {
            let held = newest(hosts, &self.keys[key]);
            lost.extend(
                self.kept[key].extract_if(.., |(version, _)| held < Some(*version)).map(|(_, id)| id),
            );
        }
        for id in &lost {
            self.ops[*id].lost_at = Some(now);
        }
        lost
    }

    /// For each key the newest acknowledged write that is not lost.
    pub fn newest_kept(&self) -> impl Iterator<Item = (usize, Version, OpId)> + '_ {
        let newest = |(key, kept): (usize, &Vec<(Version, OpId)>)| {
            kept.iter().max().map(|(version, id)| (key, *version, *id))
        };
        self.kept.iter().enumerate().filter_map(newest)
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
        let seen = same.map(|(version, _)| *version).max();
        let given = if op.is_mutation() { op.given.iter().copied().max() } else { None };
        let Some(version) = given.or(seen) else { return (None, Vec::new()) };
        let holds = |node: &usize| records[*node].as_ref().is_some_and(|(held, _)| version <= *held);
        let holders = (0..hosts.len()).filter(holds).map(|node| (node, hosts[node].births));
        (Some(version), holders.collect())
    }
}

/// The newest version of a key that any process holds, running or paused.
fn newest(hosts: &[Host], key: &Key) -> Option<Version> {
    hosts.iter().filter_map(|host| host.version_of(key)).max()
}
