//! What links do to many packets, compared with what was set.

use proptest::prelude::*;
use std::time::Duration;
use violet_link::settings::Settings;
use violet_link::{Cause, Delivery, Endpoint, Ends, Loss, Network, Outcome, Parcel};

const A: Endpoint = Endpoint(1);
const B: Endpoint = Endpoint(2);
const SMALL: Parcel = Parcel { bytes: 128, group: None };

fn network(seed: u64, change: &str) -> Network {
    let mut settings = Settings::default();
    settings.apply(&Settings::parse_change(change).expect("it is allowed"));
    Network::new(seed, settings)
}

fn micros(number: u64) -> Duration {
    Duration::from_micros(number)
}

/// One small packet every 100 µs.
fn outcomes(network: &mut Network, count: u64) -> Vec<Outcome> {
    (0..count).map(|number| network.send(micros(100 * number), A, B, SMALL)).collect()
}

fn arrivals(outcomes: &[Outcome]) -> Vec<Duration> {
    outcomes.iter().flat_map(|outcome| outcome.deliveries()).map(|delivery| delivery.at).collect()
}

/// Four standard deviations of a count of independent events.
fn is_likely(count: u64, of: u64, chance: f64) -> bool {
    let expected = of as f64 * chance;
    (count as f64 - expected).abs() <= 4.0 * (expected * (1.0 - chance)).sqrt() + 1.0
}

#[test]
fn every_chance_is_as_it_was_set() {
    const COUNT: u64 = 100_000;
    let mut network = network(1, "loss=2% duplicate=3% reorder=4% corrupt=5% reorder-by=3ms");
    outcomes(&mut network, COUNT);
    let counts = network.counts();
    let lost = counts.lost(Cause::Chance);
    assert!(is_likely(lost, COUNT, 0.02), "{counts:?}");
    let arrived = COUNT - lost;
    assert!(is_likely(counts.duplicated, arrived, 0.03), "{counts:?}");
    assert!(is_likely(counts.reordered, arrived, 0.04), "{counts:?}");
    assert!(is_likely(counts.corrupted, arrived, 0.05), "{counts:?}");
    assert_eq!(counts.sent, COUNT);
    assert_eq!(counts.lost_in_all(), lost);
}

#[test]
fn gilbert_loss_comes_in_bursts_as_long_as_set() {
    const COUNT: u64 = 200_000;
    let mut network = network(1, "loss=gilbert:1%/20%");
    let lost: Vec<bool> =
        outcomes(&mut network, COUNT).iter().map(|outcome| matches!(outcome, Outcome::Lost(_))).collect();
    let share = lost.iter().filter(|lost| **lost).count() as f64 / COUNT as f64;
    assert!((share / (1.0 / 21.0) - 1.0).abs() < 0.1, "1 % / (1 % + 20 %): {share}");
    let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
    let length = share * COUNT as f64 / bursts;
    assert!((length / 5.0 - 1.0).abs() < 0.1, "1 / 20 %: {length}");
}

#[test]
fn a_datagram_of_seven_fragments_is_as_fragile_as_seven_packets() {
    const COUNT: u64 = 50_000;
    let mut network = network(1, "loss=1%");
    for number in 0..COUNT {
        network.send_datagram(micros(number), A, B, 10_000);
        network.send_datagram(micros(number), A, Endpoint(3), 1_472);
        network.send_datagram(micros(number), A, Endpoint(4), 1_473);
    }
    let lost = |to| network.counts_of(A, to).lost(Cause::Chance);
    assert!(is_likely(lost(B), COUNT, 1.0 - 0.99f64.powi(7)), "{}", lost(B));
    assert!(is_likely(lost(Endpoint(3)), COUNT, 0.01), "{}", lost(Endpoint(3)));
    assert!(is_likely(lost(Endpoint(4)), COUNT, 1.0 - 0.99f64.powi(2)), "{}", lost(Endpoint(4)));
}

#[test]
fn fragments_of_one_datagram_share_their_jitter() {
    let mut network = network(1, "jitter=20ms reorder=50% reorder-by=30ms");
    for datagram in 0..200u64 {
        let now = Duration::from_millis(100 * datagram);
        let parcel = Parcel { bytes: 1_500, group: Some(datagram) };
        let at: Vec<Duration> = (0..7)
            .flat_map(|fragment| network.send(now + micros(fragment), A, B, parcel).deliveries())
            .map(|delivery| delivery.at)
            .collect();
        assert_eq!(at.len(), 7);
        assert!(at[6] - at[0] <= micros(10), "{at:?}");
    }
}

#[test]
fn a_rate_lets_so_much_pass_and_drops_what_the_queue_does_not_hold() {
    // A packet of 1,250 bytes takes 10 ms; eight of them may wait or be sent.
    let mut network = network(1, "rate=1Mbit queue=10000B");
    let parcel = Parcel { bytes: 1_250, group: None };
    let sent: Vec<Outcome> = (0..20).map(|_| network.send(Duration::ZERO, A, B, parcel)).collect();
    let at: Vec<u128> = arrivals(&sent).iter().map(Duration::as_millis).collect();
    assert_eq!(at, [10, 20, 30, 40, 50, 60, 70, 80]);
    assert_eq!(network.counts().lost(Cause::QueueFull), 12);
    let later = network.send(Duration::from_secs(1), A, B, parcel);
    assert_eq!(arrivals(&[later]), [Duration::from_millis(1_010)]);
    // Seven fragments, 10,196 bytes in all: the last finds no room.
    assert_eq!(network.send_datagram(Duration::from_secs(2), A, B, 10_000), Outcome::Lost(Cause::QueueFull));
}

#[test]
fn what_a_node_may_send_counts_over_all_its_links() {
    let mut network = network(1, "delay=1ms queue=1MiB");
    network.limit(A, Some(1_000_000), None);
    network.limit(B, None, Some(2_000_000));
    let parcel = Parcel { bytes: 1_250, group: None };
    let mut send = |from, to| arrivals(&[network.send(Duration::ZERO, from, to, parcel)])[0].as_millis();
    assert_eq!((send(A, Endpoint(3)), send(A, Endpoint(4)), send(A, Endpoint(5))), (11, 21, 31));
    assert_eq!((send(Endpoint(3), B), send(Endpoint(4), B)), (6, 11));
    assert_eq!(send(Endpoint(3), Endpoint(4)), 1, "others are not concerned");
    assert_eq!(send(B, A), 1, "nor is the other direction");
}

#[test]
fn a_packet_longer_than_the_mtu_does_not_pass() {
    let mut network = network(1, "mtu=1280");
    let parcel = |bytes| Parcel { bytes, group: None };
    assert_eq!(network.send(Duration::ZERO, A, B, parcel(1_281)), Outcome::Lost(Cause::TooLong));
    assert!(matches!(network.send(Duration::ZERO, A, B, parcel(1_280)), Outcome::Arrives(..)));
    assert!(matches!(network.send_datagram(Duration::ZERO, A, B, 60_000), Outcome::Arrives(..)));
}

#[test]
fn cuts_are_one_way_or_both_and_heal() {
    let mut network = network(1, "delay=1ms");
    let is_open = |network: &mut Network, from, to| {
        let outcome = network.send(Duration::ZERO, Endpoint(from), Endpoint(to), SMALL);
        assert!(matches!(outcome, Outcome::Arrives(..) | Outcome::Lost(Cause::Cut)));
        let is_cut = outcome == Outcome::Lost(Cause::Cut);
        assert_eq!(network.is_cut(Endpoint(from), Endpoint(to)), is_cut);
        !is_cut
    };
    network.cut(&Ends::one(A), &Ends::one(B));
    assert!(!is_open(&mut network, 1, 2) && is_open(&mut network, 2, 1));
    network.heal();
    assert!(is_open(&mut network, 1, 2));
    let some = Ends::Only([A, B].into());
    network.isolate(&some);
    assert!(is_open(&mut network, 1, 2) && is_open(&mut network, 3, 4) && is_open(&mut network, 3, 3));
    for (from, to) in [(1, 3), (3, 1), (99, 2)] {
        assert!(!is_open(&mut network, from, to));
    }
    network.heal();
    assert!(is_open(&mut network, 1, 3));
}

#[test]
fn who_is_paused_or_down_neither_sends_nor_receives() {
    let mut network = network(1, "delay=1ms");
    network.pause(A);
    network.crash(Endpoint(3));
    let mut lost = |from, to| match network.send(Duration::ZERO, from, to, SMALL) {
        Outcome::Lost(cause) => Some(cause),
        Outcome::Arrives(..) => None,
    };
    assert_eq!((lost(A, B), lost(B, A)), (Some(Cause::Paused), Some(Cause::Paused)));
    assert_eq!((lost(B, Endpoint(3)), lost(B, Endpoint(4))), (Some(Cause::Down), None));
    network.resume(A);
    network.start(Endpoint(3));
    assert_eq!(arrivals(&outcomes(&mut network, 3)).len(), 3);
}

#[test]
fn changes_count_from_the_last_to_the_first_and_can_be_undone() {
    let mut network = network(1, "delay=10ms");
    let change = |text| Settings::parse_change(text).expect("it is allowed");
    network.change(&Ends::all(), &Ends::all(), &change("loss=1% delay=5ms")).expect("room");
    network.change(&Ends::one(A), &Ends::all(), &change("delay=20ms")).expect("room");
    network.scale_delays(3.0);
    let link = network.settings(A, B);
    assert_eq!((link.delay, link.loss), (Duration::from_millis(60), Loss::Each(10_000)));
    assert_eq!(network.settings(B, A).delay, Duration::from_millis(15));
    network.change(&Ends::all(), &Ends::all(), &change("delay=1ms loss=0%")).expect("room");
    assert_eq!(network.settings(A, B).delay, Duration::from_millis(3), "the last one counts");
    network.reset();
    assert_eq!(network.settings(A, B).delay, Duration::from_millis(10));
}

#[test]
fn the_same_change_again_and_again_takes_no_room() {
    let mut network = network(1, "delay=10ms");
    for number in 0..20_000 {
        let change = Settings::parse_change(&format!("delay={number}us")).expect("it is allowed");
        network.change(&Ends::one(A), &Ends::one(B), &change).expect("it replaces the one before");
    }
    for number in 3..10_002 {
        let change = Settings::parse_change("delay=1ms").expect("it is allowed");
        network.change(&Ends::one(A), &Ends::one(Endpoint(number)), &change).expect("there is room");
    }
    let change = Settings::parse_change("delay=1ms").expect("it is allowed");
    let full = network.change(&Ends::one(B), &Ends::one(A), &change).expect_err("that is too many");
    assert_eq!(full, "10000 changes are in force, which is the most; 'reset' undoes them");
}

#[test]
fn a_loss_leaves_what_happens_to_other_packets_as_it_is() {
    let calm = outcomes(&mut network(3, "delay=1ms jitter=50us duplicate=5% reorder=5%"), 2_000);
    let lossy = outcomes(&mut network(3, "delay=1ms jitter=50us duplicate=5% reorder=5% loss=20%"), 2_000);
    let mut cut = network(3, "delay=1ms jitter=50us duplicate=5% reorder=5%");
    cut.cut(&Ends::one(A), &Ends::one(B));
    let mut after = outcomes(&mut cut, 1_000);
    cut.heal();
    after.extend((1_000..2_000).map(|number| cut.send(micros(100 * number), A, B, SMALL)));
    let is_same = |(calm, other): (&Outcome, &Outcome)| matches!(other, Outcome::Lost(_)) || calm == other;
    assert!(calm.iter().zip(&lossy).all(is_same));
    assert!(calm.iter().zip(&after).all(is_same));
    assert!(lossy.contains(&Outcome::Lost(Cause::Chance)) && after.contains(&Outcome::Lost(Cause::Cut)));
}

/// What a link may be.
fn change() -> impl Strategy<Value = String> {
    let jitter = prop_oneof![
        (0u64..50_000).prop_map(|most| format!("jitter={most}us")),
        (0u64..20_000).prop_map(|median| format!("jitter=lognormal:{median}us")),
    ];
    let loss = prop_oneof![Just("loss=5%".to_owned()), Just("loss=gilbert:2%/30%/90%/1%".to_owned())];
    let rate = prop_oneof![Just("rate=none"), Just("rate=2Mbit")];
    (jitter, loss, rate, 0u64..30).prop_map(|(jitter, loss, rate, drift)| {
        format!("delay=10ms {jitter} {loss} {rate} drift={drift}ms duplicate=1% corrupt=1%")
    })
}

/// Sends to B, and as much to others, whose packets have nothing to do with it.
fn deliveries(seed: u64, change: &str, others: u32) -> Vec<(usize, Delivery)> {
    let mut network = network(seed, change);
    let mut deliveries = Vec::new();
    for number in 0..500u64 {
        let now = micros(number * 313);
        for other in 0..others {
            network.send(now, A, Endpoint(10 + other), SMALL);
            network.send(now, Endpoint(10 + other), B, SMALL);
        }
        let sent = network.send(now, A, B, SMALL).deliveries();
        deliveries.extend(sent.map(|delivery| (number as usize, delivery)));
    }
    deliveries
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn order_is_kept_whatever_the_jitter(seed: u64, change in change()) {
        let mut firsts = deliveries(seed, &change, 0);
        firsts.dedup_by_key(|(number, _)| *number);
        prop_assert!(firsts.is_sorted_by(|(_, a), (_, b)| a.at < b.at));
        prop_assert!(firsts.iter().all(|(number, delivery)| micros(*number as u64 * 313 + 10_000) <= delivery.at));
    }

    #[test]
    fn a_seed_is_one_run_and_other_links_are_not_concerned(seed: u64, change in change(), others in 0u32..4) {
        prop_assert_eq!(deliveries(seed, &change, 0), deliveries(seed, &change, others));
    }

    #[test]
    fn loss_is_as_set(seed: u64, percent in 0u32..=100) {
        let mut network = network(seed, &format!("loss={percent}%"));
        let lost = outcomes(&mut network, 20_000).iter().filter(|outcome| matches!(outcome, Outcome::Lost(_))).count();
        // Five deviations, as many cases are tried.
        let expected = f64::from(percent) * 200.0;
        let allowed = 5.0 * (expected * (1.0 - f64::from(percent) / 100.0)).sqrt();
        prop_assert!((lost as f64 - expected).abs() <= allowed, "{} for {}", lost, expected);
    }
}
