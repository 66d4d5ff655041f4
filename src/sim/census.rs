//! What the nodes hold, looked at from outside: what keeps a mended cluster from being at rest, and what
//! must hold once it is.
//!
//! Clients see one answer at a time; the simulator sees every engine. At rest all nodes use one layout
//! with exactly the living members in it, every partition is held by its owners and nobody else, the
//! owners hold the same, and what was acknowledged and not lost is what they hold, or something newer.
//! One exception is by design: what a node was told to forget by a wipe-out of its own it does not take
//! back from others, so only what is newer than that is compared.

use super::checker::{self, Violation, name_of};
use super::history::{Action, History};
use super::host::{Host, Report, State};
use super::network::Place;
use super::world::World;
use crate::ids::{MemberId, Version};
use crate::storage::digest::ALL_LEAVES;
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use violet_client::Key;

/// A record without its value: which write it is, and whether it is a removal.
type Mark = (Version, bool);

/// What keeps the nodes from being at rest; nothing when they are.
#[must_use]
pub fn restless(world: &World) -> Vec<String> {
    let nodes = living(&world.hosts);
    let is_restless = |report: &Report| {
        report.members_alive != nodes.len()
            || report.catching_up
            || report.hints != 0
            || report.unsettled != 0
            || report.in_progress != 0
            || !report.adds_up()
    };
    let reports = world.reports();
    let restless = reports.iter().filter(|(_, report)| is_restless(report));
    let mut lines: Vec<String> = restless.map(|(node, report)| format!("n{node}: {report:?}")).collect();
    let leaving = nodes.iter().filter(|node| world.hosts[**node].is_leaving());
    lines.extend(leaving.map(|node| format!("n{node} is leaving")));
    if lines.is_empty() {
        lines = misplaced(&world.hosts, &nodes);
    }
    if lines.is_empty() {
        lines = differing(&world.hosts, &nodes);
    }
    lines
}

/// Whether nobody has anything to do but what clients ask: a good moment for the next trouble.
#[must_use]
pub fn is_calm(world: &World) -> bool {
    let nodes = living(&world.hosts);
    let is_calm = |report: &Report| {
        report.members_alive == nodes.len()
            && !report.catching_up
            && report.hints == 0
            && report.unsettled == 0
    };
    let is_unsure = |host: &Host| host.state == State::Paused || host.is_leaving();
    !world.hosts.iter().any(is_unsure)
        && world.reports().iter().all(|(_, report)| is_calm(report))
        && misplaced(&world.hosts, &nodes).is_empty()
}

fn living(hosts: &[Host]) -> Vec<usize> {
    (0..hosts.len()).filter(|node| hosts[*node].state != State::Down).collect()
}

/// Members that are placed and should not be, and the other way round, as each node sees it.
fn misplaced(hosts: &[Host], nodes: &[usize]) -> Vec<String> {
    let mut lines = Vec::new();
    let expected: BTreeSet<usize> = nodes.iter().copied().collect();
    for &node in nodes {
        let Some(process) = &hosts[node].process else { continue };
        let view = process.node.view();
        let is_placed = |node: &usize| view.is_placed(MemberId::of(hosts[*node].address));
        let placed: BTreeSet<usize> = (0..hosts.len()).filter(is_placed).collect();
        if placed != expected || !view.is_settled() {
            let settled = if view.is_settled() { "settled" } else { "not settled" };
            lines.push(format!("n{node} places {placed:?} ({settled}), living are {expected:?}"));
        }
    }
    lines
}

/// The nodes that own a partition, by the first living node's view.
fn owners(hosts: &[Host], nodes: &[usize], partition: u16) -> Vec<usize> {
    let Some(process) = nodes.first().and_then(|node| hosts[*node].process.as_ref()) else {
        return Vec::new();
    };
    let view = process.node.view();
    let owners = view.primaries(partition).iter().map(|index| Place::of(view.member(*index).address));
    owners
        .filter_map(|place| match place {
            Some(Place::Node(node)) => Some(node),
            Some(Place::Client(_)) | None => None,
        })
        .collect()
}

fn partitions(hosts: &[Host], nodes: &[usize]) -> u16 {
    let process = nodes.first().and_then(|node| hosts[*node].process.as_ref());
    process.map_or(0, |process| process.node.view().partitions())
}

/// Partitions whose owners hold different things, and those held by others.
fn differing(hosts: &[Host], nodes: &[usize]) -> Vec<String> {
    let mut lines = Vec::new();
    for partition in 0..partitions(hosts, nodes) {
        let owners = owners(hosts, nodes, partition);
        let root = |node: usize| {
            hosts[node].process.as_ref().map_or(0, |process| process.node.replica().digest(partition).root())
        };
        let roots: BTreeSet<u64> = owners.iter().map(|node| root(*node)).collect();
        if 1 < roots.len() {
            lines.extend(difference(hosts, &owners, partition));
        }
        let strays = nodes.iter().filter(|node| !owners.contains(node) && root(**node) != 0);
        lines.extend(strays.map(|node| format!("n{node} holds partition {partition} of {owners:?}")));
    }
    lines
}

/// What exactly differs; nothing when it is older than somebody's wipe-out.
fn difference(hosts: &[Host], owners: &[usize], partition: u16) -> Option<String> {
    let floor = owners.iter().map(|node| hosts[*node].wiped_at()).max().unwrap_or(0);
    let mut held: BTreeMap<Key, BTreeMap<usize, Mark>> = BTreeMap::new();
    for &node in owners {
        let Some(process) = &hosts[node].process else { continue };
        process.node.replica().scan(partition, ALL_LEAVES, &mut |key, meta| {
            if floor < meta.version.time {
                held.entry(*key).or_default().insert(node, (meta.version, meta.removed));
            }
        });
    }
    let agree = |marks: &BTreeMap<usize, Mark>| {
        let distinct: BTreeSet<&Mark> = marks.values().collect();
        marks.len() == owners.len() && distinct.len() == 1
    };
    held.retain(|_, marks| !agree(marks));
    if held.is_empty() && 0 < floor {
        return None;
    }
    let mut line = format!("owners {owners:?} of partition {partition} differ:");
    for (key, marks) in &held {
        let name = String::from_utf8_lossy(key.as_bytes()).trim_end_matches('\0').to_owned();
        write!(line, " {name} {marks:?}").expect("writing to a string cannot fail");
    }
    Some(line)
}

/// What is acknowledged and not lost, or something newer, is at every owner, and nothing older anywhere.
/// A removal's mark may be gone once it is older than `grace`.
#[must_use]
pub fn judge(history: &History, hosts: &[Host], now: Instant, grace: Duration) -> Vec<Violation> {
    let nodes = living(hosts);
    let mut violations = Vec::new();
    for (key, version, id) in history.newest_kept() {
        let may_be_gone = version.time < (now - grace).as_nanos() && is_removed(history, key);
        let name = &history.keys[key];
        let Some(process) = nodes.first().and_then(|node| hosts[*node].process.as_ref()) else { continue };
        let owners = owners(hosts, &nodes, process.node.view().partition_of(name.as_bytes()));
        let floor = owners.iter().map(|node| hosts[*node].wiped_at()).max().unwrap_or(0);
        let is_wrong = |node: &&usize| match hosts[**node].version_of(name) {
            Some(held) => held < version,
            None => owners.contains(node) && !may_be_gone && floor < version.time,
        };
        let wrong: Vec<usize> = nodes.iter().filter(is_wrong).copied().collect();
        if !wrong.is_empty() {
            let story = format!(
                "key {}: op {id} as {version:?} or something newer is not at {wrong:?} (owners {owners:?})\n{}",
                name_of(history, key),
                checker::tell(history, hosts, key, &[id])
            );
            violations.push(Violation { claim: "what is acknowledged is at all owners", story });
        }
    }
    violations
}

/// Whether anyone has asked to remove a key, or everything.
fn is_removed(history: &History, key: usize) -> bool {
    history.ops.iter().any(|op| match op.action {
        // One that found nothing, too: a repeat of it may have found something in another half.
        Action::Remove => op.key == key,
        Action::Wipe { .. } => true,
        Action::Put { .. } | Action::Get => false,
    })
}

/// Marks of removals that are still there.
#[must_use]
pub fn tombstones(hosts: &[Host]) -> Vec<(usize, usize)> {
    let count =
        |host: &Host| host.process.as_ref().map_or(0, |process| process.node.replica().usage().tombstones);
    let counts = hosts.iter().map(count).enumerate();
    counts.filter(|(_, count)| 0 < *count).collect()
}

/// The value that the nodes hold under a key, by the newest of their records.
#[must_use]
pub fn newest_value(hosts: &[Host], key: &Key) -> Option<Vec<u8>> {
    let records = hosts.iter().filter_map(|host| host.record(key));
    records.max_by_key(|(version, _)| *version).and_then(|(_, value)| value)
}
