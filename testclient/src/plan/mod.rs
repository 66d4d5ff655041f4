//! The `run` command: plans, which are lists of steps in a TOML file or shipped with the program.
//!
//! [`file`] reads a plan, [`course`] does its steps, each in a room of its own, and what was seen is one
//! [`crate::result::RunResult`]. The servers are given, or nodes of violet that the run starts ([`ground`]); the loads are
//! made here ([`own`]) or by agents on several machines ([`crate::agents`]).

mod arguments;
mod conformance;
mod cost;
mod course;
mod estimate;
#[cfg(test)]
pub mod fake;
mod faults;
mod file;
mod ground;
mod hand;
mod happenings;
mod loader;
mod loads;
mod marks;
mod own;
mod scaling;
mod search;
mod shipped;
mod step;
mod words;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use self::arguments::RunPlanArguments;
use self::course::Course;
use self::file::Change;
use self::ground::{Ground, Home};
pub use self::loader::{CheckOrder, Checked, Loader, Order, Work};
pub use self::own::OwnLoader;
use self::shipped::SHIPPED;
pub use self::step::Settings;
use self::step::{Kind, Plan};
use crate::agents::Crew;
use crate::host;
use crate::interrupt::Stop;
use crate::report::{self, Table};
use crate::reports::thresholds::{self, Threshold};
use crate::reports::{self};
use crate::result::{LAYOUT, Machine, RunResult};
use crate::values::Random;

/// Runs the command; whether the run was whole and everything that was checked holds.
///
/// # Errors
/// Wrong usage or a wrong plan, in one sentence.
pub fn run(arguments: &RunPlanArguments) -> Result<bool, String> {
    if arguments.list {
        print_list();
        return Ok(true);
    }
    let name = arguments
        .plan
        .as_deref()
        .ok_or("name a plan, or a file with one; run --list shows the shipped ones")?;
    let (file, text) = find(name)?;
    if arguments.show {
        print!("{text}");
        return Ok(true);
    }
    let changes = changes(arguments)?;
    let plan = file::parse(&file, &text, &changes)?;
    let thresholds = thresholds(&file, &plan, arguments)?;
    if arguments.dry_run {
        println!("{}: {}\n\n{}", plan.name, plan.description.replace('\n', " "), estimate::table(&plan));
        return Ok(true);
    }
    perform(arguments, &plan, &thresholds)
}

fn print_list() {
    let mut table = Table::new(&["plan", "what it does"], 2);
    for (name, text) in SHIPPED {
        let plan = file::parse(name, text, &[]);
        let about = plan.map_or_else(|error| error, |plan| plan.description.replace('\n', " "));
        table.row(vec![name.to_owned(), about]);
    }
    println!("{}", table.text());
}

/// The plan of this name: a shipped one, or a file. A name with a dot or a slash is a file's.
fn find(name: &str) -> Result<(String, String), String> {
    let is_path = name.contains(['/', '.']);
    if let Some(text) = shipped::text(name).filter(|_| !is_path) {
        return Ok((shipped::file_name(name), text.to_owned()));
    }
    fs::read_to_string(name).map(|text| (name.to_owned(), text)).map_err(|error| {
        let names = SHIPPED.iter().map(|(name, _)| *name);
        match is_path {
            true => format!("cannot read the plan {name}: {error}"),
            false => {
                format!("{name:?} is neither a shipped plan nor a file; {}", words::instead(name, names))
            }
        }
    })
}

fn changes(arguments: &RunPlanArguments) -> Result<Vec<Change>, String> {
    let given = arguments.changes.iter().map(|text| Change::parse(text));
    let nodes = arguments.nodes.map(|nodes| Change { name: "nodes".to_owned(), value: nodes.to_string() });
    given.chain(nodes.map(Ok)).collect()
}

/// The thresholds of the plan and of the command line.
fn thresholds(file: &str, plan: &Plan, arguments: &RunPlanArguments) -> Result<Vec<Threshold>, String> {
    let of_plan = thresholds::parse_all(&plan.thresholds);
    let mut all = of_plan.map_err(|error| format!("{file}: thresholds: {error}"))?;
    all.extend(thresholds::parse_all(&arguments.thresholds)?);
    Ok(all)
}

fn perform(arguments: &RunPlanArguments, plan: &Plan, thresholds: &[Threshold]) -> Result<bool, String> {
    let home = home(arguments, plan)?;
    let given = arguments.servers.as_deref().map(crate::settings::parse_servers).transpose()?;
    check_needs(plan, given.is_some(), home.is_some())?;
    let stop = Stop::on_signals().map_err(|error| format!("cannot catch signals: {error}"))?;
    let token = arguments.token_file.as_deref().map(crate::agents::read_token).transpose()?;
    let mut own = OwnLoader::default();
    let mut crew = None;
    let mut machines = vec![host::this_machine()];
    if !arguments.agents.is_empty() {
        let met = Crew::meet(&arguments.agents, token.as_deref())?;
        met.warnings.iter().for_each(|warning| eprintln!("violet-testclient: {warning}"));
        machines = met.machines;
        crew = Some(met.crew);
    }
    let loader: &mut dyn Loader = match &mut crew {
        Some(crew) => crew,
        None => &mut own,
    };
    let result = first_result(arguments, plan, given.as_deref().unwrap_or_default(), machines);
    let ticks = host::ticks();
    let mut course = Course::new(plan, home, given.map(Ground::Given), loader, result, stop);
    let seed = course.result.seed;
    course.progress.line(&format!("{}: {} steps, seed {seed}", plan.name, plan.steps.len()));
    course.run();
    let mut result = course.result;
    match &mut crew {
        Some(crew) => crew.ask_machines(&mut result.machines),
        None => result.machines.iter_mut().for_each(|machine| host::after(machine, ticks)),
    }
    finish(arguments, &mut result, thresholds)
}

/// How own nodes are started, if the binary is named.
fn home(arguments: &RunPlanArguments, plan: &Plan) -> Result<Option<Home>, String> {
    let Some(violet) = &arguments.violet else { return Ok(None) };
    // A relative path would be looked for in the search path.
    let whole = violet.canonicalize().map_err(|error| format!("--violet {}: {error}", violet.display()))?;
    Ok(Some(Home {
        violet: whole,
        directory: arguments.dir.join(&plan.name),
        port: arguments.port,
        settings: plan.cluster.settings.clone(),
    }))
}

/// What a plan needs is known before anything is started.
fn check_needs(plan: &Plan, has_servers: bool, has_binary: bool) -> Result<(), String> {
    if !has_servers && !has_binary {
        return Err("name the servers with --servers or in VIOLET_SERVERS, or violet's binary with --violet"
            .to_owned());
    }
    let needs_binary = plan.steps.iter().find(|step| matches!(step.kind, Kind::Scaling(_)));
    match needs_binary {
        Some(step) if !has_binary => Err(format!(
            "{}: scaling starts clusters of its own: name violet's binary with --violet",
            step.place
        )),
        _ => Ok(()),
    }
}

fn first_result(
    arguments: &RunPlanArguments,
    plan: &Plan,
    servers: &[SocketAddr],
    machines: Vec<Machine>,
) -> RunResult {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    RunResult {
        layout: LAYOUT,
        name: plan.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        arguments: std::env::args().skip(1).collect(),
        started_unix_seconds: since_epoch.as_secs(),
        seed: arguments.seed.or(plan.seed).unwrap_or_else(Random::fresh_seed),
        settings: settings_of(plan),
        servers: servers.iter().map(ToString::to_string).collect(),
        machines,
        phases: Vec::new(),
        events: Vec::new(),
        checks: Vec::new(),
        incomplete: None,
    }
}

/// The settings of each step, as far as they are not the usual ones.
fn settings_of(plan: &Plan) -> BTreeMap<String, String> {
    let usual = serde_json::to_value(Settings::default()).unwrap_or_default();
    let mut all = BTreeMap::from([
        ("cluster.nodes".to_owned(), plan.cluster.nodes.to_string()),
        ("cluster.settings".to_owned(), plan.cluster.settings.join(" ")),
    ]);
    for step in &plan.steps {
        let own = serde_json::to_value(&step.settings).unwrap_or_default();
        for (word, value) in own.as_object().into_iter().flatten() {
            if usual.get(word) != Some(value) {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                all.insert(format!("{}.{word}", step.name), text);
            }
        }
    }
    all
}

/// Judges, prints the end, and writes the files.
fn finish(
    arguments: &RunPlanArguments,
    result: &mut RunResult,
    thresholds: &[Threshold],
) -> Result<bool, String> {
    let found = thresholds::check_all(thresholds, result);
    result.checks.extend(found);
    let failed: Vec<&crate::result::Check> =
        result.checks.iter().filter(|check| check.passed == Some(false)).collect();
    let unknown = result.checks.iter().filter(|check| check.passed.is_none()).count();
    let passed = result.checks.len() - failed.len() - unknown;
    let is_well = failed.is_empty() && unknown == 0 && result.incomplete.is_none();
    println!("\n{}", reports::summary(&result.name, result));
    println!("\n{passed} checks passed, {} failed, {unknown} undecided", failed.len());
    for check in &failed {
        println!("  FAIL {}: {}", check.name, check.seen);
    }
    if let Some(why) = &result.incomplete {
        println!("INCOMPLETE: {why}");
    }
    if let Some(path) = &arguments.json {
        report::write_json(path, result)?;
    }
    reports::write(&arguments.outputs, &[(result.name.clone(), result.clone())])?;
    Ok(is_well)
}
