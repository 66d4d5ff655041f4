//! The `endure` command's own manners; what it finds is tested where it looks.

use crate::{said, testclient};

fn ends_with(arguments: &str, code: i32, expected: &str) {
    let output = testclient(arguments);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments}: {said}");
    assert!(said.contains(expected), "{arguments}: {said}");
}

#[test]
fn scenarios_are_listed() {
    ends_with("endure --list", 0, "restart-empty");
}

#[test]
fn wrong_usage_is_told_apart_from_broken_claims() {
    ends_with("endure", 2, "name a scenario, or all");
    ends_with("endure flood --violet /bin/false", 2, "there is no scenario \"flood\"");
    ends_with("endure suspend", 2, "name the violet binary with --violet");
    ends_with("endure suspend --violet /no/such/violet", 2, "/no/such/violet");
    ends_with("endure suspend --violet /bin/false --port 65530 --nodes 20", 2, "port 65530 + 6");
}

#[test]
fn nodes_that_do_not_start_decide_nothing() {
    let dir = std::env::temp_dir().join(format!("violet-endure-{}", std::process::id()));
    let line = format!("endure suspend --violet /bin/false --nodes 3 --port 28410 --dir {}", dir.display());
    ends_with(&line, 1, "died by itself");
    ends_with(&line, 1, "UNDECIDED");
    std::fs::remove_dir_all(dir).unwrap();
}
