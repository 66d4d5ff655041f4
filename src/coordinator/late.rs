//! What becomes of a write whose holders are late.
//!
//! A late holder is replaced by the next member on the list, which keeps a hint for it, or by a hint that
//! this node keeps. The client is told only when the late one has the write, too, or counts as silent:
//! until then it may answer reads from what it held before.

use super::pending::Next;
use super::replicate::{After, Phase, TARGETS_MAX, Target, TargetState, UNDO_TRIES_MAX, WriteOp};
use super::{Coordinator, Turn};
use crate::ids::{MemberId, Token};
use crate::metrics::Metric;
use crate::peer::Write;

impl Coordinator {
    /// Replicas are late: replace them, each by the next member on the list, with a hint.
    pub(super) fn on_write_timeout(&self, turn: &mut Turn<'_>, token: Token) {
        let changed = self.update_write(turn, token, |op| {
            let again = turn.now + self.patience_with_targets(turn, op);
            match &mut op.phase {
                Phase::Writing => (Next::WakeAt(again), false),
                Phase::Undoing(UNDO_TRIES_MAX) => (Next::Remove, true),
                Phase::Undoing(tries) => {
                    *tries += 1;
                    (Next::WakeAt(again), true)
                }
            }
        });
        let Some((undoing, removed)) = changed else { return };
        if let Some(op) = removed {
            return self.finish(turn, &op);
        }
        let Some((op, _)) = self.writes.update(token, |op| (Next::Keep, op.clone())) else { return };
        if undoing {
            let asked = op.targets.iter().filter(|target| target.state == TargetState::Waiting).count();
            turn.outbox.count_many(Metric::Retransmissions, asked as u64);
            return self.send_undos(turn, token, &op);
        }
        if op.only_if_present {
            self.remove_for_certain(turn, token, &op);
        }
        let mut bytes = Vec::new();
        let op = WriteOp { only_if_present: false, ..op };
        let held = self.write_as_held(&op, &mut bytes);
        // Who was asked of late in place of another cannot have answered yet.
        let is_late = |target: &&Target| {
            target.state.is_open() && turn.round_trip(target.member) <= turn.now.since(target.sent_at)
        };
        let late: Vec<Target> = op.targets.iter().filter(is_late).copied().collect();
        for target in late {
            if target.state == TargetState::Waiting {
                self.note_late(turn, target.member, target.sent_at);
            }
            match &held {
                Some(write) if target.state == TargetState::Waiting => {
                    self.replace(turn, token, &target, write);
                }
                Some(write) if self.may_answer_reads(turn, &target) => {
                    turn.outbox.count(Metric::Retransmissions);
                    self.send_write(turn, token, &op, &target, write);
                }
                Some(_) | None => self.let_go(turn, token, &target),
            }
        }
    }

    /// Whether a late holder may still answer reads from what it held before the write: it is neither silent nor
    /// aside, and it was not asked in vain for so long that the way to it must be broken.
    fn may_answer_reads(&self, turn: &Turn<'_>, target: &Target) -> bool {
        #[cfg(test)]
        if self.settings.bugs.late_holders_do_not_count {
            return false;
        }
        let is_there = |index: u16| turn.view.may_hold(index, turn.now, turn.suspect_after);
        target.hint_for.is_none()
            && turn.now.since(target.sent_at) < turn.suspect_after + turn.round_trip(target.member)
            && turn.view.index_of(target.member).is_some_and(is_there)
    }

    /// A holder is late to say whether it has the key that is to be removed, and may remove it yet: from
    /// here on the removal is kept like any other write, with hints for whoever has not spoken.
    fn remove_for_certain(&self, turn: &mut Turn<'_>, token: Token, op: &WriteOp) {
        let write = Self::removal_of(op);
        let _ = self.replica.apply(op.partition, &write, true, false);
        for &primary in turn.view.primaries(op.partition) {
            let id = turn.view.member(primary).id;
            if primary != turn.view.me() && !op.targets.iter().any(|target| target.member == id) {
                self.keep_hint(turn, id, &write);
            }
        }
        self.update_write(turn, token, |op| {
            op.only_if_present = false;
            (Next::Keep, ())
        });
    }

    /// Gives a late target up without a replacement: there is nothing left to send.
    fn let_go(&self, turn: &mut Turn<'_>, token: Token, late: &Target) {
        let copies = self.copies_wanted(turn);
        let changed = self.update_write(turn, token, |op| {
            let is_late = |target: &&mut Target| target.member == late.member && target.state.is_open();
            if let Some(target) = op.targets.iter_mut().find(is_late) {
                target.state = TargetState::Replaced;
            }
            self.after_change(op, copies)
        });
        self.follow_up(turn, token, changed);
    }

    /// Replaces a late target: its successor gets the write with a hint, or this node keeps the hint.
    fn replace(&self, turn: &mut Turn<'_>, token: Token, late: &Target, write: &Write<'_>) {
        let owner = late.hint_for.unwrap_or(late.member);
        let Some((op, _)) = self.writes.update(token, |op| (Next::Keep, op.clone())) else { return };
        let is_former = late.hint_for.is_none() && !self.is_primary(turn, op.partition, owner);
        let may_replace = op.targets.len() < TARGETS_MAX && !is_former;
        let successor = if may_replace { self.successor(turn, &op) } else { None };
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
        let state =
            if self.may_answer_reads(turn, late) { TargetState::Overdue } else { TargetState::Replaced };
        let changed = self.update_write(turn, token, |op| {
            let still_late = op
                .targets
                .iter_mut()
                .find(|target| target.member == late.member && target.state == TargetState::Waiting);
            let Some(still_late) = still_late else { return (Next::Keep, After::Nothing) };
            still_late.state = state;
            op.targets.extend(target);
            self.after_change(op, copies)
        });
        if let Some(target) = target {
            self.send_write(turn, token, &op, &target, write);
        }
        self.follow_up(turn, token, changed);
    }

    fn is_primary(&self, turn: &Turn<'_>, partition: u16, member: MemberId) -> bool {
        turn.view.index_of(member).is_some_and(|index| turn.view.primaries(partition).contains(&index))
    }

    /// The next member that can be asked and has not been.
    fn successor(&self, turn: &Turn<'_>, op: &WriteOp) -> Option<u16> {
        let asked = |member: u16| {
            let id = turn.view.member(member).id;
            member == turn.view.me() || op.targets.iter().any(|target| target.member == id)
        };
        let usable = |member: &u16| turn.view.may_hold(*member, turn.now, turn.suspect_after);
        turn.view.fallbacks(op.partition).iter().copied().filter(usable).find(|member| !asked(*member))
    }
}
