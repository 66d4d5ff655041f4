//! What members say to each other, and how it is written.
//!
//! Numbers are little endian; a length goes before what varies, except for a datagram at the end. A
//! body that is not one message to the last byte is none.

use crate::ids::{MemberId, RequestKey, Token, Version};
use std::net::{IpAddr, SocketAddr};
use violet_client::wire::{Format, Key, MessageId, Value};

/// A client as members tell each other about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress {
    /// Where it sent from.
    pub address: SocketAddr,
    /// It cannot take replies from other addresses than the one it asked.
    pub needs_proxy: bool,
}

/// What a read is to do with a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadRole {
    /// Send the value to the client, and tell the front end.
    Answer,
    /// Send the value to the front end.
    Return,
    /// Tell the front end the version only.
    Confirm,
    /// Send the front end the record as it is, whatever it is.
    Record,
}

/// A write as members pass it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// Where.
    pub key: Key,
    /// Which version.
    pub version: Version,
    /// The value, or `None` for a removal.
    pub value: Option<Value<'a>>,
    /// The value's bytes are those of a set of siblings, to be merged with what is there.
    pub is_set: bool,
    /// The client's request, so that whoever coordinates next knows that it is done.
    pub request: RequestKey,
}

/// What a replica says about a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It is kept, or something newer is.
    Applied,
    /// There is no memory for it.
    NoSpace,
    /// The node was wiped later than this version; nothing older than this time can be written.
    BelowWipe(u64),
}

/// What a holder knows of a mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recollection {
    /// Nothing.
    Nothing,
    /// It is working on it.
    Running,
    /// Its write was replicated here.
    Replicated,
    /// It is done, with this status (its protobuf code).
    Done(u32),
}

/// Partitions, and for each a number that stands for all that a member holds in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roots<'a>(&'a [u8]);

impl<'a> Roots<'a> {
    /// Bytes of one entry.
    pub const ENTRY_BYTES: usize = 10;

    /// Appends an entry to what [`Roots::over`] reads.
    pub fn push(out: &mut Vec<u8>, partition: u16, root: u64) {
        out.extend_from_slice(&partition.to_le_bytes());
        push_u64(out, root);
    }

    /// The entries in these bytes; a rest that is none is left out.
    #[must_use]
    pub fn over(bytes: &'a [u8]) -> Self {
        Self(&bytes[..bytes.len() - bytes.len() % Self::ENTRY_BYTES])
    }

    /// The entries.
    pub fn iter(self) -> impl Iterator<Item = (u16, u64)> + 'a {
        self.0.chunks_exact(Self::ENTRY_BYTES).filter_map(|entry| {
            let mut reader = Reader(entry);
            Some((reader.u16()?, reader.u64()?))
        })
    }
}

/// Lists of placed members: the layout in force, and those that it replaces. The first is written in
/// full, the others as what they have and lack beside it, so that a hundred members fit one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberLists<'a>(&'a [u8]);

impl<'a> MemberLists<'a> {
    /// Appends lists, each in rising order, to what [`MemberLists::over`] reads.
    pub fn push<'l>(out: &mut Vec<u8>, first: &[MemberId], others: impl Iterator<Item = &'l [MemberId]>) {
        push_members(out, first.iter());
        for other in others {
            push_members(out, other.iter().filter(|id| first.binary_search(id).is_err()));
            push_members(out, first.iter().filter(|id| other.binary_search(id).is_err()));
        }
    }

    /// The lists in these bytes.
    #[must_use]
    pub fn over(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The lists, the layout in force first; a rest that is none is left out.
    #[must_use]
    pub fn to_vecs(self) -> Vec<Vec<MemberId>> {
        let mut reader = Reader(self.0);
        let Some(first) = reader.members() else { return Vec::new() };
        let mut lists = vec![first];
        while let Some((added, missing)) = reader.members().zip(reader.members()) {
            let mut list: Vec<MemberId> =
                lists[0].iter().filter(|id| !missing.contains(id)).copied().collect();
            list.extend(added);
            list.sort_unstable();
            lists.push(list);
        }
        lists
    }
}

fn push_members<'l>(out: &mut Vec<u8>, members: impl Iterator<Item = &'l MemberId> + Clone) {
    out.extend_from_slice(&(members.clone().count() as u16).to_le_bytes());
    members.for_each(|member| push_u64(out, member.0));
}

/// What members say to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A client's request, for the coordinator.
    Forward {
        /// Who asked.
        client: ClientAddress,
        /// The member that it asked.
        front_end: MemberId,
        /// How long it waited so far, in milliseconds.
        waited_ms: u32,
        /// How many members passed it on.
        hops: u8,
        /// The client's datagram.
        datagram: &'a [u8],
    },
    /// A reply for a client that takes replies only from its front end.
    Reply {
        /// Who asked.
        client: SocketAddr,
        /// The reply's datagram.
        datagram: &'a [u8],
    },
    /// Keep this write.
    Write {
        /// The coordinator's operation.
        token: Token,
        /// What to keep.
        write: Write<'a>,
        /// Keep it as a hint for this absent member too.
        hint_for: Option<MemberId>,
        /// It replaces a value at the coordinator, or removes one: memory set aside may be used.
        replaces: bool,
        /// Only if the key has a value here (a removal of a key that the coordinator does not hold).
        only_if_present: bool,
    },
    /// Answer to [`Message::Write`].
    Stored {
        /// The coordinator's operation.
        token: Token,
        /// What became of it.
        outcome: WriteOutcome,
        /// The key had a value here before.
        existed: bool,
    },
    /// Take back a write that another replica had no space for.
    Undo {
        /// The coordinator's operation.
        token: Token,
        /// Where.
        key: Key,
        /// Everything up to this version goes.
        version: Version,
        /// The client's request, which counts as never done.
        request: RequestKey,
    },
    /// Answer to [`Message::Undo`].
    Undone {
        /// The coordinator's operation.
        token: Token,
    },
    /// Look a key up.
    Read {
        /// The front end's operation.
        token: Token,
        /// What to do with a hit.
        role: ReadRole,
        /// Who asked.
        client: SocketAddr,
        /// The layout of the reply.
        format: Format,
        /// The id to reply to.
        id: MessageId,
        /// Which key.
        key: Key,
        /// Anything older counts as a miss.
        at_least: Version,
    },
    /// The key has a value here.
    ReadHit {
        /// The front end's operation.
        token: Token,
        /// Its version.
        version: Version,
        /// The client has been answered.
        answered: bool,
    },
    /// The key has no value here.
    ReadMiss {
        /// The front end's operation.
        token: Token,
        /// This node is catching up: its miss means nothing.
        unknown: bool,
        /// The version of the removal, if this node remembers one.
        removed: Version,
    },
    /// The value, for the front end to pass on.
    ReadValue {
        /// The front end's operation.
        token: Token,
        /// Its version.
        version: Version,
        /// The value.
        value: Value<'a>,
    },
    /// What is kept under a key, in answer to [`ReadRole::Record`].
    ReadRecord {
        /// The front end's operation.
        token: Token,
        /// This node is catching up: it cannot know.
        unknown: bool,
        /// The record's version; the least one when there is none.
        version: Version,
        /// The value; `None` for a removal, or nothing at all.
        value: Option<Value<'a>>,
        /// The value's bytes are those of a set of siblings.
        is_set: bool,
    },
    /// Deliver a write that was kept for the receiver.
    Hint {
        /// What was kept.
        write: Write<'a>,
    },
    /// Answer to [`Message::Hint`]: it, or something newer, is kept.
    HintStored {
        /// Which key.
        key: Key,
        /// Which version.
        version: Version,
    },
    /// The sender was away; how many hints are left for it?
    CatchUp {
        /// Which of its catch-ups.
        round: u64,
    },
    /// Answer to [`Message::CatchUp`].
    HintsLeft {
        /// Which catch-up.
        round: u64,
        /// How many hints the sender still keeps for the receiver.
        hints: u64,
        /// The sender remembers requests; the receiver may have missed some.
        remembers: bool,
        /// The layouts that the sender uses: the one in force first.
        layouts: MemberLists<'a>,
    },
    /// What became of this request? From a coordinator that was away and may have missed it.
    Recall {
        /// The coordinator's operation.
        token: Token,
        /// Which request.
        request: RequestKey,
    },
    /// Answer to [`Message::Recall`].
    Recalled {
        /// The coordinator's operation.
        token: Token,
        /// What the sender knows.
        known: Recollection,
    },
    /// A request ended like this without leaving a write at the receiver: remember it.
    Settled {
        /// Which request.
        request: RequestKey,
        /// The key had a value (and was removed).
        existed: bool,
    },
    /// This is what the sender holds of these partitions; what does the receiver?
    Compare {
        /// When it was asked, on the sender's clock; repeated in the answer.
        asked_at: u64,
        /// The sender takes nothing from before this time: its last wipe-out.
        wiped_at: u64,
        /// What the sender holds.
        roots: Roots<'a>,
    },
    /// Answer to [`Message::Compare`].
    Compared {
        /// From the question.
        asked_at: u64,
        /// The sender takes nothing from before this time.
        wiped_at: u64,
        /// What the sender of the answer holds of the same partitions.
        roots: Roots<'a>,
    },
    /// The sender holds everything that the receiver held when its roots were these.
    Covered {
        /// The receiver's roots.
        roots: Roots<'a>,
    },
    /// Send this key's record to that member, which lacks it or has an older one (read repair).
    Mend {
        /// Which key.
        key: Key,
        /// Who lacks it.
        to: MemberId,
    },
    /// Repeat this stamp at once. The sender measures how late the receiver's answers are.
    Probe {
        /// When it was sent, on the sender's clock.
        stamp: u64,
        /// They are too late; the receiver should stand aside.
        late: bool,
    },
    /// Answer to [`Message::Probe`].
    Echo {
        /// From the question.
        stamp: u64,
    },
    /// Are you there?
    Ping,
    /// Yes.
    Pong,
}

impl<'a> Message<'a> {
    /// Whether the receiver sends something back to the sender.
    #[must_use]
    pub fn wants_answer(&self) -> bool {
        match self {
            Self::Forward { .. }
            | Self::Write { .. }
            | Self::Undo { .. }
            | Self::Read { .. }
            | Self::Hint { .. }
            | Self::CatchUp { .. }
            | Self::Recall { .. }
            | Self::Compare { .. }
            | Self::Probe { .. }
            | Self::Ping => true,
            Self::Reply { .. }
            | Self::Stored { .. }
            | Self::Undone { .. }
            | Self::ReadHit { .. }
            | Self::ReadMiss { .. }
            | Self::ReadValue { .. }
            | Self::ReadRecord { .. }
            | Self::HintStored { .. }
            | Self::HintsLeft { .. }
            | Self::Recalled { .. }
            | Self::Settled { .. }
            | Self::Compared { .. }
            | Self::Covered { .. }
            | Self::Mend { .. }
            | Self::Echo { .. }
            | Self::Pong => false,
        }
    }

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
            Self::ReadHit { token, version, answered } => {
                out.push(8);
                push_u64(out, *token);
                push_version(out, *version);
                out.push(u8::from(*answered));
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
            8 => Self::ReadHit { token: reader.u64()?, version: reader.version()?, answered: reader.flag()? },
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

pub(super) fn push_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn push_version(out: &mut Vec<u8>, version: Version) {
    push_u64(out, version.time);
    push_u64(out, version.writer);
}

pub(super) fn push_key(out: &mut Vec<u8>, key: &Key) {
    out.push(key.as_bytes().len() as u8);
    out.extend_from_slice(key.as_bytes());
}

pub(super) fn push_value(out: &mut Vec<u8>, value: Value<'_>) {
    out.extend_from_slice(&value.version.to_le_bytes());
    out.extend_from_slice(&(value.bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(value.bytes);
}

/// What is kept under a key: nothing (a removal), a value, or a set.
pub(super) fn push_content(out: &mut Vec<u8>, value: Option<Value<'_>>, is_set: bool) {
    out.push(u8::from(value.is_some()) + u8::from(value.is_some() && is_set));
    if let Some(value) = value {
        push_value(out, value);
    }
}

fn push_write(out: &mut Vec<u8>, write: &Write<'_>) {
    push_version(out, write.version);
    push_request(out, &write.request);
    push_key(out, &write.key);
    push_content(out, write.value, write.is_set);
}

fn push_request(out: &mut Vec<u8>, request: &RequestKey) {
    out.extend_from_slice(&request.0.to_le_bytes());
}

fn push_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(6);
            out.extend_from_slice(&ip.octets());
        }
    }
    out.extend_from_slice(&address.port().to_le_bytes());
}

/// Takes bytes off the front; `None` when there are too few.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(chunk)
    }

    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|bytes| bytes[0])
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(|bytes| u16::from_le_bytes(*bytes))
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(|bytes| u32::from_le_bytes(*bytes))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(|bytes| u64::from_le_bytes(*bytes))
    }

    pub(super) fn version(&mut self) -> Option<Version> {
        Some(Version { time: self.u64()?, writer: self.u64()? })
    }

    pub(super) fn key(&mut self) -> Option<Key> {
        let length = self.u8()?;
        Key::parse(self.bytes(usize::from(length))?).ok()
    }

    fn members(&mut self) -> Option<Vec<MemberId>> {
        let count = usize::from(self.u16()?);
        let mut members = Reader(self.bytes(count * 8)?);
        Some(std::iter::from_fn(|| members.u64().map(MemberId)).collect())
    }

    pub(super) fn value(&mut self) -> Option<Value<'a>> {
        let version = i32::from_le_bytes(*self.take()?);
        let length = self.u32()?;
        Some(Value { version, bytes: self.bytes(length as usize)? })
    }

    fn request(&mut self) -> Option<RequestKey> {
        self.take().map(|bytes| RequestKey(u128::from_le_bytes(*bytes)))
    }

    fn write(&mut self) -> Option<Write<'a>> {
        let version = self.version()?;
        let request = self.request()?;
        let key = self.key()?;
        let (value, is_set) = self.content()?;
        Some(Write { key, version, value, is_set, request })
    }

    pub(super) fn content(&mut self) -> Option<(Option<Value<'a>>, bool)> {
        Some(match self.u8()? {
            0 => (None, false),
            1 => (Some(self.value()?), false),
            2 => (Some(self.value()?), true),
            _ => return None,
        })
    }

    fn address(&mut self) -> Option<SocketAddr> {
        let ip = match self.u8()? {
            4 => IpAddr::from(*self.take::<4>()?),
            6 => IpAddr::from(*self.take::<16>()?),
            _ => return None,
        };
        let port = u16::from_le_bytes(*self.take()?);
        Some(SocketAddr::new(ip, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Message<'static>> {
        let key = Key::parse(b"a key").expect("short enough");
        let version = Version { time: 7, writer: 9 };
        let request = RequestKey(5);
        let value = Value { bytes: b"value", version: -2 };
        let write = Write { key, version, value: Some(value), is_set: false, request };
        let client: SocketAddr = "[::1]:9".parse().expect("an address");
        let v4: SocketAddr = "127.0.0.1:9".parse().expect("an address");
        vec![
            Message::Forward {
                client: ClientAddress { address: v4, needs_proxy: true },
                front_end: MemberId(7),
                waited_ms: 4,
                hops: 1,
                datagram: b"datagram",
            },
            Message::Reply { client, datagram: b"reply" },
            Message::Write {
                token: 1,
                write,
                hint_for: Some(MemberId(8)),
                replaces: true,
                only_if_present: false,
            },
            Message::Write {
                token: 1,
                write: Write { value: None, ..write },
                hint_for: None,
                replaces: false,
                only_if_present: true,
            },
            Message::Stored { token: 2, outcome: WriteOutcome::BelowWipe(6), existed: true },
            Message::Stored { token: 2, outcome: WriteOutcome::NoSpace, existed: false },
            Message::Undo { token: 3, key, version, request },
            Message::Undone { token: 3 },
            Message::Read {
                token: 4,
                role: ReadRole::Confirm,
                client,
                format: Format::Raw,
                id: MessageId([1; 16]),
                key,
                at_least: version,
            },
            Message::ReadHit { token: 5, version, answered: true },
            Message::ReadMiss { token: 6, unknown: true, removed: version },
            Message::ReadValue { token: 7, version, value },
            Message::ReadRecord { token: 8, unknown: true, version, value: None, is_set: false },
            Message::ReadRecord { token: 9, unknown: false, version, value: Some(value), is_set: true },
            Message::Hint { write },
            Message::Hint { write: Write { is_set: true, ..write } },
            Message::HintStored { key, version },
            Message::CatchUp { round: 1 },
            Message::HintsLeft {
                round: 1,
                hints: 2,
                remembers: true,
                layouts: MemberLists(b"\x01\0ABCDEFGH"),
            },
            Message::Compare { asked_at: 1, wiped_at: 2, roots: Roots(b"ABCDEFGHIJ") },
            Message::Compared { asked_at: 1, wiped_at: 2, roots: Roots(b"") },
            Message::Covered { roots: Roots(b"ABCDEFGHIJabcdefghij") },
            Message::Mend { key, to: MemberId(3) },
            Message::Recall { token: 8, request },
            Message::Recalled { token: 8, known: Recollection::Nothing },
            Message::Recalled { token: 8, known: Recollection::Done(1) },
            Message::Settled { request, existed: true },
            Message::Probe { stamp: 9, late: true },
            Message::Echo { stamp: 9 },
            Message::Ping,
            Message::Pong,
        ]
    }

    #[test]
    fn member_lists_survive_the_wire_and_differences_are_short() {
        let list = |ids: &[u64]| ids.iter().map(|id| MemberId(*id)).collect::<Vec<_>>();
        let lists = [list(&[1, 2, 3, 5]), list(&[1, 2, 3]), list(&[2, 4, 5]), list(&[])];
        let mut bytes = Vec::new();
        MemberLists::push(&mut bytes, &lists[0], lists[1..].iter().map(Vec::as_slice));
        assert_eq!(MemberLists::over(&bytes).to_vecs(), lists);
        assert_eq!(MemberLists::over(&bytes[..bytes.len() - 1]).to_vecs(), lists[..3]);
        assert!(MemberLists::over(&[]).to_vecs().is_empty());
        let hundred: Vec<MemberId> = (0..100).map(MemberId).collect();
        let mut bytes = Vec::new();
        MemberLists::push(&mut bytes, &hundred, [&hundred[1..], &hundred[..99]].into_iter());
        assert!(bytes.len() < 850, "{}", bytes.len());
    }

    #[test]
    fn messages_survive_the_wire_and_cut_ones_do_not() {
        for message in samples() {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            assert_eq!(Message::decode(&bytes), Some(message));
            let open_ended = matches!(
                message,
                Message::Forward { .. }
                    | Message::Reply { .. }
                    | Message::HintsLeft { .. }
                    | Message::Compare { .. }
                    | Message::Compared { .. }
                    | Message::Covered { .. }
            );
            if !open_ended {
                for end in 0..bytes.len() {
                    assert_eq!(Message::decode(&bytes[..end]), None, "{message:?} cut at {end}");
                }
            }
        }
    }
}
