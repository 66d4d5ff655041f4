//! What a holder does for other coordinators and front ends: takes their writes, keeps their hints,
//! answers their questions, each in one step and without waiting for anyone.

use super::reply_cache::Progress;
use super::{Coordinator, Turn};
use crate::ids::{RequestKey, Token, Version};
use crate::metrics::Metric;
use crate::outbox::Lane;
use crate::peer::{Message, ReadRole, Write, WriteOutcome};
use std::sync::atomic::Ordering;
use violet_client::wire;
use violet_client::{Response, Status, Value};

impl Coordinator {
    /// Another coordinator's write, at one of its holders.
    pub fn on_write(&self, turn: &mut Turn<'_>, from: u16, message: &Message<'_>) {
        let Message::Write { token, write, hint_for, replaces, only_if_present } = *message else { return };
        let partition = Self::partition_of(turn, &write.key);
        // Where nobody could be asked what was there, a removal is kept in any case.
        let only_if_present = only_if_present && !self.fence.is_orphan(partition);
        self.clock.observe(write.version.time);
        #[cfg(test)]
        let write = self.spoil_version(turn.now, write);
        let (mut outcome, existed) = self.replica.apply(partition, &write, replaces, only_if_present);
        if outcome == WriteOutcome::Applied {
            turn.outbox.count(Metric::WritesApplied);
            if !only_if_present && write.request != RequestKey(0) {
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
        #[cfg(test)]
        let write = &self.spoil_version(turn.now, *write);
        let (outcome, _) = self.replica.apply(partition, write, true, false);
        if outcome == WriteOutcome::NoSpace {
            // Nothing is better than something old; and a node that is full must not catch up for ever.
            turn.outbox.count(Metric::RefusedSpace);
            self.replica.forget_record(partition, &write.key, write.version);
        }
        if write.request != RequestKey(0) {
            self.reply_cache.record(turn.now, write.request, Progress::Replicated);
        }
        let message = Message::HintStored { key: write.key, version: write.version };
        self.link.send(turn.now, turn.view, from, &message, turn.outbox);
    }

    /// Another front end's question, at a replica.
    pub fn on_read(&self, turn: &mut Turn<'_>, from: u16, message: &Message<'_>) {
        let Message::Read { token, role, client, format, id, key, at_least } = *message else { return };
        turn.outbox.count(Metric::ReadsServed);
        let partition = Self::partition_of(turn, &key);
        let serves = self.serves(turn, partition);
        let miss = |removed| Message::ReadMiss { token, unknown: !serves, removed };
        if role == ReadRole::Record {
            return self.send_record(turn, from, token, &key);
        }
        let mut bytes = turn.outbox.lend();
        let meta = match role {
            ReadRole::Confirm => self.replica.meta(partition, &key),
            _ => self.replica.read(partition, &key, &mut bytes),
        };
        let hit = meta.filter(|meta| serves && !meta.removed && at_least <= meta.version);
        let Some(meta) = hit else {
            turn.outbox.give_back(bytes);
            let removed = meta.filter(|meta| meta.removed).map_or(Version::default(), |meta| meta.version);
            return self.link.send(turn.now, turn.view, from, &miss(removed), turn.outbox);
        };
        let version = meta.version;
        let value = Value { bytes: &bytes, version: meta.client_version };
        match role {
            ReadRole::Answer => {
                let response = Response { value: Some(value), ..Response::of_status(id, Status::Success) };
                turn.outbox.send(Lane::Client, client, |out| {
                    wire::encode_response(format, &response, out);
                });
                self.tell_soon(turn, from, token, version);
            }
            ReadRole::Return => {
                let message = Message::ReadValue { token, version, value };
                self.link.send(turn.now, turn.view, from, &message, turn.outbox);
            }
            ReadRole::Confirm | ReadRole::Record => {
                let message = Message::ReadHit { token, version };
                self.link.send(turn.now, turn.view, from, &message, turn.outbox);
            }
        }
        turn.outbox.give_back(bytes);
    }
}

/// Telling front ends that their reads were answered.
impl Coordinator {
    /// Has a front end told that its read was answered: with the next frame that goes there, soon in any case.
    fn tell_soon(&self, turn: &mut Turn<'_>, front_end: u16, token: Token, version: Version) {
        let hold = self.settings.answer_hold;
        let is_full = turn.view.member(front_end).peer.note_answered(turn.now, token, version);
        if is_full || hold.is_zero() {
            return self.link.send(turn.now, turn.view, front_end, &Message::Pong, turn.outbox);
        }
        self.tell_at.fetch_min((turn.now + hold).as_nanos(), Ordering::SeqCst);
    }

    /// Tells those that have waited for long enough.
    pub(super) fn tell_the_untold(&self, turn: &mut Turn<'_>) {
        if turn.now.as_nanos() < self.tell_at.load(Ordering::Relaxed) {
            return;
        }
        // Before the members are looked at, for all threads: what one of them notes later brings its own moment.
        self.tell_at.swap(u64::MAX, Ordering::SeqCst);
        #[cfg(test)]
        if self.settings.bugs.answers_wait_for_a_ride {
            return;
        }
        for index in 0..turn.view.members().len() as u16 {
            let due = || Some(turn.view.member(index).peer.untold_since()? + self.settings.answer_hold);
            while due().is_some_and(|due| due <= turn.now) {
                self.link.send(turn.now, turn.view, index, &Message::Pong, turn.outbox);
            }
            if let Some(due) = due() {
                self.tell_at.fetch_min(due.as_nanos(), Ordering::SeqCst);
            }
        }
    }
}

/// Bugs that can be planted, for proving that the simulator finds them.
#[cfg(test)]
impl Coordinator {
    fn spoil_version<'a>(&self, now: crate::time::Instant, write: Write<'a>) -> Write<'a> {
        let version = if self.settings.bugs.old_version_wins { self.clock.next(now) } else { write.version };
        Write { version, ..write }
    }

    pub(crate) fn plant(&mut self, bugs: crate::sim::Bugs, me: crate::ids::MemberId) {
        self.settings.bugs = bugs;
        if bugs.reused_writer {
            self.clock = crate::ids::HybridClock::reused(crate::sim::world::BEGIN.as_nanos(), me.0);
        }
    }
}
