//! Receiving and sending with nothing but plain sockets: for systems without batched calls, and on
//! Linux with `lanes = shared`.
//!
//! A datagram's arrival is the moment it is read, since there are no kernel time stamps; and losses
//! in the kernel stay unseen.

use super::batch::{Batch, Received};
use super::clock::Clock;
use super::transport::{Intake, Sent};
use crate::outbox::{Lane, Outbox};
use mio::net::UdpSocket;
use std::io;

/// Fills an empty batch with what is waiting.
///
/// # Errors
/// `WouldBlock` when nothing is waiting, otherwise what reading the first datagram met.
pub(super) fn receive(socket: &UdpSocket, clock: &Clock, batch: &mut Batch) -> io::Result<Intake> {
    for slot in 0..batch.slots() {
        let memory = batch.slot_mut(slot);
        let slot_bytes = memory.len();
        match socket.recv_from(memory) {
            Ok((bytes, from)) => {
                // A full slot is the only sign of a cut datagram; no legal one fills it.
                let truncated = bytes == slot_bytes;
                batch.push(Received { from, received_at: clock.now(), slot, offset: 0, bytes, truncated });
            }
            Err(error) if slot == 0 => return Err(error),
            // An error other than "nothing there" may hide more datagrams: have us called again.
            Err(error) => {
                return Ok(Intake { more: error.kind() != io::ErrorKind::WouldBlock, dropped: None });
            }
        }
    }
    Ok(Intake { more: true, dropped: None })
}

/// Sends all datagrams of one lane, in their order.
pub(super) fn send_lane(socket: &std::net::UdpSocket, lane: Lane, outbox: &Outbox) -> Sent {
    let mut sent = Sent::default();
    for send in outbox.sends().iter().filter(|send| send.lane == lane) {
        let bytes = outbox.bytes(send);
        // Once more on an error: a full buffer may be empty a moment later, and a refused connection
        // is the echo of an earlier datagram.
        match socket.send_to(bytes, send.to).or_else(|_| socket.send_to(bytes, send.to)) {
            Ok(_) => {
                sent.datagrams += 1;
                sent.bytes += bytes.len() as u64;
            }
            Err(_) => sent.failed += 1,
        }
    }
    sent
}
