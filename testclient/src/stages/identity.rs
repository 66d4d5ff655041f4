//! What servers say about themselves, and the form in which they say anything.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use violet_client::wire::decode_response;
use violet_client::{Format, Operation, Reply, Status, Value};

use crate::batch;
use crate::cluster::{Cluster, Finding, StageResult, fail};
use crate::craft;
use crate::load::{Ask, Call};
use crate::machine;

/// How long to wait for a reply, and after it for one too many.
const PATIENCE: Duration = Duration::from_secs(1);
const LINGER: Duration = Duration::from_millis(100);
/// Unanswered first attempts before a form is undecided.
const ATTEMPTS_MAX: usize = 5;
/// Single datagrams that are counted for `loss`.
const LOSS_PROBES: usize = 500;
const LOSS_CLIENTS: usize = 8;
/// So many lost ones are enough to judge by.
const LOSS_PLENTY: usize = 32;
/// Share of lost requests that is still called healthy, on loopback and elsewhere.
const LOSS_SHARE_MAX_LOOPBACK: f64 = 0.02;
const LOSS_SHARE_MAX: f64 = 0.1;

/// Exactly one reply to one datagram, with its id; in protobuf with all that proto2 readers insist on,
/// in raw with nothing behind the code but a value.
pub fn reply_form(cluster: &mut Cluster) -> StageResult {
    let key = cluster.fresh_key();
    let value = Value { bytes: b"form", version: 0 };
    for server in [0, cluster.any()] {
        let operations = [
            (cluster.alive_operation(), false),
            (Operation::Put { key, value }, false),
            (Operation::Get { key }, true),
            (Operation::Remove { key }, false),
            (Operation::Get { key }, false),
            (Operation::Remove { key }, false),
        ];
        for (operation, carries_value) in operations {
            one_form(cluster, server, operation, carries_value)?;
        }
    }
    Ok(())
}

fn one_form(
    cluster: &mut Cluster,
    server: usize,
    operation: Operation<'_>,
    carries_value: bool,
) -> StageResult {
    let mut replies = Vec::new();
    let mut packet = cluster.packet(operation);
    for _ in 0..ATTEMPTS_MAX {
        replies = cluster.listen(server, &packet.bytes, PATIENCE, LINGER)?;
        if !replies.is_empty() {
            break;
        }
        // A new id, so that a late reply to the lost attempt is not taken for one too many.
        packet = cluster.packet(operation);
    }
    let what = format!("{} via {}", packet.what, cluster.servers[server]);
    let [reply] = replies.as_slice() else {
        return match replies.len() {
            0 => Err(Finding::Undecided(format!("{what}: no answer to {ATTEMPTS_MAX} datagrams"))),
            count => fail(format!("{what}: {count} replies to one datagram; the 2019 clients take only one")),
        };
    };
    let response = match decode_response(cluster.format, packet.command, reply) {
        Ok(response) => response,
        Err(error) => return fail(format!("{what}: {error} ({} bytes)", reply.len())),
    };
    if response.id != packet.id {
        return fail(format!(
            "{what}: the reply carries the id {:?} instead of {:?}",
            response.id, packet.id
        ));
    }
    match cluster.format {
        Format::Protobuf if !craft::is_readable_by_proto2(reply) => fail(format!(
            "{what}: the reply leaves errCode out when it is 0; every client before 2021 fails at that"
        )),
        Format::Raw if !carries_value && reply.len() != 17 => {
            fail(format!("{what}: expected a reply of 17 bytes, got {}", reply.len()))
        }
        _ => Ok(()),
    }
}

/// Asks many times without retries and counts what stays unanswered; ends early when that is plenty.
pub fn loss(cluster: &mut Cluster) -> StageResult {
    let live = cluster.live();
    let (asked, unanswered) = (Cell::new(0), Cell::new(0));
    let (servers, format, random) = (&cluster.servers, cluster.format, &mut cluster.random);
    let tally = batch::run(
        servers,
        format,
        &[PATIENCE],
        LOSS_CLIENTS,
        |_| {
            if asked.get() == LOSS_PROBES || LOSS_PLENTY <= unanswered.get() {
                return None;
            }
            asked.set(asked.get() + 1);
            Some(Call { server: live[random.below(live.len())], ask: Ask::IsAlive })
        },
        |_, end| unanswered.set(unanswered.get() + usize::from(end.status().is_none())),
    )
    .map_err(Finding::Undecided)?;
    let (asked, lost) = (asked.get(), unanswered.get());
    let share_max = if cluster.is_on_loopback() { LOSS_SHARE_MAX_LOOPBACK } else { LOSS_SHARE_MAX };
    if share_max * (asked as f64) < lost as f64 {
        let counts = tally.counts();
        let surplus = counts.foreign + counts.duplicates + counts.late + tally.surplus;
        // As many replies too many as too few: they came, but to the wrong address.
        return fail(if lost as u64 <= 2 * surplus {
            format!(
                "{lost} of {asked} requests got no reply, but {surplus} replies carried another request's id"
            )
        } else {
            format!("{lost} of {asked} datagrams were lost: no answer within 1 s")
        });
    }
    if 0 < lost {
        cluster.note(format!("{lost} of {asked} datagrams were lost"));
    }
    Ok(())
}

/// Asks a server; `None` when it does not know the command.
fn ask_optional(
    cluster: &mut Cluster,
    server: usize,
    operation: Operation<'_>,
) -> Result<Option<Reply>, Finding> {
    let what = cluster.packet(operation).what;
    let reply = cluster.ask(server, operation)?;
    if reply.status == Status::UnknownCommand {
        return Ok(None);
    }
    cluster.insist(&what, server, &reply, Status::Success)?;
    Ok(Some(reply))
}

/// The process id of every live server, by its index.
pub fn pids(cluster: &mut Cluster) -> Result<BTreeMap<usize, i32>, Finding> {
    let mut pids = BTreeMap::new();
    for server in cluster.live() {
        let place = cluster.servers[server];
        let reply = ask_optional(cluster, server, Operation::GetPid)?;
        match (reply, cluster.format) {
            (None, Format::Raw) => return Err(Finding::Skip("GETPID is not known (2015)".to_owned())),
            (None, Format::Protobuf) => return fail(format!("GETPID via {place}: code 5 (unknown command)")),
            (Some(Reply { pid: Some(pid), .. }), _) if 0 < pid => pids.insert(server, pid),
            (Some(reply), _) => return fail(format!("GETPID via {place}: process id {:?}", reply.pid)),
        };
    }
    Ok(pids)
}

/// Each server names a process of its own, which on loopback owns its port.
pub fn pid(cluster: &mut Cluster) -> StageResult {
    let pids = pids(cluster)?;
    let mut owners: BTreeMap<i32, usize> = BTreeMap::new();
    for (&server, &pid) in &pids {
        let place = cluster.servers[server];
        if let Some(&other) = owners.get(&pid) {
            return fail(format!("{} and {place} both report process {pid}", cluster.servers[other]));
        }
        owners.insert(pid, server);
        if place.ip().is_loopback() && !machine::process_exists(pid) {
            return fail(format!("{place} reports process {pid}, which does not exist"));
        }
        if place.ip().is_loopback() && !machine::owns_udp_port(pid, place) {
            cluster.note(format!("process {pid} does not visibly own the port of {place}"));
        }
    }
    Ok(())
}

/// The member counts of all live servers.
pub fn counts(cluster: &mut Cluster) -> Result<BTreeMap<usize, i32>, Finding> {
    let mut counts = BTreeMap::new();
    for server in cluster.live() {
        let place = cluster.servers[server];
        let reply = ask_optional(cluster, server, Operation::GetMembershipCount)?;
        match (reply, cluster.format) {
            (None, Format::Raw) => return Err(Finding::Skip("not known in this format".to_owned())),
            (None, Format::Protobuf) => {
                return fail(format!("{place} does not know GETMEMBERSHIPCOUNT (code 5)"));
            }
            (Some(Reply { membership_count: Some(count), .. }), _) => counts.insert(server, count),
            (Some(_), _) => return fail(format!("{place} answers GETMEMBERSHIPCOUNT without a count")),
        };
    }
    Ok(counts)
}

/// Every live server counts all live servers, itself included, without any time to settle.
pub fn membership_count(cluster: &mut Cluster) -> StageResult {
    let expected = cluster.live().len();
    for (server, count) in counts(cluster)? {
        if usize::try_from(count) != Ok(expected) {
            return fail(format!("{} counts {count} members, expected {expected}", cluster.servers[server]));
        }
    }
    Ok(())
}

/// Text from every server, if the command is known.
fn optional_text(cluster: &mut Cluster, operation: Operation<'_>) -> Result<Vec<String>, Finding> {
    let mut texts = Vec::new();
    for server in cluster.live() {
        let Some(reply) = ask_optional(cluster, server, operation)? else {
            return Err(Finding::Skip("not known to these servers (code 5)".to_owned()));
        };
        let place = cluster.servers[server];
        match String::from_utf8(reply.value.unwrap_or_default()) {
            Ok(text) if !text.is_empty() => texts.push(text),
            Ok(_) => return fail(format!("{place} answers success without a text")),
            Err(_) => return fail(format!("{place} answers with bytes that are no text")),
        }
    }
    Ok(texts)
}

/// A list with as many lines as there are live servers, on every server.
pub fn membership_list(cluster: &mut Cluster) -> StageResult {
    let live = cluster.live().len();
    let texts = optional_text(cluster, Operation::GetMembershipList)?;
    let lines = texts.iter().map(|text| text.lines().count());
    if let Some(lines) = lines.filter(|&lines| lines < live).min() {
        return fail(format!("a list has {lines} lines, but {live} servers are alive"));
    }
    Ok(())
}

/// A JSON text from every server.
pub fn stats(cluster: &mut Cluster) -> StageResult {
    for text in optional_text(cluster, Operation::GetStats)? {
        if let Err(error) = serde_json::from_str::<serde_json::Value>(&text) {
            return fail(format!("the statistics are no JSON: {error}"));
        }
    }
    Ok(())
}
