//! GET: fan-out from the front end, first reply wins, and only the front end may say "no such key".
//!
//! A replica without the key is always the fastest, so a miss never reaches the client by itself: it
//! is reported to the front end, which goes on asking and concludes only from what every reachable
//! holder said. A member that is catching up counts as unknown. One replica is asked to send the
//! value to the client itself and to tell the front end; in adaptive mode an idle front end asks the
//! others for their versions meanwhile, so that it knows at once where else the value is. A replica
//! that is late is backed up by another, within a budget (Dean and Barroso, The Tail at Scale). Late is who
//! takes longer than the quickest of the replicas takes for 95 of 100 reads. The one that backs up sends the value to
//! the front end, so that the client does not get it twice when the late one answers after all.
//!
//! The rules are [`ReadOp`]'s.

use super::pending::Next;
use super::read_op::{Asked, AskedState, Decision, ReadOp};
use super::{Arrival, Client, Coordinator, Few, Turn};
use crate::cluster::{Holder, Peer};
use crate::config::{FanOut, ReadRule, ReplyMode, WriteRule};
use crate::ids::{MemberId, Token, Version};
use crate::metrics::Metric;
use crate::peer::{Answered, Message, ReadRole};
use crate::time::{Duration, Instant};
use std::sync::atomic::Ordering;
use violet_client::{Key, Response, Status, Value};

/// A read that has not been answered for this long is given up; the client repeats it.
pub(super) const READ_MAX: Duration = Duration::from_secs(1);
/// A front end whose last read came at least this long ago counts as idle. (Reads in progress would
/// say little: on a busy machine a front end may have none and every question still costs.)
const IDLE_AFTER: Duration = Duration::from_millis(10);
/// What one hedge costs, and what every read earns: 5 in 100.
const HEDGE_COST: u64 = 100;
const HEDGE_EARNED: u64 = 5;
/// Hedges that may be saved up, times their cost.
pub const HEDGE_CREDIT_MAX: u64 = 50 * HEDGE_COST;

/// A replica that usually answers within this counts as quick; differences below are noise.
const QUICK: Duration = Duration::from_millis(4);
/// One read in so many does not look at how long replicas usually take, so that a slow one that has become
/// quick is found.
const EXPLORE_ONE_IN: u64 = 16;

/// Ways to members are told apart in steps of this: what is nearer by less counts as equally near.
const WAY_STEP: Duration = Duration::from_millis(2);

/// The way to a member and back in microseconds, in steps of [`WAY_STEP`]: zero for all on one site.
fn rough_way(way: Duration) -> u64 {
    let step = WAY_STEP.as_micros() as u64;
    way.as_micros() as u64 / step * step
}

/// How long a replica would take to answer, in microseconds: the way to it and back, which was measured, and what it
/// takes on top of that, by its reads in flight and its usual time (C3, Suresh et al. 2015) as a power of two, so
/// that only what is clearly slower is avoided. Reads that are on the way do not wait at the replica: of those in
/// flight the share counts that its own time has in the whole (Little's law).
fn rough_wait(peer: &Peer, explores: bool) -> u64 {
    let way = rough_way(peer.way.get());
    let own = if explores { Duration::ZERO } else { peer.usual_read.get() };
    let own = (own.as_micros() as u64).saturating_sub(way).max(QUICK.as_micros() as u64);
    let in_flight = u64::try_from(peer.reads_in_flight()).unwrap_or(0);
    let waiting = in_flight.saturating_mul(own) / (way + own) + 1;
    way + (1 << waiting.saturating_mul(own).ilog2())
}

impl Coordinator {
    pub(super) fn start_read(&self, turn: &mut Turn<'_>, arrival: &Arrival<'_>, key: Key) {
        self.reply_cache.expire(turn.now);
        let partition = Self::partition_of(turn, &key);
        let holders = turn.view.holders(partition, turn.now, turn.suspect_after);
        let holders = holders.as_slice();
        let here = holders.iter().find(|holder| holder.member == turn.view.me());
        // Who stands in may keep something old from the last time; it does not answer before a replica.
        let decides = here.is_some_and(|holder| holder.primary) || holders.len() == 1;
        let quorum = self.settings.read_rule == ReadRule::Quorum;
        let mut mine = AskedState::Unknown;
        let mut removed = Version::default();
        if here.is_some() {
            let may_answer = decides && !quorum && self.serves(turn, partition);
            if may_answer && self.answer_if_here(turn, &arrival.client, partition, &key) {
                return;
            }
            let meta = self.replica.meta(partition, &key);
            removed = meta.filter(|meta| meta.removed).map_or(removed, |meta| meta.version);
            mine = match meta {
                _ if !self.serves(turn, partition) => AskedState::Unknown,
                Some(meta) if !meta.removed => AskedState::Hit(meta.version),
                meta => AskedState::Missed(meta.map_or(Version::default(), |meta| meta.version)),
            };
        }
        if self.reads.is_full() {
            return self.shed(turn, &arrival.client, Metric::ShedPending);
        }
        let token = self.reads.token();
        let mut op = self.read_op(turn, arrival, key, partition, holders, mine);
        op.removed = removed;
        let first = self.first_questions(turn, token, &op, holders);
        if let (true, Some((&best, others))) = (op.decide() != Decision::NoSuchKey, first.split_first()) {
            self.ask(turn, token, &mut op, best, others);
        }
        self.earn_hedge();
        self.settle_read(turn, token, op);
    }

    pub(super) fn read_op(
        &self,
        turn: &Turn<'_>,
        arrival: &Arrival<'_>,
        key: Key,
        partition: u16,
        holders: &[Holder],
        mine: AskedState,
    ) -> ReadOp {
        let me = turn.view.me();
        let asked = holders.iter().map(|holder| Asked {
            member: turn.view.member(holder.member).id,
            primary: holder.primary,
            oldest: holder.oldest,
            state: if holder.member == me { mine } else { AskedState::Not },
            at: turn.now,
        });
        let primaries = turn.view.primaries(partition);
        let from = arrival.client.address;
        let mut needs_proxy = arrival.client.needs_proxy;
        if self.settings.reply_mode == ReplyMode::Auto
            && self.clients.is_repeated_read(turn.now, arrival.request, from)
        {
            // It was answered directly before and asks again: perhaps it cannot hear others.
            needs_proxy = true;
        } else {
            self.clients.note_asked(turn.now, from.ip());
        }
        ReadOp {
            client: arrival.client,
            key,
            request: arrival.request,
            role: if needs_proxy { ReadRole::Return } else { ReadRole::Answer },
            quorum: self.settings.read_rule == ReadRule::Quorum,
            started: turn.now,
            majority: match self.settings.write_rule {
                // A write is only known to be at one of them.
                WriteRule::One => primaries.len(),
                WriteRule::AllLive | WriteRule::Quorum => self.settings.majority(primaries.len()),
            },
            removed: Version::default(),
            asked: asked.collect(),
        }
    }

    /// Whom to ask at first: the best replica for the value, and perhaps others for their versions.
    fn first_questions(
        &self,
        turn: &Turn<'_>,
        token: Token,
        op: &ReadOp,
        holders: &[Holder],
    ) -> Few<MemberId> {
        let me = turn.view.me();
        let can_be_asked = |holder: &&Holder| holder.member != me && !self.is_full(turn, holder.member);
        let mut others: Few<&Holder> = holders.iter().filter(can_be_asked).collect();
        // Shortest wait first, known roughly; ties go round, so that no replica is everybody's favourite.
        let turn_of = |holder: &Holder| (u64::from(holder.member) + token) % holders.len().max(1) as u64;
        let explores = token.is_multiple_of(EXPLORE_ONE_IN);
        others.sort_by_key(|holder| {
            let wait = rough_wait(&turn.view.member(holder.member).peer, explores);
            (!holder.primary, !holder.former, wait, turn_of(holder))
        });
        let last_read_at = self.last_read_at.swap(turn.now.as_nanos(), Ordering::Relaxed);
        let last_read_at = Instant::from_nanos(last_read_at);
        let wide = match self.settings.fan_out {
            FanOut::All => true,
            FanOut::Adaptive => IDLE_AFTER <= turn.now.since(last_read_at),
            FanOut::One => false,
        };
        let width = if wide || op.quorum { others.len() } else { 1 };
        others.iter().take(width).map(|holder| turn.view.member(holder.member).id).collect()
    }

    fn ask(&self, turn: &mut Turn<'_>, token: Token, op: &mut ReadOp, best: MemberId, others: &[MemberId]) {
        let versions_first = op.quorum && op.newest_hit().is_none();
        let best_role = if versions_first { ReadRole::Confirm } else { op.role };
        self.ask_one(turn, token, op, best, best_role);
        for &member in others {
            let is_primary = op.asked.iter().any(|asked| asked.member == member && asked.primary);
            let role = match self.settings.fan_out {
                FanOut::All if !op.quorum && is_primary => op.role,
                FanOut::All | FanOut::Adaptive | FanOut::One => ReadRole::Confirm,
            };
            self.ask_one(turn, token, op, member, role);
        }
    }

    fn ask_one(&self, turn: &mut Turn<'_>, token: Token, op: &mut ReadOp, member: MemberId, role: ReadRole) {
        let Some(to) = turn.view.index_of(member) else {
            op.set(member, AskedState::Unknown);
            return;
        };
        let at_least =
            op.newest_hit().map_or_else(Version::default, |(_, version)| version).max(op.removed());
        if !op.set(member, AskedState::Waiting(role)) {
            turn.view.member(to).peer.count_reads(1);
        }
        op.asked.iter_mut().filter(|asked| asked.member == member).for_each(|asked| asked.at = turn.now);
        let message = Message::Read {
            token,
            role,
            client: op.client.address,
            format: op.client.format,
            id: op.client.id,
            key: op.key,
            at_least,
        };
        self.link.send(turn.now, turn.view, to, &message, turn.outbox);
    }

    /// Follows a new read's first decisions until it waits or is over.
    fn settle_read(&self, turn: &mut Turn<'_>, token: Token, mut op: ReadOp) {
        match op.decide() {
            Decision::NoSuchKey => return self.say_missing(turn, &op.client),
            Decision::Ask(members) if members[..] == [turn.view.member(turn.view.me()).id] => {
                let partition = Self::partition_of(turn, &op.key);
                return self.answer_from_here(turn, &op.client, partition, &op.key);
            }
            Decision::Ask(members) => {
                let members = self.without_full(turn, &members);
                let Some((&best, others)) = members.split_first() else {
                    self.release(turn, &op);
                    return self.shed(turn, &op.client, Metric::ShedPeerFull);
                };
                self.ask(turn, token, &mut op, best, others);
            }
            Decision::Wait => {}
        }
        self.reads.insert(token, turn.now + self.patience_with(turn, &op), op);
    }

    fn say_missing(&self, turn: &mut Turn<'_>, client: &Client) {
        self.answer(turn, client, &Response::of_status(client.id, Status::NoSuchKey));
    }

    /// This node's own value is the first reply.
    fn answer_from_here(&self, turn: &mut Turn<'_>, client: &Client, partition: u16, key: &Key) {
        if !self.answer_if_here(turn, client, partition, key) {
            self.say_missing(turn, client);
        }
    }

    /// Answers with this node's own value, if it has one.
    fn answer_if_here(&self, turn: &mut Turn<'_>, client: &Client, partition: u16, key: &Key) -> bool {
        let mut bytes = turn.outbox.lend();
        let meta = self.replica.read(partition, key, &mut bytes).filter(|meta| !meta.removed);
        if let Some(meta) = meta {
            let value = Some(Value { bytes: &bytes, version: meta.client_version });
            let response = Response { value, ..Response::of_status(client.id, Status::Success) };
            self.answer(turn, client, &response);
        }
        turn.outbox.give_back(bytes);
        meta.is_some()
    }

    /// A replica has the key.
    pub fn on_read_hit(&self, turn: &mut Turn<'_>, from: u16, token: Token, version: Version) {
        self.on_read_result(turn, from, token, AskedState::Hit(version), Version::default());
    }

    /// A replica has answered the client.
    pub fn on_answered(&self, turn: &mut Turn<'_>, from: u16, answered: &Answered) {
        let Answered { token, version, held } = *answered;
        if let Some(op) = self.end_read(turn, token) {
            self.note_answer(turn, from, &op, held);
            turn.outbox.count(Metric::Delegated);
            self.mend(turn, &op, Some((turn.view.member(from).id, version)));
            self.clients.note_direct_read(turn.now, op.request, op.client.address);
        }
    }

    /// A replica has sent the value for the client.
    pub fn on_read_value(
        &self,
        turn: &mut Turn<'_>,
        from: u16,
        token: Token,
        version: Version,
        value: Value<'_>,
    ) {
        if let Some(op) = self.end_read(turn, token) {
            self.note_answer(turn, from, &op, Duration::ZERO);
            self.mend(turn, &op, Some((turn.view.member(from).id, version)));
            let response = Response::of_status(op.client.id, Status::Success);
            self.answer(turn, &op.client, &Response { value: Some(value), ..response });
        }
    }

    /// A replica does not have the key, or cannot know.
    pub fn on_read_miss(
        &self,
        turn: &mut Turn<'_>,
        from: u16,
        token: Token,
        unknown: bool,
        removed: Version,
    ) {
        let state = if unknown { AskedState::Unknown } else { AskedState::Missed(removed) };
        #[cfg(test)]
        if self.settings.bugs.first_miss_wins
            && let Some(op) = self.end_read(turn, token)
        {
            return self.say_missing(turn, &op.client);
        }
        self.on_read_result(turn, from, token, state, removed);
    }

    /// Takes a read out that is settled.
    fn end_read(&self, turn: &mut Turn<'_>, token: Token) -> Option<ReadOp> {
        match self.reads.update(token, |_| (Next::Remove, ())) {
            Some(((), Some(op))) => {
                self.release(turn, &op);
                Some(op)
            }
            Some(((), None)) | None => {
                turn.outbox.count(Metric::PeerUnexpected);
                None
            }
        }
    }

    fn on_read_result(
        &self,
        turn: &mut Turn<'_>,
        from: u16,
        token: Token,
        state: AskedState,
        removed: Version,
    ) {
        let member = turn.view.member(from).id;
        let me = turn.view.member(turn.view.me()).id;
        let decided = self.reads.update(token, |op| {
            let waited = op.waits_since(member).map(|at| turn.now.since(at));
            let was_open = op.set(member, state);
            op.removed = op.removed.max(removed);
            let decision = op.decide();
            let next = match &decision {
                Decision::Wait => Next::Keep,
                Decision::Ask(members) if members[..] != [me] => {
                    Next::WakeAt(turn.now + self.patience_with(turn, op))
                }
                Decision::Ask(_) | Decision::NoSuchKey => Next::Remove,
            };
            (next, (was_open, waited, decision))
        });
        let Some(((was_open, waited, decision), removed)) = decided else {
            return turn.outbox.count(Metric::PeerUnexpected);
        };
        let peer = &turn.view.member(from).peer;
        if was_open {
            peer.count_reads(-1);
        }
        if let Some(waited) = waited {
            peer.note_read(waited);
            peer.lateness.note(turn.now, false);
        }
        match (decision, removed) {
            (Decision::NoSuchKey, Some(op)) => {
                self.release(turn, &op);
                self.mend(turn, &op, None);
                self.say_missing(turn, &op.client);
            }
            (Decision::Ask(_), Some(op)) => {
                self.release(turn, &op);
                self.mend(turn, &op, None);
                let partition = Self::partition_of(turn, &op.key);
                self.answer_from_here(turn, &op.client, partition, &op.key);
            }
            (Decision::Ask(members), None) => self.ask_more(turn, token, &members),
            (Decision::Wait | Decision::NoSuchKey, _) => {}
        }
    }

    /// Those of the members that may be asked: not too much waits for them already.
    fn without_full(&self, turn: &Turn<'_>, members: &[MemberId]) -> Few<MemberId> {
        let is_full = |id: MemberId| turn.view.index_of(id).is_some_and(|member| self.is_full(turn, member));
        members.iter().copied().filter(|id| !is_full(*id)).collect()
    }

    fn ask_more(&self, turn: &mut Turn<'_>, token: Token, members: &[MemberId]) {
        let members = self.without_full(turn, members);
        let Some((&best, others)) = members.split_first() else {
            let over = self.reads.update(token, |_| (Next::Remove, ()));
            let Some(((), Some(op))) = over else { return };
            self.release(turn, &op);
            return self.shed(turn, &op.client, Metric::ShedPeerFull);
        };
        let Some((mut op, _)) = self.reads.update(token, |op| (Next::Keep, op.clone())) else { return };
        self.ask(turn, token, &mut op, best, others);
        self.reads.update(token, |kept| {
            // Only what was asked now has changed; answers may have come in meanwhile.
            for new in op.asked.iter().filter(|asked| members.contains(&asked.member)) {
                kept.asked.iter_mut().filter(|old| old.member == new.member).for_each(|old| *old = *new);
            }
            (Next::Keep, ())
        });
    }

    /// The replicas that were asked and have not spoken no longer count as busy with this read.
    pub(super) fn release(&self, turn: &Turn<'_>, op: &ReadOp) {
        for asked in op.asked.iter().filter(|asked| asked.is_open()) {
            if let Some(index) = turn.view.index_of(asked.member) {
                turn.view.member(index).peer.count_reads(-1);
            }
        }
    }

    /// How long a replica may take to answer a read before another is asked: as long as the quickest of the
    /// replicas takes for nearly all. So a slow one is not given more time because it is slow, and all are when all
    /// are slow. On top of that comes what the word of an answer may be held back. The ways to those that were asked
    /// are left out of all this and added at the end: who is far away is not late.
    fn patience_with(&self, turn: &Turn<'_>, op: &ReadOp) -> Duration {
        let (mut quickest, mut farthest) = (None, Duration::ZERO);
        for asked in &op.asked {
            let Some(index) = turn.view.index_of(asked.member) else { continue };
            let peer = &turn.view.member(index).peer;
            if let Some(tail) = peer.read_tail.get() {
                quickest = Some(quickest.map_or(tail, |quickest: Duration| quickest.min(tail)));
            }
            if let AskedState::Waiting(ReadRole::Answer | ReadRole::Return) = asked.state {
                farthest = farthest.max(peer.round_trip());
            }
        }
        let quickest = quickest.unwrap_or_default().min(self.settings.suspect_after);
        (quickest + self.settings.answer_hold).max(self.settings.hedge_after) + farthest
    }

    /// The value is late: ask another replica for it, if the budget allows.
    pub(super) fn on_read_timeout(&self, turn: &mut Turn<'_>, token: Token) {
        let over = self.reads.update(token, |op| {
            if READ_MAX <= turn.now.since(op.started) {
                return (Next::Remove, ());
            }
            (Next::WakeAt(turn.now + self.patience_with(turn, op)), ())
        });
        match over {
            Some(((), Some(op))) => {
                self.release(turn, &op);
                turn.outbox.count(Metric::DroppedUnavailable);
            }
            Some(((), None)) if self.spend_hedge() => self.hedge(turn, token),
            Some(((), None)) => turn.outbox.count(Metric::HedgesRefused),
            None => {}
        }
    }

    fn hedge(&self, turn: &mut Turn<'_>, token: Token) {
        let me = turn.view.member(turn.view.me()).id;
        let chosen = self.reads.update(token, |op| {
            let mut late = None;
            for asked in &mut op.asked {
                if let AskedState::Waiting(ReadRole::Answer | ReadRole::Return) = asked.state {
                    asked.state = AskedState::Late;
                    late = Some((asked.member, asked.at));
                }
            }
            op.role = ReadRole::Return;
            let removed = op.removed();
            let rank = |asked: &Asked| match asked.state {
                AskedState::Hit(version) if removed < version => (!op.may_be_old(asked.member)).then_some(0),
                AskedState::Hit(_) => None,
                AskedState::Waiting(_) => Some(1),
                AskedState::Not => Some(2),
                // Perhaps the question or the answer was lost.
                AskedState::Late => Some(3),
                AskedState::Unknown => Some(4),
                AskedState::Missed(_) => None,
            };
            let is_full =
                |id: MemberId| turn.view.index_of(id).is_some_and(|member| self.is_full(turn, member));
            let candidates = op.asked.iter().filter(|asked| asked.member != me && !is_full(asked.member));
            let way = |member: MemberId| rough_way(turn.round_trip(member));
            let ranked = |asked: &Asked| Some((rank(asked)?, way(asked.member), asked.member));
            let best = candidates.filter_map(ranked).min().map(|(.., member)| member);
            // A holder that has answered is asked something else now, and one that was not asked is new.
            let is_repeat = |asked: &Asked| {
                use AskedState::{Late, Unknown, Waiting};
                Some(asked.member) == best && matches!(asked.state, Waiting(_) | Late | Unknown)
            };
            (Next::Keep, (late, best, op.asked.iter().any(is_repeat)))
        });
        let Some(((late, best, is_repeat), _)) = chosen else { return };
        if let Some((member, asked_at)) = late {
            self.note_late(turn, member, asked_at);
            if let Some(index) = turn.view.index_of(member) {
                turn.view.member(index).peer.note_read_tail(turn.now.since(asked_at));
            }
        }
        if let Some(member) = best {
            turn.outbox.count(Metric::ReadsHedged);
            turn.outbox.count_many(Metric::Retransmissions, u64::from(is_repeat));
            self.ask_more(turn, token, &[member]);
        }
    }

    /// A member has answered; the word of it was held back for that long.
    fn note_answer(&self, turn: &Turn<'_>, from: u16, op: &ReadOp, held: Duration) {
        let member = turn.view.member(from);
        if let Some(at) = op.waits_since(member.id) {
            member.peer.note_read(turn.now.since(at).saturating_sub(held));
            member.peer.lateness.note(turn.now, false);
        }
    }

    /// A member has not answered in time. If it was not heard of either, that is silence, not lateness.
    pub(super) fn note_late(&self, turn: &Turn<'_>, member: MemberId, asked_at: Instant) {
        if let Some(index) = turn.view.index_of(member) {
            let peer = &turn.view.member(index).peer;
            peer.usual_read.note(turn.now.since(asked_at));
            if asked_at < peer.heard_at() {
                peer.lateness.note(turn.now, true);
            }
        }
    }

    /// A member has answered a probe.
    pub fn on_echo(&self, turn: &Turn<'_>, from: u16, stamp: u64) {
        let peer = &turn.view.member(from).peer;
        #[cfg(test)]
        if self.settings.bugs.round_trips_do_not_count {
            return peer.lateness.on_echo(turn.now, stamp, self.patience_with_replicas());
        }
        peer.way.note(turn.now, turn.now.since(Instant::from_nanos(stamp)));
        peer.lateness.on_echo(turn.now, stamp, self.patience_with_replicas() + peer.round_trip());
    }

    fn earn_hedge(&self) {
        let earn = |credit: u64| Some((credit + HEDGE_EARNED).min(HEDGE_CREDIT_MAX));
        let _ = self.hedge_credit.try_update(Ordering::Relaxed, Ordering::Relaxed, earn);
    }

    fn spend_hedge(&self) -> bool {
        #[cfg(test)]
        if self.settings.bugs.hedges_without_budget {
            return true;
        }
        let spend = |credit: u64| credit.checked_sub(HEDGE_COST);
        self.hedge_credit.try_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A replica this far away that usually takes so long for a read, and has so many in flight.
    fn replica(way_ms: u64, usual_ms: u64, in_flight: i64) -> Peer {
        let peer = Peer::default();
        let now = Instant::from_nanos(1);
        peer.way.note(now, Duration::from_millis(way_ms));
        (0..200).for_each(|_| peer.note_read(Duration::from_millis(usual_ms)));
        peer.count_reads(in_flight);
        peer
    }

    fn is_before(one: &Peer, other: &Peer) -> bool {
        rough_wait(one, false) < rough_wait(other, false)
    }

    #[test]
    fn the_nearest_is_asked_unless_it_is_slow() {
        let near = [replica(10, 11, 0), replica(80, 81, 0), replica(100, 101, 0), replica(150, 152, 0)];
        assert!(near.is_sorted_by(is_before), "by the way, however alike as powers of two");
        let far = replica(102, 103, 0);
        assert!(is_before(&replica(100, 102, 20), &far), "what is in flight is on its way");
        assert!(is_before(&far, &replica(100, 130, 20)), "it is slow itself");
        let never_asked = Peer::default();
        never_asked.way.note(Instant::from_nanos(1), Duration::from_millis(10));
        assert!(is_before(&never_asked, &near[1]), "the way is known before the first read");
        assert!(rough_wait(&replica(10, 400, 0), true) < rough_wait(&near[1], true), "explores");
    }

    #[test]
    fn on_one_site_only_what_is_clearly_slower_is_avoided() {
        let (one, other) = (replica(0, 1, 0), replica(1, 3, 0));
        assert_eq!(rough_wait(&one, false), rough_wait(&other, false));
        assert!(is_before(&one, &replica(0, 20, 0)) && is_before(&one, &replica(0, 1, 2)));
    }
}
