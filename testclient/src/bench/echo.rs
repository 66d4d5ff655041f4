//! The yardstick: a server that sends every datagram back, in batches, and does nothing else.
//!
//! One thread, one `recvmmsg` of up to 64 datagrams, one `sendmmsg`; no segmentation, no parsing. What a
//! key-value server on UDP can reach is measured against this. It runs as a process of its own, so that its
//! processor time can be told from the generator's. Deliberately not here: anything that would make it
//! faster than a plain loop of two system calls.

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{MsgFlags, SockaddrIn};

use crate::sockets::{self, Inbox, Outbox};

/// Longest datagram that is sent back whole.
const SLOT_BYTES: usize = 16 << 10;
/// How often it looks whether the process that started it is still there.
const PARENT_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Serves until the parent process is gone.
///
/// # Errors
/// One sentence, when the port cannot be had or receiving fails.
pub fn serve(port: u16) -> Result<bool, String> {
    let opened = sockets::open(port).map_err(|error| format!("echo: port {port}: {error}"))?;
    let socket = opened.socket;
    // The time-out applies to the first datagram of a batch; the others are taken without waiting.
    socket.set_read_timeout(Some(PARENT_CHECK_INTERVAL)).map_err(|error| format!("echo: {error}"))?;
    let parent = std::os::unix::process::parent_id();
    let mut inbox = Inbox::new(SLOT_BYTES);
    let mut outbox = Outbox::new();
    loop {
        match echo_batch(&socket, &mut inbox, &mut outbox) {
            Ok(0) if std::os::unix::process::parent_id() != parent => return Ok(true),
            Ok(_) => {}
            // A client that has gone makes its last replies fail; that is no reason to stop.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(format!("echo: {error}")),
        }
    }
}

fn echo_batch(
    socket: &impl AsRawFd,
    inbox: &mut Inbox<SockaddrIn>,
    outbox: &mut Outbox<SockaddrIn>,
) -> io::Result<usize> {
    let count = inbox.receive(socket.as_raw_fd(), MsgFlags::MSG_WAITFORONE)?;
    let mut addresses = [None; sockets::BATCH];
    let mut parts = [[IoSlice::new(&[])]; sockets::BATCH];
    for (slot, (datagram, from)) in inbox.datagrams().enumerate() {
        (parts[slot], addresses[slot]) = ([IoSlice::new(datagram)], from);
    }
    outbox.send_all(socket.as_raw_fd(), &parts[..count], &addresses[..count])?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrives_is_sent_back_to_whom_it_came_from() {
        let server = sockets::open(0).unwrap().socket;
        let clients = [sockets::open(0).unwrap().socket, sockets::open(0).unwrap().socket];
        for (index, client) in clients.iter().enumerate() {
            client.connect(server.local_addr().unwrap()).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            client.send(&[index as u8; 10_051]).unwrap();
        }
        let (mut inbox, mut outbox) = (Inbox::new(SLOT_BYTES), Outbox::new());
        let mut echoed = 0;
        while echoed < clients.len() {
            echoed += echo_batch(&server, &mut inbox, &mut outbox).unwrap();
        }
        for (index, client) in clients.iter().enumerate() {
            let mut buffer = [9; SLOT_BYTES];
            assert_eq!(client.recv(&mut buffer).unwrap(), 10_051);
            assert_eq!(buffer[..10_051], [index as u8; 10_051]);
        }
    }
}
