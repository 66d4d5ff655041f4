//! At-most-once: a request that comes again gets the first answer and is not executed again.
//!
//! Each [`Case`] is prepared up to the moment before the repetition; then something may happen, such as
//! two seconds or a thousand PUTs, and then the same bytes come again. They come from the same socket,
//! from a new one (raw graders), or through another server (2016: each send draws a server).

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use violet_client::{Key, Operation, Status, Value};

use crate::cluster::{Cluster, Finding, Packet, StageResult, fail};
use crate::keyset::KeySet;
use crate::values::Sizes;

/// Rounds with servers drawn anew.
const ROUNDS: usize = 4;
/// The pause of `later`: two pauses of a second, as the first grader of 2016 has it.
const PAUSE: Duration = Duration::from_secs(2);
/// PUTs between the first and the repeated request of `after_many_puts`.
const PUTS_BETWEEN: u64 = 1_000;
/// Repetitions that race with the first sending, and how long their replies may take. Nobody waits so
/// long where both are answered.
const RACES: usize = 20;
const RACE_PATIENCE: Duration = Duration::from_millis(150);
/// Reply caches may forget after this time (the course's folklore value), so later proves nothing.
const WINDOW: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    SameSocket,
    NewPort,
    OtherServer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// PUT, REMOVE, REMOVE again: success both times.
    PutRemoveRemove,
    /// REMOVE of nothing, REMOVE again: "no such key" both times.
    RemoveRemove,
    /// REMOVE of nothing, PUT, REMOVE again: "no such key", and the value stays.
    RemovePutRemove,
    /// PUT, REMOVE, PUT, REMOVE again: success, and the second value stays.
    PutRemovePutRemove,
    /// PUT 1, PUT 2, PUT 1 again: success, and value 2 stays.
    PutPutPut,
}

const CASES: [Case; 5] = [
    Case::PutRemoveRemove,
    Case::RemoveRemove,
    Case::RemovePutRemove,
    Case::PutRemovePutRemove,
    Case::PutPutPut,
];

/// A case just before its repetition.
struct Prepared {
    case: Case,
    way: Way,
    key: Key,
    socket: UdpSocket,
    server: usize,
    packet: Packet,
    status: Status,
    value_after: Option<&'static [u8]>,
}

/// From the same socket to the same server.
pub fn same_socket(cluster: &mut Cluster) -> StageResult {
    at_once(cluster, Way::SameSocket)
}

/// From a new port to the same server.
pub fn new_port(cluster: &mut Cluster) -> StageResult {
    at_once(cluster, Way::NewPort)
}

/// Through another server.
pub fn other_server(cluster: &mut Cluster) -> StageResult {
    if cluster.live().len() < 2 {
        return Err(Finding::Skip("needs two servers".to_owned()));
    }
    at_once(cluster, Way::OtherServer)
}

fn at_once(cluster: &mut Cluster, way: Way) -> StageResult {
    for _ in 0..ROUNDS {
        for case in CASES {
            prepare(cluster, case, way)?.finish(cluster, "at once")?;
        }
    }
    Ok(())
}

/// All ways, after two seconds.
pub fn later(cluster: &mut Cluster) -> StageResult {
    let prepared = prepare_all(cluster)?;
    std::thread::sleep(PAUSE);
    prepared.into_iter().try_for_each(|prepared| prepared.finish(cluster, "two seconds later"))
}

/// All ways, after many PUTs of other keys: a small cache forgets too early.
pub fn after_many_puts(cluster: &mut Cluster) -> StageResult {
    let prepared = prepare_all(cluster)?;
    let started = Instant::now();
    let others = KeySet::new(cluster, PUTS_BETWEEN, Sizes::UpTo(100));
    let live = cluster.live();
    others.put_all(cluster, &live, 1)?;
    let took = started.elapsed();
    if WINDOW <= took {
        let seconds = took.as_secs_f64();
        return Err(Finding::Undecided(format!(
            "{PUTS_BETWEEN} PUTs took {seconds:.1} s, longer than replies are kept"
        )));
    }
    prepared
        .into_iter()
        .try_for_each(|prepared| prepared.finish(cluster, &format!("after {PUTS_BETWEEN} PUTs")))
}

fn prepare_all(cluster: &mut Cluster) -> Result<Vec<Prepared>, Finding> {
    let mut ways = vec![Way::SameSocket, Way::NewPort];
    if 2 <= cluster.live().len() {
        ways.push(Way::OtherServer);
    }
    let pairs = CASES.into_iter().flat_map(|case| ways.iter().map(move |&way| (case, way)));
    pairs.map(|(case, way)| prepare(cluster, case, way)).collect()
}

/// Everything up to the repetition.
fn prepare(cluster: &mut Cluster, case: Case, way: Way) -> Result<Prepared, Finding> {
    let key = cluster.fresh_key();
    let server = cluster.any();
    let put = |bytes| Operation::Put { key, value: Value { bytes, version: 1 } };
    let (before, repeated, status, between, value_after): (_, _, _, _, Option<&'static [u8]>) = match case {
        Case::PutRemoveRemove => (Some(put(b"1")), Operation::Remove { key }, Status::Success, None, None),
        Case::RemoveRemove => (None, Operation::Remove { key }, Status::NoSuchKey, None, None),
        Case::RemovePutRemove => {
            (None, Operation::Remove { key }, Status::NoSuchKey, Some(put(b"kept")), Some(b"kept"))
        }
        Case::PutRemovePutRemove => {
            (Some(put(b"1")), Operation::Remove { key }, Status::Success, Some(put(b"kept")), Some(b"kept"))
        }
        Case::PutPutPut => (None, put(b"1"), Status::Success, Some(put(b"second")), Some(b"second")),
    };
    if let Some(operation) = before {
        let via = cluster.any();
        cluster.expect(via, operation, Status::Success)?;
    }
    let packet = cluster.packet(repeated);
    let socket = cluster.socket()?;
    let reply = cluster.deliver(&socket, server, &packet)?;
    cluster.insist(&format!("{case:?}, first {}", packet.what), server, &reply, status)?;
    if let Some(operation) = between {
        let via = cluster.any();
        cluster.expect(via, operation, Status::Success)?;
    }
    Ok(Prepared { case, way, key, socket, server, packet, status, value_after })
}

impl Prepared {
    /// The repetition, and what must be there after it.
    fn finish(self, cluster: &mut Cluster, when: &str) -> StageResult {
        let new_socket = cluster.socket()?;
        let (socket, server) = match self.way {
            Way::SameSocket => (&self.socket, self.server),
            Way::NewPort => (&new_socket, self.server),
            Way::OtherServer => (&new_socket, cluster.any_but(self.server).unwrap_or(self.server)),
        };
        let reply = cluster.deliver(socket, server, &self.packet)?;
        let story = format!("{:?}, repeated {when} ({:?}): {}", self.case, self.way, self.packet.what);
        if let Err(Finding::Fail(text)) = cluster.insist(&story, server, &reply, self.status) {
            return fail(format!("{text}: it was executed again"));
        }
        let Some(value) = self.value_after else { return Ok(()) };
        let via = cluster.any();
        match cluster.get(via, self.key, value, 1) {
            Err(Finding::Fail(text)) => fail(format!("{story} was executed again: {text}")),
            other => other,
        }
    }
}

/// The same REMOVE twice at the same moment, through one server and through two: executed once, so
/// nobody may hear "no such key". One of the two may stay unanswered.
pub fn racing(cluster: &mut Cluster) -> StageResult {
    for round in 0..RACES {
        let key = cluster.fresh_key();
        let via = cluster.any();
        cluster.put(via, key, b"once", 1)?;
        let packet = cluster.packet(Operation::Remove { key });
        let first = cluster.any();
        let second = if round % 2 == 0 { first } else { cluster.any_but(first).unwrap_or(first) };
        let socket = cluster.socket()?;
        let replies = cluster.listen_to_all(&socket, &[first, second], &packet, RACE_PATIENCE)?;
        if let Some(status) = replies.iter().find(|&&status| status != Status::Success) {
            let (first, second) = (cluster.servers[first], cluster.servers[second]);
            return fail(format!(
                "one REMOVE sent to {first} and {second} at once: one reply says \"{status}\": it was executed twice"
            ));
        }
        cluster.get_nothing(via, key)?;
    }
    Ok(())
}

/// Ids repeat by chance in the older clients, so the same id with other bytes must be executed.
pub fn id_reuse(cluster: &mut Cluster) -> StageResult {
    for _ in 0..ROUNDS {
        let (first, second) = (cluster.fresh_key(), cluster.fresh_key());
        let put = |key, bytes| Operation::Put { key, value: Value { bytes, version: 1 } };
        let one = cluster.packet(put(first, b"one"));
        let mut two = cluster.packet(put(second, b"two"));
        crate::craft::replace_id(cluster.format, one.id, &mut two.bytes);
        two.id = one.id;
        let socket = cluster.socket()?;
        let via = cluster.any();
        for packet in [&one, &two] {
            let reply = cluster.deliver(&socket, via, packet)?;
            cluster.insist(&packet.what, via, &reply, Status::Success)?;
        }
        let via = cluster.any();
        cluster.get(via, first, b"one", 1)?;
        if let Err(Finding::Fail(text)) = cluster.get(via, second, b"two", 1) {
            return fail(format!(
                "a PUT under the id of another PUT was acknowledged but not executed: {text}"
            ));
        }
    }
    Ok(())
}
