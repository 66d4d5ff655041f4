//! Reads every readable key through every node, again and again, until everything is right.
//!
//! A pass reads all pairs of key and node. What was not right, or not answered, is read again until it
//! is; then a whole pass must confirm it, for what is right once may not stay so. The time until then is
//! "converged after". Wrong answers on the way are kept apart from those that last.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use violet_client::Format;

use super::history::{Fault, Found, Observations, Read};
use super::traffic::Shared;
use crate::batch;
use crate::load::{Ask, Call};

/// Parallel reads.
const CLIENTS: usize = 32;
/// How long a read waits; one that is not answered is tried again in the next pass.
const WAITS: [Duration; 3] =
    [Duration::from_millis(300), Duration::from_millis(700), Duration::from_millis(1_500)];
/// After so many unanswered reads a node is left alone until the next pass.
const UNANSWERED_MAX: usize = 32;
/// Pause before what was not right is read again.
const PASS_PAUSE: Duration = Duration::from_millis(100);

/// What a sweep found.
#[derive(Clone, Debug, Default)]
pub struct Swept {
    /// How long after the event everything was right and stayed so; `None` if not within the limit.
    pub converged_after: Option<Duration>,
    /// All reads.
    pub reads: u64,
    /// All reads of all passes.
    pub seen: Observations,
    /// The last pass alone: what did not become right within the limit.
    pub lasting: Observations,
    /// Keys of which nodes said different things in the last whole pass, though each was allowed.
    pub disagreed: u64,
    /// Keys that a node said are not there in the last whole pass, rightly or not.
    pub absent: BTreeSet<u64>,
}

impl Swept {
    /// The keys that were missing at any time, though they must not.
    pub fn missing_keys(&self) -> BTreeSet<u64> {
        self.seen.faults.get(&Fault::Missing).map(|seen| seen.keys.clone()).unwrap_or_default()
    }
}

/// What to read, and how long to go on.
#[derive(Clone, Debug)]
pub struct Task<'a> {
    /// All servers; node numbers mean these.
    pub servers: &'a [SocketAddr],
    /// The layout.
    pub format: Format,
    /// The nodes to read through.
    pub via: &'a [usize],
    /// When the event happened from which time counts.
    pub since: Instant,
    /// How long after the event things may still become right.
    pub limit: Duration,
}

type Pair = (usize, u64);

struct Pass {
    seen: Observations,
    not_right: Vec<Pair>,
    disagreed: u64,
    absent: BTreeSet<u64>,
}

/// Reads until everything is right, or the limit has passed.
///
/// # Errors
/// A sentence, when sockets cannot be opened.
pub fn until_right(task: &Task<'_>, shared: &Shared) -> Result<Swept, String> {
    let numbers = shared.readable();
    let all = || numbers.clone().flat_map(|number| task.via.iter().map(move |&via| (via, number)));
    let mut swept = Swept::default();
    let mut pairs: Vec<Pair> = all().collect();
    let mut right_at = None;
    loop {
        let is_whole = pairs.len() == numbers.end as usize * task.via.len();
        let pass = one_pass(task, shared, &pairs)?;
        swept.reads += pairs.len() as u64;
        swept.seen.add(pass.seen.clone());
        swept.lasting = pass.seen;
        if is_whole {
            swept.disagreed = pass.disagreed;
            swept.absent = pass.absent;
        }
        let now = task.since.elapsed();
        if pass.not_right.is_empty() && is_whole {
            swept.converged_after = Some(right_at.unwrap_or(now));
            return Ok(swept);
        }
        if task.limit < now {
            return Ok(swept);
        }
        if pass.not_right.is_empty() {
            right_at = Some(now);
            pairs = all().collect();
        } else {
            right_at = None;
            pairs = pass.not_right;
            std::thread::sleep(PASS_PAUSE);
        }
    }
}

fn one_pass(task: &Task<'_>, shared: &Shared, pairs: &[Pair]) -> Result<Pass, String> {
    let keys = shared.ledger().keys;
    let under_way: RefCell<BTreeMap<Pair, Duration>> = RefCell::default();
    let silent: RefCell<BTreeMap<usize, usize>> = RefCell::default();
    let (mut queue, mut seen) = (pairs.iter().copied(), Observations::default());
    let (mut right, mut absent, mut skipped) = (BTreeSet::new(), BTreeSet::new(), 0);
    let mut answers: BTreeMap<u64, (Found, bool)> = BTreeMap::new();
    let next = |_: &mut Vec<u8>| loop {
        let (via, number) = queue.next()?;
        if UNANSWERED_MAX <= silent.borrow().get(&via).copied().unwrap_or(0) {
            skipped += 1;
            continue;
        }
        under_way.borrow_mut().insert((via, number), shared.now());
        return Some(Call { server: via, ask: Ask::Get { key: keys.key(number) } });
    };
    let on_end = |call: &Call, end: crate::load::End<'_>| {
        let Ask::Get { key } = call.ask else { return };
        let (via, number) = (call.server, crate::keyset::KeySet::number(&key));
        let Some(asked) = under_way.borrow_mut().remove(&(via, number)) else { return };
        let read = Read { format: task.format, number, via, asked };
        let (right_before, ledger) = (seen.right, shared.ledger());
        let found = seen.take(&ledger, &read, &end, shared.now());
        drop(ledger);
        if seen.right != right_before {
            right.insert((via, number));
        }
        if found == Some(Found::Absent) {
            absent.insert(number);
        }
        match found {
            None => *silent.borrow_mut().entry(via).or_default() += 1,
            Some(found) => {
                let (first, differs) = answers.entry(number).or_insert((found, false));
                *differs |= *first != found;
            }
        }
    };
    batch::run(task.servers, task.format, &WAITS, CLIENTS, next, on_end)?;
    seen.unanswered += skipped;
    let not_right = pairs.iter().filter(|pair| !right.contains(pair)).copied().collect();
    let disagreed = answers.values().filter(|(_, differs)| *differs).count() as u64;
    Ok(Pass { seen, not_right, disagreed, absent })
}

#[cfg(test)]
mod tests {
    use super::super::history::{Deed, Ledger};
    use super::super::planted::{Defect, Store};
    use super::*;
    use crate::keyset::KeySet;
    use crate::values::{Random, Sizes};
    use violet_client::Status;

    const COUNT: u64 = 20;

    /// Writes all keys twice, removes the first half, and sweeps.
    fn swept(defect: Defect, limit: Duration) -> Swept {
        let store = Store::start(defect);
        let servers = [store.address];
        let shared = Shared::new(Ledger::new(KeySet::drawn(&mut Random::new(3), COUNT, Sizes::Fixed(30))));
        for (deed, numbers) in [(Deed::Put, 0..COUNT), (Deed::Put, 0..COUNT), (Deed::Remove, 0..COUNT / 2)] {
            let mut numbers = numbers;
            let keys = shared.ledger().keys;
            let next = |value: &mut Vec<u8>| {
                let number = numbers.next()?;
                let version = shared.ledger().begin(number, deed, shared.now());
                keys.contents.write(number, version, value);
                let key = keys.key(number);
                let ask = if deed == Deed::Put { Ask::Put { key, version } } else { Ask::Remove { key } };
                Some(Call { server: 0, ask })
            };
            let on_end = |call: &Call, end: crate::load::End<'_>| {
                let (Ask::Put { key, .. } | Ask::Remove { key }) = call.ask else { return };
                let done = end.status() == Some(Status::Success);
                shared.ledger().end_last(KeySet::number(&key), shared.now(), done);
            };
            batch::run(&servers, Format::Protobuf, &WAITS, 1, next, on_end).unwrap();
        }
        let task =
            Task { servers: &servers, format: Format::Protobuf, via: &[0], since: Instant::now(), limit };
        until_right(&task, &shared).unwrap()
    }

    #[test]
    fn everything_right_is_one_pass() {
        let swept = swept(Defect::None, Duration::from_secs(60));
        assert!(swept.converged_after.is_some());
        assert_eq!((swept.reads, swept.seen.right, swept.disagreed), (COUNT, COUNT, 0));
        assert!(swept.absent.iter().copied().eq(0..COUNT / 2), "what was removed");
        assert!(swept.seen.faults.is_empty());
    }

    #[test]
    fn what_becomes_right_is_found_and_confirmed_and_its_faults_are_kept() {
        let swept = swept(Defect::MissesAtFirst(2), Duration::from_secs(60));
        assert!(swept.converged_after.is_some());
        let missing = &swept.seen.faults[&Fault::Missing];
        assert_eq!((missing.reads, missing.keys.len() as u64), (COUNT, COUNT / 2));
        assert!(swept.lasting.faults.is_empty());
        // All, twice those that were missing, and all again.
        assert_eq!(swept.reads, 3 * COUNT);
    }

    #[test]
    fn a_lost_write_a_stale_value_and_a_resurrected_removal_last() {
        for (defect, fault) in [
            (Defect::LosesWrites(7), Fault::Missing),
            (Defect::KeepsOld(5), Fault::Stale),
            (Defect::KeepsRemoved(3), Fault::Revived),
        ] {
            let swept = swept(defect, Duration::ZERO);
            assert_eq!(swept.converged_after, None, "{defect:?}");
            assert_eq!(swept.lasting.faults.keys().copied().collect::<Vec<_>>(), [fault], "{defect:?}");
        }
    }
}
