//! Sending by batches: [`BatchSender`] empties a lane of an [`Outbox`] with as few messages as will do.

use crate::outbox::{Lane, Outbox, Send as Outgoing};
use crate::peer::JOINED_BYTES_MAX;
use crate::server::transport::Sent;
use socket2::SockAddr;
use std::io;
use std::mem;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;

/// Most datagrams handed to the kernel in one `sendmmsg`.
const SEND_BATCH_DATAGRAMS: usize = 64;
/// Bytes for the control message that carries a segment's length.
// SAFETY: the macro only adds numbers.
const SEGMENT_CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE(mem::size_of::<u16>() as u32) } as usize;
/// Of many destinations, only the last few are looked through for one that a datagram can join.
const GROUPS_LOOKED_AT_MAX: usize = 8;

/// Sends batches; its headers are used again and again.
///
/// Small datagrams of one length to one client, typically the acknowledgements of one that keeps many
/// requests in flight, are handed over as one message that the kernel cuts into segments
/// (`UDP_SEGMENT`): one trip through its layers for all of them. Receivers see no difference. Frames to
/// one member are joined in one datagram, which costs still less and asks for no equal lengths.
pub(in crate::server) struct BatchSender {
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
pub(in crate::server) struct Segmentation {
    /// Longest datagram that is put together with others; 0 = none is.
    segment_bytes_max: usize,
    group_bytes_max: usize,
    /// Longest datagram that frames are joined in.
    joined_bytes_max: usize,
}

impl Segmentation {
    /// Every datagram is a message of its own.
    pub(in crate::server) const OFF: Self =
        Self { segment_bytes_max: 0, group_bytes_max: 0, joined_bytes_max: 0 };
    /// A segment must fit the path's MTU, which 1,400 bytes nearly always do, and a message all
    /// headers included into 65,535 bytes.
    pub(in crate::server) const ON: Self =
        Self { segment_bytes_max: 1_400, group_bytes_max: 65_000, joined_bytes_max: JOINED_BYTES_MAX };
    /// Puts more into a message than the kernel takes.
    #[cfg(test)]
    pub(in crate::server) const TOO_MUCH: Self =
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
    pub(in crate::server) fn new(segmentation: Segmentation) -> Self {
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
    pub(in crate::server) fn is_segmenting(&self) -> bool {
        0 < self.segmentation.segment_bytes_max
    }

    /// Sends all datagrams of one lane; those to one destination that have the same length stay in
    /// order.
    pub(in crate::server) fn send_lane(&mut self, socket: &UdpSocket, lane: Lane, outbox: &Outbox) -> Sent {
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
