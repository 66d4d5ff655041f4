//! How a message is read. A body that is not one message to the last byte is none.

use super::super::fields::Reader;
use super::{ClientAddress, MemberLists, Message, ReadRole, Recollection, Roots, WriteOutcome};
use crate::ids::MemberId;
use violet_client::wire::{Format, MessageId};

impl<'a> Message<'a> {
    /// Reads a message; `None` when the body is not one.
    #[must_use]
    pub fn decode(body: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(body);
        let message = match reader.u8()? {
            1 => Self::Forward {
                client: ClientAddress { address: reader.address()?, needs_proxy: reader.flag()? },
                front_end: MemberId(reader.u64()?),
                waited_ms: reader.u32()?,
                hops: reader.u8()?,
                datagram: reader.rest(),
            },
            2 => Self::Reply { client: reader.address()?, datagram: reader.rest() },
            3 => {
                let (token, hint_for, flags) = (reader.u64()?, reader.u64()?, reader.u8()?);
                Self::Write {
                    token,
                    hint_for: (flags & 1 != 0).then_some(MemberId(hint_for)),
                    replaces: flags & 2 != 0,
                    only_if_present: flags & 4 != 0,
                    write: reader.write()?,
                }
            }
            4 => {
                let (token, existed) = (reader.u64()?, reader.flag()?);
                let (code, floor) = (reader.u8()?, reader.u64()?);
                let outcome = match code {
                    0 => WriteOutcome::Applied,
                    1 => WriteOutcome::NoSpace,
                    2 => WriteOutcome::BelowWipe(floor),
                    _ => return None,
                };
                Self::Stored { token, outcome, existed }
            }
            5 => Self::Undo {
                token: reader.u64()?,
                version: reader.version()?,
                request: reader.request()?,
                key: reader.key()?,
            },
            6 => Self::Undone { token: reader.u64()? },
            7 => Self::Read {
                token: reader.u64()?,
                role: match reader.u8()? {
                    0 => ReadRole::Answer,
                    1 => ReadRole::Return,
                    2 => ReadRole::Confirm,
                    3 => ReadRole::Record,
                    _ => return None,
                },
                client: reader.address()?,
                format: if reader.flag()? { Format::Protobuf } else { Format::Raw },
                id: MessageId(*reader.take()?),
                at_least: reader.version()?,
                key: reader.key()?,
            },
            8 => Self::ReadHit { token: reader.u64()?, version: reader.version()? },
            9 => Self::ReadMiss { token: reader.u64()?, unknown: reader.flag()?, removed: reader.version()? },
            10 => {
                Self::ReadValue { token: reader.u64()?, version: reader.version()?, value: reader.value()? }
            }
            11 => Self::Hint { write: reader.write()? },
            12 => Self::HintStored { version: reader.version()?, key: reader.key()? },
            13 => Self::CatchUp { round: reader.u64()? },
            14 => Self::HintsLeft {
                round: reader.u64()?,
                hints: reader.u64()?,
                remembers: reader.flag()?,
                layouts: MemberLists(reader.rest()),
            },
            40 => Self::Probe { stamp: reader.u64()?, late: reader.flag()? },
            41 => Self::Echo { stamp: reader.u64()? },
            15 => Self::Ping,
            16 => Self::Pong,
            17 => Self::Recall { token: reader.u64()?, request: reader.request()? },
            18 => {
                let (token, code, status) = (reader.u64()?, reader.u8()?, reader.u32()?);
                let known = match code {
                    0 => Recollection::Nothing,
                    1 => Recollection::Running,
                    2 => Recollection::Replicated,
                    3 => Recollection::Done(status),
                    _ => return None,
                };
                Self::Recalled { token, known }
            }
            19 => Self::Settled { request: reader.request()?, existed: reader.flag()? },
            20 => {
                let (asked_at, wiped_at) = (reader.u64()?, reader.u64()?);
                Self::Compare { asked_at, wiped_at, roots: Roots::over(reader.rest()) }
            }
            21 => {
                let (asked_at, wiped_at) = (reader.u64()?, reader.u64()?);
                Self::Compared { asked_at, wiped_at, roots: Roots::over(reader.rest()) }
            }
            22 => Self::Covered { roots: Roots::over(reader.rest()) },
            24 => {
                let (token, unknown, version) = (reader.u64()?, reader.flag()?, reader.version()?);
                let (value, is_set) = reader.content()?;
                Self::ReadRecord { token, unknown, version, value, is_set }
            }
            23 => Self::Mend { to: MemberId(reader.u64()?), key: reader.key()? },
            _ => return None,
        };
        reader.0.is_empty().then_some(message)
    }
}
