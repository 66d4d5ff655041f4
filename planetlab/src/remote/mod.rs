//! Work on hosts by the system's `ssh`, so that a user's configuration, jump hosts, agents and hardware keys keep
//! working.
//!
//! The first command to a host leaves a master connection behind (`ControlMaster=auto`), and later ones cost a round
//! trip or two over it. The masters' sockets live in a private directory with short names, because the path of a Unix
//! socket has at most 107 bytes. Everything has a hard deadline: at its end the `ssh` process that was started is
//! killed, by its own handle. Masters are told to end when the [`Fleet`] is dropped, or when Ctrl-C or SIGTERM ends this
//! process; after `kill -9` they end themselves after [`MASTER_IDLE`].
//!
//! What goes wrong is a [`HostError`], in words for the person who has to do something about it.
//!
//! Deliberately not here: passwords (`BatchMode`), and accepting unknown host keys (the inventory's `ssh_options` or
//! ssh's configuration may).

mod clock;
mod error;
mod interrupt;
mod lock;
mod process;

use crate::inventory::Host;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub use clock::ClockOffset;
pub use error::HostError;
pub use lock::{locked, owner};

/// How long a host may take to accept a connection.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a master that nobody uses stays, should this process not be able to end it.
pub const MASTER_IDLE: Duration = Duration::from_secs(60);
/// A good deadline for a script that only looks or changes small things. It holds the connection's set-up, too.
pub const SHORT_DEADLINE: Duration = Duration::from_secs(30);
/// How long a master may take to end when it is told to. It is a process of this machine.
const MASTER_END_MAX: Duration = Duration::from_secs(3);
/// Longest path of a directory for sockets: a socket's name, and what ssh adds to it while it makes one, need 37 bytes.
const SOCKET_DIR_BYTES_MAX: usize = 107 - 37;
/// Status of a script that found the host's lock held; the holder is its last line on stderr.
pub const LOCKED_STATUS: i32 = 75;

/// What a script printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Standard output as text, without blanks at its ends.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim().to_owned()
    }
}

/// What was done on each host, in the order in which the hosts were given.
pub type PerHost<'a, T> = Vec<(&'a Host, Result<T, HostError>)>;

/// The connections to all hosts of one run of this program.
#[derive(Debug)]
pub struct Fleet {
    sockets: tempfile::TempDir,
    /// Hosts to which there may be a master, by name.
    reached: Mutex<BTreeMap<String, Host>>,
}

impl Fleet {
    /// Makes the private directory for the masters' sockets. Nothing is connected yet.
    ///
    /// # Errors
    /// One line, when there is no `ssh` or the directory cannot be made.
    pub fn new() -> Result<Self, crate::Failure> {
        if let Err(error) = Command::new("ssh").arg("-V").stderr(std::process::Stdio::null()).status() {
            return Err(format!("ssh: {error}; install the OpenSSH client").into());
        }
        let base = std::env::temp_dir();
        let is_short = base.as_os_str().len() + "/violet-XXXXXX".len() <= SOCKET_DIR_BYTES_MAX;
        let base = if is_short { base } else { PathBuf::from("/tmp") };
        // Such a directory is its owner's alone (mode 0700).
        let sockets = interrupt::directory(|| tempfile::Builder::new().prefix("violet-").tempdir_in(&base));
        let sockets = sockets.map_err(|error| format!("{}: {error}", base.display()))?;
        Ok(Self { sockets, reached: Mutex::default() })
    }

    /// Runs a script of the POSIX shell on a host, with `stdin` as its standard input.
    ///
    /// # Errors
    /// [`HostError`] says what is the matter with the host or with the script. When the deadline has passed, the
    /// local end is killed; what the script started on the host may go on.
    pub fn run(
        &self,
        host: &Host,
        script: &str,
        stdin: &[u8],
        deadline: Duration,
    ) -> Result<Output, HostError> {
        let ended = process::run(self.command(host, script), stdin, deadline)?;
        let output = Output { stdout: ended.stdout, stderr: ended.stderr };
        match ended.status {
            Some(0) => Ok(output),
            status => Err(HostError::of(status, &output)),
        }
    }

    /// Does something on all of these hosts, on at most `at_once` of them at the same time. A host that fails keeps
    /// no other from its turn.
    pub fn on_all<'a, T: Send>(
        &self,
        hosts: &[&'a Host],
        at_once: usize,
        f: impl Fn(&'a Host) -> Result<T, HostError> + Sync,
    ) -> PerHost<'a, T> {
        let next = AtomicUsize::new(0);
        let done = Mutex::new(hosts.iter().map(|_| None).collect::<Vec<_>>());
        std::thread::scope(|scope| {
            for _ in 0..at_once.clamp(1, hosts.len().max(1)) {
                scope.spawn(|| {
                    while let Some(host) = hosts.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let result = f(host);
                        let mut done = done.lock().expect("no thread panics while it holds the lock");
                        let at = hosts.iter().position(|other| std::ptr::eq(*other, *host));
                        done[at.expect("the host is one of them")] = Some(result);
                    }
                });
            }
        });
        let done = done.into_inner().expect("no thread panics while it holds the lock");
        let results = done.into_iter().map(|result| result.expect("every host had its turn"));
        hosts.iter().copied().zip(results).collect()
    }

    /// The `ssh` command that runs a script on a host. For those who need its pipes; it has no deadline but that of
    /// the connection.
    pub fn command(&self, host: &Host, script: &str) -> Command {
        let mut reached = self.reached.lock().expect("no thread panics while it holds the lock");
        reached.entry(host.name.clone()).or_insert_with(|| host.clone());
        drop(reached);
        let mut command = self.ssh(host);
        command.arg("--").arg(&host.host).arg(shell_command(script));
        command
    }

    /// `ssh` with all options of a host.
    fn ssh(&self, host: &Host) -> Command {
        let mut command = Command::new("ssh");
        // Messages are recognised, so they have to be in the language of the C locale.
        command.env("LC_ALL", "C").args(["-T", "-x", "-a"]);
        let mut option = |text: String| {
            command.arg("-o").arg(text);
        };
        // The first mention of an option counts for ssh: ours, then the host's, then the user's configuration.
        option("BatchMode=yes".into());
        option("ControlMaster=auto".into());
        option(format!("ControlPath={}/{}", self.sockets.path().display(), socket_name(&host.name)));
        option(format!("ControlPersist={}", MASTER_IDLE.as_secs()));
        for text in &host.ssh_options {
            option(text.clone());
        }
        option(format!("ConnectTimeout={}", CONNECT_TIME_MAX.as_secs()));
        option("ServerAliveInterval=5".into());
        option("ServerAliveCountMax=3".into());
        option("LogLevel=ERROR".into());
        if let Some(identity) = &host.identity {
            option(format!("IdentityFile={}", identity.display()));
            option("IdentitiesOnly=yes".into());
        }
        if let Some(port) = host.ssh_port {
            command.arg("-p").arg(port.to_string());
        }
        if let Some(user) = &host.user {
            command.arg("-l").arg(user);
        }
        command
    }

    /// Ends the masters, those of hosts that do not answer included: it is asked of the local process.
    fn close(&self) {
        let reached =
            std::mem::take(&mut *self.reached.lock().expect("no thread panics while it holds the lock"));
        let hosts: Vec<&Host> = reached.values().collect();
        self.on_all(&hosts, hosts.len(), |host| {
            if self.sockets.path().join(socket_name(&host.name)).exists() {
                let mut command = self.ssh(host);
                command.args(["-O", "exit"]).arg("--").arg(&host.host);
                // One that does not end has lost its socket with the directory and ends when it is idle.
                process::run(command, &[], MASTER_END_MAX)?;
            }
            Ok(())
        });
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.close();
        interrupt::forget(self.sockets.path());
    }
}

/// Name of a master's socket: short whatever the host is called.
fn socket_name(host: &str) -> String {
    blake3::hash(host.as_bytes()).to_hex()[..16].to_owned()
}

/// What the host's login shell, whichever it is, is given to run a script by the POSIX shell.
fn shell_command(script: &str) -> String {
    format!("exec sh -c {}", quoted(&format!("LC_ALL=C; export LC_ALL\n{script}")))
}

/// A text as one word of a shell.
#[must_use]
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Prints what went wrong, one line a host, and says whether all went well.
pub fn tell_failures<T>(results: &PerHost<'_, T>) -> bool {
    for (host, result) in results {
        if let Err(error) = result {
            eprintln!("{}: {error}", host.name);
        }
    }
    results.iter().all(|(_, result)| result.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_hosts_and_a_failure_stops_no_other() {
        let hosts: Vec<Host> = (0..20).map(|n| Host::new(&format!("h{n}"), "127.0.0.1")).collect();
        let fleet = Fleet::new().unwrap();
        let (busy, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let results = fleet.on_all(&hosts.iter().collect::<Vec<_>>(), 3, |host| {
            most.fetch_max(busy.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            busy.fetch_sub(1, Ordering::SeqCst);
            if host.name == "h7" { Err(HostError::WrongKey) } else { Ok(host.name.clone()) }
        });
        assert!(most.into_inner() <= 3);
        for (host, (same, result)) in hosts.iter().zip(&results) {
            assert_eq!(host.name, same.name);
            match result {
                Ok(name) => assert_eq!(*name, host.name),
                Err(error) => assert_eq!((host.name.as_str(), error), ("h7", &HostError::WrongKey)),
            }
        }
    }

    #[test]
    fn any_text_is_one_word_of_a_shell() {
        let text = "it's $HOME `x` \\ \"y\"\n!";
        let script = format!("printf %s {}", quoted(text));
        let output = Command::new("sh").arg("-c").arg(shell_command(&script)).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
    }
}
