//! A cluster of processes, so that nodes can be killed and stopped.
//!
//! Each node is this test program started again: a front end that hands every datagram to a store in
//! the test itself and its reply back to the client. The store outlives all nodes, so a right cluster
//! loses nothing. A hub counts the nodes whose heartbeats it hears.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use violet_client::wire::{Accept, DATAGRAM_BYTES_MAX, decode_request, encode_request, encode_response};
use violet_client::{Format, MessageId, Operation, Request, Response, Status};

use crate::reference::{Defect, Reference};
use crate::{ports, said, testclient};

/// What is wrong with the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// A node that is shut down takes all data with it.
    TakesDataAlong,
    /// A node refuses to shut down.
    Immortal,
    /// Members are counted whether they live or not.
    CountsTheDead,
    /// A node that resumes says for a while that it has no keys.
    EmptyAfterResume,
}

const FAULTS: [Fault; 5] =
    [Fault::None, Fault::TakesDataAlong, Fault::Immortal, Fault::CountsTheDead, Fault::EmptyAfterResume];
const HEARTBEAT: Duration = Duration::from_millis(50);
/// Silence after which the hub takes a node for dead.
const SILENCE: Duration = Duration::from_millis(600);
/// A gap in a node's time after which it knows that it was stopped.
const GAP: Duration = Duration::from_secs(1);

/// The variables by which a test program learns that it is a node.
const STORE: &str = "VIOLET_TEST_STORE";
const HUB: &str = "VIOLET_TEST_HUB";
const FAULT: &str = "VIOLET_TEST_FAULT";
const INDEX: &str = "VIOLET_TEST_INDEX";
/// Precedes the node's address on its standard output.
const READY: &str = "node ready at ";

pub struct Processes {
    nodes: Vec<Child>,
    servers: Vec<SocketAddr>,
    _store: Reference,
}

impl Processes {
    pub fn start(count: usize, fault: Fault) -> Self {
        let store = Reference::start(1, Defect::None);
        let hub = UdpSocket::bind("127.0.0.1:0").unwrap();
        let hub_address = hub.local_addr().unwrap();
        // Ends with the test program.
        thread::spawn(move || count_heartbeats(&hub, count, fault));
        let (mut nodes, mut servers) = (Vec::new(), Vec::new());
        for index in 0..count {
            let mut node = Command::new(std::env::current_exe().unwrap())
                .args(["process::nodes_answer_and_end_with_their_cluster", "--exact", "--nocapture"])
                .env(STORE, store.servers[0].to_string())
                .env(HUB, hub_address.to_string())
                .env(FAULT, format!("{fault:?}"))
                .env(INDEX, index.to_string())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let output = BufReader::new(node.stdout.take().unwrap());
            let ready = |line: String| line.split_once(READY).map(|(_, address)| address.parse().unwrap());
            servers.push(output.lines().find_map(|line| ready(line.unwrap())).unwrap());
            nodes.push(node);
        }
        Self { nodes, servers, _store: store }
    }

    /// The server list for the command line.
    pub fn list(&self) -> String {
        self.servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    fn check(&self, more: &str) -> std::process::Output {
        let list = self.list();
        testclient(&format!("check --servers {list} --format protobuf {more}"))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            // Some have been killed already.
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}

fn count_heartbeats(hub: &UdpSocket, count: usize, fault: Fault) {
    let mut heard: Vec<Option<Instant>> = vec![None; count];
    let mut buffer = [0; 16];
    loop {
        let Ok((bytes, node)) = hub.recv_from(&mut buffer) else { continue };
        let now = Instant::now();
        heard[usize::from(buffer[0])] = Some(now);
        let alive = |heard: &Option<Instant>| heard.is_some_and(|heard| now - heard < SILENCE);
        let mut alive = heard.iter().filter(|heard| alive(heard)).count();
        if fault == Fault::CountsTheDead {
            alive = count;
        }
        if bytes == 2 {
            let _ = hub.send_to(&[alive as u8], node);
        }
    }
}

struct FrontEnd {
    socket: UdpSocket,
    store: UdpSocket,
    hub: UdpSocket,
    index: u8,
    fault: Fault,
}

/// Serves for ever, if this process was started as a node.
fn serve_if_node() {
    let Ok(store_address) = std::env::var(STORE) else { return };
    let connect = |address: &str| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        socket
    };
    let name = std::env::var(FAULT).unwrap();
    let hub_address = std::env::var(HUB).unwrap();
    let index = std::env::var(INDEX).unwrap().parse().unwrap();
    let front_end = FrontEnd {
        // None that the system gives to others, so that it can be seen to be free again.
        socket: UdpSocket::bind(("127.0.0.1", ports::free(1))).unwrap(),
        store: connect(&store_address),
        hub: connect(&hub_address),
        index,
        fault: *FAULTS.iter().find(|fault| format!("{fault:?}") == name).unwrap(),
    };
    let heart = connect(&hub_address);
    thread::spawn(move || {
        loop {
            let _ = heart.send(&[index]);
            thread::sleep(HEARTBEAT);
        }
    });
    println!("{READY}{}", front_end.socket.local_addr().unwrap());
    front_end.serve();
}

impl FrontEnd {
    fn serve(&self) -> ! {
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        let beat = Arc::new(std::sync::Mutex::new((Instant::now(), None::<Instant>)));
        let watched = Arc::clone(&beat);
        // Notices that the process was stopped: its own ticks are far apart.
        thread::spawn(move || {
            loop {
                let mut state = watched.lock().unwrap();
                if GAP < state.0.elapsed() {
                    state.1 = Some(Instant::now());
                }
                state.0 = Instant::now();
                drop(state);
                thread::sleep(HEARTBEAT);
            }
        });
        loop {
            let Ok((bytes, client)) = self.socket.recv_from(&mut buffer) else { continue };
            let resumed = {
                let state = beat.lock().unwrap();
                GAP < state.0.elapsed() || state.1.is_some_and(|at| at.elapsed() < GAP)
            };
            if let Some(reply) = self.answer(&buffer[..bytes], resumed) {
                let _ = self.socket.send_to(&reply, client);
            }
        }
    }

    fn answer(&self, datagram: &[u8], resumed: bool) -> Option<Vec<u8>> {
        let request = decode_request(datagram, Accept::Auto).ok()?;
        let mut response = Response::of_status(request.id, Status::Success);
        match request.operation {
            Operation::GetPid => response.pid = Some(std::process::id() as i32),
            Operation::GetMembershipCount => {
                self.hub.send(&[self.index, 0]).unwrap();
                let mut count = [0];
                self.hub.recv(&mut count).ok()?;
                response.membership_count = Some(i32::from(count[0]));
            }
            Operation::Shutdown if self.fault == Fault::Immortal => {}
            Operation::Shutdown => {
                if self.fault == Fault::TakesDataAlong {
                    self.wipe_store();
                }
                std::process::exit(0);
            }
            Operation::Get { .. } if resumed && self.fault == Fault::EmptyAfterResume => {
                response.status = Status::NoSuchKey;
            }
            _ => return self.ask_store(datagram, request.id),
        }
        let mut reply = Vec::new();
        encode_response(request.format, &response, &mut reply);
        Some(reply)
    }

    /// The store's reply with this id; replies to requests that were given up are passed over.
    fn ask_store(&self, datagram: &[u8], id: MessageId) -> Option<Vec<u8>> {
        self.store.send(datagram).ok()?;
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        loop {
            let bytes = self.store.recv(&mut buffer).ok()?;
            if buffer[..bytes].windows(id.0.len()).any(|window| window == id.0) {
                return Some(buffer[..bytes].to_vec());
            }
        }
    }

    fn wipe_store(&self) {
        let mut bytes = Vec::new();
        let id = MessageId([0x99; 16]);
        encode_request(&Request { format: Format::Raw, id, operation: Operation::Wipeout }, &mut bytes);
        self.ask_store(&bytes, id);
    }
}

#[test]
fn nodes_answer_and_end_with_their_cluster() {
    serve_if_node();
    let cluster = Processes::start(3, Fault::None);
    let output = cluster.check("--stages alive,basics-random,at-most-once-server,pid,membership-count");
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!said.contains("does not visibly own"), "{said}");
    let servers = cluster.servers.clone();
    drop(cluster);
    // The ports are free again, so nothing that was started here is left behind.
    servers.iter().for_each(|server| drop(UdpSocket::bind(server).unwrap()));
}

fn finds(fault: Fault, stage: &str, expected: &str) {
    let cluster = Processes::start(4, fault);
    let output = cluster.check(stage);
    let said = said(&output);
    let fails = fault != Fault::None;
    assert_eq!(output.status.code(), Some(i32::from(fails)), "{fault:?}, {stage}: {said}");
    assert!(said.contains(expected), "{fault:?}, {stage}: {said}");
}

#[test]
fn crashes_of_a_right_cluster_pass_in_both_ways() {
    finds(Fault::None, "--destructive --stages crash", "PASS      protobuf crash");
    finds(Fault::None, "--destructive --stages crash --kill-mode kill9 --fault-nodes 2", "members agreed");
}

#[test]
fn faults_of_dying_nodes_are_found() {
    finds(Fault::TakesDataAlong, "--destructive --stages crash", "missing");
    finds(Fault::Immortal, "--destructive --stages crash", "still alive 5 s after it was told to die");
    finds(Fault::CountsTheDead, "--destructive --stages crash", "counts 4 members, expected 3");
}

#[test]
fn stopped_nodes_are_checked_and_resumed() {
    let pause = "--suspend --stages suspend --suspend-seconds 3";
    finds(Fault::None, pause, "PASS      protobuf suspend");
    finds(Fault::EmptyAfterResume, pause, "through a server that has just resumed");
}

/// The kernel's letter for what a process does; T is stopped.
fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(HEARTBEAT);
    }
}

#[test]
fn stopped_nodes_go_on_when_the_test_client_is_killed() {
    let cluster = Processes::start(3, Fault::None);
    let list = cluster.list();
    let mut client = Command::new(env!("CARGO_BIN_EXE_violet-testclient"))
        .args(["check", "--servers", &list, "--format", "protobuf"])
        .args(["--suspend", "--stages", "suspend", "--suspend-seconds", "60"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let stopped = || cluster.nodes.iter().any(|node| state(node.id()) == 'T');
    wait_until("a node is stopped", stopped);
    assert_ne!(state(cluster.nodes[0].id()), 'T', "the first server is never touched");
    client.kill().unwrap();
    client.wait().unwrap();
    wait_until("all nodes go on", || !stopped());
}
