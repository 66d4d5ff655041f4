//! `violet-testbed proxy`: an emulated wide-area network for UDP on loopback, without root.
//!
//! Node number k listens on 127.0.0.k and says that it is 127.128.0.k, its alias. On each alias sits a socket of the proxy.
//! A datagram to an alias is passed on to the node behind it, when the link model says and if it says so, from the
//! sender's alias, so that the receiver answers through the proxy as well. Whoever is not a node is a client, placed as c1,
//! and gets an alias of its own for as long as it is among those that asked last; so a replica that answers the
//! client directly works too.
//!
//! Deliberately not here: TCP, IP fragments (the model counts them, so a 10 KB datagram is as fragile as seven packets) and
//! ICMP. A damaged datagram is dropped, as its checksum would have it. `emulate` has all of these, and is more exact.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Arg, ArgMatches, Command, value_parser};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use serde_json::{Value, json};
use violet_link::{Delivery, Outcome};

use crate::Failure;
use crate::emulate::{Account, LinkArguments, Links, TICK, answer_controls, processor_time};

/// Clients that have an alias at once; the one that was silent longest loses it to a new one.
const CLIENTS_MAX: usize = 512;
/// Datagrams under way at most.
const QUEUED_MAX: usize = 65_536;
const DATAGRAM_BYTES_MAX: usize = 65_535;
/// Datagrams read from one socket in one look.
const READ_BATCH: usize = 64;
/// How long the proxy waits with nothing under way before it looks whether it is to stop.
const WAIT_MILLIS: u8 = 50;
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// Describes `proxy`.
pub fn command() -> Command {
    let command = Command::new("proxy")
        .about(
            "Emulate a wide-area network for UDP on loopback; needs no root, knows no TCP and no fragments",
        )
        .after_help(
            "Start node k with `violet serve --listen 127.0.0.K:PORT --advertise 127.128.0.K:PORT --servers \
             DIR/servers.txt`; \
             clients use DIR/servers.txt. `violet-testbed control --dir DIR …` changes links.",
        )
        .arg(
            Arg::new("port")
                .long("port")
                .value_name("PORT")
                .value_parser(value_parser!(u16).range(1..))
                .default_value("4410")
                .help("The port of all nodes and aliases"),
        );
    LinkArguments::add_to(command)
}

/// Does `proxy`.
pub fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let arguments = LinkArguments::read(matches)?;
    let port = *matches.get_one::<u16>("port").expect("has a default");
    fs::create_dir_all(&arguments.directory)
        .map_err(|error| format!("--dir {}: {error}", arguments.directory.display()))?;
    let shared =
        Arc::new(Mutex::new(Shared { links: arguments.links, account: Account::default(), queued: 0 }));
    let mut proxy = Proxy::open(Arc::clone(&shared), port)?;
    describe(&proxy, &arguments.directory)?;
    let control = arguments.control;
    listen(&control, Arc::clone(&shared)).map_err(|error| format!("{}: {error}", control.display()))?;
    eprintln!("violet-testbed: {} nodes; described in {}", proxy.nodes, arguments.directory.display());
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stopped))?;
    }
    let watcher = watch(arguments.words, arguments.end, Arc::clone(&stopped))?;
    proxy.run(&stopped);
    let status = watcher.join().map_err(|_| "the thread that watches the command panicked")??;
    let _gone_already = fs::remove_file(&control);
    let report = lock(&shared).account.report(proxy.queue.len(), proxy.start.elapsed(), processor_time());
    eprint!("{report}");
    let code = status.map_or(0, |status| status.code().unwrap_or(1));
    Ok(ExitCode::from(
        u8::try_from(if code == 0 { i32::from(report.emulator_limited) } else { code }).unwrap_or(1),
    ))
}

/// Runs the command, if there is one, and has the proxy stop when it ends or the time is over.
fn watch(
    words: Vec<String>,
    end: Option<Duration>,
    stopped: Arc<AtomicBool>,
) -> Result<thread::JoinHandle<Result<Option<ExitStatus>, String>>, Failure> {
    let start = Instant::now();
    let mut child = match words.split_first() {
        Some((name, rest)) => Some(
            std::process::Command::new(name)
                .args(rest)
                .spawn()
                .map_err(|error| format!("{name}: {error}"))?,
        ),
        None => None,
    };
    Ok(thread::spawn(move || {
        let mut status = None;
        while !stopped.load(Ordering::Relaxed) {
            if let Some(child) = &mut child {
                status = child.try_wait().map_err(|error| error.to_string())?;
            }
            if status.is_some() || (child.is_none() && end.is_some_and(|end| end <= start.elapsed())) {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        stopped.store(true, Ordering::Relaxed);
        if let (Some(child), None) = (&mut child, status) {
            let _ended_meanwhile = child.kill();
            status = child.wait().ok();
        }
        Ok(status)
    }))
}

fn describe(proxy: &Proxy, directory: &Path) -> Result<(), String> {
    let entries = lock(&proxy.shared).links.entries();
    let node = |(alias, entry): (&Alias, &violet_link::roster::Entry)| {
        let (name, address) = (entry.end.to_string(), alias.address);
        json!({"name": name, "listen": alias.real, "advertise": address, "site": entry.site, "area": entry.area})
    };
    let nodes: Vec<Value> = proxy.aliases.iter().zip(&entries).map(node).collect();
    let servers: String = proxy.aliases.iter().map(|alias| format!("{}\n", alias.address)).collect();
    let write = |name: &str, text: String| {
        let file = directory.join(name);
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
    };
    write("proxy.json", format!("{:#}\n", json!({ "nodes": nodes })))?;
    write("servers.txt", servers)
}

fn listen(control: &Path, shared: Arc<Mutex<Shared>>) -> io::Result<()> {
    // A socket that nobody answers on is what a killed proxy left.
    if control.exists() && UnixStream::connect(control).is_err() {
        fs::remove_file(control)?;
    }
    let start = Instant::now();
    answer_controls(control, move |command: &str| {
        let mut shared = lock(&shared);
        match command {
            "stats" => {
                let queued = shared.queued;
                // Only the proxy's own thread can tell what it used; at the end it does.
                let report = shared.account.report(queued, start.elapsed(), Duration::ZERO);
                serde_json::to_value(report).map_err(|error| error.to_string())
            }
            line => shared.links.change(line).map(|done| json!({ "done": done })),
        }
    })
}

/// What the proxy and those who control it both touch.
struct Shared {
    links: Links,
    account: Account,
    queued: usize,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // Nothing is left half done by a panic in between: both are plain data.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A socket of the proxy that stands for a node or a client.
struct Alias {
    socket: Rc<UdpSocket>,
    address: SocketAddrV4,
    /// Who is behind it.
    real: SocketAddrV4,
    /// Where that one is in the link model.
    place: usize,
    used: Instant,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Duration,
    number: u64,
}

struct UnderWay {
    from: Rc<UdpSocket>,
    to: SocketAddrV4,
    bytes: Vec<u8>,
}

struct Proxy {
    shared: Arc<Mutex<Shared>>,
    nodes: usize,
    aliases: Vec<Alias>,
    /// The alias of each real address.
    known: HashMap<SocketAddrV4, usize>,
    epoll: Epoll,
    queue: BinaryHeap<Reverse<Due>>,
    under_way: HashMap<u64, UnderWay>,
    next_number: u64,
    start: Instant,
    looked: Duration,
    /// How long a datagram found by this look may have waited beyond the tick.
    unseen: Duration,
}

impl Proxy {
    fn open(shared: Arc<Mutex<Shared>>, port: u16) -> Result<Self, String> {
        let nodes = lock(&shared).links.places().nodes;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|error| error.to_string())?;
        let mut proxy = Self {
            shared,
            nodes,
            aliases: Vec::new(),
            known: HashMap::new(),
            epoll,
            queue: BinaryHeap::new(),
            under_way: HashMap::new(),
            next_number: 0,
            start: Instant::now(),
            looked: Duration::ZERO,
            unseen: Duration::ZERO,
        };
        for place in 0..nodes {
            let last = u8::try_from(place + 1).map_err(|_| format!("{nodes} nodes; must be at most 255"))?;
            let real = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, last), port);
            let address = SocketAddrV4::new(Ipv4Addr::new(127, 128, 0, last), port);
            proxy.add(address, real, place).map_err(|error| format!("{address}: {error}"))?;
        }
        Ok(proxy)
    }

    fn add(&mut self, address: SocketAddrV4, real: SocketAddrV4, place: usize) -> io::Result<usize> {
        let socket = bind(address)?;
        let SocketAddr::V4(address) = socket.local_addr()? else { return Err(io::Error::other("not IPv4")) };
        let alias = Alias { socket: Rc::new(socket), address, real, place, used: Instant::now() };
        let index = if self.aliases.len() < self.nodes + CLIENTS_MAX {
            self.aliases.len()
        } else {
            self.most_silent()
        };
        self.epoll.add(&*alias.socket, EpollEvent::new(EpollFlags::EPOLLIN, index as u64))?;
        self.known.insert(real, index);
        if let Some(old) = self.aliases.get_mut(index) {
            // A datagram under way may hold the old socket open, which must not be read any more.
            let _closed = self.epoll.delete(&*old.socket);
            self.known.remove(&old.real);
            *old = alias;
        } else {
            self.aliases.push(alias);
        }
        Ok(index)
    }

    fn most_silent(&self) -> usize {
        let clients = self.aliases.iter().enumerate().skip(self.nodes);
        clients.min_by_key(|(_, alias)| alias.used).map_or(self.nodes, |(index, _)| index)
    }

    fn run(&mut self, stopped: &AtomicBool) {
        let mut ready = vec![EpollEvent::empty(); 64];
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        while !stopped.load(Ordering::Relaxed) {
            let (ticking, before) = (!self.queue.is_empty(), self.looked);
            if ticking {
                thread::sleep((self.looked + TICK).saturating_sub(self.start.elapsed()));
            }
            let found = self.epoll.wait(&mut ready, if ticking { 0_u8 } else { WAIT_MILLIS }).unwrap_or(0);
            self.looked = self.start.elapsed();
            // A look at a waiting proxy's sockets comes at once; a tick may come late.
            self.unseen = if ticking { self.looked.saturating_sub(before + TICK) } else { Duration::ZERO };
            for event in &ready[..found] {
                self.read(usize::try_from(event.data()).unwrap_or(usize::MAX), &mut buffer);
            }
            let played = lock(&self.shared).links.play(self.looked);
            played
                .iter()
                .for_each(|event| eprintln!("violet-testbed: {:.3} s: {event}", self.looked.as_secs_f64()));
            self.release();
        }
    }

    fn read(&mut self, index: usize, buffer: &mut [u8]) {
        for _ in 0..READ_BATCH {
            let Some(alias) = self.aliases.get(index) else { return };
            match alias.socket.recv_from(buffer) {
                Ok((length, SocketAddr::V4(from))) => self.take_in(from, index, &buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Told of a datagram that an earlier one of ours found nobody for.
                Ok((_, SocketAddr::V6(_))) | Err(_) => {}
            }
        }
    }

    fn take_in(&mut self, from: SocketAddrV4, to: usize, bytes: &[u8]) {
        let sender = match self.known.get(&from) {
            Some(index) => *index,
            None => match self.add(SocketAddrV4::new(Ipv4Addr::new(127, 129, 0, 1), 0), from, self.nodes) {
                Ok(index) => index,
                Err(_) => return lock(&self.shared).account.drop("no alias for another client"),
            },
        };
        self.aliases[sender].used = Instant::now();
        let places = (self.aliases[sender].place, self.aliases[to].place);
        let mut shared = lock(&self.shared);
        shared.account.packets += 1;
        shared.account.bytes += bytes.len() as u64;
        shared.account.read_late.add(self.unseen, 1);
        let outcome = shared.links.send_datagram(self.looked, places.0, places.1, bytes.len());
        if let Outcome::Lost(cause) = outcome {
            return shared.account.drop(cause.name());
        }
        drop(shared);
        outcome.deliveries().for_each(|delivery| self.put_under_way(sender, to, delivery, bytes));
    }

    fn put_under_way(&mut self, from: usize, to: usize, delivery: Delivery, bytes: &[u8]) {
        let mut shared = lock(&self.shared);
        if delivery.damaged_bit.is_some() {
            return shared.account.drop("damaged, as the checksum would tell");
        }
        if QUEUED_MAX <= self.queue.len() {
            return shared.account.drop("proxy full");
        }
        let (number, from) = (self.next_number, Rc::clone(&self.aliases[from].socket));
        self.next_number += 1;
        self.queue.push(Reverse(Due { at: delivery.at, number }));
        self.under_way.insert(number, UnderWay { from, to: self.aliases[to].real, bytes: bytes.to_vec() });
        shared.account.queued_max = shared.account.queued_max.max(self.queue.len());
    }

    fn release(&mut self) {
        let mut now = self.start.elapsed();
        let mut shared = lock(&self.shared);
        while self.queue.peek().is_some_and(|Reverse(due)| due.at <= now + TICK / 2) {
            let Some(Reverse(due)) = self.queue.pop() else { return };
            let Some(datagram) = self.under_way.remove(&due.number) else { continue };
            match datagram.from.send_to(&datagram.bytes, datagram.to) {
                Ok(_) => shared.account.delivered += 1,
                Err(_) => shared.account.drop("refused by the receiver's socket"),
            }
            now = self.start.elapsed();
            shared.account.release_late.add(now.saturating_sub(due.at), 1);
        }
        shared.queued = self.queue.len();
    }
}

fn bind(address: SocketAddrV4) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    // As much as the system gives without root.
    let _less_is_fine =
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES);
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 29_417;

    fn socket(address: &str) -> UdpSocket {
        let socket = UdpSocket::bind(address).expect("free");
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        socket
    }

    #[test]
    fn everybody_is_seen_by_the_alias_and_answered_through_it() {
        let links = Links::uniform(2, "delay=5ms").expect("links");
        let shared = Arc::new(Mutex::new(Shared { links, account: Account::default(), queued: 0 }));
        let stopped = Arc::new(AtomicBool::new(false));
        let (of_proxy, stop) = (Arc::clone(&shared), Arc::clone(&stopped));
        let (up, is_up) = std::sync::mpsc::channel();
        let proxy = thread::spawn(move || {
            let mut proxy = Proxy::open(of_proxy, PORT).expect("free");
            up.send(()).expect("the test waits");
            proxy.run(&stop);
        });
        is_up.recv().expect("the proxy is up");
        let (first, second) = (socket(&format!("127.0.0.1:{PORT}")), socket(&format!("127.0.0.2:{PORT}")));
        let client = socket("127.0.0.1:0");
        let mut buffer = [0; 64];
        let start = Instant::now();
        first.send_to(b"from n1", format!("127.128.0.2:{PORT}")).expect("sent");
        let (length, from) = second.recv_from(&mut buffer).expect("arrives");
        assert_eq!((&buffer[..length], from.to_string()), (&b"from n1"[..], format!("127.128.0.1:{PORT}")));
        assert!(Duration::from_millis(4) < start.elapsed());
        client.send_to(b"asks n1", format!("127.128.0.1:{PORT}")).expect("sent");
        let (_, alias) = first.recv_from(&mut buffer).expect("arrives");
        assert_eq!(alias.ip().to_string(), "127.129.0.1");
        second.send_to(b"n2 answers", alias).expect("sent");
        let (length, from) = client.recv_from(&mut buffer).expect("arrives");
        assert_eq!(
            (&buffer[..length], from.to_string()),
            (&b"n2 answers"[..], format!("127.128.0.2:{PORT}"))
        );
        lock(&shared).links.change("isolate n2").expect("a command");
        first.send_to(b"lost", format!("127.128.0.2:{PORT}")).expect("sent");
        client.send_to(b"after it", format!("127.128.0.1:{PORT}")).expect("sent");
        first.recv_from(&mut buffer).expect("arrives");
        assert_eq!(lock(&shared).account.drops.get("cut"), Some(&1));
        stopped.store(true, Ordering::Relaxed);
        proxy.join().expect("ends");
    }
}
