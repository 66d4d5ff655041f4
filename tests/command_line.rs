//! The binary's exit codes and messages: a bad start is status 2 and one line, a good one says so.

mod ports;

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn violet(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_violet"));
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("VIOLET_")) {
        command.env_remove(name);
    }
    command
}

fn output(arguments: &[&str]) -> Output {
    violet(arguments).output().expect("the binary runs")
}

/// The one line that a bad start prints.
fn refusal(arguments: &[&str]) -> String {
    let output = output(arguments);
    let errors = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
    assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    errors.trim_end().to_owned()
}

/// An address that nobody else is given.
fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, ports::free(1)).into()
}

fn path_text(path: &Path) -> &str {
    path.to_str().expect("the temporary directory has a plain name")
}

#[test]
fn the_simulator_says_which_sizes_there_are() {
    for (nodes, expected) in [
        ("0", "'0' for '--nodes <nodes>': allowed: 1 to 200, or a range like 5-30 (see --help)"),
        ("5-201", "'5-201' for '--nodes <nodes>': allowed: 1 to 200, or a range like 5-30 (see --help)"),
        ("30-5", "'30-5' for '--nodes <nodes>': the smaller number comes first: 5-30 (see --help)"),
    ] {
        let line = refusal(&["sim", "--nodes", nodes]);
        assert_eq!(line, format!("violet: invalid value {expected}"));
    }
}

#[test]
fn a_bad_setting_is_refused_with_what_is_allowed() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("v.toml");
    std::fs::write(&file, "workers = 1000\n").expect("a file");
    let file = path_text(&file);
    let cases: [(&[&str], &str); 8] = [
        (&["serve", "--replicas", "9"], "violet: --replicas: '9' is not allowed; allowed: 1 to 7 (members)"),
        (
            &["serve", "--workers", "-1"],
            "violet: --workers: '-1' is not allowed; allowed: 0 to 256 (threads)",
        ),
        (&["serve", "--replica", "3"], "violet: unexpected argument '--replica' found (see --help)"),
        (&["serve", "--config", "/no/such/file"], "violet: config: /no/such/file: "),
        (&["serve", "--config", file], ": workers: '1000' is not allowed; allowed: 0 to 256 (threads)"),
        (&["serve", "--listen", "192.0.2.1:4410"], "is not loopback, so cluster-key-file is needed"),
        (&["serve", "--listen", "0.0.0.0:4410"], "set advertise, too"),
        (&["serve", "--admin", "192.0.2.1:1", "--listen", "127.0.0.1:0"], "192.0.2.1:1 is not loopback"),
    ];
    for (arguments, expected) in cases {
        let line = refusal(arguments);
        assert!(line.contains(expected), "{line}");
    }
    let output = violet(&["serve"]).env("VIOLET_FAN_OUT", "2").output().expect("the binary runs");
    let errors = String::from_utf8(output.stderr).expect("text");
    assert_eq!(errors, "violet: VIOLET_FAN_OUT: '2' is not allowed; allowed: all|adaptive|1 (width)\n");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn key_and_list_must_be_usable() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path_text(&path).to_owned()
    };
    let key = |path: &str| refusal(&["serve", "--cluster-key-file", path]);
    assert!(key("/no/such/key").contains("cluster-key-file: /no/such/key: "));
    assert!(key(&write("short", "too short")).ends_with("short has 9 bytes; allowed: 16 to 4096"));
    let list = |path: &str| refusal(&["serve", "--servers", path]);
    assert!(list("/no/such/list").contains("servers: /no/such/list: "));
    assert!(list(&write("empty", "\n")).contains("no servers in it"));
    assert!(list(&write("bad", "127.0.0.1:1\nwhat\n")).contains("bad line 2"));
    let line = refusal(&["serve", "--listen", "127.0.0.1:0", "--servers", &write("one", "127.0.0.1:1\n")]);
    assert!(
        line.contains("listen: 127.0.0.1:0 leaves the port to the system; only a node without"),
        "{line}"
    );
}

#[test]
fn a_taken_port_is_refused() {
    let taken = free_address();
    let _holder = UdpSocket::bind(taken).expect("a socket");
    for lanes in ["steered", "shared"] {
        let line = refusal(&["serve", "--listen", &taken.to_string(), "--lanes", lanes]);
        // The development key's notice comes only with a start that works.
        assert_eq!(line, format!("violet: {taken} is taken"));
    }
    let taken_by_tcp = free_address();
    let _tcp_holder = TcpListener::bind(taken_by_tcp).expect("a socket");
    let line = refusal(&["serve", "--listen", &taken_by_tcp.to_string()]);
    assert_eq!(line, format!("violet: {taken_by_tcp} is taken (TCP, for bulk transfers)"));
    let directory = tempfile::tempdir().expect("a directory");
    let (port, dir) = (taken.port().to_string(), path_text(directory.path()));
    let line = refusal(&["cluster", "--nodes", "1", "--port", &port, "--dir", dir]);
    assert_eq!(line, format!("violet: {taken} is taken"));
}

#[test]
fn a_cluster_refuses_what_its_nodes_would_refuse() {
    let refused = |arguments: &[&str]| refusal(&[&["cluster"], arguments].concat());
    assert!(refused(&["--set", "replicas=9"]).contains("'9' is not allowed; allowed: 1 to 7"));
    assert!(refused(&["--set", "replica=3"]).ends_with("--set replica: there is no such setting"));
    assert!(refused(&["--set", "listen=127.0.0.1:1"]).contains("the cluster sets this for each node"));
    assert!(refused(&["--set", "replicas"]).contains("'replicas' is not allowed; allowed: name=value"));
    assert!(refused(&["--nodes", "0"]).contains("allowed: 1 to 256"));
    assert!(refused(&["--port", "65535", "--nodes", "2"]).contains("port 65535 + 1 is no port"));
}

#[test]
fn a_node_that_dies_at_once_is_shown_with_its_log() {
    let (taken, free) = (free_address(), free_address());
    let _holder = TcpListener::bind(taken).expect("a socket");
    let directory = tempfile::tempdir().expect("a directory");
    let (port, admin_port) = (free.port().to_string(), taken.port().to_string());
    let output = output(&[
        "cluster",
        "--nodes",
        "1",
        "--port",
        &port,
        "--admin-port",
        &admin_port,
        "--dir",
        path_text(directory.path()),
    ]);
    let errors = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains(&format!("violet: admin: {taken} is taken")), "{errors}");
    assert!(
        errors.ends_with(&format!("violet: no cluster: node 0 ({free}) died: exit status: 2\n")),
        "{errors}"
    );
    let list = std::fs::read_to_string(directory.path().join("servers.txt")).expect("the list");
    assert_eq!(list, free.to_string());
}

/// Ends a child even when the test fails.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        // Both fail only when it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_node_says_when_it_is_ready_and_leaves_on_sigterm() {
    for lanes in ["steered", "shared"] {
        let mut command = violet(&["serve", "--listen", "127.0.0.1:0", "--lanes", lanes, "--workers", "2"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        let mut node = Node(child);
        let mut line = String::new();
        let stdout = node.0.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let pid = node.0.id();
        assert!(line.starts_with("violet: ready on 127.0.0.1:"), "{line}");
        assert!(line.contains(&format!(", pid {pid}, 1 members listed, receive buffers ")), "{line}");
        assert!(line.contains(" bytes granted, 2 workers"), "{line}");
        assert_eq!(line.contains("one shared lane"), lanes == "shared" || cfg!(not(target_os = "linux")));
        let process = rustix::process::Pid::from_child(&node.0);
        rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("it runs");
        assert!(node.0.wait().expect("it ends").success());
        let mut errors = String::new();
        node.0.stderr.take().expect("piped").read_to_string(&mut errors).expect("text");
        assert_eq!(errors, "violet: no cluster-key-file: using the development key, on loopback only\n");
    }
}

#[test]
fn a_node_that_its_list_does_not_name_says_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let list = directory.path().join("servers.txt");
    // Held, so that nobody answers there.
    let holder = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let other = holder.local_addr().expect("bound");
    for (is_listed, members) in [(true, "2 members listed"), (false, "1 members listed")] {
        let own = free_address();
        let text = if is_listed { format!("{other}\n{own}\n") } else { format!("{other}\n") };
        std::fs::write(&list, text).expect("a file");
        let mut command = violet(&["serve", "--listen", &own.to_string(), "--servers", path_text(&list)]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        let mut node = Node(child);
        let mut line = String::new();
        let stdout = node.0.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert!(line.contains(members), "{line}");
        node.0.kill().expect("it runs");
        let mut errors = String::new();
        node.0.stderr.take().expect("piped").read_to_string(&mut errors).expect("text");
        let notice =
            format!("violet: {own} is not in {}; it joins the 1 member listed there", list.display());
        let notices = errors.lines().filter(|line| line.contains("is not in")).collect::<Vec<_>>();
        assert_eq!(notices, if is_listed { vec![] } else { vec![notice.as_str()] }, "{errors}");
    }
}
