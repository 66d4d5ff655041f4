//! Filling the cluster until it says "out of space", and what must still work then.
//!
//! A full cluster stays alive and keeps what it acknowledged. It may refuse an overwrite only if the old
//! value is gone too: the 2016 graders call a readable value after a refused PUT a logic error.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use violet_client::{Operation, Status, Value};

use super::wipeout::wipe_all;
use crate::batch;
use crate::cluster::{Cluster, Finding, StageResult, fail};
use crate::grid::course_policy;
use crate::keyset::{Expected, KeySet};
use crate::load::{Ask, Call, End};
use crate::values::Sizes;

const VALUE_BYTES: usize = 10_000;
const CLIENTS: usize = 64;
/// The cluster counts as full when half of so many answers in a row were "out of space".
const FULL_WINDOW: usize = 400;
/// The first grader of 2016 fails a server that takes 100,000 values without a word.
const GRADER_BYTES_MAX: u64 = 100_000 * VALUE_BYTES as u64;
/// Filling ends after so many requests without an answer, as the first grader of 2016 ends after 10.
const TIMEOUTS_MAX: u64 = 50;
/// Keys that are read back, and that are overwritten.
const SAMPLE: u64 = 1_000;
const OVERWRITES: usize = 50;
/// How long space may take to become usable after removals and wipe-outs.
const RECLAIM: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Filling {
    accepted: Vec<u64>,
    refused: u64,
    timeouts: u64,
    other: u64,
    bytes_at_first_refusal: Option<u64>,
    recent: VecDeque<bool>,
}

impl Filling {
    fn bytes(&self) -> u64 {
        (self.accepted.len() * VALUE_BYTES) as u64
    }

    fn is_full(&self) -> bool {
        self.recent.len() == FULL_WINDOW
            && FULL_WINDOW / 2 <= self.recent.iter().filter(|&&refused| refused).count()
    }

    fn on_end(&mut self, number: u64, end: &End<'_>) {
        match end.status() {
            Some(Status::Success) => self.accepted.push(number),
            Some(Status::OutOfSpace) => {
                self.refused += 1;
                self.bytes_at_first_refusal.get_or_insert((self.accepted.len() * VALUE_BYTES) as u64);
            }
            Some(_) => self.other += 1,
            None => self.timeouts += 1,
        }
        self.recent.push_back(end.status() == Some(Status::OutOfSpace));
        if FULL_WINDOW < self.recent.len() {
            self.recent.pop_front();
        }
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// The whole story.
pub fn capacity(cluster: &mut Cluster) -> StageResult {
    wipe_all(cluster)?;
    let count = (cluster.options.capacity_mib << 20) / VALUE_BYTES as u64;
    let keys = KeySet::new(cluster, count, Sizes::Fixed(VALUE_BYTES));
    let filling = fill(cluster, &keys)?;
    let outcome = check_full(cluster, &keys, &filling);
    // Whatever was found, the cluster must not be left full.
    let wiped = wipe_all(cluster);
    outcome?;
    wiped?;
    usable_after_wipeout(cluster)
}

fn fill(cluster: &mut Cluster, keys: &KeySet) -> Result<Filling, Finding> {
    let live = cluster.live();
    let filling = std::cell::RefCell::new(Filling::default());
    let mut numbers = 0..keys.count;
    let (servers, format, random) = (&cluster.servers, cluster.format, &mut cluster.random);
    let started = Instant::now();
    batch::run(
        servers,
        format,
        &course_policy(format).waits,
        CLIENTS,
        |value| {
            let so_far = filling.borrow();
            if so_far.is_full() || TIMEOUTS_MAX <= so_far.timeouts {
                return None;
            }
            let number = numbers.next()?;
            keys.contents.write(number, 1, value);
            let server = live[random.below(live.len())];
            Some(Call { server, ask: Ask::Put { key: keys.key(number), version: 1 } })
        },
        |call, end| {
            if let Ask::Put { key, .. } = &call.ask {
                filling.borrow_mut().on_end(KeySet::number(key), &end);
            }
        },
    )
    .map_err(Finding::Undecided)?;
    let filling = filling.into_inner();
    let seconds = started.elapsed().as_secs_f64();
    let first = filling.bytes_at_first_refusal.map_or("never".to_owned(), mebibytes);
    cluster.note(format!(
        "{} stored in {seconds:.1} s ({} keys); first \"out of space\" after {first}; {} refused, {} other answers, {} not answered",
        mebibytes(filling.bytes()),
        filling.accepted.len(),
        filling.refused,
        filling.other,
        filling.timeouts,
    ));
    if filling.bytes_at_first_refusal.is_none_or(|bytes| GRADER_BYTES_MAX < bytes) {
        cluster.note("the first grader of 2016 wants \"out of space\" within 100,000 PUTs (954 MiB)");
    }
    if !filling.is_full() {
        cluster.note(format!(
            "not full: ended at the limit of {} MiB or by time-outs",
            cluster.options.capacity_mib
        ));
    }
    Ok(filling)
}

fn check_full(cluster: &mut Cluster, keys: &KeySet, filling: &Filling) -> StageResult {
    for server in cluster.live() {
        cluster.still_alive(server, "filling the cluster")?;
    }
    let Some(accepted_last) = filling.accepted.len().checked_sub(1) else {
        return fail("not one PUT of 10,000 bytes succeeded on the empty cluster");
    };
    let live = cluster.live();
    let mut sample = || filling.accepted[cluster.random.below(accepted_last + 1)];
    let numbers: Vec<u64> = (0..SAMPLE).map(|_| sample()).collect();
    keys.read(cluster, &live, numbers.iter().copied(), |_| Expected::Between(1, 1))?
        .insist("acknowledged values of the full cluster")?;
    numbers.iter().take(OVERWRITES).try_for_each(|&number| overwrite(cluster, keys, number))?;
    if filling.is_full() { space_of_removed(cluster, keys, filling) } else { Ok(()) }
}

/// An overwrite of the same length either works, or the old value must be gone.
fn overwrite(cluster: &mut Cluster, keys: &KeySet, number: u64) -> StageResult {
    let key = keys.key(number);
    let bytes = keys.contents.make(number, 2);
    let via = cluster.any();
    let reply = cluster.ask(via, Operation::Put { key, value: Value { bytes: &bytes, version: 2 } })?;
    let via = cluster.any();
    match reply.status {
        Status::Success => cluster.get(via, key, &bytes, 2),
        status => match cluster.ask(via, Operation::Get { key })?.status {
            Status::Success => fail(format!(
                "an overwrite was refused ({status}), but the old value stays readable: a logic error"
            )),
            _ => Ok(()),
        },
    }
}

/// After a tenth of the keys is removed, half as many new ones must find room.
fn space_of_removed(cluster: &mut Cluster, keys: &KeySet, filling: &Filling) -> StageResult {
    let removed = filling.accepted.iter().step_by(10).copied();
    let live = cluster.live();
    let waits = course_policy(cluster.format).waits;
    let mut numbers = removed.clone();
    batch::run(
        &cluster.servers,
        cluster.format,
        &waits,
        CLIENTS,
        |_| {
            let key = keys.key(numbers.next()?);
            Some(Call { server: live[cluster.random.below(live.len())], ask: Ask::Remove { key } })
        },
        |_, _| {},
    )
    .map_err(Finding::Undecided)?;
    let fresh = KeySet::new(cluster, (removed.count() as u64).div_ceil(2), Sizes::Fixed(VALUE_BYTES));
    usable(cluster, &fresh, "a tenth of the keys was removed", 0.5)
}

/// After a wipe-out everything fits that would fit an empty cluster.
fn usable_after_wipeout(cluster: &mut Cluster) -> StageResult {
    let fresh = KeySet::new(cluster, 100, Sizes::Fixed(VALUE_BYTES));
    usable(cluster, &fresh, "the wipe-out", 1.0)
}

/// Tries until this share of the PUTs succeeds or the time to reclaim space is over.
fn usable(cluster: &mut Cluster, fresh: &KeySet, after: &str, share: f64) -> StageResult {
    let live = cluster.live();
    let waits = course_policy(cluster.format).waits;
    let deadline = Instant::now() + RECLAIM;
    loop {
        let mut numbers = 0..fresh.count;
        let mut succeeded = 0u64;
        batch::run(
            &cluster.servers,
            cluster.format,
            &waits,
            CLIENTS,
            |value| {
                let number = numbers.next()?;
                fresh.contents.write(number, 1, value);
                let server = live[cluster.random.below(live.len())];
                Some(Call { server, ask: Ask::Put { key: fresh.key(number), version: 1 } })
            },
            |_, end| succeeded += u64::from(end.status() == Some(Status::Success)),
        )
        .map_err(Finding::Undecided)?;
        if share * fresh.count as f64 <= succeeded as f64 {
            return Ok(());
        }
        if deadline < Instant::now() {
            let (count, seconds) = (fresh.count, RECLAIM.as_secs());
            return fail(format!(
                "{seconds} s after {after} only {succeeded} of {count} new values found room"
            ));
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}
