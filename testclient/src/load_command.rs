//! The `load` command: stores numbered keys, makes load on them at a rate or with clients, checks every answer, and says
//! what was seen: as text here, and as a [`RunResult`] in a file.
//!
//! A percentile stands beside the rate that was asked for only if that was reached; else its line says that it was
//! not. Ctrl-C ends the phase that runs; what was seen until then is told and written, marked incomplete.

mod words;

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use violet_client::Format;
use violet_client::wire::{PROTOBUF_VALUE_BYTES_MAX, RAW_VALUE_BYTES_MAX};

use self::words::{findings, phase_lines};
use crate::alive;
use crate::host::{self, Ticks};
use crate::interrupt::Stop;
use crate::load::phase::{format_name, run_phase_counted};
use crate::load::search::{self, SearchPlan};
use crate::load::{Glimpse, PhasePlan, Work};
use crate::names::{KEY_BYTES_MAX, KEY_BYTES_MIN, KeyNames, Mark};
use crate::report::{Preamble, Progress, milliseconds, write_json};
use crate::result::{Arrivals, Check, LAYOUT, Phase, RunResult};
use crate::settings::CommonArguments;
use crate::values::{Contents, Random};
use crate::workload::{Fault, Faults, KeyOrder, Keys, Mix, Route, Target, ValueBytes};

/// The rate if none is asked for.
const RATE_USUAL: f64 = 1_000.0;

/// Options of `load`.
#[derive(Clone, Debug, Args)]
pub struct LoadArguments {
    /// The servers, and what every command takes.
    #[command(flatten)]
    pub common: CommonArguments,
    /// Open loop: so many requests a second, whatever the servers do. Latency counts from the time at which a request
    /// was due. 1000 if neither --clients nor --search is given.
    #[arg(long, value_name = "REQUESTS/S", conflicts_with_all = ["clients", "search"])]
    pub rate: Option<f64>,
    /// Closed loop: so many logical clients, each of which asks when it is answered. Tails are not comparable with those
    /// of an open loop.
    #[arg(long, value_name = "COUNT", conflicts_with = "search")]
    pub clients: Option<usize>,
    /// Raises the rate until the servers are overwhelmed: goodput 10 % below its peak, or 1 % failures.
    #[arg(long)]
    pub search: bool,
    /// The first rate of a search.
    #[arg(long, value_name = "REQUESTS/S", default_value_t = 1_000.0, requires = "search")]
    pub search_from: f64,
    /// How the times of an open loop lie.
    #[arg(long, default_value = "poisson")]
    pub arrivals: ArrivalsChoice,
    /// How long requests are made; with --search, for each rate.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub seconds: f64,
    /// How long the same is done before that without counting.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub warm_up: f64,
    /// Shares of the operations: put, get, remove.
    #[arg(long, value_name = "get:50,put:50", default_value = "get:50,put:50")]
    pub mix: Mix,
    /// How many keys are used; they are stored first, by a closed loop.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pub keys: usize,
    /// Lengths of keys in bytes, 8 to 32.
    #[arg(long, value_name = "BYTES", default_value_t = KEY_BYTES_MIN, value_parser = parse_key_bytes)]
    pub key_bytes: usize,
    /// Which keys are asked for: uniform, sequential, zipf:THETA, hot:PERCENT-OF-REQUESTS:PERCENT-OF-KEYS, absent (never
    /// stored; with --mix get:100).
    #[arg(long, value_name = "ORDER", default_value = "uniform")]
    pub key_order: KeyOrder,
    /// Lengths of values in bytes: 100, 1-1000, lognormal:MEDIAN:SIGMA, file:PATH (one length a line).
    #[arg(long, value_name = "BYTES", default_value = "100")]
    pub value_bytes: ValueBytes,
    /// Cuts the values from this file instead of making random bytes, so that they are as compressible as it is.
    #[arg(long, value_name = "FILE")]
    pub value_text: Option<PathBuf>,
    /// Requests under way at which an open loop leaves out what is due, and counts it as skipped.
    #[arg(long, value_name = "COUNT", default_value_t = 65_536)]
    pub in_flight_max: usize,
    /// Threads that make load; each has its share of the keys.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub threads: usize,
    /// Who is asked: first, random, zero-hop (a server that holds the key; Violet only).
    #[arg(long, value_name = "ROUTE", default_value = "random")]
    pub route: Route,
    /// How long each try waits for an answer, in milliseconds; as many tries as numbers.
    #[arg(long, value_delimiter = ',', value_name = "MS,…", default_value = "100,200,400,800")]
    pub waits_ms: Vec<u64>,
    /// How often a client of a closed loop asks again when it is told "overloaded", after the wait it is told.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub overload_restarts: u32,
    /// Clients of the closed loop that stores the keys.
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    pub fill_clients: usize,
    /// Does not store the keys first: a GET of one that the load has not put yet must find nothing.
    #[arg(long)]
    pub no_fill: bool,
    /// Only stores the keys.
    #[arg(long, conflicts_with_all = ["no_fill", "rate", "clients", "search"])]
    pub fill_only: bool,
    /// Reads every key once in the end.
    #[arg(long)]
    pub read_all: bool,
}

fn parse_key_bytes(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|bytes| (KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(bytes));
    bytes.ok_or_else(|| format!("must be {KEY_BYTES_MIN} to {KEY_BYTES_MAX}"))
}

/// How the times of an open loop lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ArrivalsChoice {
    /// At equal distances.
    Constant,
    /// Independent of one another.
    Poisson,
}

impl From<ArrivalsChoice> for Arrivals {
    fn from(choice: ArrivalsChoice) -> Self {
        match choice {
            ArrivalsChoice::Constant => Self::Constant,
            ArrivalsChoice::Poisson => Self::Poisson,
        }
    }
}

/// Runs the command; whether it went to its end and every answer was right.
///
/// # Errors
/// Wrong usage, in one sentence.
pub fn run(arguments: &LoadArguments) -> Result<bool, String> {
    let servers = arguments.common.servers()?;
    let format = arguments.common.run.format.map_or(Format::Protobuf, Format::from);
    let seed = arguments.common.run.seed.unwrap_or_else(Random::fresh_seed);
    let plans = plans(arguments);
    for plan in plans.fill.iter().chain(plans.main.iter().map(Main::phase)) {
        plan.check()?;
    }
    let contents = contents(arguments, format, seed)?;
    let target = Target { servers: servers.clone(), format };
    let names = KeyNames::new(Mark::fresh(), seed, arguments.key_bytes);
    let mut run = Run {
        keys: Keys::new(target, arguments.keys, contents, names, seed, arguments.threads)?,
        result: begin_result(arguments, &servers, seed, format),
        progress: Progress::new(),
        ticks: host::ticks(),
        interrupted: Stop::on_signals().map_err(|error| format!("cannot catch signals: {error}"))?,
        is_right: true,
    };
    let alive = alive::alive(&servers, format)?;
    let silence = alive::silence_text(&servers, &alive, format);
    if !alive.contains(&true) {
        return Err(format!("{}; start them, or correct the list", silence.unwrap_or_default()));
    }
    let preamble = Preamble::new(seed, &servers);
    run.progress.line(&format!("load, {}: {}", format_name(format), preamble.summary()));
    if let Some(silence) = silence {
        run.progress.line(&format!("  {silence}"));
        run.result.checks.push(Check {
            name: "all listed servers answer".to_owned(),
            passed: Some(false),
            seen: silence,
        });
        run.is_right = false;
    }
    if let Some(fill) = &plans.fill {
        run.phase(fill)?;
    }
    match &plans.main {
        Some(Main::Phase(plan)) if run.goes_on() => run.phase(plan)?,
        Some(Main::Search(plan)) if run.goes_on() => run.search(plan)?,
        _ => {}
    }
    if arguments.read_all && run.goes_on() {
        run.phase(&PhasePlan {
            name: "read-all".to_owned(),
            work: Work::ReadAll,
            ..PhasePlan::fill(arguments.fill_clients)
        })?;
    }
    run.end(arguments.common.run.json.as_ref())
}

enum Main {
    Phase(PhasePlan),
    Search(SearchPlan),
}

impl Main {
    fn phase(&self) -> &PhasePlan {
        match self {
            Self::Phase(plan) => plan,
            Self::Search(plan) => &plan.step,
        }
    }
}

struct Plans {
    fill: Option<PhasePlan>,
    main: Option<Main>,
}

fn plans(arguments: &LoadArguments) -> Plans {
    let is_open = arguments.clients.is_none();
    let plan = PhasePlan {
        name: if arguments.search { "search".to_owned() } else { "load".to_owned() },
        group: String::new(),
        rate: is_open.then(|| arguments.rate.unwrap_or(RATE_USUAL)),
        arrivals: arguments.arrivals.into(),
        clients: arguments.clients,
        seconds: arguments.seconds,
        warm_up: arguments.warm_up,
        work: Work::Mix,
        mix: arguments.mix,
        key_order: arguments.key_order,
        route: arguments.route,
        waits_ms: arguments.waits_ms.clone(),
        in_flight_max: arguments.in_flight_max,
        overload_restarts: arguments.overload_restarts,
    };
    let fill = PhasePlan {
        route: arguments.route,
        waits_ms: arguments.waits_ms.clone(),
        ..PhasePlan::fill(arguments.fill_clients.max(arguments.threads))
    };
    let main = match arguments.search {
        true => {
            Main::Search(SearchPlan { step: plan, from_rate: arguments.search_from, ..SearchPlan::default() })
        }
        false => Main::Phase(plan),
    };
    Plans { fill: (!arguments.no_fill).then_some(fill), main: (!arguments.fill_only).then_some(main) }
}

fn contents(arguments: &LoadArguments, format: Format, seed: u64) -> Result<Contents, String> {
    let sizes = arguments.value_bytes.load()?;
    let bytes_max = match format {
        Format::Raw => RAW_VALUE_BYTES_MAX,
        Format::Protobuf => PROTOBUF_VALUE_BYTES_MAX,
    };
    let sizes = sizes.up_to(bytes_max).ok_or_else(|| {
        let asked = &arguments.value_bytes;
        format!("--value-bytes {asked}: {} takes values of up to {bytes_max} bytes", format_name(format))
    })?;
    let contents = Contents::new(seed, sizes);
    let Some(path) = &arguments.value_text else { return Ok(contents) };
    let text = fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    if text.len() < sizes.bytes_max() {
        let (have, need) = (text.len(), sizes.bytes_max());
        return Err(format!("{} has {have} bytes, and values have up to {need}", path.display()));
    }
    Ok(contents.cut_from(Vec::leak(text)))
}

fn begin_result(
    arguments: &LoadArguments,
    servers: &[std::net::SocketAddr],
    seed: u64,
    format: Format,
) -> RunResult {
    let settings = BTreeMap::from([
        ("format".to_owned(), format_name(format).to_owned()),
        ("keys".to_owned(), arguments.keys.to_string()),
        ("key-bytes".to_owned(), arguments.key_bytes.to_string()),
        ("key-order".to_owned(), arguments.key_order.to_string()),
        ("mix".to_owned(), arguments.mix.to_string()),
        ("value-bytes".to_owned(), arguments.value_bytes.to_string()),
        ("route".to_owned(), arguments.route.to_string()),
        ("waits-ms".to_owned(), format!("{:?}", arguments.waits_ms)),
        ("in-flight-max".to_owned(), arguments.in_flight_max.to_string()),
        ("threads".to_owned(), arguments.threads.to_string()),
    ]);
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    RunResult {
        layout: LAYOUT,
        name: "load".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        arguments: std::env::args().skip(1).collect(),
        started_unix_seconds: since_epoch.as_secs(),
        seed,
        settings,
        servers: servers.iter().map(ToString::to_string).collect(),
        machines: vec![host::this_machine()],
        phases: Vec::new(),
        events: Vec::new(),
        checks: Vec::new(),
        incomplete: None,
    }
}

struct Run {
    keys: Keys,
    result: RunResult,
    progress: Progress,
    ticks: Option<Ticks>,
    interrupted: Stop,
    is_right: bool,
}

impl Run {
    fn goes_on(&self) -> bool {
        !self.interrupted.is_set()
    }

    fn phase(&mut self, plan: &PhasePlan) -> Result<(), String> {
        let (progress, interrupted) = (&mut self.progress, &self.interrupted);
        let (phase, tally) = run_phase_counted(plan, &mut self.keys, &mut |glimpse| {
            show(progress, interrupted, &plan.name, glimpse)
        })?;
        let faults = self.keys.take_faults();
        self.tell(&phase, plan.work);
        for line in findings(&tally, &faults) {
            self.progress.line(&format!("  {line}"));
        }
        if plan.work == Work::Fill {
            let (stored, keys) = (self.keys.surely_there(), self.keys.count());
            self.progress.line(&format!("  {stored} of {keys} keys are surely stored"));
        }
        self.note_checks(&phase.name, &faults);
        self.is_right &= phase.counts.wrong == 0 && 0 < phase.counts.good;
        self.result.phases.push(phase);
        Ok(())
    }

    fn search(&mut self, plan: &SearchPlan) -> Result<(), String> {
        let (progress, interrupted) = (&mut self.progress, &self.interrupted);
        let found = search::search(plan, &mut self.keys, &mut |glimpse| {
            show(progress, interrupted, &plan.step.name, glimpse)
        })?;
        found.phases.iter().for_each(|phase| self.tell(phase, Work::Mix));
        let faults = self.keys.take_faults();
        faults.sentences().iter().for_each(|line| self.progress.line(&format!("  {line}")));
        self.note_checks("search", &faults);
        let peak = format!("largest goodput {:.0}/s, at {:.0}/s", found.peak_goodput, found.peak_rate);
        let outcome = match (&found.overwhelmed, &found.unfinished) {
            (Some((rate, how)), _) => format!("overwhelmed at {rate:.0}/s: {how}"),
            (None, Some(reason)) => format!("not overwhelmed: the search ended because {reason}"),
            (None, None) => "not overwhelmed".to_owned(),
        };
        self.progress.line(&format!("saturation: {peak}; {outcome}"));
        let overwhelmed = found.overwhelmed.as_ref().map(|_| true);
        for (name, passed, seen) in [
            ("saturation", Some(0.0 < found.peak_goodput), peak),
            ("overwhelmed point", overwhelmed, outcome),
        ] {
            self.result.checks.push(Check { name: name.to_owned(), passed, seen });
        }
        self.is_right &= found.phases.iter().all(|phase| phase.counts.wrong == 0) && 0.0 < found.peak_goodput;
        self.result.phases.extend(found.phases);
        Ok(())
    }

    /// One check for each kind of fault, so that what was looked for is in the file as well as what was found.
    fn note_checks(&mut self, phase: &str, faults: &Faults) {
        for fault in Fault::ALL {
            let count = faults.counts.get(&fault).copied().unwrap_or(0);
            let seen = match faults.first.get(&fault) {
                Some(first) => {
                    format!("{count} answers of {} keys; first: {first}", faults.keys[&fault].len())
                }
                None => "none".to_owned(),
            };
            let name = format!("{phase}: no answer is {}", fault.word());
            self.result.checks.push(Check { name, passed: Some(count == 0), seen });
        }
    }

    fn tell(&mut self, phase: &Phase, work: Work) {
        for line in phase_lines(phase, work) {
            self.progress.line(&line);
        }
    }

    fn end(mut self, json: Option<&PathBuf>) -> Result<bool, String> {
        let was_interrupted = !self.goes_on();
        if was_interrupted {
            self.result.incomplete = Some("interrupted by a signal".to_owned());
            self.progress.line("incomplete: interrupted by a signal");
        }
        host::after(&mut self.result.machines[0], self.ticks);
        if let Some(path) = json {
            write_json(path, &self.result)?;
        }
        Ok(self.is_right && !was_interrupted)
    }
}

fn show(progress: &mut Progress, interrupted: &Stop, name: &str, glimpse: &Glimpse) -> ControlFlow<()> {
    let left = glimpse.left_seconds.map_or(String::new(), |left| format!(", {left:.0} s left"));
    progress.show(&format!(
        "{} {:.0} s: {:.0} answers/s, {} of {} good, {} wrong, {} timed out, {} under way, p50 {} p99 {} ms{left}",
        name,
        glimpse.at_seconds,
        glimpse.answered_per_second,
        glimpse.good,
        glimpse.offered,
        glimpse.wrong,
        glimpse.timed_out,
        glimpse.in_flight,
        milliseconds(glimpse.p50_ms),
        milliseconds(glimpse.p99_ms),
    ));
    if interrupted.is_set() {
        return ControlFlow::Break(());
    }
    ControlFlow::Continue(())
}
