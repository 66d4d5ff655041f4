//! The `flame` command's own manners; what it measures is not for a test.

use std::fs;
use std::path::PathBuf;

use crate::{said, testclient};

fn ends_with(arguments: &str, code: i32, expected: &str) {
    let output = testclient(arguments);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments}: {said}");
    assert!(said.contains(expected), "{arguments}: {said}");
    if code == 2 {
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(stderr.lines().count(), 1, "{arguments}: {stderr}");
    }
}

/// A folder for one test, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("violet-flame-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A profile of the given stacks, in which a request takes `us` microseconds.
    fn profile(&self, name: &str, rate: u32, us: f64, stacks: &str) {
        let folder = self.0.join(name);
        fs::create_dir_all(&folder).unwrap();
        let meta = format!(
            r#"{{"name": "{name}", "config": null, "commit": "c", "settings": ["x=y"],
            "load": {{"nodes": 3, "entry": "first", "rate_offered": {rate}, "sockets": 1, "keys": 1, "value_bytes": 1,
                      "gets_percent": 50, "warm_up_seconds": 1, "seconds": 1, "rounds": 1}},
            "result": {{"rate_reached": {rate}, "offered_was_reached": true, "cpu_us_per_request": {us}, "cpu_us_rounds": [{us}], "p50_ms": 1,
                        "p99_ms": 2, "p999_ms": 3, "max_ms": 4, "generator_late_p99_ms": 0.1, "lost": 0, "refused": 0}},
            "sampling": {{"sampler": "perf", "note": null, "hz": 99, "samples": 10, "unknown_share": 0, "groups": []}},
            "machine": {{"processor": "p", "cores": 2, "kernel": "k", "load_average_before": 0.5}}}}"#
        );
        fs::write(folder.join("meta.json"), meta).unwrap();
        fs::write(folder.join("stacks.folded"), stacks).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left in a directory for temporary files harms nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn episodes_are_listed() {
    ends_with("flame list", 0, "replication-per-request");
}

#[test]
fn wrong_usage_is_one_line_and_exit_code_2() {
    ends_with("flame take --violet /bin/false", 2, "name either an episode or a configuration");
    ends_with("flame take --violet /bin/false --episode 1 --config batch-1", 2, "name either");
    ends_with("flame take --violet /bin/false --episode 99", 2, "there is no episode '99'; there are 1 to ");
    ends_with(
        "flame take --violet /bin/false --config fast",
        2,
        "there is no configuration 'fast'; there are ",
    );
    ends_with(
        "flame take --violet /bin/false --config batch-1 --name ../x",
        2,
        "must be the name of a folder",
    );
    ends_with("flame take --violet /no/violet --config batch-1", 2, "cannot start /no/violet");
    ends_with("flame take --violet /bin/false --config batch-1", 2, "the cluster ended before it was ready");
    ends_with("flame diff --before /no/a --after /no/b", 2, "cannot read /no/a/meta.json");
    ends_with("flame index --out /no/folder", 2, "/no/folder: there is no episode in it");
}

#[test]
fn profiles_that_cannot_be_compared_are_refused_with_the_reason() {
    let folder = Folder::new("refused");
    folder.profile("a", 100, 20.0, "v-listener;x 10\n");
    folder.profile("broken", 100, 20.0, "v-listener;x ten\n");
    folder.profile("other", 200, 20.0, "v-listener;x 10\n");
    let diff = |after: &str, expected: &str| {
        let out = folder.0.display();
        ends_with(&format!("flame diff --out {out} --before a --after {after}"), 2, expected);
    };
    diff("broken", "stacks.folded: line 1 is no stack with a count");
    diff("other", "a and other were taken under different loads, so they cannot be compared");
    fs::write(folder.0.join("other/meta.json"), "{}").unwrap();
    diff("other", "meta.json: missing field");
}

#[test]
fn a_comparison_is_in_shares_and_in_time_per_request() {
    let folder = Folder::new("diff");
    folder.profile(
        "a",
        100,
        20.0,
        "v-worker-1;server::Runner::run_batch;socket 6\nv-worker-1;x;sendmmsg 4\n",
    );
    folder.profile("b", 100, 8.0, "v-worker-1;x;sendmmsg 5\n");
    let out = folder.0.display();
    let output = testclient(&format!("flame diff --out {out} --before a --after b"));
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let row = |start: &str| {
        let line =
            said.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {said}"));
        line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("| socket set-up "), "socket set-up 60.0 0.0 -60.0 12.00 0.00 -12.00");
    // Its share has more than doubled, and yet it costs the same.
    assert_eq!(row("| send "), "send 40.0 100.0 +60.0 8.00 8.00 +0.00");
    assert_eq!(row("| `socket` "), "`socket` 60.0 0.0 -60.0 12.00 0.00 -12.00");
    for file in ["table.md", "before-to-after.svg", "after-to-before.svg"] {
        let text = fs::read_to_string(folder.0.join("a-to-b").join(file)).unwrap();
        assert!(text.contains("socket") || file.starts_with("before"), "{file}");
    }
}
