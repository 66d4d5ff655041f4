//! PutWithContext and GetSiblings: concurrent values of a key, kept apart by causality.
//!
//! A PutWithContext is a mutation like a PUT (`put`, `replicate`): the same routing, at-most-once rules,
//! hints and space. Only its write is another one: it changes the set that is there, in one step, so that
//! two writers at one coordinator both stay, and the whole set goes to the other holders, who merge it with
//! what they have. A plain PUT over a set replaces what the coordinator knows of, and leaves a set as well:
//! what a replica got from elsewhere meanwhile stays beside it.
//!
//! The context of a reply is not remembered for repeats, only that there was a success. A repeat gets an
//! empty context, which has seen nothing: whoever would replace what it wrote must read before.
//!
//! A GetSiblings asks every holder for its record and merges what they say: that has all that any of them
//! has. "No such key" is said by the same rule as to a GET.
//!
//! Deliberately not here: what a set is (`storage::siblings`).

use super::get::READ_MAX;
use super::pending::Next;
use super::put::Change;
use super::read_op::{AskedState, ReadOp};
use super::replicate::WriteOp;
use super::{Arrival, Client, Coordinator, Turn};
use crate::cluster::Holder;
use crate::ids::{MemberId, Token, Version};
use crate::metrics::Metric;
use crate::peer::{Message, ReadRole, Write};
use crate::storage::siblings::{CausalContext, Dot, Siblings};
use crate::storage::{Record, Standing, Written};
use crate::time::{Duration, Instant};
use violet_client::wire::{self, Accept, Context};
use violet_client::{Key, Response, Status, Value};

/// Most GetSiblings in progress: each may keep 60 KB.
pub(super) const GATHERS_MAX: usize = 64;

/// Whether a server of this cluster can have given this context out.
pub(super) fn is_possible(context: Context<'_>, now: Instant) -> bool {
    let context = CausalContext::decode(context.as_bytes());
    context.is_some_and(|context| context.is_possible_at(now.as_nanos()))
}

/// What the success of this mutation carries as long as nothing more is known.
pub(super) fn first_reply(change: &Change<'_>) -> Option<Box<[u8]>> {
    matches!(change, Change::PutWithContext(..)).then(|| reply_of(&CausalContext::default()))
}

/// What the success of a mutation carries of which only the status is remembered.
pub(super) fn forgotten_reply(datagram: &[u8]) -> Option<Box<[u8]>> {
    let request = wire::decode_request(datagram, Accept::Auto).ok()?;
    let (_, change) = Change::of(&request.operation)?;
    first_reply(&change)
}

fn reply_of(context: &CausalContext) -> Box<[u8]> {
    let mut reply = Vec::new();
    context.encode_reply(&mut reply);
    reply.into()
}

/// A GetSiblings that waits for holders.
#[derive(Clone, Debug)]
pub struct Gather {
    read: ReadOp,
    /// What was said so far.
    merged: Siblings,
}

/// How a gathering ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Values,
    NoSuchKey,
    /// Nobody who can tell has spoken.
    Unavailable,
}

impl Gather {
    fn take(&mut self, member: MemberId, unknown: bool, record: &Record<'_>) {
        // Who is catching up may have what was removed since.
        if let Some(siblings) = Siblings::of_record(record).filter(|_| !unknown) {
            self.merged = self.merged.merge(&siblings);
        }
        let state = match record.value {
            _ if unknown => AskedState::Unknown,
            Some(_) => AskedState::Hit(record.version),
            None => AskedState::Missed(record.version),
        };
        self.read.set(member, state);
    }

    /// Who has not said what it has.
    fn silent(&self) -> impl Iterator<Item = MemberId> + '_ {
        let is_silent = |state| !matches!(state, AskedState::Hit(_) | AskedState::Missed(_));
        self.read.asked.iter().filter(move |asked| is_silent(asked.state)).map(|asked| asked.member)
    }

    /// The end, once all have spoken.
    fn end(&self) -> Option<End> {
        let waits = |state| matches!(state, AskedState::Waiting(_) | AskedState::Not);
        if self.read.asked.iter().any(|asked| waits(asked.state)) {
            return None;
        }
        if !self.merged.is_empty() {
            return Some(End::Values);
        }
        // A hit that left nothing was removed, as somebody else knows: that is a miss.
        self.read.may_say_missing().then_some(End::NoSuchKey)
    }

    /// The end, when some are late.
    fn end_at(&self, now: Instant) -> Option<End> {
        let is_over = READ_MAX <= now.since(self.read.started);
        let spoken = self.read.asked.len() - self.silent().count();
        match self.merged.is_empty() {
            false if is_over || self.read.majority <= spoken => Some(End::Values),
            true if is_over => Some(End::Unavailable),
            _ => None,
        }
    }
}

impl Coordinator {
    /// Executes an admitted mutation that leaves a set of siblings.
    pub(super) fn run_set_write(
        &self,
        turn: &mut Turn<'_>,
        token: Token,
        mut op: WriteOp,
        change: &Change<'_>,
        holders: &[Holder],
    ) {
        let (context, value) = match *change {
            Change::PutWithContext(context, value) => (CausalContext::decode(context.as_bytes()), value),
            Change::Put(value) => (None, value),
            Change::Remove => return,
        };
        let mut set = Vec::new();
        let mut made = None;
        let mut update = |standing: Standing| {
            if let Some(meta) = standing.meta {
                self.clock.observe(meta.version.time);
            }
            let version = self.clock.next(turn.now);
            let writer = Dot::writer_after(version.writer, standing.losses);
            let siblings = standing.siblings;
            let (siblings, dot) = match &context {
                Some(context) => {
                    let updated = siblings.update(context, value, writer, version.time)?;
                    (updated.siblings, Some(updated.dot))
                }
                None => (siblings.replaced_by(Version { writer, ..version }, value), None),
            };
            made = Some((version, dot));
            Some((version, siblings))
        };
        let written = self.replica.rewrite(op.partition, &op.key, op.existed, &mut update, &mut set);
        let Some((version, dot)) = made else { return self.refuse_context(turn, &op) };
        op.version = version;
        if written == Written::NoSpace {
            return self.on_no_space_here(turn, token, op, holders);
        }
        if let (Some(context), Some(dot)) = (context, dot) {
            op.reply = Some(reply_of(&context.after(dot)));
        }
        let value = Some(Value { bytes: &set, version: 0 });
        let write = Write { key: op.key, version, value, is_set: true, request: op.request };
        self.send_writes(turn, token, &mut op, &write, holders);
        self.wait_or_finish(turn, token, op);
    }

    /// The context has become impossible since it was looked at: only a clock that was set back does that.
    fn refuse_context(&self, turn: &mut Turn<'_>, op: &WriteOp) {
        self.reply_cache.forget(op.request);
        self.answer_status(turn, &op.client, Status::Malformed);
    }

    /// GetSiblings, at the front end.
    pub(super) fn start_gather(&self, turn: &mut Turn<'_>, arrival: &Arrival<'_>, key: Key) {
        if self.gathers.is_full() {
            return self.shed(turn, &arrival.client, Metric::ShedPending);
        }
        let partition = Self::partition_of(turn, &key);
        let holders = turn.view.holders(partition, turn.now, turn.suspect_after);
        let me = turn.view.member(turn.view.me()).id;
        let read = self.read_op(turn, arrival, key, partition, holders.as_slice(), AskedState::Unknown);
        let mut gather = Gather { read, merged: Siblings::default() };
        if gather.read.asked.iter().any(|asked| asked.member == me) {
            let mut bytes = Vec::new();
            let record = self.replica.read_record(partition, &key, &mut bytes);
            gather.take(me, !self.serves(turn, partition), &record.unwrap_or_default());
        }
        let token = self.gathers.token();
        self.ask_for_records(turn, token, &mut gather);
        match gather.end() {
            Some(end) => self.end_gather(turn, &gather, end),
            None => self.gathers.insert(token, turn.now + self.patience_with_gather(turn, &gather), gather),
        }
    }

    fn patience_with_gather(&self, turn: &Turn<'_>, gather: &Gather) -> Duration {
        self.settings.hint_after + turn.farthest(gather.read.asked.iter().map(|asked| asked.member))
    }

    fn ask_for_records(&self, turn: &mut Turn<'_>, token: Token, gather: &mut Gather) {
        let Client { address, format, id, .. } = gather.read.client;
        let (key, me) = (gather.read.key, turn.view.me());
        let silent: Vec<MemberId> = gather.silent().collect();
        for member in silent {
            let Some(to) = turn.view.index_of(member).filter(|to| *to != me) else { continue };
            gather.read.set(member, AskedState::Waiting(ReadRole::Record));
            let (role, at_least) = (ReadRole::Record, Version::default());
            let message = Message::Read { token, role, client: address, format, id, key, at_least };
            self.link.send(turn.now, turn.view, to, &message, turn.outbox);
        }
    }

    /// A front end gathers; answers for this holder.
    pub(super) fn send_record(&self, turn: &mut Turn<'_>, to: u16, token: Token, key: &Key) {
        let partition = Self::partition_of(turn, key);
        let unknown = !self.serves(turn, partition);
        let mut bytes = Vec::new();
        let record = self.replica.read_record(partition, key, &mut bytes).filter(|_| !unknown);
        let Record { version, value, is_set } = record.unwrap_or_default();
        let message = Message::ReadRecord { token, unknown, version, value, is_set };
        self.link.send(turn.now, turn.view, to, &message, turn.outbox);
    }

    /// A holder says what it has.
    pub fn on_record(&self, turn: &mut Turn<'_>, from: u16, message: &Message<'_>) {
        let Message::ReadRecord { token, unknown, version, value, is_set } = *message else { return };
        let member = turn.view.member(from).id;
        let changed = self.gathers.update(token, |gather| {
            gather.take(member, unknown, &Record { version, value, is_set });
            let end = gather.end();
            (if end.is_some() { Next::Remove } else { Next::Keep }, end)
        });
        match changed {
            Some((Some(end), Some(gather))) => self.end_gather(turn, &gather, end),
            Some(_) => {}
            None => turn.outbox.count(Metric::PeerUnexpected),
        }
    }

    /// Some are late: what a majority says suffices if it is a value; else they are asked again.
    pub(super) fn on_gather_timeout(&self, turn: &mut Turn<'_>, token: Token) {
        let changed = self.gathers.update(token, |gather| {
            let again = turn.now + self.patience_with_gather(turn, gather);
            let end = gather.end_at(turn.now);
            let copy = end.is_none().then(|| gather.clone());
            (if end.is_some() { Next::Remove } else { Next::WakeAt(again) }, (end, copy))
        });
        match changed {
            Some(((Some(end), _), Some(gather))) => self.end_gather(turn, &gather, end),
            // Whoever could not tell is asked again as well; its new state is set by its answer.
            Some(((_, Some(mut gather)), None)) => {
                let me = turn.view.member(turn.view.me()).id;
                let again = gather.silent().filter(|member| *member != me).count();
                turn.outbox.count_many(Metric::Retransmissions, again as u64);
                self.ask_for_records(turn, token, &mut gather);
            }
            _ => {}
        }
    }

    fn end_gather(&self, turn: &mut Turn<'_>, gather: &Gather, end: End) {
        let client = &gather.read.client;
        match end {
            End::Values => {
                let mut bytes = Vec::new();
                gather.merged.encode_reply(&mut bytes);
                let value = Some(Value { bytes: &bytes, version: 0 });
                let response = Response { value, ..Response::of_status(client.id, Status::Success) };
                self.answer(turn, client, &response);
            }
            End::NoSuchKey => self.answer_status(turn, client, Status::NoSuchKey),
            End::Unavailable => turn.outbox.count(Metric::DroppedUnavailable),
        }
    }
}
