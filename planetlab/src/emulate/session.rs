//! One run from the first namespace to the last: the world, the router and the control socket, with their record.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sched::CloneFlags;
use serde_json::{Value, json};
use violet_link::roster::Entry;

use crate::emulate::account::Report;
use crate::emulate::control;
use crate::emulate::link::Links;
use crate::emulate::made::{self, Made, Namespace, Process, Removal};
use crate::emulate::packet::Places;
use crate::emulate::router::{Remote, Router};
use crate::emulate::world;

/// The description of the world in a run's directory, for whoever starts nodes in it.
pub const DESCRIPTION: &str = "emulator.json";
/// The longest path that a Unix socket may have, with its final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;
const RUN_NAME_BYTES_MAX: usize = 32;

/// Where a run keeps its things and what it is called.
#[derive(Debug, Clone)]
pub struct Place {
    /// The run's directory.
    pub directory: PathBuf,
    /// The control socket.
    pub control: PathBuf,
    /// The run's name.
    pub run: String,
}

impl Place {
    /// Checks a place. Without a name the run gets one from its process and the time.
    pub fn new(directory: &Path, control: Option<&PathBuf>, run: Option<&String>) -> Result<Self, String> {
        let run = run.cloned().unwrap_or_else(any_name);
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if run.is_empty() || RUN_NAME_BYTES_MAX < run.len() || !run.bytes().all(plain) {
            return Err(format!("--run {run}: must be 1 to {RUN_NAME_BYTES_MAX} small letters and digits"));
        }
        fs::create_dir_all(directory).map_err(|error| format!("--dir {}: {error}", directory.display()))?;
        let directory =
            directory.canonicalize().map_err(|error| format!("--dir {}: {error}", directory.display()))?;
        let control = control.cloned().unwrap_or_else(|| directory.join("control"));
        if SOCKET_PATH_BYTES_MAX < control.as_os_str().len() {
            let place = control.display();
            return Err(format!(
                "{place}: too long for a socket; --control must be at most {SOCKET_PATH_BYTES_MAX} bytes"
            ));
        }
        Ok(Self { directory, control, run })
    }

    fn record(&self, names: &[String]) -> Result<Made, String> {
        let pid = i32::try_from(std::process::id()).map_err(|error| error.to_string())?;
        let emulator = Process::of(pid, false).ok_or("/proc must be mounted")?;
        let name = |node: &str| format!("violet-{}-{node}", self.run);
        let namespace =
            |node: &str| Namespace { name: name(node), inode: None, device: world::DEVICE.into() };
        let namespaces: Vec<_> = names.iter().map(|node| namespace(node)).collect();
        if let Some(taken) = namespaces.iter().find(|namespace| namespace.path().exists()) {
            return Err(format!("namespace {} is there already; --run must be another name", taken.name));
        }
        Ok(Made {
            run: self.run.clone(),
            emulator,
            boot: made::boot(),
            directory_made: false,
            directory_mounted: false,
            namespaces,
            command: None,
            control: self.control.clone(),
        })
    }

    /// Holds the directory for this process. Refuses one in which another run is, or has left things.
    fn lock(&self) -> Result<File, String> {
        let place = self.directory.display();
        let lock = File::create(self.directory.join("lock")).map_err(|error| format!("{place}: {error}"))?;
        let locked = match lock.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(error)) => return Err(format!("{place}: {error}")),
        };
        match (locked, Made::read(&self.directory)?) {
            (true, None) => Ok(lock),
            (true, Some(left)) => Err(format!(
                "{place}: run {} ended without tidying up; `violet-testbed clean --dir {place}` removes what it left",
                left.run
            )),
            (false, Some(other)) => Err(format!(
                "{place}: run {} is there, process {}; end it first or take another --dir",
                other.run, other.emulator.pid
            )),
            (false, None) => Err(format!("{place}: another run begins or ends there; take another --dir")),
        }
    }
}

fn any_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // A process may have several, as tests do.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("r{:x}x{:x}x{number:x}", std::process::id(), since.subsec_millis())
}

/// A run that is up.
pub struct Session {
    place: Place,
    made: Made,
    nodes: usize,
    router: Router,
    _lock: File,
}

impl Session {
    /// Makes everything and starts to route. If that fails, what was made is removed again.
    pub fn open(place: Place, links: Links) -> Result<Self, String> {
        needs_root()?;
        let lock = place.lock()?;
        let mut made =
            place.record(&links.entries().iter().map(|entry| entry.end.to_string()).collect::<Vec<_>>())?;
        made.write(&place.directory).map_err(|error| format!("{}: {error}", place.directory.display()))?;
        let nodes = links.places().nodes;
        let opened = Self::start(&place, &mut made, links);
        match opened {
            Ok(router) => Ok(Self { place, made, nodes, router, _lock: lock }),
            Err(error) => {
                let failed = made.remove(&place.directory).failed;
                let left = if failed.is_empty() {
                    String::new()
                } else {
                    format!("; still there: {}", failed.join("; "))
                };
                Err(error + &left)
            }
        }
    }

    fn start(place: &Place, made: &mut Made, mut links: Links) -> Result<Router, String> {
        let description = describe(place, made, links.places(), &links.entries());
        let devices = world::build(made, links.places(), &place.directory, links.mtu_bytes())?;
        let file = place.directory.join(DESCRIPTION);
        let text = format!("{description:#}\n");
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        let router = Router::start(devices, links).map_err(|error| format!("the router: {error}"))?;
        let (remote, namespaces) = (router.remote(), made.namespaces.clone());
        control::listen(
            &place.control,
            Arc::new(move |command: &str| do_command(&remote, &namespaces, command)),
        )
        .map_err(|error| format!("{}: {error}", place.control.display()))?;
        Ok(router)
    }

    /// The namespaces: the nodes', then the clients'.
    pub fn namespaces(&self) -> &[Namespace] {
        &self.made.namespaces
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The router's thread.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Where the run is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Records the command that was started in the client's namespace.
    pub fn record_command(&mut self, command: Process) -> Result<(), String> {
        self.made.command = Some(command);
        let directory = &self.place.directory;
        self.made.write(directory).map_err(|error| format!("{}: {error}", directory.display()))
    }

    /// Ends whatever runs in the world, then the world. The router runs on until processes had the chance to say goodbye.
    pub fn close(self) -> (Removal, Result<Report, String>) {
        let device_drops = world::device_drops(&self.made.namespaces);
        let removal = self.made.remove(&self.place.directory);
        let report = self.router.stop().map(|report| Report { device_drops, ..report });
        (removal, report)
    }
}

/// Says in one line what is missing to make a world here.
pub fn needs_root() -> Result<(), String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("needs root: it makes network namespaces and TUN devices".into());
    }
    if !Path::new("/dev/net/tun").exists() {
        return Err("needs /dev/net/tun: load the kernel's module `tun` or make the device node".into());
    }
    // In a container root may be refused both; a thread of its own tries, so that nothing here changes.
    let tried = std::thread::spawn(|| {
        fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
        nix::sched::unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
        Ok::<(), std::io::Error>(())
    });
    match tried.join() {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("needs root with the right to make network namespaces: {error}")),
        Err(_) => Err("needs root: the thread that tried a network namespace panicked".into()),
    }
}

fn describe(place: &Place, made: &Made, places: Places, entries: &[Entry]) -> Value {
    let end = |(index, (namespace, entry)): (usize, (&Namespace, &Entry))| {
        json!({
            "name": entry.end.to_string(),
            "namespace": namespace.name,
            "address": places.address(index),
            "site": entry.site,
            "area": entry.area,
        })
    };
    let mut nodes: Vec<Value> = made.namespaces.iter().zip(entries).enumerate().map(end).collect();
    let clients = nodes.split_off(places.nodes);
    json!({"run": place.run, "control": place.control, "nodes": nodes, "clients": clients})
}

/// One command of the control socket.
fn do_command(remote: &Remote, namespaces: &[Namespace], command: &str) -> Result<Value, String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    match words[..] {
        ["stats"] => {
            let mut report = remote.report()?;
            report["device_drops"] = world::device_drops(namespaces).into();
            Ok(report)
        }
        ["pcap", node, file] => {
            if !file.starts_with('/') {
                return Err(format!("`{file}`: must be an absolute path, because the emulator writes it"));
            }
            remote.capture(node, file.into())
        }
        ["pcap", ..] => Err("must be `pcap NODE FILE`".into()),
        _ => remote.change(command),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_runs_are_checked_and_made_up_ones_pass() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = |run: Option<&str>| Place::new(directory.path(), None, run.map(str::to_owned).as_ref());
        assert!(place(None).is_ok() && place(Some("a1")).is_ok());
        for bad in ["", "A", "a/b", "a-b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"] {
            assert!(place(Some(bad)).expect_err(bad).contains("--run"), "{bad}");
        }
    }

    #[test]
    fn a_socket_path_that_the_kernel_would_refuse_is_refused_first() {
        let directory = tempfile::tempdir().expect("a directory");
        let control = PathBuf::from("x".repeat(108));
        let error = Place::new(directory.path(), Some(&control), None).expect_err("too long");
        assert!(error.contains("107"), "{error}");
    }

    #[test]
    fn a_directory_with_a_record_is_refused_by_the_runs_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = Place::new(directory.path(), None, Some(&"first".to_owned())).expect("a place");
        let held = place.lock().expect("free");
        place
            .record(&["n1".into(), "c1".into()])
            .expect("a record")
            .write(directory.path())
            .expect("written");
        let second = Place::new(directory.path(), None, Some(&"second".to_owned())).expect("a place");
        assert!(second.lock().expect_err("held").contains("run first is there"));
        drop(held);
        assert!(second.lock().expect_err("left").contains("violet-testbed clean"));
    }
}
