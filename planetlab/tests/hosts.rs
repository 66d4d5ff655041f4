//! Deploying to hosts, running nodes on them and reading their logs, for real: several sshd of this machine's own, on
//! loopback addresses, with keys, configuration and directories of their own.
//!
//! Among them are hosts that are dead, do not take the key, are not known, and have a full disk. Needs root and an
//! OpenSSH server, and says so on stderr where it is skipped; the nodes need the `violet` program beside this package's
//! own, where `cargo test --workspace` puts it.

#[allow(dead_code, reason = "used by other tests, too")]
#[path = "../../tests/ports/mod.rs"]
mod ports;

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SSHD: &str = "/usr/sbin/sshd";
const TESTBED: &str = env!("CARGO_BIN_EXE_violet-testbed");
const GOOD: [&str; 3] = ["good1", "good2", "good3"];

/// Why the test cannot be run here.
fn obstacle() -> Option<&'static str> {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    // In a container root may be refused this.
    let may_mount =
        || Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success());
    match (is_root, Path::new(SSHD).exists()) {
        (false, _) => Some("needs root"),
        (_, false) => Some("needs an OpenSSH server (package openssh-server)"),
        _ if !may_mount() => Some("needs the right to mount"),
        _ => None,
    }
}

/// The hosts of a test, and what has to be undone after it.
struct World {
    dir: tempfile::TempDir,
    sshds: Vec<Child>,
    full_disk: PathBuf,
}

impl Drop for World {
    fn drop(&mut self) {
        // A test that failed on the way may have left nodes running.
        let mut stop = Command::new(TESTBED);
        stop.args(["stop", "--force", "--only", &GOOD.join(","), "--inventory"])
            .arg(self.at("inventory.toml"));
        drop(stop.stdin(Stdio::null()).output());
        for sshd in &mut self.sshds {
            drop(sshd.kill());
            drop(sshd.wait());
        }
        drop(Command::new("umount").arg(&self.full_disk).status());
    }
}

fn did(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all("/run/sshd").unwrap();
        for key in ["host_key", "user_key", "wrong_key"] {
            did(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(at(key)));
        }
        fs::copy(at("user_key.pub"), at("authorized_keys")).unwrap();
        fs::write(
            at("sshd_config"),
            format!(
                "UsePAM no\nStrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\nPidFile none\nHostKey {}\n\
                 AuthorizedKeysFile {}\nSubsystem sftp internal-sftp\nSetEnv HOME={}\n",
                at("host_key").display(),
                at("authorized_keys").display(),
                // So that no start-up file of root's shell has a say, or takes its time.
                at("home").display()
            ),
        )
        .unwrap();
        let full_disk = at("full");
        fs::create_dir(&full_disk).unwrap();
        did(Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(&full_disk));
        fs::create_dir(at("tmp")).unwrap();
        let mut world = Self { sshds: Vec::new(), full_disk, dir };
        world.write_inventory();
        world
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts an sshd on an address and returns its port.
    fn sshd(&mut self, address: &str) -> u16 {
        let port = ports::free_at(address.parse().unwrap(), 1);
        let sshd = Command::new(SSHD)
            .args(["-D", "-e", "-f"])
            .arg(self.at("sshd_config"))
            .args(["-o", &format!("ListenAddress={address}:{port}")])
            .stdin(Stdio::null())
            .stderr(fs::File::create(self.at(&format!("sshd-{address}.log"))).unwrap())
            .spawn()
            .unwrap();
        self.sshds.push(sshd);
        let begun = Instant::now();
        while std::net::TcpStream::connect((address, port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(20), "sshd does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        port
    }

    fn write_inventory(&mut self) {
        let mut known = String::new();
        let host_key = fs::read_to_string(self.at("host_key.pub")).unwrap();
        let mut hosts = String::new();
        let addresses = [1, 2, 3, 4, 5, 6, 7].map(|n| format!("127.0.98.{n}"));
        let names = [&GOOD[..], &["dead", "wrong", "unknown", "full"]].concat();
        for (name, address) in names.iter().zip(&addresses) {
            let dead = || ports::free_at(address.parse().unwrap(), 1);
            let port = if *name == "dead" { dead() } else { self.sshd(address) };
            if *name != "unknown" {
                known.push_str(&format!("[{address}]:{port} {host_key}"));
            }
            let key = self.at(if *name == "wrong" { "wrong_key" } else { "user_key" });
            let dir =
                if *name == "full" { self.full_disk.join("violet") } else { self.at("hosts").join(name) };
            let node_port = ports::free_at(address.parse().unwrap(), 1);
            hosts.push_str(&format!(
                "[[host]]\nname = \"{name}\"\nhost = \"{address}\"\nssh_port = {port}\nidentity = \"{}\"\ndir = \"{}\"\n\
                 node_port = {node_port}\n",
                key.display(),
                dir.display()
            ));
        }
        let known_hosts = self.at("known_hosts");
        fs::write(&known_hosts, known).unwrap();
        let defaults = format!(
            "[defaults]\nuser = \"root\"\nssh_options = [\"UserKnownHostsFile={}\", \"GlobalKnownHostsFile=/dev/null\", \
             \"StrictHostKeyChecking=yes\", \"IdentityAgent=none\"]\n[node]\nsettings = {{ memory-mib = 64, forget-after-ms = 2000 }}\n",
            known_hosts.display()
        );
        fs::write(self.at("inventory.toml"), defaults + &hosts).unwrap();
    }

    /// Runs the testbed; returns its status and all that it said.
    fn run(&self, arguments: &[&str]) -> (i32, String) {
        let output = Command::new(TESTBED)
            .args(arguments)
            .args(["--inventory"])
            .arg(self.at("inventory.toml"))
            .args(["--dir"])
            .arg(self.at("local"))
            .env("TMPDIR", self.at("tmp"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        // Whatever happened, neither masters nor their sockets stay.
        assert_eq!(fs::read_dir(self.at("tmp")).unwrap().count(), 0);
        (output.status.code().unwrap(), String::from_utf8(said).unwrap())
    }

    /// The same on the good hosts, where it must succeed.
    fn good(&self, arguments: &[&str]) -> String {
        let (status, said) = self.run(&[arguments, &["--only", &GOOD.join(",")]].concat());
        assert_eq!(status, 0, "{arguments:?}: {said}");
        said
    }

    fn statuses(&self) -> Vec<Value> {
        let (_, said) = self.run(&["status", "--json", "--only", &GOOD.join(",")]);
        said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["status"].clone()).collect()
    }
}

/// A directory with the programs to deploy. Without a `violet` another program stands for it, which is good enough to
/// be deployed.
fn programs(dir: &Path) -> (PathBuf, bool) {
    let programs = dir.join("programs");
    fs::create_dir(&programs).unwrap();
    let violet = Path::new(TESTBED).with_file_name("violet");
    let is_there = violet.exists();
    fs::copy(if is_there { violet.as_path() } else { Path::new(TESTBED) }, programs.join("violet")).unwrap();
    fs::copy(TESTBED, programs.join("violet-testbed")).unwrap();
    (programs, is_there)
}

fn has(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "'{part}' is missing in: {said}");
    }
}

#[test]
fn hosts_that_fail_are_named_and_the_others_run() {
    if let Some(obstacle) = obstacle() {
        eprintln!("skipped: {obstacle}");
        return;
    }
    let world = World::new();
    let (programs, has_violet) = programs(world.dir.path());
    deploying(&world, programs.to_str().unwrap());
    locking(&world, programs.to_str().unwrap());
    if has_violet {
        running(&world);
        crashing(&world);
        restarting(&world);
        stopping(&world);
    } else {
        eprintln!("skipped in part: nodes need the violet program; 'cargo test --workspace' builds it");
    }
}

fn deploying(world: &World, programs: &str) {
    let (status, said) = world.run(&["status"]);
    assert_eq!(status, 1);
    has(&said, &["nothing is deployed", "dead host: ", "wrong key: ", "unknown host key: "]);
    let (status, said) = world.run(&["deploy", "--binaries", programs]);
    assert_eq!(status, 1);
    has(
        &said,
        &["uploaded to 3, switched on 0, unchanged on 0, failed on 4 of 7 hosts", "full: disk full: "],
    );
    has(
        &said,
        &[
            "dead: dead host: ssh: connect to host 127.0.98.4",
            "wrong: wrong key: ",
            "unknown: unknown host key: ",
        ],
    );
    // Nothing half is left where there was no room.
    let left: Vec<_> = fs::read_dir(world.full_disk.join("violet/releases")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(
        !world.full_disk.join("violet/lock").exists() && !world.full_disk.join("violet/current").exists()
    );
    has(&world.good(&["deploy", "--binaries", programs]), &["unchanged on 3, failed on 0"]);
    // Of three releases the last two stay, and the way back is a switch.
    let first = fs::read_link(world.at("hosts/good1/current")).unwrap();
    for (number, uploaded) in [(1, true), (2, true), (1, false)] {
        fs::copy(
            if number == 1 { "/bin/true" } else { "/bin/false" },
            Path::new(programs).join("violet-testclient"),
        )
        .unwrap();
        let said = world.good(&["deploy", "--binaries", programs]);
        has(&said, &[if uploaded { "uploaded to 3" } else { "switched on 3" }]);
    }
    let releases = fs::read_dir(world.at("hosts/good1/releases")).unwrap();
    let releases: Vec<_> = releases.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(releases.len(), 2, "{releases:?}");
    assert!(!releases.contains(&first.file_name().unwrap().to_owned()));
}

fn locking(world: &World, programs: &str) {
    // Held by a process that lives: this one.
    let pid = std::process::id();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let start = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().to_owned();
    let lock = world.at("hosts/good2/lock");
    fs::write(&lock, format!("{pid} {start} ann@box since then (deploy)\n")).unwrap();
    fs::remove_file(Path::new(programs).join("violet-testclient")).unwrap();
    let deploy = ["deploy", "--binaries", programs, "--only", "good1,good2,good3"];
    let (status, said) = world.run(&deploy);
    assert_eq!(status, 1);
    has(
        &said,
        &[
            "uploaded to 2",
            "failed on 1 of 3",
            "good2: locked by ann@box since then (deploy); --force takes it over",
        ],
    );
    assert!(lock.exists());
    has(&world.good(&["deploy", "--binaries", programs, "--force"]), &["uploaded to 1", "unchanged on 2"]);
    assert!(!lock.exists());
}

fn running(world: &World) {
    has(&world.good(&["start", "--gossip", "lan", "--set", "replicas=2"]), &["3 nodes started, 0 not"]);
    for file in ["hosts/good1/node/cluster.key", "local/cluster.key"] {
        assert_eq!(fs::metadata(world.at(file)).unwrap().permissions().mode() & 0o777, 0o600, "{file}");
    }
    let (status, said) = world.run(&["start", "--only", "good1"]);
    assert_eq!(status, 1);
    has(&said, &["good1: command failed (1): already running: process ", ", started by "]);
    await_members(world, 3);
    let (status, said) = world.run(&["status"]);
    assert_eq!(status, 1);
    has(&said, &["good1    running  ", "dead host: "]);
    let (status, said) = world.run(&["start", "--set", "replica=2", "--only", "good1"]);
    assert_eq!((status, said.lines().count()), (1, 2), "{said}");
}

fn await_members(world: &World, members: u64) {
    let begun = Instant::now();
    while !world
        .statuses()
        .iter()
        .all(|status| status["members_alive"] == members && status["is_settled"] == true)
    {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", world.statuses());
    }
}

fn crashing(world: &World) {
    let pid = world.statuses()[1]["pid"].as_i64().unwrap();
    did(Command::new("kill").args(["-9", &pid.to_string()]));
    let begun = Instant::now();
    while world.statuses()[1]["last_error"] != "ended: signal 9" {
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", world.statuses());
    }
    assert_eq!(world.statuses()[1]["state"], "died");
    // The log can be read all the same, and tells it in its place.
    let (status, said) = world.run(&["logs", "-o", "-"]);
    assert_eq!(status, 1);
    has(
        &said,
        &[
            "good1 out violet: ready on 127.0.98.1:",
            "good2 end signal 9",
            "wrong: wrong key",
            "good3: clock ",
        ],
    );
    let times: Vec<&str> =
        said.lines().filter_map(|line| line.split_once("Z good")).map(|(time, _)| time).collect();
    assert!(3 <= times.len() && times.is_sorted(), "{said}");
    let said = world.good(&["logs", "--node", "good2", "--text", "SIGNAL", "-o", "-"]);
    assert_eq!(said.lines().filter(|line| line.contains("Z good")).count(), 1, "{said}");
    let (status, said) = world.run(&["start", "--only", "good2"]);
    assert_eq!(status, 0, "{said}");
    await_members(world, 3);
}

fn restarting(world: &World) {
    let pids = || world.statuses().iter().map(|status| status["pid"].as_i64().unwrap()).collect::<Vec<_>>();
    let before = pids();
    let said = world.good(&["restart", "--rolling"]);
    has(&said, &["good1: restarted, settled after", "good3: restarted, settled after"]);
    let after = pids();
    assert!(before.iter().all(|pid| !after.contains(pid)), "{before:?} {after:?}");
}

fn stopping(world: &World) {
    let pids: Vec<i64> = world.statuses().iter().map(|status| status["pid"].as_i64().unwrap()).collect();
    has(&world.good(&["stop"]), &["3 nodes stopped, 0 were not running"]);
    has(&world.good(&["stop"]), &["0 nodes stopped, 3 were not running"]);
    for pid in pids {
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_else(|_| "(x) Z".into());
        assert!(state.contains(") Z"), "process {pid} is still there: {state}");
    }
    assert!(world.statuses().iter().all(|status| status["state"] == "stopped"));
}
