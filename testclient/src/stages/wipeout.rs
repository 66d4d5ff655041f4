//! WIPEOUT: what a server holds is gone, and it stays gone.

use std::time::{Duration, Instant};

use violet_client::{Operation, Status};

use crate::batch;
use crate::cluster::{Cluster, Finding, StageResult, fail};
use crate::keyset::{Expected, KeySet};
use crate::values::Sizes;

const KEYS: u64 = 300;
/// When to look again for keys that some repair brought back.
const LOOKS_AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];

/// Wipes all live servers in parallel; each must answer "success".
pub fn wipe_all(cluster: &mut Cluster) -> StageResult {
    let live = cluster.live();
    let failed = batch::wipe_out(&cluster.servers, &live, cluster.format).map_err(Finding::Undecided)?;
    match failed.first() {
        None => Ok(()),
        Some((server, what)) if what.contains("not answer") => {
            Err(Finding::Undecided(format!("WIPEOUT: {} {what}", cluster.servers[*server])))
        }
        Some((server, what)) => fail(format!("WIPEOUT: {} {what}", cluster.servers[*server])),
    }
}

/// Keys, a wipe-out of all servers in parallel, and no key at once, a second and three seconds later.
/// Then the same keys are written again, as the graders do.
pub fn wipeout(cluster: &mut Cluster) -> StageResult {
    wipe_all(cluster)?;
    let keys = KeySet::new(cluster, KEYS, Sizes::UpTo(200));
    let live = cluster.live();
    keys.put_all(cluster, &live, 1)?;
    keys.read_all(cluster, &live, |_| Expected::Between(1, 1))?.insist("before the wipe-out")?;
    wipe_all(cluster)?;
    let wiped = Instant::now();
    keys.read_all(cluster, &live, |_| Expected::Absent)?.insist("just after the wipe-out")?;
    for after in LOOKS_AGAIN {
        std::thread::sleep(after.saturating_sub(wiped.elapsed()));
        let when = format!("{} s after the wipe-out", after.as_secs());
        keys.read_all(cluster, &live, |_| Expected::Absent)?.insist(&when)?;
    }
    keys.put_all(cluster, &live, 2)?;
    keys.read_all(cluster, &live, |_| Expected::Between(2, 2))?.insist("keys used again after the wipe-out")
}

/// A wipe-out, fresh data, and the same wipe-out again, as a late retry would bring it.
pub fn retry(cluster: &mut Cluster) -> StageResult {
    let mut sent = Vec::new();
    for server in cluster.live() {
        let packet = cluster.packet(Operation::Wipeout);
        let socket = cluster.socket()?;
        let reply = cluster.deliver(&socket, server, &packet)?;
        cluster.insist("WIPEOUT", server, &reply, Status::Success)?;
        sent.push((server, packet));
    }
    let keys = KeySet::new(cluster, KEYS, Sizes::UpTo(200));
    let live = cluster.live();
    keys.put_all(cluster, &live, 1)?;
    for (server, packet) in sent {
        let socket = cluster.socket()?;
        let reply = cluster.deliver(&socket, server, &packet)?;
        cluster.insist("repeated WIPEOUT", server, &reply, Status::Success)?;
    }
    keys.read_all(cluster, &live, |_| Expected::Between(1, 1))?
        .insist("a repeated WIPEOUT (same id) deleted fresh data")
}
