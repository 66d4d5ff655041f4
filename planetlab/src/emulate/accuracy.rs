//! `violet-testbed accuracy`: makes a world, sends UDP between random nodes and compares what arrives, and when, with what
//! the link model was set to.
//!
//! One thread sends at a constant rate from sockets in all namespaces, one receives, both at niceness -20. A datagram
//! carries when it was sent. When it came is told twice: by the receiving kernel's stamp, when the packet is in its
//! socket, which is the emulator's work and what the limit is on; and by the receiving program, which also waits for a
//! processor, as a node does. The difference is the machine being busy.

use std::io::IoSliceMut;
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Arg, ArgMatches, Command, value_parser};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt, sockopt};

use crate::Failure;
use crate::emulate::account::Spread;
use crate::emulate::clean::directory_argument;
use crate::emulate::link::Links;
use crate::emulate::packet;
use crate::emulate::session::{Place, Session, needs_root};
use crate::emulate::{system, world};

const PORT: u16 = 9_000;
const RECEIVE_BUFFER_BYTES: i32 = 8 << 20;
/// Payload of the first fragment and of each further one at an MTU of 1,500, in bytes of the UDP datagram.
const FRAGMENT_BYTES: usize = 1_480;
const UDP_HEADER_BYTES: usize = 8;
/// A datagram starts with when it was sent, in nanoseconds, and the sender's place.
const STAMP_BYTES: usize = 12;
/// Sending is paced in steps of this.
const STEP: Duration = Duration::from_micros(500);
/// Shares are right if they are this near to what was set.
const SHARE_ERROR_MAX: f64 = 0.02;
/// The 99th percentile of the delay's error that is promised up to 16 nodes, and above.
const ERROR_MAX: [Duration; 2] = [Duration::from_millis(3), Duration::from_millis(5)];

/// Describes `accuracy`.
pub fn command() -> Command {
    let number = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("N").default_value(default).help(help)
    };
    Command::new("accuracy")
        .about("Measure the emulator itself: delay error and loss against what was set; needs root on Linux")
        .arg(number("nodes", "16", "Nodes").value_parser(value_parser!(u32).range(2..=250)))
        .arg(
            number("rate", "60000", "Datagrams a second, of all")
                .value_parser(value_parser!(u32).range(1..=1_000_000)),
        )
        .arg(number("seconds", "5", "How long to send").value_parser(value_parser!(u32).range(1..=600)))
        .arg(
            number("bytes", "100", "Bytes of a datagram; above 1,472 in fragments")
                .value_parser(value_parser!(u32).range(12..=60_000)),
        )
        .arg(
            number("delay-ms", "20", "One-way delay of every link")
                .value_parser(value_parser!(u32).range(0..=10_000)),
        )
        .arg(number("loss-percent", "0", "Packets lost, in percent").value_parser(value_parser!(f64)))
        .arg(
            Arg::new("cut")
                .long("cut")
                .num_args(0)
                .help("Cut the nodes into halves for the second half of the time"),
        )
        .arg(directory_argument())
}

struct Plan {
    nodes: usize,
    rate: u32,
    time: Duration,
    bytes: usize,
    delay: Duration,
    loss: f64,
    is_cut: bool,
}

impl Plan {
    fn new(matches: &ArgMatches) -> Result<Self, String> {
        let number = |name: &str| *matches.get_one::<u32>(name).expect("has a default");
        let percent = *matches.get_one::<f64>("loss-percent").expect("has a default");
        if !(0.0..=100.0).contains(&percent) {
            return Err(format!("--loss-percent {percent}: must be 0 to 100"));
        }
        Ok(Self {
            nodes: number("nodes") as usize,
            rate: number("rate"),
            time: Duration::from_secs(number("seconds").into()),
            bytes: number("bytes") as usize,
            delay: Duration::from_millis(number("delay-ms").into()),
            loss: percent / 100.0,
            is_cut: matches.get_flag("cut"),
        })
    }

    fn links(&self) -> Result<Links, String> {
        let change = format!("delay={}us loss={}%", self.delay.as_micros(), self.loss * 100.0);
        Links::uniform(self.nodes, &change)
    }

    fn fragments(&self) -> usize {
        (self.bytes + UDP_HEADER_BYTES).div_ceil(FRAGMENT_BYTES)
    }

    /// The share of datagrams that arrives if no link is cut.
    fn share_whole(&self) -> f64 {
        (1.0 - self.loss).powi(i32::try_from(self.fragments()).expect("at most 41"))
    }

    /// Whether a cut link lies between two nodes: one is in the first half, one is not.
    fn is_across(&self, from: usize, to: usize) -> bool {
        let half = self.nodes / 2;
        (from < half) != (to < half)
    }

    fn error_max(&self) -> Duration {
        ERROR_MAX[usize::from(16 < self.nodes)]
    }
}

/// Does `accuracy`.
pub fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    needs_root()?;
    let plan = Plan::new(matches)?;
    let directory: &PathBuf = matches.get_one("dir").expect("has a default");
    let place = Place::new(directory, None, None)?;
    let session = Session::open(place, plan.links()?)?;
    let measured = measure(&session, &plan);
    let (removal, report) = session.close();
    let (measured, report) = (measured?, report?);
    let mut faults = measured.tell(&plan);
    print!("{report}");
    if report.emulator_limited {
        faults.push("the router was late".into());
    }
    faults.extend(removal.failed);
    faults.iter().for_each(|fault| println!("NOT REACHED: {fault}"));
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

#[derive(Default)]
struct Measured {
    sent: u64,
    /// Of those, sent across the cut while it was there.
    sent_across: u64,
    refused: u64,
    delivered: u64,
    /// Datagrams that came more than once or cannot be read.
    odd: u64,
    seen: Spread,
    stamped: Spread,
    seconds: f64,
}

fn measure(session: &Session, plan: &Plan) -> Result<Measured, String> {
    let nodes = &session.namespaces()[..plan.nodes];
    let open = |(index, namespace)| {
        let address = SocketAddrV4::new(packet::node_address(index), PORT);
        let socket = world::socket_in(namespace, address).map_err(|error| format!("{address}: {error}"))?;
        system::force_receive_buffer(&socket, RECEIVE_BUFFER_BYTES);
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true).map_err(|error| error.to_string())?;
        socket.set_nonblocking(true).map_err(|error| error.to_string())?;
        Ok(socket)
    };
    let sockets: Vec<UdpSocket> = nodes.iter().enumerate().map(open).collect::<Result<_, String>>()?;
    let (is_over, cut_at) = (AtomicBool::new(false), AtomicU64::new(u64::MAX));
    thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&sockets, plan, &is_over));
        if plan.is_cut {
            let remote = session.router().remote();
            let (cut_at, half, nodes, wait) = (&cut_at, plan.nodes / 2, plan.nodes, plan.time / 2);
            scope.spawn(move || {
                thread::sleep(wait);
                let cut = remote.change(&format!("partition n1-n{half}|n{}-n{nodes}", half + 1));
                if cut.is_ok() {
                    cut_at.store(now_nanos(), Ordering::Relaxed);
                }
            });
        }
        let mut measured = send(&sockets, plan, &cut_at);
        thread::sleep(plan.delay + Duration::from_millis(500));
        is_over.store(true, Ordering::Relaxed);
        let received = receiver.join().map_err(|_| "the receiver panicked".to_owned())??;
        measured.delivered = received.delivered;
        measured.odd = received.odd;
        (measured.seen, measured.stamped) = (received.seen, received.stamped);
        if plan.is_cut && cut_at.load(Ordering::Relaxed) == u64::MAX {
            return Err("the cut was refused".into());
        }
        Ok(measured)
    })
}

fn now_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn send(sockets: &[UdpSocket], plan: &Plan, cut_at: &AtomicU64) -> Measured {
    system::take_highest_niceness();
    let mut measured = Measured::default();
    let mut dice = 0x9E37_79B9_7F4A_7C15_u64;
    let mut draw = |below: usize| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        usize::try_from(dice >> 33).unwrap_or(0) % below
    };
    let mut bytes = vec![0; plan.bytes];
    let start = Instant::now();
    while start.elapsed() < plan.time {
        let intended = (start.elapsed().as_secs_f64() * f64::from(plan.rate)) as u64;
        while measured.sent + measured.refused < intended {
            let from = draw(plan.nodes);
            let to = (from + 1 + draw(plan.nodes - 1)) % plan.nodes;
            let now = now_nanos();
            bytes[..8].copy_from_slice(&now.to_be_bytes());
            bytes[8..STAMP_BYTES].copy_from_slice(&u32::try_from(from).unwrap_or(0).to_be_bytes());
            match sockets[from].send_to(&bytes, SocketAddrV4::new(packet::node_address(to), PORT)) {
                Ok(_) => measured.sent += 1,
                Err(_) => measured.refused += 1,
            }
            measured.sent_across +=
                u64::from(plan.is_across(from, to) && cut_at.load(Ordering::Relaxed) <= now);
        }
        thread::sleep(STEP);
    }
    measured.seconds = start.elapsed().as_secs_f64();
    measured
}

fn receive(sockets: &[UdpSocket], plan: &Plan, is_over: &AtomicBool) -> Result<Measured, String> {
    system::take_highest_niceness();
    let mut measured = Measured::default();
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|error| error.to_string())?;
    for (index, socket) in (0_u64..).zip(sockets) {
        epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, index)).map_err(|error| error.to_string())?;
    }
    let mut ready = vec![EpollEvent::empty(); sockets.len()];
    let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
    let mut bytes = vec![0; plan.bytes + 1];
    while !is_over.load(Ordering::Relaxed) {
        let found = epoll.wait(&mut ready, 50_u8).unwrap_or(0);
        for event in &ready[..found] {
            let socket = &sockets[usize::try_from(event.data()).expect("an index")];
            for _ in 0..64 {
                let mut parts = [IoSliceMut::new(&mut bytes)];
                let flags = MsgFlags::MSG_DONTWAIT;
                let Ok(message) =
                    recvmsg::<SockaddrIn>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)
                else {
                    break;
                };
                let seen = now_nanos();
                let stamp = message.cmsgs().ok().and_then(|mut all| all.find_map(stamp_of)).unwrap_or(seen);
                let length = message.bytes;
                measured.note(plan, &bytes[..length], seen, stamp);
            }
        }
    }
    Ok(measured)
}

fn stamp_of(message: ControlMessageOwned) -> Option<u64> {
    match message {
        ControlMessageOwned::ScmTimestampns(at) => {
            Some(u64::try_from(at.tv_sec()).ok()? * 1_000_000_000 + u64::try_from(at.tv_nsec()).ok()?)
        }
        _ => None,
    }
}

impl Measured {
    fn note(&mut self, plan: &Plan, bytes: &[u8], seen: u64, stamp: u64) {
        let Some(sent) = bytes.first_chunk().filter(|_| bytes.len() == plan.bytes) else {
            self.odd += 1;
            return;
        };
        self.delivered += 1;
        let sent = u64::from_be_bytes(*sent);
        let error = |came: u64| Duration::from_nanos(came.saturating_sub(sent)).abs_diff(plan.delay);
        self.seen.add(error(seen), 1);
        self.stamped.add(error(stamp), 1);
    }

    /// Prints the figures; returns what was not reached.
    fn tell(&self, plan: &Plan) -> Vec<String> {
        let open = (self.sent - self.sent_across) as f64 / self.sent.max(1) as f64;
        let wanted = open * plan.share_whole();
        let arrived = self.delivered as f64 / self.sent.max(1) as f64;
        println!(
            "{} nodes, {} B in {} packet(s), {} ms one way, loss {} %: {} sent in {:.1} s ({:.0}/s of {}/s), {} refused",
            plan.nodes,
            plan.bytes,
            plan.fragments(),
            plan.delay.as_millis(),
            plan.loss * 100.0,
            self.sent,
            self.seconds,
            self.sent as f64 / self.seconds,
            plan.rate,
            self.refused
        );
        println!("delivered {} = {:.2} %, as set {:.2} %", self.delivered, arrived * 100.0, wanted * 100.0);
        println!("delay error by the kernel's stamp: {}", self.stamped.summary());
        println!("delay error as the program saw it: {}", self.seen.summary());
        let mut faults = Vec::new();
        if SHARE_ERROR_MAX < (arrived - wanted).abs() {
            faults.push("the delivered share is more than 2 points from what was set".into());
        }
        if plan.error_max() < self.stamped.at(0.99) {
            faults.push(format!("the p99 delay error is above {} ms", plan.error_max().as_millis()));
        }
        if self.sent < (0.98 * f64::from(plan.rate) * self.seconds) as u64 {
            faults.push(
                "the sender was slower than asked; the figures hold for the rate that it reached".into(),
            );
        }
        if 0 < self.odd {
            faults.push(format!("{} datagrams were not as sent", self.odd));
        }
        faults
    }
}
