//! UDP sockets for making load, on Linux: large buffers that are checked, batches in and out, bursts in one message.
//!
//! [`Inbox`] takes up to [`BATCH`] datagrams with one `recvmmsg`. [`Outbox`] sends runs of datagrams of
//! one length, either with `sendmmsg`, each a message of its own, or packed with `UDP_SEGMENT`: one
//! message that the kernel cuts, which costs the sender a quarter. The receiver sees no difference.
//! Deliberately not here: `UDP_GRO`. Ordinary clients do not have it, and with it a server that sends
//! segments would be measured at what only this generator can receive.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, MsgFlags, MultiHeaders, SockaddrLike, recvmmsg, sendmmsg, sendmsg, setsockopt, sockopt,
};
use socket2::{Domain, Socket, Type};

/// Most datagrams in one call.
pub const BATCH: usize = 64;
/// What is asked of the kernel for each buffer, in bytes: 10,082 datagrams of 100 bytes, 504 of 10 KB.
pub const BUFFER_BYTES: usize = 4 << 20;
/// Most bytes in one message, its headers not counted: 65,507 with room for them.
const MESSAGE_BYTES_MAX: usize = 65_000;

/// A socket, and the receive buffer that the kernel granted it, in payload terms (the kernel itself reports
/// double).
#[derive(Debug)]
pub struct Opened {
    /// The socket; it blocks.
    pub socket: UdpSocket,
    /// Bytes of receive buffer.
    pub receive_buffer_bytes: usize,
}

/// Opens a socket on a port of loopback, 0 for any, with buffers of [`BUFFER_BYTES`] if they can be had.
///
/// # Errors
/// As the system says, typically that the port is taken.
pub fn open(port: u16) -> io::Result<Opened> {
    open_at(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// The same on any address of this machine.
///
/// # Errors
/// As [`open`].
pub fn open_at(address: IpAddr, port: u16) -> io::Result<Opened> {
    let domain = if address.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::DGRAM, None)?;
    socket.set_recv_buffer_size(BUFFER_BYTES)?;
    socket.set_send_buffer_size(BUFFER_BYTES)?;
    if socket.recv_buffer_size()? / 2 < BUFFER_BYTES {
        // Only the privileged may exceed the system's limit; for others the smaller one is reported.
        let _ = setsockopt(&socket, sockopt::RcvBufForce, &BUFFER_BYTES);
    }
    socket.bind(&SocketAddr::from((address, port)).into())?;
    let receive_buffer_bytes = socket.recv_buffer_size()? / 2;
    Ok(Opened { socket: socket.into(), receive_buffer_bytes })
}

/// Memory for one batch of datagrams, used again and again. `S` is the kind of address to note.
pub struct Inbox<S> {
    memory: Vec<u8>,
    slot_bytes: usize,
    headers: MultiHeaders<S>,
    received: Vec<(usize, Option<S>)>,
}

impl<S: SockaddrLike + Copy> Inbox<S> {
    /// Room for datagrams of up to `slot_bytes`; longer ones are cut, and then wrong in their length.
    pub fn new(slot_bytes: usize) -> Self {
        Self {
            memory: vec![0; BATCH * slot_bytes],
            slot_bytes,
            headers: MultiHeaders::preallocate(BATCH, None),
            received: Vec::with_capacity(BATCH),
        }
    }

    /// Replaces the contents by what has arrived, and says how many datagrams that is.
    ///
    /// # Errors
    /// As `recvmmsg`; nothing waiting is no error but zero.
    pub fn receive(&mut self, socket: RawFd, flags: MsgFlags) -> io::Result<usize> {
        self.received.clear();
        let mut slots = self.memory.chunks_exact_mut(self.slot_bytes);
        let mut parts: [_; BATCH] = std::array::from_fn(|_| {
            [IoSliceMut::new(slots.next().expect("the memory holds this many slots"))]
        });
        match recvmmsg(socket, &mut self.headers, &mut parts, flags, None) {
            Ok(results) => self.received.extend(results.map(|message| (message.bytes, message.address))),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.received.len())
    }

    /// The datagrams that [`Self::receive`] got, with their senders.
    pub fn datagrams(&self) -> impl Iterator<Item = (&[u8], Option<S>)> {
        let slots = self.memory.chunks_exact(self.slot_bytes);
        slots.zip(&self.received).map(|(slot, &(bytes, from))| (&slot[..bytes], from))
    }
}

/// How a run of datagrams leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Each datagram is a message of its own, up to [`BATCH`] of them in a call.
    Single,
    /// Runs of datagrams of one length are one message each.
    Segments,
}

/// Sends runs of datagrams; its headers are used again and again.
pub struct Outbox<S> {
    headers: MultiHeaders<S>,
    /// With room to say how long the segments of a message are.
    packed_headers: MultiHeaders<S>,
}

impl<S: SockaddrLike + Copy> Outbox<S> {
    /// An outbox for any socket.
    pub fn new() -> Self {
        Self {
            headers: MultiHeaders::preallocate(BATCH, None),
            packed_headers: MultiHeaders::preallocate(BATCH, Some(cmsg_space!(u16))),
        }
    }

    /// Sends messages of several datagrams of `datagram_bytes` each, every message to its address, and says how many
    /// the kernel took before it failed.
    ///
    /// # Errors
    /// As `sendmmsg`, for the first message.
    pub fn send_packed<'a>(
        &'a mut self,
        socket: RawFd,
        messages: &'a [&'a [IoSlice<'a>]],
        addresses: &'a [Option<S>],
        datagram_bytes: u16,
    ) -> io::Result<usize> {
        assert!(messages.len() <= BATCH && messages.len() == addresses.len(), "the caller sends one batch");
        let segments = [ControlMessage::UdpGsoSegments(&datagram_bytes)];
        let headers = &mut self.packed_headers;
        Ok(sendmmsg(socket, headers, messages, addresses, segments, MsgFlags::empty())?.count())
    }

    /// Sends datagrams, each to its address, and says how many the kernel took before it failed.
    ///
    /// # Errors
    /// As `sendmmsg`, for the first datagram.
    pub fn send_some<'a>(
        &'a mut self,
        socket: RawFd,
        messages: &'a [&'a [IoSlice<'a>]],
        addresses: &'a [Option<S>],
    ) -> io::Result<usize> {
        assert!(messages.len() <= BATCH && messages.len() == addresses.len(), "the caller sends one batch");
        Ok(sendmmsg(socket, &mut self.headers, messages, addresses, [], MsgFlags::empty())?.count())
    }

    /// Sends up to [`BATCH`] datagrams, each to its address; none on a connected socket.
    ///
    /// # Errors
    /// As `sendmmsg`.
    pub fn send_all<'a>(
        &'a mut self,
        socket: RawFd,
        parts: &'a [[IoSlice<'a>; 1]],
        addresses: &'a [Option<S>],
    ) -> io::Result<()> {
        assert!(parts.len() <= BATCH && parts.len() == addresses.len(), "the caller sends one batch");
        let mut done = 0;
        while done < parts.len() {
            let batch = sendmmsg(
                socket,
                &mut self.headers,
                &parts[done..],
                &addresses[done..],
                [],
                MsgFlags::empty(),
            );
            match batch {
                Ok(sent) => done += sent.count(),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// How many datagrams of this length one message takes.
pub fn segments_max(datagram_bytes: usize) -> usize {
    (MESSAGE_BYTES_MAX / datagram_bytes.max(1)).clamp(1, BATCH)
}

/// Whether this kernel cuts packed bursts: tried once, with two datagrams to a socket of our own.
pub fn can_pack() -> bool {
    let try_once = || -> io::Result<()> {
        let (from, to) = (open(0)?.socket, open(0)?.socket);
        from.connect(to.local_addr()?)?;
        send_segments(&from, &[0; 128], 64)
    };
    try_once().is_ok()
}

/// Sends a run of datagrams of `datagram_bytes` each on a connected socket.
///
/// # Errors
/// As the system says; `ConnectionRefused` when nobody listens any more.
pub fn send_run(
    outbox: &mut Outbox<()>,
    socket: &UdpSocket,
    run: &[u8],
    datagram_bytes: usize,
    packing: Packing,
) -> io::Result<()> {
    debug_assert_eq!(run.len() % datagram_bytes, 0, "a run holds whole datagrams");
    match packing {
        Packing::Single => {
            for batch in run.chunks(datagram_bytes * BATCH) {
                let parts: Vec<_> = batch.chunks(datagram_bytes).map(|part| [IoSlice::new(part)]).collect();
                outbox.send_all(socket.as_raw_fd(), &parts, &[None; BATCH][..parts.len()])?;
            }
        }
        Packing::Segments => {
            for message in run.chunks(datagram_bytes * segments_max(datagram_bytes)) {
                send_segments(socket, message, datagram_bytes)?;
            }
        }
    }
    Ok(())
}

fn send_segments(socket: &UdpSocket, message: &[u8], datagram_bytes: usize) -> io::Result<()> {
    if message.len() <= datagram_bytes {
        return socket.send(message).map(|_| ());
    }
    let segment_bytes = u16::try_from(datagram_bytes).map_err(io::Error::other)?;
    let segments = [ControlMessage::UdpGsoSegments(&segment_bytes)];
    loop {
        match sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(message)], &segments, MsgFlags::empty(), None)
        {
            Err(Errno::EINTR) => {}
            other => return other.map(|_| ()).map_err(Into::into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_hold_what_the_kernel_takes() {
        for (bytes, expected) in [(1, 64), (49, 64), (151, 64), (1_015, 64), (1_051, 61), (10_051, 6)] {
            assert_eq!(segments_max(bytes), expected, "{bytes}");
            assert!(segments_max(bytes) * bytes <= MESSAGE_BYTES_MAX);
        }
        assert_eq!(segments_max(65_507), 1, "a datagram that fills a message goes alone");
    }

    fn pair() -> (UdpSocket, UdpSocket) {
        let (from, to) = (open(0).unwrap().socket, open(0).unwrap().socket);
        from.connect(to.local_addr().unwrap()).unwrap();
        (from, to)
    }

    #[test]
    fn a_run_arrives_as_its_datagrams_packed_or_not() {
        for packing in [Packing::Single, Packing::Segments] {
            for (bytes, count) in [(49, 1), (49, 64), (49, 131), (1_051, 62), (10_051, 13)] {
                let (from, to) = pair();
                to.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
                let run: Vec<u8> = (0..count).flat_map(|index| vec![index as u8; bytes]).collect();
                send_run(&mut Outbox::new(), &from, &run, bytes, packing).unwrap();
                let mut inbox = Inbox::<()>::new(16_384);
                let mut seen = 0;
                while seen < count {
                    assert_ne!(inbox.receive(to.as_raw_fd(), MsgFlags::MSG_WAITFORONE).unwrap(), 0);
                    for (datagram, _) in inbox.datagrams() {
                        assert_eq!(datagram, vec![seen as u8; bytes], "{packing:?} {bytes} {seen}");
                        seen += 1;
                    }
                }
            }
        }
    }

    #[test]
    fn a_taken_port_is_an_error() {
        let first = open(0).unwrap();
        let taken = first.socket.local_addr().unwrap().port();
        assert_eq!(open(taken).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
