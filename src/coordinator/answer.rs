//! Answers: how a reply gets to its client, and what shed requests are told.

use super::{Client, Coordinator, Turn, siblings};
use crate::metrics::Metric;
use crate::outbox::Lane;
use crate::peer::Message;
use std::net::SocketAddr;
use violet_client::wire::{self, DropReason, Format, Rejected};
use violet_client::{Response, Status, Value};

/// What an overloaded node tells a protobuf client to wait.
const OVERLOAD_WAIT_MS: i32 = 100;

impl Coordinator {
    /// Answers a client of this front end with a status.
    pub fn answer_status(&self, turn: &mut Turn<'_>, client: &Client, status: Status) {
        self.answer(turn, client, &Response::of_status(client.id, status));
    }

    /// Answers a client of this front end with text, cut to what a value may hold.
    pub fn answer_text(&self, turn: &mut Turn<'_>, client: &Client, text: &str) {
        let max = match client.format {
            Format::Raw => wire::RAW_VALUE_BYTES_MAX,
            Format::Protobuf => wire::PROTOBUF_VALUE_BYTES_MAX,
        };
        let bytes = &text.as_bytes()[..text.len().min(max)];
        let value = Some(Value { bytes, version: 0 });
        let response = Response { value, ..Response::of_status(client.id, Status::Success) };
        self.answer(turn, client, &response);
    }

    pub(super) fn reject(&self, turn: &mut Turn<'_>, from: SocketAddr, rejected: Rejected) {
        match rejected {
            Rejected::Drop(reason) => turn.outbox.count(match reason {
                DropReason::TooShort => Metric::DroppedTooShort,
                DropReason::Checksum => Metric::DroppedChecksum,
                DropReason::NotProtobuf => Metric::DroppedNotProtobuf,
            }),
            Rejected::Answer { format, id, status } => {
                let client = Client { address: from, format, id, front_end: None, needs_proxy: false };
                self.answer(turn, &client, &Response::of_status(id, status));
            }
        }
    }

    /// Sends the reply of a request, the way its client can take it, and settles it in the ledger.
    pub(super) fn answer(&self, turn: &mut Turn<'_>, client: &Client, response: &Response<'_>) {
        turn.outbox.count(Metric::Answered);
        self.reply(turn, client, response);
    }

    pub(super) fn reply(&self, turn: &mut Turn<'_>, client: &Client, response: &Response<'_>) {
        let front_end = client.front_end.filter(|_| client.needs_proxy);
        if let Some(front_end) = front_end.and_then(|member| turn.view.index_of(member)) {
            turn.outbox.count(Metric::RepliesProxied);
            let mut datagram = turn.outbox.lend();
            wire::encode_response(client.format, response, &mut datagram);
            let message = Message::Reply { client: client.address, datagram: &datagram };
            self.link.send(turn.now, turn.view, front_end, &message, turn.outbox);
            turn.outbox.give_back(datagram);
        } else {
            turn.outbox.send(Lane::Client, client.address, |out| {
                wire::encode_response(client.format, response, out);
            });
        }
    }

    /// A reply that this front end is to pass on.
    pub fn on_reply(&self, turn: &mut Turn<'_>, client: SocketAddr, datagram: &[u8]) {
        turn.outbox.count(Metric::RepliesForeign);
        turn.outbox.send(Lane::Client, client, |out| out.extend_from_slice(datagram));
    }

    /// A request that cannot be taken now: protobuf clients are told to wait, raw clients are not
    /// told anything, because an error code ends their run.
    pub(super) fn shed(&self, turn: &mut Turn<'_>, client: &Client, reason: Metric) {
        turn.outbox.count(reason);
        if client.format == Format::Protobuf {
            let response = Response::of_status(client.id, Status::Overload);
            let response = Response { overload_wait_ms: Some(OVERLOAD_WAIT_MS), ..response };
            self.reply(turn, client, &response);
        }
    }

    /// Answers a repeat of a mutation of which only the status is remembered.
    pub(super) fn answer_again(&self, turn: &mut Turn<'_>, client: &Client, datagram: &[u8], status: Status) {
        turn.outbox.count(Metric::RepliesRepeated);
        self.answer_mutation(turn, client, status, siblings::forgotten_reply(datagram).as_deref());
    }

    /// Answers a mutation; `reply` is what a success carries beside its status.
    pub(super) fn answer_mutation(
        &self,
        turn: &mut Turn<'_>,
        client: &Client,
        status: Status,
        reply: Option<&[u8]>,
    ) {
        let reply = reply.filter(|_| status == Status::Success);
        let value = reply.map(|bytes| Value { bytes, version: 0 });
        self.answer(turn, client, &Response { value, ..Response::of_status(client.id, status) });
    }
}
