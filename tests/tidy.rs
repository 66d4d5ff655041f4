//! What a compiler does not check: who imports whom, where `unsafe` may be, and what no core file
//! touches.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Which top-level module of `src/` may import which. A new edge needs a reason in its commit.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("config", &["ids"]),
    ("ids", &["time"]),
    ("metrics", &[]),
    ("outbox", &["ids", "metrics", "time"]),
    ("peer", &["ids", "time"]),
    ("time", &[]),
    ("cluster", &["config", "ids", "metrics", "outbox", "peer", "time"]),
    ("storage", &["ids"]),
    ("replica", &["cluster", "ids", "metrics", "outbox", "peer", "storage", "time"]),
    ("coordinator", &["cluster", "config", "ids", "metrics", "outbox", "peer", "replica", "storage", "time"]),
    (
        "node",
        &[
            "cluster",
            "config",
            "coordinator",
            "ids",
            "metrics",
            "outbox",
            "peer",
            "replica",
            "storage",
            "time",
        ],
    ),
    ("control", &["cluster", "config", "ids", "metrics", "node", "outbox", "peer", "replica", "time"]),
    ("sim", &["*"]),
    ("server", &["config", "control", "ids", "metrics", "node", "outbox", "peer", "time"]),
    ("admin", &["metrics", "node"]),
    ("local_cluster", &["config"]),
];

/// Modules that nobody imports but the binary (and test code).
const TOP: &[&str] = &["server", "admin", "sim", "local_cluster"];

/// What only the shell around the core may touch.
const IMPURE: &[&str] = &[
    "std::net::UdpSocket",
    "std::time::Instant",
    "SystemTime",
    "Instant::now",
    "std::thread",
    "std::fs",
    "std::env",
    "rand::rng(",
    "OsRng",
    "SysRng",
    "HashMap::new()",
    "HashSet::new()",
    "eprintln!",
];

/// Runs of the simulator are whole; side by side they are on threads.
const THREADED: &str = "sim/many.rs";

/// The shell.
const SHELL: &[&str] = &["server", "admin", "local_cluster", "main"];

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Every file of `src/` with its top-level module and its code without comments and test modules.
fn sources() -> Vec<(PathBuf, String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let module_of = |path: &Path| {
        let first = path.strip_prefix(&root).expect("inside").components().next().expect("a file");
        first.as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned()
    };
    let code_of = |path: &Path| {
        let text = fs::read_to_string(path).expect("readable");
        let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.collect::<Vec<_>>().join("\n")
    };
    rust_files(&root).into_iter().map(|path| (path.clone(), module_of(&path), code_of(&path))).collect()
}

/// Modules named after `crate::`, grouped imports included.
fn imports(code: &str) -> Vec<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let after = code.split("crate::").skip(1);
    after
        .flat_map(|rest| match rest.strip_prefix('{') {
            Some(group) => {
                group.split('}').next().unwrap_or_default().split(',').map(|one| name(one.trim())).collect()
            }
            None => vec![name(rest)],
        })
        .filter(|module| !module.is_empty())
        .collect()
}

#[test]
fn imports_point_downward() {
    let may: BTreeMap<&str, &[&str]> = MAY_IMPORT.iter().copied().collect();
    let mut wrong = Vec::new();
    for (path, module, code) in sources() {
        if module == "main" || module == "lib" {
            continue;
        }
        let allowed = may.get(module.as_str()).unwrap_or_else(|| panic!("{module} is not in the table"));
        for import in imports(&code) {
            // Planted bugs are named in the core, in test builds only.
            let is_planted = import == "sim" && code.contains("#[cfg(test)]");
            if import != module
                && !allowed.contains(&import.as_str())
                && !allowed.contains(&"*")
                && !is_planted
            {
                wrong.push(format!("{} imports {import}", path.display()));
            }
            if TOP.contains(&import.as_str()) && import != module && !is_planted {
                wrong.push(format!("{} imports {import}, which nobody may", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_core_touches_nothing_outside() {
    let mut wrong = Vec::new();
    for (path, module, code) in sources() {
        if SHELL.contains(&module.as_str()) {
            continue;
        }
        let is_allowed = |impure: &str| impure == "std::thread" && path.ends_with(THREADED);
        let impure = IMPURE.iter().filter(|impure| code.contains(**impure) && !is_allowed(impure));
        for impure in impure {
            wrong.push(format!("{} has {impure}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_is_where_linux_is_called_and_explained() {
    for (path, _, code) in sources() {
        let blocks = code.matches("unsafe {").count();
        if path.ends_with("server/udp.rs") || path.ends_with("server/udp/sending.rs") {
            let text = fs::read_to_string(&path).expect("readable");
            assert!(blocks <= text.matches("// SAFETY:").count(), "every block has its line");
        } else {
            assert_eq!(blocks, 0, "{}", path.display());
        }
    }
}

#[test]
fn files_open_with_what_they_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["src", "client/src", "testclient/src", "planetlab/src", "planetlab/link/src"] {
        for path in rust_files(&root.join(folder)) {
            let text = fs::read_to_string(&path).expect("readable");
            assert!(text.starts_with("//!"), "{}", path.display());
        }
    }
}
