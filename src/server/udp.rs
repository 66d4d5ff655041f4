//! What Linux offers beyond plain sockets, and (with `sending`) the only `unsafe` code of the project: steering by a
//! classic BPF program, batched receiving and sending, the kernel's time stamps and drop counts.
//!
//! *Steering.* All sockets of a node are bound to one port in one `SO_REUSEPORT` group. The program of
//! [`attach_steering`] looks at the first four bytes of the payload and names the socket by its index
//! in the group, which is the order of binding.
//!
//! *Batches.* [`BatchReceiver`] fills a [`Batch`] with one `recvmmsg`; [`BatchSender`] empties an
//! [`Outbox`](crate::outbox::Outbox) with one `sendmmsg` per lane. Batching saves little processor time by itself; it is
//! what lets one wake-up and one channel message carry many requests.
//!
//! *Segments.* What does save time is fewer trips through the kernel's layers. A burst that its sender
//! handed over as one message (`UDP_SEGMENT`), or that the network card has put together again,
//! arrives as one message, too, when the socket asks for it (`UDP_GRO`): [`BatchReceiver`] cuts it.
//!
//! Deliberately not here: which sockets there are (`sockets`), what other systems do instead
//! (`portable`), `io_uring` and busy polling (measured, slower).

#![allow(unsafe_code)]

mod sending;

pub(super) use sending::{BatchSender, Segmentation};

use super::batch::{Batch, Received};
use super::clock::{Clock, wall_nanos};
use super::transport::Intake;
use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::time::Duration;

/// Bytes for control messages of one datagram: a time stamp (32), a drop count (24) and the length of
/// segments (24), with room.
const CONTROL_BYTES: usize = 96;

/// Lets the kernel steer the group that `socket` belongs to (or will found when it is bound): payloads
/// that start with `first` go to socket 1, with `second` to socket 2, all others, shorter ones
/// included, to socket 0.
///
/// # Errors
/// When the kernel has no such option.
pub(super) fn attach_steering(socket: &impl AsRawFd, first: [u8; 4], second: [u8; 4]) -> io::Result<()> {
    let load_word = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equals = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // The data start behind the UDP header. A load beyond the end makes the program return 0, which is
    // just what a short datagram should get.
    let mut program = [
        step(load_word, 0, 0, 0),
        step(equals, 2, 0, u32::from_be_bytes(first)),
        step(equals, 2, 0, u32::from_be_bytes(second)),
        step(answer, 0, 0, 0),
        step(answer, 0, 0, 1),
        step(answer, 0, 0, 2),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set_option(socket.as_raw_fd(), libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

/// Asks for a time stamp and a drop count with every datagram.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn ask_for_stamps(socket: &impl AsRawFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    set_option(socket.as_raw_fd(), libc::SO_TIMESTAMPNS, &on)?;
    set_option(socket.as_raw_fd(), libc::SO_RXQ_OVFL, &on)
}

/// Asks for datagrams of one sender and one length that travelled together as one message. Slots of
/// [`super::batch::SLOT_BYTES`] hold the longest.
///
/// # Errors
/// When the kernel has no such option.
pub(super) fn ask_for_segments(socket: &impl AsRawFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    set_option_at(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_GRO, &on)
}

/// Sets a receive buffer beyond the system's limit, which needs privilege.
///
/// # Errors
/// When we have none.
pub(super) fn force_receive_buffer(socket: &impl AsRawFd, bytes: usize) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_option(socket.as_raw_fd(), libc::SO_RCVBUFFORCE, &bytes)
}

fn set_option<T>(socket: RawFd, name: libc::c_int, value: &T) -> io::Result<()> {
    set_option_at(socket, libc::SOL_SOCKET, name, value)
}

fn set_option_at<T>(socket: RawFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    let length = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for `length` bytes during the call, and the kernel only reads it (and,
    // for a BPF program, the instructions it points to, which the caller keeps alive).
    let result = unsafe { libc::setsockopt(socket, level, name, ptr::from_ref(value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Room for the control messages of one datagram, aligned as the kernel's macros expect.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Receives batches; its headers are used again and again.
pub(super) struct BatchReceiver {
    headers: Vec<libc::mmsghdr>,
    parts: Vec<libc::iovec>,
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<Control>,
}

// SAFETY: the raw pointers in `headers` and `parts` are written anew before every use, by the thread
// that uses them, and never followed otherwise.
unsafe impl Send for BatchReceiver {}

impl BatchReceiver {
    /// Headers for batches of up to `slots` datagrams.
    pub(super) fn new(slots: usize) -> Self {
        // SAFETY: these are plain C structures for which all zeros is a value.
        let (header, part, name) = unsafe { (mem::zeroed(), mem::zeroed(), mem::zeroed()) };
        Self {
            headers: vec![header; slots],
            parts: vec![part; slots],
            names: vec![name; slots],
            controls: vec![Control([0; CONTROL_BYTES]); slots],
        }
    }

    /// Fills an empty batch with what is waiting, without waiting itself.
    ///
    /// # Errors
    /// As `recvmmsg`; `WouldBlock` when nothing is waiting.
    pub(super) fn receive(
        &mut self,
        socket: &impl AsRawFd,
        clock: &Clock,
        batch: &mut Batch,
    ) -> io::Result<Intake> {
        assert!(batch.is_empty() && batch.slots() <= self.headers.len(), "the caller brings an empty batch");
        let slots = batch.slots();
        self.point_at(batch);
        // SAFETY: `point_at` has set the first `slots` headers to memory of `self` and of the batch,
        // both borrowed during the call, with their true lengths.
        let count = unsafe {
            let flags = libc::MSG_DONTWAIT;
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                slots as _,
                flags as _,
                ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        Ok(Intake { more: count == slots, dropped: self.collect(count, clock, batch) })
    }

    /// Points every header at its slot. The kernel overwrites the lengths, so they are set each time.
    fn point_at(&mut self, batch: &mut Batch) {
        for slot in 0..batch.slots() {
            let memory = batch.slot_mut(slot);
            self.parts[slot] =
                libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() as _ };
            let header = &mut self.headers[slot].msg_hdr;
            header.msg_name = ptr::from_mut(&mut self.names[slot]).cast();
            header.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_iov = &raw mut self.parts[slot];
            header.msg_iovlen = 1 as _;
            header.msg_control = self.controls[slot].0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES as _;
            header.msg_flags = 0;
        }
    }

    /// Reads the first `count` headers into the batch; returns the newest drop count.
    fn collect(&self, count: usize, clock: &Clock, batch: &mut Batch) -> Option<u32> {
        let (now, wall_now_nanos) = (clock.now(), wall_nanos());
        let mut dropped = None;
        for (slot, header) in self.headers[..count].iter().enumerate() {
            let Some(from) = address_of(&self.names[slot]) else { continue };
            let stamps = Stamps::read(&header.msg_hdr);
            // The stamp is wall time, which may jump: only the age is taken from it.
            let age_nanos = stamps.wall_nanos.map_or(0, |stamp| wall_now_nanos.saturating_sub(stamp));
            dropped = stamps.dropped.or(dropped);
            let whole = Received {
                from,
                received_at: now - Duration::from_nanos(age_nanos),
                slot,
                offset: 0,
                bytes: header.msg_len as usize,
                truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            };
            push_segments(batch, whole, stamps.segment_bytes);
        }
        dropped
    }
}

/// Adds a reception to the batch, cut into the datagrams that it consists of.
fn push_segments(batch: &mut Batch, whole: Received, segment_bytes: Option<usize>) {
    let segment_bytes = segment_bytes.filter(|&bytes| 0 < bytes).unwrap_or(usize::MAX);
    let mut offset = 0;
    // An empty datagram is one, too.
    while whole.bytes - offset > segment_bytes {
        // Only the last can have been cut by a slot that was too small.
        batch.push(Received { offset, bytes: segment_bytes, truncated: false, ..whole });
        offset += segment_bytes;
    }
    batch.push(Received { offset, bytes: whole.bytes - offset, ..whole });
}

/// What the control messages of a datagram say.
#[derive(Default)]
struct Stamps {
    /// Length of the datagrams that it consists of; the last may be shorter.
    segment_bytes: Option<usize>,
    wall_nanos: Option<u64>,
    dropped: Option<u32>,
}

impl Stamps {
    fn read(header: &libc::msghdr) -> Self {
        let mut stamps = Self::default();
        // SAFETY: the kernel has filled `msg_control` with whole control messages and set
        // `msg_controllen` to their length; the macros stay inside it. The payloads are copied out
        // without asking for alignment.
        unsafe {
            let mut message = libc::CMSG_FIRSTHDR(header);
            while let Some(found) = message.as_ref() {
                let data = libc::CMSG_DATA(message);
                match (found.cmsg_level, found.cmsg_type) {
                    (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                        stamps.wall_nanos = Some(nanos(data.cast::<libc::timespec>().read_unaligned()));
                    }
                    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                        stamps.dropped = Some(data.cast::<u32>().read_unaligned());
                    }
                    (libc::SOL_UDP, libc::UDP_GRO) => {
                        let bytes = data.cast::<libc::c_int>().read_unaligned();
                        stamps.segment_bytes = usize::try_from(bytes).ok();
                    }
                    _ => {}
                }
                message = libc::CMSG_NXTHDR(header, message);
            }
        }
        stamps
    }
}

fn nanos(time: libc::timespec) -> u64 {
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

/// The sender's address; `None` for a family that no UDP socket of ours can have.
fn address_of(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let storage = ptr::from_ref(name);
    match libc::c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which structure the storage holds, and the storage is larger and
            // more strictly aligned than each of them.
            let name = unsafe { &*storage.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(name.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { &*storage.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            let port = u16::from_be(name.sin6_port);
            Some(SocketAddrV6::new(ip, port, name.sin6_flowinfo, name.sin6_scope_id).into())
        }
        _ => None,
    }
}
