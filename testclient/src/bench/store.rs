//! The least server that a load with verification can be made on: one thread, batches in and out, a table of values.
//!
//! It speaks the raw layout, for PUT and GET only, and promises nothing else: no reply cache, no limit. It runs as a
//! process of its own, on a processor of its own, so that what is measured is who asks it.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::process::parent_id;
use std::time::Duration;

use clap::Args;
use nix::sys::socket::{MsgFlags, SockaddrIn};
use violet_client::wire::{Accept, decode_request, encode_response};
use violet_client::{Key, Operation, Response, Status, Value};

use crate::sockets::{self, BATCH, Inbox, Outbox};

/// Longest datagram that is taken whole.
const SLOT_BYTES: usize = 16 << 10;
/// How often it looks whether the process that started it is still there.
const PARENT_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Options of the store.
#[derive(Clone, Copy, Debug, Args)]
pub struct StoreArguments {
    /// The port on loopback.
    pub port: u16,
}

/// Serves until the parent process is gone.
///
/// # Errors
/// One sentence, when the port cannot be had or receiving fails.
pub fn serve(port: u16) -> Result<bool, String> {
    let socket = sockets::open(port).map_err(|error| format!("store: port {port}: {error}"))?.socket;
    // The time-out applies to the first datagram of a batch; the others are taken without waiting.
    socket.set_read_timeout(Some(PARENT_CHECK_INTERVAL)).map_err(|error| format!("store: {error}"))?;
    let parent = parent_id();
    let (mut inbox, mut outbox) = (Inbox::new(SLOT_BYTES + 64), Outbox::new());
    let mut store = Store::default();
    loop {
        match store.serve_batch(&socket, &mut inbox, &mut outbox) {
            Ok(0) if parent_id() != parent => return Ok(true),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(format!("store: {error}")),
        }
    }
}

#[derive(Default)]
struct Store {
    values: HashMap<Key, Vec<u8>>,
    /// Replies of a batch, one behind the other, and where each ends.
    replies: Vec<u8>,
    ends: Vec<usize>,
}

impl Store {
    fn serve_batch(
        &mut self,
        socket: &impl AsRawFd,
        inbox: &mut Inbox<SockaddrIn>,
        outbox: &mut Outbox<SockaddrIn>,
    ) -> io::Result<usize> {
        let received = inbox.receive(socket.as_raw_fd(), MsgFlags::MSG_WAITFORONE)?;
        self.replies.clear();
        self.ends.clear();
        let mut addresses = [None; BATCH];
        for (datagram, from) in inbox.datagrams() {
            if self.answer(datagram) {
                addresses[self.ends.len()] = from;
                self.ends.push(self.replies.len());
            }
        }
        let mut parts = [[IoSlice::new(&[])]; BATCH];
        let mut start = 0;
        for (part, &end) in parts.iter_mut().zip(&self.ends) {
            *part = [IoSlice::new(&self.replies[start..end])];
            start = end;
        }
        let count = self.ends.len();
        outbox.send_all(socket.as_raw_fd(), &parts[..count], &addresses[..count])?;
        Ok(received)
    }

    /// Appends the reply; whether there is one.
    fn answer(&mut self, datagram: &[u8]) -> bool {
        let Ok(request) = decode_request(datagram, Accept::Raw) else { return false };
        let mut response = Response::of_status(request.id, Status::Success);
        match request.operation {
            Operation::Put { key, value } => {
                let stored = self.values.entry(key).or_default();
                stored.clear();
                stored.extend_from_slice(value.bytes);
            }
            Operation::Get { key } => match self.values.get(&key) {
                Some(bytes) => response.value = Some(Value { bytes, version: 0 }),
                None => response.status = Status::NoSuchKey,
            },
            _ => response.status = Status::UnknownCommand,
        }
        encode_response(request.format, &response, &mut self.replies);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use violet_client::wire::{decode_response, encode_request};
    use violet_client::{Format, MessageId, Request};

    #[test]
    fn it_stores_and_finds() {
        let mut store = Store::default();
        let key = Key::parse(b"k").unwrap();
        let value = Value { bytes: b"value", version: 0 };
        let mut ask = |operation: Operation<'_>| {
            let mut datagram = Vec::new();
            let request = Request { format: Format::Raw, id: MessageId([0x80; 16]), operation };
            encode_request(&request, &mut datagram);
            store.replies.clear();
            assert!(store.answer(&datagram));
            let response = decode_response(Format::Raw, operation.command(), &store.replies).unwrap();
            (response.status, response.value.map(|value| value.bytes.to_vec()))
        };
        assert_eq!(ask(Operation::Get { key }), (Status::NoSuchKey, None));
        assert_eq!(ask(Operation::Put { key, value }), (Status::Success, None));
        assert_eq!(ask(Operation::Get { key }), (Status::Success, Some(b"value".to_vec())));
    }
}
