//! Results for tests, made from a seed: a grid, a search for the knee, a run with faults, a scaling study.
//!
//! The same always, so that what is drawn of them can be compared. Latencies are log-normal, rates wobble by a
//! few percent from repeat to repeat. Deliberately not here: any real measurement.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::result::{
    Arrivals, Check, Cost, Counts, Event, Generator, LAYOUT, Latency, Loop, Machine, Operation, Phase,
    RunResult, Second, ServerShare,
};

/// How many different latencies stand for all of a histogram.
const DRAWS: u64 = 2_000;

/// Draws from a seed.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Nearly normal: twelve even draws.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next()).sum::<f64>() - 6.0
    }
}

/// What a phase is made from.
struct Recipe<'a> {
    name: &'a str,
    group: &'a str,
    at: f64,
    seconds: u64,
    timing: Loop,
    servers: usize,
    /// Most answers a second; an open loop that asks more has time-outs.
    capacity: f64,
    median_ms: f64,
    sigma: f64,
    /// Times `median_ms` for one server.
    bad_server: Option<(usize, f64)>,
    /// Seconds in which nothing is answered.
    stall: Option<(u64, u64)>,
    seed: u64,
}

fn open(rate: f64) -> Loop {
    Loop::Open { rate, arrivals: Arrivals::Poisson }
}

fn latency(draw: &mut Draw, median_ms: f64, sigma: f64, count: u64) -> Latency {
    let mut latency = Latency::new();
    let draws = count.min(DRAWS);
    for index in 0..draws {
        let ms = median_ms * (sigma * draw.normal()).exp();
        let each = count / draws + u64::from(index < count % draws);
        latency.0.record_n(Duration::from_secs_f64(ms / 1e3).as_nanos() as u64, each).unwrap();
    }
    latency
}

fn counts(offered: u64, answered: u64, refused: u64) -> Counts {
    Counts {
        offered,
        sent: offered,
        answered,
        good: answered - refused,
        refused,
        timed_out: offered - answered,
        datagrams: offered + 3 * (offered - answered),
        value_bytes: 500 * answered,
        ..Counts::default()
    }
}

fn seconds(recipe: &Recipe, draw: &mut Draw, offered: f64, answered: f64) -> Vec<Second> {
    let second = |at: u64| {
        let is_stalled = recipe.stall.is_some_and(|(from, to)| (from..to).contains(&at));
        let is_after = recipe.stall.is_some_and(|(_, to)| at == to);
        let factor = if is_stalled { 0.12 } else { 1.0 } * (1.0 + 0.02 * draw.normal());
        let good = (answered * factor) as u64;
        let slow = if is_stalled || is_after { 40.0 } else { 1.0 + 0.1 * draw.next() };
        Second {
            at,
            offered: offered as u64,
            answered: good,
            good: good - if is_stalled { good / 9 } else { 0 },
            timed_out: if is_stalled { offered as u64 / 3 } else { 0 },
            wrong: 0,
            p50_ms: recipe.median_ms * (1.0 + 0.05 * draw.normal()) * slow.min(8.0),
            p99_ms: recipe.median_ms * (2.3 * recipe.sigma).exp() * slow,
            max_ms: recipe.median_ms * (3.5 * recipe.sigma).exp() * slow,
        }
    };
    (0..recipe.seconds).map(second).collect()
}

fn operation(recipe: &Recipe, draw: &mut Draw, offered: u64, answered: u64, slower: f64) -> Operation {
    let median = recipe.median_ms * slower;
    let refused = if answered < offered { answered / 50 } else { 0 };
    let (code_ok, code_overload) = (0, 3);
    Operation {
        counts: counts(offered, answered, refused),
        codes: [(code_ok, answered - refused), (code_overload, refused)]
            .into_iter()
            .filter(|code| 0 < code.1)
            .collect(),
        corrected: latency(draw, median, recipe.sigma * 1.2, answered),
        raw: latency(draw, median * 0.95, recipe.sigma, answered),
        last_try: latency(draw, median * 0.9, recipe.sigma * 0.8, answered),
    }
}

fn phase(recipe: &Recipe) -> Phase {
    let mut draw = Draw(recipe.seed.wrapping_mul(0x9e37_79b9) + 1);
    let wobble = 1.0 + 0.01 * draw.normal();
    let capacity = recipe.capacity * wobble;
    let (offered_rate, answered_rate) = match recipe.timing {
        Loop::Open { rate, .. } if rate <= capacity => (rate, rate),
        // Beyond it, work is lost on what nobody waits for any more.
        Loop::Open { rate, .. } => (rate, capacity * (1.0 - 0.25 * (rate / capacity - 1.0))),
        Loop::Closed { .. } => (capacity, capacity),
    };
    let window = recipe.seconds as f64;
    let share = |rate: f64, part: f64| (rate * window * part) as u64;
    let put = operation(recipe, &mut draw, share(offered_rate, 0.2), share(answered_rate, 0.2), 1.4);
    let get = operation(recipe, &mut draw, share(offered_rate, 0.8), share(answered_rate, 0.8), 1.0);
    let mut total = put.counts;
    total.add(&get.counts);
    let by_server = (0..recipe.servers).map(|index| {
        let slower = recipe.bad_server.filter(|(bad, _)| *bad == index).map_or(1.0, |(_, times)| times);
        let part = 1.0 / recipe.servers as f64;
        let of = |count: u64| (count as f64 * part) as u64;
        ServerShare {
            server: server(index),
            counts: counts(of(total.offered), of(total.answered), of(total.refused)),
            latency: latency(&mut draw, recipe.median_ms * slower, recipe.sigma, of(total.answered)),
        }
    });
    let by_server = by_server.collect();
    let is_limited = 2.0 * capacity < offered_rate;
    Phase {
        name: recipe.name.to_owned(),
        group: recipe.group.to_owned(),
        at_seconds: recipe.at,
        window_seconds: window,
        format: "protobuf".to_owned(),
        timing: recipe.timing,
        servers: recipe.servers,
        counts: total,
        operations: BTreeMap::from([("get".to_owned(), get), ("put".to_owned(), put)]),
        seconds: seconds(recipe, &mut draw, offered_rate, answered_rate),
        by_server,
        generator: Generator {
            processor_share: Some(0.4),
            threads: 1,
            lateness_p50_ms: 0.02,
            lateness_p99_ms: 0.2,
            lateness_max_ms: if is_limited { 240.0 } else { 1.2 },
            receive_buffer_bytes: 8 << 20,
            limited: is_limited.then(|| "99 of 100 requests left up to 31 ms late".to_owned()),
        },
        cost: Some(Cost {
            processor_seconds: total.good as f64 * (20.0 + 2.0 * recipe.servers as f64) / 1e6 * wobble,
            resident_bytes: 90_000_000 * recipe.servers as u64,
            datagrams_sent: Some(total.answered * 3),
            bytes_sent: Some(total.answered * 900),
            retransmissions: Some(total.answered / 5_000),
        }),
    }
}

fn server(index: usize) -> String {
    format!("127.0.0.1:{}", 4_410 + index)
}

fn result(name: &str, phases: Vec<Phase>) -> RunResult {
    let servers = phases.iter().map(|phase| phase.servers).max().unwrap_or(0);
    let settings =
        [("format", "protobuf"), ("keys", "100000"), ("value-bytes", "1..1000"), ("mix", "get=80,put=20")];
    RunResult {
        layout: LAYOUT,
        name: name.to_owned(),
        version: "0.1.0".to_owned(),
        arguments: vec!["run".to_owned(), name.to_owned()],
        started_unix_seconds: 1_796_083_199,
        seed: 42,
        settings: settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        servers: (0..servers).map(server).collect(),
        machines: vec![Machine {
            host: "bench-1".to_owned(),
            processor: "A processor <4 GHz> & more".to_owned(),
            processors: 2,
            system: "Linux 6.1".to_owned(),
            load_average_before: Some(0.4),
            load_average_after: Some(1.9),
            steal_share: Some(0.012),
        }],
        phases,
        events: Vec::new(),
        checks: Vec::new(),
        incomplete: None,
    }
}

/// Five cells of the grid, three times each.
pub fn grid() -> RunResult {
    let mut phases = Vec::new();
    for repeat in 0..3 {
        for (index, (cell, clients, servers, capacity)) in [
            ("S1", 1, 5, 9_100.0),
            ("S16", 16, 5, 31_000.0),
            ("R1", 1, 5, 8_800.0),
            ("R16", 16, 5, 33_000.0),
            ("R64", 64, 5, 36_500.0),
        ]
        .into_iter()
        .enumerate()
        {
            let place = repeat * 5 + index;
            phases.push(phase(&Recipe {
                name: cell,
                group: cell,
                at: place as f64 * 6.0,
                seconds: 5,
                timing: Loop::Closed { clients },
                servers,
                capacity,
                median_ms: clients as f64 / capacity * 1e3 * 0.9,
                sigma: 0.35,
                bad_server: None,
                stall: None,
                seed: place as u64,
            }));
        }
    }
    let mut grid = result("grade-2015", phases);
    grid.checks.push(check("values come back as they were written", true, "1,000 keys"));
    grid
}

/// One cell with many repeats; `speed` of one is that of the grid.
pub fn repeats(count: usize, speed: f64, seed: u64) -> RunResult {
    let phases = (0..count).map(|repeat| {
        let capacity = 33_000.0 * speed;
        phase(&Recipe {
            name: "R16",
            group: "R16",
            at: repeat as f64 * 6.0,
            seconds: 5,
            timing: Loop::Closed { clients: 16 },
            servers: 5,
            capacity,
            median_ms: 16.0 / capacity * 1e3 * 0.9,
            sigma: 0.35,
            bad_server: None,
            stall: None,
            seed: 700 + seed + repeat as u64,
        })
    });
    result("repeats", phases.collect())
}

/// One group of rates up to beyond what the servers can.
pub fn scan() -> RunResult {
    let rates = [5e3, 1e4, 2e4, 3e4, 4.3e4, 5e4, 6e4, 9e4];
    let phases = rates.into_iter().enumerate().map(|(index, rate)| {
        phase(&Recipe {
            name: &format!("{rate}/s"),
            group: "search",
            at: index as f64 * 11.0,
            seconds: 10,
            timing: open(rate),
            servers: 3,
            capacity: 44_000.0,
            median_ms: 0.25 / (1.0 - (rate / 46_000.0_f64).min(0.985)),
            sigma: 0.5,
            bad_server: None,
            stall: None,
            seed: 100 + index as u64,
        })
    });
    result("saturation", phases.collect())
}

/// One long open loop in which servers are killed and stopped, and one server is bad throughout.
pub fn faults() -> RunResult {
    let phase = phase(&Recipe {
        name: "faults",
        group: "faults",
        at: 2.0,
        seconds: 90,
        timing: open(12_000.0),
        servers: 5,
        capacity: 40_000.0,
        median_ms: 0.8,
        sigma: 0.4,
        bad_server: Some((3, 6.0)),
        stall: Some((30, 36)),
        seed: 7,
    });
    let mut faults = result("faults", vec![phase]);
    let event = |at_seconds: f64, for_seconds: f64, kind: &str, index: usize, outcome: &str| Event {
        at_seconds,
        for_seconds,
        kind: kind.to_owned(),
        servers: vec![server(index)],
        outcome: outcome.to_owned(),
    };
    faults.events = vec![
        event(32.0, 0.0, "kill", 1, "no key lost; back to 90 % of the goodput after 6.0 s"),
        event(50.0, 0.0, "start", 1, "answers again after 0.8 s"),
        event(62.0, 15.0, "suspend", 2, "no key lost, 3 stale reads in the first second after it"),
    ];
    faults.checks = vec![
        check("no key is lost", true, "0 of 100,000"),
        check("no key is stale", false, "3 of 100,000 read an older version"),
        check("no key is resurrected", true, "0 of 1,000 removed"),
        Check {
            name: "servers agree on the members".to_owned(),
            passed: None,
            seen: "the servers do not tell".to_owned(),
        },
    ];
    faults
}

/// One, two, four and eight servers, three times each.
pub fn scaling() -> RunResult {
    let mut phases = Vec::new();
    for (step, servers) in [1, 2, 4, 8].into_iter().enumerate() {
        for repeat in 0..3 {
            let place = (step * 3 + repeat) as u64;
            let name = if servers == 1 { "1 server".to_owned() } else { format!("{servers} servers") };
            phases.push(phase(&Recipe {
                name: &name,
                group: &name,
                at: place as f64 * 11.0,
                seconds: 10,
                timing: Loop::Closed { clients: 64 },
                servers,
                capacity: 30_000.0 + 2_000.0 * step as f64,
                median_ms: 1.5,
                sigma: 0.3,
                bad_server: None,
                stall: None,
                seed: 300 + place,
            }));
        }
    }
    result("scaling", phases)
}

fn check(name: &str, passed: bool, seen: &str) -> Check {
    Check { name: name.to_owned(), passed: Some(passed), seen: seen.to_owned() }
}
