//! How requests end: with a reply, or with silence; and what becomes of replies that end none.

use std::cmp::Reverse;
use std::net::SocketAddr;
use std::time::Duration;

use violet_client::wire::decode_response;
use violet_client::{Format, MessageId, Response, Status};

use super::super::slot::{Fate, State};
use super::super::{End, Nanos, Pace, Verdict, Workload, nanos};
use super::{Engine, FATES};
use crate::craft;
use crate::result::Counts;

/// Longest pause that an "overloaded" answer can impose.
const OVERLOAD_WAIT_MAX: Duration = Duration::from_secs(5);

impl<W: Workload> Engine<'_, W> {
    pub(super) fn on_datagram(&mut self, datagram: &[u8], from: Option<SocketAddr>, now: Nanos) {
        let format = self.conduct.format;
        // What the trailing bytes of a raw reply mean depends on the request, so its slot is found first.
        let command = match format {
            Format::Raw => {
                let place = datagram.first_chunk().and_then(|id| self.ids.read(MessageId(*id)));
                place.and_then(|(index, _)| self.slots.get(index)).map_or(0, |slot| slot.command)
            }
            Format::Protobuf => 0,
        };
        let Ok(response) = decode_response(format, command, datagram) else {
            self.count_loose(now, |counts| counts.undecodable += 1);
            return;
        };
        let place = self.ids.read(response.id);
        let Some((index, number)) = place.filter(|&(_, number)| number < self.next_number) else {
            self.count_loose(now, |counts| counts.foreign += 1);
            return;
        };
        let Some(slot) = self.slots.get(index) else {
            self.count_loose(now, |counts| counts.foreign += 1);
            return;
        };
        if number != slot.number || slot.state != State::Waiting {
            self.on_surplus(number, now);
            return;
        }
        if from.is_some_and(|from| !self.is_asked(from, slot.server as usize)) {
            self.tally.stranger = self.tally.stranger.or(from);
            self.count_loose(now, |counts| counts.foreign += 1);
        }
        let is_success = response.status == Status::Success;
        if format == Format::Protobuf && is_success && !craft::is_readable_by_proto2(datagram) {
            self.tally.unreadable_by_proto2 += 1;
        }
        self.on_reply(index, response, now);
    }

    /// Whether an address is on the list; most replies come from the server that was asked.
    fn is_asked(&self, from: SocketAddr, server: usize) -> bool {
        let servers = &self.conduct.servers;
        let is_same = |server: &SocketAddr| server.port() == from.port() && server.ip() == from.ip();
        is_same(&servers[server]) || servers.iter().any(is_same)
    }

    /// Counts a datagram that belongs to no request under way; not while the load is warmed up.
    fn count_loose(&mut self, now: Nanos, change: impl Fn(&mut Counts)) {
        if self.counts_from <= now {
            change(&mut self.tally.loose);
        }
    }

    /// A reply to a request that has ended.
    fn on_surplus(&mut self, number: u64, now: Nanos) {
        let is_remembered = self.next_number - number <= FATES as u64;
        match self.fates[number as usize % FATES] {
            Fate::AnsweredAtOnce if is_remembered => self.count_loose(now, |counts| counts.duplicates += 1),
            Fate::AnsweredAfterRetry if is_remembered => {
                self.tally.surplus += u64::from(self.counts_from <= now);
            }
            Fate::Open | Fate::AnsweredAtOnce | Fate::AnsweredAfterRetry | Fate::GivenUp => {
                self.count_loose(now, |counts| counts.late += 1);
            }
        }
    }

    fn on_reply(&mut self, index: usize, response: Response<'_>, now: Nanos) {
        let slot = &mut self.slots[index];
        slot.state = State::Idle;
        self.in_flight -= 1;
        self.fates[slot.number as usize % FATES] =
            if slot.attempts == 1 { Fate::AnsweredAtOnce } else { Fate::AnsweredAfterRetry };
        let is_overload = response.status == Status::Overload;
        let wait_ms = response.overload_wait_ms.unwrap_or(0);
        if is_overload {
            self.tally.overload_wait_ms_max = self.tally.overload_wait_ms_max.max(wait_ms);
        }
        let may_restart = matches!(self.pace, Pace::Closed { .. })
            && is_overload
            && self.slots[index].restarts < self.conduct.overload_restarts_max
            && 0 <= wait_ms
            && self.check_window(now);
        if may_restart {
            self.record_answer(index, &response, Verdict::Refused, now);
            let slot = &mut self.slots[index];
            slot.restarts += 1;
            slot.state = State::Paused;
            let wait = Duration::from_millis(wait_ms.unsigned_abs().into()).min(OVERLOAD_WAIT_MAX);
            self.paused.push(Reverse((now + nanos(wait), index as u32)));
            return;
        }
        let verdict = self.workload.on_end(index, End::Answered(response));
        self.record_answer(index, &response, verdict, now);
        self.go_on(index, now);
    }

    fn record_answer(&mut self, index: usize, response: &Response<'_>, verdict: Verdict, now: Nanos) {
        let slot = &self.slots[index];
        if !slot.is_counted {
            return;
        }
        let since = |moment: Nanos| Duration::from_nanos(now.saturating_sub(moment));
        let corrected = since(slot.due);
        let (raw, last_try) = (since(slot.first_sent), since(slot.last_sent));
        let read_bytes = response.value.map_or(0, |value| value.bytes.len() as u64);
        let value_bytes = if verdict == Verdict::Good { read_bytes + u64::from(slot.value_bytes) } else { 0 };
        let change = |counts: &mut Counts| {
            counts.answered += 1;
            match verdict {
                Verdict::Good => counts.good += 1,
                Verdict::Refused => counts.refused += 1,
                Verdict::Wrong => counts.wrong += 1,
            }
            counts.value_bytes += value_bytes;
        };
        let server = &mut self.tally.servers[slot.server as usize];
        change(&mut server.counts);
        server.latency.record(corrected);
        let operation = self.tally.of(slot.kind);
        change(&mut operation.counts);
        *operation.statuses.entry(response.status).or_default() += 1;
        operation.corrected.record(corrected);
        operation.raw.record(raw);
        operation.last_try.record(last_try);
        self.sheet.answered += 1;
        self.sheet.good += u64::from(verdict == Verdict::Good);
        self.sheet.wrong += u64::from(verdict == Verdict::Wrong);
        self.sheet.latency.record(corrected);
        if self.is_open && now < self.closes {
            self.tally.answers_in_window += 1;
            self.tally.successes_in_window += u64::from(response.status == Status::Success);
        }
    }

    pub(super) fn on_timeout(&mut self, index: usize, now: Nanos) {
        let slot = &mut self.slots[index];
        slot.state = State::Idle;
        self.in_flight -= 1;
        self.fates[slot.number as usize % FATES] = Fate::GivenUp;
        if slot.is_counted {
            let spent = Duration::from_nanos(now.saturating_sub(slot.first_sent));
            self.tally.given_up.record(spent);
            self.sheet.timed_out += 1;
            self.count(index, |counts| counts.timed_out += 1);
        }
        let _ = self.workload.on_end(index, End::TimedOut);
        self.go_on(index, now);
    }
}
