//! The node processes of a scenario: started, killed, stopped and restarted one by one.
//!
//! Every node is `violet serve` with its own member list, so that a scenario decides whom a newcomer
//! knows. Signals go only to children that have not been waited for, whose ids cannot have passed to
//! others. Dropping the nodes kills those that are left; should this program be killed itself, the
//! nodes notice (`--exit-with-parent`), and stopped ones are resumed first by a watching shell.

use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::machine::ResumeWatch;
use crate::values::Random;

/// How long a node may take to end after SIGTERM.
const END_TIME_MAX: Duration = Duration::from_secs(10);
/// How often a process is looked at that shall end.
const END_POLL: Duration = Duration::from_millis(10);
/// Lines shown of the log of a node that died by itself.
const LOG_LINES_SHOWN: usize = 8;

/// What all nodes of a scenario share.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The violet binary.
    pub program: PathBuf,
    /// Where lists, key and logs go.
    pub directory: PathBuf,
    /// Settings for every node, `name=value`.
    pub settings: Vec<String>,
}

#[derive(Debug)]
struct Slot {
    address: SocketAddr,
    /// The network namespace that it lives in.
    namespace: Option<String>,
    /// Settings of this node alone.
    settings: Vec<String>,
    child: Option<Child>,
    is_stopped: bool,
}

/// The processes, by the index of their address.
#[derive(Debug)]
pub struct Nodes {
    recipe: Recipe,
    key: PathBuf,
    slots: Vec<Slot>,
    watch: Option<ResumeWatch>,
}

impl Nodes {
    /// Places for nodes at these addresses; none is started.
    ///
    /// # Errors
    /// A sentence, when the files cannot be written.
    pub fn new(recipe: Recipe, addresses: &[SocketAddr]) -> Result<Self, String> {
        fs::create_dir_all(&recipe.directory).map_err(|error| cannot("create", &recipe.directory, &error))?;
        let key = recipe.directory.join("cluster.key");
        write(&key, &Random::new(Random::fresh_seed()).bytes(32))?;
        let slot = |&address: &SocketAddr| Slot {
            address,
            namespace: None,
            settings: Vec::new(),
            child: None,
            is_stopped: false,
        };
        let slots: Vec<Slot> = addresses.iter().map(slot).collect();
        for index in 0..slots.len() {
            // Logs are appended to over the starts of one run; those of the last run would only confuse.
            let _ = fs::remove_file(log_path(&recipe.directory, index));
        }
        Ok(Self { recipe, key, slots, watch: None })
    }

    /// The addresses of all places.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.slots.iter().map(|slot| slot.address).collect()
    }

    /// The places whose nodes were started and not ended by the scenario.
    pub fn running(&self) -> Vec<usize> {
        (0..self.slots.len()).filter(|&node| self.slots[node].child.is_some()).collect()
    }

    /// Fails if a port is taken by somebody else.
    ///
    /// # Errors
    /// A sentence that names the address.
    pub fn check_ports(&self) -> Result<(), String> {
        for slot in &self.slots {
            UdpSocket::bind(slot.address).map_err(|error| format!("{}: {error}", slot.address))?;
        }
        Ok(())
    }

    /// Gives a node a namespace to be started in.
    pub fn place_in_namespace(&mut self, node: usize, name: String) {
        self.slots[node].namespace = Some(name);
    }

    /// Gives one node settings of its own, from its next start on.
    pub fn set(&mut self, node: usize, settings: &[&str]) {
        self.slots[node].settings = settings.iter().map(ToString::to_string).collect();
    }

    /// Starts a node with a member list; an older one of this place must have ended.
    ///
    /// # Errors
    /// A sentence, when the process cannot be started.
    pub fn start(&mut self, node: usize, members: &[usize]) -> Result<(), String> {
        let list = self.recipe.directory.join(format!("members-{node}.txt"));
        let lines: Vec<String> =
            members.iter().map(|&member| self.slots[member].address.to_string()).collect();
        write(&list, lines.join("\n").as_bytes())?;
        self.start_again(node)
    }

    /// Starts a node with the command line that it had last.
    ///
    /// # Errors
    /// A sentence, when the process cannot be started.
    pub fn start_again(&mut self, node: usize) -> Result<(), String> {
        let log = log_path(&self.recipe.directory, node);
        let output = File::options().create(true).append(true).open(&log);
        let output = output.map_err(|error| cannot("write", &log, &error))?;
        let errors = output.try_clone().map_err(|error| cannot("write", &log, &error))?;
        let mut command = self.command(node);
        // The terminal's Ctrl-C is for this program, which ends its nodes itself.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
        let child = child.map_err(|error| cannot("start", &self.recipe.program, &error))?;
        self.slots[node].child = Some(child);
        Ok(())
    }

    fn command(&self, node: usize) -> Command {
        let slot = &self.slots[node];
        let mut command = match &slot.namespace {
            None => Command::new(&self.recipe.program),
            Some(name) => {
                // It replaces itself by the program, so the process stays our child.
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name]).arg(&self.recipe.program);
                command
            }
        };
        command.arg("serve").args(["--listen", &slot.address.to_string()]);
        command.arg("--servers").arg(self.recipe.directory.join(format!("members-{node}.txt")));
        command.arg("--cluster-key-file").arg(&self.key);
        command.args(["--exit-with-parent", &std::process::id().to_string()]);
        command.args(self.recipe.settings.iter().chain(&slot.settings).map(|setting| format!("--{setting}")));
        // What the caller's environment says is about another cluster.
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("VIOLET_")) {
            command.env_remove(name);
        }
        command
    }

    /// SIGKILL to all of these, then waits for their ends; their ports are free afterwards.
    pub fn kill(&mut self, nodes: &[usize]) {
        for &node in nodes {
            if let Some(child) = &mut self.slots[node].child {
                // Fails only for a process that has ended already, which is what is wanted.
                let _ = child.kill();
            }
        }
        for &node in nodes {
            self.slots[node].is_stopped = false;
            if let Some(mut child) = self.slots[node].child.take() {
                let _ = child.wait();
            }
        }
    }

    /// SIGTERM, and waits for the end; how long that took.
    ///
    /// # Errors
    /// A sentence, when it does not end.
    pub fn terminate(&mut self, node: usize) -> Result<Duration, String> {
        self.signal(node, Signal::TERM)?;
        self.await_end(node, END_TIME_MAX).map(|(elapsed, _)| elapsed)
    }

    /// Waits until a node has ended by itself; how long that took and how it ended.
    ///
    /// # Errors
    /// A sentence, when it goes on.
    pub fn await_end(&mut self, node: usize, limit: Duration) -> Result<(Duration, ExitStatus), String> {
        let since = Instant::now();
        while since.elapsed() < limit {
            if let Some(status) = self.ended(node) {
                self.slots[node].child = None;
                return Ok((since.elapsed(), status));
            }
            std::thread::sleep(END_POLL);
        }
        Err(format!("node {node} has not ended {} s later", limit.as_secs()))
    }

    fn ended(&mut self, node: usize) -> Option<ExitStatus> {
        // An error means that there is no child to wait for, which cannot be while it is held here.
        self.slots[node].child.as_mut().and_then(|child| child.try_wait().ok().flatten())
    }

    /// SIGSTOP to all of these.
    ///
    /// # Errors
    /// A sentence, when a process is gone.
    pub fn stop(&mut self, nodes: &[usize]) -> Result<(), String> {
        let pid = |&node: &usize| self.slots[node].child.as_ref().map(|child| child.id() as i32);
        let pids: Vec<i32> = nodes.iter().filter_map(pid).collect();
        self.watch = Some(ResumeWatch::start(&pids)?);
        for &node in nodes {
            self.signal(node, Signal::STOP)?;
            self.slots[node].is_stopped = true;
        }
        Ok(())
    }

    /// SIGCONT to all of these.
    ///
    /// # Errors
    /// A sentence, when a process is gone.
    pub fn resume(&mut self, nodes: &[usize]) -> Result<(), String> {
        for &node in nodes {
            self.signal(node, Signal::CONT)?;
            self.slots[node].is_stopped = false;
        }
        self.watch = None;
        Ok(())
    }

    /// The process of a running node.
    pub fn pid(&self, node: usize) -> Option<Pid> {
        self.slots[node].child.as_ref().map(Pid::from_child)
    }

    fn signal(&mut self, node: usize, signal: Signal) -> Result<(), String> {
        if self.ended(node).is_some() {
            return Err(format!("node {node} has died by itself"));
        }
        let pid = self.pid(node).ok_or_else(|| format!("node {node} is not running"))?;
        let sent = rustix::process::kill_process(pid, signal);
        sent.map_err(|error| format!("cannot signal node {node}: {error}"))
    }

    /// Nodes that have ended although nobody told them to, each with the end of its log.
    pub fn dead_by_themselves(&mut self) -> Vec<String> {
        let mut dead = Vec::new();
        for node in 0..self.slots.len() {
            if let Some(status) = self.ended(node) {
                let log = log_path(&self.recipe.directory, node);
                self.slots[node].child = None;
                dead.push(format!("node {node} died by itself ({status}): {}", last_lines(&log)));
            }
        }
        dead
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let running = self.running();
        self.kill(&running);
    }
}

fn log_path(directory: &Path, node: usize) -> PathBuf {
    directory.join(format!("node-{node}.log"))
}

fn last_lines(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(LOG_LINES_SHOWN).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|error| cannot("write", path, &error))
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}
