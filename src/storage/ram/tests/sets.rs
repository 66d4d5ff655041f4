//! Sets of siblings: merged by the engine, and never written to under an id that was lost.

use super::*;

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
