//! The emulator as a user has it: the program is started, refused, killed and cleaned up after. Needs root and
//! `/dev/net/tun`, and says so where these are missing.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_violet-testbed");

fn testbed(words: &[&str], directory: &Path) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(words.iter().take_while(|word| **word != "--")).arg("--dir").arg(directory);
    command.args(words.iter().skip_while(|word| **word != "--"));
    command.stdin(Stdio::null()).output().expect("the program starts")
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn may_not() -> bool {
    let probe = tempfile::tempdir().expect("a directory");
    let output = testbed(&["emulate", "--nodes", "1", "--", "true"], probe.path());
    let missing = output.status.code() == Some(2) && error(&output).contains("needs");
    if missing {
        eprintln!("skipped: {}", error(&output).trim());
    }
    missing
}

/// Starts a run whose command tells its own process number and then stays; returns both and the record.
#[expect(clippy::zombie_processes, reason = "the caller waits for it")]
fn start(directory: &Path) -> (Child, i32, Value) {
    let mut child = Command::new(PROGRAM)
        .args(["emulate", "--preset", "global25", "--nodes", "3", "--dir"])
        .arg(directory)
        .args(["--", "sh", "-c", "echo $$; exec sleep 600"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("is piped")).read_line(&mut line).expect("the command speaks");
    let pid = line.trim().parse().expect("a process number");
    // The record names the command a moment after the command speaks.
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let text = fs::read_to_string(directory.join("made.json")).expect("the record is there");
        let record: Value = serde_json::from_str(&text).expect("a record");
        if record["command"]["pid"] == pid {
            return (child, pid, record);
        }
        assert!(Instant::now() < until, "the command is not recorded: {text}");
        std::thread::yield_now();
    }
}

fn names(record: &Value) -> Vec<PathBuf> {
    let namespaces = record["namespaces"].as_array().expect("a list");
    let path = |namespace: &Value| Path::new("/run/netns").join(namespace["name"].as_str().expect("a name"));
    namespaces.iter().map(path).collect()
}

#[test]
fn what_a_killed_run_leaves_is_removed_by_its_record_and_a_second_run_is_refused_by_name() {
    if may_not() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (mut child, pid, record) = start(directory.path());
    let (run, names) = (record["run"].as_str().expect("a name").to_owned(), names(&record));
    assert!(names.len() == 4 && names.iter().all(|name| name.exists()), "{names:?}");

    let second = testbed(&["emulate", "--", "true"], directory.path());
    assert_eq!(second.status.code(), Some(2));
    assert!(error(&second).contains(&format!("run {run} is there")), "{}", error(&second));
    let early = testbed(&["clean"], directory.path());
    assert_eq!(early.status.code(), Some(2));
    assert!(names.iter().all(|name| name.exists()), "clean touched a run that lives");

    child.kill().expect("killed");
    child.wait().expect("dead");
    let third = testbed(&["emulate", "--", "true"], directory.path());
    assert!(
        third.status.code() == Some(2) && error(&third).contains("violet-testbed clean"),
        "{}",
        error(&third)
    );
    let clean = testbed(&["clean"], directory.path());
    assert_eq!(clean.status.code(), Some(0), "{}", error(&clean));
    assert!(!names.iter().any(|name| name.exists()), "left behind: {names:?}");
    let left = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    assert!(!left.starts_with("sleep"), "the command still runs: {left}");
    assert!(!directory.path().join("made.json").exists() && !directory.path().join("control").exists());
    assert_eq!(testbed(&["emulate", "--", "true"], directory.path()).status.code(), Some(0));
}

#[test]
fn a_run_that_is_asked_to_end_tidies_up_and_a_commands_status_is_the_runs() {
    if may_not() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let failed = testbed(&["emulate", "--", "sh", "-c", "exit 7"], directory.path());
    assert_eq!(failed.status.code(), Some(7), "{}", error(&failed));
    let (mut child, _, record) = start(directory.path());
    let asked = Command::new("kill").arg(child.id().to_string()).status().expect("kill is everywhere");
    assert!(asked.success() && child.wait().expect("ends").code().is_some());
    assert!(!names(&record).iter().any(|name| name.exists()));
    assert!(!directory.path().join("made.json").exists());
}

#[test]
fn bad_input_is_one_line_that_says_what_would_be_right() {
    if may_not() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let cases: [(&[&str], &str); 6] = [
        (&["emulate", "--preset", "moon"], "global25"),
        (&["emulate", "--preset", "global25", "--sites", "mars"], "westeurope"),
        (&["emulate", "--nodes", "0"], "nodes"),
        (&["emulate", "/nonexistent.toml"], "/nonexistent.toml"),
        (&["emulate", "--run", "A/B"], "--run"),
        (&["control", "stats"], "emulate"),
    ];
    for (words, right) in cases {
        let output = testbed(words, directory.path());
        let error = error(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        assert!(error.lines().count() == 1 && error.contains(right), "{words:?}: {error}");
    }
}
