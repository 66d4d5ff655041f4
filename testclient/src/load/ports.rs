//! The sockets of one engine: unconnected, because any replica may answer, with large buffers, in batches.
//!
//! On Linux a batch is one `recvmmsg` or `sendmmsg`, and datagrams of one length to one server, of which a load of GETs
//! has many, are packed into one message that the kernel cuts (`UDP_SEGMENT`). Packing is given up for good when the
//! kernel refuses it, and not tried for datagrams that may not fit a packet of the network. Elsewhere each datagram is
//! a call. Waiting is for a time in nanoseconds where the system can.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

#[cfg(target_os = "linux")]
pub use batched::Ports;
#[cfg(not(target_os = "linux"))]
pub use plain::Ports;

/// Datagrams that one receive takes, and that leave together.
pub const BATCH: usize = 64;

/// A datagram that is to leave, and the index of its server.
pub type Leaving<'a> = (&'a [u8], usize);

/// The address that a socket for these servers is bound to.
fn any_address(servers: &[SocketAddr]) -> IpAddr {
    match servers.first() {
        Some(server) if server.is_ipv6() => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    }
}

/// Bytes between two slots of a receive buffer: not a multiple of a page, or all slots would share a few lines of the
/// cache.
fn slot_bytes(reply_bytes_max: usize) -> usize {
    reply_bytes_max.next_multiple_of(128) + 64
}

#[cfg(target_os = "linux")]
mod batched {
    use std::io::IoSlice;
    use std::net::UdpSocket;
    use std::os::fd::{AsFd, AsRawFd};

    use nix::sys::socket::{MsgFlags, SockaddrStorage};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::{BATCH, Duration, Leaving, SocketAddr, any_address, io, slot_bytes};
    use crate::sockets::{self, Inbox, Outbox};

    /// Longest datagram that is packed where it may leave this machine: with its headers it fits any usual network.
    const PACKED_BYTES_MAX: usize = 1_200;
    /// Longest that is packed on loopback, whose packets are 64 KiB.
    const PACKED_BYTES_MAX_LOOPBACK: usize = 16_000;

    /// Sockets, and memory for one batch.
    pub struct Ports {
        sockets: Vec<UdpSocket>,
        receive_buffer_bytes: usize,
        inbox: Inbox<SockaddrStorage>,
        outbox: Outbox<SockaddrStorage>,
        addresses: Vec<SockaddrStorage>,
        /// Up to this length datagrams are packed; 0 = never.
        packed_bytes_max: Vec<usize>,
    }

    impl Ports {
        /// Opens `count` sockets that ask these servers.
        ///
        /// # Errors
        /// As the system says.
        pub fn open(count: usize, servers: &[SocketAddr], reply_bytes_max: usize) -> io::Result<Self> {
            let opened = (0..count).map(|_| sockets::open_at(any_address(servers), 0));
            let opened = opened.collect::<io::Result<Vec<_>>>()?;
            let packs = sockets::can_pack();
            let packed_bytes_max = |server: &SocketAddr| match (packs, server.ip().is_loopback()) {
                (false, _) => 0,
                (true, true) => PACKED_BYTES_MAX_LOOPBACK,
                (true, false) => PACKED_BYTES_MAX,
            };
            Ok(Self {
                receive_buffer_bytes: opened.iter().map(|one| one.receive_buffer_bytes).min().unwrap_or(0),
                sockets: opened.into_iter().map(|one| one.socket).collect(),
                inbox: Inbox::new(slot_bytes(reply_bytes_max)),
                outbox: Outbox::new(),
                addresses: servers.iter().map(|&server| server.into()).collect(),
                packed_bytes_max: servers.iter().map(packed_bytes_max).collect(),
            })
        }

        /// How many sockets there are.
        pub fn count(&self) -> usize {
            self.sockets.len()
        }

        /// Smallest receive buffer that the kernel granted.
        pub fn receive_buffer_bytes(&self) -> usize {
            self.receive_buffer_bytes
        }

        /// Takes what has come to a socket, up to a batch, without waiting; how many datagrams.
        ///
        /// # Errors
        /// As the system says, but for servers that are not there.
        pub fn receive(&mut self, port: usize) -> io::Result<usize> {
            match self.inbox.receive(self.sockets[port].as_raw_fd(), MsgFlags::MSG_DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(0),
                other => other,
            }
        }

        /// The datagrams that [`Self::receive`] took, with their senders.
        pub fn datagrams(&self) -> impl Iterator<Item = (&[u8], Option<SocketAddr>)> {
            self.inbox.datagrams().map(|(datagram, from)| (datagram, from.as_ref().and_then(address_of)))
        }

        /// Sends a batch; how many datagrams the kernel did not take.
        pub fn send(&mut self, port: usize, batch: &mut [Leaving<'_>]) -> usize {
            // Equal lengths to equal servers side by side; the order among requests under way means nothing.
            batch.sort_unstable_by_key(|(datagram, server)| (datagram.len(), *server));
            let lengths = batch.chunk_by(|(one, _), (other, _)| one.len() == other.len());
            let mut singles = [(&[][..], 0); BATCH];
            let mut single_count = 0;
            let mut failed = 0;
            for same_length in lengths {
                let bytes = same_length[0].0.len();
                let mut from = 0;
                let mut runs = Vec::new();
                for run in same_length.chunk_by(|one, other| one.1 == other.1) {
                    let range = from..from + run.len();
                    from = range.end;
                    if 1 < run.len() && bytes <= self.packed_bytes_max[run[0].1] {
                        runs.push(range);
                    } else {
                        for &single in run {
                            singles[single_count] = single;
                            single_count += 1;
                        }
                    }
                }
                if !runs.is_empty() {
                    failed += self.send_runs(port, same_length, &runs, bytes);
                }
            }
            failed + self.send_singles(port, &singles[..single_count])
        }

        fn send_singles(&mut self, port: usize, singles: &[Leaving<'_>]) -> usize {
            let mut parts = [IoSlice::new(&[]); BATCH];
            let mut addresses = [None; BATCH];
            for (index, (datagram, server)) in singles.iter().enumerate() {
                parts[index] = IoSlice::new(datagram);
                addresses[index] = Some(self.addresses[*server]);
            }
            let mut messages: [&[IoSlice<'_>]; BATCH] = [&[]; BATCH];
            parts.iter().enumerate().for_each(|(index, part)| messages[index] = std::slice::from_ref(part));
            let socket = self.sockets[port].as_raw_fd();
            let (mut done, mut failed) = (0, 0);
            while done < singles.len() {
                let range = done..singles.len();
                match self.outbox.send_some(socket, &messages[range.clone()], &addresses[range]) {
                    Ok(sent) => done += sent.max(1),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // One that the kernel refuses is like one that the network lost.
                    Err(_) => (done, failed) = (done + 1, failed + 1),
                }
            }
            failed
        }

        /// Sends each of these runs of datagrams of one length as one message, or two if it is too long for one.
        fn send_runs(
            &mut self,
            port: usize,
            datagrams: &[Leaving<'_>],
            runs: &[std::ops::Range<usize>],
            bytes: usize,
        ) -> usize {
            let mut parts = [IoSlice::new(&[]); BATCH];
            datagrams.iter().enumerate().for_each(|(index, (part, _))| parts[index] = IoSlice::new(part));
            let together = sockets::segments_max(bytes);
            let mut messages: Vec<&[IoSlice<'_>]> = Vec::with_capacity(BATCH);
            let mut addresses = Vec::with_capacity(BATCH);
            for run in runs {
                for message in parts[run.clone()].chunks(together) {
                    messages.push(message);
                    addresses.push(Some(self.addresses[datagrams[run.start].1]));
                }
            }
            let socket = self.sockets[port].as_raw_fd();
            let segment_bytes = u16::try_from(bytes).expect("only short datagrams are packed");
            let mut done = 0;
            while done < messages.len() {
                let sent =
                    self.outbox.send_packed(socket, &messages[done..], &addresses[done..], segment_bytes);
                match sent {
                    Ok(sent) => done += sent.max(1),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            if done == messages.len() {
                return 0;
            }
            // Refused: from now on these servers get single datagrams, and these now.
            let first_left: usize = messages[..done].iter().map(|message| message.len()).sum();
            let left: Vec<Leaving<'_>> =
                runs.iter().flat_map(|run| &datagrams[run.clone()]).skip(first_left).copied().collect();
            left.iter().for_each(|(_, server)| self.packed_bytes_max[*server] = bytes - 1);
            self.send_singles(port, &left)
        }

        /// Sleeps until something comes to any socket, or for this long.
        ///
        /// # Errors
        /// As the system says.
        pub fn wait(&mut self, limit: Duration) -> io::Result<()> {
            let mut descriptors: Vec<PollFd<'_>> = self
                .sockets
                .iter()
                .map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN))
                .collect();
            let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
            match poll(&mut descriptors, Some(&limit)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
    }

    fn address_of(storage: &SockaddrStorage) -> Option<SocketAddr> {
        let v4 = storage.as_sockaddr_in().map(|address| SocketAddr::from((address.ip(), address.port())));
        v4.or_else(|| {
            storage.as_sockaddr_in6().map(|address| SocketAddr::from((address.ip(), address.port())))
        })
    }
}

/// Also built for tests on Linux, so that it does not rot.
#[cfg(any(test, not(target_os = "linux")))]
mod plain {
    use mio::net::UdpSocket;
    use mio::{Events, Interest, Poll, Token};
    use socket2::SockRef;

    use super::{BATCH, Duration, Leaving, SocketAddr, any_address, io, slot_bytes};

    /// Sockets, and memory for one batch.
    pub struct Ports {
        sockets: Vec<UdpSocket>,
        receive_buffer_bytes: usize,
        servers: Vec<SocketAddr>,
        poll: Poll,
        events: Events,
        memory: Vec<u8>,
        slot_bytes: usize,
        received: Vec<(usize, SocketAddr)>,
    }

    impl Ports {
        /// Opens `count` sockets that ask these servers.
        ///
        /// # Errors
        /// As the system says.
        pub fn open(count: usize, servers: &[SocketAddr], reply_bytes_max: usize) -> io::Result<Self> {
            let poll = Poll::new()?;
            let mut sockets = Vec::with_capacity(count);
            let mut receive_buffer_bytes = usize::MAX;
            for index in 0..count {
                let mut socket = UdpSocket::bind((any_address(servers), 0).into())?;
                let options = SockRef::from(&socket);
                options.set_recv_buffer_size(crate::load::RECEIVE_BUFFER_BYTES)?;
                receive_buffer_bytes = receive_buffer_bytes.min(options.recv_buffer_size()?);
                poll.registry().register(&mut socket, Token(index), Interest::READABLE)?;
                sockets.push(socket);
            }
            let slot_bytes = slot_bytes(reply_bytes_max);
            Ok(Self {
                sockets,
                receive_buffer_bytes,
                servers: servers.to_vec(),
                poll,
                events: Events::with_capacity(BATCH),
                memory: vec![0; BATCH * slot_bytes],
                slot_bytes,
                received: Vec::with_capacity(BATCH),
            })
        }

        /// How many sockets there are.
        pub fn count(&self) -> usize {
            self.sockets.len()
        }

        /// Smallest receive buffer that the kernel granted.
        pub fn receive_buffer_bytes(&self) -> usize {
            self.receive_buffer_bytes
        }

        /// Takes what has come to a socket, up to a batch, without waiting; how many datagrams.
        ///
        /// # Errors
        /// None here; a socket that fails has nothing for us.
        pub fn receive(&mut self, port: usize) -> io::Result<usize> {
            self.received.clear();
            for slot in self.memory.chunks_exact_mut(self.slot_bytes) {
                match self.sockets[port].recv_from(slot) {
                    Ok(received) => self.received.push(received),
                    Err(_) => break,
                }
            }
            Ok(self.received.len())
        }

        /// The datagrams that [`Self::receive`] took, with their senders.
        pub fn datagrams(&self) -> impl Iterator<Item = (&[u8], Option<SocketAddr>)> {
            let slots = self.memory.chunks_exact(self.slot_bytes);
            slots.zip(&self.received).map(|(slot, &(bytes, from))| (&slot[..bytes], Some(from)))
        }

        /// Sends a batch; how many datagrams the kernel did not take.
        pub fn send(&mut self, port: usize, batch: &mut [Leaving<'_>]) -> usize {
            let socket = &self.sockets[port];
            batch
                .iter()
                .filter(|(datagram, server)| socket.send_to(datagram, self.servers[*server]).is_err())
                .count()
        }

        /// Sleeps until something comes to any socket, or for this long; what came before does not wake it, so take
        /// everything first.
        ///
        /// # Errors
        /// As the system says.
        pub fn wait(&mut self, limit: Duration) -> io::Result<()> {
            match self.poll.poll(&mut self.events, Some(limit)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
                _ => Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    /// Sends datagrams of several lengths to two servers and has them sent back, all in one batch.
    macro_rules! sends_and_receives {
        ($ports:ty) => {{
            let servers: Vec<UdpSocket> = (0..2).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
            let addresses: Vec<SocketAddr> =
                servers.iter().map(|server| server.local_addr().unwrap()).collect();
            let mut ports = <$ports>::open(2, &addresses, 2_000).unwrap();
            assert_eq!(ports.count(), 2);
            assert!(0 < ports.receive_buffer_bytes());
            let contents: Vec<(Vec<u8>, usize)> =
                (0..BATCH).map(|index| (vec![index as u8; 40 + index % 3 * 700], index % 2)).collect();
            let mut batch: Vec<Leaving<'_>> =
                contents.iter().map(|(bytes, server)| (bytes.as_slice(), *server)).collect();
            assert_eq!(ports.send(1, &mut batch), 0);
            for (number, server) in servers.iter().enumerate() {
                let mut buffer = [0; 2_000];
                for _ in 0..BATCH / 2 {
                    let (bytes, from) = server.recv_from(&mut buffer).unwrap();
                    let index = usize::from(buffer[0]);
                    assert_eq!((&buffer[..bytes], number), (contents[index].0.as_slice(), contents[index].1));
                    server.send_to(&buffer[..bytes], from).unwrap();
                }
            }
            ports.wait(Duration::from_secs(5)).unwrap();
            assert_eq!(ports.receive(0).unwrap(), 0);
            assert_eq!(ports.receive(1).unwrap(), BATCH);
            for (datagram, from) in ports.datagrams() {
                let (bytes, server) = &contents[usize::from(datagram[0])];
                assert_eq!((datagram, from), (bytes.as_slice(), Some(addresses[*server])));
            }
        }};
    }

    #[test]
    fn batches_go_to_their_servers_and_come_back() {
        sends_and_receives!(plain::Ports);
        #[cfg(target_os = "linux")]
        sends_and_receives!(batched::Ports);
    }
}
