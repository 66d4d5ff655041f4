//! Receiving batches and sending outboxes, by the best means the system has.
//!
//! [`Receiver`] and [`Sender`] hide whether the batched system calls of `udp` or the plain ones of
//! `portable` do the work. Neither ever blocks, and neither lets an error of one datagram, or an echo
//! of an earlier one (ICMP), stop the others: what cannot be sent is counted, what cannot be received
//! is the network's affair.

use super::batch::Batch;
use super::clock::Clock;
use super::portable;
use super::sockets::{SendSockets, SingleUse};
#[cfg(target_os = "linux")]
use super::udp;
use crate::metrics::Metric;
use crate::outbox::{Lane, Outbox};
use mio::net::UdpSocket;
use std::io;

/// Errors in a row that receiving passes over before it gives the socket a rest.
const ERRORS_IN_A_ROW_MAX: usize = 16;

/// What one call has brought, besides the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Intake {
    /// Whether more datagrams may be waiting.
    pub(super) more: bool,
    /// Datagrams that the socket has lost since it was opened, if the kernel said so.
    pub(super) dropped: Option<u32>,
}

/// How datagrams are moved. Systems without batched calls do with the plain ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// One system call a datagram.
    Plain,
    /// One a batch.
    Batched,
    /// One a batch, and datagrams of one length between the same two addresses as one message. To
    /// receive so takes slots of [`super::batch::SLOT_BYTES`].
    Segmented,
}

/// Receives batches from one socket.
pub(super) struct Receiver {
    socket: UdpSocket,
    means: ReceiveMeans,
    /// The kernel's drop count as last seen.
    dropped_seen: u32,
}

enum ReceiveMeans {
    #[cfg(target_os = "linux")]
    Batched(udp::BatchReceiver),
    Plain,
}

impl Receiver {
    /// A receiver of batches with `slots` slots.
    pub(super) fn new(socket: UdpSocket, slots: usize, means: Means) -> Self {
        #[cfg(target_os = "linux")]
        if means == Means::Segmented {
            // An old kernel that knows nothing of it goes on handing over one datagram at a time.
            let _ = udp::ask_for_segments(&socket);
        }
        let means = match means {
            #[cfg(target_os = "linux")]
            Means::Batched | Means::Segmented => ReceiveMeans::Batched(udp::BatchReceiver::new(slots)),
            _ => ReceiveMeans::Plain,
        };
        Self { socket, means, dropped_seen: 0 }
    }

    /// The socket, for the poll.
    pub(super) fn socket_mut(&mut self) -> &mut UdpSocket {
        &mut self.socket
    }

    /// Fills an empty batch with what is waiting. Returns whether more may be waiting and how many
    /// datagrams the kernel has lost since the last call.
    pub(super) fn receive(&mut self, clock: &Clock, batch: &mut Batch) -> (bool, u64) {
        for _ in 0..ERRORS_IN_A_ROW_MAX {
            match self.try_receive(clock, batch) {
                Ok(intake) => return (intake.more, self.lost_since(intake)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return (false, 0),
                Err(_) => {}
            }
        }
        (false, 0)
    }

    fn try_receive(&mut self, clock: &Clock, batch: &mut Batch) -> io::Result<Intake> {
        match &mut self.means {
            #[cfg(target_os = "linux")]
            ReceiveMeans::Batched(receiver) => receiver.receive(&self.socket, clock, batch),
            ReceiveMeans::Plain => portable::receive(&self.socket, clock, batch),
        }
    }

    fn lost_since(&mut self, intake: Intake) -> u64 {
        let Some(dropped) = intake.dropped else { return 0 };
        let lost = dropped.wrapping_sub(self.dropped_seen);
        self.dropped_seen = dropped;
        u64::from(lost)
    }
}

/// Sends the outboxes of one thread by that thread's own sockets.
pub(super) struct Sender {
    sockets: SendSockets,
    means: SendMeans,
}

enum SendMeans {
    #[cfg(target_os = "linux")]
    Batched(udp::BatchSender),
    Plain,
}

impl Sender {
    pub(super) fn new(sockets: SendSockets, means: Means) -> Self {
        #[cfg(target_os = "linux")]
        let batched = |segmentation| SendMeans::Batched(udp::BatchSender::new(segmentation));
        let means = match means {
            #[cfg(target_os = "linux")]
            Means::Segmented => batched(udp::Segmentation::ON),
            #[cfg(target_os = "linux")]
            Means::Batched => batched(udp::Segmentation::OFF),
            _ => SendMeans::Plain,
        };
        Self { sockets, means }
    }

    /// Sends everything and clears the outbox. Call it while holding no lock.
    pub(super) fn flush(&mut self, outbox: &mut Outbox) {
        if outbox.is_empty() {
            return;
        }
        let mut sent = Sent::default();
        for lane in Lane::ALL {
            sent += self.send_lane(lane, outbox);
        }
        sent.count(outbox);
        outbox.clear();
    }

    fn send_lane(&mut self, lane: Lane, outbox: &Outbox) -> Sent {
        // Who has nothing to send does not queue for a turn.
        if outbox.sends().iter().all(|send| send.lane != lane) {
            return Sent::default();
        }
        if let Some(single_use) = self.sockets.single_use(lane) {
            return send_each_by_its_own(single_use, lane, outbox);
        }
        let _turn = self.sockets.turn(lane);
        let socket = self.sockets.of(lane);
        match &mut self.means {
            #[cfg(target_os = "linux")]
            SendMeans::Batched(sender) => sender.send_lane(socket, lane, outbox),
            SendMeans::Plain => portable::send_lane(socket, lane, outbox),
        }
    }
}

/// Sends every datagram of a lane by a socket that is opened for it and closed behind it.
fn send_each_by_its_own(single_use: SingleUse, lane: Lane, outbox: &Outbox) -> Sent {
    let mut sent = Sent::default();
    for send in outbox.sends().iter().filter(|send| send.lane == lane) {
        let bytes = outbox.bytes(send);
        match single_use.open().map(|socket| socket.send_to(bytes, send.to)) {
            Ok(Ok(_)) => {
                sent.datagrams += 1;
                sent.bytes += bytes.len() as u64;
            }
            Ok(Err(_)) | Err(_) => sent.failed += 1,
        }
    }
    sent
}

/// What became of some datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
    pub(super) failed: u64,
}

impl Sent {
    fn count(self, outbox: &Outbox) {
        outbox.count_many(Metric::SendDatagrams, self.datagrams);
        outbox.count_many(Metric::SendBytes, self.bytes);
        outbox.count_many(Metric::SendsFailed, self.failed);
    }
}

impl std::ops::AddAssign for Sent {
    fn add_assign(&mut self, other: Self) {
        self.datagrams += other.datagrams;
        self.bytes += other.bytes;
        self.failed += other.failed;
    }
}
