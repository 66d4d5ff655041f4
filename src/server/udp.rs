//! What Linux offers beyond plain sockets, and the only `unsafe` code of the project: steering by a
//! classic BPF program, batched receiving and sending, the kernel's time stamps and drop counts.
//!
//! *Steering.* All sockets of a node are bound to one port in one `SO_REUSEPORT` group. The program of
//! [`attach_steering`] looks at the first four bytes of the payload and names the socket by its index
//! in the group, which is the order of binding.
//!
//! *Batches.* [`BatchReceiver`] fills a [`Batch`] with one `recvmmsg`; [`BatchSender`] empties an
//! [`Outbox`] with one `sendmmsg` per lane. Batching saves little processor time by itself; it is
//! what lets one wake-up and one channel message carry many requests.
//!
//! *Segments.* What does save time is fewer trips through the kernel's layers. A burst that its sender
//! handed over as one message (`UDP_SEGMENT`), or that the network card has put together again,
//! arrives as one message, too, when the socket asks for it (`UDP_GRO`): [`BatchReceiver`] cuts it.
//!
//! Deliberately not here: which sockets there are (`sockets`), what other systems do instead
//! (`portable`), `io_uring` and busy polling (measured, slower).

#![allow(unsafe_code)]

use super::batch::{Batch, Received};
use super::clock::{Clock, wall_nanos};
use super::transport::{Intake, Sent};
use crate::outbox::{Lane, Outbox, Send as Outgoing};
use crate::peer::JOINED_BYTES_MAX;
use socket2::SockAddr;
use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::time::Duration;

/// Most datagrams handed to the kernel in one `sendmmsg`.
const SEND_BATCH_DATAGRAMS: usize = 64;
/// Bytes for control messages of one datagram: a time stamp (32), a drop count (24) and the length of
/// segments (24), with room.
const CONTROL_BYTES: usize = 96;
/// Bytes for the control message that carries a segment's length.
// SAFETY: the macro only adds numbers.
const SEGMENT_CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE(mem::size_of::<u16>() as u32) } as usize;
/// Of many destinations, only the last few are looked through for one that a datagram can join.
const GROUPS_LOOKED_AT_MAX: usize = 8;

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

/// Sends batches; its headers are used again and again.
///
/// Small datagrams of one length to one client, typically the acknowledgements of one that keeps many
/// requests in flight, are handed over as one message that the kernel cuts into segments
/// (`UDP_SEGMENT`): one trip through its layers for all of them. Receivers see no difference. Frames to
/// one member are joined in one datagram, which costs still less and asks for no equal lengths.
pub(super) struct BatchSender {
    headers: Vec<libc::mmsghdr>,
    parts: Vec<libc::iovec>,
    /// The datagrams to send, each with the index of its group.
    assigned: Vec<(usize, libc::iovec)>,
    /// One a header.
    groups: Vec<Group>,
    segmentation: Segmentation,
}

/// How much may be put into one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segmentation {
    /// Longest datagram that is put together with others; 0 = none is.
    segment_bytes_max: usize,
    group_bytes_max: usize,
    /// Longest datagram that frames are joined in.
    joined_bytes_max: usize,
}

impl Segmentation {
    /// Every datagram is a message of its own.
    pub(super) const OFF: Self = Self { segment_bytes_max: 0, group_bytes_max: 0, joined_bytes_max: 0 };
    /// A segment must fit the path's MTU, which 1,400 bytes nearly always do, and a message all
    /// headers included into 65,535 bytes.
    pub(super) const ON: Self =
        Self { segment_bytes_max: 1_400, group_bytes_max: 65_000, joined_bytes_max: JOINED_BYTES_MAX };
    /// Puts more into a message than the kernel takes.
    #[cfg(test)]
    pub(super) const TOO_MUCH: Self =
        Self { segment_bytes_max: 1_400, group_bytes_max: usize::MAX, joined_bytes_max: 0 };
}

/// What goes to one destination as one message: frames joined in one datagram, or datagrams that all have
/// one length, but for the last, which may be shorter: that is how the kernel cuts.
struct Group {
    is_joined: bool,
    to: SocketAddr,
    name: SockAddr,
    segment_bytes: usize,
    bytes: usize,
    datagrams: usize,
    /// Index of its first part.
    first_part: usize,
    /// The last segment was a shorter one.
    is_closed: bool,
    control: SegmentControl,
}

/// Room for the control message that asks for segments.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct SegmentControl([u8; SEGMENT_CONTROL_BYTES]);

// SAFETY: as for `BatchReceiver`: the pointers are written anew before every use.
unsafe impl Send for BatchSender {}

impl Group {
    fn of(to: SocketAddr, is_joined: bool) -> Self {
        let control = SegmentControl([0; SEGMENT_CONTROL_BYTES]);
        Self {
            is_joined,
            to,
            name: to.into(),
            segment_bytes: 0,
            bytes: 0,
            datagrams: 0,
            first_part: 0,
            is_closed: false,
            control,
        }
    }

    fn takes(&self, to: &SocketAddr, bytes: usize, limits: Segmentation) -> bool {
        if self.is_joined {
            return self.bytes + bytes <= limits.joined_bytes_max && self.to == *to;
        }
        // An empty datagram cannot be a segment.
        let may_follow = !self.is_closed && 0 < bytes && bytes <= self.segment_bytes;
        let fits =
            self.segment_bytes <= limits.segment_bytes_max && self.bytes + bytes <= limits.group_bytes_max;
        may_follow && fits && self.to == *to
    }

    fn add(&mut self, bytes: usize) {
        if self.datagrams == 0 {
            self.segment_bytes = bytes;
        }
        self.is_closed = bytes < self.segment_bytes;
        self.bytes += bytes;
        self.datagrams += 1;
    }

    /// A header for the group's parts, of which `parts` is the first; good until anything is moved.
    fn header(&mut self, parts: *mut libc::iovec) -> libc::mmsghdr {
        // SAFETY: a plain C structure for which all zeros is a value.
        let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
        header.msg_hdr.msg_name = self.name.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_namelen = self.name.len();
        header.msg_hdr.msg_iov = parts;
        header.msg_hdr.msg_iovlen = self.datagrams as _;
        if 1 < self.datagrams && !self.is_joined {
            header.msg_hdr.msg_control = self.control.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = SEGMENT_CONTROL_BYTES as _;
            // SAFETY: `msg_control` is aligned memory of `CMSG_SPACE` of the two bytes written, so the
            // first control message and its payload lie inside it.
            unsafe {
                let message = libc::CMSG_FIRSTHDR(&header.msg_hdr);
                (*message).cmsg_level = libc::SOL_UDP;
                (*message).cmsg_type = libc::UDP_SEGMENT;
                (*message).cmsg_len = libc::CMSG_LEN(mem::size_of::<u16>() as u32) as _;
                libc::CMSG_DATA(message).cast::<u16>().write_unaligned(self.segment_bytes as u16);
            }
        }
        header
    }
}

impl BatchSender {
    pub(super) fn new(segmentation: Segmentation) -> Self {
        let slots = SEND_BATCH_DATAGRAMS;
        Self {
            headers: Vec::with_capacity(slots),
            parts: Vec::with_capacity(slots),
            assigned: Vec::with_capacity(slots),
            groups: Vec::with_capacity(slots),
            segmentation,
        }
    }

    /// Whether datagrams are put together.
    #[cfg(test)]
    pub(super) fn is_segmenting(&self) -> bool {
        0 < self.segmentation.segment_bytes_max
    }

    /// Sends all datagrams of one lane; those to one destination that have the same length stay in
    /// order.
    pub(super) fn send_lane(&mut self, socket: &UdpSocket, lane: Lane, outbox: &Outbox) -> Sent {
        let mut sent = Sent::default();
        let mut waiting = outbox.sends().iter().filter(|send| send.lane == lane);
        let are_frames = matches!(lane, Lane::Replication | Lane::Forwarding);
        loop {
            self.group(outbox, are_frames, waiting.by_ref().take(SEND_BATCH_DATAGRAMS));
            if self.groups.is_empty() {
                return sent;
            }
            self.write_headers();
            self.transmit(socket.as_raw_fd(), &mut sent);
        }
    }

    fn group<'a>(&mut self, outbox: &Outbox, are_frames: bool, sends: impl Iterator<Item = &'a Outgoing>) {
        self.assigned.clear();
        self.groups.clear();
        for send in sends {
            let bytes = outbox.bytes(send);
            let first_looked_at = self.groups.len().saturating_sub(GROUPS_LOOKED_AT_MAX);
            let limits = self.segmentation;
            let takes = |group: &Group| group.takes(&send.to, bytes.len(), limits);
            let index = match self.groups[first_looked_at..].iter().rposition(takes) {
                Some(found) => first_looked_at + found,
                None => {
                    self.groups.push(Group::of(send.to, are_frames));
                    self.groups.len() - 1
                }
            };
            self.groups[index].add(bytes.len());
            // `sendmmsg` never writes to it; the C structure just does not say so.
            let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() as _ };
            self.assigned.push((index, part));
        }
    }

    /// Lays the datagrams out group by group and points the headers at them. From here until they are
    /// sent, nothing moves.
    fn write_headers(&mut self) {
        let mut next = 0;
        for group in &mut self.groups {
            group.first_part = next;
            next += group.datagrams;
        }
        self.parts.clear();
        self.parts.extend(self.assigned.iter().map(|(_, part)| *part));
        // The next free place of each group moves on with every part that is placed.
        for (index, part) in &self.assigned {
            let group = &mut self.groups[*index];
            self.parts[group.first_part] = *part;
            group.first_part += 1;
        }
        self.headers.clear();
        let parts = self.parts.as_mut_ptr();
        for group in &mut self.groups {
            group.first_part -= group.datagrams;
            self.headers.push(group.header(parts.wrapping_add(group.first_part)));
        }
    }

    /// Hands the headers to the kernel. One that it refuses is counted and skipped: it must not take
    /// the ones behind it down.
    fn transmit(&mut self, socket: RawFd, sent: &mut Sent) {
        let (mut next, mut retried) = (0, false);
        while next < self.headers.len() {
            match hand_over(socket, &mut self.headers[next..]) {
                Ok(count) => {
                    for group in &self.groups[next..next + count] {
                        sent.datagrams += if group.is_joined { 1 } else { group.datagrams as u64 };
                        sent.bytes += group.bytes as u64;
                    }
                    next += count;
                    retried = false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if !retried && deserves_retry(&error) => retried = true,
                Err(_) => {
                    self.send_singly(socket, next, sent);
                    next += 1;
                    retried = false;
                }
            }
        }
    }

    /// What becomes of a group that the kernel refused: its datagrams are tried one by one, since not
    /// every device can segment. If that helps, nothing is grouped any more.
    fn send_singly(&mut self, socket: RawFd, index: usize, sent: &mut Sent) {
        let group = &self.groups[index];
        if group.datagrams == 1 || group.is_joined {
            sent.failed += 1;
            return;
        }
        let mut header = self.headers[index];
        header.msg_hdr.msg_control = ptr::null_mut();
        header.msg_hdr.msg_controllen = 0;
        header.msg_hdr.msg_iovlen = 1 as _;
        for part in &mut self.parts[group.first_part..group.first_part + group.datagrams] {
            header.msg_hdr.msg_iov = part;
            if hand_over(socket, std::slice::from_mut(&mut header)).is_ok() {
                sent.datagrams += 1;
                sent.bytes += part.iov_len as u64;
                self.segmentation = Segmentation::OFF;
            } else {
                sent.failed += 1;
            }
        }
    }
}

/// Sends what the headers point at; returns how many of them were taken, at least one.
fn hand_over(socket: RawFd, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    // SAFETY: the callers have pointed the headers at names, parts, control messages and outbox bytes,
    // all of which they borrow, and none of which has moved since.
    let count = unsafe {
        let flags = libc::MSG_DONTWAIT;
        libc::sendmmsg(socket, headers.as_mut_ptr(), headers.len() as _, flags as _)
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Full buffers may be empty a moment later, and a refused connection is the echo of an *earlier*
/// datagram that the kernel hands to whoever sends next.
fn deserves_retry(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOBUFS)
        || matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused)
}
