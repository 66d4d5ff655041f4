//! Named groups of frames, and frames that must not be where requests are worked on.
//!
//! A sample belongs to the group of its innermost frame that belongs to any: a hash below a codec is
//! hashing, what the kernel does below `sendmmsg` is sending. So the groups add up to all samples. On
//! loopback the kernel receives within the sender's call; that is sending, too.

use super::names::KERNEL;
use super::stacks::Stacks;

/// What a sample was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Opening, binding, setting up and closing sockets.
    SocketSetUp,
    /// Sending, down to the receiver's buffer.
    Send,
    /// Receiving.
    Receive,
    /// Waiting for locks.
    Locks,
    /// Getting and returning memory.
    Allocation,
    /// Hashes, checksums and tags.
    Hashing,
    /// Values and their index.
    Store,
    /// Requests, replies and frames, to and from bytes.
    Codec,
    /// The job channel, sleeping and waking.
    Channel,
    /// All else.
    Rest,
}

impl Group {
    /// All groups, in the order of reports.
    pub const ALL: [Self; 10] = [
        Self::SocketSetUp,
        Self::Send,
        Self::Receive,
        Self::Locks,
        Self::Allocation,
        Self::Hashing,
        Self::Store,
        Self::Codec,
        Self::Channel,
        Self::Rest,
    ];

    /// As reports name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::SocketSetUp => "socket set-up",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Locks => "locks",
            Self::Allocation => "allocation",
            Self::Hashing => "hashing",
            Self::Store => "store",
            Self::Codec => "codec",
            Self::Channel => "channel, wake-up",
            Self::Rest => "rest",
        }
    }
}

/// Whole names and their groups: system calls, in the kernel and as the C library names them.
const CALLS: &[(&str, Group)] = &[
    ("socket", Group::SocketSetUp),
    ("bind", Group::SocketSetUp),
    ("close", Group::SocketSetUp),
    ("setsockopt", Group::SocketSetUp),
    ("sendmmsg", Group::Send),
    ("sendmsg", Group::Send),
    ("sendto", Group::Send),
    ("recvmmsg", Group::Receive),
    ("recvmsg", Group::Receive),
    ("recvfrom", Group::Receive),
    ("epoll_wait", Group::Channel),
    ("write", Group::Channel),
    ("eventfd_write", Group::Channel),
    ("sched_yield", Group::Channel),
    ("malloc", Group::Allocation),
    ("calloc", Group::Allocation),
    ("realloc", Group::Allocation),
    ("free", Group::Allocation),
    ("madvise", Group::Allocation),
    ("mmap", Group::Allocation),
    ("munmap", Group::Allocation),
];

/// Kernel functions that stand for a call that is not in the stack (any more).
const KERNEL_FUNCTIONS: &[(&str, Group)] =
    &[("sock_close", Group::SocketSetUp), ("task_work_run", Group::SocketSetUp)];

/// Beginnings of names and their groups; the first that fits counts.
const BEGINNINGS: &[(&str, Group)] = &[
    ("server::sockets::", Group::SocketSetUp),
    ("server::SingleUse::", Group::SocketSetUp),
    ("socket2::SockAddr", Group::Send),
    ("socket2::sockaddr", Group::Send),
    ("socket2::", Group::SocketSetUp),
    ("std::os::fd::owned::OwnedFd", Group::SocketSetUp),
    ("server::BatchSender::", Group::Send),
    ("server::udp::hand_over", Group::Send),
    ("server::Sender::", Group::Send),
    ("server::portable::send", Group::Send),
    ("server::transport::send", Group::Send),
    ("server::BatchReceiver::", Group::Receive),
    ("server::Receiver::", Group::Receive),
    ("server::portable::receive", Group::Receive),
    ("server::udp::", Group::Receive),
    ("server::Stamps::", Group::Receive),
    ("parking_lot", Group::Locks),
    ("lock_api", Group::Locks),
    ("__rust_alloc", Group::Allocation),
    ("__rust_realloc", Group::Allocation),
    ("__rust_dealloc", Group::Allocation),
    ("__rdl_", Group::Allocation),
    ("__rg_", Group::Allocation),
    ("alloc::alloc", Group::Allocation),
    ("alloc::raw_vec", Group::Allocation),
    ("mi_", Group::Allocation),
    ("_mi_", Group::Allocation),
    ("mimalloc", Group::Allocation),
    ("blake3", Group::Hashing),
    ("_blake3", Group::Hashing),
    ("crc32fast", Group::Hashing),
    ("xxhash_rust", Group::Hashing),
    ("ahash", Group::Hashing),
    ("storage::", Group::Store),
    ("client::wire::", Group::Codec),
    ("peer::", Group::Codec),
    ("cluster::Link::", Group::Codec),
    ("crossbeam", Group::Channel),
    ("flume", Group::Channel),
    ("mio::", Group::Channel),
    ("server::Shared::", Group::Channel),
    ("server::Listener::sleep", Group::Channel),
];

/// Kernel calls by which threads wait for each other; whose they are, only the frames around tell.
const FUTEX: [&str; 2] = ["sys_futex_[k]", "syscall"];

/// The group of one frame by itself.
fn of_frame(frame: &str) -> Option<Group> {
    let of = |table: &[(&str, Group)], is_it: &dyn Fn(&str) -> bool| {
        table.iter().find(|(name, _)| is_it(name)).map(|(_, group)| *group)
    };
    if let Some(name) = frame.strip_suffix(KERNEL) {
        let call = name.strip_prefix("sys_").and_then(|call| of(CALLS, &|name| name == call));
        return call.or_else(|| of(KERNEL_FUNCTIONS, &|known| known == name));
    }
    of(CALLS, &|name| name == frame).or_else(|| of(BEGINNINGS, &|start| frame.starts_with(start)))
}

/// The group of a sample; the first frame is the thread.
pub fn group_of(frames: &[&str]) -> Group {
    let waits = || frames.iter().any(|frame| FUTEX.contains(frame));
    let found = frames[1..].iter().rev().find_map(|frame| of_frame(frame));
    found.unwrap_or_else(|| if waits() { Group::Locks } else { Group::Rest })
}

/// Share of the samples in each group.
pub fn shares(stacks: &Stacks) -> Vec<(Group, f64)> {
    Group::ALL.into_iter().map(|group| (group, stacks.share(|frames| group_of(frames) == group))).collect()
}

/// What allocation may take where requests are worked on: no request needs any, but tables grow, and a shard takes
/// another chunk when it is full. The functions that allocate are named by the check.
const ALLOCATION_SHARE_MAX: f64 = 0.02;

/// What has no place where a request is worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// Opening or closing a socket.
    SocketSetUp,
    /// Making text.
    Formatting,
    /// Asking for memory.
    Allocation,
}

impl Forbidden {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::SocketSetUp, Self::Formatting, Self::Allocation];

    /// As reports name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::SocketSetUp => "socket set-up",
            Self::Formatting => "formatting",
            Self::Allocation => "allocation",
        }
    }

    /// Share of all samples that is put up with: nothing, but for tables that grow.
    pub fn share_max(self) -> f64 {
        match self {
            Self::SocketSetUp | Self::Formatting => 0.0,
            Self::Allocation => ALLOCATION_SHARE_MAX,
        }
    }

    fn is(self, frame: &str) -> bool {
        match self {
            Self::SocketSetUp => of_frame(frame) == Some(Group::SocketSetUp),
            Self::Formatting => frame.starts_with("core::fmt") || frame.starts_with("alloc::fmt"),
            Self::Allocation => of_frame(frame) == Some(Group::Allocation),
        }
    }
}

/// The function below which requests are worked on and answered.
const REQUEST_PATH: &str = "server::Runner::run_batch";

/// Beginnings of names that are nobody's work by themselves.
const LIBRARIES: [&str; 6] = ["alloc::", "allocator_api2::", "core::", "std::", "hashbrown::", "__rust"];

/// Whether a sample was taken where requests are worked on.
pub fn is_on_request_path(frames: &[&str]) -> bool {
    frames.contains(&REQUEST_PATH)
}

/// Whose work led to a forbidden frame where requests are worked on: the function of ours that stands
/// closest before it; `None` when there is no such frame.
pub fn culprit<'a>(frames: &[&'a str], what: Forbidden) -> Option<&'a str> {
    let start = frames.iter().position(|frame| *frame == REQUEST_PATH)?;
    let path = &frames[start..];
    let found = path.iter().position(|frame| what.is(frame))?;
    let is_ours = |frame: &&&str| !LIBRARIES.iter().any(|library| frame.starts_with(library));
    path[..found].iter().rev().find(is_ours).or(path.first()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_belong_to_their_innermost_telling_frame() {
        let check = |stack: &str, group: Group| {
            assert_eq!(group_of(&stack.split(';').collect::<Vec<_>>()), group, "{stack}");
        };
        check(
            "v-worker-1;server::Runner::run_batch;server::Sender::flush;sendmmsg;sys_sendmmsg_[k];udp_rcv_[k]",
            Group::Send,
        );
        check(
            "v-worker-1;server::Runner::run_batch;server::SingleUse::open;socket;sys_socket_[k]",
            Group::SocketSetUp,
        );
        check(
            "v-worker-1;server::Runner::run_batch;close;exit_to_user_mode_[k];task_work_run_[k];x_[k]",
            Group::SocketSetUp,
        );
        check("v-listener;node::Node::handle;peer::FrameKey::open;_blake3_compress", Group::Hashing);
        check("v-listener;node::Node::handle;storage::Ram::get;memcpy", Group::Store);
        check(
            "v-listener;node::Node::handle;storage::Ram::get;parking_lot::x;syscall;sys_futex_[k]",
            Group::Locks,
        );
        check(
            "v-worker-1;server::Worker::run;crossbeam_channel::recv;syscall;sys_futex_[k];schedule_[k]",
            Group::Channel,
        );
        check("v-worker-1;syscall;sys_futex_[k];schedule_[k]", Group::Locks);
        check("v-listener;node::Node::handle", Group::Rest);
        check("socket", Group::Rest);
    }

    #[test]
    fn what_is_forbidden_counts_only_where_requests_are_worked_on() {
        let has = |stack: &str, what| culprit(&stack.split(';').collect::<Vec<_>>(), what).is_some();
        assert!(has("v-worker-1;server::Runner::run_batch;a;mi_malloc;x", Forbidden::Allocation));
        assert!(has("v-worker-1;server::Runner::run_batch;core::fmt::write", Forbidden::Formatting));
        assert!(has("v-worker-1;server::Runner::run_batch;sys_bind_[k]", Forbidden::SocketSetUp));
        assert!(!has("v-control;control::Control::tick;mi_malloc", Forbidden::Allocation));
        assert!(!has("v-worker-1;server::Runner::run_batch;node::Node::handle", Forbidden::Allocation));
        let stack = [
            "v-worker-1",
            REQUEST_PATH,
            "storage::Blocks::read",
            "alloc::raw_vec::RawVec::grow",
            "mi_malloc",
        ];
        assert_eq!(culprit(&stack, Forbidden::Allocation), Some("storage::Blocks::read"));
    }
}
