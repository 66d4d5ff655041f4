//! Tests of the engine in memory: limits, partitions, and what the files beside share.

mod model;
mod sets;
mod tombstones;

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

/// What a scan visits, each key once.
fn scanned(engine: &Ram, partition: u16, leaves: u32) -> BTreeMap<Vec<u8>, (u64, bool)> {
    let mut records = BTreeMap::new();
    engine.scan(partition, leaves, &mut |key, meta| {
        let twice = records.insert(key.as_bytes().to_vec(), (meta.version.time, meta.removed));
        assert_eq!(twice, None, "{key:?}");
    });
    records
}

/// Records of one partition, which holds `count` of them: their numbers.
fn numbers_of(partition: u16, count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(move |at| u32::from(partition) + u32::from(PARTITIONS) * at)
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
