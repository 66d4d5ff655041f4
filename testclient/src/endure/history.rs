//! What was done to each key and when, and so what a read may find.
//!
//! Every PUT and REMOVE is a step of its key: begun at a moment, ended at a moment (or still under
//! way), acknowledged or not. One rule judges every read, with one writer per key or with several:
//! a step is out of date once another acknowledged step began after it had ended and ended before the
//! read was sent. A read may find any step that is not out of date and had begun before the answer came.
//! So the last acknowledged step may be found, one that runs at the same time, and one whose end nobody
//! knows as long as nothing later was acknowledged; nothing older, nothing removed, nothing else.
//!
//! Deliberately not here: order between different keys, and any allowance for late repairs. Whether a
//! fault is tolerated for a while is the scenario's to say.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use violet_client::{Format, Status};

use crate::keyset::KeySet;
use crate::load::End;

/// How far the clocks of two nodes may be apart that never hear each other.
const CLOCK_ERROR_MAX: Duration = Duration::from_millis(5);
/// How many faults are kept in words.
const EXAMPLES_MAX: usize = 3;

/// What a step does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Stores the value whose version is the step's number.
    Put,
    /// Removes the key.
    Remove,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    deed: Deed,
    begun: Duration,
    /// `None` while it is under way.
    ended: Option<Duration>,
    acknowledged: bool,
}

/// The steps of one key. Step 0 is "never written", which is like a removal at the beginning of time.
#[derive(Clone, Debug)]
struct History {
    steps: Vec<Step>,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No such key.
    Absent,
    /// The value of this step.
    Version(i32),
    /// Bytes that no step of this key has written.
    Foreign,
}

/// What is wrong with what a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// "No such key", although a value was acknowledged and not removed.
    Missing,
    /// A value that an acknowledged one has replaced.
    Stale,
    /// A value that an acknowledged removal has ended.
    Revived,
    /// A value that was never written there.
    Wrong,
}

impl Fault {
    /// As it stands in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Stale => "older than acknowledged",
            Self::Revived => "back after removal",
            Self::Wrong => "wrong",
        }
    }
}

impl History {
    fn new() -> Self {
        let never = Step {
            deed: Deed::Remove,
            begun: Duration::ZERO,
            ended: Some(Duration::ZERO),
            acknowledged: true,
        };
        Self { steps: vec![never] }
    }

    /// The latest acknowledged step whose end lies before `asked`, and its number.
    fn latest(&self, asked: Duration) -> (usize, Step) {
        let ended = |step: &Step| step.acknowledged && step.ended.is_some_and(|ended| ended < asked);
        let numbered = self.steps.iter().copied().enumerate().filter(|(_, step)| ended(step));
        numbered.max_by_key(|(_, step)| step.begun).unwrap_or((0, self.steps[0]))
    }

    fn judge(&self, found: Found, asked: Duration, answered: Duration, error: Duration) -> Option<Fault> {
        let (_, latest) = self.latest(asked);
        let is_possible = |step: &Step| {
            step.begun <= answered && step.ended.is_none_or(|ended| latest.begun <= ended + error)
        };
        match found {
            Found::Foreign => Some(Fault::Wrong),
            Found::Absent => {
                let absent = |step: &Step| step.deed == Deed::Remove && is_possible(step);
                (!self.steps.iter().any(absent)).then_some(Fault::Missing)
            }
            Found::Version(version) => {
                let step = usize::try_from(version).ok().and_then(|version| self.steps.get(version));
                match step.filter(|step| step.deed == Deed::Put && step.begun <= answered) {
                    None => Some(Fault::Wrong),
                    Some(step) if is_possible(step) => None,
                    Some(_) if latest.deed == Deed::Remove => Some(Fault::Revived),
                    Some(_) => Some(Fault::Stale),
                }
            }
        }
    }
}

/// All keys of a scenario with their histories.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// The keys and their values.
    pub keys: KeySet,
    histories: Vec<History>,
    /// Keys that nodes write which cannot agree on the time.
    clock_error: Range<u64>,
}

impl Ledger {
    /// Keys that were never written.
    pub fn new(keys: KeySet) -> Self {
        Self { keys, histories: (0..keys.count).map(|_| History::new()).collect(), clock_error: 0..0 }
    }

    /// Notes that a step begins; its number, which is the version of its value.
    pub fn begin(&mut self, number: u64, deed: Deed, now: Duration) -> i32 {
        let steps = &mut self.histories[number as usize].steps;
        steps.push(Step { deed, begun: now, ended: None, acknowledged: false });
        steps.len() as i32 - 1
    }

    /// Notes the end of a step: acknowledged, or refused, or never answered.
    pub fn end(&mut self, number: u64, step: i32, now: Duration, acknowledged: bool) {
        let step = &mut self.histories[number as usize].steps[step as usize];
        step.ended = Some(now);
        step.acknowledged = acknowledged;
    }

    /// Notes the end of the key's last step.
    #[cfg(test)]
    pub fn end_last(&mut self, number: u64, now: Duration, acknowledged: bool) {
        let last = self.histories[number as usize].steps.len() as i32 - 1;
        self.end(number, last, now, acknowledged);
    }

    /// Notes that all memory of the cluster has gone at this moment: like a removal of every key.
    pub fn forget_all(&mut self, now: Duration) {
        for history in &mut self.histories {
            let gone = Step { deed: Deed::Remove, begun: now, ended: Some(now), acknowledged: true };
            history.steps.push(gone);
        }
    }

    /// Notes that a key may have been lost by more faults than the cluster promises to bear. What is
    /// acknowledged afterwards must be there again.
    pub fn excuse_loss(&mut self, number: u64, now: Duration) {
        let step = self.begin(number, Deed::Remove, now);
        self.end(number, step, now, false);
    }

    /// Whether a step was acknowledged that began after this moment.
    pub fn is_changed_since(&self, number: u64, moment: Duration) -> bool {
        let steps = &self.histories[number as usize].steps;
        steps.iter().any(|step| step.acknowledged && moment < step.begun)
    }

    /// For these keys, steps that are as close together as clocks may differ count as simultaneous.
    pub fn allow_clock_error(&mut self, numbers: Range<u64>) {
        self.clock_error = numbers;
    }

    fn error_of(&self, number: u64) -> Duration {
        if self.clock_error.contains(&number) { CLOCK_ERROR_MAX } else { Duration::ZERO }
    }

    /// Whether the key's last acknowledged step is a PUT, nothing is under way, and nothing is unknown.
    pub fn is_surely_there(&self, number: u64) -> bool {
        // Later than any step; the error is added to ends, which must not overflow.
        let later = Duration::from_secs(u32::MAX.into());
        self.judge(number, Found::Absent, later, later) == Some(Fault::Missing)
    }

    /// What is wrong with what a read found that was sent at `asked` and answered at `answered`.
    pub fn judge(&self, number: u64, found: Found, asked: Duration, answered: Duration) -> Option<Fault> {
        self.histories[number as usize].judge(found, asked, answered, self.error_of(number))
    }

    /// What is wrong with what a step found that was to change it: as [`Self::judge`] for its beginning.
    pub fn judge_before(&self, number: u64, step: i32, found: Found) -> Option<Fault> {
        let steps = &self.histories[number as usize].steps[..=step as usize];
        let asked = steps[step as usize].begun;
        let before = History { steps: steps[..step as usize].to_vec() };
        before.judge(found, asked, asked, self.error_of(number))
    }

    /// The latest acknowledged step before a read was sent at `asked`, in words.
    fn latest_text(&self, number: u64, asked: Duration) -> String {
        let history = &self.histories[number as usize];
        let (step, latest) = history.latest(asked);
        let ended = latest.ended.unwrap_or_default();
        let milliseconds = asked.saturating_sub(ended).as_secs_f64() * 1e3;
        format!("{:?} {step} was acknowledged {milliseconds:.1} ms before it was asked for", latest.deed)
    }

    /// Which step's value this is.
    pub fn identify(&self, format: Format, number: u64, version: i32, bytes: &[u8]) -> Found {
        let steps = self.histories[number as usize].steps.len() as i32;
        let is_version = |version: &i32| self.keys.contents.matches(number, *version, bytes);
        let found = match format {
            Format::Protobuf => Some(version).filter(is_version),
            // The raw layout carries no version; the newest that fits is meant.
            Format::Raw => (1..steps).rev().find(is_version),
        };
        found.map_or(Found::Foreign, Found::Version)
    }
}

/// The reads of one kind of fault.
#[derive(Clone, Debug, Default)]
pub struct Occurrence {
    /// How many reads.
    pub reads: u64,
    /// Of which keys.
    pub keys: BTreeSet<u64>,
}

/// What many reads found.
#[derive(Clone, Debug, Default)]
pub struct Observations {
    /// As it must be.
    pub right: u64,
    /// Not as it must be.
    pub faults: BTreeMap<Fault, Occurrence>,
    /// Not answered.
    pub unanswered: u64,
    /// Refused.
    pub errors: BTreeMap<Status, u64>,
    /// REMOVEs that found no key where one was acknowledged. A repeated REMOVE may say so, too.
    pub doubtful_removals: u64,
    /// The first faults in words.
    pub examples: Vec<String>,
}

impl Observations {
    /// Judges the end of a GET and counts it; what it found, if it was answered.
    pub fn take(&mut self, ledger: &Ledger, read: &Read, end: &End<'_>, answered: Duration) -> Option<Found> {
        let End::Answered(response) = end else {
            self.unanswered += 1;
            return None;
        };
        let value = response.value.unwrap_or_default();
        let found = match response.status {
            Status::NoSuchKey => Found::Absent,
            Status::Success => ledger.identify(read.format, read.number, value.version, value.bytes),
            status => {
                *self.errors.entry(status).or_default() += 1;
                return None;
            }
        };
        let Some(fault) = ledger.judge(read.number, found, read.asked, answered) else {
            self.right += 1;
            return Some(found);
        };
        let occurrence = self.faults.entry(fault).or_default();
        occurrence.reads += 1;
        occurrence.keys.insert(read.number);
        if self.examples.len() < EXAMPLES_MAX {
            let Read { number, via, .. } = read;
            let latest = ledger.latest_text(*number, read.asked);
            let what = format!("key {number} via node {via}: {} ({found:?}; {latest})", fault.word());
            self.examples.push(format!("at {:.1} s {what}", answered.as_secs_f64()));
        }
        Some(found)
    }

    /// Adds what others saw.
    pub fn add(&mut self, other: Self) {
        self.right += other.right;
        self.unanswered += other.unanswered;
        self.doubtful_removals += other.doubtful_removals;
        for (fault, occurrence) in other.faults {
            let own = self.faults.entry(fault).or_default();
            own.reads += occurrence.reads;
            own.keys.extend(occurrence.keys);
        }
        for (status, count) in other.errors {
            *self.errors.entry(status).or_default() += count;
        }
        let room = EXAMPLES_MAX.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(room));
    }

    /// All faults in words, such as `12 reads of 3 keys missing`; `None` if there were none.
    pub fn fault_text(&self) -> Option<String> {
        let text = |(fault, seen): (&Fault, &Occurrence)| {
            format!("{} reads of {} keys {}", seen.reads, seen.keys.len(), fault.word())
        };
        let texts: Vec<String> = self.faults.iter().map(text).collect();
        (!texts.is_empty()).then(|| texts.join(", "))
    }
}

/// A GET under way.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// The layout of the reply.
    pub format: Format,
    /// The key's number.
    pub number: u64,
    /// The node that was asked.
    pub via: usize,
    /// When it was sent.
    pub asked: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::{Random, Sizes};
    use violet_client::{MessageId, Response, Value};

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn ledger() -> Ledger {
        Ledger::new(KeySet::drawn(&mut Random::new(1), 3, Sizes::Fixed(20)))
    }

    /// One step of key 0 from `begun` to `ended`.
    fn step(ledger: &mut Ledger, deed: Deed, begun: u64, ended: u64, acknowledged: bool) -> i32 {
        let step = ledger.begin(0, deed, at(begun));
        ledger.end(0, step, at(ended), acknowledged);
        step
    }

    fn read(ledger: &Ledger, found: Found, asked: u64) -> Option<Fault> {
        ledger.judge(0, found, at(asked), at(asked + 1))
    }

    #[test]
    fn a_lost_write_a_stale_value_and_a_revived_one_are_found() {
        let mut ledger = ledger();
        assert_eq!(read(&ledger, Found::Absent, 1), None, "never written");
        let first = step(&mut ledger, Deed::Put, 2, 3, true);
        assert_eq!(read(&ledger, Found::Version(first), 4), None);
        assert_eq!(read(&ledger, Found::Absent, 4), Some(Fault::Missing));
        let second = step(&mut ledger, Deed::Put, 5, 6, true);
        assert_eq!(read(&ledger, Found::Version(first), 7), Some(Fault::Stale));
        assert_eq!(read(&ledger, Found::Version(second), 7), None);
        let removal = step(&mut ledger, Deed::Remove, 8, 9, true);
        assert_eq!(read(&ledger, Found::Version(second), 10), Some(Fault::Revived));
        assert_eq!(read(&ledger, Found::Absent, 10), None);
        assert_eq!(read(&ledger, Found::Version(removal), 10), Some(Fault::Wrong), "a removal has no value");
        assert_eq!(read(&ledger, Found::Version(99), 10), Some(Fault::Wrong));
        assert_eq!(read(&ledger, Found::Foreign, 10), Some(Fault::Wrong));
    }

    #[test]
    fn a_write_of_unknown_end_may_be_found_until_a_later_one_is_acknowledged() {
        let mut ledger = ledger();
        let first = step(&mut ledger, Deed::Put, 1, 2, true);
        let unknown = step(&mut ledger, Deed::Put, 3, 4, false);
        for version in [first, unknown] {
            assert_eq!(read(&ledger, Found::Version(version), 5), None);
        }
        assert_eq!(read(&ledger, Found::Absent, 5), Some(Fault::Missing));
        let later = step(&mut ledger, Deed::Put, 6, 7, true);
        assert_eq!(read(&ledger, Found::Version(unknown), 8), Some(Fault::Stale));
        assert_eq!(read(&ledger, Found::Version(later), 8), None);
        step(&mut ledger, Deed::Remove, 9, 10, false);
        assert_eq!(read(&ledger, Found::Absent, 11), None, "the removal may have happened");
        assert_eq!(read(&ledger, Found::Version(later), 11), None, "or not");
    }

    #[test]
    fn what_runs_at_the_same_time_as_the_read_may_be_found_or_not() {
        let mut ledger = ledger();
        let first = step(&mut ledger, Deed::Put, 1, 2, true);
        let second = step(&mut ledger, Deed::Put, 10, 20, true);
        let open = ledger.begin(0, Deed::Remove, at(30));
        let judge = |found, asked, answered| ledger.judge(0, found, at(asked), at(answered));
        assert_eq!(judge(Found::Version(first), 15, 16), None);
        assert_eq!(judge(Found::Version(second), 15, 16), None);
        assert_eq!(judge(Found::Version(first), 21, 22), Some(Fault::Stale));
        assert_eq!(judge(Found::Absent, 21, 31), None);
        assert_eq!(judge(Found::Absent, 21, 29), Some(Fault::Missing), "not begun yet");
        assert_eq!(judge(Found::Version(second), 8, 9), Some(Fault::Wrong), "a value before its time");
        assert!(ledger.judge(0, Found::Version(open), at(31), at(32)).is_some());
    }

    #[test]
    fn of_two_concurrent_writers_either_may_win_and_the_later_must() {
        let mut ledger = ledger();
        let left = ledger.begin(0, Deed::Put, at(1));
        let right = ledger.begin(0, Deed::Put, at(2));
        ledger.end(0, left, at(3), true);
        ledger.end(0, right, at(4), true);
        for version in [left, right] {
            assert_eq!(read(&ledger, Found::Version(version), 5), None);
        }
        let later = step(&mut ledger, Deed::Put, 6, 7, true);
        for version in [left, right] {
            assert_eq!(read(&ledger, Found::Version(version), 8), Some(Fault::Stale));
        }
        assert_eq!(read(&ledger, Found::Version(later), 8), None);
        let close = ledger.begin(0, Deed::Remove, at(7) + CLOCK_ERROR_MAX);
        ledger.end(0, close, at(8), true);
        assert_eq!(read(&ledger, Found::Version(later), 9), Some(Fault::Revived));
        ledger.allow_clock_error(0..1);
        assert_eq!(read(&ledger, Found::Version(later), 9), None, "as good as simultaneous");
    }

    #[test]
    fn after_the_memory_has_gone_old_values_must_not_return() {
        let mut ledger = ledger();
        let old = step(&mut ledger, Deed::Put, 1, 2, true);
        let open = ledger.begin(0, Deed::Put, at(4));
        ledger.forget_all(at(5));
        assert_eq!(read(&ledger, Found::Version(old), 6), Some(Fault::Revived));
        assert_eq!(read(&ledger, Found::Version(open), 6), None, "it may have been stored afterwards");
        assert_eq!(read(&ledger, Found::Absent, 6), None);
        let new = step(&mut ledger, Deed::Put, 7, 8, true);
        assert_eq!(read(&ledger, Found::Absent, 9), Some(Fault::Missing));
        assert!(ledger.is_surely_there(0) && !ledger.is_surely_there(1));
        ledger.excuse_loss(0, at(10));
        assert_eq!(read(&ledger, Found::Absent, 11), None);
        assert_eq!(read(&ledger, Found::Version(new), 11), None);
        assert_eq!(read(&ledger, Found::Version(old), 11), Some(Fault::Stale));
        assert!(ledger.is_changed_since(0, at(6)) && !ledger.is_changed_since(0, at(7)));
        step(&mut ledger, Deed::Put, 12, 13, true);
        assert_eq!(read(&ledger, Found::Absent, 14), Some(Fault::Missing), "not excused for ever");
        assert_eq!(read(&ledger, Found::Version(new), 14), Some(Fault::Stale));
    }

    #[test]
    fn replies_are_told_apart_and_counted() {
        for format in [Format::Protobuf, Format::Raw] {
            let mut ledger = ledger();
            let old = step(&mut ledger, Deed::Put, 1, 2, true);
            let new = step(&mut ledger, Deed::Put, 3, 4, true);
            let mut seen = Observations::default();
            let mut reply = |status, bytes: Option<&[u8]>, version| {
                let mut response = Response::of_status(MessageId([0; 16]), status);
                response.value = bytes.map(|bytes| Value { bytes, version });
                let read = Read { format, number: 0, via: 2, asked: at(5) };
                seen.take(&ledger, &read, &End::Answered(response), at(6))
            };
            let value = |version| ledger.keys.contents.make(0, version);
            assert_eq!(reply(Status::Success, Some(&value(new)), new), Some(Found::Version(new)));
            assert_eq!(reply(Status::Success, Some(&value(old)), old), Some(Found::Version(old)));
            assert_eq!(reply(Status::Success, Some(b"other"), new), Some(Found::Foreign));
            assert_eq!(reply(Status::NoSuchKey, None, 0), Some(Found::Absent));
            assert_eq!(reply(Status::NoSuchKey, None, 0), Some(Found::Absent));
            assert_eq!(reply(Status::Overload, None, 0), None);
            let mut sum = seen.clone();
            sum.add(seen);
            assert_eq!((sum.right, sum.unanswered, sum.errors[&Status::Overload]), (2, 0, 2));
            assert_eq!(
                sum.fault_text().unwrap(),
                "4 reads of 1 keys missing, 2 reads of 1 keys older than acknowledged, 2 reads of 1 keys wrong"
            );
            assert_eq!(sum.examples.len(), EXAMPLES_MAX);
            let latest = "Put 2 was acknowledged 1000.0 ms before it was asked for";
            assert!(sum.examples[0].contains(latest), "{}", sum.examples[0]);
        }
    }
}
