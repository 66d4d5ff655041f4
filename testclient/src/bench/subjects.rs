//! The servers that are measured: which there are, how each is started, and that none outlives this program.
//!
//! Every server is a process of its own on loopback. Violet and the echo server look after their parent
//! themselves; for the others a shell waits at a pipe that closes with us. A server counts as started when it
//! has answered a request. Deliberately not here: installing anything; what is absent is said and skipped.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::codec::{Codec, Dialect, Kind};
use super::contents::Contents;
use super::processors::{self, Processors};

/// How long a server may take to its first answer.
const START_TIME_MAX: Duration = Duration::from_secs(20);
/// How often it is asked meanwhile.
const START_POLL: Duration = Duration::from_millis(50);
/// Memory limits of the servers, in MiB: more than the largest set of values takes, so that it is none.
const MEMORY_MIB: u32 = 12_288;
/// Violet remembers every PUT for ten seconds; this many MiB hold those of a busy core.
const REPLY_CACHE_MIB: u32 = 1_024;

/// A server, with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// The bare batched echo server.
    Echo,
    /// One Violet node with one worker, every reply a message of its own.
    VioletSingle,
    /// One Violet node with one worker, replies packed.
    Violet,
    /// The same with four workers.
    VioletFour,
    /// memcached with one thread, over UDP.
    Memcached,
    /// Redis, over TCP.
    Redis,
}

impl Subject {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Echo, Self::VioletSingle, Self::Violet, Self::VioletFour, Self::Memcached, Self::Redis];

    /// As it is called in tables and file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::VioletSingle => "violet-single",
            Self::Violet => "violet",
            Self::VioletFour => "violet-4-workers",
            Self::Memcached => "memcached",
            Self::Redis => "redis",
        }
    }

    /// The program that somebody else must have installed.
    pub fn foreign_program(self) -> Option<&'static str> {
        match self {
            Self::Memcached => Some("memcached"),
            Self::Redis => Some("redis-server"),
            Self::Echo | Self::VioletSingle | Self::Violet | Self::VioletFour => None,
        }
    }

    /// How it is spoken to first; `None` over TCP.
    fn first_dialect(self) -> Option<Dialect> {
        match self {
            Self::Echo => Some(Dialect::Echo),
            Self::VioletSingle | Self::Violet | Self::VioletFour => Some(Dialect::Raw),
            Self::Memcached => Some(Dialect::Memcached),
            Self::Redis => None,
        }
    }
}

/// Where a program lies, looking through `PATH`.
pub fn find_program(name: &str, path: &std::ffi::OsStr) -> Option<PathBuf> {
    let candidates = std::env::split_paths(path).map(|directory| directory.join(name));
    candidates.into_iter().find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// How servers are started.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The violet binary.
    pub violet: PathBuf,
    /// Further settings of Violet, NAME=VALUE.
    pub settings: Vec<String>,
    /// Where logs go.
    pub directory: PathBuf,
    /// Port of the first server; the others follow.
    pub port: u16,
}

impl Recipe {
    /// The port of a server.
    fn port_of(&self, subject: Subject) -> u16 {
        let place = Subject::ALL.iter().position(|&other| other == subject).expect("all are listed");
        self.port + place as u16
    }

    /// The command line of a server.
    fn command(&self, subject: Subject) -> Result<Command, String> {
        let port = self.port_of(subject);
        let mut command = match subject {
            Subject::Echo => {
                let own = std::env::current_exe().map_err(|error| format!("own program: {error}"))?;
                let mut command = Command::new(own);
                command.arg("bench-echo").arg(port.to_string());
                command
            }
            Subject::VioletSingle => self.violet(port, &["workers=1", "send-segments=off"]),
            Subject::Violet => self.violet(port, &["workers=1", "send-segments=on"]),
            Subject::VioletFour => self.violet(port, &["workers=4", "send-segments=on"]),
            Subject::Memcached => {
                let mut command = Command::new("memcached");
                let text = format!("-l 127.0.0.1 -p 0 -U {port} -t 1 -m {MEMORY_MIB}");
                command.args(text.split(' '));
                if rustix::process::geteuid().is_root() {
                    command.args(["-u", "nobody"]);
                }
                command
            }
            Subject::Redis => {
                let mut command = Command::new("redis-server");
                let text = format!("--bind 127.0.0.1 --port {port} --appendonly no --daemonize no --save");
                command.args(text.split(' ')).arg("").arg("--dir").arg(&self.directory);
                command
            }
        };
        command.stdin(Stdio::null());
        Ok(command)
    }

    fn violet(&self, port: u16, settings: &[&str]) -> Command {
        let mut command = Command::new(&self.violet);
        command.arg("serve").arg("--listen").arg(format!("127.0.0.1:{port}"));
        command.args(["--exit-with-parent", &std::process::id().to_string()]);
        let common = [
            "replicas=1".to_owned(),
            format!("memory-mib={MEMORY_MIB}"),
            format!("reply-cache-mib={REPLY_CACHE_MIB}"),
        ];
        let variant = settings.iter().map(ToString::to_string);
        // What the user sets comes last, and the last one counts.
        let mut chosen: Vec<(String, String)> = Vec::new();
        for setting in common.into_iter().chain(variant).chain(self.settings.iter().cloned()) {
            let (name, value) = setting.split_once('=').unwrap_or((&setting, ""));
            chosen.retain(|(other, _)| other != name);
            chosen.push((name.to_owned(), value.to_owned()));
        }
        command.args(chosen.iter().map(|(name, value)| format!("--{name}={value}")));
        // What the caller's environment says is about another node.
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("VIOLET_")) {
            command.env_remove(name);
        }
        command
    }
}

/// A server that runs; dropping it ends it.
#[derive(Debug)]
pub struct Running {
    /// Which.
    pub subject: Subject,
    /// Where it is reached.
    pub address: SocketAddr,
    /// Its process.
    pub pid: u32,
    /// Its command line, for the record.
    pub command: String,
    child: Child,
    watch: Option<Child>,
}

impl Running {
    /// Starts a server on its processors and waits for its first answer.
    ///
    /// # Errors
    /// One sentence: the port is taken, the program cannot be started, or it ended or stayed silent.
    pub fn start(subject: Subject, recipe: &Recipe, processors: &Processors) -> Result<Self, String> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, recipe.port_of(subject)));
        check_port(subject, address)?;
        let log = recipe.directory.join(format!("{}.log", subject.name()));
        let output = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let errors = output.try_clone().map_err(|error| format!("{}: {error}", log.display()))?;
        let mut command = recipe.command(subject)?;
        // The terminal's Ctrl-C is for this program, which ends its servers itself.
        command.process_group(0).stdout(output).stderr(errors);
        processors::pin_this_thread(&processors.server)?;
        let child = command.spawn();
        processors::pin_this_thread(&processors.all)?;
        let program = command.get_program().to_string_lossy().into_owned();
        let child = child.map_err(|error| format!("cannot start {program}: {error}"))?;
        let (pid, text) = (child.id(), describe(&command));
        let watch = subject.foreign_program().map(|_| watch_over(pid)).transpose()?;
        let mut running = Self { subject, address, pid, command: text, child, watch };
        running.await_answer(&log)?;
        Ok(running)
    }

    fn await_answer(&mut self, log: &Path) -> Result<(), String> {
        let since = Instant::now();
        while since.elapsed() < START_TIME_MAX {
            if self.answers() {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                let text = fs::read_to_string(log).unwrap_or_default();
                let line = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
                return Err(format!("{} ended at once ({status}): {line}", self.subject.name()));
            }
            std::thread::sleep(START_POLL);
        }
        Err(format!("{} does not answer on {}", self.subject.name(), self.address))
    }

    fn answers(&self) -> bool {
        let asked = match self.subject.first_dialect() {
            Some(dialect) => self.answers_datagram(dialect),
            None => self.answers_connection(),
        };
        asked.unwrap_or(false)
    }

    fn answers_datagram(&self, dialect: Dialect) -> std::io::Result<bool> {
        let codec = Codec::new(dialect, Contents::new(0, 8), u32::MAX);
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(self.address)?;
        socket.set_read_timeout(Some(START_POLL))?;
        let mut request = Vec::new();
        codec.write(Kind::Get, 0, 1, 0, &mut request);
        socket.send(&request)?;
        let mut reply = [0; 1_500];
        let bytes = socket.recv(&mut reply)?;
        Ok(codec.number(&reply[..bytes]).is_some())
    }

    fn answers_connection(&self) -> std::io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&self.address, START_POLL)?;
        stream.set_read_timeout(Some(START_POLL))?;
        stream.write_all(b"PING\r\n")?;
        let mut reply = [0; 7];
        stream.read_exact(&mut reply)?;
        Ok(&reply == b"+PONG\r\n")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It fails only for a process that has ended already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(mut watch) = self.watch.take() {
            // The shell would signal a process that is gone; it ends without, before its pipe closes.
            let _ = watch.kill();
            let _ = watch.wait();
        }
    }
}

fn check_port(subject: Subject, address: SocketAddr) -> Result<(), String> {
    let taken = match subject.first_dialect() {
        Some(_) => UdpSocket::bind(address).map(|_| ()),
        None => TcpListener::bind(address).map(|_| ()),
    };
    taken.map_err(|error| format!("{} for {}: {error}; see --port", address, subject.name()))
}

/// A shell that ends the process when this program is gone, however that happened.
fn watch_over(pid: u32) -> Result<Child, String> {
    let script = format!("trap '' INT TERM HUP; read line; kill -KILL {pid} 2>/dev/null");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.process_group(0).spawn().map_err(|error| format!("cannot watch over a server: {error}"))
}

fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    let words = words.map(|word| match word.to_string_lossy() {
        word if word.is_empty() => "''".to_owned(),
        word => word.into_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe() -> Recipe {
        Recipe {
            violet: "violet".into(),
            settings: vec!["workers=2".into(), "batch-datagrams=64".into()],
            directory: "/nowhere".into(),
            port: 100,
        }
    }

    #[test]
    fn what_the_user_sets_wins_and_stands_once() {
        let text = describe(&recipe().command(Subject::VioletSingle).unwrap());
        assert!(text.starts_with("violet serve --listen 127.0.0.1:101 --exit-with-parent"), "{text}");
        assert!(text.contains("--send-segments=off") && text.contains("--batch-datagrams=64"), "{text}");
        assert!(text.contains("--workers=2") && !text.contains("--workers=1"), "{text}");
    }

    #[test]
    fn every_subject_has_a_port_of_its_own() {
        let ports: Vec<u16> = Subject::ALL.iter().map(|&subject| recipe().port_of(subject)).collect();
        assert_eq!(ports, [100, 101, 102, 103, 104, 105]);
    }

    #[test]
    fn an_absent_program_is_not_found_and_a_present_one_is() {
        let path = std::env::var_os("PATH").unwrap();
        assert!(find_program("sh", &path).is_some());
        assert_eq!(find_program("no-such-program", &path), None);
        assert_eq!(find_program("sh", std::ffi::OsStr::new("/nowhere")), None);
    }

    #[test]
    fn a_taken_port_and_a_missing_program_are_one_line() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let error = check_port(Subject::Echo, socket.local_addr().unwrap()).unwrap_err();
        assert!(error.contains("for echo") && error.lines().count() == 1, "{error}");
    }
}
