//! Siblings from end to end: writers with contexts at different nodes, partitions, repair, wipe-outs.

use super::Bugs;
use super::client::{Client, Manners};
use super::host::Plan;
use super::network::quiet;
use super::world::World;
use crate::config::Config;
use crate::ids::{RequestKey, Version};
use crate::peer::Write;
use crate::storage::siblings::Siblings;
use crate::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use violet_client::wire::{self, Context};
use violet_client::{Format, Key, MessageId, Operation, Request, RetryPolicy, Status, Value};
use violet_link::{Dice, Loss, Settings};

const PORT: u16 = 7_000;
const BLIND: &[u8] = b"";
/// Time for catching up, hints and repair.
const REPAIR: Duration = Duration::from_secs(20);

/// A cluster with one client that asks by hand.
struct Cluster {
    world: World,
    format: Format,
    asked: u64,
    last: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
struct Reply {
    status: Status,
    value: Vec<u8>,
    version: i32,
}

fn key() -> Key {
    Key::parse(&[b'k'; 32]).expect("a key of both layouts")
}

fn value(bytes: &[u8]) -> Value<'_> {
    Value { bytes, version: 0 }
}

fn context(bytes: &[u8]) -> Context<'_> {
    Context::parse(bytes).expect("short enough")
}

impl Cluster {
    fn new(nodes: usize, format: Format) -> Self {
        Self::of_seed(nodes, format, 1)
    }

    fn of_seed(nodes: usize, format: Format, seed: u64) -> Self {
        let settings = BTreeMap::from([("partitions-log2", "6")]);
        let flag = |name: &str| settings.get(name).map(|value| (*value).to_owned());
        let config = Config::load(None, |_| None, flag).expect("good settings");
        let plan = Plan { config, skew_nanos: 0, bugs: Bugs::default() };
        let mut world = World::new(seed, vec![plan; nodes], nodes, quiet());
        (0..nodes).for_each(|node| world.start(node));
        world.run_for(Duration::from_secs(3));
        let manners = Manners { format, needs_front_end: false, policy: RetryPolicy::default() };
        world.add_client(Client::new(0, nodes, manners, None, seed));
        Self { world, format, asked: 0, last: Vec::new() }
    }

    fn ask(&mut self, node: usize, operation: Operation<'_>) -> Reply {
        self.encode(operation);
        self.send_last(node, operation.command())
    }

    fn encode(&mut self, operation: Operation<'_>) {
        self.asked += 1;
        let mut id = [0x80; 16];
        id[8..].copy_from_slice(&self.asked.to_be_bytes());
        let request = Request { format: self.format, id: MessageId(id), operation };
        self.last.clear();
        wire::encode_request(&request, &mut self.last);
    }

    /// Sends the last request (again) until it is answered.
    fn send_last(&mut self, node: usize, command: u32) -> Reply {
        let reply = self.send_last_up_to(20, node, command);
        reply.unwrap_or_else(|| panic!("n{node} does not answer {command:#x}")).0
    }

    /// The same at most so often; also says how often it was sent.
    fn send_last_up_to(&mut self, times: usize, node: usize, command: u32) -> Option<(Reply, usize)> {
        for time in 1..=times {
            self.world.clients[0].last_heard = None;
            self.world.send_by_hand(0, PORT, node, self.last.clone());
            for _ in 0..400 {
                self.world.run_for(Duration::from_millis(1));
                let Some(bytes) = self.world.clients[0].last_heard.take() else { continue };
                let response = wire::decode_response(self.format, command, &bytes);
                let Ok(response) = response.as_ref() else { continue };
                if !self.last.windows(16).any(|id| *id == response.id.0) {
                    continue;
                }
                let (status, value) = (response.status, response.value.unwrap_or_default());
                return Some((Reply { status, value: value.bytes.to_vec(), version: value.version }, time));
            }
        }
        None
    }

    /// Stores a value and returns its context.
    fn put(&mut self, node: usize, seen: &[u8], bytes: &[u8]) -> Vec<u8> {
        let put = Operation::PutWithContext { key: key(), context: context(seen), value: value(bytes) };
        let reply = self.ask(node, put);
        assert_eq!(reply.status, Status::Success);
        let reply = wire::Siblings::decode(&reply.value).expect("a context");
        assert!(reply.values.is_empty() && !reply.context.as_bytes().is_empty());
        reply.context.as_bytes().to_vec()
    }

    /// The values, newest first, and their context.
    fn siblings(&mut self, node: usize) -> (Vec<String>, Vec<u8>) {
        let reply = self.ask(node, Operation::GetSiblings { key: key() });
        if reply.status == Status::NoSuchKey {
            return Default::default();
        }
        assert_eq!(reply.status, Status::Success);
        let siblings = wire::Siblings::decode(&reply.value).expect("siblings");
        let text = |value: &Value<'_>| value.bytes.escape_ascii().to_string();
        (siblings.values.iter().map(text).collect(), siblings.context.as_bytes().to_vec())
    }

    fn values(&mut self, node: usize) -> Vec<String> {
        self.siblings(node).0
    }

    fn get(&mut self, node: usize) -> Option<Vec<u8>> {
        let reply = self.ask(node, Operation::Get { key: key() });
        (reply.status == Status::Success).then_some(reply.value)
    }

    /// Every node says the same: these are the values, and the first is what GET returns.
    fn all_say(&mut self, expected: &[&str]) {
        for node in 0..self.world.hosts.len() {
            assert_eq!(self.values(node), expected, "via n{node}");
            assert_eq!(
                self.get(node).as_deref(),
                expected.first().map(|text| text.as_bytes()),
                "via n{node}"
            );
        }
    }

    /// The replicas of the key, its coordinator first.
    fn replicas(&self) -> Vec<usize> {
        let (list, replicas) = self.world.hosts[0].preference_list(&key());
        let of_address = |address: &std::net::SocketAddr| {
            self.world.hosts.iter().position(|host| host.address == *address)
        };
        list.iter().take(replicas).filter_map(of_address).collect()
    }

    /// What each replica holds of the key's partition, which must be the same, and the key's values there.
    fn assert_equal_at_replicas(&self, expected: &[&str]) {
        let mut digests = Vec::new();
        for node in self.replicas() {
            let process = self.world.hosts[node].process.as_ref().expect("it runs");
            let partition = process.node.view().partition_of(key().as_bytes());
            digests.push(process.node.replica().digest(partition));
            let mut bytes = Vec::new();
            let record = process.node.replica().read_record(partition, &key(), &mut bytes).expect("a record");
            let set = Siblings::of_record(&record).expect("a set");
            let values: Vec<&[u8]> = set.values().iter().map(|value| value.bytes).collect();
            let expected: Vec<&[u8]> = expected.iter().map(|text| text.as_bytes()).collect();
            assert_eq!(values, expected, "at n{node}");
        }
        assert!(digests.iter().all(|digest| *digest == digests[0] && digest.root() != 0));
    }
}

#[test]
fn values_with_one_context_both_stay_until_somebody_has_read_both() {
    for format in [Format::Raw, Format::Protobuf] {
        let mut cluster = Cluster::new(5, format);
        assert_eq!(cluster.values(0), [""; 0]);
        cluster.put(0, BLIND, b"first");
        let (values, seen) = cluster.siblings(1);
        assert_eq!(values, ["first"]);
        cluster.put(2, &seen, b"left");
        let after_right = cluster.put(3, &seen, b"right");
        cluster.all_say(&["right", "left"]);
        cluster.assert_equal_at_replicas(&["right", "left"]);
        // The context of a write stands for that write alone.
        cluster.put(1, &after_right, b"right again");
        cluster.all_say(&["right again", "left"]);
        let (_, seen) = cluster.siblings(4);
        cluster.put(0, &seen, b"both");
        cluster.all_say(&["both"]);
        cluster.assert_equal_at_replicas(&["both"]);
    }
}

#[test]
fn the_course_commands_see_a_set_as_its_newest_value() {
    let mut cluster = Cluster::new(4, Format::Protobuf);
    let plain = |bytes| Operation::Put { key: key(), value: Value { bytes, version: 7 } };
    assert_eq!(cluster.ask(0, plain(b"plain")).status, Status::Success);
    let (values, seen) = cluster.siblings(1);
    assert_eq!(values, ["plain"]);
    cluster.put(2, BLIND, b"beside");
    cluster.all_say(&["beside", "plain"]);
    cluster.put(3, &seen, b"instead");
    cluster.all_say(&["instead", "beside"]);
    assert_eq!(cluster.ask(1, plain(b"over all")).status, Status::Success);
    cluster.all_say(&["over all"]);
    let got = cluster.ask(2, Operation::Get { key: key() });
    assert_eq!((got.value, got.version), (b"over all".to_vec(), 7));
    cluster.put(0, BLIND, b"one more");
    let remove = Operation::Remove { key: key() };
    assert_eq!(cluster.ask(0, remove).status, Status::Success);
    assert_eq!(cluster.ask(1, remove).status, Status::NoSuchKey);
    cluster.all_say(&[]);
    cluster.put(0, &seen, b"anew");
    cluster.all_say(&["anew"]);
}

#[test]
fn a_repeat_is_not_executed_again_and_gets_an_empty_context() {
    let mut cluster = Cluster::new(3, Format::Raw);
    for node in 0..3 {
        let put = Operation::PutWithContext { key: key(), context: context(BLIND), value: value(b"once") };
        assert_eq!(cluster.ask(node, put).status, Status::Success);
        for via in 0..3 {
            let repeated = cluster.send_last(via, put.command());
            assert_eq!(repeated.status, Status::Success);
            let repeated = wire::Siblings::decode(&repeated.value).expect("an empty context");
            assert_eq!(repeated, wire::Siblings::default());
        }
        assert_eq!(cluster.values(node).len(), node + 1);
    }
    let no_context = Operation::PutWithContext { key: key(), context: context(b"?"), value: value(b"x") };
    assert_eq!(cluster.ask(1, no_context).status, Status::Malformed);
}

#[test]
fn both_sides_of_a_partition_keep_their_values() {
    let mut cluster = Cluster::new(5, Format::Protobuf);
    cluster.put(0, BLIND, b"before");
    let (_, seen) = cluster.siblings(0);
    let alone = cluster.replicas()[0];
    let others: Vec<usize> = (0..5).filter(|node| *node != alone).collect();
    cluster.world.partition(&[alone], &others, true);
    cluster.world.run_for(Duration::from_secs(1));
    cluster.put(alone, &seen, b"here");
    cluster.put(others[0], &seen, b"there");
    assert_eq!(cluster.values(others[1]), ["there"]);
    cluster.world.network.links.heal();
    cluster.world.run_for(REPAIR);
    cluster.all_say(&["there", "here"]);
    cluster.assert_equal_at_replicas(&["there", "here"]);
    let (_, seen) = cluster.siblings(others[2]);
    cluster.put(others[1], &seen, b"after");
    cluster.all_say(&["after"]);
}

#[test]
fn a_replica_without_memory_gets_the_set_back() {
    let mut cluster = Cluster::new(4, Format::Protobuf);
    cluster.put(0, BLIND, b"a");
    cluster.put(1, BLIND, &[b'b'; 9_000]);
    let lost = cluster.replicas()[1];
    cluster.world.crash(lost);
    cluster.put(cluster.replicas()[0], BLIND, b"c");
    cluster.world.start(lost);
    cluster.world.run_for(REPAIR);
    let b = "b".repeat(9_000);
    cluster.all_say(&["c", &b, "a"]);
    cluster.assert_equal_at_replicas(&["c", &b, "a"]);
}

/// Two replicas hold different sets of one version, as after merges that crossed: only what they hold
/// tells them apart.
#[test]
fn sets_of_one_version_are_made_equal() {
    let mut cluster = Cluster::new(3, Format::Protobuf);
    let version = Version { time: cluster.world.now.as_nanos(), writer: 9 };
    for (node, text) in [b"x", b"y", b"z"].into_iter().enumerate() {
        let of_writer = |writer: u64, bytes| {
            let context = crate::storage::siblings::CausalContext::default();
            let updated = Siblings::default().update(&context, value(bytes), writer, version.time);
            updated.expect("nothing is impossible in no context").siblings
        };
        let mut set = Vec::new();
        of_writer(node as u64, text).encode(&mut set);
        let write =
            Write { key: key(), version, value: Some(value(&set)), is_set: true, request: RequestKey(0) };
        let node = &cluster.world.hosts[node].process.as_ref().expect("it runs").node;
        let partition = node.view().partition_of(key().as_bytes());
        node.replica().apply(partition, &write, false, false);
    }
    assert_eq!(cluster.values(0), ["z", "y", "x"], "the front end merges what the holders have");
    cluster.world.run_for(REPAIR);
    cluster.assert_equal_at_replicas(&["z", "y", "x"]);
    cluster.all_say(&["z", "y", "x"]);
}

/// The coordinator forgets what it wrote and goes on: its next write has not seen that.
#[test]
fn a_wiped_coordinator_does_not_replace_what_it_has_forgotten() {
    let mut cluster = Cluster::new(3, Format::Protobuf);
    cluster.put(0, BLIND, b"before");
    let coordinator = cluster.replicas()[0];
    assert_eq!(cluster.ask(coordinator, Operation::Wipeout).status, Status::Success);
    cluster.put(1, BLIND, b"after");
    assert_eq!(cluster.values(2), ["after", "before"]);
    cluster.world.run_for(REPAIR);
    cluster.all_say(&["after", "before"]);
    cluster.assert_equal_at_replicas(&["after", "before"]);
}

/// What one of several clients last saw: a context, and the values that it stands for.
#[derive(Clone, Default)]
struct Seen {
    context: Vec<u8>,
    values: BTreeSet<String>,
}

/// A write that was sent, whether or not it was answered.
struct Sent {
    text: String,
    replaces: BTreeSet<String>,
    is_acknowledged: bool,
    /// It was sent once, so it cannot have been executed on both sides of a partition.
    is_single: bool,
}

/// Does one thing at random: trouble, a read, or a write with whatever its client saw last.
fn take_step(cluster: &mut Cluster, dice: &mut Dice, clients: &mut [Seen], sent: &mut Vec<Sent>) {
    const WRITES_MAX: usize = 14;
    const TRIES_MAX: usize = 3;
    let nodes = cluster.world.hosts.len();
    let (node, client) = (dice.index(nodes), dice.index(clients.len()));
    match dice.index(12) {
        0 => {
            let (some, others): (Vec<usize>, Vec<usize>) = (0..nodes).partition(|_| dice.chance(500_000));
            cluster.world.partition(&some, &others, dice.chance(800_000));
        }
        1 => cluster.world.network.links.heal(),
        2 => cluster.world.pause(node),
        3 => (0..nodes).for_each(|node| cluster.world.resume(node)),
        4 => cluster.world.run_for(dice.time(Duration::ZERO, Duration::from_secs(2))),
        5 => clients[client] = Seen::default(),
        6..9 => {
            let operation = Operation::GetSiblings { key: key() };
            cluster.encode(operation);
            let Some((reply, _)) = cluster.send_last_up_to(TRIES_MAX, node, operation.command()) else {
                return;
            };
            if reply.status != Status::Success {
                return;
            }
            let read = wire::Siblings::decode(&reply.value).expect("siblings");
            let text = |value: &Value<'_>| value.bytes.escape_ascii().to_string();
            let values = read.values.iter().map(text).collect();
            clients[client] = Seen { context: read.context.as_bytes().to_vec(), values };
        }
        _ if sent.len() < WRITES_MAX => {
            let text = format!("w{}", sent.len());
            let seen = clients[client].clone();
            let operation = Operation::PutWithContext {
                key: key(),
                context: context(&seen.context),
                value: value(text.as_bytes()),
            };
            cluster.encode(operation);
            let reply = cluster.send_last_up_to(TRIES_MAX, node, operation.command());
            let reply = reply.filter(|(reply, _)| reply.status == Status::Success);
            let is_single = reply.as_ref().is_some_and(|(_, times)| *times == 1);
            let is_acknowledged = reply.is_some();
            sent.push(Sent { text: text.clone(), replaces: seen.values.clone(), is_acknowledged, is_single });
            let Some((reply, _)) = reply else { return };
            let after = wire::Siblings::decode(&reply.value).expect("a context").context;
            let is_empty = after.as_bytes().is_empty();
            let values = if is_empty { BTreeSet::new() } else { &seen.values | &BTreeSet::from([text]) };
            clients[client] = Seen { context: after.as_bytes().to_vec(), values };
        }
        _ => {}
    }
}

/// Partitions, pauses and losses: in the end no value is lost that nobody has replaced, none is back that
/// was replaced, and all agree.
#[test]
fn no_trouble_loses_a_value_or_brings_one_back() {
    let (mut acknowledged, mut concurrent) = (0, 0);
    for seed in 0..60 {
        let rough = Settings { loss: Loss::Each(20_000), reorder: 20_000, ..quiet() };
        let mut cluster = Cluster::of_seed(5, Format::Protobuf, seed);
        cluster.world.network.links.set_base(rough);
        let mut dice = cluster.world.dice("siblings", 0);
        let (mut clients, mut sent) = (vec![Seen::default(); 3], Vec::new());
        for _ in 0..80 {
            take_step(&mut cluster, &mut dice, &mut clients, &mut sent);
        }
        cluster.world.network.links.heal();
        cluster.world.network.links.set_base(quiet());
        (0..5).for_each(|node| cluster.world.resume(node));
        cluster.world.run_for(REPAIR);
        let left = cluster.values(0);
        let is_left = |text: &String| left.contains(text);
        for write in sent.iter().filter(|write| write.is_acknowledged) {
            let is_replaced = sent.iter().any(|other| other.replaces.contains(&write.text));
            assert!(is_left(&write.text) || is_replaced, "seed {seed}: {} of {left:?} is lost", write.text);
            let is_single = |text: &&String| sent.iter().any(|sent| sent.is_single && sent.text == **text);
            for replaced in write.replaces.iter().filter(is_single) {
                assert!(!is_left(replaced), "seed {seed}: {replaced} in {left:?} was replaced");
            }
        }
        acknowledged += sent.iter().filter(|write| write.is_acknowledged).count();
        concurrent += left.len().saturating_sub(1);
        let left: Vec<&str> = left.iter().map(String::as_str).collect();
        cluster.all_say(&left);
        if !left.is_empty() {
            cluster.assert_equal_at_replicas(&left);
        }
    }
    assert!(300 < acknowledged && 60 < concurrent, "{acknowledged} writes, {concurrent} beside others");
}
