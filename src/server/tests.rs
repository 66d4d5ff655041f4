//! Tests of sockets and threads, with real datagrams on loopback and a stand-in for the node.
//!
//! Nothing here sleeps or measures time: every wait is for a count or a reply, with a generous limit.

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

/// Receives what is waiting in a lane, as text.
fn drain(receiver: &mut Receiver, batch: &mut Batch, found: &mut Vec<String>) {
    let clock = Clock::start();
    let mut more = true;
    while more {
        more = receiver.receive(&clock, batch).0;
        batch.retain(|datagram, truncated| {
            let cut = if truncated { " (cut)" } else { "" };
            found.push(format!("{}{cut}", datagram.bytes.escape_ascii()));
            false
        });
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_kernel_steers_every_datagram_to_its_lane() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let sockets = open(address, Lanes::Steered);
        let client = client(sockets.address);
        let members = sockets.members.expect("steered");
        let mut lanes =
            [sockets.clients, members.peers, members.gossip].map(|s| Receiver::new(s, 4, Means::Batched));
        let sent: [&[u8]; 9] =
            [b"VltP", b"VltP1", b"", b"VltG2", b"ab", b"VltQ", b"VltG", b"xVltP", b"0123456789"];
        for bytes in sent {
            client.send(bytes).expect("sent");
        }
        let mut batch = Batch::new(4, SLOT_BYTES).expect("memory");
        let found = std::cell::RefCell::new([vec![], vec![], vec![]]);
        let lanes = std::cell::RefCell::new((&mut lanes, &mut batch));
        wait_until("all datagrams", || {
            let (lanes, batch) = &mut *lanes.borrow_mut();
            let found = &mut *found.borrow_mut();
            lanes.iter_mut().zip(found.iter_mut()).for_each(|(lane, found)| drain(lane, batch, found));
            found.iter().map(Vec::len).sum::<usize>() == sent.len()
        });
        let [clients, peers, gossip] = found.into_inner();
        assert_eq!(clients, ["", "ab", "VltQ", "xVltP", "0123456789"]);
        assert_eq!(peers, ["VltP", "VltP1"]);
        assert_eq!(gossip, ["VltG2", "VltG"]);
    }
}

#[test]
fn replies_of_all_send_sockets_have_the_service_port_as_source() {
    for lanes in [Lanes::Steered, Lanes::Shared] {
        let sockets = open("127.0.0.1:0", lanes);
        let client = client(sockets.address);
        for senders in &sockets.senders {
            for lane in Lane::ALL {
                let to = client.local_addr().expect("bound");
                senders.of(lane).send_to(b"reply", to).expect("sent");
                // A connected socket takes datagrams from nowhere but the service port.
                let mut buffer = [0; 16];
                assert_eq!(client.recv(&mut buffer).expect("the reply"), 5, "{lanes:?} {lane:?}");
            }
        }
    }
}

#[test]
fn a_taken_port_is_an_error() {
    let first = open("127.0.0.1:0", Lanes::Steered);
    for lanes in [Lanes::Steered, Lanes::Shared] {
        let (address, sharing) = (first.address, Sharing::default());
        let plan = Plan { address, lanes, sharing, threads: 1, receive_bytes: 65_536, send_bytes: 65_536 };
        let error = Sockets::open(plan).expect_err("somebody is there");
        assert!(matches!(error, OpenError::Taken(address) if address == first.address));
        assert_eq!(error.to_string(), format!("{} is taken", first.address));
    }
}

#[test]
fn datagrams_carry_their_time_and_cut_ones_are_flagged() {
    for (lanes, means) in [(Lanes::Steered, Means::Batched), (Lanes::Shared, Means::Plain)] {
        let sockets = open("127.0.0.1:0", lanes);
        let clock = Clock::start();
        let client = client(sockets.address);
        let before = clock.now();
        for bytes in [3, 64, 100, 0] {
            client.send(&[b'x'; 100][..bytes]).expect("sent");
        }
        let mut receiver = Receiver::new(sockets.clients, 8, means);
        let mut batch = Batch::new(8, 80).expect("memory");
        let mut seen = Vec::new();
        let received = std::cell::RefCell::new((&mut receiver, &mut batch, &mut seen));
        wait_until("four datagrams", || {
            let (receiver, batch, seen) = &mut *received.borrow_mut();
            receiver.receive(&clock, batch);
            batch.retain(|datagram, is_cut| {
                // The kernel's wall clock and our steady one may drift apart by very little.
                let slack = Duration::from_millis(50);
                assert!(
                    before - slack <= datagram.received_at && datagram.received_at <= clock.now() + slack
                );
                assert_eq!(datagram.from, client.local_addr().expect("bound"));
                seen.push((datagram.bytes.len(), is_cut));
                false
            });
            seen.len() == 4
        });
        assert_eq!(seen, [(3, false), (64, false), (80, true), (0, false)], "{lanes:?}");
    }
}

#[cfg(target_os = "linux")]
/// A receiver uses its headers again and again, and the kernel writes to them.
#[cfg(target_os = "linux")]
#[test]
fn batches_are_received_whole_whichever_memory_they_go_to() {
    let sockets = open("127.0.0.1:0", Lanes::Steered);
    let client = client(sockets.address);
    let mut receiver = Receiver::new(sockets.clients, 4, Means::Batched);
    let clock = Clock::start();
    let mut batches = [(4, SLOT_BYTES), (4, SLOT_BYTES), (4, 64), (2, SLOT_BYTES)]
        .map(|(slots, slot_bytes)| Batch::new(slots, slot_bytes).expect("memory"));
    for (turn, &(index, count)) in
        [(0, 4), (0, 1), (0, 3), (1, 4), (0, 2), (2, 4), (2, 3), (3, 2), (0, 4), (3, 1), (1, 1)]
            .iter()
            .enumerate()
    {
        // Nothing waits: the kernel may have looked at a header all the same.
        assert_eq!(receiver.receive(&clock, &mut batches[index]), (false, 0));
        let sent: Vec<Vec<u8>> = (0..count).map(|number| vec![number as u8; 10 * turn + number]).collect();
        sent.iter().for_each(|bytes| assert_eq!(client.send(bytes).expect("sent"), bytes.len()));
        let batch = &mut batches[index];
        let mut found = Vec::new();
        while found.len() < count {
            receiver.receive(&clock, batch);
            batch.retain(|datagram, truncated| {
                let port = client.local_addr().expect("bound").port();
                assert_eq!(datagram.from.port(), port, "turn {turn}");
                found.push((datagram.bytes.to_vec(), truncated));
                false
            });
        }
        let room = if index == 2 { 64 } else { SLOT_BYTES };
        let expected = sent.iter().map(|bytes| (bytes[..bytes.len().min(room)].to_vec(), room < bytes.len()));
        assert_eq!(found, expected.collect::<Vec<_>>(), "turn {turn}");
    }
}

#[test]
fn the_kernels_losses_are_counted() {
    let address = "127.0.0.1:0".parse().expect("an address");
    let (lanes, sharing) = (Lanes::Steered, Sharing::default());
    let plan = Plan { address, lanes, sharing, threads: 1, receive_bytes: 16 * 1024, send_bytes: 65_536 };
    let sockets = Sockets::open(plan).expect("free sockets");
    assert_eq!(sockets.granted.receive_bytes, [16 * 1024; 3]);
    let client = client(sockets.address);
    let (mut receiver, clock) = (Receiver::new(sockets.clients, 64, Means::Batched), Clock::start());
    let mut batch = Batch::new(64, SLOT_BYTES).expect("memory");
    let mut sent = 0;
    for _ in 0..500 {
        client.send(&[0; 400]).expect("sent");
        sent += 1;
    }
    let (mut received, mut lost) = (0, 0);
    let deadline = std::time::Instant::now() + PATIENCE;
    // The count rides on the next datagram that finds room, so one more is sent each time.
    while received + lost < sent {
        assert!(std::time::Instant::now() < deadline, "{received} received, {lost} lost of {sent}");
        let (_, lost_now) = receiver.receive(&clock, &mut batch);
        received += batch.len() as u64;
        lost += lost_now;
        if batch.is_empty() {
            client.send(&[0; 400]).expect("sent");
            sent += 1;
        }
        batch.clear();
    }
    assert_eq!(received + lost, sent);
    assert!(0 < lost);
}

/// Every way to send, and the lanes to send by.
const WAYS: [(Lanes, Means); 4] = [
    (Lanes::Steered, Means::Segmented),
    (Lanes::Steered, Means::Batched),
    (Lanes::Steered, Means::Plain),
    (Lanes::Shared, Means::Plain),
];

#[test]
fn a_datagram_that_cannot_be_sent_does_not_take_others_down() {
    for (lanes, means) in WAYS {
        let mut sockets = open("127.0.0.1:0", lanes);
        let client = client(sockets.address);
        let to = client.local_addr().expect("bound");
        let metrics = Metrics::default();
        let mut outbox = Outbox::new(metrics.sheet());
        let mut sender = Sender::new(sockets.senders.remove(0), means);
        let nowhere = SocketAddr::new(to.ip(), 0);
        for number in 0..150_u32 {
            outbox.send(Lane::Client, if number % 50 < 5 { nowhere } else { to }, |buffer| {
                buffer.extend_from_slice(&number.to_be_bytes());
            });
            if number == 70 {
                outbox.send(Lane::Forwarding, to, |buffer| buffer.resize(buffer.len() + 65_508, 0));
            }
        }
        sender.flush(&mut outbox);
        assert!(outbox.is_empty());
        let mut buffer = [0; 16];
        for number in (0..150_u32).filter(|number| 5 <= number % 50) {
            assert_eq!(client.recv(&mut buffer).expect("the others"), 4);
            assert_eq!(buffer[..4], number.to_be_bytes(), "{lanes:?} {means:?}");
        }
        let totals =
            [Metric::SendDatagrams, Metric::SendBytes, Metric::SendsFailed].map(|m| metrics.total(m));
        assert_eq!(totals, [135, 135 * 4, 16], "{lanes:?} {means:?}");
    }
}

#[test]
fn datagrams_of_all_lengths_arrive_whole_whatever_they_leave_with() {
    for (lanes, means) in WAYS {
        let mut sockets = open("127.0.0.1:0", lanes);
        let clients = [client(sockets.address), client(sockets.address)];
        let metrics = Metrics::default();
        let mut outbox = Outbox::new(metrics.sheet());
        let mut sender = Sender::new(sockets.senders.remove(0), means);
        let lengths =
            [17, 17, 17, 5, 17, 0, 17, 0, 0, 1_400, 1_400, 1_399, 1_401, 1_401, 9_000, 1, 1, 2, 2, 1];
        for length in lengths.repeat(4) {
            for client in &clients {
                let to = client.local_addr().expect("bound");
                // Every byte tells the length, so that a wrong cut shows.
                outbox.send(Lane::Client, to, |buffer| buffer.resize(buffer.len() + length, length as u8));
            }
        }
        sender.flush(&mut outbox);
        let mut expected = lengths.repeat(4);
        expected.sort_unstable();
        let mut buffer = vec![0; 65_536];
        for client in &clients {
            let mut arrived: Vec<usize> = (0..expected.len())
                .map(|_| {
                    let bytes = client.recv(&mut buffer).expect("a datagram");
                    assert!(buffer[..bytes].iter().all(|byte| *byte == bytes as u8));
                    bytes
                })
                .collect();
            arrived.sort_unstable();
            assert_eq!(arrived, expected, "{lanes:?} {means:?}");
        }
        assert_eq!(metrics.total(Metric::SendDatagrams), expected.len() as u64 * 2);
        assert_eq!(metrics.total(Metric::SendsFailed), 0);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn frames_to_one_member_share_datagrams_and_replies_to_one_client_do_not() {
    let sockets = open("127.0.0.1:0", Lanes::Steered);
    let receivers = [client(sockets.address), client(sockets.address)];
    let metrics = Metrics::default();
    let mut outbox = Outbox::new(metrics.sheet());
    let mut sender = Sender::new(sockets.senders[0].clone(), Means::Segmented);
    for lane in [Lane::Replication, Lane::Client] {
        for length in [100, 200, 1_200, 1_000, 9_000] {
            for receiver in &receivers {
                let to = receiver.local_addr().expect("bound");
                outbox.send(lane, to, |buffer| buffer.resize(buffer.len() + length, 1));
            }
        }
        sender.flush(&mut outbox);
        let mut buffer = [0; 16_384];
        let expected = match lane {
            Lane::Client => vec![100, 200, 1_000, 1_200, 9_000],
            _ => vec![1_200, 1_300, 9_000],
        };
        for receiver in &receivers {
            let arrived = expected.iter().map(|_| receiver.recv(&mut buffer).expect("a datagram"));
            let mut arrived: Vec<usize> = arrived.collect();
            arrived.sort_unstable();
            assert_eq!(arrived, expected, "{lane:?}");
        }
    }
    assert_eq!(metrics.total(Metric::SendDatagrams), 2 * (3 + 5));
}

/// Takes this many datagrams and forgets them.
#[cfg(target_os = "linux")]
fn wait_until_received(receiver: &mut Receiver, batch: &mut Batch, count: usize) {
    let state = std::cell::RefCell::new((receiver, batch, 0));
    wait_until("some datagrams", || {
        let (receiver, batch, seen) = &mut *state.borrow_mut();
        receiver.receive(&Clock::start(), batch);
        *seen += batch.len();
        batch.clear();
        *seen == count
    });
}

#[cfg(target_os = "linux")]
#[test]
fn bursts_that_travel_as_one_message_are_cut_into_what_was_sent() {
    let (from, to) = (open("127.0.0.1:0", Lanes::Steered), open("127.0.0.1:0", Lanes::Steered));
    let (clock, metrics) = (Clock::start(), Metrics::default());
    let mut sender = Sender::new(from.senders[0].clone(), Means::Segmented);
    let mut receiver = Receiver::new(to.clients, 4, Means::Segmented);
    let mut batch = Batch::new(4, SLOT_BYTES).expect("memory");
    let mut outbox = Outbox::new(metrics.sheet());
    // Receptions without a word on segments come first, in every slot: they must leave room for it.
    for count in [4, 1] {
        (0..count).for_each(|_| assert_eq!(from.clients.send_to(b"x", to.address).expect("sent"), 1));
        wait_until_received(&mut receiver, &mut batch, count);
    }
    let lengths = [[17; 50].as_slice(), &[5, 17, 17, 0, 0, 1_400, 1_400, 1_399, 9_000, 1, 1]].concat();
    for (number, length) in lengths.iter().enumerate() {
        // Every byte tells the datagram's number, so that a wrong cut shows.
        let fill = |buffer: &mut Vec<u8>| buffer.resize(buffer.len() + length, number as u8);
        outbox.send(Lane::Client, to.address, fill);
    }
    sender.flush(&mut outbox);
    let (receptions, mut arrived) = (std::cell::Cell::new(0), Vec::new());
    let state = std::cell::RefCell::new((&mut receiver, &mut batch, &mut arrived));
    wait_until("all datagrams", || {
        let (receiver, batch, arrived) = &mut *state.borrow_mut();
        receiver.receive(&clock, batch);
        receptions.set(receptions.get() + usize::from(!batch.is_empty()));
        for datagram in batch.datagrams() {
            assert_eq!(datagram.from, from.address);
            assert!(datagram.bytes.windows(2).all(|pair| pair[0] == pair[1]));
            arrived.push(datagram.bytes.len());
        }
        batch.clear();
        arrived.len() == lengths.len()
    });
    let receptions = receptions.get();
    assert!(receptions <= 4, "many came together: {receptions} receptions of at most 4 messages each");
    let mut expected = lengths;
    arrived.sort_unstable();
    expected.sort_unstable();
    assert_eq!(arrived, expected);
}

#[cfg(target_os = "linux")]
#[test]
fn what_the_kernel_will_not_cut_is_sent_singly() {
    let sockets = open("127.0.0.1:0", Lanes::Steered);
    let client = client(sockets.address);
    let to = client.local_addr().expect("bound");
    let mut outbox = Outbox::new(Metrics::default().sheet());
    for number in 0..64_u8 {
        outbox.send(Lane::Client, to, |buffer| buffer.resize(buffer.len() + 1_200, number));
    }
    let mut sender = udp::BatchSender::new(udp::Segmentation::TOO_MUCH);
    let sent = sender.send_lane(sockets.senders[0].of(Lane::Client), Lane::Client, &outbox);
    assert_eq!((sent.datagrams, sent.bytes, sent.failed), (64, 64 * 1_200, 0));
    assert!(!sender.is_segmenting());
    let mut buffer = [0; 2_000];
    for number in 0..64_u8 {
        assert_eq!(client.recv(&mut buffer).expect("a datagram"), 1_200);
        assert!(buffer[..1_200].iter().all(|byte| *byte == number));
    }
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
