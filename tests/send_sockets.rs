//! A cluster serves under every division of its sending sockets (`reply-sockets`,
//! `replication-sockets`, `forwarding-sockets`), with steered lanes and with a shared one.

mod ports;

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use violet::config::Config;
use violet::metrics::Metric;
use violet::node::Birth;
use violet::server::{Clock, Server};
use violet_client::{Client, Format};

const NODES: usize = 3;
/// Reached only when something is broken.
const PATIENCE: Duration = Duration::from_secs(20);

fn start(settings: &[(&str, &str)]) -> (Vec<SocketAddr>, Vec<Server>) {
    let first = ports::free(NODES as u16);
    let members: Vec<SocketAddr> =
        (first..first + NODES as u16).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
    let flag = |name: &str| settings.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned());
    let config = Config::load(None, |_| None, flag).expect("all of these are allowed");
    let start_one = |(index, listen): (usize, &SocketAddr)| {
        let clock = Clock::start();
        let birth = Birth {
            now: clock.now(),
            pid: std::process::id(),
            seed: index as u64,
            cluster_key: [7; 32],
            members: members.clone(),
            large_pages: false,
            sites: std::collections::BTreeMap::new(),
        };
        Server::start(&Config { listen: *listen, ..config.clone() }, clock, birth).expect("it starts")
    };
    let servers = members.iter().enumerate().map(start_one).collect();
    (members, servers)
}

fn is_settled(server: &Server) -> bool {
    let stats: serde_json::Value = serde_json::from_str(&server.node().stats_json()).expect("JSON");
    stats["members_alive"] == NODES && stats["catching_up"] == false && stats["repair"]["unsettled"] == 0
}

/// Writes, reads and removes through every node what two of the three hold, so that there are replies,
/// replication and forwarding.
fn serves(settings: &[(&str, &str)]) {
    // The workers do all the work, so that it is not the listener alone that sends.
    let settings =
        [settings, &[("replicas", "2"), ("workers", "2"), ("inline-batch", "0"), ("memory-mib", "64")]]
            .concat();
    let (addresses, servers) = start(&settings);
    let deadline = Instant::now() + PATIENCE;
    while !servers.iter().all(is_settled) {
        assert!(Instant::now() < deadline, "no cluster with {settings:?}");
        std::thread::yield_now();
    }
    for format in [Format::Raw, Format::Protobuf] {
        let mut clients: Vec<Client> = addresses
            .iter()
            .map(|address| Client::new(vec![*address]).expect("a server").with_format(format))
            .collect();
        for (number, key) in (0..12_u8).map(|number| (usize::from(number), [number; 5])) {
            let through = |offset: usize| (number + offset) % NODES;
            clients[through(0)].put(&key, &[number as u8; 100], 0).expect("stored");
            for client in &mut clients {
                let found = client.get(&key).expect("an answer").expect("it was stored");
                assert_eq!(found.bytes, [number as u8; 100], "{settings:?}");
            }
            assert!(clients[through(1)].remove(&key).expect("an answer"), "{settings:?}");
            assert_eq!(clients[through(2)].get(&key).expect("an answer"), None, "{settings:?}");
        }
    }
    for server in servers {
        assert_eq!(server.node().metrics().total(Metric::SendsFailed), 0, "{settings:?}");
        server.stop();
    }
}

fn serves_with_all_others(replies: &str) {
    for lanes in ["steered", "shared"] {
        for replication in ["per-request", "per-worker"] {
            for forwarding in ["own", "shared-per-worker", "shared-all"] {
                serves(&[
                    ("lanes", lanes),
                    ("reply-sockets", replies),
                    ("replication-sockets", replication),
                    ("forwarding-sockets", forwarding),
                ]);
            }
        }
    }
}

#[test]
fn replies_by_the_receive_socket() {
    serves_with_all_others("shared");
}

#[test]
fn replies_by_the_receive_socket_one_at_a_time() {
    serves_with_all_others("locked");
}

#[test]
fn replies_by_a_socket_per_worker() {
    serves_with_all_others("per-worker");
}
