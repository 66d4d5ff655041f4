//! What the trial does inside the emulated world, step by step; each is a command that a user could have typed.
//!
//! A step's output goes to a file of its own. A step that fails is told with its last lines and does not keep later ones
//! from their turn, except that nothing follows when the nodes could not be started.

use super::sshd::Servers;
use super::{Trial, World};
use crate::Failure;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// When the region is cut off, and when it is joined again, in seconds of the load.
const CUT_AT: Duration = Duration::from_secs(10);
const HEAL_AT: Duration = Duration::from_secs(35);
/// What the bad node's links do.
const BAD_NODE: &str = "loss=20% jitter=100ms";

/// What the graders look at first. All stages, in both formats, would take half an hour at these distances.
const STAGES: &str =
    "alive,reply-form,basics-first,basics-random,overwrite,remove,invalid-command,at-most-once";

/// A load of which every answer is judged, and afterwards a look at every key: what was acknowledged must be there.
const CUT_PLAN: &str = r#"
name = "region-cut"
description = "Writes and reads at a fixed rate through a cut, then every key once, in order."
thresholds = ["wrong = 0"]

[defaults]
keys = 500
value-bytes = "10-1000"
warm-up = 0

[[step]]
do = "bulk"
clients = 32

[[step]]
do = "load"
name = "through the cut"
rates = [100]
seconds = 55
mix = "get:50,put:50"

[[step]]
do = "load"
name = "every key afterwards"
rates = [100]
seconds = 10
mix = "get:1"
key-order = "sequential"
"#;

const BAD_PLAN: &str = r#"
name = "bad-node"
description = "Reads and writes at a fixed rate while one node's links are bad."
thresholds = ["wrong = 0"]

[defaults]
keys = 500
value-bytes = "10-1000"
warm-up = 2

[[step]]
do = "load"
name = "one bad node"
rates = [100]
seconds = 20
mix = "get:50,put:50"
"#;

/// The commands of a trial and what came of them.
struct Steps<'a> {
    trial: &'a Trial,
    world: World,
    inventory: PathBuf,
    logs: PathBuf,
    failed: Vec<String>,
}

/// Runs all steps.
pub fn run(trial: &Trial) -> Result<ExitCode, Failure> {
    let world = World::read(&trial.world())?;
    let names: String = world.nodes.iter().map(|node| node.namespace.clone() + "\n").collect();
    fs::write(trial.dir.join("namespaces.txt"), names)?;
    let began = Instant::now();
    let servers = Servers::start(&trial.dir, &world.nodes)?;
    println!("✓ {} hosts accept ssh ({:.1} s)", world.nodes.len(), began.elapsed().as_secs_f64());
    let inventory = trial.dir.join("inventory.toml");
    fs::write(&inventory, inventory_of(trial, &world, &servers))?;
    let addresses: String = world.nodes.iter().map(|node| format!("{}:4410\n", node.address)).collect();
    fs::write(trial.dir.join("servers.txt"), addresses)?;
    let logs = trial.dir.join("steps");
    fs::create_dir_all(&logs)?;
    let mut steps = Steps { trial, world, inventory, logs, failed: Vec::new() };
    steps.all();
    drop(servers);
    if steps.failed.is_empty() {
        println!("✓ every step went well");
        Ok(ExitCode::SUCCESS)
    } else {
        println!("✗ failed: {}", steps.failed.join(", "));
        Ok(ExitCode::FAILURE)
    }
}

/// The inventory that a user would have written for these hosts. All of them share one file system, hence a directory each.
fn inventory_of(trial: &Trial, world: &World, servers: &Servers) -> String {
    let mut text = format!(
        "[defaults]\nidentity = \"{}\"\nssh_options = [\"UserKnownHostsFile={}\", \"StrictHostKeyChecking=yes\"]\n\
         node_port = 4410\n\n[node]\ngossip = \"wan\"\n",
        servers.identity.display(),
        servers.known_hosts.display()
    );
    for node in &world.nodes {
        let dir = trial.dir.join("hosts").join(&node.name);
        let _ = write!(
            text,
            "\n[[host]]\nname = \"{}\"\nhost = \"{}\"\nnode_address = \"{}\"\nsite = \"{}\"\nregion = \"{}\"\ndir = \"{}\"\n",
            node.name,
            node.address,
            node.address,
            node.site,
            node.area,
            dir.display()
        );
    }
    text
}

impl Steps<'_> {
    fn all(&mut self) {
        let binaries = path(&self.trial.binaries);
        self.testbed("deploy", &["deploy", "--binaries", &binaries]);
        self.testbed("deploy again, unchanged", &["deploy", "--binaries", &binaries]);
        self.testbed("probe", &["probe", "--seconds", "3"]);
        // All hosts are one machine, which is busy with all of them.
        let most = (self.trial.nodes / 2).max(1).to_string();
        self.testbed(
            "select",
            &["select", &most, "--load-max", "1000", "--memory-min", "1", "--disk-min", "1"],
        );
        if !self.testbed("start", &["start"]) {
            return;
        }
        self.testbed("status", &["status"]);
        self.measure();
        self.cut_a_region();
        self.suffer_a_bad_node();
        self.testbed("restart --rolling", &["restart", "--rolling"]);
        self.testbed("logs", &["logs"]);
        let said = self.execute("report", &self.trial.testbed, &["report", "--dir", &path(&self.trial.dir)]);
        self.tell("report", said);
        self.testbed("stop", &["stop"]);
    }

    /// Conformance and the graders' grid.
    fn measure(&mut self) {
        let servers = path(&self.trial.dir.join("servers.txt"));
        let json = path(&self.trial.dir.join("grid.json"));
        let seconds = self.trial.seconds.to_string();
        self.client("conformance", &["check", "--servers", &servers, "--stages", STAGES]);
        let cells = "S1,S16,S32,R1,R16,R32,R64";
        let grid = ["grid", "--servers", &servers, "--seconds", &seconds, "--cells", cells, "--json", &json];
        self.client("S/R grid", &grid);
    }

    /// Writes go on while a region is away and comes back: nothing that was acknowledged may be lost or wrong.
    fn cut_a_region(&mut self) {
        let Some(area) = self.smallest_area() else { return };
        let name = format!("region {area} cut and healed");
        let (ran, control) = thread::scope(|scope| {
            let this = &*self;
            let control = scope.spawn(move || {
                thread::sleep(CUT_AT);
                let cut = this.control(&format!("isolate @{area}"));
                thread::sleep(HEAL_AT - CUT_AT);
                cut.and(this.control("heal"))
            });
            let ran = this.run_plan("region-cut", CUT_PLAN);
            (ran, control.join())
        });
        let control = control.unwrap_or_else(|_| Err("the thread that cuts panicked".into()));
        self.tell(&name, ran.and_then(|said| control.map(|()| said)));
    }

    fn suffer_a_bad_node(&mut self) {
        let Some(bad) = self.world.nodes.last().map(|node| node.name.clone()) else { return };
        let name = format!("one bad node ({bad}: {BAD_NODE})");
        let made = self.control(&format!("bad {bad} {BAD_NODE}"));
        let ran = made.and_then(|()| self.run_plan("bad-node", BAD_PLAN));
        let healed = self.control("heal");
        self.tell(&name, ran.and_then(|said| healed.map(|()| said)));
    }

    /// The area with the fewest nodes, so that most of them stay together.
    fn smallest_area(&self) -> Option<String> {
        let count = |area: &str| self.world.nodes.iter().filter(|node| node.area == area).count();
        let areas = self.world.nodes.iter().map(|node| node.area.clone()).filter(|area| !area.is_empty());
        areas.filter(|area| 1 < count(area)).min_by_key(|area| (count(area), area.clone()))
    }

    fn run_plan(&self, name: &str, text: &str) -> Result<String, String> {
        let plan = self.trial.dir.join(format!("{name}.toml"));
        fs::write(&plan, text).map_err(|error| error.to_string())?;
        let servers = path(&self.trial.dir.join("servers.txt"));
        let json = path(&self.trial.dir.join(format!("{name}.json")));
        let html = path(&self.trial.dir.join(format!("{name}.html")));
        let plan = path(&plan);
        let arguments = ["run", &plan, "--servers", &servers, "--json", &json, "--html", &html];
        self.execute(name, &self.trial.binaries.join("violet-testclient"), &arguments)
    }

    fn control(&self, command: &str) -> Result<(), String> {
        let control = path(&self.world.control);
        let mut arguments = vec!["control", "--control", &control];
        arguments.extend(command.split_whitespace());
        self.execute("control", &self.trial.testbed, &arguments).map(drop)
    }

    fn testbed(&mut self, name: &str, arguments: &[&str]) -> bool {
        let (inventory, dir) = (path(&self.inventory), path(&self.trial.dir));
        let common = ["--inventory", &inventory, "--dir", &dir];
        let arguments: Vec<&str> = arguments.iter().copied().chain(common).collect();
        let said = self.execute(name, &self.trial.testbed, &arguments);
        self.tell(name, said)
    }

    fn client(&mut self, name: &str, arguments: &[&str]) -> bool {
        let said = self.execute(name, &self.trial.binaries.join("violet-testclient"), arguments);
        self.tell(name, said)
    }

    fn tell(&mut self, name: &str, said: Result<String, String>) -> bool {
        match &said {
            Ok(how) => println!("✓ {name} ({how})"),
            Err(why) => {
                println!("✗ {name}: {why}");
                self.failed.push(name.to_owned());
            }
        }
        said.is_ok()
    }

    /// Runs a program with its output in a file. How long it took, or its last lines.
    fn execute(&self, name: &str, program: &Path, arguments: &[&str]) -> Result<String, String> {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let file = self.logs.join(name.chars().map(plain).collect::<String>() + ".txt");
        let output = fs::File::create(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let errors = output.try_clone().map_err(|error| error.to_string())?;
        let began = Instant::now();
        let status = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .status()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        if status.success() {
            return Ok(format!("{:.1} s", began.elapsed().as_secs_f64()));
        }
        let text = fs::read_to_string(&file).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines[lines.len().saturating_sub(6)..].join("\n    ");
        Err(format!("{status} after {:.1} s; {}:\n    {last}", began.elapsed().as_secs_f64(), file.display()))
    }
}

fn path(path: &Path) -> String {
    path.display().to_string()
}
