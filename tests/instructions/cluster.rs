//! What a node does for one datagram, in clusters that are at rest.
//!
//! The simulator makes the cluster; then nodes are handed datagrams one by one, and what each of them does
//! is counted alone. A PUT is driven to its end: the coordinator, its replicas, and the acknowledgements, so that
//! nothing stays in a table for the next one to find. Sixteen are in progress at a time, as under load.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;

use violet::config::Config;
use violet::node::Node;
use violet::outbox::{Datagram, Outbox};
use violet::sim::Bugs;
use violet::sim::host::Plan;
use violet::sim::network::{Place, quiet};
use violet::sim::world::World;
use violet::time::{Duration, Instant};
use violet_client::wire;
use violet_client::{Format, Key, Operation, Request, Value};

use crate::Wanted;
use crate::paths::{id_of, key_of, name_of};

/// Requests of one row, and how many of them are in progress at once.
const TIMES: usize = 256;
const IN_PROGRESS: usize = 16;
/// What comes before, so that buffers and tables have the size that they keep.
const WARM_UP: usize = 1_024;
const VALUE_BYTES: usize = 100;
/// Keys that take turns, and how many are looked at to find them.
const KEYS: usize = 16;
const KEYS_TRIED: usize = 65_536;
/// The number of members has nothing to do with the number of partitions, and few of these are quickly made.
const PARTITIONS_LOG2: &str = "8";
/// A new cluster gets this time to come to rest; it is looked at afterwards.
const SETTLE: Duration = Duration::from_secs(3);
/// Requests follow each other at this distance: a node whose last read is 10 ms old would count as idle.
const BETWEEN: Duration = Duration::from_nanos(500);
/// The default of the setting.
const SUSPECT_AFTER: Duration = Duration::from_millis(350);

/// Cluster sizes that a read is counted in. From the first to the last it must not grow.
pub const SIZES: [usize; 3] = [5, 15, 60];
/// Numbers of replicas that it is counted with.
pub const REPLICAS: [usize; 2] = [1, 3];

/// The name of the row of a read at a holder.
pub fn holder_row(replicas: usize, members: usize) -> String {
    format!("node raw GET at a holder, N={replicas}, {members} members")
}

pub fn run(wanted: Wanted<'_>) {
    if !wanted.has("node") && !wanted.has("look up") {
        return;
    }
    for replicas in REPLICAS {
        for members in SIZES {
            let mut stage = Stage::new(members, replicas);
            stage.reads_here(wanted, &holder_row(replicas, members));
            if members != 15 {
                continue;
            }
            for format in [Format::Raw, Format::Protobuf] {
                let rows = Rows { wanted, format, replicas };
                stage.writes_here(rows);
                stage.passed_on(rows);
            }
            if replicas == 3 {
                stage.look_ups(wanted);
            }
        }
    }
}

/// Names of rows.
#[derive(Clone, Copy)]
struct Rows<'a> {
    wanted: Wanted<'a>,
    format: Format,
    replicas: usize,
}

impl<'a> Rows<'a> {
    fn of(self, what: &str) -> Row<'a> {
        let name = format!("node {} {what}, N={}, 15 members", name_of(self.format), self.replicas);
        Some((self.wanted, name))
    }
}

/// The row under which something is counted, if it is.
type Row<'a> = Option<(Wanted<'a>, String)>;

/// A cluster at rest, whose nodes are handed datagrams.
struct Stage {
    nodes: Vec<Arc<Node>>,
    outboxes: Vec<Outbox>,
    now: Instant,
    requests: usize,
}

/// A datagram on its way to a node.
struct Letter {
    from: SocketAddr,
    to: usize,
    bytes: Vec<u8>,
}

/// What a node has sent.
#[derive(Default)]
struct Sent {
    letters: Vec<Letter>,
    /// Replies to clients.
    replies: usize,
}

impl Stage {
    fn new(members: usize, replicas: usize) -> Self {
        let flag = |name: &str| match name {
            "partitions-log2" => Some(PARTITIONS_LOG2.to_owned()),
            "replicas" => Some(replicas.to_string()),
            _ => None,
        };
        let config = Config::load(None, |_| None, flag).expect("the settings are allowed");
        let plan = || Plan { config: config.clone(), skew_nanos: 0, bugs: Bugs::default() };
        let mut world = World::new(1, (0..members).map(|_| plan()).collect(), members, quiet());
        (0..members).for_each(|node| world.start(node));
        world.run_for(SETTLE);
        let mut nodes = Vec::new();
        let mut outboxes = Vec::new();
        for host in &world.hosts {
            let report = host.report().expect("it runs");
            assert_eq!(report.members_alive, members, "all are there");
            assert!(!report.catching_up && report.unsettled == 0, "the cluster is at rest: {report:?}");
            let process = host.process.as_ref().expect("it runs");
            nodes.push(Arc::clone(&process.node));
            outboxes.push(Outbox::new(process.metrics.sheet()));
        }
        Self { nodes, outboxes, now: world.now, requests: 0 }
    }

    /// Hands letters to one node; the row counts that as something done so many times.
    fn deliver(&mut self, node: usize, letters: &[Letter], times: usize, row: &Row<'_>) -> Sent {
        let Self { nodes, outboxes, now, .. } = self;
        let (handler, outbox) = (&nodes[node], &mut outboxes[node]);
        outbox.clear();
        let mut work = || {
            for letter in letters {
                *now = *now + BETWEEN;
                let Letter { from, ref bytes, .. } = *letter;
                handler.handle(*now, &Datagram { from, received_at: *now, bytes }, outbox);
            }
        };
        match row {
            Some((wanted, row)) => wanted.count(row, times, work),
            None => work(),
        }
        let mut sent = Sent::default();
        for send in outbox.sends() {
            match Place::of(send.to) {
                Some(Place::Node(to)) => {
                    let (from, bytes) = (Place::Node(node).address(), outbox.bytes(send).to_vec());
                    sent.letters.push(Letter { from, to, bytes });
                }
                _ => sent.replies += 1,
            }
        }
        sent
    }

    /// Hands each letter to the node that it is for, node by node.
    fn deliver_all(&mut self, letters: Vec<Letter>, row: &Row<'_>) -> Sent {
        let mut by_node: BTreeMap<usize, Vec<Letter>> = BTreeMap::new();
        for letter in letters {
            by_node.entry(letter.to).or_default().push(letter);
        }
        let mut all = Sent::default();
        for (node, letters) in by_node {
            let sent = self.deliver(node, &letters, letters.len(), row);
            all.letters.extend(sent.letters);
            all.replies += sent.replies;
        }
        all
    }

    /// Requests of a client to a node, one for each key: PUTs of a value, or GETs.
    fn ask(&mut self, node: usize, format: Format, keys: &[Key], value: Option<&[u8]>) -> Vec<Letter> {
        let mut client = Place::Client(0).address();
        client.set_port(5_000);
        let letter = |key: &Key| {
            self.requests += 1;
            let operation = match value {
                Some(bytes) => Operation::Put { key: *key, value: Value { bytes, version: 0 } },
                None => Operation::Get { key: *key },
            };
            let mut bytes = Vec::new();
            let request = Request { format, id: id_of(self.requests), operation };
            wire::encode_request(&request, &mut bytes);
            Letter { from: client, to: node, bytes }
        };
        keys.iter().map(letter).collect()
    }

    /// So many requests' keys, of a few whose replicas (by the number of their node) are as wanted.
    fn keys(&self, count: usize, is_wanted: impl Fn(&[usize]) -> bool) -> Vec<Key> {
        let view = self.nodes[0].view();
        let number = |member: &u16| match Place::of(view.member(*member).address) {
            Some(Place::Node(number)) => number,
            _ => unreachable!("members are nodes"),
        };
        let is_wanted = |key: &Key| {
            let replicas = view.primaries(view.partition_of(key.as_bytes()));
            is_wanted(&replicas.iter().map(number).collect::<Vec<usize>>())
        };
        let few: Vec<Key> = (0..KEYS_TRIED).map(key_of).filter(is_wanted).take(KEYS).collect();
        assert_eq!(few.len(), KEYS, "the cluster is small enough that there are such keys");
        few.into_iter().cycle().take(count).collect()
    }

    /// PUTs to node 0, which coordinates them, with all that follows.
    fn write(&mut self, format: Format, keys: &[Key], rows: Option<Rows<'_>>) {
        let row = |what: &str| rows.and_then(|rows| rows.of(what));
        let request = row("PUT at its coordinator: the request");
        let replica = row("PUT at a replica");
        let words = row("PUT at its coordinator: the replicas' words");
        for keys in keys.chunks(IN_PROGRESS) {
            let asked = self.ask(0, format, keys, Some(&[0x61; VALUE_BYTES]));
            let writes = self.deliver(0, &asked, keys.len(), &request);
            let mut replies = writes.replies;
            if !writes.letters.is_empty() {
                let stored = self.deliver_all(writes.letters, &replica);
                replies += self.deliver(0, &stored.letters, keys.len(), &words).replies;
            }
            assert_eq!(replies, keys.len(), "each PUT is answered once");
        }
    }

    /// GETs to node 1, which asks a replica.
    fn read(&mut self, format: Format, keys: &[Key], rows: Option<Rows<'_>>) {
        let row = |what: &str| rows.and_then(|rows| rows.of(what));
        let (request, replica) = (row("GET at an outsider: the request"), row("GET at a replica"));
        let word = row("GET at an outsider: the replica's word");
        for keys in keys.chunks(IN_PROGRESS) {
            let asked = self.ask(1, format, keys, None);
            let questions = self.deliver(1, &asked, keys.len(), &request);
            let answers = self.deliver_all(questions.letters, &replica);
            self.deliver(1, &answers.letters, keys.len(), &word);
            assert_eq!(answers.replies, keys.len(), "each GET is answered once, by the replica");
        }
    }

    /// Reads at a node that holds the key.
    fn reads_here(&mut self, wanted: Wanted<'_>, row: &str) {
        let format = Format::Raw;
        let keys = self.keys(WARM_UP, |replicas| replicas[0] == 0);
        self.write(format, &keys, None);
        let asked = self.ask(0, format, &keys, None);
        self.deliver(0, &asked, 0, &None);
        let asked = self.ask(0, format, &keys[..TIMES], None);
        let sent = self.deliver(0, &asked, TIMES, &Some((wanted, row.to_owned())));
        assert_eq!((sent.replies, sent.letters.len()), (TIMES, 0), "the holder answers by itself");
    }

    fn writes_here(&mut self, rows: Rows<'_>) {
        let keys = self.keys(WARM_UP, |replicas| replicas[0] == 0);
        self.write(rows.format, &keys, None);
        self.write(rows.format, &keys[..TIMES], Some(rows));
    }

    /// Requests to a node that holds nothing of the key: it asks another, or passes the request on.
    fn passed_on(&mut self, rows: Rows<'_>) {
        let keys = self.keys(TIMES, |replicas| replicas[0] == 0 && !replicas.contains(&1));
        self.write(rows.format, &keys, None);
        self.read(rows.format, &keys, None);
        self.read(rows.format, &keys, Some(rows));
        for row in [None, rows.of("PUT at an outsider")] {
            let asked = self.ask(1, rows.format, &keys, Some(&[0x62; VALUE_BYTES]));
            let forwarded = self.deliver(1, &asked, TIMES, &row);
            assert_eq!((forwarded.replies, forwarded.letters.len()), (0, TIMES), "all go on");
        }
    }

    fn look_ups(&self, wanted: Wanted<'_>) {
        let view = self.nodes[0].view();
        let keys: Vec<Key> = (0..TIMES).map(key_of).collect();
        wanted.count("look up a preference list", TIMES, || {
            for key in &keys {
                black_box(view.primaries(view.partition_of(black_box(key).as_bytes())));
            }
        });
        wanted.count("look up who answers now", TIMES, || {
            for key in &keys {
                let partition = view.partition_of(black_box(key).as_bytes());
                black_box(view.holders(partition, self.now, SUSPECT_AFTER));
            }
        });
    }
}
