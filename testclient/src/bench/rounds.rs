//! A run: blocks of servers, rounds of samples.
//!
//! For each value size the servers that its cells need are started and filled, then all its cells are
//! measured once a round. A round 0 is measured and thrown away: it warms what is cold. The rate of an open
//! load is a share of the median of what has saturated its server so far, this round included.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::arguments::BenchArguments;
use super::measure::{Bench, Sample, Times};
use super::plan::{self, Cell, Choice, MAIN_VALUE_BYTES, Target};
use super::probe::LargePages;
use super::processors::Processors;
use super::subjects::{Recipe, Running, Subject, find_program};
use crate::report::Progress;
use crate::sockets;
use crate::values::Random;

/// Rounds when nothing else is said: the interval of nine is that of the second to the second last.
const ROUNDS: u32 = 9;
const ROUNDS_QUICK: u32 = 3;
const SAMPLE: Duration = Duration::from_millis(850);
const SAMPLE_QUICK: Duration = Duration::from_millis(300);
/// Of a sample, this much again is run before, to warm up.
const WARM_UP_DIVISOR: u32 = 6;

/// Everything that was seen.
#[derive(Debug)]
pub struct Run {
    /// The cells, in order.
    pub cells: Vec<Cell>,
    /// The samples.
    pub samples: Vec<Sample>,
    /// Who ran where.
    pub processors: Processors,
    /// The seed.
    pub seed: u64,
    /// Rounds.
    pub rounds: usize,
    /// How long a sample was.
    pub times: Times,
    /// What was left out, and why; one sentence each.
    pub skipped: Vec<String>,
    /// The servers' command lines.
    pub commands: Vec<ServerRecord>,
    /// Large pages of Violet's value memory, at the size where most is measured.
    pub large_pages: Option<LargePages>,
    /// How long all took.
    pub took: Duration,
}

/// A server in the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerRecord {
    /// Its name.
    pub server: &'static str,
    /// How it was started.
    pub command: String,
}

/// Does what the command line says.
///
/// # Errors
/// One sentence.
pub fn run(arguments: &BenchArguments) -> Result<Run, String> {
    let choice = Choice::parse(&arguments.only, &arguments.value_bytes)?;
    let processors = Processors::choose(&arguments.server_cpus, &arguments.client_cpus)?;
    let recipe = recipe(arguments)?;
    let (present, mut skipped) = look_for_programs();
    if !processors.are_apart() {
        skipped.push("there is one processor for both: generator and servers share it everywhere".to_owned());
    }
    let may_pack = sockets::can_pack();
    if !may_pack {
        let sentence = "this kernel does not cut packed bursts: every request is a message of its own";
        skipped.push(sentence.to_owned());
    }
    skipped.iter().for_each(|sentence| eprintln!("violet-testclient: {sentence}"));
    let (rounds, sample) = match arguments.quick {
        true => (ROUNDS_QUICK, SAMPLE_QUICK),
        false => (ROUNDS, SAMPLE),
    };
    let measured = arguments.sample_ms.map_or(sample, Duration::from_millis);
    let times = Times { warm_up: measured / WARM_UP_DIVISOR, measured };
    let seed = arguments.seed.unwrap_or_else(Random::fresh_seed);
    let bench = Bench { processors: processors.clone(), seed, times, started: Instant::now(), loads: 0 };
    let mut runner = Runner {
        bench,
        recipe,
        rounds: arguments.rounds.unwrap_or(rounds) as usize,
        progress: Progress::new(),
        samples: Vec::new(),
        commands: Vec::new(),
        large_pages: None,
    };
    let mut cells = Vec::new();
    for &value_bytes in &choice.value_sizes {
        let block = choice.cells(value_bytes, |subject| present.contains(&subject)).into_iter();
        let window = arguments.window.map(|window| window as usize);
        let block: Vec<Cell> = block.map(|cell| cell.adapted(window, may_pack)).collect();
        runner.block(value_bytes, &block)?;
        cells.extend(block);
    }
    runner.progress.clear();
    if cells.is_empty() {
        return Err("nothing to measure: these groups have no cell at these value sizes".to_owned());
    }
    Ok(Run {
        cells,
        processors,
        seed,
        rounds: runner.rounds,
        times,
        skipped,
        took: runner.bench.started.elapsed(),
        samples: runner.samples,
        commands: runner.commands,
        large_pages: runner.large_pages,
    })
}

fn recipe(arguments: &BenchArguments) -> Result<Recipe, String> {
    let violet = match &arguments.violet {
        Some(path) => path.clone(),
        None => beside_this_program()?,
    };
    if !violet.is_file() {
        return Err(format!("{} is not there; build it, or name it with --violet", violet.display()));
    }
    if let Some(wrong) = arguments.settings.iter().find(|setting| !setting.contains('=')) {
        return Err(format!("--set: \"{wrong}\" is not NAME=VALUE"));
    }
    fs::create_dir_all(&arguments.dir).map_err(|error| format!("{}: {error}", arguments.dir.display()))?;
    let directory = arguments.dir.canonicalize();
    let directory = directory.map_err(|error| format!("{}: {error}", arguments.dir.display()))?;
    Ok(Recipe { violet, settings: arguments.settings.clone(), directory, port: arguments.port })
}

fn beside_this_program() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| format!("own program: {error}"))?;
    Ok(own.with_file_name("violet"))
}

/// The servers that can be started, and a sentence for each that cannot.
fn look_for_programs() -> (Vec<Subject>, Vec<String>) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut skipped = Vec::new();
    let is_present = |subject: &Subject| match subject.foreign_program() {
        Some(program) if find_program(program, &path).is_none() => {
            skipped.push(format!("{program} is not installed: its rows are skipped"));
            false
        }
        _ => true,
    };
    let present = Subject::ALL.into_iter().filter(is_present).collect();
    (present, skipped)
}

struct Runner {
    bench: Bench,
    recipe: Recipe,
    rounds: usize,
    progress: Progress,
    samples: Vec<Sample>,
    commands: Vec<ServerRecord>,
    large_pages: Option<LargePages>,
}

impl Runner {
    /// Measures all cells of a value size.
    fn block(&mut self, value_bytes: usize, cells: &[Cell]) -> Result<(), String> {
        let servers = self.start(value_bytes, cells)?;
        let mut rates: HashMap<Target, Vec<f64>> = HashMap::new();
        for round in 0..=self.rounds {
            for (done, cell) in plan::order(cells, round).iter().enumerate() {
                let place = format!("round {round}/{}, {}/{}", self.rounds, done + 1, cells.len());
                self.progress.show(&format!("{place}: {}", cell.id()));
                let server = find(&servers, cell.target.subject);
                let rate = rates.get(&cell.target).map(|rates| middle(rates));
                let sample = self.bench.sample(server, cell, round, rate)?;
                if cell.tells_rate() {
                    rates.entry(cell.target).or_default().push(sample.answered_per_second);
                }
                if 0 < round {
                    self.samples.push(sample);
                }
            }
            if round == 0 {
                // These rates were those of cold servers; the next round begins with better ones.
                rates.clear();
            }
        }
        Ok(())
    }

    fn start(&mut self, value_bytes: usize, cells: &[Cell]) -> Result<Vec<Running>, String> {
        let mut servers: Vec<Running> = Vec::new();
        for cell in cells {
            let subject = cell.target.subject;
            if servers.iter().any(|server| server.subject == subject) {
                continue;
            }
            self.progress.show(&format!("{} B: starting and filling {}", value_bytes, subject.name()));
            let server = Running::start(subject, &self.recipe, &self.bench.processors)?;
            if subject != Subject::Echo {
                self.bench.fill(&server, cell)?;
            }
            if subject == Subject::Violet && value_bytes == MAIN_VALUE_BYTES {
                self.large_pages = Some(LargePages::of(server.pid));
            }
            let record = ServerRecord { server: subject.name(), command: server.command.clone() };
            if !self.commands.contains(&record) {
                self.commands.push(record);
            }
            servers.push(server);
        }
        Ok(servers)
    }
}

fn find(servers: &[Running], subject: Subject) -> &Running {
    let found = servers.iter().find(|server| server.subject == subject);
    found.expect("a block starts the servers of all its cells")
}

fn middle(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
