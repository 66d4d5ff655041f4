//! Tests of the engine in memory, next to a model where there is one.

use super::shard::{SWEEP_MAX, TOMBSTONE_NANOS_MIN};
use super::*;
use crate::storage::chunks::{CHUNK_BYTES, Chunks};
use crate::storage::digest::{ALL_LEAVES, leaf_of};
use crate::storage::siblings::{CausalContext, Dot, Siblings};
use crate::storage::{Budget, Standing};
use proptest::prelude::*;
use std::collections::BTreeMap;
use violet_client::Value;

const PARTITIONS: u16 = 64;

fn engine(bytes: usize) -> (Ram, Arc<Budget>) {
    let budget = Arc::new(Budget::new(bytes));
    (Ram::new(Chunks::new(Arc::clone(&budget), 0, true), 1), budget)
}

fn partition_of(number: u32) -> u16 {
    number as u16 % PARTITIONS
}

fn agree_on_all(engine: &Ram, up_to: u64) {
    (0..PARTITIONS).for_each(|partition| engine.agree(partition, up_to));
}

fn key(number: u32) -> Key {
    Key::parse(&number.to_le_bytes()).expect("four bytes are a key")
}

fn at(time: u64) -> Version {
    Version { time, writer: 1 }
}

fn put(engine: &Ram, number: u32, time: u64, bytes: &[u8]) -> Written {
    let value = Some(Value { bytes, version: 7 });
    engine.write(
        partition_of(number),
        &key(number),
        &Record { version: at(time), value, is_set: false },
        false,
    )
}

fn remove(engine: &Ram, number: u32, time: u64) -> Written {
    engine.write(
        partition_of(number),
        &key(number),
        &Record { version: at(time), value: None, is_set: false },
        false,
    )
}

fn get(engine: &Ram, number: u32) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    let meta = engine.read(partition_of(number), &key(number), &mut value)?;
    (!meta.removed).then_some(value)
}

#[test]
fn the_newest_write_wins_in_any_order() {
    let (engine, _) = engine(8 << 20);
    assert_eq!(put(&engine, 1, 5, b"five"), Written::Stored { existed: false });
    assert_eq!(put(&engine, 1, 4, b"four"), Written::Older { existed: true });
    assert_eq!(put(&engine, 1, 5, b"again"), Written::Older { existed: true });
    assert_eq!(remove(&engine, 1, 6), Written::Stored { existed: true });
    assert_eq!(put(&engine, 1, 5, b"late"), Written::Older { existed: false });
    assert_eq!(get(&engine, 1), None);
    assert_eq!(put(&engine, 1, 7, b"seven"), Written::Stored { existed: false });
    assert_eq!(get(&engine, 1).as_deref(), Some(&b"seven"[..]));
    engine.undo(partition_of(1), &key(1), at(6));
    assert_eq!(get(&engine, 1).as_deref(), Some(&b"seven"[..]));
    engine.undo(partition_of(1), &key(1), at(7));
    assert_eq!(engine.meta(partition_of(1), &key(1)), None);
}

#[test]
fn at_the_limit_new_keys_are_refused_and_overwrites_and_removals_are_not() {
    let (engine, _) = engine(64 << 20);
    let value = vec![3; 10_000];
    let stored = (0..).take_while(|number| put(&engine, *number, 1, &value) != Written::NoSpace).count();
    assert!(5_400 < stored, "{stored} values of 10,000 bytes in 64 MiB");
    for number in 0..stored as u32 {
        assert_eq!(put(&engine, number, 2, &value), Written::Stored { existed: true });
    }
    for number in 0..stored as u32 {
        assert_eq!(remove(&engine, number, 3), Written::Stored { existed: true });
    }
    let again = (0..).take_while(|number| put(&engine, *number, 4, &value) != Written::NoSpace).count();
    assert!(stored <= again + stored / 50, "{again} of {stored} fit again");
}

#[test]
fn removed_small_values_make_room_for_large_ones() {
    let (engine, _) = engine(32 << 20);
    agree_on_all(&engine, u64::MAX);
    let small = (0..).take_while(|number| put(&engine, *number, 1, b"x") != Written::NoSpace).count();
    for number in 0..small as u32 {
        assert_eq!(remove(&engine, number, 2), Written::Stored { existed: true });
    }
    let large = vec![7; 10_000];
    let fill = |from: u32, time: u64| {
        (from..).take_while(|number| put(&engine, *number, time, &large) != Written::NoSpace).count()
    };
    let at_once = fill(1_000_000, 3);
    let later = fill(2_000_000, 3 + TOMBSTONE_NANOS_MIN);
    assert!(at_once < 200 && 2_000 < later, "{at_once} at once, {later} later");
}

#[test]
fn wiping_and_sweeping_give_the_memory_back() {
    let (engine, budget) = engine(16 << 20);
    (0..2_000).for_each(|number| assert_ne!(put(&engine, number, 1, &[1; 1_000]), Written::NoSpace));
    (0..1_000).for_each(|number| assert_ne!(remove(&engine, number, 2), Written::NoSpace));
    put(&engine, 0, 3, b"back");
    assert_eq!((engine.usage().keys, engine.usage().tombstones), (1_001, 999));
    engine.sweep(2);
    assert_eq!(engine.usage().tombstones, 999, "none is older than 2");
    engine.sweep(3);
    assert_eq!(engine.usage().tombstones, 999, "nothing is agreed");
    agree_on_all(&engine, 2);
    (0..1_000 / SWEEP_MAX + 1).for_each(|_| engine.sweep(3));
    assert_eq!((engine.usage().keys, engine.usage().tombstones), (1_001, 0));
    assert_eq!(get(&engine, 0).as_deref(), Some(&b"back"[..]));
    assert_eq!(budget.used_bytes(), engine.usage().held_bytes);
    engine.wipe();
    assert_eq!((budget.used_bytes(), engine.usage()), (0, Usage::default()));
}

proptest! {
    #[test]
    fn it_holds_what_a_map_would_hold(
        steps in proptest::collection::vec((0u32..20, 0usize..9_000, any::<u8>()), 1..200),
    ) {
        let (engine, budget) = engine(8 << 20);
        let mut model: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for (time, (number, length, fill)) in (1u64..).zip(steps) {
            if fill < 40 {
                remove(&engine, number, time);
                model.remove(&number);
            } else {
                let bytes: Vec<u8> = (0..length).map(|at| (at as u8) ^ fill).collect();
                prop_assert!(put(&engine, number, time, &bytes) != Written::NoSpace);
                model.insert(number, bytes);
            }
        }
        for number in 0..20 {
            prop_assert_eq!(get(&engine, number), model.get(&number).cloned());
        }
        prop_assert_eq!(engine.usage().keys, model.len());
        prop_assert_eq!(budget.used_bytes(), engine.usage().held_bytes);
    }
}

/// What an engine should hold: by number of the key, time and whether it is a tombstone; and what is
/// agreed.
#[derive(Default)]
struct Model {
    records: BTreeMap<u32, (u64, bool)>,
    agreed: BTreeMap<u16, u64>,
}

#[derive(Clone, Debug)]
enum Step {
    Put { number: u32, time: u64, value_bytes: usize },
    Remove { number: u32, time: u64 },
    Undo { number: u32, time: u64 },
    Agree { partition: u16, up_to: u64 },
    Sweep { older_than: u64 },
    Forget { partition: u16 },
    Wipe,
}

/// Few keys of few partitions, which meet often.
fn step() -> impl Strategy<Value = Step> {
    let number = || (0u32..5, 0u32..12).prop_map(|(partition, key)| partition + u32::from(PARTITIONS) * key);
    let time = || 1u64..60;
    prop_oneof![
        12 => (number(), time(), 0usize..400)
            .prop_map(|(number, time, value_bytes)| Step::Put { number, time, value_bytes }),
        12 => (number(), time()).prop_map(|(number, time)| Step::Remove { number, time }),
        3 => (number(), time()).prop_map(|(number, time)| Step::Undo { number, time }),
        4 => (0u16..5, time()).prop_map(|(partition, up_to)| Step::Agree { partition, up_to }),
        4 => time().prop_map(|older_than| Step::Sweep { older_than }),
        1 => (0u16..6).prop_map(|partition| Step::Forget { partition }),
        1 => Just(Step::Wipe),
    ]
}

impl Model {
    fn write(&mut self, number: u32, time: u64, removed: bool) {
        let record = self.records.entry(number).or_insert((time, removed));
        if record.0 < time {
            *record = (time, removed);
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Put { number, time, .. } => self.write(number, time, false),
            Step::Remove { number, time } => self.write(number, time, true),
            Step::Undo { number, time } => self.records.retain(|n, (t, _)| *n != number || time < *t),
            Step::Agree { partition, up_to } => {
                let agreed = self.agreed.entry(partition).or_default();
                *agreed = up_to.max(*agreed);
            }
            Step::Sweep { older_than } => {
                let agreed = |number: &u32| self.agreed.get(&partition_of(*number)).copied().unwrap_or(0);
                self.records.retain(|number, (time, removed)| {
                    !*removed || older_than <= *time || agreed(number) < *time
                });
            }
            Step::Forget { partition } => {
                self.records.retain(|number, _| partition_of(*number) != partition);
                self.agreed.remove(&partition);
            }
            Step::Wipe => *self = Self::default(),
        }
    }

    fn of(&self, partition: u16, leaves: u32) -> BTreeMap<Vec<u8>, (u64, bool)> {
        let in_leaves = |number: u32| leaves >> leaf_of(&key(number)) & 1 == 1;
        let records = self.records.iter().filter(|(number, _)| partition_of(**number) == partition);
        let records = records.filter(|(number, _)| in_leaves(**number));
        records.map(|(number, record)| (key(*number).as_bytes().to_vec(), *record)).collect()
    }

    fn digest(&self, partition: u16) -> Digest {
        let mut digest = Digest::default();
        for (bytes, (time, removed)) in self.of(partition, ALL_LEAVES) {
            let meta = Meta { version: at(time), removed, client_version: 0, contents: 0 };
            digest.add(&Key::parse(&bytes).expect("a key"), &meta);
        }
        digest
    }
}

fn apply(engine: &Ram, step: &Step) {
    match *step {
        Step::Put { number, time, value_bytes } => {
            assert_ne!(put(engine, number, time, &vec![5; value_bytes]), Written::NoSpace);
        }
        Step::Remove { number, time } => assert_ne!(remove(engine, number, time), Written::NoSpace),
        Step::Undo { number, time } => engine.undo(partition_of(number), &key(number), at(time)),
        Step::Agree { partition, up_to } => engine.agree(partition, up_to),
        Step::Sweep { older_than } => engine.sweep(older_than),
        Step::Forget { partition } => engine.forget_partition(partition),
        Step::Wipe => engine.wipe(),
    }
}

/// What a scan visits, each key once.
fn scanned(engine: &Ram, partition: u16, leaves: u32) -> BTreeMap<Vec<u8>, (u64, bool)> {
    let mut records = BTreeMap::new();
    engine.scan(partition, leaves, &mut |key, meta| {
        let twice = records.insert(key.as_bytes().to_vec(), (meta.version.time, meta.removed));
        assert_eq!(twice, None, "{key:?}");
    });
    records
}

fn scan_order(engine: &Ram, partition: u16) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    engine.scan(partition, ALL_LEAVES, &mut |key, _| keys.push(key.as_bytes().to_vec()));
    keys
}

proptest! {
    #[test]
    fn digests_scans_and_accounts_follow_every_change(
        steps in proptest::collection::vec(step(), 1..200),
        leaves in any::<u32>(),
    ) {
        // Large enough for two shards.
        let (engine, budget) = engine(64 << 20);
        let mut model = Model::default();
        for step in &steps {
            apply(&engine, step);
            model.apply(step);
            for partition in 0..6 {
                prop_assert_eq!(engine.digest(partition), model.digest(partition), "{:?}", step);
            }
            let tombstones = model.records.values().filter(|(_, removed)| *removed).count();
            prop_assert_eq!(engine.usage().tombstones, tombstones);
            prop_assert_eq!(engine.usage().keys, model.records.len() - tombstones);
            prop_assert_eq!(budget.used_bytes(), engine.usage().held_bytes);
        }
        for partition in 0..6 {
            prop_assert_eq!(scanned(&engine, partition, ALL_LEAVES), model.of(partition, ALL_LEAVES));
            prop_assert_eq!(scanned(&engine, partition, leaves), model.of(partition, leaves));
        }
        let is_held = |partition: &u16| !model.of(*partition, ALL_LEAVES).is_empty();
        let held: Vec<u16> = (0..6).filter(is_held).collect();
        prop_assert_eq!(engine.partitions_held(), held);
        engine.wipe();
        prop_assert_eq!((budget.used_bytes(), engine.usage()), (0, Usage::default()));
    }

    #[test]
    fn the_same_records_have_the_same_digest_in_any_order_and_engine(
        records in proptest::collection::btree_map(0u32..2_000, (1u64..9, any::<bool>()), 1..300),
        seed in any::<u64>(),
    ) {
        let (one, _) = engine(8 << 20);
        let other = Ram::new(Chunks::new(Arc::new(Budget::new(64 << 20)), 0, true), seed);
        let write = |engine: &Ram, number: u32, (time, removed): (u64, bool)| {
            let written =
                if removed { remove(engine, number, time) } else { put(engine, number, time, b"v") };
            assert_ne!(written, Written::NoSpace);
        };
        records.iter().for_each(|(number, record)| write(&one, *number, *record));
        // The other one gets them backwards, some of them late: after what replaces them.
        records.iter().rev().for_each(|(number, record)| {
            write(&other, *number, *record);
            write(&other, *number, (record.0 - 1, !record.1));
        });
        for partition in 0..PARTITIONS {
            prop_assert_eq!(one.digest(partition), other.digest(partition));
        }
    }
}

#[test]
fn the_same_history_is_scanned_in_the_same_order() {
    let order = || {
        let (engine, _) = engine(16 << 20);
        for number in (0..20_000).step_by(usize::from(PARTITIONS)) {
            assert_ne!(put(&engine, number, 1, b"x"), Written::NoSpace);
        }
        for number in (0..10_000).step_by(usize::from(PARTITIONS)) {
            engine.undo(0, &key(number), at(1));
        }
        scan_order(&engine, 0)
    };
    let keys = order();
    assert_eq!(keys.len(), 313 - 157);
    assert_eq!(order(), keys);
}

/// Records of one partition, which holds `count` of them: their numbers.
fn numbers_of(partition: u16, count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(move |at| u32::from(partition) + u32::from(PARTITIONS) * at)
}

#[test]
fn a_tombstone_goes_only_when_it_is_old_and_all_owners_hold_it() {
    let (engine, _) = engine(8 << 20);
    // Those of other members come in any order.
    for (time, number) in [30, 10, 20].into_iter().zip(numbers_of(0, 3)) {
        remove(&engine, number, time);
    }
    let times = |engine: &Ram| {
        let mut times: Vec<u64> = scanned(engine, 0, ALL_LEAVES).values().map(|(time, _)| *time).collect();
        times.sort_unstable();
        times
    };
    engine.sweep(100);
    assert_eq!(times(&engine), [10, 20, 30], "nothing is agreed");
    engine.agree(1, 100);
    engine.sweep(100);
    assert_eq!(times(&engine), [10, 20, 30], "another partition is agreed");
    engine.agree(0, 20);
    engine.agree(0, 5);
    engine.sweep(10);
    assert_eq!(times(&engine), [10, 20, 30], "none is older than 10");
    engine.sweep(20);
    assert_eq!(times(&engine), [20, 30], "10 is older than 20");
    engine.sweep(100);
    assert_eq!(times(&engine), [30], "30 is not agreed");
    // What comes late is agreed already.
    remove(&engine, 640, 15);
    engine.sweep(100);
    assert_eq!(times(&engine), [30]);
    engine.agree(0, 30);
    engine.sweep(31);
    assert_eq!((times(&engine), engine.partitions_held()), (vec![], vec![]));
}

#[test]
fn what_was_agreed_ends_with_the_partition_and_with_everything() {
    let (engine, _) = engine(8 << 20);
    let tombstones = |engine: &Ram| {
        remove(engine, 0, 10);
        engine.sweep(100);
        engine.usage().tombstones
    };
    engine.agree(0, 50);
    assert_eq!(tombstones(&engine), 0);
    engine.forget_partition(0);
    assert_eq!(tombstones(&engine), 1);
    engine.agree(0, 50);
    assert_eq!(tombstones(&engine), 0);
    engine.wipe();
    assert_eq!(tombstones(&engine), 1);
}

#[test]
fn tombstones_that_must_stay_do_not_hold_up_others_and_a_sweep_ends() {
    let (engine, _) = engine(8 << 20);
    for partition in 0..3 {
        numbers_of(partition, 1_000)
            .for_each(|number| assert_ne!(remove(&engine, number, 1), Written::NoSpace));
    }
    engine.agree(1, 5);
    engine.agree(2, 5);
    engine.sweep(10);
    assert_eq!(engine.usage().tombstones, 3_000 - SWEEP_MAX);
    engine.sweep(10);
    assert_eq!(engine.usage().tombstones, 3_000 - 2 * SWEEP_MAX);
    let left = |partition: u16| scanned(&engine, partition, ALL_LEAVES).len();
    assert!(left(1) < 1_000 && left(2) < 1_000, "each has its turn");
    (0..2_000 / SWEEP_MAX + 1).for_each(|_| engine.sweep(10));
    assert_eq!((left(0), left(1), left(2)), (1_000, 0, 0));
}

#[test]
fn a_full_engine_drops_only_what_is_agreed_and_not_young() {
    let (engine, _) = engine(16 << 20);
    let stored = (0..).take_while(|number| put(&engine, *number, 1, b"x") != Written::NoSpace).count() as u32;
    (0..stored).for_each(|number| assert_eq!(remove(&engine, number, 10), Written::Stored { existed: true }));
    let late = 11 + TOMBSTONE_NANOS_MIN;
    assert_eq!(put(&engine, stored, late, b"x"), Written::NoSpace, "nothing is agreed");
    agree_on_all(&engine, 9);
    assert_eq!(put(&engine, stored, late, b"x"), Written::NoSpace, "all is agreed but the tombstones");
    engine.agree(7, 10);
    assert_eq!(put(&engine, stored, late - 1, b"x"), Written::NoSpace, "too young");
    assert_eq!(engine.usage().tombstones, stored as usize);
    assert_eq!(put(&engine, stored, late, b"x"), Written::Stored { existed: false });
    assert!(scanned(&engine, 7, ALL_LEAVES).len() < numbers_of(7, stored / 64).count(), "of partition 7");
}

#[test]
fn a_key_that_comes_and_goes_leaves_no_graves_behind() {
    let (engine, budget) = engine(8 << 20);
    remove(&engine, 64, 1);
    remove(&engine, 0, 1);
    let before = budget.used_bytes();
    for time in (2..20_000).step_by(2) {
        put(&engine, 0, time, b"x");
        remove(&engine, 0, time + 1);
    }
    assert!(budget.used_bytes() < before + 4096, "{} after {before}", budget.used_bytes());
    assert_eq!(engine.usage().tombstones, 2);
    engine.agree(0, u64::MAX);
    engine.sweep(u64::MAX);
    assert_eq!(engine.usage().tombstones, 0);
}

#[test]
fn a_forgotten_partition_is_gone_and_its_memory_serves_others() {
    let (engine, budget) = engine(16 << 20);
    let value = vec![1; 1_000];
    let fill = |partition: u16| {
        numbers_of(partition, u32::MAX / 64)
            .take_while(|n| put(&engine, *n, 1, &value) != Written::NoSpace)
            .count()
    };
    let stored = fill(3);
    assert_eq!((fill(4), engine.partitions_held()), (0, vec![3]));
    engine.forget_partition(3);
    assert_eq!((engine.partitions_held(), engine.digest(3)), (vec![], Digest::default()));
    assert_eq!((engine.usage().keys, engine.usage().payload_bytes), (0, 0));
    assert_eq!(budget.used_bytes(), engine.usage().held_bytes);
    assert_eq!((fill(4), engine.partitions_held()), (stored, vec![4]));
}

#[test]
fn partitions_without_records_cost_next_to_nothing() {
    let (engine, budget) = engine(512 << 20);
    (0..1 << 14).for_each(|partition| engine.agree(partition, 1));
    let slots_bytes = budget.used_bytes();
    assert!(slots_bytes <= 64 << 14, "{slots_bytes}");
    for partition in 0..1 << 14 {
        let value = Some(Value { bytes: b"x", version: 0 });
        let record = Record { version: at(1), value, is_set: false };
        assert_ne!(engine.write(partition, &key(0), &record, false), Written::NoSpace);
    }
    let chunk_bytes = 16 * CHUNK_BYTES;
    assert!(budget.used_bytes() - chunk_bytes <= 512 << 14, "{}", budget.used_bytes() - chunk_bytes);
    (0..1 << 14).for_each(|partition| engine.undo(partition, &key(0), at(1)));
    assert_eq!(budget.used_bytes() - chunk_bytes, slots_bytes);
}

#[test]
fn an_index_shrinks_with_what_it_holds() {
    let (engine, budget) = engine(64 << 20);
    let numbers: Vec<u32> = numbers_of(0, 20_000).collect();
    numbers.iter().for_each(|number| assert_ne!(put(&engine, *number, 1, b"x"), Written::NoSpace));
    let full = budget.used_bytes();
    numbers[100..].iter().for_each(|number| engine.undo(0, &key(*number), at(1)));
    assert_eq!(scanned(&engine, 0, ALL_LEAVES).len(), 100);
    assert!(numbers[..100].iter().all(|number| get(&engine, *number).is_some()));
    assert!(100_000 < full - budget.used_bytes(), "{full} and then {}", budget.used_bytes());
    assert_eq!(budget.used_bytes(), engine.usage().held_bytes);
}

#[test]
fn graves_take_no_memory_once_they_are_closed() {
    let (engine, budget) = engine(64 << 20);
    numbers_of(0, 20_000).for_each(|number| assert_ne!(remove(&engine, number, 1), Written::NoSpace));
    remove(&engine, 64 * 20_000, 9);
    let chunks_bytes = budget.used_bytes() / CHUNK_BYTES * CHUNK_BYTES;
    engine.agree(0, 9);
    (0..20_000 / SWEEP_MAX + 1).for_each(|_| engine.sweep(9));
    assert_eq!(engine.usage().tombstones, 1);
    assert!(
        budget.used_bytes() - chunks_bytes < 1_000,
        "{} beside the chunks",
        budget.used_bytes() - chunks_bytes
    );
}

fn set_of(context: &[u8], bytes: &[u8], writer: u64, time: u64, over: &Siblings) -> Siblings {
    let context = CausalContext::decode(context).expect("a context");
    let value = Value { bytes, version: 3 };
    over.update(&context, value, writer, time).expect("a possible context").siblings
}

fn write_set(engine: &Ram, number: u32, time: u64, set: &Siblings) -> Written {
    let mut bytes = Vec::new();
    set.encode(&mut bytes);
    let value = Some(Value { bytes: &bytes, version: 0 });
    let record = Record { version: at(time), value, is_set: true };
    engine.write(partition_of(number), &key(number), &record, false)
}

/// The values that are held of a key, newest first, a plain one as a set.
fn held(engine: &Ram, number: u32) -> Vec<String> {
    let mut bytes = Vec::new();
    let Some(meta) = engine.read(partition_of(number), &key(number), &mut bytes) else { return Vec::new() };
    let value = (!meta.removed).then_some(Value { bytes: &bytes, version: meta.client_version });
    let record = Record { version: meta.version, value, is_set: meta.is_set() };
    let set = Siblings::of_record(&record).expect("a record");
    set.values().iter().map(|value| value.bytes.escape_ascii().to_string()).collect()
}

#[test]
fn sets_are_merged_and_others_replace_what_is_older() {
    let (engine, budget) = engine(8 << 20);
    let none = Siblings::default();
    let [a, b, c] = [(b"a", 1, 10), (b"b", 2, 20), (b"c", 3, 30)]
        .map(|(bytes, writer, time)| set_of(b"", bytes, writer, time, &none));
    assert_eq!(write_set(&engine, 1, 20, &b), Written::Stored { existed: false });
    assert_eq!(write_set(&engine, 1, 20, &b), Written::Older { existed: true });
    assert_eq!(write_set(&engine, 1, 10, &a), Written::Stored { existed: true }, "older, and not there yet");
    assert_eq!(write_set(&engine, 1, 10, &a), Written::Older { existed: true });
    assert_eq!(engine.meta(partition_of(1), &key(1)).map(|meta| meta.version), Some(at(20)));
    assert_eq!(held(&engine, 1), ["b", "a"]);
    // A plain value or a removal takes what is older, also when it comes late.
    assert_eq!(put(&engine, 1, 15, b"plain"), Written::Stored { existed: true });
    assert_eq!(held(&engine, 1), ["b", "plain"]);
    assert_eq!(remove(&engine, 1, 17), Written::Stored { existed: true });
    assert_eq!(remove(&engine, 1, 17), Written::Older { existed: true });
    assert_eq!(held(&engine, 1), ["b"]);
    assert_eq!(write_set(&engine, 1, 30, &c), Written::Stored { existed: true });
    assert_eq!(write_set(&engine, 1, 10, &a), Written::Older { existed: true }, "it was removed");
    assert_eq!(held(&engine, 1), ["c", "b"]);
    assert_eq!(put(&engine, 1, 40, b"over"), Written::Stored { existed: true });
    assert_eq!(write_set(&engine, 1, 30, &c), Written::Older { existed: true });
    assert_eq!(get(&engine, 1).as_deref(), Some(&b"over"[..]));
    assert_eq!(remove(&engine, 1, 50), Written::Stored { existed: true });
    assert_eq!(write_set(&engine, 1, 30, &c), Written::Older { existed: false });
    assert_eq!((engine.usage().keys, engine.usage().tombstones), (0, 1));
    let d = set_of(b"", &[7; 9_000], 4, 60, &none);
    assert_eq!(write_set(&engine, 1, 60, &d), Written::Stored { existed: false });
    write_set(&engine, 1, 30, &c);
    assert_eq!(held(&engine, 1), ["\\x07".repeat(9_000)], "all else was removed");
    assert_eq!((engine.usage().keys, engine.usage().tombstones), (1, 0));
    assert_eq!(budget.used_bytes(), engine.usage().held_bytes);
    engine.undo(partition_of(1), &key(1), at(60));
    assert_eq!((engine.usage().payload_bytes, engine.digest(partition_of(1))), (0, Digest::default()));
}

#[test]
fn a_set_as_long_as_it_can_be_is_kept() {
    let (engine, _) = engine(8 << 20);
    let mut set = Siblings::default();
    for time in 1..20 {
        set = set_of(b"", &[time as u8; 9_900], time, time, &set);
    }
    let mut bytes = Vec::new();
    set.encode(&mut bytes);
    assert!(50_000 < bytes.len(), "{}", bytes.len());
    assert_eq!(write_set(&engine, 1, 19, &set), Written::Stored { existed: false });
    let mut read = Vec::new();
    let meta = engine.read(partition_of(1), &key(1), &mut read).expect("it is there");
    assert!(meta.is_set() && read == bytes);
    assert_eq!(engine.usage().payload_bytes, 4 + bytes.len());
}

/// Writes a value beside what is there, as a coordinator does; returns the id that it was written under.
fn add(engine: &Ram, number: u32, time: u64) -> u64 {
    let mut writer = 0;
    let mut change = |standing: Standing| {
        assert!(standing.meta.is_none_or(|meta| meta.version < at(time)));
        writer = Dot::writer_after(1, standing.losses);
        Some((at(time), set_of(b"", &time.to_le_bytes(), writer, time, &standing.siblings)))
    };
    let mut bytes = Vec::new();
    let written = engine.rewrite(partition_of(number), &key(number), false, &mut change, &mut bytes);
    assert!(matches!(written, Written::Stored { .. }));
    let mut read = Vec::new();
    engine.read(partition_of(number), &key(number), &mut read);
    assert_eq!(read, bytes);
    writer
}

#[test]
fn what_was_lost_is_not_written_to_under_the_same_id() {
    let (engine, _) = engine(8 << 20);
    assert_eq!(add(&engine, 1, 5), 1);
    assert_eq!(add(&engine, 1, 6), 1);
    assert_eq!(held(&engine, 1).len(), 2);
    put(&engine, 2, 7, b"plain");
    engine.undo(partition_of(2), &key(2), at(7));
    assert_eq!(add(&engine, 1, 8), 1, "no set was lost");
    engine.undo(partition_of(1), &key(1), at(8));
    let second = add(&engine, 1, 9);
    engine.forget_partition(partition_of(1));
    let third = add(&engine, 1, 10);
    engine.wipe();
    let fourth = add(&engine, 1, 11);
    assert_eq!(std::collections::BTreeSet::from([1, second, third, fourth]).len(), 4);
    assert_eq!(add(&engine, 1, 12), fourth);
}

proptest! {
    /// Records of all kinds, in any order and more than once, end in one state when the engines exchange
    /// what they hold.
    #[test]
    fn engines_that_exchange_records_agree(
        writes in proptest::collection::vec((0usize..2, 0u8..4, 1u64..4), 1..30),
        orders in proptest::collection::vec(any::<proptest::sample::Index>(), 0..40),
    ) {
        let engines = [engine(8 << 20).0, engine(8 << 20).0];
        let mut sent: Vec<(u64, Option<Vec<u8>>, bool)> = Vec::new();
        let mut contexts = vec![Vec::new()];
        for (time, &(to, kind, writer)) in (10u64..).zip(&writes) {
            let engine = &engines[to];
            match kind {
                0 => drop((remove(engine, 0, time), sent.push((time, None, false)))),
                1 => drop((put(engine, 0, time, b"plain"), sent.push((time, Some(b"plain".to_vec()), false)))),
                _ => {
                    let mut bytes = Vec::new();
                    let context = if kind == 2 { b"" } else { &contexts[contexts.len() - 1][..] };
                    let mut change = |standing: Standing| {
                        let writer = writer * 2 + to as u64;
                        Some((at(time), set_of(context, &[time as u8], writer, time, &standing.siblings)))
                    };
                    engine.rewrite(0, &key(0), false, &mut change, &mut bytes);
                    let mut seen = Vec::new();
                    Siblings::decode(&bytes).expect("a set").context().encode(&mut seen);
                    contexts.push(seen);
                    sent.push((time, Some(bytes), true));
                }
            }
        }
        let write = |engine: &Ram, (time, bytes, is_set): &(u64, Option<Vec<u8>>, bool)| {
            let value = bytes.as_ref().map(|bytes| Value { bytes, version: 7 * i32::from(!*is_set) });
            engine.write(0, &key(0), &Record { version: at(*time), value, is_set: *is_set }, false);
        };
        for order in orders {
            let number = order.index(sent.len() * 2);
            write(&engines[number % 2], &sent[number / 2]);
        }
        for _ in 0..2 {
            for (from, to) in [(0, 1), (1, 0)] {
                let mut bytes = Vec::new();
                let Some(meta) = engines[from].read(0, &key(0), &mut bytes) else { continue };
                write(&engines[to], &(meta.version.time, (!meta.removed).then_some(bytes), meta.is_set()));
            }
        }
        prop_assert_eq!(engines[0].digest(0), engines[1].digest(0));
        prop_assert_eq!(held(&engines[0], 0), held(&engines[1], 0));
    }
}
