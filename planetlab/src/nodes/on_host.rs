//! `violet-testbed on-host`: what this program does when it was deployed to a host and is called there by itself.
//!
//! `start`, `stop` and `status` read and print JSON; `keep` is the keeper ([`super::keeper`]). One process is told from
//! a later one of the same number by its start time, and nothing is ever ended by name.

use super::keeper::{Paths, PidFile, Process, keep, now, write_private};
use crate::Failure;
use clap::{Arg, ArgMatches, Command, value_parser};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::io::{Read, Seek, SeekFrom};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

/// How long a node may take to say that it is ready.
const READY_TIME_MAX: Duration = Duration::from_secs(15);
/// How long a node may take to leave when it is asked to, before it is killed.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a killed process may take to go.
const KILL_TIME_MAX: Duration = Duration::from_secs(5);
/// How often files and processes are looked at.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);
/// How long the node may take to answer one question, and how often it is asked.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(500);
const QUESTIONS: usize = 3;
/// How much of a log's end is read for the last error.
const LOG_TAIL_BYTES: u64 = 64 * 1024;
/// Most bytes of a request on standard input.
const REQUEST_BYTES_MAX: u64 = 1 << 20;

/// What a node is started with.
#[derive(Debug, Serialize, Deserialize)]
pub struct StartRequest {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where others reach it.
    pub advertise: SocketAddr,
    /// All members, one a line.
    pub servers: String,
    /// The cluster's key, as it goes into the file.
    pub key: String,
    /// Other settings, name and value.
    pub settings: Vec<(String, String)>,
    /// Who starts it.
    pub owner: String,
}

/// What a start came to.
#[derive(Debug, Serialize, Deserialize)]
pub struct Started {
    /// The node's process.
    pub pid: i32,
    /// What it said when it was ready.
    pub line: String,
}

/// How a node is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// `running`, `died` (nobody stopped it) or `stopped`.
    pub state: String,
    /// Its process.
    pub pid: Option<i32>,
    /// Who started it.
    pub owner: Option<String>,
    /// Its release.
    pub release: Option<String>,
    /// What `violet --version` says.
    pub version: Option<String>,
    /// Seconds since it was started.
    pub uptime_seconds: Option<f64>,
    /// Memory that it holds.
    pub memory_mib: Option<f64>,
    /// Members that it counts as alive, itself too; none when it does not answer.
    pub members_alive: Option<usize>,
    /// Members that it knows.
    pub members: Option<usize>,
    /// Requests that clients had it do.
    pub requests: Option<u64>,
    /// Whether it has all that it should hold: not catching up, no hints, nothing to repair.
    pub is_settled: Option<bool>,
    /// The last line that it wrote to stderr, or how it ended.
    pub last_error: Option<String>,
}

/// Describes the sub-command, which people have no use for.
#[must_use]
pub fn command() -> Command {
    let dir = || Arg::new("dir").required(true).value_parser(value_parser!(PathBuf));
    Command::new("on-host")
        .about("What the testbed calls on a host")
        .hide(true)
        .subcommand_required(true)
        .subcommand(Command::new("start").arg(dir()))
        .subcommand(Command::new("stop").arg(dir()))
        .subcommand(Command::new("status").arg(dir()))
        .subcommand(
            Command::new("keep")
                .arg(dir())
                .arg(Arg::new("owner").required(true))
                .arg(Arg::new("listen").required(true))
                .arg(Arg::new("arguments").num_args(1..).last(true).required(true)),
        )
}

/// Runs the sub-command. What goes wrong is one line on stderr and status 1.
///
/// # Errors
/// None; the host did it or says why not.
pub fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let (name, matches) = matches.subcommand().expect("clap demands a sub-command");
    let dir = matches.get_one::<PathBuf>("dir").expect("the argument is required");
    let done = std::fs::canonicalize(dir).map_err(|error| format!("{}: {error}", dir.display()).into());
    let done = done.and_then(|dir| match name {
        "start" => start(&dir).and_then(|started| print(&started)),
        "stop" => stop(&dir).and_then(|was_there| print(&was_there)),
        "status" => status(&dir).and_then(|status| print(&status)),
        _ => {
            let text =
                |name: &str| matches.get_one::<String>(name).expect("the argument is required").as_str();
            let arguments = matches.get_many::<String>("arguments").into_iter().flatten().cloned();
            keep(&dir, text("owner"), text("listen"), &arguments.collect::<Vec<_>>())
        }
    });
    if let Err(failure) = &done {
        eprintln!("{failure}");
    }
    Ok(ExitCode::from(u8::from(done.is_err())))
}

fn print(value: &impl Serialize) -> Result<(), Failure> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}

fn start(dir: &Path) -> Result<Started, Failure> {
    let mut text = Vec::new();
    std::io::stdin().take(REQUEST_BYTES_MAX).read_to_end(&mut text)?;
    let request: StartRequest = serde_json::from_slice(&text).map_err(|error| format!("request: {error}"))?;
    let paths = Paths::of(dir);
    if let Some(file) = PidFile::read(&paths)?.filter(|file| !file.alive().is_empty()) {
        return Err(format!(
            "already running: process {}, started by {} {:.0} s ago; 'stop' or 'restart' it",
            file.node.pid,
            file.owner,
            now() - file.since
        )
        .into());
    }
    let builder = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&paths.node);
    builder.map_err(|error| format!("{}: {error}", paths.node.display()))?;
    write_private(&paths.servers(), request.servers.as_bytes())?;
    write_private(&paths.key(), request.key.as_bytes())?;
    let log = std::fs::OpenOptions::new().append(true).create(true).open(paths.log());
    let before = log
        .and_then(|file| file.metadata())
        .map_err(|error| format!("{}: {error}", paths.log().display()))?;
    let own = std::env::current_exe()?;
    let mut keeper = std::process::Command::new(own)
        .args(["on-host", "keep"])
        .arg(dir)
        .args([&request.owner, &request.listen.to_string()])
        .arg("--")
        .args(arguments(&paths, &request))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("keeper: {error}"))?;
    await_ready(&paths, before.len(), &mut keeper)
}

fn arguments(paths: &Paths, request: &StartRequest) -> Vec<String> {
    let mut arguments = vec!["serve".into(), format!("--listen={}", request.listen)];
    if request.advertise != request.listen {
        arguments.push(format!("--advertise={}", request.advertise));
    }
    arguments.push(format!("--servers={}", paths.servers().display()));
    arguments.push(format!("--cluster-key-file={}", paths.key().display()));
    arguments.extend(request.settings.iter().map(|(name, value)| format!("--{name}={value}")));
    arguments
}

/// Waits until the log tells that the node is ready, or that it has ended.
fn await_ready(paths: &Paths, log_bytes: u64, keeper: &mut std::process::Child) -> Result<Started, Failure> {
    let begun = Instant::now();
    loop {
        let has_ended = keeper.try_wait()?.is_some();
        let said = read_from(&paths.log(), log_bytes)?;
        let mut lines = said.lines().filter_map(LogLine::read);
        if let Some(line) = lines.clone().find(|line| line.source == "out" && line.text.contains("ready on "))
        {
            let file = PidFile::read(paths)?;
            // The node may be quicker than its keeper's pen.
            if let Some(file) = file.filter(|file| !file.alive().is_empty()) {
                return Ok(Started { pid: file.node.pid, line: line.text.to_owned() });
            }
        }
        if has_ended {
            let why = lines.clone().rfind(|line| line.source == "err").or_else(|| lines.next_back());
            return Err(why.map_or("the keeper ended without a word", |line| line.text).to_owned().into());
        }
        if READY_TIME_MAX < begun.elapsed() {
            return Err(
                format!("the node is not ready after {} s; it goes on", READY_TIME_MAX.as_secs()).into()
            );
        }
        std::thread::sleep(WATCH_INTERVAL);
    }
}

/// The text of a file from a place on.
fn read_from(path: &Path, from: u64) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let mut file = std::fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    file.seek(SeekFrom::Start(from))?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A line of a node's log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogLine<'a> {
    /// When, in seconds since 1970 by the host's clock.
    pub time: f64,
    /// `out`, `err` or `end`.
    pub source: &'a str,
    /// What.
    pub text: &'a str,
}

impl<'a> LogLine<'a> {
    /// Reads a line; none when it is no whole one.
    pub fn read(line: &'a str) -> Option<Self> {
        let (time, rest) = line.split_once(' ')?;
        let (source, text) = rest.split_once(' ')?;
        let time = time.parse().ok()?;
        ["out", "err", "end"].contains(&source).then_some(Self { time, source, text })
    }
}

/// Ends the node; says whether there was one.
fn stop(dir: &Path) -> Result<bool, Failure> {
    let paths = Paths::of(dir);
    let Some(file) = PidFile::read(&paths)? else { return Ok(false) };
    let was_there = !file.alive().is_empty();
    for (signal, patience) in [(Signal::SIGTERM, LEAVE_TIME_MAX), (Signal::SIGKILL, KILL_TIME_MAX)] {
        if file.alive().is_empty() {
            break;
        }
        // One of the group's members was just seen alive, so the group is still that of this node.
        let _ = killpg(Pid::from_raw(file.keeper.pid), signal);
        await_end(&file, patience);
    }
    if let Some(Process { pid, .. }) = file.alive().first() {
        return Err(format!("process {pid} does not end").into());
    }
    std::fs::remove_file(paths.pid_file())
        .map_err(|error| format!("{}: {error}", paths.pid_file().display()))?;
    Ok(was_there)
}

fn await_end(file: &PidFile, patience: Duration) {
    let begun = Instant::now();
    while !file.alive().is_empty() && begun.elapsed() < patience {
        std::thread::sleep(WATCH_INTERVAL);
    }
}

fn status(dir: &Path) -> Result<Status, Failure> {
    let paths = Paths::of(dir);
    let version = std::process::Command::new(dir.join("current/violet")).arg("--version").output().ok();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let file = PidFile::read(&paths)?;
    let last_error = last_error(&paths, file.as_ref().map_or(0.0, |file| file.since));
    let Some(file) = file else {
        return Ok(Status { state: "stopped".into(), version, last_error, ..Status::default() });
    };
    let is_running = file.boot == super::keeper::boot() && file.node.is_alive();
    let mut status = Status {
        state: if is_running { "running" } else { "died" }.into(),
        owner: Some(file.owner.clone()),
        release: Some(file.release.clone()),
        version,
        last_error,
        ..Status::default()
    };
    if is_running {
        status.pid = Some(file.node.pid);
        status.uptime_seconds = Some(now() - file.since);
        status.memory_mib = resident_mib(file.node.pid);
        if let Ok(address) = file.listen.parse() {
            ask(address, &mut status);
        }
    }
    Ok(status)
}

/// The last line since that time that was on stderr or told an end.
fn last_error(paths: &Paths, since: f64) -> Option<String> {
    let length = std::fs::metadata(paths.log()).ok()?.len();
    let tail = read_from(&paths.log(), length.saturating_sub(LOG_TAIL_BYTES)).ok()?;
    let line = tail.lines().filter_map(LogLine::read).rfind(|line| {
        // That a node ended because it was asked to is no error.
        since <= line.time && (line.source == "err" || line.source == "end" && line.text != "status 0")
    })?;
    Some(if line.source == "end" { format!("ended: {}", line.text) } else { line.text.to_owned() })
}

/// Memory that a process holds.
fn resident_mib(pid: i32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024.0)
}

/// Asks the node itself: for its members (private command 0x22) and its counts (0x23), in the fixed layout of the course.
fn ask(address: SocketAddr, status: &mut Status) {
    if let Some(members) = question(address, 0x22) {
        let members = String::from_utf8_lossy(&members).into_owned();
        status.members = Some(members.lines().count());
        status.members_alive = Some(members.lines().filter(|line| line.ends_with(" alive")).count());
    }
    let stats =
        question(address, 0x23).and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
    if let Some(stats) = stats {
        let count = |pointer: &str| stats.pointer(pointer).and_then(serde_json::Value::as_u64);
        let requests =
            ["get", "put", "remove"].map(|name| count(&format!("/counters/requests_{name}")).unwrap_or(0));
        status.requests = Some(requests.iter().sum());
        let is_catching_up = stats.get("catching_up").and_then(serde_json::Value::as_bool);
        status.is_settled = Some(
            is_catching_up == Some(false)
                && count("/memory/hints") == Some(0)
                && count("/repair/unsettled") == Some(0),
        );
    }
}

/// One question: 16 bytes of id and the command; the answer is the id, a code and the value after its length.
fn question(address: SocketAddr, command: u8) -> Option<Vec<u8>> {
    let any: SocketAddr = if address.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(address).ok()?;
    socket.set_read_timeout(Some(ANSWER_TIME_MAX)).ok()?;
    let mut request = [0; 17];
    // An id must differ from those of the last seconds, from whatever process they were.
    let unique = format!("{}{:.9}{command}", std::process::id(), now());
    request[..16].copy_from_slice(&blake3::hash(unique.as_bytes()).as_bytes()[..16]);
    request[16] = command;
    let mut answer = vec![0; 65_536];
    for _ in 0..QUESTIONS {
        socket.send(&request).ok()?;
        let Ok(length) = socket.recv(&mut answer) else { continue };
        let (head, value) = answer[..length].split_at_checked(19)?;
        if head[..16] == request[..16] && head[16] == 0 {
            return Some(value.to_vec());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_log() {
        let line = LogLine::read("12.5 err violet: a b").unwrap();
        assert_eq!(line, LogLine { time: 12.5, source: "err", text: "violet: a b" });
        assert_eq!(LogLine::read("12.5 xyz a"), None);
        assert_eq!(LogLine::read("half"), None);
    }

    #[test]
    fn the_last_error_is_no_orderly_end_and_not_of_an_earlier_life() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::of(dir.path());
        let check = |text: &str| {
            std::fs::create_dir_all(&paths.node).unwrap();
            std::fs::write(paths.log(), text).unwrap();
            last_error(&paths, 0.5)
        };
        assert_eq!(check("1.0 out ready\n2.0 end status 0\n"), None);
        assert_eq!(check("0.4 end signal 9\n1.0 out ready\n"), None);
        assert_eq!(check("1.0 err bad\n2.0 end status 0\n").as_deref(), Some("bad"));
        assert_eq!(check("1.0 err bad\n2.0 end signal 9\n").as_deref(), Some("ended: signal 9"));
    }
}
