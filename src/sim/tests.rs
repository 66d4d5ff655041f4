//! The swarm at every build: the same seed is the same run, some hundred seeds keep every claim, and
//! every planted bug is found.

use super::Bugs;
use super::faults::Mood;
use super::many::run_many;
use super::report::{Summary, story_of};
use super::script;
use super::swarm::{self, Options};
use crate::time::Duration;
use std::num::NonZeroUsize;

fn options(seed: u64, mood: Option<Mood>) -> Options {
    Options {
        seed,
        size: None,
        mood,
        played: None,
        trouble: Duration::from_secs(6),
        is_traced: false,
        bugs: Bugs::default(),
    }
}

#[test]
fn the_same_seed_is_the_same_run_to_the_byte() {
    for mood in Mood::ALL {
        let hash = |seed| swarm::run(&options(seed, Some(mood))).trace_hash;
        assert_eq!(hash(7), hash(7), "{mood:?}");
        assert_ne!(hash(7), hash(8), "{mood:?}");
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let summary = |threads| {
        let mut seeds = Vec::new();
        let threads = NonZeroUsize::new(threads).expect("a number of threads");
        let summary = run_many(&options(300, None), 8, threads, |run| seeds.push((run.seed, run.trace_hash)));
        (summary.text(), seeds)
    };
    let (text, seeds) = summary(1);
    assert!(seeds.iter().map(|(seed, _)| *seed).eq(300..308), "{seeds:?}");
    assert_eq!(summary(3), (text, seeds));
}

/// Runs seeds and complains about the first claim that is not kept.
fn check(mood: Mood, seeds: u64) -> Summary {
    let options = options(1_000, Some(mood));
    let mut stories = String::new();
    let summary = run_many(&options, seeds, NonZeroUsize::MIN, |run| {
        if !run.findings.violations.is_empty() && stories.is_empty() {
            stories = story_of(run, &options);
        }
    });
    assert!(stories.is_empty(), "{stories}");
    summary
}

// Five hundred seeds in all. Each test is a thread of its own.

#[test]
fn calm_clusters_are_fresh_and_orderly() {
    check(Mood::Calm, 40);
    check(Mood::Skewed, 40);
}

#[test]
fn bad_networks_lose_nothing_for_good() {
    check(Mood::Rough, 45);
    check(Mood::Split, 45);
}

#[test]
fn long_ways_lose_nothing() {
    check(Mood::Far, 30);
}

#[test]
fn pauses_lose_nothing_for_good() {
    check(Mood::Pauses, 50);
}

#[test]
fn crashes_take_only_what_all_holders_lost() {
    check(Mood::Crashes, 60);
}

#[test]
fn nodes_that_come_and_go_take_nothing_with_them() {
    check(Mood::Churn, 50);
    let rolling = check(Mood::Rolling, 30);
    assert!(!rolling.text().contains(" 0 leaves"), "{}", rolling.text());
}

#[test]
fn who_was_forgotten_brings_nothing_back() {
    check(Mood::Forget, 50);
    check(Mood::Tombstones, 40);
}

#[test]
fn everything_at_once_is_survived() {
    check(Mood::Everything, 50);
}

/// A planted bug must break a claim within so many seeds, one that is kept without it.
fn check_is_found(bugs: Bugs, mood: Mood, seeds: u64) {
    let breaks = |seed: u64, bugs: Bugs| {
        let run = swarm::run(&Options { bugs, ..options(seed, Some(mood)) });
        !run.findings.violations.is_empty()
    };
    let found = (0..seeds).any(|seed| breaks(seed, bugs) && !breaks(seed, Bugs::default()));
    assert!(found, "{bugs:?} was not found in {seeds} seeds of mood {mood:?}");
}

#[test]
fn bugs_of_requests_are_found() {
    let none = Bugs::default();
    check_is_found(Bugs { no_dedup: true, ..none }, Mood::Calm, 5);
    check_is_found(Bugs { early_ack: true, ..none }, Mood::Calm, 5);
    check_is_found(Bugs { first_miss_wins: true, ..none }, Mood::Rolling, 10);
    check_is_found(Bugs { late_holders_do_not_count: true, ..none }, Mood::Pauses, 60);
    check_is_found(Bugs { old_version_wins: true, ..none }, Mood::Pauses, 20);
}

/// A planted bug must change how a scenario plays.
fn check_changes(bugs: Bugs, scenario: &str) {
    let play = |bugs| script::play_with(scenario, bugs).expect("every scenario can be played");
    assert_ne!(play(bugs), play(Bugs::default()), "{bugs:?}");
}

#[test]
fn bugs_that_show_rarely_are_found_by_their_scenarios() {
    let none = Bugs::default();
    let bug = Bugs { tombstones_without_agreement: true, ..none };
    check_changes(bug, include_str!("scenarios/old_tombstone.txt"));
    check_changes(Bugs { no_bound_per_peer: true, ..none }, include_str!("scenarios/stuck_peer.txt"));
    check_changes(Bugs { hedges_without_budget: true, ..none }, include_str!("scenarios/hedge_budget.txt"));
    check_changes(Bugs { round_trips_do_not_count: true, ..none }, include_str!("scenarios/wan_writes.txt"));
    let bug = Bugs { cut_offs_are_not_noticed: true, ..none };
    check_changes(bug, include_str!("scenarios/cut_off_and_back.txt"));
    check_changes(Bugs { sites_are_ignored: true, ..none }, include_str!("scenarios/site_dies.txt"));
    check_changes(Bugs { hint_keeps_older: true, ..none }, include_str!("scenarios/cut_off_hints.txt"));
    check_changes(Bugs { absence_is_not_awaited: true, ..none }, include_str!("scenarios/removed_twice.txt"));
    check_changes(Bugs { hint_survives_undo: true, ..none }, include_str!("scenarios/out_of_space_hint.txt"));
    check_changes(Bugs { strays_go_unasked: true, ..none }, include_str!("scenarios/stand_ins_keep.txt"));
    check_changes(
        Bugs { answers_wait_for_a_ride: true, ..none },
        include_str!("scenarios/answered_reads.txt"),
    );
    let bug = Bugs { no_recall_after_a_split: true, ..none };
    check_changes(bug, include_str!("scenarios/repeat_after_split.txt"));
}

#[test]
fn bugs_of_repair_are_found() {
    let none = Bugs::default();
    check_is_found(Bugs { unseen_tombstones: true, ..none }, Mood::Churn, 10);
    check_is_found(Bugs { no_dual_write: true, ..none }, Mood::Rolling, 20);
    check_is_found(Bugs { reused_writer: true, ..none }, Mood::Everything, 40);
    check_is_found(Bugs { cut_offs_are_not_noticed: true, ..none }, Mood::Split, 20);
}
