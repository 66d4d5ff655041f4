//! One sshd in each emulated host's namespace, with keys of its own, for as long as the trial lasts.
//!
//! They have no PAM, listen on their node's address only and take one key, which is made for the trial. Sessions outlive
//! the sshd that made them, so at the end whatever still runs in the namespaces is the emulator's to end.

use super::Node;
use crate::Failure;
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long all of them together may take to listen.
const START_MAX: Duration = Duration::from_secs(30);

/// The servers; they end when this is dropped.
#[derive(Debug)]
pub struct Servers {
    children: Vec<Child>,
    /// The client's key, which all of them take.
    pub identity: PathBuf,
    /// Their host keys, in the form of ssh's own list.
    pub known_hosts: PathBuf,
}

/// Where sshd is.
pub fn program() -> Result<PathBuf, Failure> {
    let places = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/sbin/sshd"].map(PathBuf::from);
    let found = places.into_iter().find(|place| place.exists());
    found.ok_or_else(|| "needs sshd: install the package openssh-server (its service need not run)".into())
}

impl Servers {
    /// Starts one in each namespace and waits until all of them accept connections.
    pub fn start(dir: &Path, nodes: &[Node]) -> Result<Self, Failure> {
        let program = program()?;
        let dir = dir.join("sshd");
        // Keys of an earlier trial must not be taken for this one's.
        let _not_there = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir)?;
        // sshd demands this directory, and only its service makes it.
        fs::create_dir_all("/run/sshd")?;
        let identity = dir.join("client_key");
        make_key(&identity)?;
        let host_key = dir.join("host_key");
        make_key(&host_key)?;
        let public = fs::read_to_string(host_key.with_extension("pub"))?;
        let known: String = nodes.iter().map(|node| format!("{} {public}", node.address)).collect();
        let known_hosts = dir.join("known_hosts");
        fs::write(&known_hosts, known)?;
        let mut servers = Self { children: Vec::new(), identity, known_hosts };
        for node in nodes {
            let child = servers.start_one(&program, &dir, &host_key, node)?;
            servers.children.push(child);
        }
        servers.wait(nodes)?;
        Ok(servers)
    }

    fn start_one(&self, program: &Path, dir: &Path, host_key: &Path, node: &Node) -> Result<Child, Failure> {
        let config = dir.join(format!("{}.conf", node.name));
        let text = format!(
            "ListenAddress {}:22\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\nStrictModes no\n\
             PasswordAuthentication no\nPermitRootLogin prohibit-password\nMaxStartups 100\nUseDNS no\n\
             Subsystem sftp internal-sftp\n",
            node.address,
            host_key.display(),
            self.identity.with_extension("pub").display(),
        );
        fs::write(&config, text)?;
        let log = fs::File::create(dir.join(format!("{}.log", node.name)))?;
        let child = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{}", node.namespace))
            .arg(program)
            .args(["-D", "-e", "-f"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        child.map_err(|error| format!("nsenter (package util-linux): {error}").into())
    }

    fn wait(&mut self, nodes: &[Node]) -> Result<(), Failure> {
        let until = Instant::now() + START_MAX;
        for (node, child) in nodes.iter().zip(&mut self.children) {
            let address = format!("{}:22", node.address).parse()?;
            while TcpStream::connect_timeout(&address, Duration::from_secs(2)).is_err() {
                if let Some(status) = child.try_wait()? {
                    return Err(format!("sshd of {} ended: {status}; see its log in sshd/", node.name).into());
                }
                if until <= Instant::now() {
                    return Err(format!("sshd of {} does not listen after {START_MAX:?}", node.name).into());
                }
                thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended already; then there is nothing to end.
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }
}

fn make_key(path: &Path) -> Result<(), Failure> {
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).status();
    match made {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("ssh-keygen: {status}").into()),
        Err(error) => Err(format!("ssh-keygen: {error}; install the OpenSSH client").into()),
    }
}
