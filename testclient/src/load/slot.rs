//! What the engine keeps of a request under way, and how it remembers those that have ended.

use super::{NEVER, Nanos};
use crate::tally::Kind;

/// Where a slot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Between requests, or finished for good.
    Idle,
    /// Waiting for a reply.
    Waiting,
    /// Told to come back later.
    Paused,
    /// Answered, and not yet to ask again.
    Resting,
}

/// A place for one request under way, and its datagram for the retries.
pub struct Slot {
    /// The request's running number.
    pub number: u64,
    /// Where it stands.
    pub state: State,
    /// What is asked, for counting.
    pub kind: Kind,
    /// The same as on the wire.
    pub command: u32,
    /// Index of the server that is asked.
    pub server: u32,
    /// The socket that it leaves by.
    pub port: u32,
    /// Attempts that left or are about to.
    pub attempts: u32,
    /// How often it was asked again after "overloaded".
    pub restarts: u32,
    /// Whether it counts, as those of the warm-up do not.
    pub is_counted: bool,
    /// When it was to leave.
    pub due: Nanos,
    /// When its first datagram left; never, before that.
    pub first_sent: Nanos,
    /// When the latest did.
    pub last_sent: Nanos,
    /// Of the value that it carries.
    pub value_bytes: u32,
    /// As it leaves.
    pub datagram: Vec<u8>,
}

/// How a request ended, as far as a surplus reply needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fate {
    /// Not at all yet.
    Open,
    /// With an answer to its only datagram.
    AnsweredAtOnce,
    /// With an answer after it was sent again.
    AnsweredAfterRetry,
    /// Without.
    GivenUp,
}

impl Slot {
    /// An empty one that sends by this socket.
    pub fn new(port: usize) -> Self {
        Self {
            number: 0,
            state: State::Idle,
            kind: Kind::Other,
            command: 0,
            server: 0,
            port: port as u32,
            attempts: 0,
            restarts: 0,
            is_counted: false,
            due: 0,
            first_sent: NEVER,
            last_sent: 0,
            value_bytes: 0,
            datagram: Vec::new(),
        }
    }
}
