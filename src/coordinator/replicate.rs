//! Replication of one write: all live holders, hints for the absent (Dynamo, 4.6).
//!
//! A holder that stands in for an absent replica keeps a hint as well. Whoever does not acknowledge
//! within `hint_after` is replaced by the next member on the list with a hint; when nobody is left,
//! the coordinator keeps the hint itself. The client is told only when the late one has the write, too, or
//! counts as silent: until then it may answer reads from what it held before, and after that it has noticed
//! itself that it was away. A write that a replica has no memory for is taken back.
//!
//! Values are not copied for repeats: what is sent again is what the engine holds by then, the same
//! write or a newer one.

use super::pending::Next;
use super::{Client, Coordinator, Few, Turn};
use crate::cluster::{Holder, REPLICAS_MAX};
use crate::config::WriteRule;
use crate::ids::{MemberId, RequestKey, Token, Version};
use crate::metrics::Metric;
use crate::peer::{Message, Write, WriteOutcome};
use crate::storage::Record;
use crate::time::{Duration, Instant};
use violet_client::{Key, Status};

/// How often an undo is repeated before the client is answered anyway.
pub(super) const UNDO_TRIES_MAX: u8 = 6;
/// How often a write starts over because a replica was wiped later than its version says.
const RESTARTS_MAX: u8 = 4;
/// Members that one write may be sent to: holders, and a replacement for each.
pub(super) const TARGETS_MAX: usize = REPLICAS_MAX * 4;

/// A mutation that waits for replicas.
#[derive(Clone, Debug)]
pub struct WriteOp {
    pub(super) request: RequestKey,
    pub(super) client: Client,
    pub(super) key: Key,
    pub(super) partition: u16,
    pub(super) version: Version,
    pub(super) phase: Phase,
    pub(super) removal: bool,
    /// Removal of a key that has no value here.
    pub(super) only_if_present: bool,
    /// The key had a value, here or at a replica that said so.
    pub(super) existed: bool,
    /// Removal of a key that a removal before it has ended, which others may not know yet: it waits until they do,
    /// and whatever they still hold, there was nothing to remove.
    pub(super) finds_removed: bool,
    pub(super) answered: bool,
    /// Some holders are former owners: who reads may ask them alone, so all must have it.
    pub(super) moving: bool,
    pub(super) restarts: u8,
    /// What a success carries beside its status.
    pub(super) reply: Option<Box<[u8]>>,
    pub(super) targets: Few<Target>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Writing,
    /// Taking it back; tries so far.
    Undoing(u8),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) member: MemberId,
    pub(super) hint_for: Option<MemberId>,
    pub(super) state: TargetState,
    pub(super) sent_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetState {
    Waiting,
    Acknowledged,
    /// Someone else keeps a hint for it, but it is there and answers reads: it is asked again.
    Overdue,
    /// Given up; someone else keeps a hint for it.
    Replaced,
}

impl TargetState {
    pub(super) fn is_open(self) -> bool {
        matches!(self, Self::Waiting | Self::Overdue)
    }
}

impl WriteOp {
    pub(super) fn status(&self) -> Status {
        match (self.phase, self.removal, self.existed && !self.finds_removed) {
            (Phase::Undoing(_), _, _) => Status::OutOfSpace,
            (Phase::Writing, true, false) => Status::NoSuchKey,
            (Phase::Writing, ..) => Status::Success,
        }
    }

    /// Whether the client still waits.
    pub(super) fn is_unanswered(&self) -> bool {
        !self.answered
    }

    /// Which of the targets have to speak yet, a bit for each.
    fn waiting_mask(&self) -> u32 {
        const { assert!(TARGETS_MAX <= 32, "a bit for each") };
        let waits = |target: &Target| u32::from(target.state.is_open());
        self.targets.iter().enumerate().fold(0, |mask, (place, target)| mask | waits(target) << place)
    }

    fn is_settled(&self) -> bool {
        !self.targets.iter().any(|target| target.state.is_open())
    }

    /// Whether the client can be answered; `copies` = how many the rule wants beside this node's.
    fn satisfies(&self, rule: WriteRule, copies: usize) -> bool {
        let acknowledged = |target: &&Target| target.state == TargetState::Acknowledged;
        match rule {
            // Whether a removal found anything is known only when all have spoken.
            _ if self.phase != Phase::Writing || self.only_if_present => self.is_settled(),
            WriteRule::AllLive => self.is_settled(),
            WriteRule::Quorum if self.moving => self.is_settled(),
            WriteRule::Quorum => {
                self.is_settled() || copies <= self.targets.iter().filter(acknowledged).count()
            }
            WriteRule::One => true,
        }
    }
}

/// What the owner of the tables does after an operation changed.
pub(super) enum After {
    Nothing,
    Answer,
    Undo,
    StartOver(u64),
}

/// One more write (or one less) waits for a member; says how long the way to it and back is.
fn count_write(turn: &Turn<'_>, member: MemberId, change: i64) -> Duration {
    let Some(index) = turn.view.index_of(member) else { return Duration::ZERO };
    let peer = &turn.view.member(index).peer;
    peer.count_writes(change);
    peer.round_trip()
}

impl Coordinator {
    /// Sends what the engine holds for the key to the other holders.
    pub(super) fn replicate(&self, turn: &mut Turn<'_>, token: Token, mut op: WriteOp, holders: &[Holder]) {
        let mut bytes = Vec::new();
        let Some(write) = self.write_as_held(&op, &mut bytes) else { return self.finish(turn, &op) };
        self.send_writes(turn, token, &mut op, &write, holders);
        self.wait_or_finish(turn, token, op);
    }

    /// The write to repeat: what is held by now, which is this version or a newer one. `None` when
    /// nothing is held any more: it was wiped, or handed over to the replica that this node stood in
    /// for. A missing record must never become a removal.
    pub(super) fn write_as_held<'a>(&self, op: &WriteOp, bytes: &'a mut Vec<u8>) -> Option<Write<'a>> {
        let removal = Self::removal_of(op);
        if op.only_if_present {
            return Some(removal);
        }
        let Record { version, value, is_set } = self.replica.read_record(op.partition, &op.key, bytes)?;
        Some(Write { version, value, is_set, ..removal })
    }

    pub(super) fn removal_of(op: &WriteOp) -> Write<'static> {
        let WriteOp { key, version, .. } = *op;
        // Who finishes another request's removal leaves no trace of its own: done again it would find the same.
        let request = if op.finds_removed { RequestKey(0) } else { op.request };
        Write { key, version, value: None, is_set: false, request }
    }

    pub(super) fn add_targets(&self, turn: &Turn<'_>, op: &mut WriteOp, holders: &[Holder]) {
        for holder in holders.iter().filter(|holder| holder.member != turn.view.me()) {
            let hint_for = holder.stands_in_for.map(|absent| turn.view.member(absent).id);
            op.targets.push(Target {
                member: turn.view.member(holder.member).id,
                hint_for,
                state: TargetState::Waiting,
                sent_at: turn.now,
            });
        }
    }

    pub(super) fn send_writes(
        &self,
        turn: &mut Turn<'_>,
        token: Token,
        op: &mut WriteOp,
        write: &Write<'_>,
        holders: &[Holder],
    ) {
        self.add_targets(turn, op, holders);
        for target in &op.targets {
            self.send_write(turn, token, op, target, write);
        }
        self.keep_uncovered_hints(turn, op, write, holders);
    }

    /// Absent replicas for which no other member stands in: this node keeps the hint.
    fn keep_uncovered_hints(&self, turn: &mut Turn<'_>, op: &WriteOp, write: &Write<'_>, holders: &[Holder]) {
        if op.only_if_present {
            return;
        }
        for &primary in turn.view.primaries(op.partition) {
            let is_holder = holders.iter().any(|holder| holder.member == primary);
            let me = turn.view.me();
            let is_covered =
                holders.iter().any(|holder| holder.member != me && holder.stands_in_for == Some(primary));
            if !is_holder && !is_covered {
                self.keep_hint(turn, turn.view.member(primary).id, write);
            }
        }
    }

    /// Keeps a hint here for another member, and tries at once whether it can be delivered: a member
    /// that merely lost a datagram must not serve the old value for long.
    pub(super) fn keep_hint(&self, turn: &mut Turn<'_>, owner: MemberId, write: &Write<'_>) -> bool {
        if owner == turn.view.member(turn.view.me()).id {
            // This node stands aside, so that others stand in for it; what it coordinates yet it has itself.
            return true;
        }
        let kept = self.replica.hints.keep(owner, write);
        turn.outbox.count(if kept { Metric::HintsKept } else { Metric::HintsDropped });
        let usable = |to: &u16| turn.view.is_usable(*to, turn.now, turn.suspect_after);
        if let Some(to) = turn.view.index_of(owner).filter(usable) {
            self.link.send(turn.now, turn.view, to, &Message::Hint { write: *write }, turn.outbox);
        }
        kept
    }

    pub(super) fn send_write(
        &self,
        turn: &mut Turn<'_>,
        token: Token,
        op: &WriteOp,
        target: &Target,
        write: &Write<'_>,
    ) {
        let Some(to) = turn.view.index_of(target.member) else { return };
        let message = Message::Write {
            token,
            write: *write,
            hint_for: target.hint_for,
            replaces: op.existed || op.removal,
            only_if_present: op.only_if_present,
        };
        self.link.send(turn.now, turn.view, to, &message, turn.outbox);
    }

    pub(super) fn send_undos(&self, turn: &mut Turn<'_>, token: Token, op: &WriteOp) {
        self.replica.undo(op.partition, &op.key, op.version);
        for target in op.targets.iter().filter(|target| target.state == TargetState::Waiting) {
            let Some(to) = turn.view.index_of(target.member) else { continue };
            let message = Message::Undo { token, key: op.key, version: op.version, request: op.request };
            self.link.send(turn.now, turn.view, to, &message, turn.outbox);
        }
    }

    /// Copies beside this node's that the write rule wants.
    pub(super) fn copies_wanted(&self, turn: &Turn<'_>) -> usize {
        self.settings.majority(turn.view.members().len()) - 1
    }

    pub(super) fn wait_or_finish(&self, turn: &mut Turn<'_>, token: Token, mut op: WriteOp) {
        let copies = self.copies_wanted(turn);
        if op.is_settled() {
            return self.finish(turn, &op);
        }
        if self.is_satisfied(&op, copies) {
            op.answered = true;
            self.finish(turn, &op);
        }
        self.insert_write(turn, token, op);
    }

    fn is_satisfied(&self, op: &WriteOp, copies: usize) -> bool {
        #[cfg(test)]
        if self.settings.bugs.early_ack {
            return true;
        }
        op.satisfies(self.settings.write_rule, copies)
    }

    /// Puts an operation into the table; it waits for its targets from now on.
    fn insert_write(&self, turn: &Turn<'_>, token: Token, op: WriteOp) {
        let open = op.targets.iter().filter(|target| target.state.is_open());
        let farthest = open.map(|target| count_write(turn, target.member, 1)).max().unwrap_or_default();
        self.writes.insert(token, turn.now + self.patience_with_replicas() + farthest, op);
    }

    /// How long the targets that have to speak yet may take: the client waits for the farthest anyway.
    pub(super) fn patience_with_targets(&self, turn: &Turn<'_>, op: &WriteOp) -> Duration {
        let open = op.targets.iter().filter(|target| target.state.is_open());
        self.patience_with_replicas() + turn.farthest(open.map(|target| target.member))
    }

    /// Changes an operation in the table, and counts for whom it waits no more or anew.
    pub(super) fn update_write<R>(
        &self,
        turn: &Turn<'_>,
        token: Token,
        change: impl FnOnce(&mut WriteOp) -> (Next, R),
    ) -> Option<(R, Option<WriteOp>)> {
        self.writes.update(token, |op| {
            let before = op.waiting_mask();
            let (next, result) = change(op);
            let after = if next == Next::Remove { 0 } else { op.waiting_mask() };
            for (place, target) in op.targets.iter().enumerate() {
                let waits = |mask: u32| i64::from(mask >> place & 1);
                match waits(after) - waits(before) {
                    0 => {}
                    change => {
                        count_write(turn, target.member, change);
                    }
                }
            }
            (next, result)
        })
    }

    /// How long a replica may take beyond the way to it and back: `hint_after`, longer while all of them are slow,
    /// so that load alone does not turn every write into a hint.
    pub(super) fn patience_with_replicas(&self) -> Duration {
        self.usual_ack.late_after(self.settings.hint_after, self.settings.suspect_after)
    }

    /// A replica has spoken.
    pub fn on_stored(
        &self,
        turn: &mut Turn<'_>,
        from: u16,
        token: Token,
        outcome: WriteOutcome,
        existed: bool,
    ) {
        let member = turn.view.member(from).id;
        let copies = self.copies_wanted(turn);
        let mut waited = None;
        let changed = self.update_write(turn, token, |op| {
            let target =
                op.targets.iter_mut().find(|target| target.member == member && target.state.is_open());
            let Some(target) = target else { return (Next::Keep, After::Nothing) };
            if op.phase != Phase::Writing {
                return (Next::Keep, After::Nothing);
            }
            match outcome {
                WriteOutcome::Applied => {
                    // That it was late has been noted.
                    let in_time = target.state == TargetState::Waiting;
                    waited = in_time.then(|| turn.now.since(target.sent_at));
                    target.state = TargetState::Acknowledged;
                    op.existed |= existed;
                    self.after_change(op, copies)
                }
                WriteOutcome::NoSpace
                    if target.hint_for.is_some() || target.state == TargetState::Overdue =>
                {
                    target.state = TargetState::Replaced;
                    self.after_change(op, copies)
                }
                // A removal that was another request's is not taken back.
                WriteOutcome::NoSpace if op.answered || op.finds_removed => {
                    target.state = TargetState::Replaced;
                    self.after_change(op, copies)
                }
                WriteOutcome::NoSpace => {
                    op.phase = Phase::Undoing(0);
                    for target in &mut op.targets {
                        target.state = TargetState::Waiting;
                    }
                    let again =
                        self.settings.hint_after + turn.farthest(op.targets.iter().map(|one| one.member));
                    (Next::WakeAt(turn.now + again), After::Undo)
                }
                WriteOutcome::BelowWipe(_) if op.restarts == RESTARTS_MAX => {
                    target.state = TargetState::Replaced;
                    self.after_change(op, copies)
                }
                WriteOutcome::BelowWipe(floor) => (Next::Remove, After::StartOver(floor)),
            }
        });
        if let Some(waited) = waited {
            let peer = &turn.view.member(from).peer;
            self.usual_ack.note(waited.saturating_sub(peer.round_trip()));
            peer.lateness.note(turn.now, false);
        }
        if outcome == WriteOutcome::NoSpace {
            turn.view.member(from).peer.note_refused_space(turn.now);
        }
        self.follow_up(turn, token, changed);
    }

    pub(super) fn after_change(&self, op: &mut WriteOp, copies: usize) -> (Next, After) {
        let after = if !op.answered && self.is_satisfied(op, copies) {
            op.answered = true;
            After::Answer
        } else {
            After::Nothing
        };
        let next = if op.is_settled() { Next::Remove } else { Next::Keep };
        (next, after)
    }

    pub(super) fn follow_up(
        &self,
        turn: &mut Turn<'_>,
        token: Token,
        changed: Option<(After, Option<WriteOp>)>,
    ) {
        let Some((after, removed)) = changed else {
            return turn.outbox.count(Metric::PeerUnexpected);
        };
        if matches!(after, After::Nothing) {
            return;
        }
        let op = removed.or_else(|| {
            let (op, _) = self.writes.update(token, |op| (Next::Keep, op.clone()))?;
            Some(op)
        });
        let Some(op) = op else { return };
        match after {
            After::Nothing => {}
            After::Answer => {
                self.bury_what_others_held(turn, &op);
                self.finish(turn, &op);
            }
            After::Undo => self.send_undos(turn, token, &op),
            After::StartOver(floor) => self.start_over(turn, token, op, floor),
        }
    }

    /// A removal that found the key elsewhere leaves its mark here too, and a hint for every replica
    /// that did not hear of it: that one may hold the key as well.
    fn bury_what_others_held(&self, turn: &mut Turn<'_>, op: &WriteOp) {
        if !op.only_if_present || !op.existed {
            return;
        }
        let write = Self::removal_of(op);
        let _ = self.replica.apply(op.partition, &write, true, false);
        for &primary in turn.view.primaries(op.partition) {
            let id = turn.view.member(primary).id;
            let has_heard =
                |target: &Target| target.member == id && target.state == TargetState::Acknowledged;
            if primary != turn.view.me() && !op.targets.iter().any(has_heard) {
                self.keep_hint(turn, id, &write);
            }
        }
    }

    /// A replica was wiped at a time that this node's clock has not reached: the write is later than
    /// that wipe-out (it was asked for later), so it needs a later version.
    fn start_over(&self, turn: &mut Turn<'_>, token: Token, mut op: WriteOp, floor: u64) {
        self.clock.observe(floor);
        let mut bytes = Vec::new();
        let Some(held) = self.write_as_held(&op, &mut bytes) else {
            // This node was wiped as well, after the write.
            if !op.answered {
                self.finish(turn, &op);
            }
            return;
        };
        op.version = self.clock.next(turn.now);
        op.restarts += 1;
        op.targets.clear();
        let write = Write { version: op.version, ..held };
        if !op.only_if_present {
            let _ = self.replica.apply(op.partition, &write, true, false);
        }
        let holders = turn.view.holders(op.partition, turn.now, turn.suspect_after);
        self.send_writes(turn, token, &mut op, &write, holders.as_slice());
        if op.is_settled() {
            if !op.answered {
                self.finish(turn, &op);
            }
        } else {
            self.insert_write(turn, token, op);
        }
    }

    /// A replica has taken a write back.
    pub fn on_undone(&self, turn: &mut Turn<'_>, from: u16, token: Token) {
        let member = turn.view.member(from).id;
        let changed = self.update_write(turn, token, |op| {
            for target in op.targets.iter_mut().filter(|target| target.member == member) {
                target.state = TargetState::Acknowledged;
            }
            let over = op.phase != Phase::Writing && op.is_settled();
            (if over { Next::Remove } else { Next::Keep }, ())
        });
        match changed {
            Some(((), Some(op))) => self.finish(turn, &op),
            Some(((), None)) => {}
            None => turn.outbox.count(Metric::PeerUnexpected),
        }
    }

    /// Whether a write of this key is in progress here.
    pub fn is_writing(&self, key: &Key) -> bool {
        0 < self.writes.count(|op| op.key == *key)
    }
}
