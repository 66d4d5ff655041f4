//! PUT and REMOVE: one coordinator, all live replicas, hints for the absent (Dynamo, 4.5 and 4.6).
//!
//! The coordinator gives the write its version, keeps it, and sends it to the other holders. A holder
//! that stands in for an absent replica keeps a hint as well. Whoever does not acknowledge within
//! `hint_after` is replaced by the next member on the list with a hint; when nobody is left, the
//! coordinator keeps the hint itself. The client is answered when the write rule is satisfied.
//!
//! Values are not copied for repeats: what is sent again is what the engine holds by then, the same
//! write or a newer one. A removal of a key that the coordinator does not hold asks the others to
//! remove it if *they* hold it, and its status is what they say together.
//!
//! When a replica has no memory for a new key the write is undone everywhere before the client is
//! told "out of space": a key whose PUT was refused must not be readable.

use super::pending::Next;
use super::reply_cache::Progress;
use super::{Arrival, Client, Coordinator, Turn};
use crate::cluster::{Holder, REPLICAS_MAX};
use crate::config::WriteRule;
use crate::ids::{MemberId, RequestKey, Token, Version};
use crate::metrics::Metric;
use crate::peer::{Message, Write, WriteOutcome};
use crate::time::{Duration, Instant};
use violet_client::{Key, Response, Status, Value};

/// A replica that had no memory is not offered new keys for this long.
const SPACE_PAUSE: Duration = Duration::from_millis(200);
/// How often an undo is repeated before the client is answered anyway.
const UNDO_TRIES_MAX: u8 = 6;
/// How often a write starts over because a replica was wiped later than its version says.
const RESTARTS_MAX: u8 = 4;
/// Members that one write may be sent to: holders, and a replacement for each.
const TARGETS_MAX: usize = REPLICAS_MAX * 4;

/// A mutation that waits for replicas.
#[derive(Clone, Debug)]
pub struct WriteOp {
    request: RequestKey,
    client: Client,
    key: Key,
    partition: u16,
    version: Version,
    phase: Phase,
    removal: bool,
    /// Removal of a key that has no value here.
    only_if_present: bool,
    /// The key had a value, here or at a replica that said so.
    existed: bool,
    answered: bool,
    restarts: u8,
    targets: Vec<Target>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Writing,
    /// Taking it back; tries so far.
    Undoing(u8),
}

#[derive(Clone, Copy, Debug)]
struct Target {
    member: MemberId,
    hint_for: Option<MemberId>,
    state: TargetState,
    sent_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetState {
    Waiting,
    Acknowledged,
    /// Given up; someone else keeps a hint for it.
    Replaced,
}

impl WriteOp {
    fn status(&self) -> Status {
        match (self.phase, self.removal, self.existed) {
            (Phase::Undoing(_), _, _) => Status::OutOfSpace,
            (Phase::Writing, true, false) => Status::NoSuchKey,
            (Phase::Writing, ..) => Status::Success,
        }
    }

    /// Whether the client still waits.
    pub(super) fn is_unanswered(&self) -> bool {
        !self.answered
    }

    fn is_settled(&self) -> bool {
        self.targets.iter().all(|target| target.state != TargetState::Waiting)
    }

    /// Whether the client can be answered; `copies` = how many the rule wants beside this node's.
    fn satisfies(&self, rule: WriteRule, copies: usize) -> bool {
        let acknowledged = |target: &&Target| target.state == TargetState::Acknowledged;
        match rule {
            // Whether a removal found anything is known only when all have spoken.
            _ if self.phase != Phase::Writing || self.only_if_present => self.is_settled(),
            WriteRule::AllLive => self.is_settled(),
            WriteRule::Quorum => {
                self.is_settled() || copies <= self.targets.iter().filter(acknowledged).count()
            }
            WriteRule::One => true,
        }
    }
}

/// What the owner of the tables does after an operation changed.
enum After {
    Nothing,
    Answer,
    Undo,
    StartOver(u64),
}

impl Coordinator {
    /// Routes a mutation to its coordinator: the first holder that can be reached.
    pub(super) fn route_write(
        &self,
        turn: &mut Turn<'_>,
        arrival: &Arrival<'_>,
        key: Key,
        value: Option<Value<'_>>,
    ) {
        let partition = Self::partition_of(turn, &key);
        // Who repeats a request that was passed on has had no answer: whoever is silent by now is
        // bypassed sooner.
        let is_repeat = arrival.hops == 0 && self.clients.is_forwarded(arrival.request.short());
        let suspect_after = self.settings.suspect_after / if is_repeat { 3 } else { 1 };
        let holders = turn.view.holders(partition, turn.now, suspect_after);
        let me = turn.view.me();
        let holders = holders.as_slice();
        let my_place = holders.iter().position(|holder| holder.member == me);
        // A request that was passed on is taken by any holder: members may disagree for a moment
        // about who is alive, and a second opinion would send it in circles.
        let is_mine = my_place == Some(0) || (my_place.is_some() && 0 < arrival.hops);
        // While catching up this node cannot know what exists: the next holder coordinates, unless
        // the request has come round to all of them.
        let went_round = holders.len() <= usize::from(arrival.hops);
        if is_mine && (self.fence.is_active() || went_round) {
            return self.start_write(turn, arrival, partition, key, value, holders);
        }
        let next_place = my_place.map_or(0, |place| if is_mine { (place + 1) % holders.len() } else { 0 });
        match holders.get(next_place).filter(|next| next.member != me) {
            Some(next) => {
                if !is_repeat {
                    self.clients.note_asked(turn.now, arrival.client.address.ip());
                }
                self.clients.note_forwarded(arrival.request.short());
                self.forward(turn, next.member, arrival);
            }
            None => self.start_write(turn, arrival, partition, key, value, holders),
        }
    }

    fn start_write(
        &self,
        turn: &mut Turn<'_>,
        arrival: &Arrival<'_>,
        partition: u16,
        key: Key,
        value: Option<Value<'_>>,
        holders: &[Holder],
    ) {
        if self.writes.is_full() {
            return self.shed(turn, &arrival.client);
        }
        let token = self.writes.token();
        let Ok(resumed) = self.admit(turn, arrival, token) else { return };
        if !resumed && self.may_have_missed_requests(turn.now) {
            let others = holders.iter().map(|holder| holder.member);
            let others: Vec<u16> = others.filter(|member| *member != turn.view.me()).collect();
            if !others.is_empty() {
                return self.recall(turn, arrival, &others);
            }
        }
        self.run_write(turn, token, arrival, partition, key, value, holders, resumed);
    }

    /// Executes an admitted mutation, or finishes one that another coordinator began (`resumed`).
    #[allow(clippy::too_many_arguments)]
    pub(super) fn run_write(
        &self,
        turn: &mut Turn<'_>,
        token: Token,
        arrival: &Arrival<'_>,
        partition: u16,
        key: Key,
        value: Option<Value<'_>>,
        holders: &[Holder],
        resumed: bool,
    ) {
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
            removal: value.is_none(),
            only_if_present: value.is_none() && !existed,
            existed,
            answered: false,
            restarts: 0,
            targets: Vec::with_capacity(holders.len()),
        };
        if let (true, Some(meta)) = (resumed, meta) {
            // Another coordinator's write reached this node; finish that one, do not run it again.
            op.version = meta.version;
            op.existed = true;
            op.only_if_present = false;
            return self.replicate(turn, token, op, holders);
        }
        if value.is_none() && meta.is_some_and(|meta| meta.removed) {
            self.add_targets(turn, &mut op, holders);
            return self.finish(turn, &op);
        }
        if let Some(meta) = meta {
            self.clock.observe(meta.version.time);
        }
        op.version = self.clock.next(turn.now);
        if value.is_some() && !existed && self.lacks_space(turn, holders) {
            return self.refuse_space(turn, &op);
        }
        let write = Write { key, version: op.version, value, request: op.request };
        if !op.only_if_present {
            let (outcome, _) = self.replica.apply(partition, &write, existed, false);
            if outcome == WriteOutcome::NoSpace {
                return self.on_no_space_here(turn, token, op, holders);
            }
        }
        self.send_writes(turn, token, &mut op, &write, holders);
        self.wait_or_finish(turn, token, op);
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
    fn on_no_space_here(&self, turn: &mut Turn<'_>, token: Token, mut op: WriteOp, holders: &[Holder]) {
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

    /// Sends what the engine holds for the key to the other holders.
    fn replicate(&self, turn: &mut Turn<'_>, token: Token, mut op: WriteOp, holders: &[Holder]) {
        let mut bytes = Vec::new();
        let write = self.write_as_held(&op, &mut bytes);
        self.send_writes(turn, token, &mut op, &write, holders);
        self.wait_or_finish(turn, token, op);
    }

    /// The write to repeat: what is held by now, which is this version or a newer one.
    fn write_as_held<'a>(&self, op: &WriteOp, bytes: &'a mut Vec<u8>) -> Write<'a> {
        let meta = self.replica.read(op.partition, &op.key, bytes);
        let (version, value) = match meta {
            Some(meta) if meta.removed => (meta.version, None),
            Some(meta) => (meta.version, Some(Value { bytes, version: meta.client_version })),
            // Wiped meanwhile, or a removal of what was never here.
            None => (op.version, None),
        };
        Write { key: op.key, version, value, request: op.request }
    }

    fn add_targets(&self, turn: &Turn<'_>, op: &mut WriteOp, holders: &[Holder]) {
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

    fn send_writes(
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
    fn keep_hint(&self, turn: &mut Turn<'_>, owner: MemberId, write: &Write<'_>) -> bool {
        let kept = self.replica.hints.keep(owner, write);
        turn.outbox.count(if kept { Metric::HintsKept } else { Metric::HintsDropped });
        let usable = |to: &u16| turn.view.is_usable(*to, turn.now, self.settings.suspect_after);
        if let Some(to) = turn.view.index_of(owner).filter(usable) {
            self.link.send(turn.now, turn.view, to, &Message::Hint { write: *write }, turn.outbox);
        }
        kept
    }

    fn send_write(
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

    fn send_undos(&self, turn: &mut Turn<'_>, token: Token, op: &WriteOp) {
        self.replica.undo(op.partition, &op.key, op.version);
        for target in op.targets.iter().filter(|target| target.state == TargetState::Waiting) {
            let Some(to) = turn.view.index_of(target.member) else { continue };
            let message = Message::Undo { token, key: op.key, version: op.version, request: op.request };
            self.link.send(turn.now, turn.view, to, &message, turn.outbox);
        }
    }

    /// Copies beside this node's that the write rule wants.
    fn copies_wanted(&self, turn: &Turn<'_>) -> usize {
        self.settings.majority(turn.view.members().len()) - 1
    }

    fn wait_or_finish(&self, turn: &mut Turn<'_>, token: Token, mut op: WriteOp) {
        let copies = self.copies_wanted(turn);
        if op.is_settled() {
            return self.finish(turn, &op);
        }
        if self.is_satisfied(&op, copies) {
            op.answered = true;
            self.finish(turn, &op);
        }
        let deadline = turn.now + self.patience_with_replicas();
        self.writes.insert(token, deadline, op);
    }

    fn is_satisfied(&self, op: &WriteOp, copies: usize) -> bool {
        #[cfg(test)]
        if self.settings.bugs.early_ack {
            return true;
        }
        op.satisfies(self.settings.write_rule, copies)
    }

    /// How long a replica may take: `hint_after`, longer while all of them are slow, so that load
    /// alone does not turn every write into a hint.
    fn patience_with_replicas(&self) -> Duration {
        self.usual_ack.late_after(self.settings.hint_after, self.settings.suspect_after)
    }

    /// Answers the client and records what it was told.
    fn finish(&self, turn: &mut Turn<'_>, op: &WriteOp) {
        let status = op.status();
        if status == Status::OutOfSpace {
            turn.outbox.count(Metric::WritesUndone);
            return self.refuse_space(turn, op);
        }
        self.reply_cache.record(turn.now, op.request, Progress::Done(status));
        if op.only_if_present {
            self.tell_holders(turn, op);
        }
        self.answer(turn, &op.client, &Response::of_status(op.client.id, status));
    }

    /// A removal of what was not here left no write, and so no record, at the other holders.
    fn tell_holders(&self, turn: &mut Turn<'_>, op: &WriteOp) {
        let message = Message::Settled { request: op.request, existed: op.existed };
        for target in &op.targets {
            if let Some(to) = turn.view.index_of(target.member) {
                self.link.send(turn.now, turn.view, to, &message, turn.outbox);
            }
        }
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
        let changed = self.writes.update(token, |op| {
            let target = op
                .targets
                .iter_mut()
                .find(|target| target.member == member && target.state == TargetState::Waiting);
            let Some(target) = target else { return (Next::Keep, After::Nothing) };
            if op.phase != Phase::Writing {
                return (Next::Keep, After::Nothing);
            }
            match outcome {
                WriteOutcome::Applied => {
                    target.state = TargetState::Acknowledged;
                    waited = Some(turn.now.since(target.sent_at));
                    op.existed |= existed;
                    self.after_change(op, copies)
                }
                WriteOutcome::NoSpace if target.hint_for.is_some() => {
                    target.state = TargetState::Replaced;
                    self.after_change(op, copies)
                }
                WriteOutcome::NoSpace if op.answered => {
                    target.state = TargetState::Replaced;
                    self.after_change(op, copies)
                }
                WriteOutcome::NoSpace => {
                    op.phase = Phase::Undoing(0);
                    for target in &mut op.targets {
                        target.state = TargetState::Waiting;
                    }
                    (Next::WakeAt(turn.now + self.settings.hint_after), After::Undo)
                }
                WriteOutcome::BelowWipe(_) if op.restarts == RESTARTS_MAX => {
                    target.state = TargetState::Replaced;
                    self.after_change(op, copies)
                }
                WriteOutcome::BelowWipe(floor) => (Next::Remove, After::StartOver(floor)),
            }
        });
        if let Some(waited) = waited {
            self.usual_ack.note(waited);
        }
        if outcome == WriteOutcome::NoSpace {
            turn.view.member(from).peer.note_refused_space(turn.now);
        }
        self.follow_up(turn, token, changed);
    }

    fn after_change(&self, op: &mut WriteOp, copies: usize) -> (Next, After) {
        let after = if !op.answered && self.is_satisfied(op, copies) {
            op.answered = true;
            After::Answer
        } else {
            After::Nothing
        };
        let next = if op.is_settled() { Next::Remove } else { Next::Keep };
        (next, after)
    }

    fn follow_up(&self, turn: &mut Turn<'_>, token: Token, changed: Option<(After, Option<WriteOp>)>) {
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
        let write = Write { key: op.key, version: op.version, value: None, request: op.request };
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
        let held = self.write_as_held(&op, &mut bytes);
        op.version = self.clock.next(turn.now);
        op.restarts += 1;
        op.targets.clear();
        let write = Write { version: op.version, ..held };
        if !op.only_if_present {
            let _ = self.replica.apply(op.partition, &write, true, false);
        }
        let holders = turn.view.holders(op.partition, turn.now, self.settings.suspect_after);
        self.send_writes(turn, token, &mut op, &write, holders.as_slice());
        let deadline = turn.now + self.patience_with_replicas();
        if op.is_settled() {
            if !op.answered {
                self.finish(turn, &op);
            }
        } else {
            self.writes.insert(token, deadline, op);
        }
    }

    /// A replica has taken a write back.
    pub fn on_undone(&self, turn: &mut Turn<'_>, from: u16, token: Token) {
        let member = turn.view.member(from).id;
        let changed = self.writes.update(token, |op| {
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

    /// Replicas are late: replace them, each by the next member on the list, with a hint.
    pub(super) fn on_write_timeout(&self, turn: &mut Turn<'_>, token: Token) {
        let again = turn.now + self.patience_with_replicas();
        let changed = self.writes.update(token, |op| match &mut op.phase {
            Phase::Writing => (Next::WakeAt(again), false),
            Phase::Undoing(UNDO_TRIES_MAX) => (Next::Remove, true),
            Phase::Undoing(tries) => {
                *tries += 1;
                (Next::WakeAt(again), true)
            }
        });
        let Some((undoing, removed)) = changed else { return };
        if let Some(op) = removed {
            return self.finish(turn, &op);
        }
        let Some((op, _)) = self.writes.update(token, |op| (Next::Keep, op.clone())) else { return };
        if undoing {
            return self.send_undos(turn, token, &op);
        }
        let mut bytes = Vec::new();
        let write = self.write_as_held(&op, &mut bytes);
        let late: Vec<Target> =
            op.targets.iter().filter(|target| target.state == TargetState::Waiting).copied().collect();
        for target in late {
            self.replace(turn, token, &target, &write);
        }
    }

    /// Replaces a late target: its successor gets the write with a hint, or this node keeps the hint.
    fn replace(&self, turn: &mut Turn<'_>, token: Token, late: &Target, write: &Write<'_>) {
        let owner = late.hint_for.unwrap_or(late.member);
        let Some((op, _)) = self.writes.update(token, |op| (Next::Keep, op.clone())) else { return };
        let successor = if op.targets.len() < TARGETS_MAX { self.successor(turn, &op) } else { None };
        if successor.is_none() && !op.only_if_present {
            self.keep_hint(turn, owner, write);
        }
        let target = successor.map(|member| Target {
            member: turn.view.member(member).id,
            hint_for: Some(owner),
            state: TargetState::Waiting,
            sent_at: turn.now,
        });
        let copies = self.copies_wanted(turn);
        let changed = self.writes.update(token, |op| {
            let still_late = op
                .targets
                .iter_mut()
                .find(|target| target.member == late.member && target.state == TargetState::Waiting);
            let Some(still_late) = still_late else { return (Next::Keep, After::Nothing) };
            still_late.state = TargetState::Replaced;
            op.targets.extend(target);
            self.after_change(op, copies)
        });
        if let Some(target) = target {
            self.send_write(turn, token, &op, &target, write);
        }
        self.follow_up(turn, token, changed);
    }

    /// The next member that can be asked and has not been.
    fn successor(&self, turn: &Turn<'_>, op: &WriteOp) -> Option<u16> {
        let asked = |member: u16| {
            let id = turn.view.member(member).id;
            member == turn.view.me() || op.targets.iter().any(|target| target.member == id)
        };
        let usable = |member: &u16| turn.view.is_usable(*member, turn.now, self.settings.suspect_after);
        turn.view.fallbacks(op.partition).iter().copied().filter(usable).find(|member| !asked(*member))
    }

    /// Another coordinator's write, at one of its holders.
    pub fn on_write(&self, turn: &mut Turn<'_>, from: u16, message: &Message<'_>) {
        let Message::Write { token, write, hint_for, replaces, only_if_present } = *message else { return };
        let partition = Self::partition_of(turn, &write.key);
        self.clock.observe(write.version.time);
        let (mut outcome, existed) = self.replica.apply(partition, &write, replaces, only_if_present);
        if outcome == WriteOutcome::Applied {
            turn.outbox.count(Metric::WritesApplied);
            if !only_if_present {
                self.reply_cache.record(turn.now, write.request, Progress::Replicated);
            }
            if let Some(owner) = hint_for
                && (existed || !only_if_present)
                && !self.keep_hint(turn, owner, &write)
            {
                outcome = WriteOutcome::NoSpace;
            }
        }
        let message = Message::Stored { token, outcome, existed };
        self.link.send(turn.now, turn.view, from, &message, turn.outbox);
    }

    /// A coordinator takes a write back.
    pub fn on_undo(&self, turn: &mut Turn<'_>, from: u16, token: Token, write: &Write<'_>) {
        let partition = Self::partition_of(turn, &write.key);
        self.replica.undo(partition, &write.key, write.version);
        self.reply_cache.forget(write.request);
        self.link.send(turn.now, turn.view, from, &Message::Undone { token }, turn.outbox);
    }

    /// A write that was kept for this node while it was away.
    pub fn on_hint(&self, turn: &mut Turn<'_>, from: u16, write: &Write<'_>) {
        let partition = Self::partition_of(turn, &write.key);
        self.clock.observe(write.version.time);
        let (outcome, _) = self.replica.apply(partition, write, true, false);
        if outcome == WriteOutcome::NoSpace {
            return;
        }
        self.reply_cache.record(turn.now, write.request, Progress::Replicated);
        let message = Message::HintStored { key: write.key, version: write.version };
        self.link.send(turn.now, turn.view, from, &message, turn.outbox);
    }
}
