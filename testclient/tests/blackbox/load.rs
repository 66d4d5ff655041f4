//! The `load` command against servers that are slow, lossy or wrong in known ways: what it says must be what they do.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{fs, thread};

use serde_json::Value;

use crate::reference::{Defect, Reference};
use crate::{said, testclient};

/// A load, its text, its exit code and its result file.
struct Loaded {
    text: String,
    code: Option<i32>,
    result: Value,
}

impl Loaded {
    fn new(cluster: &Reference, name: &str, arguments: &str) -> Self {
        let path = result_path(name);
        let line = format!("load --servers {} --json {} {arguments}", cluster.list(), path.display());
        let output = testclient(&line);
        let result = read_result(&path, &said(&output));
        Self { text: said(&output), code: output.status.code(), result }
    }

    /// A percentile of an operation as its line tells it, in milliseconds.
    fn percentile(&self, operation: &str, name: &str) -> f64 {
        let line = self.text.lines().rfind(|line| line.starts_with(&format!("  {operation}: ")));
        let mut words = line.expect(&self.text).split_whitespace().skip_while(|word| *word != name);
        words.nth(1).unwrap().parse().unwrap()
    }

    /// The phases but for that in which the keys are stored.
    fn phases(&self) -> Vec<&Value> {
        let phases = self.result["phases"].as_array().unwrap().iter();
        phases.filter(|phase| phase["name"] != "fill").collect()
    }

    fn count(&self, name: &str) -> u64 {
        self.phases().iter().map(|phase| phase["counts"][name].as_u64().unwrap()).sum()
    }
}

fn result_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("violet-load-{name}-{}.json", std::process::id()))
}

/// Reads a result file, and sees whether all counts in it add up.
fn read_result(path: &PathBuf, said: &str) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{error}: {said}"));
    fs::remove_file(path).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    for phase in result["phases"].as_array().unwrap() {
        let operations = phase["operations"].as_object().unwrap().values();
        let servers = phase["by_server"].as_array().unwrap().iter();
        for holder in operations.chain(servers).chain([phase]) {
            let count = |name: &str| holder["counts"][name].as_u64().unwrap();
            assert_eq!(count("offered"), count("sent") + count("skipped"), "{said}");
            assert_eq!(count("sent"), count("answered") + count("timed_out"), "{said}");
            assert_eq!(count("answered"), count("good") + count("refused") + count("wrong"), "{said}");
        }
        let answered: u64 = phase["seconds"]
            .as_array()
            .unwrap()
            .iter()
            .map(|second| second["answered"].as_u64().unwrap())
            .sum();
        assert_eq!(answered, phase["counts"]["answered"].as_u64().unwrap(), "the seconds add up: {said}");
    }
    result
}

fn is_near(seen: f64, expected: f64) -> bool {
    (seen / expected - 1.0).abs() <= 0.1
}

#[test]
fn rate_and_delay_are_those_of_the_server() {
    let cluster = Reference::start(2, Defect::Delays);
    let loaded = Loaded::new(
        &cluster,
        "delay",
        "--rate 200 --arrivals constant --seconds 3 --warm-up 0.5 --keys 40 --seed 7",
    );
    assert_eq!(loaded.code, Some(0), "{}", loaded.text);
    assert_eq!(loaded.count("offered"), 600, "{}", loaded.text);
    assert_eq!(loaded.count("good"), 600, "{}", loaded.text);
    assert!(is_near(loaded.percentile("get", "p50"), 50.0), "{}", loaded.text);
    assert_eq!(loaded.result["seed"], 7);
    assert_eq!(loaded.result["servers"].as_array().unwrap().len(), 2);
    assert_eq!(loaded.result["incomplete"], Value::Null);
    let phase = loaded.phases()[0];
    assert_eq!((&phase["loop"], &phase["arrivals"]), (&Value::from("open"), &Value::from("constant")));
}

/// The pattern that fools closed loops: one second in ten nothing is answered. A tenth of the requests fall into it,
/// and wait half a second on average.
#[test]
fn a_stall_is_seen_by_an_open_loop_and_not_by_a_closed_one() {
    let cluster = Reference::start(1, Defect::Stalls);
    // Without retries, and few enough for the buffer of the server's socket: nothing but the stall is to be measured.
    let common = "--seconds 20 --warm-up 0 --mix get:100 --no-fill --keys 50 --waits-ms 3000";
    let (open, closed) = thread::scope(|scope| {
        let open = scope.spawn(|| {
            Loaded::new(&cluster, "stall-open", &format!("{common} --rate 100 --arrivals constant"))
        });
        let closed = scope.spawn(|| Loaded::new(&cluster, "stall-closed", &format!("{common} --clients 4")));
        (open.join().unwrap(), closed.join().unwrap())
    });
    assert_eq!((open.code, closed.code), (Some(0), Some(0)), "{}{}", open.text, closed.text);
    assert_eq!(open.count("good"), 2_000, "{}", open.text);
    assert!(is_near(open.percentile("get", "p95"), 500.0), "{}", open.text);
    assert!(is_near(open.percentile("get", "p99"), 900.0), "{}", open.text);
    assert!(closed.percentile("get", "p99") < 100.0, "{}", closed.text);
    let line = closed.text.lines().find(|line| line.starts_with("  get: ")).unwrap();
    assert!(line.contains("closed loop: tails not comparable"), "{line}");
}

#[test]
fn known_loss_is_measured() {
    let cluster = Reference::start(1, Defect::LosesDatagrams);
    let loaded =
        Loaded::new(&cluster, "loss", "--rate 500 --arrivals constant --seconds 3 --warm-up 0 --keys 40");
    assert_eq!(loaded.code, Some(0), "{}", loaded.text);
    let (sent, datagrams) = (loaded.count("sent") as f64, loaded.count("datagrams") as f64);
    assert!(is_near(1.0 - sent / datagrams, 0.1), "{sent} requests, {datagrams} datagrams: {}", loaded.text);
    assert!(loaded.text.contains("datagrams were sent again"), "{}", loaded.text);
    // The wait for the retry is in the latency, and not in that of the last try.
    assert!(99.0 < loaded.percentile("get", "p99"), "{}", loaded.text);
}

#[test]
fn every_planted_fault_is_found_and_named() {
    let mix = "--mix get:60,put:40";
    let check = |(defect, arguments, expected, is_wrong): (Defect, &str, &str, bool), name: &str| {
        let cluster = Reference::start(2, defect);
        let arguments = format!("--rate 400 --seconds 1 --warm-up 0 --keys 40 {arguments}");
        let loaded = Loaded::new(&cluster, name, &arguments);
        assert!(loaded.text.contains(expected), "{defect:?}: {}", loaded.text);
        assert_eq!(loaded.code, Some(i32::from(is_wrong)), "{defect:?}: {}", loaded.text);
        assert_eq!(0 < loaded.count("wrong"), is_wrong, "{defect:?}: {}", loaded.text);
        let checks = loaded.result["checks"].as_array().unwrap();
        assert_eq!(checks.iter().any(|check| check["passed"] == false), is_wrong, "{defect:?}: {checks:?}");
    };
    let cases = [
        (Defect::None, mix, "40 of 40 keys are surely stored", false),
        (Defect::WrongValue, mix, "wrong value", true),
        (Defect::MissesKeys, mix, "missing although stored", true),
        (Defect::StaleValue, mix, "stale: older than acknowledged", true),
        (Defect::StaleValue, "--format raw", "stale: older than acknowledged", true),
        (Defect::KeepsRemoved, "--mix get:60,put:20,remove:20", "back after removal", true),
        (Defect::RepliesTwice, mix, "surplus replies to requests sent once: sent twice", false),
        (Defect::RepliesFromElsewhere, mix, "an address not on the list (one from 127.0.0.1:", false),
        (Defect::AnswersOverload, mix, "answers: overloaded, asks to wait up to 1 ms", false),
        (Defect::OmitsZeroCode, mix, "replies leave errCode out", false),
    ];
    // At one time, since each is mostly waiting.
    thread::scope(|scope| {
        for (number, case) in cases.into_iter().enumerate() {
            scope.spawn(move || check(case, &format!("fault-{number}")));
        }
    });
}

/// A reply under the id of the request before leaves one request without an answer, and gives the other a second one.
#[test]
fn replies_under_the_wrong_id_are_named() {
    let cluster = Reference::start(1, Defect::IdsMixedUp);
    let loaded = Loaded::new(&cluster, "ids", "--rate 400 --seconds 1 --warm-up 0 --keys 40 --mix get:100");
    assert!(loaded.text.contains("with another request's id"), "{}", loaded.text);
    assert!(loaded.text.contains("datagrams were sent again"), "{}", loaded.text);
    assert!(0 < loaded.count("duplicates"), "{}", loaded.text);
}

#[test]
fn a_rate_that_is_not_reached_is_said_beside_every_percentile() {
    let cluster = Reference::start(1, Defect::IsSlow);
    let loaded = Loaded::new(
        &cluster,
        "unreached",
        "--rate 3000 --seconds 1 --warm-up 0 --mix get:100 --no-fill --keys 40 --waits-ms 50 --in-flight-max 1000",
    );
    let lines: Vec<&str> =
        loaded.text.lines().filter(|line| line.contains("p99 ") && !line.contains("generator")).collect();
    assert!(!lines.is_empty(), "{}", loaded.text);
    assert!(lines.iter().all(|line| line.contains("RATE NOT REACHED")), "{}", loaded.text);
    assert!(loaded.text.contains("requests were never answered"), "{}", loaded.text);
}

#[test]
fn requests_beyond_the_limit_are_skipped_and_the_figures_called_the_generators() {
    let cluster = Reference::start(1, Defect::Delays);
    let loaded = Loaded::new(
        &cluster,
        "skipped",
        "--rate 1000 --seconds 1 --warm-up 0 --mix get:100 --no-fill --keys 40 --in-flight-max 10",
    );
    assert!(500 < loaded.count("skipped"), "{}", loaded.text);
    assert!(loaded.text.contains("GENERATOR-LIMITED"), "{}", loaded.text);
    assert!(loaded.text.contains("slots were skipped"), "{}", loaded.text);
}

#[test]
fn saturation_and_the_overwhelmed_point_are_found() {
    let cluster = Reference::start(1, Defect::IsSlow);
    let loaded = Loaded::new(
        &cluster,
        "search",
        "--search --search-from 300 --seconds 1 --warm-up 0 --mix get:100 --no-fill --keys 40 --waits-ms 100",
    );
    assert_eq!(loaded.code, Some(0), "{}", loaded.text);
    let line = loaded
        .text
        .lines()
        .find(|line| line.starts_with("saturation: largest goodput "))
        .expect(&loaded.text);
    assert!(line.contains("overwhelmed at "), "{line}");
    let phases = loaded.phases();
    assert!(2 < phases.len() && phases.iter().all(|phase| phase["group"] == "search"), "{}", loaded.text);
    let rates: Vec<f64> = phases.iter().map(|phase| phase["rate"].as_f64().unwrap()).collect();
    assert!(rates.is_sorted(), "{rates:?}");
}

#[test]
fn keys_that_were_never_stored_are_not_found_and_all_others_are() {
    let cluster = Reference::start(2, Defect::None);
    let loaded = Loaded::new(
        &cluster,
        "absent",
        "--clients 300 --threads 2 --seconds 0.5 --warm-up 0 --keys 500 --key-order absent --mix get:100 --read-all \
         --value-bytes lognormal:300:1.0 --format raw",
    );
    assert_eq!(loaded.code, Some(0), "{}", loaded.text);
    assert!(loaded.text.contains("500 of 500 keys are surely stored"), "{}", loaded.text);
    let phases = loaded.phases();
    assert_eq!(phases.len(), 2);
    assert_eq!(phases[1]["counts"]["good"], 500);
    let absent = &phases[0]["operations"]["get"];
    assert_eq!(absent["codes"].as_object().unwrap().keys().collect::<Vec<_>>(), ["1"]);
    assert_eq!(phases[0]["generator"]["threads"], 2);
}

#[test]
fn an_interrupted_load_still_writes_its_result() {
    let cluster = Reference::start(1, Defect::None);
    let path = result_path("interrupted");
    let mut child = Command::new(env!("CARGO_BIN_EXE_violet-testclient"))
        .args(["load", "--rate", "200", "--seconds", "60", "--warm-up", "0", "--keys", "20", "--servers"])
        .args([&cluster.list(), "--json"])
        .arg(&path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("surely stored") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0);
    }
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{rest}");
    let result = read_result(&path, &rest);
    assert_eq!(result["incomplete"], "interrupted by a signal");
    assert!(rest.contains("incomplete"), "{rest}");
    assert!(result["phases"][1]["window_seconds"].as_f64().unwrap() < 30.0);
}

#[test]
fn what_cannot_be_loaded_is_one_line() {
    for (arguments, expected) in [
        ("--rate 0", "rate 0"),
        ("--clients 0", "clients 0"),
        ("--seconds 0", "seconds 0"),
        ("--keys 0", "keys 0"),
        ("--threads 65", "threads 65"),
        ("--key-order absent", "mix get:100"),
        ("--value-bytes file:/nowhere/sizes", "/nowhere/sizes"),
        ("--value-bytes 10001", "up to 10000 bytes"),
        ("--value-text /nowhere/text", "/nowhere/text"),
        (
            "",
            "the only server does not answer in the Protobuf format: 127.0.0.1:9; start them, or correct the list",
        ),
    ] {
        let output = testclient(&format!("load --servers 127.0.0.1:9 {arguments}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {}", said(&output));
        assert!(stderr.contains(expected) && stderr.lines().count() == 1, "{arguments}: {stderr}");
    }
}
