//! One node behind a link of its own, which this program makes slow or lossy.
//!
//! The node lives in a network namespace whose only way out is a VXLAN device. What that device sends
//! arrives at this program as ordinary UDP datagrams, one for each packet, which it passes on to the
//! device at the other end: at once, late, or not at all. So packets are real IP packets with fragments
//! of their own, for the node and for everybody else, clients included, and nothing but sockets is needed to
//! hold them back; kernels without netem do. Both ends meet in a third namespace, because a device hands
//! packets to a neighbour in its own namespace without sending them.
//!
//! Order is kept: a late packet does not overtake another. Everything lives in the private namespace that
//! [`super::land`] describes. Needs root, `ip` and VXLAN devices.

use std::collections::VecDeque;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::land::{self, ip};
use crate::values::Random;

/// The namespace of the node, and of the sockets between.
pub const NODE_NAMESPACE: &str = "behind";
const BETWEEN_NAMESPACE: &str = "between";
/// Where all the others are, this program included, and where the node is.
const OTHERS: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
const NODE: Ipv4Addr = Ipv4Addr::new(198, 18, 2, 1);
/// The port of the devices and the sockets between, and their addresses: device, then socket.
const PORT: u16 = 4_789;
const NEAR: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 19, 0, 1), Ipv4Addr::new(198, 19, 0, 2)];
const FAR: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 19, 1, 1), Ipv4Addr::new(198, 19, 1, 2)];
/// What is asked of the kernel for the sockets between, in bytes; it may grant less.
const BUFFER_BYTES: usize = 8 << 20;
/// Before the IP packet.
const VXLAN_BYTES: usize = 8;
const ETHERNET_BYTES: usize = 14;
/// Longest packet, its VXLAN header included.
const PACKET_BYTES_MAX: usize = 2_048;
/// Packets that wait in one direction at most; more are lost, like in any queue.
const QUEUE_MAX: usize = 100_000;
/// How long a direction without waiting packets sleeps before it looks whether it shall end.
const LOOK: Duration = Duration::from_millis(50);
/// The same while packets wait: how late one may be released.
const TICK: Duration = Duration::from_millis(1);

/// Why there can be no such link here; `None` if there can.
pub fn obstacle() -> Option<String> {
    if let Some(obstacle) = land::obstacle() {
        return Some(obstacle);
    }
    let probe = "ip link add probe type vxlan id 1 remote 198.19.0.2 dstport 4789";
    let tried = Command::new("unshare").args(["--net", "sh", "-c", probe]).stderr(Stdio::null()).status();
    let can = tried.is_ok_and(|status| status.success());
    (!can).then(|| "needs a kernel with VXLAN devices".to_owned())
}

/// The place of the node behind the link.
pub fn bad_one(count: usize) -> usize {
    count / 2
}

/// Where the nodes are.
pub fn addresses(port: u16, count: usize) -> Result<Vec<SocketAddr>, String> {
    let of_node = |node: usize| {
        let port = u16::try_from(usize::from(port) + node).map_err(|_| format!("port {port} + {node}"))?;
        Ok(SocketAddr::from((if node == bad_one(count) { NODE } else { OTHERS }, port)))
    };
    (0..count).map(of_node).collect()
}

/// What the link does to each packet, in both directions.
#[derive(Debug, Default)]
struct Quality {
    delay_ms: AtomicU64,
    loss_percent: AtomicU64,
}

/// The link. It is gone when this is dropped.
#[derive(Debug)]
pub struct BadLink {
    quality: Arc<Quality>,
    over: Arc<AtomicBool>,
    directions: Vec<JoinHandle<()>>,
}

impl BadLink {
    /// Builds the namespaces and a link that does no harm yet.
    ///
    /// # Errors
    /// A sentence that names what failed.
    pub fn build(seed: u64) -> Result<Self, String> {
        build_network()?;
        let (near, far) = sockets_between()?;
        let share = |socket: &UdpSocket| {
            socket.try_clone().map_err(|error| format!("cannot share a socket: {error}"))
        };
        let mut link = Self { quality: Arc::default(), over: Arc::default(), directions: Vec::new() };
        let ways = [(share(&near)?, share(&far)?, FAR[0]), (far, near, NEAR[0])];
        for (number, (from, to, device)) in (0..).zip(ways) {
            let mut direction = Direction {
                from,
                to,
                device: SocketAddr::from((device, PORT)),
                quality: Arc::clone(&link.quality),
                random: Random::new(seed + number),
                waiting: VecDeque::new(),
            };
            let over = Arc::clone(&link.over);
            let thread = thread::Builder::new().name("link".to_owned()).spawn(move || direction.run(&over));
            link.directions.push(thread.map_err(|error| format!("no thread: {error}"))?);
        }
        Ok(link)
    }

    /// From now on every packet is this late, and so many in a hundred are lost, in each direction.
    pub fn set(&self, delay_ms: u64, loss_percent: u64) {
        self.quality.delay_ms.store(delay_ms, Ordering::Relaxed);
        self.quality.loss_percent.store(loss_percent, Ordering::Relaxed);
    }
}

impl Drop for BadLink {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for direction in self.directions.drain(..) {
            // One that panicked has ended, too.
            let _ = direction.join();
        }
    }
}

struct Direction {
    from: UdpSocket,
    to: UdpSocket,
    device: SocketAddr,
    quality: Arc<Quality>,
    random: Random,
    waiting: VecDeque<(Instant, Vec<u8>)>,
}

impl Direction {
    fn run(&mut self, over: &AtomicBool) {
        let mut buffer = [0; PACKET_BYTES_MAX];
        let mut pause = Duration::ZERO;
        while !over.load(Ordering::Relaxed) {
            let wanted = if self.waiting.is_empty() { LOOK } else { TICK };
            if pause != wanted && self.from.set_read_timeout(Some(wanted)).is_ok() {
                pause = wanted;
            }
            // An error is the end of the pause, or word of a packet that could not be delivered.
            if let Ok(bytes) = self.from.recv(&mut buffer) {
                fill_checksum(&mut buffer[..bytes]);
                self.take(&buffer[..bytes]);
            }
            self.release();
        }
    }

    fn take(&mut self, packet: &[u8]) {
        let is_lost = (self.random.below(100) as u64) < self.quality.loss_percent.load(Ordering::Relaxed);
        if is_lost || self.waiting.len() == QUEUE_MAX {
            return;
        }
        let delay = Duration::from_millis(self.quality.delay_ms.load(Ordering::Relaxed));
        self.waiting.push_back((Instant::now() + delay, packet.to_vec()));
    }

    fn release(&mut self) {
        while let Some((_, packet)) = self.waiting.pop_front_if(|(at, _)| *at <= Instant::now()) {
            // What the kernel does not take is lost, as on any link.
            let _ = self.to.send_to(&packet, self.device);
        }
    }
}

/// The kernel leaves the checksum of a packet open that it hands to a device which could compute it, and these
/// are such devices. A UDP datagram may go without; TCP segments get theirs. Fragments have one already.
fn fill_checksum(packet: &mut [u8]) {
    let Some(ip) = packet.get_mut(VXLAN_BYTES + ETHERNET_BYTES..) else { return };
    let is_whole = |ip: &[u8]| ip.len() >= 20 && ip[0] >> 4 == 4 && ip[6] & 0x3f == 0 && ip[7] == 0;
    if !is_whole(ip) {
        return;
    }
    let header_bytes = usize::from(ip[0] & 15) * 4;
    let total_bytes = usize::from(u16::from_be_bytes([ip[2], ip[3]])).min(ip.len());
    let (protocol, at) = match ip[9] {
        6 => (6u32, header_bytes + 16),
        17 => (17, header_bytes + 6),
        _ => return,
    };
    if total_bytes < at + 2 {
        return;
    }
    ip[at..at + 2].fill(0);
    if protocol == 6 {
        let segment_bytes = (total_bytes - header_bytes) as u32;
        let sum = protocol + segment_bytes + sum_of(&ip[12..20]) + sum_of(&ip[header_bytes..total_bytes]);
        let folded = (sum & 0xffff) + (sum >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        ip[at..at + 2].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    }
}

/// The sum of 16-bit numbers, before it is folded (RFC 1071).
fn sum_of(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    bytes.chunks(2).map(word).sum()
}

fn build_network() -> Result<(), String> {
    ip("link set lo up")?;
    ip(&format!("addr add {OTHERS}/32 dev lo"))?;
    for name in [NODE_NAMESPACE, BETWEEN_NAMESPACE] {
        ip(&format!("netns add {name}"))?;
        ip(&format!("-n {name} link set lo up"))?;
    }
    ip(&format!("link add near type veth peer name near1 netns {BETWEEN_NAMESPACE}"))?;
    end("", "near", NEAR[0])?;
    end(&format!("-n {BETWEEN_NAMESPACE} "), "near1", NEAR[1])?;
    let (node, between) = (format!("-n {NODE_NAMESPACE} "), format!("-n {BETWEEN_NAMESPACE} "));
    ip(&format!("{node}link add far type veth peer name far1 netns {BETWEEN_NAMESPACE}"))?;
    end(&node, "far", FAR[0])?;
    end(&between, "far1", FAR[1])?;
    for (namespace, local, remote) in [("", NEAR[0], NEAR[1]), (&node, FAR[0], FAR[1])] {
        let peers = format!("local {local} remote {remote}");
        ip(&format!("{namespace}link add link0 type vxlan id 1 {peers} dstport {PORT} nolearning"))?;
        ip(&format!("{namespace}link set link0 mtu 1500 up"))?;
    }
    // This program's own sockets are bound to no address; they shall be seen under the same one by all.
    ip("addr add 198.18.2.254/32 dev link0")?;
    ip(&format!("route add 198.18.2.0/24 dev link0 src {OTHERS}"))?;
    ip(&format!("{node}addr add {NODE}/32 dev link0"))?;
    ip(&format!("{node}route add 198.18.0.0/16 dev link0 src {NODE}"))
}

/// Sets one end of a veth pair up; the outer packets are longer than those of the nodes.
fn end(namespace: &str, device: &str, address: Ipv4Addr) -> Result<(), String> {
    ip(&format!("{namespace}addr add {address}/30 dev {device}"))?;
    ip(&format!("{namespace}link set {device} mtu 1800 up"))
}

/// The sockets in the namespace between: a thread that goes there opens them and ends.
fn sockets_between() -> Result<(UdpSocket, UdpSocket), String> {
    let open = || {
        let path = format!("/run/netns/{BETWEEN_NAMESPACE}");
        let namespace = File::open(&path).map_err(|error| format!("{path}: {error}"))?;
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(LinkNameSpaceType::Network))
            .map_err(|error| format!("cannot enter {path}: {error}"))?;
        let bind = |address: Ipv4Addr| {
            let socket = UdpSocket::bind((address, PORT)).map_err(|error| format!("{address}: {error}"))?;
            let buffer = socket2::SockRef::from(&socket).set_recv_buffer_size(BUFFER_BYTES);
            buffer.map_err(|error| format!("{address}: {error}"))?;
            Ok::<_, String>(socket)
        };
        Ok((bind(NEAR[1])?, bind(FAR[1])?))
    };
    thread::spawn(open).join().map_err(|_| "the thread between panicked".to_owned())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_checksums_are_filled() {
        // An IPv4 header of 20 bytes, then a TCP header without options, "hi" behind it.
        let mut packet = vec![0; VXLAN_BYTES + ETHERNET_BYTES];
        packet.extend([0x45, 0, 0, 42, 0, 0, 0x40, 0, 64, 6, 0, 0, 198, 18, 1, 1, 198, 18, 2, 1]);
        packet.extend([0, 80, 1, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 4, 0, 0xde, 0xad, 0, 0, b'h', b'i']);
        fill_checksum(&mut packet);
        let ip = &packet[VXLAN_BYTES + ETHERNET_BYTES..];
        // With its checksum, the sum over pseudo-header and segment is all ones.
        let sum = 6 + 22 + sum_of(&ip[12..20]) + sum_of(&ip[20..]);
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        let udp = VXLAN_BYTES + ETHERNET_BYTES;
        packet[udp + 9] = 17;
        packet[udp + 26..udp + 28].fill(7);
        fill_checksum(&mut packet);
        assert_eq!(packet[udp + 26..udp + 28], [0, 0]);
    }

    #[test]
    fn only_one_node_is_behind_the_link() {
        let texts: Vec<String> = addresses(9, 3).unwrap().iter().map(SocketAddr::to_string).collect();
        assert_eq!(texts, ["198.18.1.1:9", "198.18.2.1:10", "198.18.1.1:11"]);
        assert!(addresses(65_535, 2).is_err());
    }
}
