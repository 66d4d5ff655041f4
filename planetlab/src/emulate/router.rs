//! The router: one thread that reads packets from all devices, asks the link model what becomes of each, and writes them
//! to their receivers' devices when they are due.
//!
//! While packets are under way the thread wakes every [`TICK`], reads what came and releases what is due; waking for each
//! packet would burn a processor on context switches and starve the nodes. A packet is read half a tick late on average and
//! would be released half a tick late, so it counts as come half a tick before the look that found it and leaves up to
//! half a tick early: the error is centred. With nothing under way the thread blocks. It runs with real-time priority
//! where that is allowed, because a starved router adds delay, and sleeps in every round, so that it starves nobody.
//!
//! Everything happens in this thread, orders too, so nothing is locked. What is not from a node's own address to another
//! node of the network is dropped and counted: nothing gets out.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde_json::{Value, json};
use violet_link::{Delivery, Outcome, Parcel};

use crate::emulate::account::{Account, Report, stolen};
use crate::emulate::link::Links;
use crate::emulate::packet::{self, Head, Places};
use crate::emulate::pcap::Capture;
use crate::emulate::system;

/// How often the router looks while packets are under way. Measured: longer ticks show as error, shorter ones as load.
pub const TICK: Duration = Duration::from_micros(250);
/// A round that took longer than a tick still sleeps this long, so that real-time priority never becomes a spin.
const SLEEP_MIN: Duration = Duration::from_micros(40);
/// Above the usual thread, below what the kernel itself needs.
const PRIORITY: i32 = 10;
/// Packets under way at most: at 1,500 bytes about 400 MB. More are dropped and counted.
const QUEUED_MAX: usize = 262_144;
/// Packets read from one device in one look, so that one flood does not hold up the others.
const READ_BATCH: usize = 64;
/// Looks at all devices in one round while they have more.
const LOOKS_MAX: usize = 8;
/// Buffers kept for later packets.
const SPARE_MAX: usize = 16_384;
/// Longest packet of a TUN device.
const PACKET_BYTES_MAX: usize = 65_535;
/// Wakes the router out of a wait: the number that no device has.
const BELL: u64 = u64::MAX;

/// What a router can be told.
enum Order {
    /// A line of the control language.
    Change(String),
    Report,
    Capture(String, PathBuf),
    Stop,
}

type Answer = Result<Value, String>;

/// A running router.
pub struct Router {
    orders: Sender<(Order, SyncSender<Answer>)>,
    bell: Arc<EventFd>,
    thread: JoinHandle<Report>,
    /// Why the thread has no real-time priority, if it has none.
    pub real_time: Option<String>,
}

/// Gives orders to a router from any thread.
#[derive(Clone)]
pub struct Remote {
    orders: Sender<(Order, SyncSender<Answer>)>,
    bell: Arc<EventFd>,
}

impl Router {
    /// Starts to route between devices. Time in `links` is counted from now.
    pub fn start(devices: Vec<File>, links: Links) -> io::Result<Self> {
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for (place, device) in (0_u64..).zip(&devices) {
            epoll.add(device, EpollEvent::new(EpollFlags::EPOLLIN, place))?;
        }
        epoll.add(&*bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        let (orders, incoming) = channel();
        let (started, priority) = sync_channel(1);
        let thread_bell = Arc::clone(&bell);
        let thread = thread::Builder::new().name("router".into()).spawn(move || {
            let real_time = system::take_real_time_priority(PRIORITY).err().map(|error| error.to_string());
            let _nobody_waits = started.send(real_time.clone());
            Routing::new(devices, links, epoll, thread_bell, incoming, real_time).run()
        })?;
        let real_time = priority.recv().unwrap_or_else(|_| Some("the thread did not start".into()));
        Ok(Self { orders, bell, thread, real_time })
    }

    /// A handle that gives orders.
    pub fn remote(&self) -> Remote {
        Remote { orders: self.orders.clone(), bell: Arc::clone(&self.bell) }
    }

    /// Whether the thread has ended by itself, which it only does when it panicked.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Stops routing; the devices vanish. Returns the last report.
    pub fn stop(self) -> Result<Report, String> {
        let _answered_or_gone = self.remote().give(Order::Stop);
        self.thread.join().map_err(|_| "the router panicked; its last words are above".to_owned())
    }
}

impl Remote {
    /// Does one line of the control language, at once.
    pub fn change(&self, line: &str) -> Answer {
        self.give(Order::Change(line.to_owned()))
    }

    /// The report at this moment.
    pub fn report(&self) -> Answer {
        self.give(Order::Report)
    }

    /// Writes the packets of a node to a file from now on.
    pub fn capture(&self, node: &str, file: PathBuf) -> Answer {
        self.give(Order::Capture(node.to_owned(), file))
    }

    fn give(&self, order: Order) -> Answer {
        let gone = || "the router has ended".to_owned();
        let (answer, answered) = sync_channel(1);
        self.orders.send((order, answer)).map_err(|_| gone())?;
        self.bell.write(1).map_err(|error| error.to_string())?;
        answered.recv().map_err(|_| gone())?
    }
}

/// A packet under way. Ordered by when it is due, then by when it came, so that equal times keep their order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct UnderWay {
    due: Duration,
    number: u64,
    to: usize,
    damaged: bool,
    bytes: Vec<u8>,
}

struct Routing {
    devices: Vec<File>,
    places: Places,
    links: Links,
    epoll: Epoll,
    bell: Arc<EventFd>,
    orders: Receiver<(Order, SyncSender<Answer>)>,
    real_time: Option<String>,
    start: Instant,
    stolen: Duration,
    queue: BinaryHeap<Reverse<UnderWay>>,
    next_number: u64,
    spare: Vec<Vec<u8>>,
    account: Account,
    captures: Vec<Option<Capture>>,
    /// When the devices were last looked at, and the moment that the packets found then count as come.
    looked: Duration,
    came: Duration,
    /// How long a packet found by this look may have waited beyond the tick.
    unseen: Duration,
    ready: Vec<EpollEvent>,
    buffer: Box<[u8]>,
    is_stopping: bool,
}

impl Routing {
    fn new(
        devices: Vec<File>,
        links: Links,
        epoll: Epoll,
        bell: Arc<EventFd>,
        orders: Receiver<(Order, SyncSender<Answer>)>,
        real_time: Option<String>,
    ) -> Self {
        let count = devices.len();
        Self {
            devices,
            places: links.places(),
            links,
            epoll,
            bell,
            orders,
            real_time,
            start: Instant::now(),
            stolen: stolen(),
            queue: BinaryHeap::new(),
            next_number: 0,
            spare: Vec::new(),
            account: Account::default(),
            captures: (0..count).map(|_| None).collect(),
            looked: Duration::ZERO,
            came: Duration::ZERO,
            unseen: Duration::ZERO,
            ready: vec![EpollEvent::empty(); count + 1],
            buffer: vec![0; PACKET_BYTES_MAX].into_boxed_slice(),
            is_stopping: false,
        }
    }

    fn run(mut self) -> Report {
        while !self.is_stopping {
            let ticking = !self.queue.is_empty();
            if ticking {
                self.sleep_to_next_tick();
            }
            self.look(ticking);
            self.play_timeline();
            self.release();
        }
        self.report()
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep_to_next_tick(&self) {
        let rest = (self.looked + TICK).saturating_sub(self.now());
        thread::sleep(rest.max(SLEEP_MIN));
    }

    /// Reads what came. Waits for it if nothing is under way.
    fn look(&mut self, ticking: bool) {
        let timeout = if ticking { EpollTimeout::ZERO } else { self.wait_max() };
        let mut ready = std::mem::take(&mut self.ready);
        for round in 0..LOOKS_MAX {
            let timeout = if round == 0 { timeout } else { EpollTimeout::ZERO };
            let found = self.epoll.wait(&mut ready, timeout).unwrap_or(0);
            if round == 0 {
                self.stamp(ticking);
            }
            let mut has_more = false;
            for event in &ready[..found] {
                match usize::try_from(event.data()) {
                    Ok(place) if place < self.devices.len() => has_more |= self.read(place),
                    _ => self.take_orders(),
                }
            }
            if !has_more {
                break;
            }
        }
        self.ready = ready;
    }

    /// Notes the time of a look, and how long a packet may have waited for it.
    fn stamp(&mut self, ticking: bool) {
        let now = self.now();
        if ticking {
            self.unseen = now.saturating_sub(self.looked + TICK);
            self.came = self.came.max(now.saturating_sub(TICK / 2));
        } else {
            self.unseen = Duration::ZERO;
            self.came = self.came.max(now);
        }
        self.looked = now;
    }

    /// How long the router may sleep with nothing under way: to the timeline's next event.
    fn wait_max(&self) -> EpollTimeout {
        let Some(next) = self.links.next_event() else { return EpollTimeout::NONE };
        let millis = next.saturating_sub(self.now()).as_millis() + 1;
        EpollTimeout::from(u16::try_from(millis).unwrap_or(u16::MAX))
    }

    /// Reads one device; whether it may have more.
    fn read(&mut self, place: usize) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut packets = 0;
        while packets < READ_BATCH {
            let Ok(length) = (&self.devices[place]).read(&mut buffer) else { break };
            packets += 1;
            self.take_in(place, &buffer[..length]);
        }
        self.buffer = buffer;
        packets == READ_BATCH
    }

    fn take_in(&mut self, from: usize, packet: &[u8]) {
        self.account.packets += 1;
        self.account.bytes += packet.len() as u64;
        self.account.read_late.add(self.unseen, 1);
        if let Some(capture) = &mut self.captures[from] {
            capture.add(packet);
        }
        let Some(head) = Head::parse(packet) else { return self.account.drop("not IPv4") };
        if self.places.of(head.source) != Some(from) {
            return self.account.drop("not from its node's address");
        }
        let Some(to) = self.places.of(head.destination) else {
            return self.account.drop("for nobody in this network");
        };
        let parcel = Parcel { bytes: packet.len(), group: head.group };
        match self.links.send(self.came, from, to, parcel) {
            Outcome::Lost(cause) => self.account.drop(cause.name()),
            outcome @ Outcome::Arrives(..) => {
                outcome.deliveries().for_each(|delivery| self.put_under_way(to, delivery, packet));
            }
        }
    }

    fn put_under_way(&mut self, to: usize, delivery: Delivery, packet: &[u8]) {
        if QUEUED_MAX <= self.queue.len() {
            return self.account.drop("router full");
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(packet);
        if let Some(bit) = delivery.damaged_bit {
            packet::damage(&mut bytes, bit);
        }
        let (number, damaged) = (self.next_number, delivery.damaged_bit.is_some());
        self.next_number += 1;
        self.queue.push(Reverse(UnderWay { due: delivery.at, number, to, damaged, bytes }));
        self.account.queued_max = self.account.queued_max.max(self.queue.len());
    }

    /// Writes what is due, up to half a tick early.
    fn release(&mut self) {
        let mut now = self.now();
        while let Some(Reverse(first)) = self.queue.peek() {
            if now + TICK / 2 < first.due {
                break;
            }
            let Some(Reverse(parcel)) = self.queue.pop() else { break };
            self.deliver(&parcel);
            now = self.now();
            self.account.release_late.add(now.saturating_sub(parcel.due), 1);
            if self.spare.len() < SPARE_MAX {
                self.spare.push(parcel.bytes);
            }
        }
    }

    fn deliver(&mut self, parcel: &UnderWay) {
        if let Some(capture) = &mut self.captures[parcel.to] {
            capture.add(&parcel.bytes);
        }
        match (&self.devices[parcel.to]).write(&parcel.bytes) {
            Ok(_) => {
                self.account.delivered += 1;
                self.account.damaged += u64::from(parcel.damaged);
            }
            // With a bit of the version flipped it is no IP packet any more.
            Err(_) if parcel.damaged => self.account.drop("damaged beyond delivery"),
            Err(_) => self.account.drop("receiver's device refused it"),
        }
    }

    fn play_timeline(&mut self) {
        let now = self.now();
        for event in self.links.play(now) {
            eprintln!("violet-testbed: at {:.3} s: {event}", now.as_secs_f64());
        }
    }

    fn take_orders(&mut self) {
        let _rung = self.bell.read();
        loop {
            match self.orders.try_recv() {
                Ok((order, answer)) => {
                    let done = self.do_order(order);
                    let _nobody_waits = answer.send(done);
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.is_stopping = true;
                    return;
                }
            }
        }
    }

    fn do_order(&mut self, order: Order) -> Answer {
        match order {
            Order::Change(line) => self.links.change(&line).map(|done| json!({"done": done})),
            Order::Report => serde_json::to_value(self.report()).map_err(|error| error.to_string()),
            Order::Capture(node, file) => {
                let place = self.links.place_named(&node)?;
                let capture =
                    Capture::start(&file).map_err(|error| format!("{}: {error}", file.display()))?;
                self.captures[place] = Some(capture);
                Ok(json!({"capturing": file}))
            }
            Order::Stop => {
                self.is_stopping = true;
                Ok(Value::Null)
            }
        }
    }

    fn report(&self) -> Report {
        let mut report = self.account.report(self.queue.len(), self.now(), processor_time());
        report.real_time.clone_from(&self.real_time);
        report.steal_seconds = stolen().saturating_sub(self.stolen).as_secs_f64();
        let left_out: u64 = self.captures.iter().flatten().map(|capture| capture.left_out).sum();
        if 0 < left_out {
            report.drops.insert("left out of captures only".into(), left_out);
        }
        report
    }
}

/// What the calling thread has used of a processor.
pub fn processor_time() -> Duration {
    let used = getrusage(UsageWho::RUSAGE_THREAD).map(|usage| usage.user_time() + usage.system_time());
    used.map_or(Duration::ZERO, |used| {
        Duration::from_micros(u64::try_from(used.num_microseconds()).unwrap_or(0))
    })
}
