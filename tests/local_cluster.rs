//! `violet cluster`: real processes that find each other, run a command and leave nothing behind.

mod ports;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use violet_client::wire::{self, Format, MessageId, REQUEST_BYTES_MAX};
use violet_client::{Key, Operation, Request, Status, Value};

const NODES: u16 = 3;

fn violet(directory: &Path) -> Command {
    let mut violet = Command::new(env!("CARGO_BIN_EXE_violet"));
    violet.args(["cluster", "--nodes", &NODES.to_string(), "--port", &ports::free(NODES).to_string()]);
    violet.arg("--dir").arg(directory);
    violet
}

fn cluster(directory: &Path, command: &[&str]) -> (Option<i32>, String) {
    let output = violet(directory).arg("--").args(command).output().expect("the binary runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).expect("text"))
}

fn processes(directory: &Path) -> Vec<Pid> {
    let pids = std::fs::read_to_string(directory.join("pids.txt")).expect("the list");
    pids.lines().map(|pid| Pid::from_raw(pid.parse().expect("a number")).expect("not 0")).collect()
}

#[test]
fn the_command_gets_the_list_its_status_is_returned_and_nothing_stays() {
    let directory = tempfile::tempdir().expect("a directory");
    let (status, text) = cluster(directory.path(), &["sh", "-c", "cat \"$VIOLET_SERVERS\"; exit 7"]);
    assert_eq!(status, Some(7), "{text}");
    let list = std::fs::read_to_string(directory.path().join("servers.txt")).expect("the list");
    assert_eq!(list.lines().count(), usize::from(NODES));
    assert!(text.contains(&list), "{text}");
    let processes = processes(directory.path());
    assert_eq!(processes.len(), usize::from(NODES));
    assert!(processes.iter().all(|process| test_kill_process(*process).is_err()));
}

#[test]
fn when_a_node_and_the_command_are_killed_the_rest_is_stopped() {
    let directory = tempfile::tempdir().expect("a directory");
    let pids = directory.path().join("pids.txt");
    let kill = format!("kill -9 $(head -n 1 {}) && exec kill -9 $$", pids.display());
    let (status, text) = cluster(directory.path(), &["sh", "-c", &kill]);
    assert_eq!(status, Some(128 + 9), "{text}");
    assert!(processes(directory.path()).iter().all(|process| test_kill_process(*process).is_err()));
}

/// A cluster without a command; it is stopped even when the test fails.
struct Standing(Child);

impl Standing {
    fn start(violet: &mut Command) -> Self {
        let child = violet.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        let mut cluster = Self(child);
        let mut lines = BufReader::new(cluster.0.stdout.take().expect("piped")).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.ends_with("Ctrl-C stops it")), "{}", cluster.errors());
        cluster
    }

    /// Its exit code; it must end.
    fn status(&mut self) -> Option<i32> {
        for _ in 0..600 {
            if let Some(status) = self.0.try_wait().expect("a child") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("it does not end");
    }

    /// What it wrote to stderr, once it has ended.
    fn errors(&mut self) -> String {
        let mut errors = String::new();
        self.0.stderr.take().expect("piped").read_to_string(&mut errors).expect("text");
        errors
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        // Both fail only when it has ended; its nodes notice that it is gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_cluster_without_nodes_ends_by_itself() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut cluster = Standing::start(&mut violet(directory.path()));
    for process in processes(directory.path()) {
        kill_process(process, Signal::KILL).expect("it runs");
    }
    let status = cluster.status();
    let errors = cluster.errors();
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.ends_with("\nviolet: no node is left, so the cluster ends\n"), "{errors}");
}

#[test]
fn a_directory_is_for_one_cluster_at_a_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let first = Standing::start(&mut violet(directory.path()));
    let files = || {
        ["servers.txt", "cluster.key", "pids.txt"]
            .map(|name| std::fs::read(directory.path().join(name)).expect("the file"))
    };
    let before = files();
    let (status, text) = cluster(directory.path(), &["true"]);
    assert_eq!(status, Some(2), "{text}");
    let dir = std::fs::canonicalize(directory.path()).expect("it is there");
    let expected = "is in use by a running cluster; stop that one or choose another --dir";
    assert_eq!(text, format!("violet: {} {expected}\n", dir.display()));
    assert_eq!(files(), before);
    // However the first one ends.
    drop(first);
    let (status, text) = cluster(directory.path(), &["true"]);
    assert_eq!(status, Some(0), "{text}");
}

/// The request in `bytes` bytes: with zeros behind it, or a field that nobody knows.
fn padded(request: &Request<'_>, bytes: usize) -> Vec<u8> {
    let mut datagram = Vec::new();
    wire::encode_request(request, &mut datagram);
    if request.format == Format::Protobuf {
        // Field 9, whose length takes three bytes of seven bits each.
        let filler = bytes - datagram.len() - 4;
        let length = [filler, filler >> 7, filler >> 14].map(|bits| bits as u8 & 0x7f);
        datagram.extend([9 << 3 | 2, length[0] | 0x80, length[1] | 0x80, length[2]]);
    }
    datagram.resize(bytes, 0);
    datagram
}

/// Sends a PUT in `bytes` bytes and returns the status of its reply.
fn put_padded(server: &str, format: Format, bytes: usize) -> Status {
    let (key, value) = (Key::parse(&[1; 32]).expect("a key"), Value { bytes: b"value", version: 0 });
    let request = Request { format, id: MessageId([2; 16]), operation: Operation::Put { key, value } };
    let datagram = padded(&request, bytes);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a time-out");
    let mut buffer = vec![0; wire::DATAGRAM_BYTES_MAX];
    // A loaded machine may lose some; a request that is lost each time is what this is about.
    for _ in 0..5 {
        socket.send_to(&datagram, server).expect("it is sent");
        let Ok(bytes) = socket.recv(&mut buffer) else { continue };
        return wire::decode_response(format, 1, &buffer[..bytes]).expect("a response").status;
    }
    panic!("{server} does not answer {bytes} bytes, {format:?}");
}

#[test]
fn a_padded_request_gets_the_same_answer_at_every_node() {
    let directory = tempfile::tempdir().expect("a directory");
    // With one copy, two nodes of three pass the request on.
    let _cluster = Standing::start(violet(directory.path()).args(["--set", "replicas=1"]));
    let list = std::fs::read_to_string(directory.path().join("servers.txt")).expect("the list");
    for format in [Format::Raw, Format::Protobuf] {
        for (bytes, expected) in [
            (REQUEST_BYTES_MAX, Status::Success),
            (REQUEST_BYTES_MAX + 1, Status::Malformed),
            (wire::DATAGRAM_BYTES_MAX, Status::Malformed),
        ] {
            for server in list.lines() {
                let status = put_padded(server, format, bytes);
                assert_eq!(status, expected, "{bytes} bytes, {format:?}, {server}");
            }
        }
    }
}
