//! How long marks of removals stay, and what they cost.

use super::*;

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
