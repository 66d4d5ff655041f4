//! The test client, as its users run it, against a small reference cluster: it must pass a right one
//! and say what is wrong with each wrong one.

mod check;
mod endure;
mod flame;
mod grid;
mod load;
mod plan;
#[allow(dead_code, reason = "used by other tests, too")]
#[path = "../../../tests/ports/mod.rs"]
mod ports;
mod process;
mod reference;
mod reports;
#[allow(dead_code, reason = "tests make results and read few of their parts")]
#[path = "../../src/result.rs"]
mod result;

use std::process::{Command, Output};

/// Runs the program with these arguments, split at spaces.
fn testclient(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_violet-testclient"))
        .args(arguments.split_whitespace())
        .env_remove("VIOLET_SERVERS")
        .output()
        .expect("the program was built with this test")
}

/// Its standard output, with the rest of what it said for a failure message.
fn said(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    format!("{stdout}{stderr}[exit code {:?}]", output.status.code())
}

#[test]
fn a_bad_server_list_is_one_line_and_exit_code_2() {
    for (arguments, expected) in [
        ("check --servers /nowhere/nodes.txt", "neither an existing file nor HOST:PORT"),
        ("grid --servers 127.0.0.1:nine", "127.0.0.1:nine"),
        ("grid", "name the servers with --servers or in VIOLET_SERVERS"),
        ("grid --servers 127.0.0.1:9 --cells Q7", "is no cell"),
        ("grid --servers 127.0.0.1:9 --threads 0", "--threads 0"),
        ("check --servers 127.0.0.1:9 --stages alive,nonsense", "nonsense"),
    ] {
        let output = testclient(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {}", said(&output));
        assert!(stderr.contains(expected), "{arguments}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{arguments}: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments}: {}", said(&output));
    }
}

#[test]
fn the_server_list_may_come_from_the_environment() {
    let cluster = reference::Reference::start(1, reference::Defect::None);
    let output = Command::new(env!("CARGO_BIN_EXE_violet-testclient"))
        .args(["check", "--stages", "alive"])
        .env("VIOLET_SERVERS", cluster.list())
        .output()
        .expect("the program was built with this test");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("2 passed"), "{}", said(&output));
}
