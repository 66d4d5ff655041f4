//! The step `scaling`: fresh clusters of several sizes, each several times, at the same offered rate and at full
//! throughput, with what their processes used.
//!
//! All nodes share one machine, and so does the load: more nodes cannot bring more throughput than the machine has
//! processors for. The honest quantity is what a request costs against the number of nodes. Sizes beyond what the
//! machine bears are asked of the simulator, which counts datagrams, not time.

use std::process::Command;

use super::course::{Course, corrected};
use super::ground::{Ground, OwnCluster};
use super::loader::Work;
use super::step::{self, Settings, Step};
use crate::report::{Table, milliseconds};
use crate::reports::cost;
use crate::result::{Loop, Phase};

/// Fewer repeats say nothing about spread.
const REPEATS_MIN: usize = 3;
/// Clients of the first fill.
const FILL_CLIENTS: usize = 32;
/// Virtual seconds of a simulated run.
const SIMULATED_SECONDS: u32 = 10;
/// Said with every figure.
const HONEST: &str = "All nodes and the load share one machine: throughput against nodes shows that machine. The \
honest quantity is the cost of a request against nodes; what nodes do when nobody asks is in it, too, the more so \
the lower the rate.";

/// Runs the step.
pub fn run(course: &mut Course<'_>, step: &Step, kind: &step::Scaling) -> Result<(), String> {
    let home = course.home.clone().ok_or("scaling starts its own nodes: name the binary with --violet")?;
    let before = course.ground.take();
    let first = course.result.phases.len();
    let repeats = step.settings.repeats.max(REPEATS_MIN);
    let mut outcome = Ok(());
    'all: for repeat in 0..repeats {
        for &nodes in &kind.nodes {
            if course.stop.is_set() {
                outcome = Err(format!("in round {} of {repeats}, before {nodes} nodes", repeat + 1));
                break 'all;
            }
            let done = OwnCluster::start(&home, nodes, &course.stop).and_then(|cluster| {
                course.alive = vec![true; nodes];
                course.note_servers(&cluster.servers);
                course.ground = Some(Ground::Own(cluster));
                one(course, step, kind, nodes)
            });
            // The next cluster needs the ports.
            course.ground = None;
            course.forget();
            if let Err(why) = done {
                outcome = Err(format!("{nodes} nodes, round {}: {why}", repeat + 1));
                break 'all;
            }
        }
    }
    course.ground = before;
    course.alive = Vec::new();
    if let Some(ground) = &course.ground {
        let servers = ground.servers().to_vec();
        course.note_servers(&servers);
    }
    let phases = course.result.phases[first..].to_vec();
    course.progress.line(&format!("\n{}\n{HONEST}\n", table(&phases).text()));
    outcome?;
    simulate(course, step, kind)
}

/// The loads on one fresh cluster.
fn one(course: &mut Course<'_>, step: &Step, kind: &step::Scaling, nodes: usize) -> Result<(), String> {
    let name = format!("{} {nodes} nodes", step.name);
    let mut filling = course.order(
        &format!("{name} fill"),
        &format!("{name} fill"),
        Loop::Closed { clients: FILL_CLIENTS },
        &step.settings,
    );
    filling.work = Work::Fill;
    // Writing the data set is also the warm-up.
    let filled = {
        let stop = course.stop.clone();
        course.loader.load(&filling, &stop, &mut |_| {})?
    };
    if filled.counts.good < step.settings.keys {
        return Err(format!("only {} of {} keys were stored", filled.counts.good, step.settings.keys));
    }
    let settings = Settings { warm_up: 0.0, ..step.settings.clone() };
    let open = Loop::Open { rate: kind.rate, arrivals: settings.arrivals };
    let group = format!("{name} {}/s", kind.rate);
    let order = course.order(&group, &group, open, &settings);
    course.load(&order)?;
    if 0 < kind.clients {
        let group = format!("{name} {} clients", kind.clients);
        let order = course.order(&group, &group, Loop::Closed { clients: kind.clients }, &settings);
        course.load(&order)?;
    }
    Ok(())
}

/// Mean and half the range of some figures, as `12.3 ±0.4`.
fn mean_and_spread(figures: &[f64]) -> String {
    if figures.is_empty() {
        return "-".to_owned();
    }
    let mean = figures.iter().sum::<f64>() / figures.len() as f64;
    let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
    let most = figures.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{} ±{}", milliseconds(mean), milliseconds((most - least) / 2.0))
}

/// A row for each size and way of loading: means over the repeats, with half the range behind ±.
fn table(phases: &[Phase]) -> Table {
    let headings = [
        "load",
        "nodes",
        "runs",
        "good/s",
        "p50 ms",
        "p99 ms",
        "CPU µs/req",
        "RSS MiB/node",
        "datagrams/req",
        "bytes/req",
        "sent again/req",
    ];
    let mut groups: Vec<&str> = Vec::new();
    for phase in phases {
        if !groups.contains(&phase.group.as_str()) {
            groups.push(&phase.group);
        }
    }
    let mut table = Table::new(&headings, 1);
    for group in groups {
        let runs: Vec<&Phase> = phases.iter().filter(|phase| phase.group == group).collect();
        let each = |figure: &dyn Fn(&Phase) -> Option<f64>| -> String {
            let figures: Option<Vec<f64>> = runs.iter().map(|phase| figure(phase)).collect();
            figures.map_or(cost::NOT_TOLD.to_owned(), |figures| mean_and_spread(&figures))
        };
        let requests = |phase: &Phase| phase.counts.sent.max(1) as f64;
        table.row(vec![
            match runs[0].timing {
                Loop::Open { rate, .. } => format!("{rate:.0}/s offered"),
                Loop::Closed { clients } => format!("{clients} clients"),
            },
            runs[0].servers.to_string(),
            runs.len().to_string(),
            each(&|phase| Some(phase.good_per_second())),
            each(&|phase| Some(corrected(phase).ms(50.0))),
            each(&|phase| Some(corrected(phase).ms(99.0))),
            each(&|phase| Some(phase.cost?.processor_seconds * 1e6 / requests(phase))),
            each(&|phase| Some(phase.cost?.resident_bytes as f64 / 1_048_576.0 / phase.servers as f64)),
            each(&|phase| Some(phase.cost?.datagrams_sent? as f64 / requests(phase))),
            each(&|phase| Some(phase.cost?.bytes_sent? as f64 / requests(phase))),
            each(&cost::sent_again_per_request),
        ]);
    }
    table
}

/// Asks the simulator about sizes beyond this machine.
fn simulate(course: &mut Course<'_>, step: &Step, kind: &step::Scaling) -> Result<(), String> {
    if kind.simulated.is_empty() {
        return Ok(());
    }
    let counted = sim(course, &["--count"])?.1;
    let per_request = DatagramsPerRequest::parse(&counted)
        .ok_or_else(|| format!("violet sim --count does not say what a request takes: {counted:?}"))?;
    for &nodes in &kind.simulated {
        if course.stop.is_set() {
            return Err(format!("before {nodes} simulated nodes"));
        }
        let (seconds, seed) = (SIMULATED_SECONDS.to_string(), course.result.seed.to_string());
        let count = nodes.to_string();
        let arguments = ["--nodes", &count, "--mood", "calm", "--seconds", &seconds, "--seed", &seed];
        let (is_well, said) = sim(course, &arguments)?;
        let (put, get) = per_request.at(nodes);
        let line =
            |start: &str| said.lines().find(|line| line.contains(start)).unwrap_or("-").trim().to_owned();
        let seen = format!(
            "a random node while it is busy: {put:.2} datagrams a PUT, {get:.2} a GET, the client's two included; \
             a calm run with everything that nodes say to each other: {}; {}",
            line("requests,"),
            line("datagrams,"),
        );
        course.check(&format!("{}: {nodes} simulated nodes", step.name), Some(is_well), seen);
    }
    Ok(())
}

/// Runs the simulator: whether it found nothing wrong, and what it said.
fn sim(course: &Course<'_>, arguments: &[&str]) -> Result<(bool, String), String> {
    let home = course.home.as_ref().ok_or("the simulator is in the binary: name it with --violet")?;
    let output = Command::new(&home.violet).arg("sim").args(arguments).output();
    let output = output.map_err(|error| format!("cannot start {}: {error}", home.violet.display()))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if said.is_empty() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("violet sim {}: {}", arguments.join(" "), errors.trim()));
    }
    Ok((output.status.success(), said))
}

/// What one request takes by whom it asks: the coordinator, another replica, an outsider.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DatagramsPerRequest {
    put: [f64; 3],
    get: [f64; 3],
}

impl DatagramsPerRequest {
    /// Reads the table of `violet sim --count`, of whose last two columns the first is all datagrams.
    fn parse(text: &str) -> Option<Self> {
        let all = |row: &str| -> Option<f64> {
            let line = text.lines().find_map(|line| line.strip_prefix(row))?;
            let columns: Vec<&str> = line.split_whitespace().collect();
            columns.get(8)?.parse().ok()
        };
        let coordinator = ["PUT to its coordinator", "GET to its coordinator"];
        let replica = ["PUT to another replica", "GET to another replica"];
        let outsider = ["PUT to an outsider", "GET to an outsider, busy"];
        Some(Self {
            put: [all(coordinator[0])?, all(replica[0])?, all(outsider[0])?],
            get: [all(coordinator[1])?, all(replica[1])?, all(outsider[1])?],
        })
    }

    /// A PUT and a GET to a random one of so many nodes, three of which hold each key.
    fn at(&self, nodes: usize) -> (f64, f64) {
        let outsiders = nodes.saturating_sub(3) as f64;
        let mean = |of: &[f64; 3]| (of[0] + 2.0 * of[1] + outsiders * of[2]) / (3.0 + outsiders);
        (mean(&self.put), mean(&self.get))
    }
}

/// How long the loads of a scaling step last, fills and starts not counted.
pub fn seconds(step: &Step, kind: &step::Scaling) -> f64 {
    let phases = if 0 < kind.clients { 2 } else { 1 };
    let runs = kind.nodes.len() * step.settings.repeats.max(REPEATS_MIN) * phases;
    runs as f64 * step.settings.seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fake;
    use crate::result::Cost;

    const COUNTED: &str = "Datagrams of one request (15 nodes)

                            request  forward    write   stored     read      hit answered    reply    all  bytes
PUT to its coordinator            1        0        2        2        0        0        0        1      6    842
PUT to another replica            1        1        2        2        0        0        0        1      7   1078
PUT to an outsider                1        1        2        2        0        0        0        1      7   1078
GET to its coordinator            1        0        0        0        0        0        0        1      2    168
GET to another replica            1        0        0        0        0        0        0        1      2    168
GET to an outsider, busy          1        0        0        0        1        0     0.88        1   3.88    394
GET to an outsider, idle          1        0        0        0        3        2        0        1      7    782
";

    #[test]
    fn the_simulators_table_is_read_and_weighed() {
        let counted = DatagramsPerRequest::parse(COUNTED).unwrap();
        assert_eq!((counted.put, counted.get), ([6.0, 7.0, 7.0], [2.0, 2.0, 3.88]));
        // As the table itself says of fifteen nodes.
        let (put, get) = counted.at(15);
        assert_eq!((format!("{put:.2}"), format!("{get:.2}")), ("6.93".to_owned(), "3.50".to_owned()));
        assert!(counted.at(100).1 > counted.at(60).1);
        assert_eq!(DatagramsPerRequest::parse("no table"), None);
    }

    #[test]
    fn repeats_become_one_row_with_mean_and_spread() {
        let run = |good, processor_seconds| {
            let mut phase = fake::phase(1_000.0, good, 0);
            let cost = Cost { processor_seconds, resident_bytes: 3 << 20, ..Cost::default() };
            phase.cost = Some(cost);
            phase
        };
        let text = table(&[run(1_000, 0.02), run(1_000, 0.04), run(1_000, 0.03)]).text();
        let row = text.lines().last().unwrap();
        assert!(row.contains("| 1000/s offered |     3 |    3 | 1000 ±0.00 |"), "{text}");
        assert!(row.contains("| 30.0 ±10.0 |"), "{text}");
        assert!(
            row.contains("1.00 ±0.00 |") && row.ends_with("|      not told |  not told |       not told |"),
            "{text}"
        );
    }
}
