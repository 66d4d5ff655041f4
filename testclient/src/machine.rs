//! What this program knows about the machine it runs on: its own processor time, the load average,
//! and the processes of servers on loopback. All from `/proc`; elsewhere the answer is "unknown".
//!
//! A signal goes only to a process that owns the UDP port of the server that reported it.

use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

/// Ticks of `/proc/self/stat` in a second; a constant of the Linux interface, whatever the kernel's own.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds of processor time that this process has used so far.
pub fn processor_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses and may hold spaces.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

/// The one-minute load average.
pub fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Whether a process of this id exists.
pub fn process_exists(pid: i32) -> bool {
    0 < pid && fs::metadata(format!("/proc/{pid}")).is_ok()
}

/// Whether a process is stopped or dead as far as the kernel's state letter says; `None` if unknown.
pub fn process_state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether the process has a UDP socket bound to this address, or to its port on every address.
pub fn owns_udp_port(pid: i32, address: SocketAddr) -> bool {
    let inodes = udp_inodes(address.port());
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    entries.flatten().any(|entry| {
        fs::read_link(entry.path()).is_ok_and(|target| {
            let target = target.to_string_lossy();
            inodes.iter().any(|inode| target == format!("socket:[{inode}]"))
        })
    })
}

fn udp_inodes(port: u16) -> Vec<String> {
    let wanted = format!(":{port:04X}");
    let tables = ["/proc/net/udp", "/proc/net/udp6"];
    let lines = tables.iter().filter_map(|table| fs::read_to_string(table).ok());
    lines
        .flat_map(|table| {
            table
                .lines()
                .filter_map(|line| {
                    let fields: Vec<&str> = line.split_whitespace().collect();
                    let local = fields.get(1)?;
                    local.ends_with(&wanted).then(|| fields.get(9).map(|&inode| inode.to_owned()))?
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

/// What can be sent to a server's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGKILL.
    Kill,
    /// SIGSTOP.
    Stop,
    /// SIGCONT.
    Continue,
}

/// Sends a signal to the process behind a server, after making sure that it is that.
///
/// # Errors
/// A sentence that says why the signal was not sent.
pub fn signal(pid: i32, server: SocketAddr, signal: Signal) -> Result<(), String> {
    if !server.ip().is_loopback() {
        return Err(format!("{server} is not on loopback"));
    }
    if pid <= 1 || pid.unsigned_abs() == std::process::id() {
        return Err(format!("{server} reports process {pid}, which cannot be a server"));
    }
    if !owns_udp_port(pid, server) {
        return Err(format!("process {pid} does not own the port of {server}"));
    }
    let name = match signal {
        Signal::Kill => "-KILL",
        Signal::Stop => "-STOP",
        Signal::Continue => "-CONT",
    };
    let status = Command::new("kill").args([name, &pid.to_string()]).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("kill {name} {pid} failed: {status}")),
        Err(error) => Err(format!("kill {name} {pid} failed: {error}")),
    }
}

/// Sees to it that stopped processes go on even if this program is killed: a shell that waits for the
/// end of a pipe, which the kernel closes with us, and then sends SIGCONT.
#[derive(Debug)]
pub struct ResumeWatch {
    shell: Child,
}

impl ResumeWatch {
    /// Starts watching over these processes, before they are stopped.
    ///
    /// # Errors
    /// A sentence, when there is no shell.
    pub fn start(pids: &[i32]) -> Result<Self, String> {
        let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
        // The terminal's Ctrl-C goes to the shell too; it must outlive that.
        let script = format!("trap '' INT TERM HUP; read line; kill -CONT {} 2>/dev/null", pids.join(" "));
        let shell = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn();
        shell
            .map(|shell| Self { shell })
            .map_err(|error| format!("cannot watch over stopped processes: {error}"))
    }
}

impl Drop for ResumeWatch {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // The shell ends by itself once its input has; there is nothing to do if it did not.
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn the_owner_of_a_port_is_known_and_a_stranger_is_never_signalled() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let own = std::process::id() as i32;
        assert!(owns_udp_port(own, address));
        assert!(!owns_udp_port(1, address) || own == 1);
        assert!(signal(own, address, Signal::Stop).is_err(), "never itself");
        let mut stranger = Command::new("sleep").arg("60").spawn().unwrap();
        let refused = signal(stranger.id() as i32, address, Signal::Kill);
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        assert!(refused.unwrap_err().contains("does not own the port"));
        assert!(signal(own, "192.0.2.1:1".parse().unwrap(), Signal::Stop).unwrap_err().contains("loopback"));
    }

    #[test]
    fn processor_time_and_load_can_be_read() {
        assert!(processor_seconds().is_some());
        assert!(load_average().is_some());
        assert!(process_exists(std::process::id() as i32));
        assert!(!process_exists(-1));
    }
}
