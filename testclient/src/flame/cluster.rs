//! A cluster to look at: `violet cluster` with a command that only waits for the end of its input.
//!
//! The input is a pipe from this process, so the cluster ends with it, however it ends.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Distance from a node's UDP port to the TCP port of its admin server.
const ADMIN_PORT_OFFSET: u16 = 500;

/// What to start.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The violet binary.
    pub violet: PathBuf,
    /// Number of nodes.
    pub nodes: usize,
    /// UDP port of the first one; the others follow.
    pub port: u16,
    /// Where its files go.
    pub directory: PathBuf,
    /// Settings of every node, `name=value`.
    pub settings: Vec<String>,
}

/// Running nodes; dropping it ends them.
#[derive(Debug)]
pub struct Cluster {
    child: Child,
    /// Where the nodes listen.
    pub servers: Vec<SocketAddr>,
    /// Where their admin servers listen.
    pub admins: Vec<SocketAddr>,
    /// Their processes.
    pub pids: Vec<u32>,
}

impl Cluster {
    /// Starts the nodes and waits until they have found each other.
    ///
    /// # Errors
    /// The line that the cluster ended with.
    pub fn start(recipe: &Recipe) -> Result<Self, String> {
        let admin_port = recipe.port.checked_add(ADMIN_PORT_OFFSET).ok_or("--port: too high")?;
        let mut command = Command::new(&recipe.violet);
        command.args(["cluster", "--nodes", &recipe.nodes.to_string(), "--port", &recipe.port.to_string()]);
        command.args(["--admin-port", &admin_port.to_string()]).arg("--dir").arg(&recipe.directory);
        command.args(recipe.settings.iter().map(|setting| format!("--set={setting}")));
        // What the environment says is about another cluster.
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("VIOLET_")) {
            command.env_remove(name);
        }
        // The terminal's Ctrl-C is for this program, with which the cluster ends.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let command =
            command.args(["--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn();
        let child = child.map_err(|error| format!("cannot start {}: {error}", recipe.violet.display()))?;
        let addresses = |first: u16| -> Vec<SocketAddr> {
            (first..).take(recipe.nodes).map(|port| (Ipv4Addr::LOCALHOST, port).into()).collect()
        };
        let (servers, admins) = (addresses(recipe.port), addresses(admin_port));
        let mut cluster = Self { child, servers, admins, pids: Vec::new() };
        cluster.wait_until_ready()?;
        cluster.pids = read_pids(&recipe.directory.join("pids.txt"))?;
        Ok(cluster)
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let output = self.child.stdout.take().expect("it is piped");
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        // The cluster says two lines more than this one; cat says nothing, so no pipe can fill up.
        if lines.any(|line| line.contains("nodes are ready")) && lines.next().is_some() {
            return Ok(());
        }
        let mut errors = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            // An unreadable pipe leaves the line below, which is all there is to say then.
            let _ = stderr.read_to_string(&mut errors);
        }
        let last = errors.lines().last().unwrap_or("the cluster ended before it was ready");
        Err(last.trim_start_matches("violet: ").to_owned())
    }
}

fn read_pids(path: &Path) -> Result<Vec<u32>, String> {
    let text =
        fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let parse = |line: &str| line.parse().map_err(|_| format!("{}: no list of processes", path.display()));
    text.lines().map(parse).collect()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The end of its input ends the command, and that ends the nodes.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Processor time that these processes have used so far, in nanoseconds, all their threads together;
/// `None` where the kernel does not tell. Threads that have ended are not in it; nodes have none.
pub fn processor_nanos(pids: &[u32]) -> Option<u64> {
    let of_thread = |entry: fs::DirEntry| -> Option<u64> {
        let text = fs::read_to_string(entry.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    let of_process = |pid: &u32| -> Option<u64> {
        fs::read_dir(format!("/proc/{pid}/task")).ok()?.map(|entry| of_thread(entry.ok()?)).sum()
    };
    pids.iter().map(of_process).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_can_be_read() {
        assert!(processor_nanos(&[std::process::id()]).is_some_and(|nanos| 0 < nanos));
        assert_eq!(processor_nanos(&[u32::MAX]), None);
    }
}
