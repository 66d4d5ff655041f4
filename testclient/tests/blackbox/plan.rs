//! `run` and `agent` against the reference cluster and against processes that can be stopped.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{Fault, Processes};
use crate::reference::{Defect, Reference};
use crate::{said, testclient};

/// A directory of a test's own.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("violet-plan-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Left behind at worst in the directory for such things.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn result(path: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(Path::new(path)).unwrap()).unwrap()
}

fn names(result: &Value, list: &str) -> Vec<String> {
    let texts = result[list].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned());
    texts.collect()
}

const STEPS: &str = r#"
name = "steps"
description = "a little of everything that any server bears"

[defaults]
keys = 300
seconds = 1
warm-up = 0
threads = 1

[[step]]
do = "conformance"
stages = ["alive", "basics-first"]

[[step]]
do = "bulk"
clients = 8

[[step]]
do = "load"
name = "open"
rates = [200]
arrivals = "constant"
mix = "get:1"

[[step]]
do = "load"
name = "closed"
clients = [2, 4]
seconds = 0.5

[[step]]
do = "wipe"

[[step]]
do = "grid"
cells = ["S2", "R4"]
seconds = 0.3

[[step]]
do = "pause"
pause-seconds = 0.1
"#;

#[test]
fn shipped_plans_are_listed_shown_and_estimated() {
    let list = said(&testclient("run --list"));
    for name in ["smoke", "grade-2015", "grade-2016", "grade-2019", "grade-2023", "honest-2009", "scaling"] {
        assert!(list.contains(&format!("| {name} ")), "{list}");
        let shown = testclient(&format!("run --show {name}"));
        assert!(said(&shown).contains(&format!("name = \"{name}\"")), "{}", said(&shown));
        let estimated = testclient(&format!("run --dry-run {name}"));
        assert_eq!(estimated.status.code(), Some(0), "{}", said(&estimated));
        assert!(said(&estimated).contains(" in all."), "{}", said(&estimated));
    }
    let smoke = said(&testclient("run smoke --dry-run"));
    let seconds = smoke.split("About ").nth(1).and_then(|rest| rest.split(" s in all").next());
    assert!(seconds.unwrap().parse::<f64>().unwrap() < 30.0, "{smoke}");
    let shorter = said(&testclient("run smoke --dry-run --set seconds=1 --set open.rates=[50,60]"));
    assert!(shorter.contains("50/s, 60/s of 1 s"), "{shorter}");
}

#[test]
fn wrong_usage_and_wrong_plans_are_one_line() {
    let scratch = Scratch::new("wrong");
    let typo = scratch.write("typo.toml", &STEPS.replace("seconds = 1\n", "secnds = 1\n"));
    for (arguments, expected) in [
        ("run".to_owned(), "name a plan".to_owned()),
        ("run smoek".to_owned(), "did you mean \"smoke\"?".to_owned()),
        ("run /no/plan.toml".to_owned(), "cannot read the plan /no/plan.toml".to_owned()),
        (format!("run {typo}"), format!("{typo}:7: \"secnds\" is no word here; did you mean \"seconds\"?")),
        (
            "run smoke --set kyes=1".to_owned(),
            "--set kyes=1: nothing in this plan is called \"kyes\"; did you mean \"keys\"?".to_owned(),
        ),
        (
            "run smoke".to_owned(),
            "name the servers with --servers or in VIOLET_SERVERS, or violet's binary".to_owned(),
        ),
        ("run smoke --servers 127.0.0.1:x".to_owned(), "127.0.0.1:x".to_owned()),
        ("run smoke --violet /no/violet".to_owned(), "--violet /no/violet: ".to_owned()),
        (
            "run scaling --servers 127.0.0.1:1".to_owned(),
            "scaling (shipped):16: scaling starts clusters of its own".to_owned(),
        ),
        (
            "run smoke --servers 127.0.0.1:1 --agents nowhere".to_owned(),
            "agents are named HOST:PORT".to_owned(),
        ),
        ("agent --listen 0.0.0.0:0".to_owned(), "beyond loopback an agent needs --token-file".to_owned()),
        ("agent --token-file /no/token".to_owned(), "--token-file /no/token".to_owned()),
    ] {
        let output = testclient(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {}", said(&output));
        assert!(stderr.contains(&expected), "{arguments}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{arguments}: {stderr}");
    }
}

#[test]
fn a_plan_of_many_steps_runs_against_any_server() {
    let scratch = Scratch::new("steps");
    let (plan, json) = (scratch.write("steps.toml", STEPS), scratch.path("result.json"));
    for format in ["protobuf", "raw"] {
        let cluster = Reference::start(3, Defect::None);
        let output = testclient(&format!(
            "run {plan} --servers {} --set format={format} --seed 5 --json {json}",
            cluster.list()
        ));
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let result = result(&json);
        assert_eq!(
            (&result["name"], &result["seed"], &result["layout"]),
            (&"steps".into(), &5.into(), &1.into())
        );
        assert_eq!(result["servers"].as_array().unwrap().len(), 3);
        assert!(result["incomplete"].is_null());
        assert_eq!(
            names(&result, "phases"),
            ["bulk", "open", "closed 2 clients", "closed 4 clients", "S2", "R4"]
        );
        for phase in result["phases"].as_array().unwrap() {
            let count = |word: &str| phase["counts"][word].as_u64().unwrap();
            assert_eq!(count("offered"), count("sent") + count("skipped"), "{phase}");
            assert_eq!(count("sent"), count("answered") + count("timed_out"), "{phase}");
            assert_eq!((count("wrong"), &phase["format"]), (0, &format.into()), "{phase}");
            assert!(0 < count("good"), "{phase}");
        }
        assert_eq!(result["phases"][0]["counts"]["good"], 300);
        let checks = result["checks"].as_array().unwrap();
        assert!(3 <= checks.len() && checks.iter().all(|check| check["passed"] == true), "{checks:?}");
    }
}

#[test]
fn wrong_values_fail_the_run_and_are_named() {
    let cluster = Reference::start(2, Defect::WrongValue);
    let scratch = Scratch::new("values");
    let plan = scratch.write(
        "steps.toml",
        &STEPS.replace("stages = [\"alive\", \"basics-first\"]", "stages = [\"alive\"]"),
    );
    let output = testclient(&format!("run {plan} --servers {}", cluster.list()));
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("FAIL open: every answer is right"), "{}", said(&output));
    assert!(said(&output).contains("FAIL S2: every answer is right"), "{}", said(&output));
}

#[test]
fn half_a_list_that_is_wrong_is_named_and_the_rest_goes_on() {
    let scratch = Scratch::new("half");
    let (plan, json) = (scratch.write("steps.toml", STEPS), scratch.path("result.json"));
    let cluster = Reference::start(2, Defect::None);
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let nobody = nobody.local_addr().unwrap();
    let output = testclient(&format!("run {plan} --servers {},{nobody} --json {json}", cluster.list()));
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(
        said(&output).contains(&format!("1 of 3 servers do not answer in the Protobuf format: {nobody}")),
        "{}",
        said(&output)
    );
    let result = result(&json);
    assert_eq!(result["phases"].as_array().unwrap().len(), 6, "{}", said(&output));
    assert!(result["phases"].as_array().unwrap().iter().all(|phase| phase["servers"] == 2));
    // And nobody at all is said once for each step, without waiting for time-outs of loads.
    let output = testclient(&format!("run {plan} --servers {nobody} --json {json}"));
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("the only server does not answer"), "{}", said(&output));
    assert!(said(&output).contains("start them, or correct the list"), "{}", said(&output));
}

fn start(arguments: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_violet-testclient"))
        .args(arguments.split_whitespace())
        .env_remove("VIOLET_SERVERS")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Lines of what a child says, until one holds this text.
fn await_line(child: &mut Child, text: &str) -> String {
    let output = child.stdout.as_mut().unwrap();
    // Byte by byte, so that nothing behind the line is taken away.
    let mut reader = BufReader::with_capacity(1, output);
    loop {
        let mut line = String::new();
        assert!(0 < reader.read_line(&mut line).unwrap(), "it ended without saying {text:?}");
        if line.contains(text) {
            return line;
        }
    }
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

fn await_output(child: Child) -> Output {
    child.wait_with_output().unwrap()
}

#[test]
fn an_interrupted_run_writes_what_it_has() {
    let scratch = Scratch::new("interrupted");
    let plan = STEPS.replace("clients = [2, 4]\nseconds = 0.5", "clients = [2, 4]\nseconds = 600");
    let (plan, json) = (scratch.write("steps.toml", &plan), scratch.path("result.json"));
    let cluster = Reference::start(2, Defect::None);
    let mut run = start(&format!("run {plan} --servers {} --json {json}", cluster.list()));
    await_line(&mut run, "step 4 of 7");
    signal(&run, "-TERM");
    let since = Instant::now();
    let output = await_output(run);
    assert!(since.elapsed() < Duration::from_secs(60));
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let result = result(&json);
    assert!(result["incomplete"].as_str().unwrap().contains("interrupted"), "{}", result["incomplete"]);
    let phases = names(&result, "phases");
    assert!(phases.starts_with(&["bulk".to_owned(), "open".to_owned()]), "{phases:?}");
}

/// An agent on a port of its own, and that.
fn agent(more: &str) -> (Child, String) {
    let mut agent = start(&format!("agent --listen 127.0.0.1:0 {more}"));
    let line = await_line(&mut agent, "agent ready at ");
    let address = line.split("agent ready at ").nth(1).unwrap();
    let address = address.split([',', '\n']).next().unwrap().to_owned();
    (agent, address)
}

/// Ends a process of this test when it goes out of scope.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn agents_share_a_plan_and_a_lost_one_is_named() {
    let scratch = Scratch::new("agents");
    let json = scratch.path("result.json");
    let token = scratch.write("token", "a-secret-of-sixteen\n");
    let cluster = Reference::start(2, Defect::None);
    let ((one, first), (two, second)) =
        (agent(&format!("--token-file {token}")), agent(&format!("--token-file {token}")));
    let (_one, mut two) = (Ends(one), Ends(two));
    let plan = scratch.write("steps.toml", STEPS);
    let line = format!("run {plan} --servers {} --agents {first},{second} --json {json}", cluster.list());
    let refused = testclient(&line);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains(&format!("agent {first} refuses: wrong token")), "{}", said(&refused));
    let output = testclient(&format!("{line} --token-file {token}"));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let whole = result(&json);
    let machines = whole["machines"].as_array().unwrap();
    assert_eq!(machines.len(), 2);
    for machine in machines {
        assert!(machine["load_average_before"].is_number() && machine["load_average_after"].is_number());
        assert!(machine["steal_share"].is_number(), "{machine}");
    }
    // Stages are run by the first alone, and their checks say so.
    assert!(said(&output).contains(&format!("run by agent {first} alone")), "{}", said(&output));
    let checks = whole["checks"].as_array().unwrap();
    let alive = checks.iter().find(|check| check["name"] == "conformance: alive (protobuf)").unwrap();
    assert_eq!(alive["seen"], format!("as it must be (seen by agent {first})"));
    // Clients of a cell are dealt out: one to each, and two.
    for (phase, clients) in [(4, 2), (5, 4)] {
        let cell = &whole["phases"][phase];
        assert_eq!((&cell["clients"], &cell["generator"]["threads"]), (&clients.into(), &2.into()), "{cell}");
        assert!(0 < cell["counts"]["good"].as_u64().unwrap() && cell["counts"]["wrong"] == 0, "{cell}");
    }
    assert_eq!(whole["phases"][0]["counts"]["good"], 300, "both shares of the data set");
    let open = &whole["phases"][1];
    assert_eq!((&open["rate"], &open["generator"]["threads"]), (&200.0.into(), &2.into()));
    assert_eq!(open["counts"]["offered"], 200);
    // The second one dies in the middle of the open loop.
    let longer = scratch.write("longer.toml", &STEPS.replace("rates = [200]", "rates = [200]\nseconds = 20"));
    let line = format!(
        "run {longer} --servers {} --agents {first},{second} --token-file {token} --json {json}",
        cluster.list()
    );
    let mut run = start(&line);
    await_line(&mut run, "step 3 of 7");
    std::thread::sleep(Duration::from_millis(600));
    two.0.kill().unwrap();
    signal(&run, "-INT");
    let output = await_output(run);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let incomplete = result(&json)["incomplete"].as_str().unwrap().to_owned();
    assert!(said(&output).contains(&format!("agent {second} was lost")), "{}", said(&output));
    assert!(!incomplete.is_empty());
}

const SUSPEND: &str = r#"
name = "suspend"
description = "one of three stands still"

[[step]]
do = "faults"
fault = "suspend"
keys = 40
rate = 100
seconds-before = 2
seconds-down = 1.5
seconds-after = 2
settle-seconds = 2
"#;

#[test]
fn suspended_servers_are_judged_by_every_key() {
    let scratch = Scratch::new("suspend");
    let (plan, json) = (scratch.write("suspend.toml", SUSPEND), scratch.path("result.json"));
    let cluster = Processes::start(3, Fault::None);
    let output = testclient(&format!("run {plan} --servers {} --json {json}", cluster.list()));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let result = result(&json);
    let kinds: Vec<&str> =
        result["events"].as_array().unwrap().iter().map(|event| event["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["suspend", "resume"]);
    // Told while it was done, among the lines about the load, and not only in the end.
    for deed in ["s: suspend 127.0.0.1:", "s: resume 127.0.0.1:"] {
        assert!(said(&output).contains(deed), "{}", said(&output));
    }
    let checks = names(&result, "checks");
    for expected in
        ["faults: keys lost", "faults: keys stale, resurrected or wrong", "faults: goodput recovers"]
    {
        assert!(checks.iter().any(|check| check == expected), "{checks:?}");
    }
    assert!(4 <= result["phases"][0]["seconds"].as_array().unwrap().len());
}

#[test]
fn servers_that_take_their_data_along_lose_keys() {
    let scratch = Scratch::new("shutdown");
    let plan = scratch.write("shutdown.toml", &SUSPEND.replace("\"suspend\"\nkeys", "\"shutdown\"\nkeys"));
    let cluster = Processes::start(3, Fault::TakesDataAlong);
    let output = testclient(&format!("run {plan} --servers {}", cluster.list()));
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("FAIL faults: keys lost"), "{}", said(&output));
}

#[test]
fn faults_that_cannot_be_made_say_what_would_be_right() {
    let scratch = Scratch::new("cannot");
    let plan = scratch.write("suspend.toml", SUSPEND);
    let cluster = Reference::start(3, Defect::None);
    for (more, expected) in [
        ("--set faults.nodes=3", "nodes = 3 needs as many servers beside the first, there are 2"),
        ("--set faults.restart=true", "restart = true needs nodes that the plan has started"),
    ] {
        let output = testclient(&format!("run {plan} --servers {} {more}", cluster.list()));
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(expected), "{more}: {}", said(&output));
    }
}

const TOGETHER: &str = r#"
name = "together"
description = "keys that two runs at once would write to, had they the same"

[defaults]
keys = 50
seconds = 2
warm-up = 0

[[step]]
do = "bulk"
clients = 8

[[step]]
do = "load"
clients = [8]
mix = "get:60,put:30,remove:10"

[[step]]
do = "conformance"
stages = ["basics-first", "overwrite", "remove"]
"#;

#[test]
fn two_runs_of_one_seed_at_once_have_keys_of_their_own() {
    let scratch = Scratch::new("together");
    let plan = scratch.write("together.toml", TOGETHER);
    for format in ["protobuf", "raw"] {
        let cluster = Reference::start(2, Defect::None);
        let line = format!("run {plan} --servers {} --seed 7 --set format={format}", cluster.list());
        let runs = [start(&line), start(&line)];
        for output in runs.map(await_output) {
            assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        }
    }
}

#[test]
fn a_second_run_that_empties_the_servers_is_named() {
    let scratch = Scratch::new("emptied");
    let grid = |cells: &str, seconds: f64| {
        format!(
            "name = \"grid\"\ndescription = \"wipes\"\n[[step]]\ndo = \"grid\"\ncells = [{cells}]\nseconds = {seconds}\n"
        )
    };
    let long = scratch.write("long.toml", &grid("\"R64\"", 6.0));
    let short = scratch.write("short.toml", &grid(&["\"S1\""; 10].join(","), 0.1));
    let cluster = Reference::start(2, Defect::None);
    let mut disturbed = start(&format!("run {long} --servers {} --seed 7", cluster.list()));
    await_line(&mut disturbed, "step 1 of 1");
    std::thread::sleep(Duration::from_secs(1));
    testclient(&format!("run {short} --servers {} --seed 7", cluster.list()));
    let output = await_output(disturbed);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("FAIL R64: every answer is right"), "{}", said(&output));
    assert!(said(&output).contains("marks that this run left are gone, too"), "{}", said(&output));
}
