//! Any changes in any order, next to a model: what is held, scanned, summed up in digests and counted.

use super::*;

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
