//! A coordinator that was away asks before it executes.
//!
//! Records of requests live with the coordinator and, with every replicated write, at the other
//! holders. A coordinator that restarted, slept or was cut off within the reply window may have missed some:
//! before it executes a mutation that it does not know it asks the other holders. Whoever knows it
//! decides; when all know nothing, or have fallen silent, it is new. In quiet times nobody asks.

use super::pending::Next;
use super::put::{Change, Mutation};
use super::reply_cache::Progress;
use super::{Arrival, Client, Coordinator, Turn};
use crate::cluster::Holder;
use crate::ids::{MemberId, RequestKey, Token};
use crate::metrics::Metric;
use crate::peer::{Message, Recollection};
use crate::time::{Duration, Instant};
use violet_client::Status;
use violet_client::wire::{self, Accept, Format};

/// A mutation that waits for what others remember.
#[derive(Clone, Debug)]
pub struct RecallOp {
    client: Client,
    request: RequestKey,
    datagram: Vec<u8>,
    asked_at: Instant,
    waiting: Vec<MemberId>,
}

impl Coordinator {
    /// Whether this node may have missed requests that others remember.
    pub(super) fn may_have_missed_requests(&self, now: Instant) -> bool {
        self.fence.may_have_missed(now, self.settings.reply_window)
    }

    /// Whether any holder may have coordinated requests while this node was cut off from it.
    pub(super) fn was_apart_from(&self, turn: &Turn<'_>, holders: &[Holder]) -> bool {
        #[cfg(test)]
        if self.settings.bugs.no_recall_after_a_split {
            return false;
        }
        let was_apart = |holder: &Holder| {
            let peer = &turn.view.member(holder.member).peer;
            peer.was_apart(turn.now, self.settings.reply_window)
        };
        holders.iter().any(was_apart)
    }

    /// Asks the other holders what became of a mutation that is new here.
    pub(super) fn recall(&self, turn: &mut Turn<'_>, arrival: &Arrival<'_>, others: &[u16]) {
        let token = self.recalls.token();
        self.reply_cache.record(turn.now, arrival.request, Progress::Running(token));
        for &to in others {
            let message = Message::Recall { token, request: arrival.request };
            self.link.send(turn.now, turn.view, to, &message, turn.outbox);
        }
        let farthest = others.iter().map(|member| turn.view.member(*member).peer.round_trip()).max();
        let op = RecallOp {
            client: arrival.client,
            request: arrival.request,
            datagram: arrival.datagram.to_vec(),
            asked_at: turn.now,
            waiting: others.iter().map(|member| turn.view.member(*member).id).collect(),
        };
        let patience = self.settings.hint_after + farthest.unwrap_or_default();
        self.recalls.insert(token, turn.now + patience, op);
    }

    /// Another coordinator asks what became of a mutation.
    pub fn on_recall(&self, turn: &mut Turn<'_>, from: u16, token: Token, request: RequestKey) {
        let known = match self.reply_cache.look_up(turn.now, request) {
            None => Recollection::Nothing,
            Some(Progress::Running(_)) => Recollection::Running,
            Some(Progress::Replicated) => Recollection::Replicated,
            Some(Progress::Done(status)) => Recollection::Done(status.code(Format::Protobuf)),
        };
        self.link.send(turn.now, turn.view, from, &Message::Recalled { token, known }, turn.outbox);
    }

    /// A holder says what it remembers.
    pub fn on_recalled(&self, turn: &mut Turn<'_>, from: u16, token: Token, known: Recollection) {
        let member = turn.view.member(from).id;
        let changed = self.recalls.update(token, |op| {
            op.waiting.retain(|waiting| *waiting != member);
            let over = known != Recollection::Nothing || op.waiting.is_empty();
            (if over { Next::Remove } else { Next::Keep }, ())
        });
        match changed {
            Some(((), Some(op))) => self.act_on(turn, &op, from, known),
            Some(((), None)) => {}
            None => turn.outbox.count(Metric::PeerUnexpected),
        }
    }

    /// Who is late is asked again: it may be the only one that knows. Whoever has fallen silent, or does not
    /// answer although it is heard, is not waited for any longer.
    pub(super) fn on_recall_timeout(&self, turn: &mut Turn<'_>, token: Token) {
        let (now, view, suspect_after) = (turn.now, turn.view, turn.suspect_after);
        let is_usable = |index: &u16| view.is_usable(*index, now, suspect_after);
        let changed = self.recalls.update(token, |op| {
            let waiting = op.waiting.iter().filter_map(|member| view.index_of(*member));
            let late: Vec<u16> = waiting.filter(is_usable).collect();
            let farthest = late.iter().map(|member| view.member(*member).peer.round_trip()).max();
            let farthest = farthest.unwrap_or_default();
            if late.is_empty() || suspect_after + farthest <= now.since(op.asked_at) {
                return (Next::Remove, None);
            }
            (Next::WakeAt(now + self.settings.hint_after + farthest), Some((late, op.request)))
        });
        match changed {
            Some((Some((late, request)), None)) => {
                turn.outbox.count_many(Metric::Retransmissions, late.len() as u64);
                for to in late {
                    self.link.send(now, view, to, &Message::Recall { token, request }, turn.outbox);
                }
            }
            Some((_, Some(op))) => self.execute(turn, &op),
            Some((None, None)) | None => {}
        }
    }

    fn act_on(&self, turn: &mut Turn<'_>, op: &RecallOp, from: u16, known: Recollection) {
        match known {
            Recollection::Nothing => self.execute(turn, op),
            Recollection::Running => {
                // The other one finishes it and answers.
                self.reply_cache.forget(op.request);
                turn.outbox.count(Metric::DroppedDuplicate);
            }
            // Perhaps nobody finished it: whoever has it does.
            Recollection::Replicated => {
                self.reply_cache.forget(op.request);
                self.forward(turn, from, &Self::arrival_of(op));
            }
            Recollection::Done(code) => {
                self.repeat_reply(turn, op, Status::from_code(code, Format::Protobuf));
            }
        }
    }

    /// This node was away meanwhile: the client has asked somebody else by now.
    pub(super) fn give_up(&self, turn: &mut Turn<'_>, op: &RecallOp) {
        self.reply_cache.forget(op.request);
        turn.outbox.count(Metric::DroppedFenced);
    }

    fn repeat_reply(&self, turn: &mut Turn<'_>, op: &RecallOp, status: Status) {
        self.reply_cache.record(turn.now, op.request, Progress::Done(status));
        self.answer_again(turn, &op.client, &op.datagram, status);
    }

    fn execute(&self, turn: &mut Turn<'_>, op: &RecallOp) {
        let Ok(request) = wire::decode_request(&op.datagram, Accept::Auto) else { return };
        let Some((key, change)) = Change::of(&request.operation) else { return };
        let arrival = Self::arrival_of(op);
        let partition = Self::partition_of(turn, &key);
        let holders = turn.view.holders(partition, turn.now, turn.suspect_after);
        let token = self.writes.token();
        self.reply_cache.record(turn.now, op.request, Progress::Running(token));
        let mutation = Mutation { partition, key, change, holders: holders.as_slice() };
        self.run_write(turn, token, &arrival, &mutation, false);
    }

    fn arrival_of(op: &RecallOp) -> Arrival<'_> {
        let waited = Duration::ZERO;
        Arrival { client: op.client, request: op.request, datagram: &op.datagram, waited, hops: 1 }
    }

    /// A request ended at its coordinator and left no write here. What is remembered here is of a coordinator that
    /// wrote, or of this node itself: that counts.
    pub fn on_settled(&self, turn: &mut Turn<'_>, request: RequestKey, existed: bool) {
        if self.reply_cache.look_up(turn.now, request).is_some() {
            return;
        }
        let status = if existed { Status::Success } else { Status::NoSuchKey };
        self.reply_cache.record(turn.now, request, Progress::Done(status));
    }
}
