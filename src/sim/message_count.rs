//! How many datagrams one request takes: counted on a healthy cluster, kind by kind.
//!
//! Fifteen nodes and one client, one request at a time; whatever else the nodes say to each other meanwhile (gossip,
//! pings, comparisons of replicas) is left out. What a request takes depends on whom the client happens to ask: the
//! member that coordinates the key, another of its replicas, or one that has nothing to do with it. Every request of
//! a row must take the same, or the table says that the row is no such number.

use super::Bugs;
use super::client::{Client, Manners, key_of};
use super::history::Action;
use super::host::Plan;
use super::network::{Place, quiet};
use super::trace::{Kind, kind};
use super::world::World;
use crate::config::Config;
use crate::time::Duration;
use std::collections::BTreeMap;
use std::fmt::Write;
use violet_client::{Format, RetryPolicy};

/// Nodes, as many as the original had on its machines.
pub const NODES: usize = 15;
/// Few partitions: how many there are changes no message.
const PARTITIONS_LOG2: &str = "8";
const SETTLE: Duration = Duration::from_secs(2);
/// Requests of a row, and keys that take turns.
const REQUESTS: usize = 24;
const KEYS: usize = 6;
const VALUE_BYTES: usize = 100;
/// Whoever has not read for this long is idle, and asks all replicas.
const IDLE: Duration = Duration::from_millis(30);
/// What follows a request is over after this long (acknowledgements, a second replica's word).
const OVER_AFTER: Duration = Duration::from_millis(2);

/// The datagrams that belong to requests, in the order of the table.
const COLUMNS: [Kind; 8] = [
    Kind::Request,
    Kind::Forward,
    Kind::Write,
    Kind::Stored,
    Kind::Read,
    Kind::ReadHit,
    Kind::Answered,
    Kind::Reply,
];

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Put,
    Get,
}

/// Whom it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrontEnd {
    Coordinator,
    Replica,
    Outsider,
}

/// One row: datagrams of all requests by kind, and their bytes.
struct Row {
    name: String,
    counts: BTreeMap<Kind, u64>,
    bytes: u64,
    /// All requests took the same.
    is_steady: bool,
}

/// The table.
#[must_use]
pub fn table() -> String {
    let mut stage = Stage::new();
    let mut rows = Vec::new();
    for (front_end, name) in [
        (FrontEnd::Coordinator, "PUT to its coordinator"),
        (FrontEnd::Replica, "PUT to another replica"),
        (FrontEnd::Outsider, "PUT to an outsider"),
    ] {
        rows.push(stage.row(name, Ask::Put, front_end, false));
    }
    for (front_end, name) in
        [(FrontEnd::Coordinator, "GET to its coordinator"), (FrontEnd::Replica, "GET to another replica")]
    {
        rows.push(stage.row(name, Ask::Get, front_end, false));
    }
    rows.push(stage.row("GET to an outsider, busy", Ask::Get, FrontEnd::Outsider, false));
    rows.push(stage.row("GET to an outsider, idle", Ask::Get, FrontEnd::Outsider, true));
    text(&rows)
}

fn text(rows: &[Row]) -> String {
    let mut text = format!(
        "Datagrams of one request ({NODES} nodes, N = 3, all-live, adaptive, raw, {VALUE_BYTES} B values)\n\n{:26}",
        ""
    );
    let mut put = |what: std::fmt::Arguments<'_>| text.write_fmt(what).expect("a string takes everything");
    for column in COLUMNS {
        put(format_args!("{:>9}", column.name()));
    }
    put(format_args!("{:>7}{:>7}\n", "all", "bytes"));
    let requests = REQUESTS as u64;
    for row in rows {
        put(format_args!("{:26}", row.name));
        for column in COLUMNS {
            put(format_args!("{:>9}", share(row.counts.get(&column).copied().unwrap_or(0), requests)));
        }
        let unsteady = if row.is_steady { "" } else { " not the same for all" };
        put(format_args!("{:>7}{:>7}{unsteady}\n", share(all(row), requests), row.bytes / requests));
    }
    let [put_rows, get_rows] = [&rows[..3], &rows[3..6]].map(|rows| rows.iter().map(all).collect::<Vec<_>>());
    // One node of fifteen coordinates a key, two are its other replicas, twelve are outsiders.
    let random = |all: &[u64]| (all[0] + 2 * all[1] + 12 * all[2]) as f64 / (NODES as u64 * requests) as f64;
    let known = |all: &[u64]| all[0] as f64 / requests as f64;
    put(format_args!(
        "\nA random node while it is busy: PUT {:.2}, GET {:.2}. A client that knows the table: PUT {:.2}, GET {:.2}.\n",
        random(&put_rows),
        random(&get_rows),
        known(&put_rows),
        known(&get_rows),
    ));
    text
}

/// How many each: a whole number, or to the hundredth.
fn share(count: u64, requests: u64) -> String {
    if count.is_multiple_of(requests) {
        (count / requests).to_string()
    } else {
        format!("{:.2}", count as f64 / requests as f64)
    }
}

fn all(row: &Row) -> u64 {
    row.counts.values().sum()
}

/// A cluster at rest and a client.
struct Stage {
    world: World,
    client: usize,
}

impl Stage {
    fn new() -> Self {
        let flag = |name: &str| (name == "partitions-log2").then(|| PARTITIONS_LOG2.to_owned());
        let config = Config::load(None, |_| None, flag).expect("the settings are allowed");
        let plan = || Plan { config: config.clone(), skew_nanos: 0, bugs: Bugs::default() };
        let mut world = World::new(1, (0..NODES).map(|_| plan()).collect(), NODES, quiet());
        (0..NODES).for_each(|node| world.start(node));
        world.run_for(SETTLE);
        let manners =
            Manners { format: Format::Raw, needs_front_end: false, policy: RetryPolicy::course_2016() };
        let client = world.add_client(Client::new(0, NODES, manners, None, world.seed));
        Self { world, client }
    }

    /// Counts requests of one kind.
    fn row(&mut self, name: &str, ask: Ask, front_end: FrontEnd, is_idle: bool) -> Row {
        // Afterwards all keys are there, as they are for nearly all requests.
        for key in 0..KEYS {
            self.request(Ask::Put, key, front_end);
        }
        // The first of all finds a front end that is idle.
        if !is_idle {
            self.request(ask, 0, front_end);
        }
        let mut row = Row { name: name.to_owned(), counts: BTreeMap::new(), bytes: 0, is_steady: true };
        let mut first: Option<BTreeMap<Kind, u64>> = None;
        for number in 0..REQUESTS {
            if is_idle {
                self.world.run_for(IDLE);
            }
            self.world.counted = Some(BTreeMap::new());
            self.request(ask, number % KEYS, front_end);
            let counted = self.world.counted.take().unwrap_or_default();
            let of_requests = counted.iter().filter(|(kind, _)| COLUMNS.contains(kind));
            let counts: BTreeMap<Kind, u64> = of_requests.clone().map(|(kind, one)| (*kind, one.0)).collect();
            row.bytes += of_requests.map(|(_, one)| one.1).sum::<u64>();
            for (kind, count) in &counts {
                *row.counts.entry(*kind).or_default() += count;
            }
            // The word of several answered reads travels in one frame, and mostly with another.
            let steady: BTreeMap<Kind, u64> =
                counts.into_iter().filter(|(kind, _)| *kind != Kind::Answered).collect();
            row.is_steady &= *first.get_or_insert_with(|| steady.clone()) == steady;
        }
        row
    }

    /// Sends one request and waits for its end. All keys of a number have the same front end, so that it is
    /// the same one that is busy.
    fn request(&mut self, ask: Ask, number: usize, front_end: FrontEnd) {
        let (key, node) = self.choice(number, front_end);
        let action = match ask {
            Ask::Put => Action::Put { value: vec![b'v'; VALUE_BYTES], version: 0 },
            Ask::Get => Action::Get,
        };
        let World { clients, history, now, .. } = &mut self.world;
        let key = history.key(key);
        clients[self.client].begin(*now, key, action, node, history);
        self.world.poke(self.client);
        self.world.run_for(OVER_AFTER);
        assert!(self.world.clients[self.client].is_idle(), "a healthy cluster answers at once");
    }

    /// The key with this number, of those for which node 0 is what the front end is to be.
    fn choice(&self, number: usize, front_end: FrontEnd) -> (violet_client::Key, usize) {
        let node = Place::Node(0).address();
        let fits = |key: &violet_client::Key| {
            let (list, replicas) = self.world.hosts[0].preference_list(key);
            let place = list.iter().position(|address| *address == node);
            match front_end {
                FrontEnd::Coordinator => place == Some(0),
                FrontEnd::Replica => place.is_some_and(|place| 0 < place && place < replicas),
                FrontEnd::Outsider => place.is_none_or(|place| replicas <= place),
            }
        };
        let mut keys = (0..).map(|name: u32| key_of(&format!("k{name}"))).filter(fits);
        (keys.nth(number).expect("numbers do not end"), 0)
    }
}

/// Adds a datagram to the counts: how many of its kind, and their bytes.
pub(super) fn count(counts: &mut BTreeMap<Kind, (u64, u64)>, to: std::net::SocketAddr, bytes: &[u8]) {
    let one = counts.entry(kind(to, bytes)).or_default();
    one.0 += 1;
    one.1 += bytes.len() as u64;
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn a_request_takes_these_datagrams_and_no_others() {
        expect![[r#"
            Datagrams of one request (15 nodes, N = 3, all-live, adaptive, raw, 100 B values)

                                        request  forward    write   stored     read      hit answered    reply    all  bytes
            PUT to its coordinator            1        0        2        2        0        0        0        1      6    842
            PUT to another replica            1        1        2        2        0        0        0        1      7   1078
            PUT to an outsider                1        1        2        2        0        0        0        1      7   1078
            GET to its coordinator            1        0        0        0        0        0        0        1      2    168
            GET to another replica            1        0        0        0        0        0        0        1      2    168
            GET to an outsider, busy          1        0        0        0        1        0     0.88        1   3.88    394
            GET to an outsider, idle          1        0        0        0        3        2        0        1      7    782

            A random node while it is busy: PUT 6.93, GET 3.50. A client that knows the table: PUT 6.00, GET 2.00.
        "#]].assert_eq(&table());
    }
}
