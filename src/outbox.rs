//! What the core wants done: datagrams to send and counts to keep.
//!
//! An [`Outbox`] belongs to one thread (or one simulated node). The core pushes, the driver sends
//! what is in it in one batch per [`Lane`] and clears it. All bytes sit in one buffer that is reused,
//! so a request allocates nothing. Sending is not here.

use crate::ids::MemberId;
use crate::metrics::{Metric, Sheet};
use crate::time::Instant;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

/// One received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Who sent it.
    pub from: SocketAddr,
    /// When it reached this machine (the kernel's time stamp), which may be long before it is handled.
    pub received_at: Instant,
    /// Its payload.
    pub bytes: &'a [u8],
}

/// Which of a worker's own send sockets a datagram leaves by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Replies to clients; leaves with the service port as source.
    Client,
    /// Reads, writes, acknowledgements and hints between members.
    Replication,
    /// Requests passed on to another member, and replies passed back.
    Forwarding,
    /// Membership.
    Gossip,
}

impl Lane {
    /// All lanes, in the order of their sockets.
    pub const ALL: [Self; 4] = [Self::Client, Self::Replication, Self::Forwarding, Self::Gossip];
}

/// One datagram to send; its bytes are [`Outbox::bytes`] of it.
#[derive(Clone, Debug)]
pub struct Send {
    /// The socket it leaves by.
    pub lane: Lane,
    /// Where it goes.
    pub to: SocketAddr,
    range: Range<usize>,
}

/// A request to a member by the bulk transport. It gets exactly one outcome, later:
/// [`crate::control::Control::on_bulk`] with its ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkAsk {
    /// Where the member listens.
    pub to: SocketAddr,
    /// Which member it must prove to be.
    pub member: MemberId,
    /// The asker's name for this request.
    pub ticket: u64,
    /// What is asked, at most [`crate::peer::bulk::FRAME_BYTES_MAX`] bytes.
    pub request: Vec<u8>,
}

/// Datagrams to send and counts to keep, of one thread.
#[derive(Debug)]
pub struct Outbox {
    buffer: Vec<u8>,
    sends: Vec<Send>,
    /// Lent out for values on their way from the engine into a message.
    scratch: Vec<u8>,
    asks: Vec<BulkAsk>,
    sheet: Arc<Sheet>,
    exit: bool,
}

impl Outbox {
    /// An empty outbox that counts on `sheet`.
    #[must_use]
    pub fn new(sheet: Arc<Sheet>) -> Self {
        Self {
            buffer: Vec::with_capacity(64 * 1024),
            sends: Vec::with_capacity(128),
            scratch: Vec::new(),
            asks: Vec::new(),
            sheet,
            exit: false,
        }
    }

    /// Adds a datagram whose bytes `write` appends to the buffer it is given (which may already hold
    /// other datagrams: append only).
    pub fn send(&mut self, lane: Lane, to: SocketAddr, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.buffer.len();
        write(&mut self.buffer);
        self.sends.push(Send { lane, to, range: start..self.buffer.len() });
    }

    /// The datagrams to send, in the order they were pushed.
    #[must_use]
    pub fn sends(&self) -> &[Send] {
        &self.sends
    }

    /// The bytes of one of [`Outbox::sends`].
    #[must_use]
    pub fn bytes(&self, send: &Send) -> &[u8] {
        &self.buffer[send.range.clone()]
    }

    /// Whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    /// Forgets the datagrams, keeps the memory for the next ones (up to a bound: one large list of
    /// large values must not be paid for ever).
    pub fn clear(&mut self) {
        const KEPT_BYTES_MAX: usize = 1024 * 1024;
        self.buffer.clear();
        self.buffer.shrink_to(KEPT_BYTES_MAX);
        self.sends.clear();
    }

    /// Lends an empty buffer that is [given back](Self::give_back) when its contents are sent, so that a
    /// request needs no memory of its own. Whoever comes while it is lent gets a new one.
    #[must_use]
    pub fn lend(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.scratch)
    }

    /// Takes back what was lent.
    pub fn give_back(&mut self, mut scratch: Vec<u8>) {
        scratch.clear();
        self.scratch = scratch;
    }

    /// Asks a member by the bulk transport. Only the control plane does; nobody looks for it in the
    /// outbox of another thread.
    pub fn ask_bulk(&mut self, to: SocketAddr, member: MemberId, ticket: u64, request: &[u8]) {
        self.asks.push(BulkAsk { to, member, ticket, request: request.to_vec() });
    }

    /// Takes out what is to be asked. [`Outbox::clear`] leaves it alone, so it does not matter which
    /// comes first.
    pub fn bulk_asks(&mut self) -> Vec<BulkAsk> {
        std::mem::take(&mut self.asks)
    }

    /// Counts one event.
    pub fn count(&self, metric: Metric) {
        self.sheet.add(metric, 1);
    }

    /// Counts `amount` events or units.
    pub fn count_many(&self, metric: Metric, amount: u64) {
        self.sheet.add(metric, amount);
    }

    /// Asks the driver to end this process once the outbox is sent (the SHUTDOWN command).
    pub fn request_exit(&mut self) {
        self.exit = true;
    }

    /// Whether the core has asked for the end of this process.
    #[must_use]
    pub fn wants_exit(&self) -> bool {
        self.exit
    }
}
