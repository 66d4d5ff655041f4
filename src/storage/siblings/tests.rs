//! What sets of siblings promise, by example and by random histories beside a model.

use super::encoding::CONTEXT_OF_READ;
use super::*;
use proptest::prelude::*;

const BLIND: &[u8] = b"";

fn value(bytes: &[u8]) -> Value<'_> {
    Value { bytes, version: 0 }
}

/// A set after a write, with the context that its client gets.
fn write(set: &Siblings, context: &[u8], bytes: &[u8], writer: u64, time: u64) -> (Siblings, Vec<u8>) {
    let context = CausalContext::decode(context).unwrap();
    let Updated { siblings, dot } = set.update(&context, value(bytes), writer, time).unwrap();
    (siblings, context_bytes(&context.after(dot)))
}

fn context_bytes(context: &CausalContext) -> Vec<u8> {
    let mut bytes = Vec::new();
    context.encode(&mut bytes);
    bytes
}

fn read_context(set: &Siblings) -> Vec<u8> {
    context_bytes(&set.context())
}

fn texts(set: &Siblings) -> Vec<String> {
    set.values().iter().map(|value| value.bytes.escape_ascii().to_string()).collect()
}

fn encoded(set: &Siblings) -> Vec<u8> {
    let mut bytes = Vec::new();
    set.encode(&mut bytes);
    bytes
}

#[test]
fn concurrent_writers_both_stay_and_a_reader_replaces_what_it_read() {
    let (first, _) = write(&Siblings::default(), BLIND, b"first", 1, 10);
    let seen = read_context(&first);
    let (left, _) = write(&first, &seen, b"left", 1, 20);
    let (right, _) = write(&first, &seen, b"right", 2, 21);
    let both = left.merge(&right);
    assert_eq!(texts(&both), ["right", "left"]);
    let (late, _) = write(&both, &seen, b"late", 2, 30);
    assert_eq!(texts(&late), ["late", "right", "left"]);
    let (one, _) = write(&late, &read_context(&both), b"chosen", 1, 40);
    assert_eq!(texts(&one), ["chosen", "late"]);
    assert_eq!(texts(&one.merge(&left).merge(&right).merge(&first)), ["chosen", "late"]);
}

/// Two blind clients of one server: with plain version vectors the second one's next write would
/// replace the first one's value, which it has never seen, or keep its own old one.
#[test]
fn a_context_from_a_write_covers_that_write_alone() {
    let (set, _) = write(&Siblings::default(), BLIND, b"a1", 1, 10);
    let (set, after_b1) = write(&set, BLIND, b"b1", 1, 20);
    let (set, after_b2) = write(&set, &after_b1, b"b2", 1, 30);
    assert_eq!(texts(&set), ["b2", "a1"]);
    // At a replica that has not even seen them.
    let (elsewhere, _) = write(&Siblings::default(), &after_b2, b"b3", 2, 40);
    assert_eq!(elsewhere.superseded.len(), 1);
    let merged = elsewhere.merge(&set);
    assert_eq!(texts(&merged), ["b3", "a1"]);
    assert!(merged.superseded.is_empty());
    assert_eq!(merged, set.merge(&elsewhere));
}

#[test]
fn a_stale_context_brings_nothing_back() {
    let (mut set, _) = write(&Siblings::default(), BLIND, b"old", 1, 1);
    let stale = read_context(&set);
    for time in 2..12 {
        let bytes = format!("new {time}");
        set = write(&set, &stale, bytes.as_bytes(), 1, time).0;
        assert_eq!(set.len(), time as usize - 1);
        assert!(!texts(&set).contains(&"old".to_owned()));
    }
    // And with its latest context each time, a client alone never has more than one value.
    let mut context = read_context(&set);
    for time in 12..100 {
        (set, context) = write(&set, &context, b"mine", 1 + time % 3, time);
        assert_eq!(set.len(), 1);
    }
}

#[test]
fn plain_writes_are_sets_of_one_value() {
    let plain =
        |time, writer, bytes| Siblings::from_plain(Version { time, writer }, Value { bytes, version: -7 });
    let set = plain(10, 1, b"plain");
    assert_eq!(set.values(), [Value { bytes: b"plain", version: -7 }]);
    assert_eq!(encoded(&set), encoded(&plain(10, 1, b"plain")));
    let (next, _) = write(&set, &read_context(&set), b"next", 2, 20);
    assert_eq!(texts(&next), ["next"]);
    assert_eq!(texts(&next.merge(&set)), ["next"]);
    assert_eq!(texts(&write(&set, BLIND, b"next", 2, 20).0), ["next", "plain"]);
    // A later one of the same writer has seen the earlier one; one of another writer has not.
    assert_eq!(texts(&set.merge(&plain(11, 1, b"later"))), ["later"]);
    assert_eq!(texts(&set.merge(&plain(11, 2, b"other"))), ["other", "plain"]);
    let over = next.replaced_by(Version { time: 30, writer: 3 }, value(b"over"));
    assert_eq!(texts(&over.merge(&next)), ["over"]);
}

/// A key is removed everywhere, forgotten, and written again by the same process, while a replica that
/// slept keeps what was before: the new value must not look old.
#[test]
fn a_forgotten_count_does_not_hide_a_new_value() {
    let mut asleep = Siblings::default();
    for time in 1..5 {
        asleep = write(&asleep, &read_context(&asleep), b"before", 1, time).0;
    }
    let (anew, _) = write(&Siblings::default(), BLIND, b"anew", 1, 5);
    assert_eq!(texts(&anew.merge(&asleep)), ["anew"]);
    // A clock that stands still does not matter to a set that is known.
    let (again, _) = write(&anew, BLIND, b"again", 1, 5);
    assert_eq!(texts(&again), ["again", "anew"]);
}

#[test]
fn contexts_are_checked() {
    let (set, after) = write(&Siblings::default(), BLIND, b"a", 1, 10);
    let read = read_context(&set);
    assert_eq!((read.len(), after.len()), (17, 17));
    let bad = |bytes: &[u8]| assert_eq!(CausalContext::decode(bytes), None, "{bytes:?}");
    for context in [&read, &after] {
        assert_eq!(&context_bytes(&CausalContext::decode(context).unwrap()), context);
        (1..context.len()).for_each(|end| bad(&context[..end]));
        bad(&[&context[..], &[0]].concat());
    }
    bad(&[CONTEXT_OF_READ]);
    bad(&[3; 17]);
    // A writer twice, and an own write that is covered anyway.
    bad(&[&read[..], &read[1..]].concat());
    bad(&[&after[..], &read[1..]].concat());
    let far = |counter| CausalContext { own: Some(Dot { writer: 1, counter }), ..Default::default() };
    assert_eq!(set.update(&far(CONTEXT_AHEAD_NANOS_MAX + 12), value(b"b"), 1, 11), None);
    let near = set.update(&far(CONTEXT_AHEAD_NANOS_MAX + 11), value(b"b"), 1, 11).unwrap();
    assert_eq!(near.dot.counter, CONTEXT_AHEAD_NANOS_MAX + 12);
    assert_eq!(texts(&near.siblings), ["b", "a"]);
}

#[test]
fn the_cap_takes_the_oldest_but_never_what_was_just_written() {
    let mut set = Siblings::default();
    for time in 0..40 {
        set = write(&set, BLIND, format!("{time}").as_bytes(), time % 5, time).0;
    }
    let expected: Vec<String> = (24..40).rev().map(|time| time.to_string()).collect();
    assert_eq!(texts(&set), expected);
    let (set, _) = write(&set, BLIND, b"by a slow clock", 9, 3);
    assert_eq!(texts(&set)[0], "by a slow clock");
    let mut large = Siblings::default();
    for time in 0..20 {
        large = write(&large, BLIND, &[time as u8; 10_000], time, time).0;
        assert!(encoded(&large).len() <= SET_BYTES_MAX);
    }
    assert_eq!(large.len(), 5);
    let (large, _) = write(&large, BLIND, &[1; VALUE_BYTES_MAX], 1, 30);
    assert_eq!(large.values()[0].bytes.len(), VALUE_BYTES_MAX);
}

#[test]
fn writers_are_pruned_but_not_those_of_values() {
    let (mut set, _) = write(&Siblings::default(), BLIND, b"stays", 1_000, 1);
    let mut context = Vec::new();
    for time in 2..200 {
        (set, context) = write(&set, &context, b"moves", time, time);
        assert_eq!(texts(&set), ["moves", "stays"]);
        assert!(set.seen.0.len() <= WRITERS_MAX && set.seen.0.contains_key(&1_000));
        assert_eq!(Siblings::decode(&encoded(&set)).as_ref(), Some(&set));
    }
    assert_eq!(set.seen.0.len(), WRITERS_MAX);
    let context = read_context(&set);
    assert_eq!(context.len(), 1 + WRITERS_MAX * DOT_BYTES);
    let (one, after) = write(&set, &context, b"chosen", 300, 300);
    assert_eq!(texts(&one), ["chosen"]);
    assert_eq!(after.len(), context.len() + DOT_BYTES);
    assert_eq!(texts(&one.merge(&set)), ["chosen"]);
    assert_eq!(texts(&write(&one, &after, b"next", 301, 301).0), ["next"]);
}

/// The fullest set: its encoding and its reply fit, and the reply says what is there.
#[test]
fn the_fullest_set_fits_everywhere() {
    let mut set = Siblings::default();
    let seen = (0..WRITERS_MAX as u64).map(|writer| Dot { writer, counter: 100 + writer }).collect();
    let mut context = CausalContext { seen, own: None };
    for place in 0..30u64 {
        context.own = Some(Dot { writer: 5_000 + place, counter: 10 + place });
        // The oldest of the 16 that stay is as long as can be, the others as long as still lets it stay.
        let bytes = vec![place as u8; if place == 14 { VALUE_BYTES_MAX } else { 2_861 }];
        set = set.update(&context, value(&bytes), 200 + place, 1_000 + place).unwrap().siblings;
    }
    assert_eq!(set.sizes(), [WRITERS_MAX, SUPERSEDED_MAX, SIBLINGS_MAX]);
    let bytes = encoded(&set);
    assert!(bytes.len() <= SET_BYTES_MAX && SET_BYTES_MAX - 20 < bytes.len(), "{}", bytes.len());
    let mut reply = Vec::new();
    set.encode_reply(&mut reply);
    let reply = wire::Siblings::decode(&reply).unwrap();
    assert_eq!(reply.values, set.values());
    assert_eq!(reply.context.as_bytes(), read_context(&set));
    let mut reply = Vec::new();
    context.encode_reply(&mut reply);
    let reply = wire::Siblings::decode(&reply).unwrap();
    assert_eq!(CausalContext::decode(reply.context.as_bytes()), Some(context));
    assert!(reply.values.is_empty());
}

const REPLICAS: usize = 3;
const CLIENTS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    /// A client reads at a replica.
    Read { client: usize, replica: usize },
    /// A client writes with the context it has, and keeps the new one or the old one.
    Write { client: usize, replica: usize, bytes: usize, keeps_new_context: bool },
    /// A replica learns what another one has.
    Merge { to: usize, from: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![8 => 0..4usize, 1 => Just(9_000usize)];
    prop_oneof![
        (0..CLIENTS, 0..REPLICAS).prop_map(|(client, replica)| Step::Read { client, replica }),
        (0..CLIENTS, 0..REPLICAS, bytes, any::<bool>()).prop_map(
            |(client, replica, bytes, keeps_new_context)| Step::Write {
                client,
                replica,
                bytes,
                keeps_new_context
            }
        ),
        (0..REPLICAS, 0..REPLICAS).prop_map(|(to, from)| Step::Merge { to, from }),
    ]
}

/// What sets and contexts stand for: the writes themselves, by number.
#[derive(Clone, Default)]
struct Model {
    live: BTreeSet<u64>,
    seen: BTreeSet<u64>,
}

impl Model {
    fn merge(&mut self, other: &Self) {
        self.live.retain(|event| other.live.contains(event) || !other.seen.contains(event));
        let new = other.live.iter().filter(|event| !self.seen.contains(event));
        self.live.extend(new);
        self.seen.extend(&other.seen);
    }
}

#[derive(Clone, Default)]
struct Client {
    context: Vec<u8>,
    read: BTreeSet<u64>,
    own: Option<u64>,
}

/// Plays steps on real sets and on the model; every value is the number of its write and some padding.
fn play(steps: &[Step], mut check: impl FnMut(&Siblings, &Model)) -> [Siblings; REPLICAS] {
    let mut sets: [Siblings; REPLICAS] = Default::default();
    let mut models: [Model; REPLICAS] = Default::default();
    let mut clients: [Client; CLIENTS] = Default::default();
    for (time, step) in (1_000u64..).zip(steps) {
        let changed = match *step {
            Step::Read { client, replica } => {
                let client = &mut clients[client];
                client.context = read_context(&sets[replica]);
                // The single events that a set has heard of are no part of what it hands out.
                let loose: BTreeSet<u64> = sets[replica].superseded.iter().map(|dot| dot.counter).collect();
                client.read = models[replica].seen.difference(&loose).copied().collect();
                client.own = None;
                continue;
            }
            Step::Write { client, replica, bytes, keeps_new_context } => {
                let client = &mut clients[client];
                let mut text = time.to_le_bytes().to_vec();
                text.resize(8 + bytes, b'.');
                let (set, context) = write(&sets[replica], &client.context, &text, replica as u64, time);
                let model = &mut models[replica];
                let known: BTreeSet<u64> = client.read.iter().copied().chain(client.own).collect();
                model.live.retain(|event| !known.contains(event));
                model.live.insert(time);
                model.seen.extend(known.into_iter().chain([time]));
                if keeps_new_context {
                    (client.context, client.own) = (context, Some(time));
                }
                sets[replica] = set;
                replica
            }
            Step::Merge { to, from } => {
                let from_model = models[from].clone();
                models[to].merge(&from_model);
                sets[to] = sets[to].merge(&sets[from]);
                to
            }
        };
        check(&sets[changed], &models[changed]);
    }
    sets
}

fn events(set: &Siblings) -> BTreeSet<u64> {
    let event = |value: Value<'_>| u64::from_le_bytes(*value.bytes.first_chunk().unwrap());
    set.values().into_iter().map(event).collect()
}

proptest! {
    /// Below the limits a set holds exactly the writes that nobody has replaced knowingly.
    #[test]
    fn sets_do_what_the_writes_themselves_would(steps in prop::collection::vec(step(), 1..40)) {
        let writes = steps.iter().filter(|step| matches!(step, Step::Write { .. })).count();
        let large = steps.iter().filter(|step| matches!(step, Step::Write { bytes: 9_000, .. })).count();
        prop_assume!(writes <= SIBLINGS_MAX && large <= 4);
        play(&steps, |set, model| {
            assert_eq!(events(set), model.live);
            assert_eq!(Siblings::decode(&encoded(set)).as_ref(), Some(set));
        });
    }

    #[test]
    fn merge_is_a_join(steps in prop::collection::vec(step(), 1..40)) {
        let writes = steps.iter().filter(|step| matches!(step, Step::Write { .. })).count();
        let large = steps.iter().filter(|step| matches!(step, Step::Write { bytes: 9_000, .. })).count();
        prop_assume!(writes <= SIBLINGS_MAX && large <= 4);
        let [a, b, c] = play(&steps, |_, _| {});
        prop_assert_eq!(a.merge(&b).merge(&c), a.merge(&b.merge(&c)));
    }

    /// Also where the cap bites: commutative, idempotent, a merge adds to what is known, and replicas
    /// that exchange their sets agree, to the byte, whatever the order.
    #[test]
    fn capped_sets_converge(
        steps in prop::collection::vec(step(), 1..150),
        orders in prop::collection::vec((0..REPLICAS, 0..REPLICAS), 0..10),
    ) {
        let mut sets = play(&steps, |set, model| {
            assert!(set.len() <= SIBLINGS_MAX && encoded(set).len() <= SET_BYTES_MAX);
            assert!(events(set).is_subset(&model.seen));
        });
        for (to, from) in orders {
            let merged = sets[to].merge(&sets[from]);
            prop_assert_eq!(&merged, &sets[from].merge(&sets[to]));
            prop_assert_eq!(&merged, &merged.merge(&sets[to]));
            prop_assert_eq!(&merged, &merged.merge(&merged));
            sets[to] = merged;
        }
        for _ in 0..2 {
            for (to, from) in [(0, 1), (1, 2), (2, 0), (0, 2), (2, 1), (1, 0)] {
                sets[to] = sets[to].merge(&sets[from]);
            }
        }
        prop_assert_eq!(encoded(&sets[0]), encoded(&sets[1]));
        prop_assert_eq!(encoded(&sets[1]), encoded(&sets[2]));
    }

    /// Where nobody replaces anything the cap alone decides, and then any grouping gives the same.
    #[test]
    fn the_cap_does_not_depend_on_the_grouping(
        writes in prop::collection::vec((0..REPLICAS, 0..6_000usize), 1..80),
    ) {
        let mut sets: [Siblings; REPLICAS] = Default::default();
        for (time, &(replica, bytes)) in (1_000u64..).zip(&writes) {
            sets[replica] = write(&sets[replica], BLIND, &vec![7; bytes], replica as u64, time).0;
        }
        let [a, b, c] = sets;
        prop_assert_eq!(a.merge(&b).merge(&c), a.merge(&b.merge(&c)));
    }

    /// Damage is refused, or gives a set that is written as it was read and can be worked with.
    #[test]
    fn damaged_bytes_upset_nobody(
        steps in prop::collection::vec(step(), 1..30),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        end in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        let sets = play(&steps, |_, _| {});
        let mut bytes = encoded(&sets[0]);
        let mut context = read_context(&sets[0]);
        for (place, byte) in flips {
            // Heads are short, so half of the damage goes there.
            let near = if byte % 2 == 0 { bytes.len().min(80) } else { bytes.len() };
            bytes[place.index(near)] = byte;
            if !context.is_empty() {
                context[place.index(near) % sets[0].seen.0.len().max(1)] ^= byte;
            }
        }
        if cuts {
            bytes.truncate(end.index(bytes.len()));
        }
        if let Some(set) = Siblings::decode(&bytes) {
            prop_assert_eq!(encoded(&set), bytes);
            let merged = set.merge(&sets[1]);
            prop_assert_eq!(&merged, &sets[1].merge(&set));
            prop_assert_eq!(Siblings::decode(&encoded(&merged)), Some(merged));
            set.encode_reply(&mut Vec::new());
            let _ = set.update(&set.context(), value(b"after"), 0, 5_000);
        }
        if let Some(read) = CausalContext::decode(&context) {
            prop_assert_eq!(context_bytes(&read), context);
            let _ = sets[0].update(&read, value(b"after"), 0, 5_000);
        }
    }

    #[test]
    fn any_bytes_can_be_refused(bytes in prop::collection::vec(0..4u8, 0..80)) {
        if let Some(set) = Siblings::decode(&bytes) {
            prop_assert_eq!(encoded(&set), bytes);
        } else if let Some(context) = CausalContext::decode(&bytes) {
            prop_assert_eq!(context_bytes(&context), bytes);
        }
    }
}
