//! What Ctrl-C or SIGTERM leaves behind: nothing.
//!
//! Masters have sessions of their own and would outlive this process by their idle time, their sockets' directories for
//! good. So a thread waits for the signal, tells the masters to end, removes the directories and ends the process. The
//! directories are listed in a static, because a signal is for the whole process, too.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, Once};
use std::thread;

/// Directories of masters' sockets that are in use. A directory is made while the lock is held, so none is missed.
static DIRECTORIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static WATCH: Once = Once::new();

/// Makes a directory for sockets by `make`, and sees to it that it goes if a signal ends the process.
pub fn directory(make: impl FnOnce() -> io::Result<tempfile::TempDir>) -> io::Result<tempfile::TempDir> {
    let mut begun = Ok(());
    WATCH.call_once(|| begun = watch());
    begun?;
    let mut directories = DIRECTORIES.lock().expect("no thread panics while it holds the lock");
    let made = make()?;
    directories.push(made.path().to_owned());
    Ok(made)
}

/// A directory is about to be removed by its owner.
pub fn forget(directory: &Path) {
    let mut directories = DIRECTORIES.lock().expect("no thread panics while it holds the lock");
    directories.retain(|other| other != directory);
}

fn watch() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            // The lock is kept to the end, so that no directory is made any more.
            let directories = DIRECTORIES.lock().expect("no thread panics while it holds the lock");
            for directory in directories.iter() {
                clear(directory);
            }
            // What a shell reports for a process that a signal has ended.
            std::process::exit(128 + signal);
        }
    };
    thread::Builder::new().name("interrupt".into()).spawn(wait)?;
    Ok(())
}

/// Ends the masters of a directory, which is a matter of this machine, and removes it.
fn clear(directory: &Path) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let told = entries.filter_map(|entry| {
        let mut ssh = Command::new("ssh");
        ssh.arg("-o")
            .arg(format!("ControlPath={}", entry.path().display()))
            .args(["-O", "exit", "-F", "none", "master"]);
        ssh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
    });
    // All at once; each takes some milliseconds.
    for mut ssh in told.collect::<Vec<_>>() {
        drop(ssh.wait());
    }
    drop(std::fs::remove_dir_all(directory));
}
