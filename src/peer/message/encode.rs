//! How a message is written: a byte for what it is, then its parts in the order in which
//! [`decode`](super::decode) reads them.

use super::super::fields::{
    push_address, push_content, push_key, push_request, push_u64, push_value, push_version, push_write,
};
use super::{Message, ReadRole, Recollection, WriteOutcome};
use violet_client::wire::Format;

impl Message<'_> {
    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Forward { client, front_end, waited_ms, hops, datagram } => {
                out.push(1);
                push_address(out, client.address);
                out.push(u8::from(client.needs_proxy));
                push_u64(out, front_end.0);
                out.extend_from_slice(&waited_ms.to_le_bytes());
                out.push(*hops);
                out.extend_from_slice(datagram);
            }
            Self::Reply { client, datagram } => {
                out.push(2);
                push_address(out, *client);
                out.extend_from_slice(datagram);
            }
            Self::Write { token, write, hint_for, replaces, only_if_present } => {
                out.push(3);
                push_u64(out, *token);
                push_u64(out, hint_for.map_or(0, |member| member.0));
                let flags = [hint_for.is_some(), *replaces, *only_if_present];
                out.push(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
                push_write(out, write);
            }
            Self::Stored { token, outcome, existed } => {
                out.push(4);
                push_u64(out, *token);
                out.push(u8::from(*existed));
                let (code, floor) = match outcome {
                    WriteOutcome::Applied => (0, 0),
                    WriteOutcome::NoSpace => (1, 0),
                    WriteOutcome::BelowWipe(floor) => (2, *floor),
                };
                out.push(code);
                push_u64(out, floor);
            }
            Self::Undo { token, key, version, request } => {
                out.push(5);
                push_u64(out, *token);
                push_version(out, *version);
                push_request(out, request);
                push_key(out, key);
            }
            Self::Undone { token } => {
                out.push(6);
                push_u64(out, *token);
            }
            Self::Read { token, role, client, format, id, key, at_least } => {
                out.push(7);
                push_u64(out, *token);
                out.push(match role {
                    ReadRole::Answer => 0,
                    ReadRole::Return => 1,
                    ReadRole::Confirm => 2,
                    ReadRole::Record => 3,
                });
                push_address(out, *client);
                out.push(u8::from(*format == Format::Protobuf));
                out.extend_from_slice(&id.0);
                push_version(out, *at_least);
                push_key(out, key);
            }
            Self::ReadHit { token, version } => {
                out.push(8);
                push_u64(out, *token);
                push_version(out, *version);
            }
            Self::ReadMiss { token, unknown, removed } => {
                out.push(9);
                push_u64(out, *token);
                out.push(u8::from(*unknown));
                push_version(out, *removed);
            }
            Self::ReadValue { token, version, value } => {
                out.push(10);
                push_u64(out, *token);
                push_version(out, *version);
                push_value(out, *value);
            }
            Self::Hint { write } => {
                out.push(11);
                push_write(out, write);
            }
            Self::HintStored { key, version } => {
                out.push(12);
                push_version(out, *version);
                push_key(out, key);
            }
            Self::CatchUp { round } => {
                out.push(13);
                push_u64(out, *round);
            }
            Self::HintsLeft { round, hints, remembers, layouts } => {
                out.push(14);
                push_u64(out, *round);
                push_u64(out, *hints);
                out.push(u8::from(*remembers));
                out.extend_from_slice(layouts.0);
            }
            Self::Recall { token, request } => {
                out.push(17);
                push_u64(out, *token);
                push_request(out, request);
            }
            Self::Recalled { token, known } => {
                out.push(18);
                push_u64(out, *token);
                let (code, status) = match known {
                    Recollection::Nothing => (0, 0),
                    Recollection::Running => (1, 0),
                    Recollection::Replicated => (2, 0),
                    Recollection::Done(status) => (3, *status),
                };
                out.push(code);
                out.extend_from_slice(&status.to_le_bytes());
            }
            Self::Settled { request, existed } => {
                out.push(19);
                push_request(out, request);
                out.push(u8::from(*existed));
            }
            Self::Compare { asked_at, wiped_at, roots } => {
                out.push(20);
                push_u64(out, *asked_at);
                push_u64(out, *wiped_at);
                out.extend_from_slice(roots.0);
            }
            Self::Compared { asked_at, wiped_at, roots } => {
                out.push(21);
                push_u64(out, *asked_at);
                push_u64(out, *wiped_at);
                out.extend_from_slice(roots.0);
            }
            Self::Covered { roots } => {
                out.push(22);
                out.extend_from_slice(roots.0);
            }
            Self::Mend { key, to } => {
                out.push(23);
                push_u64(out, to.0);
                push_key(out, key);
            }
            Self::ReadRecord { token, unknown, version, value, is_set } => {
                out.push(24);
                push_u64(out, *token);
                out.push(u8::from(*unknown));
                push_version(out, *version);
                push_content(out, *value, *is_set);
            }
            Self::Probe { stamp, late } => {
                out.push(40);
                push_u64(out, *stamp);
                out.push(u8::from(*late));
            }
            Self::Echo { stamp } => {
                out.push(41);
                push_u64(out, *stamp);
            }
            Self::Ping => out.push(15),
            Self::Pong => out.push(16),
        }
    }
}
