//! How many instructions a request takes: counted, not timed, so that a busy machine says the same as an idle one.
//!
//! The program is runner and workload at once. As the runner it starts itself under callgrind, adds up what
//! was counted and compares it with `tests/instructions.txt`; as the workload ([`WORK_FLAG`]) it does the
//! work. Callgrind writes its counts down, and starts over, whenever [`counted_section`] begins or ends, so that
//! nothing but the work is between the two: not the start, not the cluster that is made for it.
//!
//! Deliberately not here: time, but for `--lookups`, which compares with nothing; caches and branches, which
//! callgrind would have to guess; system calls, which are not instructions of this program.

mod book;
mod callgrind;
mod cluster;
mod lookups;
mod paths;

use std::hint::black_box;
use std::path::PathBuf;
use std::process::ExitCode;

/// The allocator of the `violet` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Makes the program the workload.
const WORK_FLAG: &str = "--work";
/// Only the rows whose names contain what follows; nothing is compared, and callgrind's files are kept.
const WHERE_FLAG: &str = "--where";
/// How many preference lists a core looks up in a second.
const LOOKUPS_FLAG: &str = "--lookups";

/// Does the work that is counted. A function of its own, and never inlined: callgrind knows it by its name. It has
/// something left to do after the work, so that it is still there when the work ends.
#[inline(never)]
fn counted_section(work: &mut dyn FnMut()) -> u32 {
    work();
    black_box(1)
}

/// Which rows of the table are wanted.
#[derive(Clone, Copy)]
pub struct Wanted<'a>(&'a str);

impl Wanted<'_> {
    /// Whether any row that begins like this is wanted.
    fn has(self, group: &str) -> bool {
        self.0.is_empty() || self.0.starts_with(group) || group.starts_with(self.0)
    }

    /// Counts `work`, which does what `row` says `times` times. Sections of one row are added up.
    fn count(self, row: &str, times: usize, mut work: impl FnMut()) {
        if row.contains(self.0) {
            println!("{row}\t{times}");
            counted_section(&mut work);
        } else {
            work();
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let after = |flag: &str| {
        let place = arguments.iter().position(|argument| argument == flag)?;
        Some(arguments.get(place + 1).cloned().unwrap_or_default())
    };
    let result = if let Some(wanted) = after(WORK_FLAG) {
        work(Wanted(&wanted));
        Ok(())
    } else if after(LOOKUPS_FLAG).is_some() {
        lookups::run();
        Ok(())
    } else if let Some(wanted) = after(WHERE_FLAG) {
        show(&wanted)
    } else {
        compare()
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("instructions: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn work(wanted: Wanted<'_>) {
    paths::run(wanted);
    cluster::run(wanted);
}

fn compare() -> Result<(), String> {
    let Some(machine) = callgrind::machine()? else {
        println!("instructions: skipped, because there is no valgrind");
        return Ok(());
    };
    let rows = callgrind::count("", None)?;
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/instructions.txt");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let text = book::write(&machine, &rows);
        std::fs::write(&path, &text).map_err(|error| format!("{}: {error}", path.display()))?;
        print!("{text}");
        return book::check_growth(&rows);
    }
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let comparison = book::compare(&text, &machine, &rows);
    let growth = book::check_growth(&rows);
    print!("{}", comparison.text);
    if comparison.differs {
        return Err("a row differs from tests/instructions.txt, for better or worse; if it is meant to, \
                    run UPDATE_EXPECT=1 make instructions"
            .into());
    }
    growth
}

/// Counts some rows and says where callgrind's files are, for `callgrind_annotate`.
fn show(wanted: &str) -> Result<(), String> {
    if callgrind::machine()?.is_none() {
        return Err("there is no valgrind".into());
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("instructions");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for row in callgrind::count(wanted, Some(&folder))? {
        println!("{:>8} {}", row.each(), row.name);
    }
    println!("callgrind_annotate {}/counts.2 (4, 6 and so on: the next sections)", folder.display());
    Ok(())
}
