//! Which sockets a node has, and how they are opened.
//!
//! With steered lanes there is one receive socket each for clients, members and gossip, and three
//! send sockets for every thread that sends, all bound to one address. The kernel picks the receive
//! socket by the first bytes of the payload (`udp::attach_steering`) and never picks a send socket;
//! since all share the port, replies leave with the service port as their source, which connected
//! clients and address translators insist on. So a burst of clients can fill only the clients' buffer.
//!
//! With a shared lane there is one socket for everything; the listener sorts.

#[cfg(target_os = "linux")]
use super::udp;
use crate::config::Lanes;
use crate::outbox::Lane;
use crate::peer::{GOSSIP_MAGIC, PEER_MAGIC};
use mio::net::UdpSocket;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::net::{SocketAddr, UdpSocket as StdUdpSocket};
use std::sync::Arc;
use std::{fmt, io};

/// Smallest receive buffer that is still worth trying when the system refuses larger ones.
const RECEIVE_BUFFER_BYTES_MIN: usize = 16 * 1024;

/// All sockets of a node.
#[derive(Debug)]
pub(super) struct Sockets {
    /// Where they are bound; the port is known even if 0 was asked for.
    pub(super) address: SocketAddr,
    /// The clients' datagrams; everything when the lane is shared.
    pub(super) clients: UdpSocket,
    /// The members' lanes, when steered.
    pub(super) members: Option<MemberLanes>,
    /// One set for each thread that sends.
    pub(super) senders: Vec<SendSockets>,
    /// What the kernel granted.
    pub(super) granted: Granted,
}

/// The receive sockets that only members use.
#[derive(Debug)]
pub(super) struct MemberLanes {
    pub(super) peers: UdpSocket,
    pub(super) gossip: UdpSocket,
}

/// The buffer sizes that the kernel granted, in bytes of the same measure as the settings (Linux
/// reports the double of it).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Of each receive socket: clients, members, gossip; or the one that they share.
    pub receive_bytes: Vec<usize>,
    /// Of each send socket.
    pub send_bytes: usize,
}

impl fmt::Display for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.receive_bytes.iter().map(usize::to_string).collect();
        f.write_str(&sizes.join("/"))
    }
}

/// What to open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) address: SocketAddr,
    pub(super) lanes: Lanes,
    /// Threads that send.
    pub(super) threads: usize,
    pub(super) receive_bytes: usize,
    pub(super) send_bytes: usize,
}

/// Why the sockets could not be opened; one line.
#[derive(Debug)]
pub enum OpenError {
    /// Another process has the port.
    Taken(SocketAddr),
    /// Anything else.
    Refused {
        /// What we were about to do.
        attempt: &'static str,
        /// With which address.
        address: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken(address) => write!(f, "{address} is taken"),
            Self::Refused { attempt, address, error } => write!(f, "cannot {attempt} {address}: {error}"),
        }
    }
}

impl std::error::Error for OpenError {}

/// One thread's own sockets for sending, opened at start.
#[derive(Clone, Debug)]
pub(super) struct SendSockets {
    clients: Arc<StdUdpSocket>,
    replication: Arc<StdUdpSocket>,
    forwarding: Arc<StdUdpSocket>,
}

impl SendSockets {
    /// The socket that a lane leaves by. Gossip is rare and has a thread of its own, so it shares the
    /// socket for replication.
    pub(super) fn of(&self, lane: Lane) -> &StdUdpSocket {
        match lane {
            Lane::Client => &self.clients,
            Lane::Replication | Lane::Gossip => &self.replication,
            Lane::Forwarding => &self.forwarding,
        }
    }

    fn shared(socket: &Arc<StdUdpSocket>) -> Self {
        let again = || Arc::clone(socket);
        Self { clients: again(), replication: again(), forwarding: again() }
    }
}

impl Sockets {
    /// Opens everything.
    ///
    /// # Errors
    /// [`OpenError::Taken`] when another process has the port, otherwise what the system said.
    pub(super) fn open(plan: Plan) -> Result<Self, OpenError> {
        // A group of sockets would silently take in strangers of the same user, so an exclusive socket
        // finds out first whether somebody is there.
        let address = probe(plan.address)?;
        let plan = Plan { address, ..plan };
        #[cfg(target_os = "linux")]
        if plan.lanes == Lanes::Steered {
            return open_steered(plan);
        }
        open_shared(plan)
    }

    /// Whether the kernel sorts.
    pub(super) fn is_steered(&self) -> bool {
        self.members.is_some()
    }
}

fn probe(address: SocketAddr) -> Result<SocketAddr, OpenError> {
    let socket = new_socket(address)?;
    bind(&socket, address)?;
    local_address(&socket, address)
}

fn open_shared(plan: Plan) -> Result<Sockets, OpenError> {
    let socket = new_socket(plan.address)?;
    bind(&socket, plan.address)?;
    let receive_bytes = set_receive_buffer(&socket, plan.receive_bytes);
    let send_bytes = set_send_buffer(&socket, plan.send_bytes);
    let sending = socket.try_clone().map_err(refused("share the socket of", plan.address))?;
    let senders = vec![SendSockets::shared(&Arc::new(sending.into())); plan.threads];
    Ok(Sockets {
        address: plan.address,
        clients: UdpSocket::from_std(socket.into()),
        members: None,
        senders,
        granted: Granted { receive_bytes: vec![receive_bytes], send_bytes },
    })
}

/// Binds the group. The order gives the sockets their index: clients 0, members 1, gossip 2, then the
/// send sockets.
#[cfg(target_os = "linux")]
fn open_steered(plan: Plan) -> Result<Sockets, OpenError> {
    let clients = closed_group_socket(plan.address)?;
    udp::attach_steering(&clients, PEER_MAGIC, GOSSIP_MAGIC)
        .map_err(refused("steer (try --lanes shared)", plan.address))?;
    bind(&clients, plan.address)?;
    let peers = bound_group_socket(plan.address)?;
    let gossip = bound_group_socket(plan.address)?;
    let mut granted = Granted { receive_bytes: Vec::new(), send_bytes: 0 };
    for socket in [&clients, &peers, &gossip] {
        granted.receive_bytes.push(set_receive_buffer(socket, plan.receive_bytes));
        udp::ask_for_stamps(socket).map_err(refused("get time stamps on", plan.address))?;
    }
    let mut senders = Vec::with_capacity(plan.threads);
    for _ in 0..plan.threads {
        senders.push(open_send_sockets(plan, &mut granted)?);
    }
    for socket in [&clients, &peers, &gossip] {
        socket.detach_filter().map_err(refused("open", plan.address))?;
    }
    Ok(Sockets {
        address: plan.address,
        clients: UdpSocket::from_std(clients.into()),
        members: Some(MemberLanes {
            peers: UdpSocket::from_std(peers.into()),
            gossip: UdpSocket::from_std(gossip.into()),
        }),
        senders,
        granted,
    })
}

#[cfg(target_os = "linux")]
fn open_send_sockets(plan: Plan, granted: &mut Granted) -> Result<SendSockets, OpenError> {
    let mut open = || {
        let socket = bound_group_socket(plan.address)?;
        granted.send_bytes = set_send_buffer(&socket, plan.send_bytes);
        Ok(Arc::new(socket.into()))
    };
    Ok(SendSockets { clients: open()?, replication: open()?, forwarding: open()? })
}

#[cfg(target_os = "linux")]
fn bound_group_socket(address: SocketAddr) -> Result<Socket, OpenError> {
    let socket = closed_group_socket(address)?;
    bind(&socket, address)?;
    Ok(socket)
}

/// A socket of the group that lets nothing in yet. While the group is incomplete the kernel would
/// spread members' datagrams over whatever sockets there are; dropping them is what UDP allows,
/// mixing up the lanes is not. On send sockets the filter stays.
#[cfg(target_os = "linux")]
fn closed_group_socket(address: SocketAddr) -> Result<Socket, OpenError> {
    let socket = new_socket(address)?;
    socket.set_reuse_port(true).map_err(refused("share", address))?;
    let drop_all = [socket2::SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0)];
    socket.attach_filter(&drop_all).map_err(refused("close", address))?;
    Ok(socket)
}

fn new_socket(address: SocketAddr) -> Result<Socket, OpenError> {
    let open = || {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        if address.is_ipv6() {
            // Otherwise `[::]` would also take IPv4, and members would appear under two addresses.
            socket.set_only_v6(true)?;
        }
        Ok(socket)
    };
    open().map_err(refused("open a socket for", address))
}

fn bind(socket: &Socket, address: SocketAddr) -> Result<(), OpenError> {
    socket.bind(&SockAddr::from(address)).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => OpenError::Taken(address),
        _ => refused("listen on", address)(error),
    })
}

fn local_address(socket: &Socket, asked: SocketAddr) -> Result<SocketAddr, OpenError> {
    let local = socket.local_addr().map_err(refused("find out the port of", asked))?;
    local.as_socket().ok_or_else(|| refused("find out the port of", asked)(io::Error::other("no IP address")))
}

fn refused(attempt: &'static str, address: SocketAddr) -> impl Fn(io::Error) -> OpenError {
    move |error| OpenError::Refused { attempt, address, error }
}

/// Asks for a receive buffer and returns what was granted.
fn set_receive_buffer(socket: &Socket, wanted_bytes: usize) -> usize {
    let mut bytes = wanted_bytes;
    // Linux cuts silently, others refuse what is too much.
    while socket.set_recv_buffer_size(bytes).is_err() && RECEIVE_BUFFER_BYTES_MIN < bytes {
        bytes /= 2;
    }
    #[cfg(target_os = "linux")]
    if granted(socket.recv_buffer_size()) < wanted_bytes {
        // Works only with privilege; the value read back below says whether it did.
        let _ = udp::force_receive_buffer(socket, wanted_bytes);
    }
    granted(socket.recv_buffer_size())
}

fn set_send_buffer(socket: &Socket, wanted_bytes: usize) -> usize {
    // The value read back says what it has become.
    let _ = socket.set_send_buffer_size(wanted_bytes);
    granted(socket.send_buffer_size())
}

/// Linux reports twice what was asked for, because it charges its own bookkeeping to the buffer.
fn granted(reported: io::Result<usize>) -> usize {
    let bytes = reported.unwrap_or(0);
    if cfg!(target_os = "linux") { bytes / 2 } else { bytes }
}
