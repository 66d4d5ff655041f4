//! `violet cluster`: real processes that find each other, run a command and leave nothing behind.

use rustix::process::{Pid, test_kill_process};
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;

const NODES: u16 = 3;

/// A first port with free ones behind it, from a range of its own for each test. Another process may take them meanwhile; then the test says
/// so, by the name of the port.
fn free_ports(range: u16) -> u16 {
    let is_free = |port: u16| UdpSocket::bind(("127.0.0.1", port)).is_ok();
    let start = 10_000 + range * 10_000 + (std::process::id() % 5_000) as u16;
    (start..20_000 + range * 10_000)
        .step_by(usize::from(NODES))
        .find(|first| (*first..first + NODES).all(is_free))
        .expect("three free ports in a row")
}

fn cluster(range: u16, directory: &Path, command: &[&str]) -> (Option<i32>, String) {
    let mut violet = Command::new(env!("CARGO_BIN_EXE_violet"));
    violet.args([
        "cluster",
        "--nodes",
        &NODES.to_string(),
        "--port",
        &free_ports(range).to_string(),
        "--dir",
    ]);
    violet.arg(directory).arg("--").args(command);
    let output = violet.output().expect("the binary runs");
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
    let (status, text) = cluster(0, directory.path(), &["sh", "-c", "cat \"$VIOLET_SERVERS\"; exit 7"]);
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
    let (status, text) = cluster(1, directory.path(), &["sh", "-c", &kill]);
    assert_eq!(status, Some(128 + 9), "{text}");
    assert!(processes(directory.path()).iter().all(|process| test_kill_process(*process).is_err()));
}
