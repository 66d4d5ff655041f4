//! What a traced run prints: one line for each datagram.

use super::network::Place;
use crate::peer::{GOSSIP_MAGIC, Message, PEER_MAGIC, frames, glance};
use std::fmt::Write;
use std::net::SocketAddr;
use violet_client::wire::{self, Accept};

/// What a datagram is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A client's request.
    Request,
    /// A request that a front end passes on.
    Forward,
    /// A write for a holder.
    Write,
    /// A holder's word on a write.
    Stored,
    /// A question for a replica.
    Read,
    /// A replica's word on a read, if it has the key.
    ReadHit,
    /// The word that a read was answered, when nothing else went there.
    Answered,
    /// A reply to a client.
    Reply,
    /// Anything else.
    Other,
}

impl Kind {
    /// What it is called in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Forward => "forward",
            Self::Write => "write",
            Self::Stored => "stored",
            Self::Read => "read",
            Self::ReadHit => "hit",
            Self::Answered => "answered",
            Self::Reply => "reply",
            Self::Other => "other",
        }
    }
}

/// What a datagram is there for.
#[must_use]
pub fn kind(to: SocketAddr, bytes: &[u8]) -> Kind {
    if matches!(Place::of(to), Some(Place::Client(_))) {
        return Kind::Reply;
    }
    if bytes.starts_with(&GOSSIP_MAGIC) {
        return Kind::Other;
    }
    if !bytes.starts_with(&PEER_MAGIC) {
        return Kind::Request;
    }
    match frames(bytes).next().and_then(glance) {
        Some((_, Message::Forward { .. })) => Kind::Forward,
        Some((_, Message::Write { .. })) => Kind::Write,
        Some((_, Message::Stored { .. })) => Kind::Stored,
        Some((_, Message::Read { .. })) => Kind::Read,
        Some((_, Message::ReadHit { .. })) => Kind::ReadHit,
        Some((1.., Message::Pong)) => Kind::Answered,
        _ => Kind::Other,
    }
}

/// The number of a place in the trace's hash.
#[must_use]
pub fn number(place: Option<Place>) -> u64 {
    match place {
        Some(Place::Node(number)) => number as u64,
        Some(Place::Client(number)) => 1 << 32 | number as u64,
        None => u64::MAX,
    }
}

/// A place by its short name: `n0` or `c0`.
#[must_use]
pub fn name(address: SocketAddr) -> String {
    match Place::of(address) {
        Some(Place::Node(number)) => format!("n{number}"),
        Some(Place::Client(number)) => format!("c{number}:{}", address.port()),
        None => address.to_string(),
    }
}

/// One datagram in words.
#[must_use]
pub fn datagram(from: SocketAddr, to: SocketAddr, bytes: &[u8]) -> String {
    let mut line = format!("{} -> {}: ", name(from), name(to));
    let to_client = matches!(Place::of(to), Some(Place::Client(_)));
    let result = if bytes.starts_with(&GOSSIP_MAGIC) {
        write!(line, "gossip, {} bytes", bytes.len())
    } else if bytes.starts_with(&PEER_MAGIC) {
        frames(bytes).enumerate().try_for_each(|(number, bytes)| {
            line += if number == 0 { "" } else { " + " };
            frame(&mut line, bytes)
        })
    } else if to_client {
        write!(line, "answer, {} bytes, {}", bytes.len(), bytes.escape_ascii())
    } else {
        write!(line, "{}", request(bytes))
    };
    result.expect("writing to a string cannot fail");
    line.truncate(line.char_indices().nth(400).map_or(line.len(), |(at, _)| at));
    line
}

fn frame(line: &mut String, bytes: &[u8]) -> std::fmt::Result {
    let message = glance(bytes);
    if let Some((answered @ 1.., _)) = message {
        write!(line, "{answered} answered; ")?;
    }
    match message.map(|(_, message)| message) {
        Some(Message::Forward { client, hops, datagram, .. }) => {
            write!(line, "forward (hop {hops}) for {}: {}", name(client.address), request(datagram))
        }
        Some(Message::Reply { client, datagram, .. }) => {
            write!(line, "reply for {}, {} bytes", name(client), datagram.len())
        }
        Some(message) => write!(line, "{message:?}"),
        None => write!(line, "damaged frame"),
    }
}

fn request(bytes: &[u8]) -> String {
    match wire::decode_request(bytes, Accept::Auto) {
        Ok(request) => format!("{:?} {:?}", request.id, request.operation),
        Err(rejected) => format!("{rejected:?}"),
    }
}
