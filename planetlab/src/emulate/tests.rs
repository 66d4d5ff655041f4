//! Tests that make a world: they need root and `/dev/net/tun`, and say so where these are missing.

use std::fs;
use std::net::{SocketAddrV4, UdpSocket};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::emulate::control;
use crate::emulate::link::{Links, Wishes};
use crate::emulate::made::Made;
use crate::emulate::packet::node_address;
use crate::emulate::session::{Place, Session, needs_root};
use crate::emulate::world::socket_in;

const PORT: u16 = 9_000;

/// Runs a test in a thread of its own, because making a world moves the thread into it.
fn in_world(change: &str, test: impl FnOnce(&Session, &Path) + Send + 'static) {
    if let Err(why) = needs_root() {
        return eprintln!("skipped: {why}");
    }
    let change = change.to_owned();
    let run = move || {
        let directory = tempfile::tempdir().expect("a directory");
        let place = Place::new(directory.path(), None, None).expect("a place");
        let session = Session::open(place, Links::uniform(3, &change).expect("links")).expect("a world");
        let names: Vec<PathBuf> = session.namespaces().iter().map(|namespace| namespace.path()).collect();
        assert!(names.len() == 4 && names.iter().all(|name| name.exists()), "{names:?}");
        test(&session, directory.path());
        let (removal, report) = session.close();
        assert!(removal.failed.is_empty(), "{removal:?}");
        report.expect("a report");
        assert!(names.iter().all(|name| !name.exists()), "left behind: {names:?}");
        assert_eq!(Made::read(directory.path()), Ok(None));
    };
    thread::spawn(run).join().expect("the test passes");
}

fn socket(session: &Session, index: usize) -> UdpSocket {
    let address = SocketAddrV4::new(node_address(index), PORT);
    let socket = socket_in(&session.namespaces()[index], address).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    socket
}

fn to(index: usize) -> SocketAddrV4 {
    SocketAddrV4::new(node_address(index), PORT)
}

/// Sends and returns what came and how long it took.
fn pass(from: &UdpSocket, into: &UdpSocket, index: usize, bytes: &[u8]) -> (Vec<u8>, Duration) {
    let start = Instant::now();
    from.send_to(bytes, to(index)).expect("sent");
    let mut buffer = vec![0; 65_535];
    let length = into.recv(&mut buffer).expect("arrives");
    buffer.truncate(length);
    (buffer, start.elapsed())
}

#[test]
fn datagrams_pass_whole_after_the_delay_even_in_fragments() {
    in_world("delay=30ms jitter=5ms", |session, _| {
        let (first, second) = (socket(session, 0), socket(session, 1));
        for bytes in [1, 100, 1_472, 1_473, 10_000, 60_000] {
            let sent: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
            let (came, took) = pass(&first, &second, 1, &sent);
            assert!(came == sent, "{bytes} bytes came as {}", came.len());
            // Half a tick early is how the error is centred.
            assert!(Duration::from_millis(29) < took, "{took:?}");
        }
    });
}

#[test]
fn a_partition_by_the_control_socket_holds_until_it_is_healed() {
    in_world("delay=1ms", |session, directory| {
        let ask = |command: &str| control::ask(&directory.join("control"), command).expect(command);
        let (first, second, third) = (socket(session, 0), socket(session, 1), socket(session, 2));
        ask("isolate n2");
        first.send_to(b"lost", to(1)).expect("sent");
        assert_eq!(pass(&first, &third, 2, b"beside the cut").0, b"beside the cut");
        ask("heal");
        assert_eq!(pass(&first, &second, 1, b"healed").0, b"healed");
        let stats = ask("stats");
        assert_eq!(stats["drops"]["cut"], 1, "{stats}");
        assert_eq!(stats["delivered"], 2, "{stats}");
        let error = control::ask(&directory.join("control"), "isolate n9").expect_err("nobody");
        assert!(error.contains("n9"), "{error}");
    });
}

#[test]
fn a_damaged_packet_reaches_the_kernel_and_is_dropped_there() {
    in_world("delay=1ms", |session, directory| {
        let ask = |command: &str| control::ask(&directory.join("control"), command).expect(command);
        let (first, second) = (socket(session, 0), socket(session, 1));
        ask("set n1 n2 corrupt=100%");
        first.send_to(&[7; 1_000], to(1)).expect("sent");
        ask("reset");
        assert_eq!(pass(&first, &second, 1, b"whole").0, b"whole");
        let stats = ask("stats");
        let refused = stats["drops"]["damaged beyond delivery"].as_u64().unwrap_or(0);
        assert_eq!(stats["damaged"].as_u64().map(|damaged| damaged + refused), Some(1), "{stats}");
    });
}

#[test]
fn nothing_gets_out_of_the_world() {
    in_world("delay=1ms", |session, directory| {
        let first = socket(session, 0);
        let outside = first.send_to(b"x", "192.0.2.1:9");
        assert_eq!(outside.expect_err("no route").kind(), std::io::ErrorKind::NetworkUnreachable);
        first.send_to(b"x", "198.18.7.7:9").expect("inside, but nobody's");
        let second = socket(session, 1);
        pass(&first, &second, 1, b"after it");
        let stats = control::ask(&directory.join("control"), "stats").expect("answered");
        assert_eq!(stats["drops"]["for nobody in this network"], 1, "{stats}");
    });
}

#[test]
fn a_capture_holds_what_a_node_sent_and_got() {
    in_world("delay=1ms", |session, directory| {
        let file = directory.join("n1.pcap");
        let command = format!("pcap n1 {}", file.display());
        control::ask(&directory.join("control"), &command).expect("captures");
        let (first, second) = (socket(session, 0), socket(session, 1));
        pass(&first, &second, 1, &[1; 72]);
        pass(&second, &first, 0, &[2; 72]);
        // The writer flushes whenever nothing waits; how soon it gets a processor is not ours to say.
        let (packets, until) = (24 + 2 * (16 + 100), Instant::now() + Duration::from_secs(10));
        while fs::read(&file).expect("there").len() < packets && Instant::now() < until {
            thread::yield_now();
        }
        assert_eq!(fs::read(&file).expect("there").len(), packets);
    });
}

#[test]
fn a_run_with_anothers_name_is_refused_and_leaves_the_other_alone() {
    in_world("delay=1ms", |session, _| {
        let run = session.place().run.clone();
        let attempt = move || {
            let directory = tempfile::tempdir().expect("a directory");
            let place = Place::new(directory.path(), None, Some(&run)).expect("a place");
            let refused = Session::open(place, Links::uniform(3, "delay=1ms").expect("links")).err();
            assert!(refused.expect("the name is taken").contains("--run"));
            assert_eq!(Made::read(directory.path()), Ok(None));
        };
        thread::spawn(attempt).join().expect("refused");
        let (first, second) = (socket(session, 0), socket(session, 1));
        assert_eq!(pass(&first, &second, 1, b"still there").0, b"still there");
    });
}

#[test]
fn the_timeline_of_a_scenario_is_played() {
    if let Err(why) = needs_root() {
        return eprintln!("skipped: {why}");
    }
    let run = || {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("s.toml");
        fs::write(&file, "nodes = 2\nseconds = 2\ntimeline = [\"0s isolate n1\", \"1s heal\"]\n")
            .expect("written");
        let place = Place::new(directory.path(), None, None).expect("a place");
        let links = Links::from_file(&file, &Wishes::default()).expect("a scenario");
        let session = Session::open(place, links).expect("a world");
        let (first, second) = (socket(&session, 0), socket(&session, 1));
        second.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let (start, mut sent) = (Instant::now(), 0);
        while second.recv(&mut [0; 9]).is_err() && start.elapsed() < Duration::from_secs(20) {
            first.send_to(b"healed?", to(1)).expect("sent");
            sent += 1;
        }
        let (removal, report) = session.close();
        assert!(removal.failed.is_empty(), "{removal:?}");
        let report = report.expect("a report");
        assert!(0 < report.drops["cut"] && 0 < report.delivered && 1 < sent, "{report}");
    };
    thread::spawn(run).join().expect("the test passes");
}
