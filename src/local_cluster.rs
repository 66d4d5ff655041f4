//! A whole cluster on this machine: one real `violet serve` process per node, on loopback.
//!
//! [`run`] checks that all ports are free, writes the server list and a random key, starts the nodes,
//! waits until every one of them counts all members, and then runs a command (or waits for Ctrl-C, or
//! until no node is left).
//! A node that dies on the way is reported with the end of its log; one that ends by the SHUTDOWN
//! command is not. In the end exactly the processes that it started are stopped; should this process
//! itself be killed, the nodes notice and end (`serve --exit-with-parent`).
//!
//! Files, all in one directory: `servers.txt`, `cluster.key`, `pids.txt`, and `node-I.log` per node.
//! `cluster.lock` is empty; it is locked as long as a cluster uses the directory, so that a second one
//! cannot write over the files of the first.

use crate::config::{Config, ConfigError, Protocol, SETTINGS};
use rand::TryRng;
use rand::rngs::SysRng;
use rustix::process::Signal;
use std::collections::VecDeque;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use violet_client::wire::{self, Format, MessageId, Operation, Request};

/// Most nodes of a local cluster.
pub const NODES_MAX: usize = 256;
/// How long the nodes may take to find each other.
const JOIN_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a node may take to answer one question, and so the pace of asking.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(200);
/// How long a node may take to end after SIGTERM.
const STOP_TIME_MAX: Duration = Duration::from_secs(3);
/// How often processes are looked at.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);
/// Lines shown of the log of a node that died.
const LOG_LINES_SHOWN: usize = 20;

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The violet binary.
    pub program: PathBuf,
    /// Number of nodes, 1 to [`NODES_MAX`].
    pub nodes: usize,
    /// Port of the first node; the others follow.
    pub port: u16,
    /// Where the files go.
    pub directory: PathBuf,
    /// Port of the first node's admin server, if they shall have one; the others follow.
    pub admin_port: Option<u16>,
    /// Settings for every node, `(name, value)`.
    pub settings: Vec<(String, String)>,
    /// What to run against the cluster; empty = wait until interrupted.
    pub command: Vec<String>,
}

/// Runs a cluster until the command ends or `interrupted` is set; returns the command's status.
///
/// # Errors
/// [`ConfigError`], one line, when the cluster cannot be started. Nothing is left running then.
pub fn run(plan: &Plan, interrupted: &AtomicBool) -> Result<u8, ConfigError> {
    let format = format(plan)?;
    let addresses = addresses(plan)?;
    check_ports(&addresses)?;
    let files = Files::write(plan, &addresses)?;
    // From here on, whatever happens, dropping the cluster stops what was started.
    let mut cluster = Cluster { nodes: Vec::with_capacity(plan.nodes) };
    for (index, address) in addresses.iter().enumerate() {
        cluster.nodes.push(files.start_node(plan, index, *address)?);
    }
    files.write_pids(&cluster)?;
    match cluster.wait_for_members(format, interrupted)? {
        Joined::All => {}
        Joined::Interrupted => return Ok(INTERRUPTED_STATUS),
    }
    let servers = files.servers.display();
    println!("violet: {} nodes are ready on {} to {}", plan.nodes, addresses[0], addresses[plan.nodes - 1]);
    println!("violet: server list {servers}, logs in {}", plan.directory.display());
    if plan.command.is_empty() {
        println!("violet: use it with VIOLET_SERVERS={servers}; Ctrl-C stops it");
        return Ok(cluster.stand_by(interrupted));
    }
    cluster.run_command(plan, &files, interrupted)
}

/// What a shell reports for a process that SIGINT has ended.
const INTERRUPTED_STATUS: u8 = 130;
/// Status when nobody ended the cluster and yet no node is left.
const NO_NODE_STATUS: u8 = 1;

/// Settings that differ from node to node, or that the cluster writes itself.
const OWN_SETTINGS: [&str; 5] = ["listen", "advertise", "servers", "cluster-key-file", "admin"];

/// Checks the nodes' settings before any of them is started; returns the layout that they understand.
/// Asking in the other one would not do: a raw node would run whatever command the envelope's bytes
/// happen to spell.
fn format(plan: &Plan) -> Result<Format, ConfigError> {
    for (name, _) in &plan.settings {
        if OWN_SETTINGS.contains(&name.as_str()) {
            return Err(ConfigError(format!("--set {name}: the cluster sets this for each node")));
        }
        if SETTINGS.iter().all(|setting| setting.name != name) {
            return Err(ConfigError(format!("--set {name}: there is no such setting")));
        }
    }
    let set = |name: &str| {
        plan.settings.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    };
    let config = Config::load(None, |name| std::env::var(name).ok(), set)?;
    Ok(match config.protocol {
        Protocol::Raw => Format::Raw,
        Protocol::Auto | Protocol::Protobuf => Format::Protobuf,
    })
}

fn addresses(plan: &Plan) -> Result<Vec<SocketAddr>, ConfigError> {
    if plan.nodes == 0 || NODES_MAX < plan.nodes {
        return Err(ConfigError(format!(
            "--nodes: {} is not allowed; allowed: 1 to {NODES_MAX}",
            plan.nodes
        )));
    }
    (0..plan.nodes).map(|index| nth_address(plan.port, index)).collect()
}

fn nth_address(first_port: u16, index: usize) -> Result<SocketAddr, ConfigError> {
    let port = u16::try_from(usize::from(first_port) + index).ok().filter(|_| first_port != 0);
    let port = port.ok_or_else(|| ConfigError(format!("port {first_port} + {index} is no port")))?;
    Ok((Ipv4Addr::LOCALHOST, port).into())
}

fn check_ports(addresses: &[SocketAddr]) -> Result<(), ConfigError> {
    // All at once, so that a list with a port twice would be noticed, too.
    let mut held = Vec::with_capacity(addresses.len());
    for address in addresses {
        let sockets = UdpSocket::bind(address).and_then(|udp| Ok((udp, TcpListener::bind(address)?)));
        held.push(sockets.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => ConfigError(format!("{address} is taken")),
            _ => ConfigError(format!("cannot listen on {address}: {error}")),
        })?);
    }
    Ok(())
}

/// Where the cluster's files are.
struct Files {
    directory: PathBuf,
    servers: PathBuf,
    key: PathBuf,
    /// Open as long as the directory is ours.
    _lock: File,
}

impl Files {
    fn write(plan: &Plan, addresses: &[SocketAddr]) -> Result<Self, ConfigError> {
        fs::create_dir_all(&plan.directory).map_err(|error| cannot("create", &plan.directory, &error))?;
        // Absolute, because the command may change its directory before it reads the list.
        let directory =
            fs::canonicalize(&plan.directory).map_err(|error| cannot("find", &plan.directory, &error))?;
        let lock = lock(&directory)?;
        let (servers, key) = (directory.join("servers.txt"), directory.join("cluster.key"));
        let files = Self { servers, key, directory, _lock: lock };
        let lines: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        // Some readers of such lists take a blank last line for a server.
        write_file(&files.servers, lines.join("\n").as_bytes())?;
        write_file(&files.key, &random_bytes::<32>()?)?;
        Ok(files)
    }

    fn log(&self, index: usize) -> PathBuf {
        self.directory.join(format!("node-{index}.log"))
    }

    fn start_node(&self, plan: &Plan, index: usize, address: SocketAddr) -> Result<NodeProcess, ConfigError> {
        let log = self.log(index);
        let output = File::create(&log).map_err(|error| cannot("write", &log, &error))?;
        let errors = output.try_clone().map_err(|error| cannot("write", &log, &error))?;
        let mut command = Command::new(&plan.program);
        command.arg("serve").args(["--listen", &address.to_string()]);
        command.args([Path::new("--servers"), &self.servers, Path::new("--cluster-key-file"), &self.key]);
        command.args(["--exit-with-parent", &std::process::id().to_string()]);
        if let Some(port) = plan.admin_port {
            command.args(["--admin", &nth_address(port, index)?.to_string()]);
        }
        for (name, value) in &plan.settings {
            command.arg(format!("--{name}={value}"));
        }
        // Ctrl-C reaches the whole process group of a terminal. The nodes must outlive the command and
        // be stopped by us, so each gets a group of its own.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(|error| cannot("start", &plan.program, &error))?;
        Ok(NodeProcess { index, address, log, child, ended: None })
    }

    fn write_pids(&self, cluster: &Cluster) -> Result<(), ConfigError> {
        let lines: Vec<String> = cluster.nodes.iter().map(|node| node.child.id().to_string()).collect();
        write_file(&self.directory.join("pids.txt"), lines.join("\n").as_bytes())
    }
}

/// Takes a directory for this process. The system lets it go when the file is closed, and that is when
/// the process ends at the latest, however it ends; the nodes do not inherit it.
fn lock(directory: &Path) -> Result<File, ConfigError> {
    let path = directory.join("cluster.lock");
    let file = File::create(&path).map_err(|error| cannot("write", &path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ConfigError(format!(
            "{} is in use by a running cluster; stop that one or choose another --dir",
            directory.display()
        ))),
        Err(TryLockError::Error(error)) => Err(cannot("lock", &path, &error)),
    }
}

fn random_bytes<const N: usize>() -> Result<[u8; N], ConfigError> {
    let mut bytes = [0; N];
    let filled = SysRng.try_fill_bytes(&mut bytes);
    filled.map_err(|error| ConfigError(format!("no randomness from the system: {error}")))?;
    Ok(bytes)
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), ConfigError> {
    fs::write(path, bytes).map_err(|error| cannot("write", path, &error))
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> ConfigError {
    ConfigError(format!("cannot {what} {}: {error}", path.display()))
}

/// One node's process.
struct NodeProcess {
    index: usize,
    address: SocketAddr,
    log: PathBuf,
    child: Child,
    /// How it ended, once that has been noticed.
    ended: Option<ExitStatus>,
}

impl NodeProcess {
    /// Notices the end of the process; returns the status the first time.
    fn check(&mut self) -> Option<ExitStatus> {
        if self.ended.is_some() {
            return None;
        }
        // An error means that there is nothing to wait for any more, which cannot be while we hold the
        // child; then the next look tells.
        self.ended = self.child.try_wait().ok().flatten();
        self.ended
    }

    fn describe(&self, status: ExitStatus) -> String {
        format!("node {} ({}) died: {status}", self.index, self.address)
    }

    /// Shows the end of its log.
    fn show_log(&self) {
        eprintln!("violet: the end of {}:\n{}", self.log.display(), last_lines(&self.log, LOG_LINES_SHOWN));
    }
}

fn last_lines(path: &Path, count: usize) -> String {
    let Ok(file) = File::open(path) else { return String::new() };
    let mut lines = VecDeque::with_capacity(count + 1);
    for line in BufReader::new(file).lines().map_while(Result::ok) {
        lines.push_back(format!("  {line}\n"));
        if count < lines.len() {
            lines.pop_front();
        }
    }
    lines.into_iter().collect()
}

enum Joined {
    All,
    Interrupted,
}

/// The processes that were started; dropping it stops them.
struct Cluster {
    nodes: Vec<NodeProcess>,
}

impl Cluster {
    /// Waits until every node counts all members and has compared what it holds with the others.
    fn wait_for_members(&mut self, format: Format, interrupted: &AtomicBool) -> Result<Joined, ConfigError> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|socket| socket.set_read_timeout(Some(ANSWER_TIME_MAX)).map(|()| socket))
            .map_err(|error| ConfigError(format!("cannot open a socket: {error}")))?;
        let deadline = Instant::now() + JOIN_TIME_MAX;
        let mut waiting: VecDeque<usize> = (0..self.nodes.len()).collect();
        while let Some(index) = waiting.front().copied() {
            if interrupted.load(Ordering::Acquire) {
                return Ok(Joined::Interrupted);
            }
            for node in &mut self.nodes {
                if let Some(status) = node.check() {
                    node.show_log();
                    return Err(ConfigError(format!("no cluster: {}", node.describe(status))));
                }
            }
            let counted = count_of(&socket, format, self.nodes[index].address);
            if counted.is_some_and(|count| count.members == self.nodes.len() && count.settled) {
                waiting.pop_front();
                continue;
            }
            if deadline <= Instant::now() {
                return Err(self.late(&waiting, counted));
            }
            // A node that has answered with too few members is asked again after the others.
            waiting.rotate_left(1);
            if counted.is_some() {
                std::thread::sleep(WATCH_INTERVAL);
            }
        }
        Ok(Joined::All)
    }

    fn late(&self, waiting: &VecDeque<usize>, counted: Option<Count>) -> ConfigError {
        let node = &self.nodes[waiting[0]];
        let counts = match counted {
            None => "does not answer".into(),
            Some(Count { members, settled: true }) => format!("counts {members} members"),
            Some(Count { members, .. }) => format!("counts {members} members, not settled with them,"),
        };
        let (seconds, index, nodes) = (JOIN_TIME_MAX.as_secs(), node.index, self.nodes.len());
        node.show_log();
        let others = waiting.len() - 1;
        ConfigError(format!(
            "after {seconds} s node {index} {counts} instead of {nodes}, and {others} others wait as well"
        ))
    }

    fn run_command(
        &mut self,
        plan: &Plan,
        files: &Files,
        interrupted: &AtomicBool,
    ) -> Result<u8, ConfigError> {
        let mut command = Command::new(&plan.command[0])
            .args(&plan.command[1..])
            .env("VIOLET_SERVERS", &files.servers)
            .spawn()
            .map_err(|error| cannot("start", Path::new(&plan.command[0]), &error))?;
        let status = self.watch(interrupted, |_| command.try_wait().ok().flatten());
        let Some(status) = status else {
            // Interrupted: a command on our terminal was interrupted as well, any other must be told.
            terminate(&command);
            end_within(&mut command, STOP_TIME_MAX);
            return Ok(INTERRUPTED_STATUS);
        };
        Ok(shell_status(status))
    }

    /// Waits until the user interrupts, or no node is left; returns the status to end with.
    fn stand_by(&mut self, interrupted: &AtomicBool) -> u8 {
        let is_deserted = |nodes: &[NodeProcess]| nodes.iter().all(|node| node.ended.is_some());
        match self.watch(interrupted, |nodes| is_deserted(nodes).then_some(NO_NODE_STATUS)) {
            Some(status) => {
                eprintln!("violet: no node is left, so the cluster ends");
                status
            }
            None => 0,
        }
    }

    /// Reports nodes that die, until `ended` returns something or the user interrupts.
    fn watch<T>(
        &mut self,
        interrupted: &AtomicBool,
        mut ended: impl FnMut(&[NodeProcess]) -> Option<T>,
    ) -> Option<T> {
        loop {
            for node in &mut self.nodes {
                match node.check() {
                    Some(status) if status.success() => {
                        eprintln!("violet: node {} ({}) was shut down", node.index, node.address);
                    }
                    Some(status) => {
                        eprintln!("violet: {}", node.describe(status));
                        node.show_log();
                    }
                    None => {}
                }
            }
            if let Some(end) = ended(&self.nodes) {
                return Some(end);
            }
            if interrupted.load(Ordering::Acquire) {
                return None;
            }
            std::thread::sleep(WATCH_INTERVAL);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.check();
        }
        let running = || self.nodes.iter().filter(|node| node.ended.is_none());
        running().for_each(|node| terminate(&node.child));
        let deadline = Instant::now() + STOP_TIME_MAX;
        for node in &mut self.nodes {
            end_within(&mut node.child, deadline.saturating_duration_since(Instant::now()));
        }
    }
}

/// Sends SIGTERM to a child that has not been waited for, so that its id still means that child.
fn terminate(child: &Child) {
    // It fails only when the child has ended, which is what we want of it.
    let _ = rustix::process::kill_process(rustix::process::Pid::from_child(child), Signal::TERM);
}

/// Waits for a child to end, and kills it when it takes too long.
fn end_within(child: &mut Child, time: Duration) {
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // Both fail only when it has ended meanwhile.
    let _ = child.kill();
    let _ = child.wait();
}

/// What a shell would report: the status, or 128 and the signal.
fn shell_status(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// What a node says of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Count {
    members: usize,
    /// It knows who holds what, and holds it.
    settled: bool,
}

/// Asks a node how many members it counts; `None` when it does not answer in time.
fn count_of(socket: &UdpSocket, format: Format, node: SocketAddr) -> Option<Count> {
    let id = random_bytes().ok()?;
    let operation = Operation::GetStats;
    let mut datagram = Vec::new();
    wire::encode_request(&Request { format, id: MessageId(id), operation }, &mut datagram);
    socket.send_to(&datagram, node).ok()?;
    let deadline = Instant::now() + ANSWER_TIME_MAX;
    let mut buffer = [0; wire::MESSAGE_BYTES_MAX];
    while Instant::now() < deadline {
        // A refused connection only says that the node is not there yet.
        let bytes = socket.recv(&mut buffer).ok()?;
        let response = wire::decode_response(format, operation.command(), &buffer[..bytes]);
        // Late answers to earlier questions are passed over.
        if let Some(response) = response.ok().filter(|response| response.id == MessageId(id)) {
            let stats: serde_json::Value = serde_json::from_slice(response.value?.bytes).ok()?;
            let members = usize::try_from(stats["members_alive"].as_u64()?).ok()?;
            let settled = stats["catching_up"] == false && stats["repair"]["unsettled"] == 0;
            return Some(Count { members, settled });
        }
    }
    None
}
