//! Which sockets a node has, and how they are opened.
//!
//! With steered lanes there is one receive socket each for clients, members and gossip, and three
//! send sockets for every thread that sends, all bound to one address. The kernel picks the receive
//! socket by the first bytes of the payload (`udp::attach_steering`) and never picks a send socket;
//! since all share the port, replies leave with the service port as their source, which connected
//! clients and address translators insist on. So a burst of clients can fill only the clients' buffer.
//!
//! With a shared lane there is one socket for everything; the listener sorts.
//!
//! Other divisions exist only to be measured: they are what a server of 2015 had before flame graphs
//! showed what they cost ([`Sharing`], `flamegraphs/`).

#[cfg(target_os = "linux")]
use super::udp;
use crate::config::{Config, ForwardingSockets, Lanes, ReplicationSockets, ReplySockets};
use crate::outbox::Lane;
use crate::peer::{GOSSIP_MAGIC, PEER_MAGIC};
use mio::net::UdpSocket;
use parking_lot::{Mutex, MutexGuard};
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
    pub(super) sharing: Sharing,
    /// Threads that send.
    pub(super) threads: usize,
    pub(super) receive_bytes: usize,
    pub(super) send_bytes: usize,
}

/// Which sockets for sending the threads share, and which they open for a single datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sharing {
    replies: ReplySockets,
    replication: ReplicationSockets,
    forwarding: ForwardingSockets,
}

impl Sharing {
    /// As set.
    pub(super) fn of(config: &Config) -> Self {
        Self {
            replies: config.reply_sockets,
            replication: config.replication_sockets,
            forwarding: config.forwarding_sockets,
        }
    }
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

/// One thread's sockets for sending, opened at start (but see [`Sharing`]).
#[derive(Clone, Debug)]
pub(super) struct SendSockets {
    clients: Arc<StdUdpSocket>,
    replication: Arc<StdUdpSocket>,
    forwarding: Arc<StdUdpSocket>,
    /// Who may send replies, when one thread at a time may.
    replies_turn: Option<Arc<Mutex<()>>>,
    /// How a socket for one datagram is opened, when replication has none that stays.
    single_use: Option<SingleUse>,
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

    /// Waits until it is this thread's turn to send by a lane; `None` when nobody has to wait.
    pub(super) fn turn(&self, lane: Lane) -> Option<MutexGuard<'_, ()>> {
        self.replies_turn.as_ref().filter(|_| lane == Lane::Client).map(|turn| turn.lock())
    }

    /// How to open a socket for each datagram of a lane; `None` when it has one that stays.
    pub(super) fn single_use(&self, lane: Lane) -> Option<SingleUse> {
        self.single_use.filter(|_| lane == Lane::Replication)
    }

    /// The sockets of a thread that has three of its own.
    fn own(open: &mut impl FnMut() -> Result<Arc<StdUdpSocket>, OpenError>) -> Result<Self, OpenError> {
        let (clients, replication, forwarding) = (open()?, open()?, open()?);
        Ok(Self { clients, replication, forwarding, replies_turn: None, single_use: None })
    }

    /// One socket for everything.
    fn shared(socket: &Arc<StdUdpSocket>) -> Self {
        let again = || Arc::clone(socket);
        Self {
            clients: again(),
            replication: again(),
            forwarding: again(),
            replies_turn: None,
            single_use: None,
        }
    }
}

/// Gives some of the sockets up for others, as set. `received_by` is the clients' receive socket.
fn share(senders: &mut [SendSockets], plan: Plan, received_by: &Arc<StdUdpSocket>) {
    let turn = Arc::new(Mutex::new(()));
    let first = Arc::clone(&senders[0].replication);
    for sockets in senders {
        match plan.sharing.replies {
            ReplySockets::Shared => sockets.clients = Arc::clone(received_by),
            ReplySockets::Locked => {
                sockets.clients = Arc::clone(received_by);
                sockets.replies_turn = Some(Arc::clone(&turn));
            }
            ReplySockets::PerWorker => {}
        }
        match plan.sharing.forwarding {
            ForwardingSockets::Own => {}
            ForwardingSockets::SharedPerWorker => sockets.forwarding = Arc::clone(&sockets.replication),
            ForwardingSockets::SharedAll => {
                sockets.replication = Arc::clone(&first);
                sockets.forwarding = Arc::clone(&first);
            }
        }
        sockets.single_use = match plan.sharing.replication {
            ReplicationSockets::PerRequest => Some(SingleUse(plan)),
            ReplicationSockets::PerWorker => None,
        };
    }
}

/// Opens sockets for one datagram each.
#[derive(Clone, Copy, Debug)]
pub(super) struct SingleUse(Plan);

impl SingleUse {
    /// A socket like those that stay, to be closed after use. It joins the port's group behind all
    /// others, where the kernel never looks, so that opening and closing it moves no receive socket.
    /// With a shared lane a second socket at the port would take datagrams away from the listener; there
    /// it gets a port of its own, which members do not mind: a frame's tag says who sent it.
    ///
    /// # Errors
    /// What the system said.
    pub(super) fn open(self) -> Result<StdUdpSocket, OpenError> {
        let Self(plan) = self;
        #[cfg(target_os = "linux")]
        if plan.lanes == Lanes::Steered {
            let socket = new_socket(plan.address)?;
            socket.set_reuse_port(true).map_err(refused("share", plan.address))?;
            bind(&socket, plan.address)?;
            return Ok(socket.into());
        }
        let any_port = SocketAddr::new(plan.address.ip(), 0);
        let socket = new_socket(any_port)?;
        bind(&socket, any_port)?;
        Ok(socket.into())
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
    let sending = Arc::new(sending.into());
    let mut senders = vec![SendSockets::shared(&sending); plan.threads];
    share(&mut senders, plan, &sending);
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
        set_send_buffer(socket, plan.send_bytes);
        udp::ask_for_stamps(socket).map_err(refused("get time stamps on", plan.address))?;
    }
    let mut senders = Vec::with_capacity(plan.threads);
    for _ in 0..plan.threads {
        senders.push(open_send_sockets(plan, &mut granted)?);
    }
    let replying = clients.try_clone().map_err(refused("share the socket of", plan.address))?;
    share(&mut senders, plan, &Arc::new(replying.into()));
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
    SendSockets::own(&mut open)
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

#[cfg(test)]
impl Default for Sharing {
    fn default() -> Self {
        Self::of(&Config::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn open(lanes: Lanes, sharing: Sharing) -> Sockets {
        let address = "127.0.0.1:0".parse().expect("an address");
        let plan = Plan { address, lanes, sharing, threads: 2, receive_bytes: 1 << 20, send_bytes: 1 << 18 };
        Sockets::open(plan).expect("free sockets")
    }

    /// Which sockets of two threads are one and the same, as letters: replies, replication, forwarding
    /// of the first thread, then of the second.
    fn division(sharing: Sharing) -> String {
        let sockets = open(Lanes::Steered, sharing);
        let mut known: Vec<*const StdUdpSocket> = Vec::new();
        let all = sockets.senders.iter().flat_map(|one| [&one.clients, &one.replication, &one.forwarding]);
        all.map(|socket| {
            let place = known.iter().position(|one| *one == Arc::as_ptr(socket)).unwrap_or_else(|| {
                known.push(Arc::as_ptr(socket));
                known.len() - 1
            });
            char::from(b'a' + place as u8)
        })
        .collect()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn sockets_are_divided_as_set() {
        let of = |change: fn(&mut Sharing)| {
            let mut sharing = Sharing::default();
            change(&mut sharing);
            division(sharing)
        };
        assert_eq!(of(|_| {}), "abcdef");
        assert_eq!(of(|sharing| sharing.replies = ReplySockets::Shared), "abcade");
        assert_eq!(of(|sharing| sharing.replies = ReplySockets::Locked), "abcade");
        assert_eq!(of(|sharing| sharing.forwarding = ForwardingSockets::SharedPerWorker), "abbcdd");
        assert_eq!(of(|sharing| sharing.forwarding = ForwardingSockets::SharedAll), "abbcbb");
    }

    #[test]
    fn only_locked_replies_wait_for_their_turn() {
        for lanes in [Lanes::Steered, Lanes::Shared] {
            let sharing = Sharing { replies: ReplySockets::Locked, ..Sharing::default() };
            let sockets = open(lanes, sharing);
            let [first, second] = &sockets.senders[..] else { panic!("two threads") };
            let turn = first.turn(Lane::Client);
            assert!(turn.is_some() && second.replies_turn.as_ref().expect("locked").is_locked());
            assert!(second.turn(Lane::Replication).is_none());
            drop(turn);
            assert!(second.turn(Lane::Client).is_some());
            assert!(open(lanes, Sharing::default()).senders[0].turn(Lane::Client).is_none());
        }
    }

    #[test]
    fn sockets_for_one_datagram_take_nothing_from_the_receive_sockets() {
        for lanes in [Lanes::Steered, Lanes::Shared] {
            let sharing = Sharing { replication: ReplicationSockets::PerRequest, ..Sharing::default() };
            let sockets = open(lanes, sharing);
            let sender = &sockets.senders[0];
            assert!(sender.single_use(Lane::Client).is_none() && sender.single_use(Lane::Gossip).is_none());
            let single_use = sender.single_use(Lane::Replication).expect("as set");
            let receiver = StdUdpSocket::bind("127.0.0.1:0").expect("a socket");
            receiver.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
            let client = StdUdpSocket::bind("127.0.0.1:0").expect("a socket");
            let (mut buffer, mut held) = ([0; 16], Vec::new());
            // More than the kernel's first allotment for a group, some of them open at a time.
            for round in 0..300_u32 {
                let socket = single_use.open().expect("a socket");
                socket.send_to(b"frame", receiver.local_addr().expect("bound")).expect("sent");
                let (_, from) = receiver.recv_from(&mut buffer).expect("the frame");
                assert_eq!(from == sockets.address, sockets.is_steered(), "{lanes:?}");
                client.send_to(&round.to_be_bytes(), sockets.address).expect("sent");
                held.push(socket);
                if held.len() == 150 {
                    held.clear();
                }
            }
            let arrived = (0..300).filter(|_| sockets.clients.recv(&mut buffer).is_ok()).count();
            assert_eq!(arrived, 300, "{lanes:?}");
        }
    }
}
