//! The server: threads, sockets and channels around the core.
//!
//! ```text
//! clients ─▶ client lane ─┐                 ┌─▶ worker 1 … N ─▶ own send sockets
//! members ─▶ peer lane ───┴─▶ listener ─────┤ (small batches: the listener itself)
//! gossip  ─▶ gossip lane ────▶ controller   └─ batches come home to the pool
//! members ◀──── TCP ────▶ bulk ───┘
//! ```
//!
//! [`Server::start`] opens everything and starts the threads, once; [`Server::stop`] ends and joins
//! them. The core is handed datagrams, the time and an outbox, and does no I/O itself. Nobody but
//! `main` imports this module.

mod alarm;
mod batch;
mod bulk;
mod clock;
mod controller;
mod job;
mod listener;
mod portable;
mod sockets;
pub mod startup;
#[cfg(test)]
mod tests;
mod transport;
#[cfg(target_os = "linux")]
mod udp;
mod worker;

pub use clock::Clock;
pub use sockets::{Granted, OpenError};

use crate::config::{Config, Lanes, OrAuto, Switch};
use crate::control::{Control, Planes};
use crate::ids::MemberId;
use crate::metrics::Metrics;
use crate::node::{Birth, Node};
use crate::outbox::Outbox;
use crate::peer::bulk::BulkKey;
use crate::peer::{GOSSIP_MAGIC, PEER_MAGIC};
use crate::time::Instant;
use alarm::Alarm;
use batch::{Batch, BatchPool, SLOT_BYTES};
use bulk::{Bulk, Identity, Times};
use controller::{Command, Controller, GossipInlet};
use job::{DataPlane, Job, Runner, Shared};
use listener::{Intended, Listener, ReceiveLane};
use mio::net::TcpListener;
use mio::{Poll, Waker};
use sockets::{Plan, SendSockets, Sharing, Sockets};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use transport::{Means, Receiver, Sender};
use worker::Worker;

/// Longest wait for the controller when the node leaves.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(1);
/// Below this a batch is not worth waking a worker for.
const INLINE_BATCH: usize = 16;
/// How often a port is drawn when none was asked for: TCP may have what UDP has not.
const PORT_DRAWS_MAX: usize = 16;
/// Status of a process that ends because one of its threads broke; a shell sees a panic's status.
const BROKEN_STATUS: i32 = 101;

fn is_peer(bytes: &[u8]) -> bool {
    bytes.starts_with(&PEER_MAGIC)
}

fn is_gossip(bytes: &[u8]) -> bool {
    bytes.starts_with(&GOSSIP_MAGIC)
}

/// Why a server could not start; one line.
#[derive(Debug)]
pub enum StartError {
    /// The sockets could not be opened.
    Sockets(OpenError),
    /// The port could not be opened for bulk transfers.
    Bulk(SocketAddr, io::Error),
    /// The system refused a poll, a waker or a thread.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sockets(error) => error.fmt(f),
            Self::Bulk(address, error) if error.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "{address} is taken (TCP, for bulk transfers)")
            }
            Self::Bulk(address, error) => write!(f, "cannot listen on {address} (TCP): {error}"),
            Self::System(error) => write!(f, "the system refused a thread or a poll: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<OpenError> for StartError {
    fn from(error: OpenError) -> Self {
        Self::Sockets(error)
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// A running node.
#[derive(Debug)]
pub struct Server {
    node: Arc<Node>,
    address: SocketAddr,
    granted: Granted,
    workers: usize,
    is_steered: bool,
    data_threads: DataThreads,
    controller: JoinHandle<()>,
    bulk: Bulk,
    commands: flume::Sender<Command>,
    controller_waker: Arc<Waker>,
}

impl Server {
    /// Opens the sockets, builds the node and starts the threads.
    ///
    /// # Errors
    /// [`StartError`], most often because the port is taken.
    pub fn start(config: &Config, clock: Clock, mut birth: Birth) -> Result<Self, StartError> {
        let workers = worker_count(config.workers);
        let (sockets, bulk_listener) = open(plan(config, workers))?;
        let (address, granted, is_steered) = (sockets.address, sockets.granted.clone(), sockets.is_steered());
        let Sockets { clients, members, mut senders, .. } = sockets;
        // With port 0 the system has chosen one, and the node must know itself by it.
        birth.members.iter_mut().filter(|member| **member == config.listen).for_each(|own| *own = address);
        let config = &Config { listen: address, ..config.clone() };
        let controller_senders = senders.pop().expect("the plan counts the controller");
        let (peers, gossip) = members.map(|members| (members.peers, members.gossip)).unzip();

        let metrics = Arc::new(Metrics::default());
        let Planes { node, control } = Control::start(config, &birth, Arc::clone(&metrics));

        let controller_poll = Poll::new()?;
        let controller_waker = Arc::new(Waker::new(controller_poll.registry(), controller::WAKER)?);
        let (gossip_inlet, passed_on) = GossipInlet::new(Arc::clone(&controller_waker));
        let lanes = receive_lanes(clients, peers, config);
        let parts =
            Parts { lanes, gossip: gossip_inlet, senders, clock, metrics: &metrics, slot_bytes: SLOT_BYTES };
        let data_threads = start_data_plane(&node, config, parts)?;
        let (bulk, bulk_line) = bulk::start(bulk::Parts {
            listener: bulk_listener,
            plane: Arc::clone(&node),
            identity: identity(config, &birth),
            clock,
            sheet: metrics.sheet(),
            times: Times::default(),
            controller: Arc::clone(&controller_waker),
        })?;
        let (commands, commands_end) = flume::bounded(16);
        let controller = Controller {
            control,
            node: Arc::clone(&node),
            poll: controller_poll,
            lane: gossip.map(|socket| Receiver::new(socket, config.batch_datagrams, Means::Batched)),
            passed_on,
            commands: commands_end,
            bulk: bulk_line,
            bulk_refused: Vec::new(),
            batch: Batch::new(config.batch_datagrams, SLOT_BYTES)?,
            shared: Arc::clone(&data_threads.shared),
            runner: runner(clock, &metrics, controller_senders, send_means(config)),
            ticked_at: Instant::ZERO,
        };
        let controller = spawn("v-control".into(), move || controller.run())?;
        Ok(Self {
            node,
            address,
            granted,
            workers,
            is_steered,
            data_threads,
            controller,
            bulk,
            commands,
            controller_waker,
        })
    }

    /// The node that it runs.
    #[must_use]
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The buffers that the kernel granted.
    #[must_use]
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// Worker threads.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Whether the kernel sorts the datagrams (otherwise the listener does).
    #[must_use]
    pub fn is_steered(&self) -> bool {
        self.is_steered
    }

    /// Leaves the cluster and returns when the others have been told, after about 300 ms.
    pub fn leave(&self) {
        let (done, is_done) = flume::bounded(1);
        self.ask(Command::Leave(done));
        // If the controller does not answer, the others will notice by themselves.
        let _ = is_done.recv_timeout(LEAVE_TIME_MAX);
    }

    /// Ends and joins all threads.
    pub fn stop(self) {
        self.ask(Command::Stop);
        join(self.controller);
        self.bulk.stop();
        self.data_threads.stop();
    }

    fn ask(&self, command: Command) {
        // Fails only when the controller is gone, and then the process is about to end.
        let _ = self.commands.send(command);
        let _ = self.controller_waker.wake();
    }
}

/// What the data plane's threads are made of.
struct Parts<'a> {
    lanes: Vec<ReceiveLane>,
    gossip: GossipInlet,
    /// One set for each worker, and one for the listener.
    senders: Vec<SendSockets>,
    clock: Clock,
    metrics: &'a Metrics,
    slot_bytes: usize,
}

/// Listener and workers.
#[derive(Debug)]
struct DataThreads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl DataThreads {
    /// The listener ends first and hangs up, which ends the workers once the channel is empty.
    fn stop(self) {
        self.shared.stop();
        self.threads.into_iter().for_each(join);
    }
}

/// Opens the UDP sockets, and the same port for TCP.
fn open(plan: Plan) -> Result<(Sockets, TcpListener), StartError> {
    let mut draws = if plan.address.port() == 0 { PORT_DRAWS_MAX } else { 1 };
    loop {
        let sockets = Sockets::open(plan)?;
        draws -= 1;
        match bulk::bind(sockets.address) {
            Ok(listener) => return Ok((sockets, listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && 0 < draws => {}
            Err(error) => return Err(StartError::Bulk(sockets.address, error)),
        }
    }
}

/// Who this node is to the members that it talks to by the bulk transport.
fn identity(config: &Config, birth: &Birth) -> Identity {
    Identity {
        me: MemberId::of(config.address()),
        generation: birth.generation(),
        key: BulkKey::new(&birth.cluster_key),
    }
}

fn start_data_plane<P: DataPlane>(
    plane: &Arc<P>,
    config: &Config,
    mut parts: Parts<'_>,
) -> io::Result<DataThreads> {
    let means = send_means(config);
    let (clock, metrics) = (parts.clock, parts.metrics);
    let poll = Poll::new()?;
    let shared = Arc::new(Shared::new(Waker::new(poll.registry(), listener::WAKER)?));
    let (jobs, jobs_end) = crossbeam_channel::bounded::<Job>(config.job_batches);
    let listener_senders = parts.senders.pop().expect("the plan counts the listener");
    // Every batch that can be in use at once: in the channel, at the workers, and two at the listener.
    let batches = config.job_batches + parts.senders.len() + 2;
    let pool = BatchPool::new(batches, config.batch_datagrams, parts.slot_bytes)?;
    let listener = Listener {
        plane: Arc::clone(plane),
        alarm: Alarm::new(poll.registry())?,
        poll,
        lanes: parts.lanes,
        gossip: parts.gossip,
        jobs,
        waiting: jobs_end.clone(),
        batch: pool.take().expect("all batches are idle"),
        pool,
        inline_batch: inline_batch(config.inline_batch),
        shared: Arc::clone(&shared),
        runner: runner(clock, metrics, listener_senders, means),
        ticked_at: Instant::ZERO,
    };
    let mut threads = vec![spawn("v-listener".into(), move || listener.run())?];
    for (index, senders) in parts.senders.into_iter().enumerate() {
        let worker = Worker {
            plane: Arc::clone(plane),
            jobs: jobs_end.clone(),
            shared: Arc::clone(&shared),
            runner: runner(clock, metrics, senders, means),
        };
        let run = move || {
            worker.run();
            Ok(())
        };
        threads.push(spawn(format!("v-worker-{}", index + 1), run)?);
    }
    Ok(DataThreads { shared, threads })
}

fn runner(clock: Clock, metrics: &Metrics, senders: SendSockets, means: Means) -> Runner {
    Runner { clock, outbox: Outbox::new(metrics.sheet()), sender: Sender::new(senders, means) }
}

/// The lanes in the order in which the listener serves them: members first.
fn receive_lanes(
    clients: mio::net::UdpSocket,
    peers: Option<mio::net::UdpSocket>,
    config: &Config,
) -> Vec<ReceiveLane> {
    let is_steered = peers.is_some();
    let lane = |socket, intended| ReceiveLane {
        intended,
        receiver: Receiver::new(socket, config.batch_datagrams, means(config, config.receive_segments)),
        is_ready: false,
    };
    let intended = if is_steered { Intended::Clients } else { Intended::All };
    peers.map(|peers| lane(peers, Intended::Peers)).into_iter().chain([lane(clients, intended)]).collect()
}

fn plan(config: &Config, workers: usize) -> Plan {
    Plan {
        address: config.listen,
        lanes: config.lanes,
        sharing: Sharing::of(config),
        // The listener and the controller send, too.
        threads: workers + 2,
        receive_bytes: config.receive_buffer_kib * 1024,
        send_bytes: config.send_buffer_kib * 1024,
    }
}

/// A shared lane is for systems without batched calls, and for comparison with them.
fn means(config: &Config, segments: Switch) -> Means {
    match (config.lanes, segments) {
        (Lanes::Shared, _) => Means::Plain,
        (Lanes::Steered, Switch::Off) => Means::Batched,
        (Lanes::Steered, Switch::On) => Means::Segmented,
    }
}

fn send_means(config: &Config) -> Means {
    means(config, config.send_segments)
}

/// The number of workers: as set, or one less than the cores, since the listener needs one, too.
fn worker_count(setting: usize) -> usize {
    if setting == 0 { cores().saturating_sub(1).max(1) } else { setting }
}

/// Up to how many datagrams the listener works off itself. On one core a worker would only take turns with it.
fn inline_batch(setting: OrAuto) -> usize {
    match setting {
        OrAuto::Number(datagrams) => datagrams,
        OrAuto::Auto if cores() == 1 => usize::MAX,
        OrAuto::Auto => INLINE_BATCH,
    }
}

/// Cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Starts a thread whose end by error or panic is the end of the process: each is essential, and a
/// node that has lost one must not go on pretending. (Panics inside jobs never get here.)
fn spawn(name: String, body: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<JoinHandle<()>> {
    let shown = name.clone();
    Builder::new().name(name).spawn(move || match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            eprintln!("violet: thread {shown} cannot go on: {error}");
            std::process::exit(BROKEN_STATUS);
        }
        // The panic's own message is on stderr already.
        Err(_) => std::process::exit(BROKEN_STATUS),
    })
}

fn join(thread: JoinHandle<()>) {
    thread.join().expect("the thread's body catches its panics");
}
