//! What membership must do, in the test network of [`super::world`]. Figures are printed; see them with
//! `cargo test --lib membership -- --nocapture`, and the long runs with `--ignored` as well.

use super::world::{BEGIN, Starved, World, address_of, ms};
use super::*;

const LAN: GossipPreset = GossipPreset::Lan;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Runs until all see what is; fails when that takes longer than the limit.
fn settle_within(world: &mut World, limit: Duration, what: &str) -> Duration {
    let took = world.run_until(limit, World::all_see_right);
    let hosts = 0..world.hosts.len();
    let wrong: Vec<usize> = hosts.clone().filter(|host| !world.sees_right(*host, hosts.clone())).collect();
    took.unwrap_or_else(|| panic!("{what}: after {limit:?} these see it wrong: {wrong:?}"))
}

/// How long it takes until nobody sees this host alive, having killed it.
fn notice_death(world: &mut World, host: usize) -> Duration {
    world.kill(host);
    let took = settle_within(world, secs(60), "a death");
    println!("death noticed by all after {took:?}");
    took
}

#[test]
fn a_hundred_join_through_three_seeds_in_small_packets() {
    let mut world = World::new(1, 100, LAN);
    let seeds: Vec<_> = (0..3).map(address_of).collect();
    for host in 0..100 {
        world.start(host, &seeds);
        world.run(ms(10));
    }
    let took = settle_within(&mut world, secs(5), "joining");
    println!("joined after {took:?}; largest datagram {}", world.bytes_max);
    // The next one learns of everybody as well, the dead included, and everybody learns of it.
    for dead in 50..60 {
        world.kill(dead);
    }
    settle_within(&mut world, secs(10), "ten deaths");
    world.kill(99);
    settle_within(&mut world, secs(10), "one more");
    world.run(secs(60));
    world.start(99, &seeds);
    let took = settle_within(&mut world, secs(8), "one joins");
    println!("one joins after {took:?}; largest datagram {}", world.bytes_max);
    assert!(world.bytes_max <= pace::DATAGRAM_BYTES_MAX);
    assert!(pace::DATAGRAM_BYTES_MAX - 200 < world.bytes_max, "packets are used");
    assert!(world.false_downs.iter().all(|down| down.at.since(BEGIN) < secs(8)), "{:?}", world.false_downs);
}

/// Two halves of a cluster; each knows two seeds of its own half, and one of them one of the other.
fn halves(seed: u64, hosts: usize) -> World {
    let mut world = World::new(seed, hosts, LAN);
    let half = hosts / 2;
    for host in 0..hosts {
        let first = if host < half { 0 } else { half };
        let mut seeds = vec![address_of(first), address_of(first + 1)];
        if host == half {
            seeds.push(address_of(0));
        }
        world.start(host, &seeds);
        world.run(ms(10));
    }
    settle_within(&mut world, secs(30), "joining");
    world
}

#[test]
fn halves_of_a_hundred_find_each_other_after_ten_minutes() {
    let mut world = halves(2, 100);
    world.cut_at = Some(50);
    world.run(secs(60));
    assert!((0..100).all(|host| world.count(host) == 50), "all see their half");
    let sent = |world: &World| world.hosts.iter().map(|host| host.packets_sent).sum::<u64>();
    // The seeds that linked them are gone, and so are their processes.
    world.kill(0);
    world.kill(50);
    // One half forgets the other: all its processes start anew, and their seeds are their own.
    for host in 51..100 {
        world.kill(host);
        world.start(host, &[address_of(51), address_of(52)]);
    }
    world.run(secs(60));
    let before = sent(&world);
    world.run(secs(480));
    let rate = (sent(&world) - before) as f64 / 480.0 / 98.0;
    world.cut_at = None;
    let took = settle_within(&mut world, secs(60), "healing");
    println!("healed after {took:?}; split, {rate:.1} packets a second and member");
    // A probe every 500 ms costs four packets with its answers, dialling one.
    assert!(rate < 6.0, "{rate}");
}

#[test]
fn restarts_leave_no_ghosts_and_no_flaps() {
    let mut world = World::new(3, 20, LAN);
    // What an old start sent may come late: it must not count against the new one.
    world.copies = 50_000;
    world.start_all();
    settle_within(&mut world, secs(5), "joining");
    let all: Vec<_> = (0..20).map(address_of).collect();
    let mut worst = Duration::ZERO;
    for round in 0..50 {
        // One address again and again, and every tenth time half of them at once.
        let hosts = if round % 10 == 9 { 0..10 } else { 0..1 };
        hosts.clone().for_each(|host| world.kill(host));
        world.run(ms(100));
        hosts.clone().for_each(|host| world.start(host, &all));
        let generations = |world: &World| {
            (0..20).all(|viewer| {
                let process = world.hosts[viewer].process.as_ref().expect("it runs");
                hosts.clone().filter(|host| *host != viewer).all(|host| {
                    let address = address_of(host);
                    let now = world.hosts[host].process.as_ref().expect("it runs").foca.identity().generation;
                    process.generation_of(address) == Some(now)
                })
            })
        };
        let took = world.run_until(secs(10), generations).expect("all learn the new generation");
        worst = worst.max(took);
        world.run(secs(2));
        assert!(world.all_see_right(), "round {round}");
    }
    println!("a new generation is known to all after {worst:?} at most");
    assert!(worst < secs(3), "{worst:?}");
    assert_eq!(world.false_downs.len(), 0, "{:?}", world.false_downs);
    // And stays away until it is called down, again and again.
    for _ in 0..15 {
        notice_death(&mut world, 1);
        world.start(1, &all);
        settle_within(&mut world, secs(5), "coming back");
        world.run(secs(1));
    }
    world.run(secs(60));
    for host in &world.hosts {
        let process = host.process.as_ref().expect("it runs");
        let (members, updates, timers) = process.sizes();
        assert_eq!(process.known().len(), 19);
        assert!(members <= 20, "its own last start included: {members}");
        assert!(updates == 0 && timers <= 10, "{updates} updates, {timers} timers");
    }
}

/// All members restart within two seconds, again and again, knowing so many seeds.
fn restart_all(seeds: usize) {
    let mut world = World::new(4, 20, LAN);
    world.start_all();
    settle_within(&mut world, secs(5), "joining");
    let seeds: Vec<_> = (0..seeds).map(address_of).collect();
    let mut worst = Duration::ZERO;
    for round in 0..20 {
        let mut at: Vec<(Duration, usize)> =
            (0..20).map(|host| (world.time(Duration::ZERO, secs(2)), host)).collect();
        at.sort_unstable();
        let begin = world.now;
        for (at, host) in at {
            world.run(at.saturating_sub(world.now.since(begin)));
            world.kill(host);
            let away = world.time(ms(10), ms(100));
            world.run(away);
            world.start(host, &seeds);
        }
        worst = worst.max(settle_within(&mut world, secs(15), &format!("round {round}")));
        // What is right must stay so, past the time for which seeds are taken for alive.
        world.run(secs(8));
        assert!(world.all_see_right(), "round {round}");
    }
    println!("{} seeds: right {worst:?} after the last restart, at most", seeds.len());
    assert_eq!(world.false_downs.len(), 0, "{:?}", world.false_downs);
}

#[test]
fn mass_restarts_end_in_the_right_count() {
    restart_all(20);
    restart_all(2);
}

#[test]
fn a_death_is_noticed_in_time() {
    let wan = GossipPreset::Wan;
    for (preset, hosts, limit) in [(LAN, 3, 6), (LAN, 20, 7), (LAN, 100, 10), (wan, 20, 40)] {
        let mut world = World::new(5, hosts, preset);
        world.loss = 10_000;
        world.start_all();
        world.run(secs(15));
        for dead in [hosts - 1, 0] {
            let took = notice_death(&mut world, dead);
            assert!(took < secs(limit), "{took:?} of {hosts}");
        }
        assert_eq!(world.false_downs.len(), 0, "{:?}", world.false_downs);
    }
}

#[test]
fn the_last_one_notices_that_it_is_alone() {
    let mut world = World::new(6, 20, LAN);
    world.start_all();
    world.run(secs(15));
    (1..20).for_each(|host| world.kill(host));
    let took = settle_within(&mut world, secs(60), "nineteen deaths");
    println!("alone after {took:?}");
    let all: Vec<_> = (0..20).map(address_of).collect();
    (1..20).for_each(|host| world.start(host, &all));
    println!("nineteen come back after {:?}", settle_within(&mut world, secs(6), "coming back"));
}

#[test]
fn half_of_them_die_at_once() {
    let mut world = World::new(7, 20, LAN);
    world.start_all();
    world.run(secs(15));
    (10..20).for_each(|host| world.kill(host));
    let took = settle_within(&mut world, secs(12), "ten deaths");
    println!("ten of twenty noticed after {took:?}");
    assert_eq!(world.false_downs.len(), 0);
}

#[test]
fn a_process_that_was_suspended_comes_back_and_blames_nobody() {
    for pause in [2, 10, 600] {
        let mut world = World::new(8, 20, LAN);
        world.start_all();
        world.run(secs(15));
        world.pause(7, secs(pause));
        world.run(secs(pause));
        let took = settle_within(&mut world, secs(10), "coming back");
        world.run(secs(30));
        println!("after {pause} s away all see it after {took:?}");
        assert!(world.all_see_right());
        assert!(world.false_downs.iter().all(|down| down.subject == 7), "{:?}", world.false_downs);
    }
}

#[test]
fn on_a_bad_network_nobody_has_to_come_back() {
    let mut world = World::new(12, 20, LAN);
    world.loss = 100_000;
    world.start_all();
    let generations = |world: &World| -> Vec<Generation> {
        let processes = world.hosts.iter().map(|host| host.process.as_ref().expect("it runs"));
        processes.map(|process| process.foca.identity().generation).collect()
    };
    let before = generations(&world);
    world.run(secs(180));
    assert_eq!(generations(&world), before, "a suspicion that was refuted is nobody's death");
    assert_eq!(world.false_downs.len(), 0, "{:?}", world.false_downs);
}

#[test]
fn nobody_dials_faster_than_allowed() {
    let all: Vec<_> = (0..100).map(address_of).collect();
    let mut alone = Membership::new(all[0], 1, Site::default(), &all, LAN, 1, BEGIN);
    let mut dialled = BTreeMap::<SocketAddr, usize>::new();
    let mut now = BEGIN;
    while now < BEGIN + secs(60) {
        let mut sends = Vec::new();
        alone.tick(now, &mut sends);
        sends.into_iter().for_each(|(to, _)| *dialled.entry(to).or_default() += 1);
        now = alone.next_deadline();
    }
    let (every, at_most) = pace::DIAL_QUICK;
    assert_eq!(dialled.values().sum::<usize>(), 60_000 / every.as_millis() as usize * at_most);
    assert_eq!(dialled.len(), 99, "everybody gets a turn");
    assert!(dialled.values().all(|times| (3..=4).contains(times)), "in turn: {dialled:?}");
}

/// Runs twenty members of which the last `starved` are short of time, at 1 % loss. Returns how often
/// healthy ones were called down, and the same for the starved ones.
fn starve(seed: u64, starved: usize, kind: Starved, lifeguard: bool, time: Duration) -> (usize, usize) {
    let mut world = World::new(seed, 20, LAN);
    world.lifeguard = lifeguard;
    world.loss = 10_000;
    world.start_all();
    world.run(secs(15));
    assert_eq!(world.false_downs.len(), 0);
    let healthy = 20 - starved;
    (healthy..20).for_each(|host| world.hosts[host].starved = kind);
    world.run(time);
    let wrong = world.false_downs.iter().filter(|down| down.subject < healthy).count();
    let others = world.false_downs.len() - wrong;
    // A death is noticed by all that are healthy, all the same.
    world.kill(0);
    let dead = address_of(0);
    let sees = |world: &World, viewer: usize| {
        let process = world.hosts[viewer].process.as_ref().expect("it runs");
        matches!(process.known()[&dead], MemberState::Down(_))
    };
    let took = world.run_until(secs(60), |world| (1..healthy).all(|viewer| sees(world, viewer)));
    let took = took.expect("the death is noticed");
    println!(
        "{starved} {kind:?}, doubt {lifeguard}: healthy down {wrong}, starved down {others}, \
         a death after {took:?}"
    );
    if lifeguard {
        assert!(took < secs(10), "{took:?}");
    }
    (wrong, others)
}

fn compare_starved(starved: impl Iterator<Item = usize>, time: Duration) {
    let (mut with, mut without) = (0, 0);
    for starved in starved {
        for kind in [Starved::Slow, Starved::Stalls] {
            with += starve(9, starved, kind, true, time).0;
            without += starve(9, starved, kind, false, time).0;
        }
    }
    println!("healthy members called down: {with} times, {without} without doubt");
    assert!(with * 50 <= without && 100 < without, "{with} with, {without} without");
}

#[test]
fn a_cluster_in_which_all_stumble_still_finds_its_dead() {
    let mut world = World::new(13, 20, LAN);
    world.loss = 10_000;
    world.start_all();
    world.run(secs(15));
    world.hosts.iter_mut().for_each(|host| host.starved = Starved::Stumbles);
    world.run(secs(120));
    assert_eq!(world.false_downs.len(), 0, "{:?}", world.false_downs);
    for dead in [3, 4, 5] {
        let took = notice_death(&mut world, dead);
        assert!(took < secs(15), "{took:?}");
    }
}

#[test]
fn the_starved_do_not_call_the_healthy_down() {
    compare_starved([1, 5].into_iter(), secs(120));
}

#[test]
#[ignore = "ten runs of ten virtual minutes each, with and without"]
fn the_starved_do_not_call_the_healthy_down_for_long() {
    compare_starved(1..=5, secs(600));
}

/// A hundred members with loss, delays, restarts and pauses.
fn weather(seed: u64, time: Duration) {
    let mut world = World::new(seed, 100, LAN);
    world.delay = (Duration::from_micros(200), ms(20));
    world.loss = 10_000;
    world.copies = 5_000;
    world.start_all();
    settle_within(&mut world, secs(20), "joining");
    world.run(secs(20));
    let all: Vec<_> = (0..100).map(address_of).collect();
    let measure = |world: &World| {
        let sum = |of: fn(&super::world::Host) -> u64| world.hosts.iter().map(of).sum::<u64>();
        (sum(|host| host.packets_sent), sum(|host| host.bytes_sent))
    };
    let per_member = |before: (u64, u64), after: (u64, u64), time: Duration| {
        let rate = |from: u64, to: u64| (to - from) as f64 / time.as_secs_f64() / 100.0;
        format!("{:.1} packets and {:.0} B", rate(before.0, after.0), rate(before.1, after.1))
    };
    let (before, begin) = (measure(&world), world.now);
    world.run(secs(30));
    println!("calm, a member and second: {}", per_member(before, measure(&world), secs(30)));
    let (before, begin_weather) = (measure(&world), world.now);
    // When each was away last, and for how long after that rumours of it may go round.
    let mut absences: Vec<(Instant, Instant, usize)> = Vec::new();
    while world.now.since(begin) < time {
        let (host, left_at) = (world.dice.random_range(0..100), world.now);
        if world.dice.random_bool(0.5) {
            world.kill(host);
            let away = world.time(ms(50), secs(20));
            world.run(away);
            world.start(host, &all);
            absences.push((left_at, world.now + secs(10), host));
        } else {
            let away = world.time(ms(500), secs(8));
            world.pause(host, away);
            absences.push((left_at, world.now + away + secs(10), host));
        }
        world.loss = world.dice.random_range(10_000..50_000);
        let pause = world.time(secs(1), secs(20));
        world.run(pause);
    }
    let took = settle_within(&mut world, secs(30), "views converge");
    let span = world.now.since(begin_weather);
    println!("weather for {span:?}: {}; converged after {took:?}", per_member(before, measure(&world), span));
    let is_excused = |down: &&super::world::FalseDown| {
        let covers = |(from, to, host): &(Instant, Instant, usize)| {
            *host == down.subject && *from <= down.at && down.at < *to
        };
        !absences.iter().any(covers)
    };
    let wrong = world.false_downs.iter().filter(is_excused).count();
    println!("{wrong} false notices of members that were there; {} in all", world.false_downs.len());
    assert_eq!(wrong, 0);
    assert!(world.bytes_max <= pace::DATAGRAM_BYTES_MAX);
}

#[test]
fn a_hundred_in_bad_weather_agree_in_the_end() {
    weather(10, secs(120));
}

#[test]
#[ignore = "a virtual hour"]
fn a_hundred_in_bad_weather_for_an_hour() {
    weather(11, secs(3_600));
}

/// Verdicts on healthy members, and suspicions that they had to refute, in so many minutes with 1 % loss.
fn wrongs(delay: (u64, u64), minutes: u64, round_trip: Duration) -> (usize, u64) {
    let mut world = World::new(11, 15, LAN);
    (world.delay, world.loss) = ((ms(delay.0), ms(delay.1)), 10_000);
    world.start_all();
    let processes = world.hosts.iter_mut().filter_map(|host| host.process.as_mut());
    processes.for_each(|process| process.allow_for(round_trip));
    world.run(secs(minutes * 60));
    let processes = world.hosts.iter().filter_map(|host| host.process.as_ref());
    let refuted = processes.map(|process| u64::from(process.health.incarnation())).sum();
    println!("{delay:?}, allowing for {round_trip:?}: {} down, {refuted} refuted", world.false_downs.len());
    (world.false_downs.len(), refuted)
}

#[test]
fn nobody_who_is_far_away_is_called_down() {
    // An hour of 330 to 430 ms there and back, and one where the answers come too late for every probe of `lan`.
    for (delay, round_trip) in [((165, 215), 371), ((290, 320), 652)] {
        let (down, refuted) = wrongs(delay, 60, ms(round_trip));
        assert!(down == 0 && refuted < 20, "{delay:?}: {down} called down, {refuted} refuted");
    }
    let (_, refuted) = wrongs((290, 320), 10, Duration::ZERO);
    assert!(100 < refuted, "as on one site: {refuted}");
}
