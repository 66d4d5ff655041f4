//! What is known of every key, in 16 bytes each, so that an answer can be judged while many requests for one key are
//! under way.
//!
//! Every write of a key has a version that is larger than all before it: even for a PUT, odd for a REMOVE, so a version
//! tells what it did. A read may find the version that was possible when it began, or any that began since. *Possible*
//! are all versions from a floor on; when a write is acknowledged, all writes that had ended before it began are
//! overwritten, so the floor rises to the oldest write that was under way then. Writes under way of one key are a list
//! through the places of their requests, oldest first, which makes that exact and O(1).
//!
//! A write without an answer may take effect at any time later. Such versions are kept beside, and looked at only when
//! a read would otherwise be called wrong. Deliberately not here: whether later reads see at least what earlier ones saw.

use std::collections::{BTreeMap, HashMap, HashSet};

/// No place.
const NONE: u32 = u32::MAX;
/// Most writes without an answer that are remembered; beyond, nothing is called stale, missing or back any more.
const UNKNOWN_MAX: usize = 1 << 18;
/// Most keys with faults that are told apart.
const FAULTY_KEYS_MAX: usize = 1 << 16;
/// How many versions before the possible ones are looked through, to call a value stale rather than wrong.
const STALE_LOOKBACK: u32 = 128;
/// Most possible versions that are tried where the layout carries no version.
const POSSIBLE_TRIED: u32 = 4_096;

/// What is known of a key.
#[derive(Clone, Copy, Debug)]
struct State {
    /// The largest version that was begun.
    newest: u32,
    /// The smallest that may be stored, writes without an answer not counted.
    floor: u32,
    /// The place of the oldest write under way.
    oldest: u32,
    /// The place of the youngest.
    youngest: u32,
}
const _: () = assert!(size_of::<State>() == 16);

/// Version 1 is odd: as if every key had been removed.
const NEVER_WRITTEN: State = State { newest: 1, floor: 1, oldest: NONE, youngest: NONE };

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    index: u32,
    /// Of a write, its own; of a read, the newest when it began.
    version: u32,
    /// The smallest version that is possible if this write is acknowledged, or that this read may find.
    floor: u32,
    /// The newest version when it began, its own not counted.
    before: u32,
    /// The write before it of the same key, by place.
    older: u32,
    younger: u32,
}

/// What is wrong with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// "No such key", although a value was acknowledged and not removed.
    Missing,
    /// A value that an acknowledged one has replaced.
    Stale,
    /// A value that an acknowledged removal has ended.
    Revived,
    /// Bytes that were never written there.
    Wrong,
    /// A value of a key that was never written.
    Invented,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Missing, Self::Stale, Self::Revived, Self::Wrong, Self::Invented];

    /// As it stands in results.
    pub fn word(self) -> &'static str {
        match self {
            Self::Missing => "missing although stored",
            Self::Stale => "stale: older than acknowledged",
            Self::Revived => "back after removal",
            Self::Wrong => "wrong value",
            Self::Invented => "a value of a key that was never written",
        }
    }
}

/// What a read, or a REMOVE of what it removed, found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No such key.
    Absent,
    /// A whole value of this version.
    Version(u32),
    /// Something else.
    Foreign,
}

/// Faults of many answers.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// How many of each kind.
    pub counts: BTreeMap<Fault, u64>,
    /// Which keys, up to a limit.
    pub keys: BTreeMap<Fault, HashSet<u64>>,
    /// The first, in words.
    pub first: BTreeMap<Fault, String>,
    /// Answers that could not be judged, because too many writes had no answer.
    pub unjudged: u64,
}

impl Faults {
    /// Notes one.
    pub fn note(&mut self, fault: Fault, key: u64, text: impl FnOnce() -> String) {
        *self.counts.entry(fault).or_default() += 1;
        let keys = self.keys.entry(fault).or_default();
        if keys.len() < FAULTY_KEYS_MAX {
            keys.insert(key);
        }
        self.first.entry(fault).or_insert_with(text);
    }

    /// Adds those of another thread.
    pub fn add(&mut self, other: &Self) {
        for (&fault, count) in &other.counts {
            *self.counts.entry(fault).or_default() += count;
        }
        for (&fault, keys) in &other.keys {
            self.keys.entry(fault).or_default().extend(keys);
        }
        for (&fault, text) in &other.first {
            self.first.entry(fault).or_insert_with(|| text.clone());
        }
        self.unjudged += other.unjudged;
    }

    /// What was seen, a sentence for each kind of fault.
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences: Vec<String> = (self.counts.iter())
            .map(|(fault, count)| {
                let (keys, first) = (self.keys[fault].len(), &self.first[fault]);
                format!("{count} answers of {keys} keys: {}; first: {first}", fault.word())
            })
            .collect();
        if 0 < self.unjudged {
            let unjudged = self.unjudged;
            sentences
                .push(format!("{unjudged} answers could not be judged: too many writes were never answered"));
        }
        sentences
    }
}

/// The keys of one thread.
#[derive(Clone, Debug)]
pub struct Ledger {
    states: Vec<State>,
    under_way: Vec<UnderWay>,
    /// Versions of writes that nobody answered, by key.
    unknown: HashMap<u32, Vec<u32>>,
    unknown_count: usize,
    /// Whether a version that was not put can be a removal at all.
    has_removals: bool,
}

impl Ledger {
    /// `count` keys that were never written.
    pub fn new(count: usize) -> Self {
        Self {
            states: vec![NEVER_WRITTEN; count],
            under_way: Vec::new(),
            unknown: HashMap::new(),
            unknown_count: 0,
            has_removals: false,
        }
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    fn place(&mut self, place: usize) -> &mut UnderWay {
        if self.under_way.len() <= place {
            let nothing = UnderWay { index: 0, version: 0, floor: 0, before: 0, older: NONE, younger: NONE };
            self.under_way.resize(place + 1, nothing);
        }
        &mut self.under_way[place]
    }

    /// A PUT of a key begins in this place; its version.
    pub fn begin_put(&mut self, place: usize, index: usize) -> u32 {
        self.begin_write(place, index, 0)
    }

    /// A REMOVE begins; its version.
    pub fn begin_remove(&mut self, place: usize, index: usize) -> u32 {
        self.has_removals = true;
        self.begin_write(place, index, 1)
    }

    fn begin_write(&mut self, place: usize, index: usize, parity: u32) -> u32 {
        let state = &mut self.states[index];
        let before = state.newest;
        state.newest += if state.newest % 2 == parity { 2 } else { 1 };
        let (version, older) = (state.newest, state.youngest);
        state.youngest = place as u32;
        let floor = match state.oldest {
            NONE => {
                state.oldest = place as u32;
                version
            }
            oldest => self.under_way[oldest as usize].version,
        };
        if older != NONE {
            self.under_way[older as usize].younger = place as u32;
        }
        *self.place(place) = UnderWay { index: index as u32, version, floor, before, older, younger: NONE };
        version
    }

    /// The write in this place has ended: acknowledged, or refused, or never answered.
    pub fn end_write(&mut self, place: usize, is_acknowledged: bool) {
        let UnderWay { index, floor, version, older, younger, .. } = self.under_way[place];
        match older {
            NONE => self.states[index as usize].oldest = younger,
            older => self.under_way[older as usize].younger = younger,
        }
        match younger {
            NONE => self.states[index as usize].youngest = older,
            younger => self.under_way[younger as usize].older = older,
        }
        let state = &mut self.states[index as usize];
        if is_acknowledged {
            state.floor = state.floor.max(floor);
        } else {
            self.unknown_count += 1;
            if self.unknown_count <= UNKNOWN_MAX {
                self.unknown.entry(index).or_default().push(version);
            }
        }
    }

    /// A read begins in this place.
    pub fn begin_read(&mut self, place: usize, index: usize) {
        let State { newest, floor, .. } = self.states[index];
        let index = index as u32;
        let read = UnderWay { index, version: newest, floor, before: newest, older: NONE, younger: NONE };
        *self.place(place) = read;
    }

    /// Which version a value has where its layout does not say: the newest possible one that `fits`, or one not long
    /// before, or none.
    pub fn identify(&self, place: usize, fits: impl Fn(u32) -> bool) -> Found {
        let UnderWay { index, floor, .. } = self.under_way[place];
        let newest = self.states[index as usize].newest;
        let lowest = floor.min(newest.saturating_sub(POSSIBLE_TRIED)).saturating_sub(STALE_LOOKBACK).max(2);
        let found = (lowest..=newest).rev().filter(|version| version % 2 == 0).find(|&version| fits(version));
        found.map_or(Found::Foreign, Found::Version)
    }

    /// What is wrong with what was found by the read in this place, which has just ended. `Err` if that cannot be told.
    pub fn judge_read(&self, place: usize, found: Found) -> Result<Option<Fault>, Unjudged> {
        let UnderWay { index, floor, .. } = self.under_way[place];
        let newest = self.states[index as usize].newest;
        let (is_possible, fault) = match found {
            Found::Foreign if newest == NEVER_WRITTEN.newest => return Ok(Some(Fault::Invented)),
            Found::Foreign => return Ok(Some(Fault::Wrong)),
            // Between the floor and the newest a removal is possible only if there are any.
            Found::Absent => (floor % 2 == 1 || (self.has_removals && floor < newest), Fault::Missing),
            Found::Version(version) if version % 2 == 1 || newest < version => return Ok(Some(Fault::Wrong)),
            Found::Version(version) if floor % 2 == 1 => (floor <= version, Fault::Revived),
            Found::Version(version) => (floor <= version, Fault::Stale),
        };
        if is_possible || self.is_unknown(index, found) {
            return Ok(None);
        }
        if UNKNOWN_MAX < self.unknown_count { Err(Unjudged) } else { Ok(Some(fault)) }
    }

    /// The same for a REMOVE in this place, before its end is noted: absent, or something that was removed.
    pub fn judge_remove(&self, place: usize, was_absent: bool) -> Result<Option<Fault>, Unjudged> {
        let UnderWay { index, version: own, floor: own_floor, before, .. } = self.under_way[place];
        let State { newest, floor, .. } = self.states[index as usize];
        // Exactly one version was possible before it, if no other write was under way when it began, or began since, and
        // the one before it was acknowledged alone.
        let is_settled = own_floor == own && newest == own && floor == before;
        if !is_settled || self.unknown.contains_key(&index) {
            return Ok(None);
        }
        let fault = match (floor % 2 == 1, was_absent) {
            (true, false) => Some(Fault::Revived),
            (false, true) => Some(Fault::Missing),
            _ => None,
        };
        if fault.is_some() && UNKNOWN_MAX < self.unknown_count {
            return Err(Unjudged);
        }
        Ok(fault)
    }

    fn is_unknown(&self, index: u32, found: Found) -> bool {
        let matches = |version: &u32| match found {
            Found::Absent => version % 2 == 1,
            Found::Version(found) => found == *version,
            Found::Foreign => false,
        };
        self.unknown.get(&index).is_some_and(|versions| versions.iter().any(matches))
    }

    /// Whether a key is surely stored: no write under way or unanswered, and the last acknowledged one a PUT.
    pub fn is_surely_there(&self, index: usize) -> bool {
        let State { newest, floor, oldest, .. } = self.states[index];
        let is_quiet = oldest == NONE && !self.unknown.contains_key(&(index as u32));
        is_quiet && floor % 2 == 0 && (floor == newest || !self.has_removals)
    }

    /// The key and version of the request in this place.
    pub fn at(&self, place: usize) -> (usize, u32) {
        (self.under_way[place].index as usize, self.under_way[place].version)
    }

    /// What was possible for the read in this place, in words.
    pub fn possible_text(&self, place: usize) -> String {
        let UnderWay { index, floor, .. } = self.under_way[place];
        let newest = self.states[index as usize].newest;
        let name = |version: u32| match (version, version % 2) {
            (1, _) => "nothing (never written)".to_owned(),
            (_, 0) => format!("version {version}"),
            _ => format!("removal {version}"),
        };
        if floor == newest { name(floor) } else { format!("{} to {}", name(floor), name(newest)) }
    }
}

/// Too many writes had no answer to judge by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unjudged;

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: usize = 3;

    fn stored() -> Ledger {
        let mut ledger = Ledger::new(10);
        assert_eq!(ledger.begin_put(0, KEY), 2);
        ledger.end_write(0, true);
        ledger
    }

    fn read(ledger: &mut Ledger, found: Found) -> Option<Fault> {
        ledger.begin_read(9, KEY);
        ledger.judge_read(9, found).unwrap()
    }

    #[test]
    fn one_after_the_other_only_the_last_is_right() {
        let mut ledger = Ledger::new(10);
        assert_eq!(read(&mut ledger, Found::Absent), None);
        assert_eq!(read(&mut ledger, Found::Foreign), Some(Fault::Invented));
        assert_eq!(read(&mut ledger, Found::Version(2)), Some(Fault::Wrong), "never written");
        let mut ledger = stored();
        assert!(ledger.is_surely_there(KEY));
        assert_eq!(read(&mut ledger, Found::Version(2)), None);
        assert_eq!(read(&mut ledger, Found::Absent), Some(Fault::Missing));
        assert_eq!(read(&mut ledger, Found::Foreign), Some(Fault::Wrong));
        assert_eq!(ledger.begin_put(0, KEY), 4);
        ledger.end_write(0, true);
        assert_eq!(read(&mut ledger, Found::Version(4)), None);
        assert_eq!(read(&mut ledger, Found::Version(2)), Some(Fault::Stale));
        assert_eq!(ledger.begin_remove(0, KEY), 5);
        ledger.end_write(0, true);
        assert_eq!(read(&mut ledger, Found::Absent), None);
        assert_eq!(read(&mut ledger, Found::Version(4)), Some(Fault::Revived));
        assert!(!ledger.is_surely_there(KEY));
    }

    #[test]
    fn a_read_may_find_what_was_written_while_it_was_under_way() {
        let mut ledger = stored();
        ledger.begin_read(9, KEY);
        ledger.begin_put(0, KEY);
        for version in [2, 4] {
            assert_eq!(ledger.judge_read(9, Found::Version(version)), Ok(None));
        }
        ledger.end_write(0, true);
        assert_eq!(ledger.judge_read(9, Found::Version(2)), Ok(None), "it began before");
        assert_eq!(ledger.judge_read(9, Found::Absent), Ok(Some(Fault::Missing)));
        assert_eq!(read(&mut ledger, Found::Version(2)), Some(Fault::Stale), "this one began after");
    }

    #[test]
    fn of_writes_at_one_time_either_may_be_the_last() {
        let mut ledger = stored();
        ledger.begin_put(0, KEY);
        ledger.begin_put(1, KEY);
        ledger.begin_put(2, KEY);
        ledger.end_write(1, true);
        ledger.end_write(0, true);
        ledger.end_write(2, true);
        for version in [4, 6, 8] {
            assert_eq!(read(&mut ledger, Found::Version(version)), None, "{version}");
        }
        assert_eq!(read(&mut ledger, Found::Version(2)), Some(Fault::Stale));
        // The next one, alone, settles it, although no moment was ever without a write under way.
        ledger.begin_put(3, KEY);
        ledger.end_write(3, true);
        assert_eq!(read(&mut ledger, Found::Version(8)), Some(Fault::Stale));
        assert_eq!(read(&mut ledger, Found::Version(10)), None);
    }

    #[test]
    fn the_floor_rises_under_writes_that_overlap_without_end() {
        let mut ledger = stored();
        ledger.begin_put(0, KEY);
        for round in 0..1_000usize {
            ledger.begin_put((round + 1) % 2, KEY);
            ledger.end_write(round % 2, true);
        }
        assert_eq!(ledger.states[KEY].newest, 2_004);
        assert_eq!(read(&mut ledger, Found::Version(2_002)), None);
        assert_eq!(read(&mut ledger, Found::Version(1_990)), Some(Fault::Stale));
    }

    #[test]
    fn an_unanswered_write_may_take_effect_later() {
        let mut ledger = stored();
        ledger.begin_put(0, KEY);
        ledger.end_write(0, false);
        ledger.begin_put(0, KEY);
        ledger.end_write(0, true);
        assert_eq!(read(&mut ledger, Found::Version(4)), None, "unknown");
        assert_eq!(read(&mut ledger, Found::Version(6)), None);
        assert_eq!(read(&mut ledger, Found::Version(2)), Some(Fault::Stale));
        assert_eq!(read(&mut ledger, Found::Absent), Some(Fault::Missing));
        ledger.begin_remove(0, KEY);
        ledger.end_write(0, false);
        assert_eq!(read(&mut ledger, Found::Absent), None);
        assert!(!ledger.is_surely_there(KEY));
    }

    #[test]
    fn removals_are_judged_when_nothing_else_is_under_way() {
        let mut ledger = stored();
        ledger.begin_remove(0, KEY);
        assert_eq!(ledger.judge_remove(0, false), Ok(None));
        assert_eq!(ledger.judge_remove(0, true), Ok(Some(Fault::Missing)));
        ledger.end_write(0, true);
        ledger.begin_remove(0, KEY);
        assert_eq!(ledger.judge_remove(0, true), Ok(None));
        assert_eq!(ledger.judge_remove(0, false), Ok(Some(Fault::Revived)));
        ledger.begin_put(1, KEY);
        assert_eq!(ledger.judge_remove(0, false), Ok(None));
        ledger.end_write(0, true);
        ledger.end_write(1, true);
        // Of those two either may have been the last.
        ledger.begin_remove(0, KEY);
        for was_absent in [false, true] {
            assert_eq!(ledger.judge_remove(0, was_absent), Ok(None));
        }
    }

    /// A request of the model: begun, then at some moment in effect, then ended.
    #[derive(Clone, Copy)]
    enum Step {
        Idle,
        Begun { deed: usize, index: usize, version: u32 },
        Effective { deed: usize, was: Found },
    }

    /// A store that does one request after the other is never accused, however requests overlap.
    #[test]
    fn a_right_store_is_never_accused() {
        let (places, keys) = (12, 3);
        for seed in 0..20 {
            let mut random = crate::values::Random::new(seed);
            let mut ledger = Ledger::new(keys);
            let mut store = vec![Found::Absent; keys];
            let mut steps = vec![Step::Idle; places];
            for _ in 0..20_000 {
                let place = random.below(places);
                steps[place] = match steps[place] {
                    Step::Idle => {
                        let (deed, index) = (random.below(3), random.below(keys));
                        let version = match deed {
                            0 => ledger.begin_put(place, index),
                            1 => ledger.begin_remove(place, index),
                            _ => {
                                ledger.begin_read(place, index);
                                0
                            }
                        };
                        Step::Begun { deed, index, version }
                    }
                    Step::Begun { deed, index, version } => {
                        let was = store[index];
                        match deed {
                            0 => store[index] = Found::Version(version),
                            1 => store[index] = Found::Absent,
                            _ => {}
                        }
                        Step::Effective { deed, was }
                    }
                    Step::Effective { deed, was } => {
                        let judged = match deed {
                            0 => Ok(None),
                            1 => ledger.judge_remove(place, was == Found::Absent),
                            _ => ledger.judge_read(place, was),
                        };
                        assert_eq!(
                            judged,
                            Ok(None),
                            "seed {seed}: {was:?} of {:?}",
                            ledger.possible_text(place)
                        );
                        if deed < 2 {
                            ledger.end_write(place, random.below(20) != 0);
                        }
                        Step::Idle
                    }
                };
            }
        }
    }

    #[test]
    fn versions_are_found_without_being_told() {
        let mut ledger = stored();
        (0..10).for_each(|_| {
            ledger.begin_put(0, KEY);
            ledger.end_write(0, true);
        });
        ledger.begin_read(9, KEY);
        assert_eq!(ledger.identify(9, |version| version == 22), Found::Version(22));
        assert_eq!(ledger.identify(9, |version| version == 4), Found::Version(4));
        assert_eq!(ledger.identify(9, |_| false), Found::Foreign);
    }
}
