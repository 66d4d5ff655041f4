//! A client that asks the right member first goes on while members die, come back and join: real processes, and
//! nothing acknowledged is ever missing.

mod ports;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use violet_client::{Client, Placement, RetryPolicy};

const MEMBERS: usize = 5;
const KEYS: u32 = 64;
/// Limit of every wait; reached only when something is broken.
const PATIENCE: Duration = Duration::from_secs(90);

/// Five addresses and one more.
fn free_addresses() -> Vec<SocketAddr> {
    let first = ports::free(MEMBERS as u16 + 1);
    (first..=first + MEMBERS as u16).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect()
}

/// A node; it ends with the test.
struct Process(Child);

impl Process {
    /// Starts a node and waits until it is ready.
    fn start(address: SocketAddr, list: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_violet"));
        command.args(["serve", "--listen", &address.to_string(), "--servers"]).arg(list);
        command.args(["--forget-after-ms", "3000"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the binary runs");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let process = Self(child);
        let is_ready = lines.map_while(Result::ok).any(|line| line.starts_with("violet: ready"));
        assert!(is_ready, "{address} does not start");
        process
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only when it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn write_list(path: PathBuf, addresses: &[SocketAddr]) -> PathBuf {
    let lines: Vec<String> = addresses.iter().map(|address| format!("{address}\n")).collect();
    std::fs::write(&path, lines.concat()).expect("a directory to write to");
    path
}

/// Writes and reads through one client; every read must find what was written last.
struct Traffic {
    client: Client,
    round: u32,
}

impl Traffic {
    /// It asks on for half a minute: on a busy machine nodes lose their core and stand aside, which is not what this
    /// is about.
    fn new(servers: &[SocketAddr]) -> Self {
        let mut policy = RetryPolicy::course_2019();
        policy.waits.extend([Duration::from_secs(1); 25]);
        let client = Client::new(servers.to_vec()).expect("servers").with_policy(policy).with_zero_hop();
        Self { client, round: 0 }
    }

    /// Every key once.
    fn round(&mut self) {
        self.round += 1;
        for key in 0..KEYS {
            let value = format!("{key} in round {}", self.round);
            self.client.put(&key.to_le_bytes(), value.as_bytes(), 0).expect("it is taken");
            let found = self.client.get(&key.to_le_bytes()).expect("it is answered");
            let found = found.map(|stored| String::from_utf8_lossy(&stored.bytes).into_owned());
            assert_eq!(found, Some(value));
        }
    }

    /// Goes on until the client's table is as wanted.
    fn until(&mut self, what: &str, is_so: impl Fn(&Placement) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !self.client.placement().is_some_and(&is_so) {
            assert!(
                Instant::now() < deadline,
                "the table does not say: {what}; {:?}",
                self.client.placement()
            );
            self.round();
        }
    }

    /// A counter, over all these nodes.
    fn total(&mut self, servers: &[SocketAddr], group: [&str; 2], name: &str) -> u64 {
        let text = |server| self.client.stats(server).expect("it lives");
        let texts: Vec<String> = servers.iter().copied().map(text).collect();
        let count = |text: &String| {
            let stats: serde_json::Value = serde_json::from_str(text).expect("JSON");
            let group = group.iter().filter(|name| !name.is_empty()).fold(&stats, |at, name| &at[*name]);
            group[name].as_u64().expect("a count")
        };
        texts.iter().map(count).sum()
    }
}

fn is_alive(placement: &Placement, address: SocketAddr) -> Option<bool> {
    let member = placement.members().iter().find(|member| member.address == address);
    member.map(|member| member.is_alive)
}

#[test]
fn a_client_that_knows_the_table_goes_on_while_members_die_and_join() {
    let directory = tempfile::tempdir().expect("a directory");
    let addresses = free_addresses();
    let (first, newcomer) = (&addresses[..MEMBERS], addresses[MEMBERS]);
    let list = write_list(directory.path().join("servers.txt"), first);
    let mut processes: Vec<Process> = first.iter().map(|address| Process::start(*address, &list)).collect();
    // The client's list has two of them: it must find its way when these are not the ones that live.
    let mut traffic = Traffic::new(&first[..2]);
    traffic.until("five members", |placement| placement.members().len() == MEMBERS);
    let passed_on = |traffic: &mut Traffic| {
        traffic.total(first, ["ledger", "settled"], "forwarded")
            + traffic.total(first, ["counters", ""], "reads_served")
    };
    // Requests to random nodes would nearly all be passed on: 0.8 of the writes, 0.4 of the reads. These are only
    // where a node is late, because the machine is busy; then another round may do without.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = passed_on(&mut traffic);
        traffic.round();
        let hops = passed_on(&mut traffic) - before;
        if hops == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "{hops} of {} requests took a hop", 2 * KEYS);
    }

    drop(processes.remove(0));
    traffic.until("the first is gone", |placement| is_alive(placement, first[0]) != Some(true));
    processes.push(Process::start(first[0], &list));
    traffic.until("the first is back", |placement| is_alive(placement, first[0]) == Some(true));

    let list = write_list(directory.path().join("newcomer.txt"), &[newcomer, first[2]]);
    processes.push(Process::start(newcomer, &list));
    traffic.until("the newcomer holds keys", |placement| {
        (0..KEYS).any(|key| placement.holders(&key.to_le_bytes()).any(|holder| holder == newcomer))
    });
    traffic.round();
}
