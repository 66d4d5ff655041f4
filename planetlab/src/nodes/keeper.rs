//! The keeper: the process on a host that is the parent of its node.
//!
//! It leads a session and a process group of its own, raises the limit of open files, starts the node, and writes down
//! who both are ([`PidFile`]) and each line that the node prints, with the time (in seconds since 1970, by the host's
//! clock) and where it came from:
//!
//! ```text
//! 1764561600.123456 out violet: ready on 203.0.113.7:4410, …
//! 1764561700.000001 end signal 9
//! ```
//!
//! The last line of a node's life says how it ended, so that a crash can be read from the log afterwards. The keeper
//! does not start a node anew: what a test kills shall stay dead.

use crate::Failure;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest line of a node that is kept.
const LINE_BYTES_MAX: u64 = 16 * 1024;

/// Where things are in a host's directory.
pub struct Paths {
    /// The node's own directory, in which it runs.
    pub node: PathBuf,
}

impl Paths {
    /// Those of the host's directory.
    pub fn of(dir: &Path) -> Self {
        Self { node: dir.join("node") }
    }

    /// Who runs.
    pub fn pid_file(&self) -> PathBuf {
        self.node.join("node.pid")
    }

    /// What the node said.
    pub fn log(&self) -> PathBuf {
        self.node.join("node.log")
    }

    /// All members.
    pub fn servers(&self) -> PathBuf {
        self.node.join("servers.txt")
    }

    /// The cluster's key.
    pub fn key(&self) -> PathBuf {
        self.node.join("cluster.key")
    }
}

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// When it was started, in the kernel's ticks since the host's start.
    pub start: u64,
}

impl Process {
    /// The process of that number, if there is one that has not ended.
    pub fn find(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name stands in brackets and may hold anything, brackets too; so fields count from the last one.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?;
        let start = fields.nth(18)?.parse().ok()?;
        (state != "Z" && state != "X").then_some(Self { pid, start })
    }

    /// Whether it still runs.
    pub fn is_alive(self) -> bool {
        Self::find(self.pid) == Some(self)
    }
}

/// Who runs on a host: written by the keeper, removed by a stop.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PidFile {
    /// The keeper, whose number is also that of the process group.
    pub keeper: Process,
    /// The node.
    pub node: Process,
    /// The host's start, because ticks begin anew with it.
    pub boot: String,
    /// When the node was started, in seconds since 1970 by the host's clock.
    pub since: f64,
    /// Who started it.
    pub owner: String,
    /// Its release.
    pub release: String,
    /// Where it listens.
    pub listen: String,
}

impl PidFile {
    /// Reads it; none when there is none.
    pub fn read(paths: &Paths) -> Result<Option<Self>, Failure> {
        let path = paths.pid_file();
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{}: {error}", path.display()).into()),
        };
        let read = serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Some(read))
    }

    /// The processes of it that still run.
    pub fn alive(&self) -> Vec<Process> {
        if self.boot != boot() {
            return Vec::new();
        }
        [self.node, self.keeper].into_iter().filter(|process| process.is_alive()).collect()
    }
}

/// Names this start of the host.
pub fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Seconds since 1970 by this machine's clock.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Writes a file whole: beside its place, then renamed, readable for its owner alone.
pub fn write_private(path: &Path, contents: &[u8]) -> Result<(), Failure> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let fail = |error: std::io::Error| format!("{}: {error}", path.display());
    let beside = path.with_extension("new");
    // One that a crash has left may have other permissions.
    drop(std::fs::remove_file(&beside));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside).map_err(fail)?;
    file.write_all(contents).map_err(fail)?;
    std::fs::rename(&beside, path).map_err(fail)?;
    Ok(())
}

/// Runs a node to its end. `arguments` are those of `violet`.
///
/// # Errors
/// One line, when it could not be started; it is in the log as well, because nobody reads the keeper's own output.
pub fn keep(dir: &Path, owner: &str, listen: &str, arguments: &[String]) -> Result<(), Failure> {
    let paths = Paths::of(dir);
    let log = OpenOptions::new().append(true).create(true).open(paths.log());
    let log = Log(Arc::new(Mutex::new(log.map_err(|error| format!("{}: {error}", paths.log().display()))?)));
    let kept = run_node(dir, &paths, owner, listen, arguments, &log);
    if let Err(failure) = &kept {
        log.write("end", format!("not started: {failure}").as_bytes());
    }
    kept
}

fn run_node(
    dir: &Path,
    paths: &Paths,
    owner: &str,
    listen: &str,
    arguments: &[String],
    log: &Log,
) -> Result<(), Failure> {
    nix::unistd::setsid().map_err(|error| format!("setsid: {error}"))?;
    raise_limits();
    // The group is told to end by a signal, and the keeper has to see how the node does.
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let release = std::fs::canonicalize(dir.join("current")).map_err(|error| format!("current: {error}"))?;
    let since = now();
    let mut node = Command::new(release.join("violet"))
        .args(arguments)
        .current_dir(&paths.node)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}", release.join("violet").display()))?;
    let readers = [
        log.follow("out", node.stdout.take().expect("it is piped")),
        log.follow("err", node.stderr.take().expect("it is piped")),
    ];
    let own = i32::try_from(std::process::id()).expect("a process's number is positive and small");
    let child = i32::try_from(node.id()).expect("a process's number is positive and small");
    // A node that has ended already is still there until it is waited for; its start is not asked for then.
    let process = |pid| Process::find(pid).unwrap_or(Process { pid, start: 0 });
    let file = PidFile {
        keeper: process(own),
        node: process(child),
        boot: boot(),
        since,
        owner: owner.to_owned(),
        release: release.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        listen: listen.to_owned(),
    };
    let written = serde_json::to_vec(&file).map_err(Failure::from);
    if let Err(failure) = written.and_then(|text| write_private(&paths.pid_file(), &text)) {
        // A node that nobody could find again must not run.
        drop(node.kill());
        drop(node.wait());
        return Err(failure);
    }
    let status = node.wait()?;
    for reader in readers {
        drop(reader.join());
    }
    log.write("end", ending(status).as_bytes());
    Ok(())
}

/// As many open files as the host allows.
fn raise_limits() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    // Where it cannot be raised the node runs with what there is.
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "of unknown cause".into(),
    }
}

/// The node's log, written by several threads.
#[derive(Clone)]
struct Log(Arc<Mutex<File>>);

impl Log {
    /// Writes one line. When the disk is full it is lost; the node goes on.
    fn write(&self, source: &str, line: &[u8]) {
        let mut text = format!("{:.6} {source} ", now()).into_bytes();
        text.extend(line);
        text.push(b'\n');
        let mut file = self.0.lock().expect("no thread panics while it holds the lock");
        drop(file.write_all(&text));
    }

    fn follow(
        &self,
        source: &'static str,
        stream: impl Read + Send + 'static,
    ) -> std::thread::JoinHandle<()> {
        let log = self.clone();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stream);
            loop {
                let mut line = Vec::new();
                match (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
                    Ok(0) | Err(_) => return,
                    Ok(_) => log.write(source, line.trim_ascii_end()),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_itself_and_not_another_of_the_same_number() {
        let own = Process::find(std::process::id().try_into().unwrap()).unwrap();
        assert!(own.is_alive());
        assert!(!Process { start: own.start + 1, ..own }.is_alive());
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id().try_into().unwrap();
        child.wait().unwrap();
        assert_eq!(Process::find(pid), None);
    }

    #[test]
    fn a_private_file_replaces_what_was_there() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.key");
        std::fs::write(&path, "old").unwrap();
        write_private(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
