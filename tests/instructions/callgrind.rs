//! Runs the workload under callgrind and reads what it wrote.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::WORK_FLAG;

/// One row of the table: what was counted, and how often it was done meanwhile.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was done.
    pub name: String,
    /// How often.
    pub times: u64,
    /// What it took in all.
    pub instructions: u64,
}

impl Row {
    /// What it takes once, rounded.
    pub fn each(&self) -> u64 {
        (self.instructions + self.times / 2) / self.times
    }
}

/// What decides about the counts beside the code: compiler, C library, valgrind, and what the processor that
/// valgrind imitates can do. `None` without valgrind.
pub fn machine() -> Result<Option<String>, String> {
    let Ok(valgrind) = Command::new("valgrind").arg("--version").output() else { return Ok(None) };
    let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let compiler = Command::new(&compiler).arg("-vV").output();
    let compiler = text_of(&compiler.map_err(|error| format!("rustc does not run: {error}"))?);
    let field = |name: &str| {
        let line = compiler.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or("?").trim().to_owned()
    };
    // Systems without this program have another C library, which is a difference, too.
    let library = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let library = library.map_or_else(|_| String::new(), |output| text_of(&output));
    Ok(Some(format!(
        "rustc {}, {}, {}, {}, {}",
        field("release:"),
        field("host:"),
        if library.is_empty() { "no glibc" } else { library.as_str() },
        text_of(&valgrind),
        processor(),
    )))
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[cfg(target_arch = "x86_64")]
fn processor() -> String {
    let has = [
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("pclmulqdq", std::arch::is_x86_feature_detected!("pclmulqdq")),
        ("bmi2", std::arch::is_x86_feature_detected!("bmi2")),
    ];
    let names: Vec<&str> = has.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
    names.join(" ")
}

#[cfg(not(target_arch = "x86_64"))]
fn processor() -> String {
    std::env::consts::ARCH.to_owned()
}

/// Counts the rows whose names contain `wanted`, in the order in which the workload does them. Callgrind's files
/// go to `folder`, or nowhere.
pub fn count(wanted: &str, folder: Option<&Path>) -> Result<Vec<Row>, String> {
    let own_folder = tempfile::tempdir().map_err(|error| format!("no directory for counts: {error}"))?;
    let folder = folder.unwrap_or(own_folder.path());
    let counts = folder.join("counts");
    forget_older(folder)?;
    let program = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", counts.display()))
        .args(["--dump-before=*::counted_section", "--dump-after=*::counted_section"])
        .arg(program)
        .args([WORK_FLAG, wanted])
        .output()
        .map_err(|error| format!("valgrind does not run: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("the workload ended with {}:\n{said}", output.status));
    }
    let mut rows: Vec<Row> = Vec::new();
    for (number, line) in (1..).zip(text_of(&output).lines()) {
        // The file before is what came between two sections.
        let file = |number: u32| PathBuf::from(format!("{}.{number}", counts.display()));
        let instructions = total_of(&file(2 * number))?;
        fs::remove_file(file(2 * number - 1))
            .map_err(|error| format!("callgrind wrote too little: {error}"))?;
        let (name, times) = line.split_once('\t').ok_or_else(|| format!("the workload said {line:?}"))?;
        let times: u64 = times.parse().map_err(|error| format!("the workload said {line:?}: {error}"))?;
        match rows.iter_mut().find(|row| row.name == name) {
            Some(row) => {
                row.times += times;
                row.instructions += instructions;
            }
            None => rows.push(Row { name: name.to_owned(), times, instructions }),
        }
    }
    if rows.is_empty() { Err(format!("no row has {wanted:?} in its name")) } else { Ok(rows) }
}

/// Files of an earlier run would be taken for those of this one where it wrote fewer.
fn forget_older(folder: &Path) -> Result<(), String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("counts")) {
            fs::remove_file(&path).map_err(wrong)?;
        }
    }
    Ok(())
}

/// The sum at the end of a file of callgrind's.
fn total_of(path: &Path) -> Result<u64, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let total = text.lines().rev().find_map(|line| line.strip_prefix("totals: "));
    total
        .and_then(|total| total.trim().parse().ok())
        .ok_or_else(|| format!("{} has no line with totals", path.display()))
}
