//! Tests of the bulk transport over loopback: with itself here, with hostile peers in `hostile`.
//!
//! Nothing here sleeps or measures time: every wait is for a count, an outcome or the end of a
//! connection, with a generous limit. Where a limit must run out it is a short one.

mod foe;
mod hostile;

use super::answering::{INBOUND_MAX, INBOUND_PER_MEMBER_MAX};
use super::asking::{ASKS_PER_MEMBER_MAX, OUTBOUND_MAX};
use super::*;
use crate::metrics::Metrics;
use crate::peer::bulk::FRAME_BYTES_MAX;
use crate::server::tests::{PATIENCE, wait_until};
use foe::Foe;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener as StdTcpListener;

const KEY: [u8; 32] = [1; 32];
/// Limits that do not run out, however slow the machine is.
const PATIENT: Times = Times { connect: PATIENCE, handshake: PATIENCE, transfer: PATIENCE, idle: PATIENCE };
/// For limits that shall run out.
const SHORT: Duration = Duration::from_millis(50);

/// A node that answers as the request says: `size` and a number with so many bytes, `none` not at all,
/// `panic` with a panic, anything else with its reverse.
#[derive(Debug, Default)]
struct Stand {
    members: Mutex<BTreeSet<MemberId>>,
}

impl BulkPlane for Stand {
    fn is_member(&self, id: MemberId) -> bool {
        self.members.lock().contains(&id)
    }

    fn answer(&self, from: MemberId, request: &[u8], response: &mut Vec<u8>) -> bool {
        assert!(self.is_member(from) && response.is_empty());
        match request.split_first_chunk::<5>() {
            Some((b"size ", digits)) => {
                let bytes = std::str::from_utf8(digits).expect("digits").parse().expect("a number");
                response.resize(bytes, b'r');
            }
            Some((b"none ", _)) => return false,
            Some((b"panic", _)) => panic!("as the test wants it"),
            _ => response.extend(request.iter().rev()),
        }
        true
    }
}

/// A transport with a stand-in for its node, and the controller's end of it.
struct Host {
    address: SocketAddr,
    me: MemberId,
    plane: Arc<Stand>,
    metrics: Arc<Metrics>,
    line: BulkLine,
    bulk: Bulk,
    /// Keeps the waker good.
    _controller: Poll,
}

impl Host {
    fn start() -> Self {
        Self::start_with(KEY, PATIENT)
    }

    fn start_with(key: [u8; 32], times: Times) -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address"), key, times)
    }

    fn start_at(address: SocketAddr, key: [u8; 32], times: Times) -> Self {
        let listener = bind(address).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let me = MemberId::of(address);
        let (plane, metrics) = (Arc::<Stand>::default(), Arc::<Metrics>::default());
        let controller = Poll::new().expect("a poll");
        let waker = Waker::new(controller.registry(), WAKER).expect("a waker");
        let parts = Parts {
            listener,
            plane: Arc::clone(&plane),
            identity: Identity { me, generation: 1, key: BulkKey::new(&key) },
            clock: Clock::start(),
            sheet: metrics.sheet(),
            times,
            controller: Arc::new(waker),
        };
        let (bulk, line) = start(parts).expect("a thread");
        Self { address, me, plane, metrics, line, bulk, _controller: controller }
    }

    /// Takes another one into its view, and is taken into that one's.
    fn meet(&self, other: &Self) {
        self.plane.members.lock().insert(other.me);
        other.plane.members.lock().insert(self.me);
    }

    fn ask(&self, to: &Self, ticket: u64, request: &[u8]) {
        self.ask_at(to.address, ticket, request);
    }

    fn ask_at(&self, to: SocketAddr, ticket: u64, request: &[u8]) {
        let ask = BulkAsk { to, member: MemberId::of(to), ticket, request: request.to_vec() };
        self.line.ask(ask).expect("there is room");
    }

    /// The next outcome.
    fn outcome(&self) -> (u64, Option<Vec<u8>>) {
        let outcome = self.line.outcomes.recv_timeout(PATIENCE).expect("every ticket has an outcome");
        self.line.wake();
        (outcome.ticket, outcome.response)
    }

    /// Asks and waits.
    fn exchange(&self, to: &Self, request: &[u8]) -> Option<Vec<u8>> {
        self.ask(to, 7, request);
        let (ticket, response) = self.outcome();
        assert_eq!(ticket, 7);
        response
    }

    fn total(&self, metric: Metric) -> u64 {
        self.metrics.total(metric)
    }

    /// The counts that are not zero, as text.
    fn counts(&self) -> String {
        let is_shown = |metric: &&Metric| {
            let is_traffic = matches!(**metric, Metric::BulkBytesIn | Metric::BulkBytesOut);
            self.total(**metric) != 0 && !is_traffic
        };
        let shown = Metric::ALL.iter().filter(is_shown);
        shown
            .map(|metric| format!("{} {}", metric.name(), self.total(*metric)))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

fn pair() -> (Host, Host) {
    let (a, b) = (Host::start(), Host::start());
    a.meet(&b);
    (a, b)
}

/// Sizes from nothing to the largest, small ones more often; the same in every run.
fn size(number: u64) -> usize {
    let random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number << 7);
    let bits = random % 20;
    ((random >> 20) % (1 << bits)) as usize % (FRAME_BYTES_MAX + 1)
}

fn payload(number: u64) -> Vec<u8> {
    (0..size(number) as u64).map(|index| (index * 31 + number) as u8).collect()
}

#[test]
fn a_thousand_requests_of_all_sizes_each_way_are_answered() {
    const REQUESTS: u64 = 500;
    let (a, b) = pair();
    let (mut asked, mut settled) = (0, 0);
    let mut largest = 0;
    while settled < 2 * REQUESTS {
        // As many at once as may wait.
        while asked < REQUESTS && asked - settled / 2 < ASKS_PER_MEMBER_MAX as u64 {
            a.ask(&b, asked, &payload(asked));
            b.ask(&a, asked, &payload(asked + 1_000_000));
            asked += 1;
        }
        for (host, first) in [(&a, 0), (&b, 1_000_000)] {
            let (ticket, response) = host.outcome();
            assert_eq!(ticket, settled / 2, "in order");
            let mut response = response.expect("an answer");
            response.reverse();
            largest = largest.max(response.len());
            assert!(response == payload(ticket + first), "ticket {ticket}");
            settled += 1;
        }
    }
    assert!(FRAME_BYTES_MAX / 2 < largest, "{largest}");
    for host in [&a, &b] {
        wait_until("the last count", || host.total(Metric::BulkServed) == REQUESTS);
        assert_eq!(host.counts(), "bulk_accepted 1, bulk_served 500, bulk_asked 500");
    }
    assert_eq!(a.total(Metric::BulkBytesIn), b.total(Metric::BulkBytesOut));
    a.bulk.stop();
    b.bulk.stop();
}

#[test]
fn the_largest_frames_pass_and_larger_ones_fail() {
    let (a, b) = pair();
    let largest = vec![7; FRAME_BYTES_MAX];
    assert_eq!(a.exchange(&b, &largest), Some(largest));
    assert_eq!(a.exchange(&b, b""), Some(vec![]));
    assert_eq!(a.exchange(&b, &vec![7; FRAME_BYTES_MAX + 1]), None, "a request that is too large");
    assert_eq!(
        a.exchange(&b, format!("size {FRAME_BYTES_MAX}").as_bytes()),
        Some(vec![b'r'; FRAME_BYTES_MAX])
    );
    assert_eq!(a.exchange(&b, format!("size {}", FRAME_BYTES_MAX + 1).as_bytes()), None, "such a response");
    assert_eq!(b.counts(), "bulk_accepted 1, bulk_too_large 1, bulk_served 3");
    assert_eq!(a.exchange(&b, b"again"), Some(b"niaga".to_vec()));
    assert_eq!(a.counts(), "bulk_asked 6, bulk_failed 2");
}

#[test]
fn a_request_without_meaning_or_with_a_panic_costs_its_connection() {
    let (a, b) = pair();
    assert_eq!(a.exchange(&b, b"none "), None);
    assert_eq!(a.exchange(&b, b"panic"), None);
    assert_eq!(a.exchange(&b, b"good"), Some(b"doog".to_vec()));
    wait_until("the last count", || b.total(Metric::BulkServed) == 1);
    assert_eq!(b.counts(), "panics 1, bulk_accepted 3, bulk_malformed 1, bulk_served 1");
}

#[test]
fn whoever_is_not_there_or_not_the_one_fails() {
    let (a, b) = pair();
    // Bound, so that nobody else gets the port, but not listening.
    let deaf = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let nobody: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    deaf.bind(&nobody.into()).expect("a port");
    a.ask_at(deaf.local_addr().expect("bound").as_socket().expect("an address"), 1, b"x");
    assert_eq!(a.outcome(), (1, None));
    a.ask_at(a.address, 2, b"x");
    assert_eq!(a.outcome(), (2, None), "itself");
    let ask = BulkAsk { to: b.address, member: MemberId(5), ticket: 3, request: vec![] };
    a.line.ask(ask).expect("there is room");
    assert_eq!(a.outcome(), (3, None), "someone else lives there");
    assert_eq!(b.counts(), "bulk_accepted 1, bulk_forged 1");
    assert_eq!(a.counts(), "bulk_asked 3, bulk_failed 3");
    assert_eq!(a.exchange(&b, b"x"), Some(b"x".to_vec()));
}

#[test]
fn another_key_or_no_membership_opens_nothing() {
    let (a, b) = (Host::start(), Host::start_with([2; 32], PATIENT));
    a.meet(&b);
    assert_eq!(a.exchange(&b, b"x"), None);
    assert_eq!(b.counts(), "bulk_accepted 1, bulk_forged 1");
    let c = Host::start();
    c.plane.members.lock().insert(b.me);
    assert_eq!(a.exchange(&c, b"x"), None);
    assert_eq!(c.counts(), "bulk_accepted 1, bulk_refused_unknown 1");
    c.plane.members.lock().insert(a.me);
    assert_eq!(a.exchange(&c, b"x"), Some(b"x".to_vec()));
    // It leaves while its connection is open.
    c.plane.members.lock().remove(&a.me);
    assert_eq!(a.exchange(&c, b"x"), None);
    assert_eq!(c.counts(), "bulk_accepted 2, bulk_refused_unknown 2, bulk_served 1");
}

#[test]
fn requests_beyond_the_queue_fail_at_once() {
    let a = Host::start();
    // The kernel takes the connection; nobody says hello.
    let silent = StdTcpListener::bind("127.0.0.1:0").expect("a port");
    let to = silent.local_addr().expect("bound");
    let waiting = 1 + ASKS_PER_MEMBER_MAX as u64;
    for ticket in 0..waiting + 3 {
        a.ask_at(to, ticket, b"x");
    }
    for ticket in waiting..waiting + 3 {
        assert_eq!(a.outcome(), (ticket, None));
    }
    // All that is behind a connection fails with it.
    drop(silent);
    for ticket in 0..waiting {
        assert_eq!(a.outcome(), (ticket, None));
    }
    assert_eq!(a.counts(), "bulk_asked 12, bulk_failed 12");
}

#[test]
fn a_silent_member_fails_by_the_clock() {
    let a = Host::start_with(KEY, Times { handshake: SHORT, ..PATIENT });
    let silent = StdTcpListener::bind("127.0.0.1:0").expect("a port");
    a.ask_at(silent.local_addr().expect("bound"), 1, b"x");
    assert_eq!(a.outcome(), (1, None));
    assert_eq!(a.counts(), "bulk_timed_out 1, bulk_asked 1, bulk_failed 1");
}

#[test]
fn more_members_than_connections_are_all_asked() {
    let a = Host::start();
    let others: Vec<Host> = (0..OUTBOUND_MAX + 4).map(|_| Host::start()).collect();
    let mut expected = BTreeMap::new();
    for (index, other) in others.iter().enumerate() {
        a.meet(other);
        for round in 0..2 {
            let ticket = (2 * index + round) as u64;
            a.ask(other, ticket, &payload(ticket));
            expected.insert(ticket, payload(ticket).into_iter().rev().collect::<Vec<u8>>());
        }
    }
    let outcomes: BTreeMap<_, _> = expected.iter().map(|_| a.outcome()).collect();
    assert!(
        outcomes.into_iter().map(|(ticket, response)| (ticket, response.expect("an answer"))).eq(expected)
    );
}

#[test]
fn outcomes_that_nobody_takes_stop_the_reading_and_are_not_lost() {
    let a = Host::start();
    let others: Vec<Host> = (0..5).map(|_| Host::start()).collect();
    others.iter().for_each(|other| a.meet(other));
    for ticket in 0..40 {
        a.ask(&others[ticket as usize % 5], ticket, b"size 200000");
    }
    wait_until("a full channel", || a.line.outcomes.is_full());
    // Besides those in the channel and one at each connection nothing more is taken in.
    let read_max = (OUTCOMES_PASSED_ON_MAX + OUTBOUND_MAX) as u64 * 200_100;
    assert!(a.total(Metric::BulkBytesIn) <= read_max);
    let mut seen = BTreeSet::new();
    while seen.len() < 40 {
        for outcome in a.line.outcomes() {
            assert_eq!(outcome.response.map(|response| response.len()), Some(200_000));
            assert!(seen.insert(outcome.ticket), "one outcome for ticket {}", outcome.ticket);
        }
        std::thread::yield_now();
    }
    assert!(a.line.outcomes.is_empty());
}

#[test]
fn a_member_that_was_restarted_is_asked_by_a_new_connection() {
    let (a, b) = pair();
    assert_eq!(a.exchange(&b, b"one"), Some(b"eno".to_vec()));
    let address = b.address;
    b.bulk.stop();
    let b = Host::start_at(address, KEY, PATIENT);
    a.meet(&b);
    assert_eq!(a.exchange(&b, b"two"), Some(b"owt".to_vec()));
    assert_eq!(a.counts(), "bulk_asked 2");
}

#[test]
fn an_idle_connection_is_closed_and_opened_again() {
    let a = Host::start_with(KEY, Times { idle: SHORT, ..PATIENT });
    let listener = StdTcpListener::bind("127.0.0.1:0").expect("a port");
    let to = listener.local_addr().expect("bound");
    for ticket in 0..3 {
        a.ask_at(to, ticket, b"request");
        let mut other = Foe::accept_request(&listener);
        other.say(b"response");
        assert_eq!(a.outcome(), (ticket, Some(b"response".to_vec())));
        assert_eq!(other.await_end(), 0);
    }
    assert_eq!(a.counts(), "bulk_asked 3");
}

#[test]
fn a_server_listens_on_its_port_by_tcp_too() {
    use crate::config::Config;
    use crate::node::Birth;
    use crate::server::Server;
    use std::io::{Read, Write};

    let listen = "127.0.0.1:0".parse().expect("an address");
    let clock = Clock::start();
    let birth = Birth {
        now: clock.now(),
        pid: 1,
        seed: 1,
        cluster_key: KEY,
        members: vec![],
        large_pages: false,
        sites: std::collections::BTreeMap::new(),
    };
    let server =
        Server::start(&Config { listen, ..Config::default() }, clock, birth.clone()).expect("it starts");
    let mut stream = std::net::TcpStream::connect(server.address()).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream.write_all(b"GET /").expect("sent");
    assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)), "it hangs up");
    server.stop();

    let holder = StdTcpListener::bind(listen).expect("a port");
    let listen = holder.local_addr().expect("bound");
    let error =
        Server::start(&Config { listen, ..Config::default() }, clock, birth).expect_err("it is taken");
    assert_eq!(error.to_string(), format!("{listen} is taken (TCP, for bulk transfers)"));
}
