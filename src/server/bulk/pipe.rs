//! One TCP connection with a conversation on it: reads what the conversation wants, writes what it has
//! said.
//!
//! Nothing here blocks. What is written is kept only until the kernel has taken it, and reading takes
//! no more than the next thing needs, so a side that stops reading leaves the rest to the kernel, whose
//! flow control stops the sender.

use super::{End, Tools};
use crate::metrics::Metric;
use crate::peer::bulk::{Conversation, Fault, Heard};
use crate::time::Instant;
use mio::net::TcpStream;
use mio::{Interest, Token};
use std::io::{ErrorKind, Read, Write};

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Forged => Self::Forged,
            Fault::TooLarge => Self::TooLarge,
        }
    }
}

/// A connection.
pub(super) struct Pipe {
    stream: TcpStream,
    talk: Conversation,
    out: Vec<u8>,
    written_bytes: usize,
    /// When what is going on must be over.
    pub(super) deadline: Instant,
}

impl Pipe {
    /// Takes a connection up; `None` when the system cannot watch it.
    pub(super) fn open(
        mut stream: TcpStream,
        talk: Conversation,
        token: Token,
        deadline: Instant,
        tools: &Tools,
    ) -> Option<Self> {
        // Requests are small and someone waits for each; if the system refuses, they are a bit late.
        let _ = stream.set_nodelay(true);
        tools.registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE).ok()?;
        Some(Self { stream, talk, out: Vec::new(), written_bytes: 0, deadline })
    }

    /// Whether a connection that was begun is there.
    pub(super) fn is_connected(&self) -> Result<bool, End> {
        if !matches!(self.stream.take_error(), Ok(None)) {
            return Err(End::Closed);
        }
        match self.stream.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(_) => Err(End::Closed),
        }
    }

    /// Says hello.
    pub(super) fn hello(&mut self) {
        self.out.extend_from_slice(&self.talk.hello());
    }

    /// Says what is due after the other side's hello.
    pub(super) fn greet(&mut self) {
        self.talk.greet(&mut self.out);
    }

    /// Says a frame.
    pub(super) fn say(&mut self, body: &[u8]) -> Result<(), End> {
        Ok(self.talk.seal(body, &mut self.out)?)
    }

    /// The conversation.
    pub(super) fn talk(&mut self) -> &mut Conversation {
        &mut self.talk
    }

    /// Writes what was said; returns whether that is all.
    pub(super) fn write(&mut self, tools: &Tools) -> Result<bool, End> {
        while self.written_bytes < self.out.len() {
            match self.stream.write(&self.out[self.written_bytes..]) {
                Ok(0) => return Err(End::Closed),
                Ok(bytes) => {
                    self.written_bytes += bytes;
                    tools.count(Metric::BulkBytesOut, bytes);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(End::Closed),
            }
        }
        self.out = Vec::new();
        self.written_bytes = 0;
        Ok(true)
    }

    /// Reads a piece; `None` when nothing is there.
    pub(super) fn read(&mut self, tools: &mut Tools) -> Result<Option<Heard>, End> {
        let wanted = self.talk.wanted().min(tools.scratch.len());
        loop {
            match self.stream.read(&mut tools.scratch[..wanted]) {
                Ok(0) => return Err(End::Closed),
                Ok(bytes) => {
                    tools.count(Metric::BulkBytesIn, bytes);
                    return Ok(Some(self.talk.feed(&tools.scratch[..bytes])?));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(End::Closed),
            }
        }
    }
}
