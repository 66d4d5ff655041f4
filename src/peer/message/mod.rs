//! What members say to each other.
//!
//! [`Message`] is the list of everything that a frame can say; [`lists`] are those of its parts that
//! stay in the frame's bytes until they are read. How it is written is in `encode` and `decode`, which
//! mirror each other: a new message needs a number that neither has.

pub mod answered;
mod decode;
mod encode;
pub mod lists;

use crate::ids::{MemberId, RequestKey, Token, Version};
pub use answered::{ANSWERED_MAX, Answered};
pub use lists::{MemberLists, Roots};
use std::net::SocketAddr;
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
    /// The key has a value here. (That the client has been answered is told by [`Answered`].)
    ReadHit {
        /// The front end's operation.
        token: Token,
        /// Its version.
        version: Version,
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
    /// Yes. Also what carries [`Answered`] reads when there is nothing else to say.
    Pong,
}

impl Message<'_> {
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
}

#[cfg(test)]
mod tests;
