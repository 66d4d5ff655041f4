//! Tests of sockets ([`transport`]) and of threads, with real datagrams on loopback and a stand-in for the node.
//!
//! Nothing here sleeps or measures time: every wait is for a count or a reply, with a generous limit.

mod transport;

use super::batch::Batch;
use super::sockets::{OpenError, Plan, Sockets};
use super::transport::{Means, Receiver, Sender};
use super::*;
use crate::metrics::Metric;
use crate::outbox::{Datagram, Lane};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicU64, Ordering};

/// Limit of every wait; reached only when something is broken.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::yield_now();
    }
}

/// Sockets for a listener and one worker.
fn open(address: &str, lanes: Lanes) -> Sockets {
    let address = address.parse().expect("an address");
    let sharing = Sharing::default();
    let plan = Plan { address, lanes, sharing, threads: 2, receive_bytes: 1 << 20, send_bytes: 1 << 18 };
    Sockets::open(plan).expect("free sockets")
}

fn client(server: SocketAddr) -> UdpSocket {
    let any = SocketAddr::new(server.ip(), 0);
    let socket = UdpSocket::bind(any).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    socket.connect(server).expect("connected");
    socket
}

type Handle = dyn Fn(Instant, &Datagram<'_>, &mut Outbox) + std::marker::Send + Sync;

/// Does with a datagram what a test wants.
struct StandIn {
    handle: Box<Handle>,
    deadline: AtomicU64,
}

impl DataPlane for StandIn {
    fn handle(&self, now: Instant, datagram: &Datagram<'_>, outbox: &mut Outbox) {
        (self.handle)(now, datagram, outbox);
    }
    fn tick(&self, _now: Instant, outbox: &mut Outbox) {
        self.deadline.store(u64::MAX, Ordering::SeqCst);
        outbox.count(Metric::Fences);
    }
    fn next_deadline(&self) -> Instant {
        Instant::from_nanos(self.deadline.load(Ordering::SeqCst))
    }
}

/// Listener and workers around a stand-in.
struct Bench {
    plane: Arc<StandIn>,
    metrics: Metrics,
    address: SocketAddr,
    threads: DataThreads,
    gossip: flume::Receiver<controller::PassedOn>,
    /// The controller's poll, which its waker needs.
    _poll: Poll,
}

impl Bench {
    fn start(config: &Config, handle: Box<Handle>) -> Self {
        let Sockets { address, clients, members, senders, .. } = open("127.0.0.1:0", config.lanes);
        let metrics = Metrics::default();
        let plane = Arc::new(StandIn { handle, deadline: AtomicU64::new(u64::MAX) });
        let poll = Poll::new().expect("a poll");
        let waker = Arc::new(Waker::new(poll.registry(), controller::WAKER).expect("a waker"));
        let (inlet, gossip) = GossipInlet::new(waker);
        let lanes = receive_lanes(clients, members.map(|m| m.peers), config);
        let clock = Clock::start();
        let parts = Parts { lanes, gossip: inlet, senders, clock, metrics: &metrics, slot_bytes: 1_000 };
        let threads = start_data_plane(&plane, config, parts).expect("threads");
        Self { plane, metrics, address, threads, gossip, _poll: poll }
    }

    fn totals<const N: usize>(&self, metrics: [Metric; N]) -> [u64; N] {
        metrics.map(|metric| self.metrics.total(metric))
    }

    fn wait_for(&self, metric: Metric, total: u64) {
        wait_until(&format!("{} = {total}", metric.name()), || total <= self.metrics.total(metric));
    }
}

fn configs() -> impl Iterator<Item = Config> {
    let lanes = [Lanes::Steered, Lanes::Shared];
    lanes.into_iter().flat_map(|lanes| {
        [0, 16].map(|number| Config {
            lanes,
            inline_batch: OrAuto::Number(number),
            workers: 1,
            ..Config::default()
        })
    })
}

fn echo(datagram: &Datagram<'_>, outbox: &mut Outbox) {
    outbox.count(Metric::Answered);
    outbox.send(Lane::Client, datagram.from, |buffer| buffer.extend_from_slice(datagram.bytes));
}

#[test]
fn every_request_is_answered_and_a_panic_costs_one() {
    for config in configs() {
        let bench = Bench::start(
            &config,
            Box::new(|_, datagram, outbox| {
                assert_ne!(datagram.bytes, b"planted panic");
                echo(datagram, outbox);
            }),
        );
        let client = client(bench.address);
        let mut buffer = [0; 64];
        for number in 0..100_u8 {
            client.send(b"planted panic").expect("sent");
            client.send(&[number; 20]).expect("sent");
            let bytes = client.recv(&mut buffer).expect("an answer");
            assert_eq!(buffer[..bytes], [number; 20]);
        }
        client.send(&[0; 2_000]).expect("sent");
        bench.wait_for(Metric::DroppedTruncated, 1);
        let counted = [Metric::ClientDatagrams, Metric::Answered, Metric::Panics, Metric::DroppedPanic];
        assert_eq!(bench.totals(counted), [201, 100, 100, 100]);
        let [inline, queued] = bench.totals([Metric::BatchesInline, Metric::BatchesQueued]);
        assert!(if config.inline_batch == OrAuto::Number(0) {
            inline == 0 && 0 < queued
        } else {
            0 < inline
        });
        bench.threads.stop();
    }
}

#[test]
fn overload_sheds_clients_first_then_members_and_counts_both() {
    for lanes in [Lanes::Steered, Lanes::Shared] {
        let config = Config {
            lanes,
            workers: 1,
            inline_batch: OrAuto::Number(0),
            batch_datagrams: 1,
            job_batches: 4,
            ..Config::default()
        };
        let (entered, has_entered) = crossbeam_channel::unbounded();
        let (open, gate) = crossbeam_channel::unbounded::<()>();
        let bench = Bench::start(
            &config,
            Box::new(move |_, datagram, outbox| {
                if datagram.bytes == b"block" {
                    entered.send(()).expect("the test listens");
                    gate.recv_timeout(PATIENCE).expect("the gate opens");
                }
                echo(datagram, outbox);
            }),
        );
        let client = client(bench.address);
        client.send(b"block").expect("sent");
        has_entered.recv_timeout(PATIENCE).expect("the worker blocks");
        for _ in 0..5 {
            client.send(b"client").expect("sent");
        }
        bench.wait_for(Metric::ShedFull, 3);
        for _ in 0..5 {
            client.send(b"VltP member").expect("sent");
        }
        bench.wait_for(Metric::PeerShed, 3);
        open.send(()).expect("the worker waits");
        bench.wait_for(Metric::Answered, 5);
        let counted = [
            Metric::ClientDatagrams,
            Metric::ShedFull,
            Metric::PeerDatagrams,
            Metric::PeerShed,
            Metric::Answered,
        ];
        assert_eq!(bench.totals(counted), [6, 3, 5, 3, 5], "{lanes:?}");
        bench.threads.stop();
    }
}

#[test]
fn the_listener_works_too_when_the_channel_is_half_full() {
    let config = Config {
        workers: 1,
        inline_batch: OrAuto::Number(2),
        batch_datagrams: 4,
        job_batches: 2,
        ..Config::default()
    };
    let (open_listener, listener_gate) = crossbeam_channel::unbounded::<()>();
    let (open_worker, worker_gate) = crossbeam_channel::unbounded::<()>();
    let bench = Bench::start(
        &config,
        Box::new(move |_, datagram, outbox| {
            let is_worker = std::thread::current().name().is_some_and(|name| name.starts_with("v-worker"));
            if is_worker {
                // Any error means that the gate stays open from now on.
                let _ = worker_gate.recv_timeout(PATIENCE);
            } else if datagram.bytes == b"gather" {
                listener_gate.recv_timeout(PATIENCE).expect("the gate opens");
            }
            echo(datagram, outbox);
        }),
    );
    let client = client(bench.address);
    client.send(b"gather").expect("sent");
    bench.wait_for(Metric::BatchesInline, 1);
    for _ in 0..16 {
        client.send(b"request").expect("sent");
    }
    open_listener.send(()).expect("the listener waits");
    // The worker holds one batch and the channel another; the rest has nowhere else to go.
    bench.wait_for(Metric::BatchesInline, 2);
    drop(open_worker);
    bench.wait_for(Metric::Answered, 17);
    assert_eq!(bench.totals([Metric::ClientDatagrams, Metric::ShedFull, Metric::Answered]), [17, 0, 17]);
    bench.threads.stop();
}

#[test]
fn gossip_on_a_shared_lane_goes_to_the_controller() {
    let config = Config { lanes: Lanes::Shared, workers: 1, ..Config::default() };
    let bench = Bench::start(&config, Box::new(|_, datagram, outbox| echo(datagram, outbox)));
    let client = client(bench.address);
    for bytes in [&b"VltG1"[..], b"request", b"VltP2"] {
        client.send(bytes).expect("sent");
    }
    bench.wait_for(Metric::Answered, 2);
    assert!(bench.gossip.recv_timeout(PATIENCE).is_ok());
    assert!(bench.gossip.is_empty());
    assert_eq!(bench.totals([Metric::ClientDatagrams, Metric::PeerDatagrams]), [1, 1]);
    bench.threads.stop();
}

#[test]
fn a_deadline_that_a_worker_sets_is_kept_by_the_listener() {
    let config = Config { workers: 1, inline_batch: OrAuto::Number(0), ..Config::default() };
    let bench = Bench::start(&config, Box::new(|_, datagram, outbox| echo(datagram, outbox)));
    bench.plane.deadline.store(1, Ordering::SeqCst);
    client(bench.address).send(b"wake up").expect("sent");
    bench.wait_for(Metric::Fences, 1);
    bench.threads.stop();
}

#[test]
fn the_listener_is_woken_only_for_earlier_deadlines() {
    let mut poll = Poll::new().expect("a poll");
    let shared = Shared::new(Waker::new(poll.registry(), listener::WAKER).expect("a waker"));
    let mut events = mio::Events::with_capacity(4);
    let mut is_woken = || {
        poll.poll(&mut events, Some(Duration::ZERO)).expect("polled");
        !events.is_empty()
    };
    let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
    assert_eq!(shared.announce_sleep(at(9), || at(7)), at(7));
    shared.wake_for(|| at(10));
    shared.wake_for(|| Instant::FAR);
    assert!(!is_woken());
    shared.wake_for(|| at(8));
    assert!(is_woken());
    // It is on its way already.
    shared.wake_for(|| at(7));
    assert!(!is_woken());
}

#[test]
fn a_server_starts_leaves_and_stops() {
    for lanes in [Lanes::Steered, Lanes::Shared] {
        let listen = "127.0.0.1:0".parse().expect("an address");
        let config = Config { lanes, listen, ..Config::default() };
        let clock = Clock::start();
        let birth = Birth {
            now: clock.now(),
            pid: 1,
            seed: 1,
            cluster_key: [1; 32],
            members: vec![],
            large_pages: false,
            sites: std::collections::BTreeMap::new(),
        };
        let server = Server::start(&config, clock, birth.clone()).expect("it starts");
        assert_ne!(server.address().port(), 0);
        let again = Config { listen: server.address(), ..config };
        let error = Server::start(&again, clock, birth).expect_err("the port is taken");
        assert_eq!(error.to_string(), format!("{} is taken", again.listen));
        server.leave();
        server.stop();
    }
}
