//! The load engine: many requests under way in one thread, from a schedule (*open* loop) or from logical clients that
//! ask when they are answered (*closed* loop).
//!
//! Every request has a slot, and a running number that never comes again; both stand in its id ([`ids`]), so a reply
//! finds its request by an index. What a thread does is [`engine`]: take replies, look at [`deadlines`], start what is
//! due by the [`schedule`], send it all in batches ([`ports`]), and sleep only if there is nothing to do. What to ask
//! and what to make of the answers is the [`Workload`]'s; what was counted is a [`crate::tally::Tally`]. [`phase`] runs
//! one engine in each of several threads and makes a [`crate::result::Phase`] of them; [`search`] looks for the rate
//! at which servers are overwhelmed.
//!
//! Deliberately not here: anything that knows what a value should be (`workload`), and thresholds.

mod deadlines;
mod engine;
mod ids;
pub mod phase;
mod plan;
mod ports;
mod punctual;
mod schedule;
pub mod search;
mod sheet;
mod slot;

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use violet_client::{Key, Response, Status};

pub use engine::run;
pub use phase::{Glimpse, Observer, run_phase};
pub use plan::{Conduct, Pace, PhasePlan, Plan, Work};

/// What is asked of the kernel for each receive buffer, in bytes; it may grant less.
pub const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// One request that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Index of the server to ask.
    pub server: usize,
    /// What to ask.
    pub ask: Ask,
}

/// An operation without the bytes of its value.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    /// Store the value that the workload wrote.
    Put {
        /// Where.
        key: Key,
        /// The number stored with the value; not sent in the raw format.
        version: i32,
    },
    /// Read.
    Get {
        /// Which key.
        key: Key,
    },
    /// Forget a key.
    Remove {
        /// Which key.
        key: Key,
    },
    /// Forget everything that the server holds.
    Wipeout,
    /// Ask for a sign of life: ISALIVE, or command 99 in the raw format.
    IsAlive,
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
pub enum End<'a> {
    /// With this reply.
    Answered(Response<'a>),
    /// With nothing, after all retries.
    TimedOut,
}

impl End<'_> {
    /// The status of the reply, if there was one.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Answered(response) => Some(response.status),
            Self::TimedOut => None,
        }
    }

    /// What it counts as if nothing is known but its status: success and "no such key" are good.
    pub fn verdict(&self) -> Verdict {
        match self.status() {
            Some(Status::Success | Status::NoSuchKey) => Verdict::Good,
            Some(_) | None => Verdict::Refused,
        }
    }
}

/// What an answer counts as. Of a request that was not answered it is not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// The server would not or could not.
    Refused,
    /// Something that cannot be right.
    Wrong,
}

/// What the clients of one thread do. In a closed loop `client` is the logical client; in an open loop it is a place
/// for one request under way, and places are used again, the latest first.
pub trait Workload {
    /// The next request; a PUT's value goes into `value`, which comes empty. `None` ends the client, and an open loop.
    fn next(&mut self, client: usize, value: &mut Vec<u8>) -> Option<Call>;
    /// The request has ended.
    fn on_end(&mut self, client: usize, end: End<'_>) -> Verdict;
}

/// Progress that other threads may look at, and their way to end a run early.
#[derive(Debug, Default)]
pub struct Signals {
    /// Answers so far.
    pub answers: AtomicU64,
    /// Set to make clients start nothing new.
    pub stop: AtomicBool,
}

/// A time of one run as the engine counts it: nanoseconds from its start.
pub(crate) type Nanos = u64;

/// A moment that never comes.
pub(crate) const NEVER: Nanos = Nanos::MAX;

/// Nanoseconds of a duration, as many as fit: 584 years.
pub(crate) fn nanos(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).unwrap_or(NEVER)
}
