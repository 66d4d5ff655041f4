//! `report` and `compare` on results made from a seed, and the page in a real browser.
//!
//! The browser is any Chromium on the path; without one that test says that it was skipped. It runs without a network.

#[allow(dead_code, reason = "only what makes samples is used here")]
#[path = "../../src/reports/samples.rs"]
mod samples;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

use crate::result::RunResult;
use crate::{said, testclient};

/// A directory of a test, gone at its end.
struct Room(PathBuf);

impl Room {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("violet-reports-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn put(&self, name: &str, result: &RunResult) -> String {
        let path = self.path(name);
        fs::write(&path, serde_json::to_string_pretty(result).unwrap()).unwrap();
        path.display().to_string()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // A test that failed before may have left nothing.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs the program with arguments that hold spaces.
fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_violet-testclient")).args(arguments).output().unwrap()
}

#[test]
fn all_kinds_of_reports_are_written() {
    let room = Room::new("kinds");
    let result = room.put("faults.json", &samples::faults());
    let at = |name: &str| room.path(name).display().to_string();
    let output = testclient(&format!(
        "report {result} --html {} --markdown {} --csv {} --hdr-log {}",
        at("page.html"),
        at("page.md"),
        at("tables"),
        at("log.hlog")
    ));
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.starts_with("faults: Failed. 1 of 4 checks failed: no key is stale"), "{said}");
    assert!(room.read("page.html").starts_with("<!DOCTYPE html>"));
    assert!(room.read("page.md").starts_with("## faults\n\n**Failed.** "));
    for (table, lines) in [("phases", 2), ("seconds", 91), ("operations", 3), ("events", 4)] {
        assert_eq!(room.read(&format!("tables/{table}.csv")).lines().count(), lines, "{table}");
    }
    let log = room.read("log.hlog");
    let intervals = IntervalLogIterator::new(log.as_bytes())
        .filter(|entry| matches!(entry.as_ref().unwrap(), LogEntry::Interval(_)));
    assert_eq!(intervals.count(), 7);
}

#[test]
fn thresholds_decide_the_exit_code() {
    let room = Room::new("thresholds");
    let grid = room.put("grid.json", &samples::grid());
    for (threshold, code, expected) in [
        ("p99 < 20 ms", 0, "| yes "),
        ("get.p99.9 < 50 us in R16", 1, "| NO "),
        ("p99 < 20 ms in R17", 1, "| not known "),
        ("p99 < 20 parsec", 2, "at character 10, \"parsec\" is no unit"),
    ] {
        let output = run(&["report", &grid, "--threshold", "wrong = 0", "--threshold", threshold]);
        assert_eq!(output.status.code(), Some(code), "{threshold}: {}", said(&output));
        assert!(said(&output).contains(expected), "{threshold}: {}", said(&output));
    }
}

#[test]
fn files_that_are_no_results_are_named_in_one_line() {
    let room = Room::new("bad");
    let at = |name: &str, text: &str| {
        fs::write(room.path(name), text).unwrap();
        room.path(name).display().to_string()
    };
    let mut endless = samples::grid();
    endless.phases[0].window_seconds = 0.0;
    for (path, expected) in [
        (room.path("absent.json").display().to_string(), "cannot read"),
        (at("text.json", "no json"), "expected"),
        (at("other.json", "{\"cells\": []}"), "is no result: it has no \"layout\""),
        (at("later.json", "{\"layout\": 99}"), "has layout 99, this program reads layout 1"),
        (at("half.json", "{\"layout\": 1}"), "missing field"),
        (room.put("endless.json", &endless), "phase \"S1\" lasts 0 s"),
    ] {
        let output = testclient(&format!("report {path}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(expected) && stderr.contains(&path), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[test]
fn comparisons_decide_the_exit_code() {
    let room = Room::new("compare");
    let first = room.put("first.json", &samples::repeats(5, 1.0, 0));
    let same = room.put("same.json", &samples::repeats(5, 1.0, 50));
    let slow = room.put("slow.json", &samples::repeats(5, 0.8, 50));
    let single = room.put("single.json", &samples::repeats(1, 1.0, 50));
    for (others, code, expected) in [
        (same.clone(), 0, "no difference can be told"),
        (slow.clone(), 1, "worse, beyond the tolerance"),
        (format!("{same} {slow}"), 1, "worse, beyond the tolerance"),
        (format!("{slow} --tolerance 50"), 0, "| worse"),
        (single, 2, "there is only one repeat, so the spread between runs is unknown"),
    ] {
        let output = testclient(&format!("compare {first} {others}"));
        assert_eq!(output.status.code(), Some(code), "{others}: {}", said(&output));
        assert!(said(&output).contains(expected), "{others}: {}", said(&output));
    }
    let page = room.path("page.html").display().to_string();
    assert_eq!(testclient(&format!("compare {first} {same} --html {page}")).status.code(), Some(0));
    assert!(room.read("page.html").contains("data-plot=\"distribution\""));
    assert_eq!(testclient(&format!("compare {first}")).status.code(), Some(2));
}

/// A browser on the path.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|file| file.is_file())
}

/// The document as the browser has it after its script ran, and what it complained of.
fn opened(browser: &Path, page: &Path, room: &Room) -> (String, String) {
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        // There is no name that it could find and no way out.
        .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9"])
        .args(["--enable-logging=stderr", "--v=0", "--virtual-time-budget=2000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", room.path("profile").display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn a_browser_shows_the_page_and_runs_its_script() {
    let Some(browser) = browser() else {
        eprintln!("SKIPPED: there is no chromium, chromium-browser or google-chrome on the path");
        return;
    };
    let room = Room::new("browser");
    let results = [
        room.put("grid.json", &samples::grid()),
        room.put("scan.json", &samples::scan()),
        room.put("faults.json", &samples::faults()),
        room.put("scaling.json", &samples::scaling()),
    ];
    let page = room.path("page.html");
    let output = testclient(&format!("report {} --html {}", results.join(" "), page.display()));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let (dom, complaints) = opened(&browser, &page, &room);
    // The policy names the script by its digest: had either been wrong, it would not have run.
    assert!(dom.contains("data-script=\"ran\""), "{complaints}");
    let console: Vec<&str> = complaints.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(console.is_empty(), "{console:?}");
    for (plot, count) in
        [("timeline", 8), ("knee", 1), ("grid", 1), ("scaling", 4), ("distribution", 18), ("servers", 17)]
    {
        assert_eq!(dom.matches(&format!("data-plot=\"{plot}\"")).count(), count, "{plot}");
    }
    assert!(dom.contains("role=\"button\""), "the legend can be clicked");
    assert!(!dom.contains("NaN"));
}
