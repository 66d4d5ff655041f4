//! PUT and REMOVE at the coordinator: routing, versions, space, and the answer.
//!
//! A mutation goes to the first usable holder of its key (Dynamo, 4.5). The coordinator gives it a
//! version, keeps it, and has it replicated (`replicate`); the client is answered when the write rule
//! is satisfied. A removal of a key that the coordinator does not hold asks the others to remove it if
//! *they* hold it, and its status is what they say together.
//!
//! When a replica has no memory for a new key the write is undone everywhere before the client is
//! told "out of space": a key whose PUT was refused must not be readable.

use super::replicate::{Phase, WriteOp};
use super::reply_cache::Progress;
use super::{Arrival, Coordinator, Few, Turn, siblings};
use crate::cluster::Holder;
use crate::config::ReplyMode;
use crate::ids::{Token, Version};
use crate::metrics::Metric;
use crate::peer::{Message, Write, WriteOutcome};
use crate::time::{Duration, Instant};
use violet_client::wire::Context;
use violet_client::{Key, Operation, Response, Status, Value};

/// What a mutation does, and who answers for its key now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mutation<'a> {
    pub(super) partition: u16,
    pub(super) key: Key,
    pub(super) change: Change<'a>,
    pub(super) holders: &'a [Holder],
}

/// What a mutation does to its key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change<'a> {
    /// A value replaces all that is there.
    Put(Value<'a>),
    /// A value replaces what its writer has seen.
    PutWithContext(Context<'a>, Value<'a>),
    /// Nothing is left.
    Remove,
}

impl<'a> Change<'a> {
    /// The change that a request asks for, and of which key.
    pub(super) fn of(operation: &Operation<'a>) -> Option<(Key, Self)> {
        match *operation {
            Operation::Put { key, value } => Some((key, Self::Put(value))),
            Operation::PutWithContext { key, context, value } => {
                Some((key, Self::PutWithContext(context, value)))
            }
            Operation::Remove { key } => Some((key, Self::Remove)),
            _ => None,
        }
    }

    fn is_removal(&self) -> bool {
        matches!(self, Self::Remove)
    }
}

/// After this long every replica that answers reads knows of a removal, however busy they all are.
const REMOVAL_KNOWN_AFTER: Duration = Duration::from_secs(5);
/// A replica that had no memory is not offered new keys for this long.
const SPACE_PAUSE: Duration = Duration::from_millis(200);

impl Coordinator {
    /// Routes a mutation to its coordinator: the first holder that can be reached.
    pub(super) fn route_write(
        &self,
        turn: &mut Turn<'_>,
        arrival: &Arrival<'_>,
        key: Key,
        change: Change<'_>,
    ) {
        let partition = Self::partition_of(turn, &key);
        // Who repeats a request that was passed on has had no answer: whoever is silent by now is
        // bypassed sooner.
        let from = arrival.client.address;
        let is_repeat = arrival.hops == 0 && self.clients.is_forwarded(turn.now, arrival.request, from);
        let suspect_after = turn.suspect_after / if is_repeat { 3 } else { 1 };
        let holders = turn.view.holders(partition, turn.now, suspect_after);
        #[cfg(test)]
        let holders = if self.settings.bugs.no_dual_write { holders.without_former() } else { holders };
        let me = turn.view.me();
        let holders = holders.as_slice();
        let my_place = holders.iter().position(|holder| holder.member == me);
        // A request that was passed on is taken by any holder: members may disagree for a moment
        // about who is alive, and a second opinion would send it in circles.
        let leader = Self::leading_place(turn, holders);
        let is_mine = my_place == Some(leader) || (my_place.is_some() && 0 < arrival.hops);
        // While catching up this node cannot know what exists: the next holder coordinates, unless
        // the request has come round to all of them, or is one that is remembered here and perhaps nowhere else.
        let went_round = holders.len() <= usize::from(arrival.hops);
        let mutation = Mutation { partition, key, change, holders };
        let remembers = || self.reply_cache.look_up(turn.now, arrival.request).is_some();
        if is_mine && (self.serves(turn, partition) || went_round || remembers()) {
            return self.start_write(turn, arrival, &mutation);
        }
        let after = |place: usize| if is_mine { (place + 1) % holders.len() } else { leader };
        let next_place = my_place.map_or(leader, after);
        match holders.get(next_place).filter(|next| next.member != me) {
            Some(next) => {
                let mut arrival = *arrival;
                if is_repeat && self.settings.reply_mode == ReplyMode::Auto {
                    // Perhaps it was answered directly and cannot hear others.
                    arrival.client.needs_proxy = true;
                } else {
                    self.clients.note_asked(turn.now, from.ip());
                }
                self.clients.note_forwarded(turn.now, arrival.request, from);
                self.forward(turn, next.member, &arrival);
            }
            None => self.start_write(turn, arrival, &mutation),
        }
    }

    /// The place of the holder that coordinates: the first one that uses the layout in force here. One that
    /// does not, a newcomer most likely, does not know all holders yet.
    fn leading_place(turn: &Turn<'_>, holders: &[Holder]) -> usize {
        let uses_it = |holder: &Holder| {
            let standing = turn.view.member(holder.member).peer.standing();
            holder.member == turn.view.me() || standing.layout == turn.view.layout()
        };
        holders.iter().position(uses_it).unwrap_or(0)
    }

    fn start_write(&self, turn: &mut Turn<'_>, arrival: &Arrival<'_>, mutation: &Mutation<'_>) {
        if self.writes.is_full() {
            return self.shed(turn, &arrival.client, Metric::ShedPending);
        }
        let me = turn.view.me();
        if mutation.holders.iter().any(|holder| holder.member != me && self.is_full(turn, holder.member)) {
            // No other stands in: who is merely congested goes on serving what it has, and must not miss a write.
            return self.shed(turn, &arrival.client, Metric::ShedPeerFull);
        }
        let token = self.writes.token();
        let Ok(resumed) = self.admit(turn, arrival, token) else { return };
        let owns_newly = turn.view.owns_newly(mutation.partition);
        if !resumed
            && (owns_newly
                || self.may_have_missed_requests(turn.now)
                || self.was_apart_from(turn, mutation.holders))
        {
            let mut others = if owns_newly { turn.view.rememberers(mutation.partition) } else { Vec::new() };
            others.extend(mutation.holders.iter().map(|holder| holder.member));
            others.sort_unstable();
            others.dedup();
            let usable = |member: &u16| turn.view.is_usable(*member, turn.now, turn.suspect_after);
            others.retain(|member| *member != turn.view.me() && usable(member));
            if !others.is_empty() {
                return self.recall(turn, arrival, &others);
            }
        }
        self.run_write(turn, token, arrival, mutation, resumed);
    }

    /// Executes an admitted mutation, or finishes one that another coordinator began (`resumed`).
    pub(super) fn run_write(
        &self,
        turn: &mut Turn<'_>,
        token: Token,
        arrival: &Arrival<'_>,
        mutation: &Mutation<'_>,
        resumed: bool,
    ) {
        let Mutation { partition, key, change, holders } = *mutation;
        turn.outbox.count(Metric::WritesCoordinated);
        let meta = self.replica.meta(partition, &key);
        let existed = meta.is_some_and(|meta| !meta.removed);
        let mut op = WriteOp {
            request: arrival.request,
            client: arrival.client,
            key,
            partition,
            version: Version::default(),
            phase: Phase::Writing,
            removal: change.is_removal(),
            // With no replica in reach nobody knows: the removal is kept, with hints, like a write.
            only_if_present: change.is_removal() && !existed && holders.iter().any(|holder| holder.primary),
            existed,
            finds_removed: false,
            answered: false,
            moving: holders.iter().any(|holder| holder.former),
            restarts: 0,
            reply: siblings::first_reply(&change),
            targets: Few::new(),
        };
        if resumed {
            // Another coordinator's write was applied here; finish that one, do not run it again.
            // When nothing is here it was wiped since.
            op.existed = true;
            op.only_if_present = false;
            let Some(meta) = meta else { return self.finish(turn, &op) };
            op.version = meta.version;
            return self.replicate(turn, token, op, holders);
        }
        if let Some(meta) = meta.filter(|meta| meta.removed && change.is_removal()) {
            return self.remove_removed(turn, token, op, meta.version, holders);
        }
        if let Some(meta) = meta {
            self.clock.observe(meta.version.time);
        }
        if !change.is_removal() && !existed && self.lacks_space(turn, holders) {
            return self.refuse_space(turn, &op);
        }
        let value = match change {
            Change::Put(value) if !meta.is_some_and(|meta| meta.is_set()) => Some(value),
            Change::Remove => None,
            Change::Put(_) | Change::PutWithContext(..) => {
                return self.run_set_write(turn, token, op, &change, holders);
            }
        };
        op.version = self.clock.next(turn.now);
        let write = Write { key, version: op.version, value, is_set: false, request: op.request };
        if !op.only_if_present {
            let (outcome, _) = self.replica.apply(partition, &write, existed, false);
            if outcome == WriteOutcome::NoSpace {
                return self.on_no_space_here(turn, token, op, holders);
            }
        }
        self.send_writes(turn, token, &mut op, &write, holders);
        self.wait_or_finish(turn, token, op);
    }

    /// A removal of what was removed before changes nothing. But its client may rely on "no such key", so everybody
    /// must know of the removal, which is certain only some time after it: until then the replicas are told again.
    fn remove_removed(
        &self,
        turn: &mut Turn<'_>,
        token: Token,
        mut op: WriteOp,
        removed: Version,
        holders: &[Holder],
    ) {
        let since = turn.now.since(Instant::from_nanos(removed.time));
        #[cfg(test)]
        let since = if self.settings.bugs.absence_is_not_awaited { Duration::MAX } else { since };
        op.only_if_present = false;
        if REMOVAL_KNOWN_AFTER < since {
            self.add_targets(turn, &mut op, holders);
            return self.finish(turn, &op);
        }
        op.finds_removed = true;
        op.version = removed;
        self.replicate(turn, token, op, holders);
    }

    /// Whether a replica of a new key said lately that it has no memory.
    fn lacks_space(&self, turn: &Turn<'_>, holders: &[Holder]) -> bool {
        let refused = |holder: &Holder| {
            turn.view.member(holder.member).peer.refused_space_within(turn.now, SPACE_PAUSE)
        };
        holders.iter().any(refused)
    }

    /// A new key is refused. An overwrite that does not fit takes the old value with it: a refused
    /// PUT must not leave the old value readable.
    pub(super) fn on_no_space_here(
        &self,
        turn: &mut Turn<'_>,
        token: Token,
        mut op: WriteOp,
        holders: &[Holder],
    ) {
        if !op.existed {
            return self.refuse_space(turn, &op);
        }
        op.phase = Phase::Undoing(0);
        self.add_targets(turn, &mut op, holders);
        self.send_undos(turn, token, &op);
        self.wait_or_finish(turn, token, op);
    }

    fn refuse_space(&self, turn: &mut Turn<'_>, op: &WriteOp) {
        turn.outbox.count(Metric::RefusedSpace);
        self.reply_cache.forget(op.request);
        self.answer(turn, &op.client, &Response::of_status(op.client.id, Status::OutOfSpace));
    }

    /// Answers the client and records what it was told.
    pub(super) fn finish(&self, turn: &mut Turn<'_>, op: &WriteOp) {
        let status = op.status();
        if status == Status::OutOfSpace {
            turn.outbox.count(Metric::WritesUndone);
            return self.refuse_space(turn, op);
        }
        self.reply_cache.record(turn.now, op.request, Progress::Done(status));
        if op.only_if_present || status == Status::NoSuchKey {
            self.tell_holders(turn, op);
        }
        self.answer_mutation(turn, &op.client, status, op.reply.as_deref());
    }

    /// A removal of what was not here left no write of its own at the other holders, and so no record, or one that does
    /// not say how it ended. One of them may coordinate when the request is repeated, and something is here by then.
    fn tell_holders(&self, turn: &mut Turn<'_>, op: &WriteOp) {
        let message = Message::Settled { request: op.request, existed: op.status() == Status::Success };
        for target in &op.targets {
            if let Some(to) = turn.view.index_of(target.member) {
                self.link.send(turn.now, turn.view, to, &message, turn.outbox);
            }
        }
    }
}
