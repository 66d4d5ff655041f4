//! The record of everything that a run makes outside its own process, and its removal by that record alone.
//!
//! The record is a file in the run's directory. It is written before the first thing is made and again as things come
//! to be, so that after `kill -9` it names at least what there is. Names carry the run's own name, namespaces their
//! inode and processes their start time, so that what somebody else made later under the same name or number stays.
//! Devices are listed for the reader only: a TUN device ends with the file that the emulator held open.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// Where namespaces have names, so that `ip netns exec` finds them.
pub const NAMED: &str = "/run/netns";
/// Says which mount at [`NAMED`] was made by a run; there as long as that mount is.
const MARK: &str = "/run/violet-testbed.mount";
const RECORD: &str = "made.json";
/// What a process gets between being asked to end and being killed.
const GRACE: Duration = Duration::from_secs(3);

/// A process, told from a later one with the same number by when it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks since the machine did.
    pub start_ticks: u64,
    /// Whether it leads a process group of its own, which then ends with it.
    pub leads_group: bool,
}

impl Process {
    /// Looks a running process up.
    pub fn of(pid: i32, leads_group: bool) -> Option<Self> {
        Some(Self { pid, start_ticks: start_ticks(pid)?, leads_group })
    }

    /// Whether this very process still runs.
    pub fn is_alive(&self) -> bool {
        start_ticks(self.pid) == Some(self.start_ticks)
    }

    fn signal(&self, signal: Signal) {
        // A group may outlive its leader, but its number is only known to be ours while the leader is.
        let target = Pid::from_raw(self.pid);
        let _ended_meanwhile = if self.leads_group { killpg(target, signal) } else { kill(target, signal) };
    }
}

/// Field 22 of `/proc/PID/stat`, counted behind the name, which may contain anything. A zombie has ended.
fn start_ticks(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// A network namespace with a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// The name under [`NAMED`].
    pub name: String,
    /// The kernel's number for it, once it is there.
    pub inode: Option<u64>,
    /// The device in it.
    pub device: String,
}

impl Namespace {
    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        Path::new(NAMED).join(&self.name)
    }

    /// Its inode, if something is mounted at its place.
    pub fn inode_now(&self) -> Option<u64> {
        let (here, above) = (fs::metadata(self.path()).ok()?, fs::metadata(NAMED).ok()?);
        (here.dev() != above.dev()).then(|| here.ino())
    }
}

/// Everything that one run made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// The run's name, which is in the names of all namespaces.
    pub run: String,
    /// The emulator's process.
    pub emulator: Process,
    /// The boot that this was in; another one left nothing.
    pub boot: String,
    /// Whether the directory of named namespaces was made by this run.
    pub directory_made: bool,
    /// Whether that directory was made a mount of its own by this run, as `ip netns` does it.
    pub directory_mounted: bool,
    /// The namespaces of the nodes and of the client.
    pub namespaces: Vec<Namespace>,
    /// The command that was started in the client's namespace.
    pub command: Option<Process>,
    /// The control socket.
    pub control: PathBuf,
}

impl Made {
    /// Reads the record in a directory; nothing if there is none.
    pub fn read(directory: &Path) -> Result<Option<Self>, String> {
        let path = directory.join(RECORD);
        match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text).map(Some).map_err(|error| {
                format!("{}: {error}; it must be the record that `emulate` wrote", path.display())
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// Writes the record, whole or not at all.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).expect("plain fields have a JSON form");
        let new = directory.join(format!("{RECORD}.new"));
        fs::write(&new, text + "\n")?;
        fs::rename(new, directory.join(RECORD))
    }

    /// Ends what runs in the recorded namespaces and removes everything recorded, the record last.
    /// Returns a line for each thing that was there, and one for each that could not be removed.
    pub fn remove(&self, directory: &Path) -> Removal {
        let mut removal = Removal::default();
        if self.boot == boot() {
            self.end_processes(&mut removal);
            for namespace in &self.namespaces {
                remove_namespace(namespace, &mut removal);
            }
            self.leave_named_directory(&mut removal);
        }
        match fs::remove_file(&self.control) {
            Ok(()) => removal.removed.push(format!("socket {}", self.control.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => removal.failed.push(format!("socket {}: {error}", self.control.display())),
        }
        if removal.failed.is_empty()
            && let Err(error) = fs::remove_file(directory.join(RECORD))
        {
            removal.failed.push(format!("{RECORD}: {error}"));
        }
        removal
    }

    fn end_processes(&self, removal: &mut Removal) {
        let asked = self.processes();
        for process in &asked {
            process.signal(Signal::SIGTERM);
        }
        let until = Instant::now() + GRACE;
        while Instant::now() < until && asked.iter().any(Process::is_alive) {
            thread::sleep(Duration::from_millis(20));
        }
        // Looked up anew: a process may have started others while it was ending.
        let mut rounds = 0;
        while !self.processes().is_empty() && rounds < 50 {
            self.processes().iter().for_each(|process| process.signal(Signal::SIGKILL));
            thread::sleep(Duration::from_millis(20));
            rounds += 1;
        }
        removal.removed.extend(asked.iter().map(|process| format!("process {}", process.pid)));
        removal
            .failed
            .extend(self.processes().iter().map(|process| format!("process {} does not end", process.pid)));
    }

    /// The command, if it runs, and whatever lives in a recorded namespace; never the caller, nor a run's own emulator.
    fn processes(&self) -> BTreeSet<Process> {
        let inodes: BTreeSet<u64> = (self.namespaces.iter())
            .filter_map(|namespace| {
                namespace.inode_now().filter(|now| namespace.inode.is_none_or(|known| known == *now))
            })
            .collect();
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        let mut found: BTreeSet<Process> = self.command.into_iter().filter(Process::is_alive).collect();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let known = found.iter().any(|process| process.pid == pid);
            if pid == own || pid == self.emulator.pid || known {
                continue;
            }
            let inode = fs::metadata(format!("/proc/{pid}/ns/net")).map(|namespace| namespace.ino());
            if inode.is_ok_and(|inode| inodes.contains(&inode)) {
                found.extend(Process::of(pid, false));
            }
        }
        found
    }

    fn leave_named_directory(&self, removal: &mut Removal) {
        let _alone = hold_names();
        let is_empty = || fs::read_dir(NAMED).is_ok_and(|mut entries| entries.next().is_none());
        // Others may have put namespaces there since, and then need it as it is. Of runs side by side the last one leaves,
        // whichever made the mount.
        let is_ours = self.directory_mounted || is_marked();
        if is_ours && is_empty() && is_mount(NAMED) && umount2(NAMED, MntFlags::MNT_DETACH).is_ok() {
            let _not_marked = fs::remove_file(MARK);
            removal.removed.push(format!("mount {NAMED}"));
        }
        if self.directory_made && is_empty() && fs::remove_dir(NAMED).is_ok() {
            removal.removed.push(format!("directory {NAMED}"));
        }
    }
}

fn remove_namespace(namespace: &Namespace, removal: &mut Removal) {
    let path = namespace.path();
    if !path.exists() {
        return;
    }
    let now = namespace.inode_now();
    if let (Some(known), Some(now)) = (namespace.inode, now)
        && known != now
    {
        removal.failed.push(format!("namespace {}: somebody else's by now, left alone", namespace.name));
        return;
    }
    let unmounted = if now.is_some() { umount2(&path, MntFlags::MNT_DETACH) } else { Ok(()) };
    match unmounted.map_err(io::Error::from).and_then(|()| fs::remove_file(&path)) {
        Ok(()) => {
            removal.removed.push(format!("namespace {} with its device {}", namespace.name, namespace.device))
        }
        Err(error) => removal.failed.push(format!("namespace {}: {error}", namespace.name)),
    }
}

/// What a removal did.
#[derive(Debug, Default)]
pub struct Removal {
    /// What was there and is gone.
    pub removed: Vec<String>,
    /// What is still there, and why.
    pub failed: Vec<String>,
}

/// This boot's name.
pub fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Whether a directory is a mount of its own.
pub fn is_mount(directory: &str) -> bool {
    mount_number(directory).is_some()
}

/// The kernel's number for the topmost mount at a directory.
fn mount_number(directory: &str) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut here = mounts.lines().filter(|line| line.split(' ').nth(4) == Some(directory));
    here.next_back()?.split(' ').next().map(str::to_owned)
}

/// Keeps other runs from making or leaving the directory of names for as long as the result lives.
pub fn hold_names() -> io::Result<fs::File> {
    let above = fs::File::open("/run")?;
    above.lock()?;
    Ok(above)
}

/// Notes that the mount at [`NAMED`] is the work of a run, for whichever run ends last.
pub fn mark_mount() -> io::Result<()> {
    fs::write(MARK, mark())
}

fn is_marked() -> bool {
    fs::read_to_string(MARK).is_ok_and(|text| text == mark())
}

fn mark() -> String {
    format!("{} {}\n", boot(), mount_number(NAMED).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(directory: &Path) -> Made {
        Made {
            run: "t".into(),
            emulator: Process { pid: 1, start_ticks: u64::MAX, leads_group: false },
            boot: boot(),
            directory_made: false,
            directory_mounted: false,
            namespaces: vec![Namespace {
                name: "violet-test-of-the-record-n1".into(),
                inode: Some(1),
                device: "wan0".into(),
            }],
            command: None,
            control: directory.join("control"),
        }
    }

    #[test]
    fn a_record_is_read_back_as_it_was_written() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(Made::read(directory.path()), Ok(None));
        let made = made(directory.path());
        made.write(directory.path()).expect("written");
        assert_eq!(Made::read(directory.path()), Ok(Some(made)));
    }

    #[test]
    fn a_garbled_record_is_named_and_nothing_is_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join(RECORD), "{").expect("written");
        let error = Made::read(directory.path()).expect_err("not a record");
        assert!(error.contains(RECORD), "{error}");
        assert!(directory.path().join(RECORD).exists());
    }

    #[test]
    fn what_is_gone_already_is_no_failure_and_the_record_goes_last() {
        let directory = tempfile::tempdir().expect("a directory");
        let made = made(directory.path());
        made.write(directory.path()).expect("written");
        fs::write(&made.control, "").expect("written");
        let removal = made.remove(directory.path());
        assert!(removal.failed.is_empty(), "{removal:?}");
        assert_eq!(removal.removed, [format!("socket {}", made.control.display())]);
        assert_eq!(Made::read(directory.path()), Ok(None));
    }

    #[test]
    fn a_process_is_known_by_its_start() {
        let own = Process::of(i32::try_from(std::process::id()).expect("small"), false).expect("runs");
        assert!(own.is_alive());
        assert!(!Process { start_ticks: own.start_ticks + 1, ..own }.is_alive());
        assert_eq!(Process::of(i32::MAX, false), None);
    }

    #[test]
    fn only_a_running_process_with_the_recorded_start_is_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep is everywhere");
        let directory = tempfile::tempdir().expect("a directory");
        let process = Process::of(i32::try_from(child.id()).expect("small"), false).expect("runs");
        let other = Process { start_ticks: process.start_ticks + 1, ..process };
        let stays = Made { command: Some(other), ..made(directory.path()) }.remove(directory.path());
        assert!(stays.removed.is_empty() && process.is_alive(), "{stays:?}");
        made(directory.path()).write(directory.path()).expect("written");
        let ended = Made { command: Some(process), ..made(directory.path()) }.remove(directory.path());
        assert_eq!(ended.removed, [format!("process {}", process.pid)]);
        child.wait().expect("ended");
    }
}
