//! Siblings: values that were written with the same context stay beside each other, on every server, until
//! somebody writes who has seen them all. Private commands (0x25, 0x26), so other servers are not judged.

use violet_client::wire::{Context, Siblings};
use violet_client::{Key, Operation, Status, Value};

use crate::cluster::{Cluster, Finding, StageResult, fail, show};

const NOTHING_SEEN: &[u8] = b"";
/// Values whose reply takes a datagram of some 45,000 bytes.
const LARGE_BYTES: usize = 9_000;
const LARGE_VALUES: usize = 5;

/// What a server says about a key: its values, newest first, and their context.
type Said = (Vec<Vec<u8>>, Vec<u8>);

/// The whole life of a key with siblings.
pub fn siblings(cluster: &mut Cluster) -> StageResult {
    let key = cluster.fresh_key();
    put(cluster, key, NOTHING_SEEN, b"first")?;
    let seen = all_say(cluster, key, &[b"first"])?;
    put(cluster, key, &seen, b"left")?;
    let after_right = put(cluster, key, &seen, b"right")?;
    let both = all_say(cluster, key, &[b"right", b"left"])?;
    put(cluster, key, &after_right, b"right again")?;
    all_say(cluster, key, &[b"right again", b"left"])?;
    put(cluster, key, &both, b"both")?;
    // It has replaced what it had seen, and only that.
    let seen = all_say(cluster, key, &[b"both", b"right again"])?;
    put(cluster, key, &seen, b"one")?;
    all_say(cluster, key, &[b"one"])?;
    let via = cluster.any();
    cluster.put(via, key, b"plain", 0)?;
    all_say(cluster, key, &[b"plain"])?;
    let via = cluster.any();
    cluster.remove(via, key)?;
    all_say(cluster, key, &[])?;
    Ok(())
}

/// Long values, as many as one datagram carries.
pub fn large(cluster: &mut Cluster) -> StageResult {
    let key = cluster.fresh_key();
    let mut values = Vec::new();
    for _ in 0..LARGE_VALUES {
        let value = cluster.random.bytes(LARGE_BYTES);
        put(cluster, key, NOTHING_SEEN, &value)?;
        values.insert(0, value);
    }
    let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
    let seen = all_say(cluster, key, &values)?;
    put(cluster, key, &seen, b"short")?;
    all_say(cluster, key, &[b"short"])?;
    Ok(())
}

/// Writes through any server; returns the context of that write.
fn put(cluster: &mut Cluster, key: Key, seen: &[u8], bytes: &[u8]) -> Result<Vec<u8>, Finding> {
    let context = Context::parse(seen).expect("it came from a reply, which is decoded");
    let value = Value { bytes, version: 0 };
    let via = cluster.any();
    let operation = Operation::PutWithContext { key, context, value };
    let Some((values, context)) = ask(cluster, via, operation)? else {
        return fail(format!("{} answers a PutWithContext with \"no such key\"", cluster.servers[via]));
    };
    if !values.is_empty() {
        return fail(format!("{} answers a PutWithContext with values", cluster.servers[via]));
    }
    Ok(context)
}

/// Insists that every server has these values, and returns their context; and that one of them, the newest,
/// is what GET returns.
fn all_say(cluster: &mut Cluster, key: Key, expected: &[&[u8]]) -> Result<Vec<u8>, Finding> {
    let mut seen = Vec::new();
    for via in cluster.live() {
        let said = ask(cluster, via, Operation::GetSiblings { key })?;
        let (values, context) = said.unwrap_or_default();
        if values != expected {
            let list =
                |values: &[&[u8]]| values.iter().map(|value| show(value)).collect::<Vec<_>>().join(", ");
            let got: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
            let place = cluster.servers[via];
            return fail(format!(
                "siblings via {place}: expected [{}], got [{}]",
                list(expected),
                list(&got)
            ));
        }
        seen = context;
        match expected.first() {
            Some(newest) => cluster.get(via, key, newest, 0)?,
            None => cluster.get_nothing(via, key)?,
        }
    }
    Ok(seen)
}

/// Asks and reads the siblings of the reply; `None` when the key does not exist. A server that does not
/// know the command ends the stage.
fn ask(cluster: &mut Cluster, via: usize, operation: Operation<'_>) -> Result<Option<Said>, Finding> {
    let what = cluster.packet(operation).what;
    let reply = cluster.ask(via, operation)?;
    match reply.status {
        Status::UnknownCommand => {
            return Err(Finding::Skip("not known to these servers (code 5)".to_owned()));
        }
        Status::NoSuchKey => return Ok(None),
        _ => cluster.insist(&what, via, &reply, Status::Success)?,
    }
    let field = reply.value.unwrap_or_default();
    match Siblings::decode(&field) {
        Ok(siblings) => {
            let values = siblings.values.iter().map(|value| value.bytes.to_vec()).collect();
            Ok(Some((values, siblings.context.as_bytes().to_vec())))
        }
        Err(_) => fail(format!("{what} via {}: the reply holds no siblings", cluster.servers[via])),
    }
}
