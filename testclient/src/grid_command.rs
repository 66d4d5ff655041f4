//! The `grid` command: runs cells one after the other, or looks for the point of saturation, and reports.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::Duration;

use serde::Serialize;
use violet_client::Format;
use violet_client::wire::{PROTOBUF_VALUE_BYTES_MAX, RAW_VALUE_BYTES_MAX};

use crate::batch;
use crate::grid::{self, Asked, CELLS, Cell, CellRecord, CellResult, GridPlan};
use crate::load::RECEIVE_BUFFER_BYTES;
use crate::machine;
use crate::names::{KEY_BYTES_MIN, KeyNames, Mark};
use crate::report::{self, Preamble, Progress};
use crate::settings::GridArguments;
use crate::values::{Random, Sizes};

/// Threads beyond this only take cores from the servers.
const THREADS_MAX: usize = 64;
/// Longest that one cell may last, in seconds: a day.
const SECONDS_MAX: f64 = 86_400.0;
/// Twice the clients must bring this factor more goodput to count as a gain; less is noise.
const SATURATION_GAIN: f64 = 1.1;
/// The search for saturation ends after so many doublings without a gain.
const STEPS_WITHOUT_GAIN_MAX: usize = 2;
/// Most clients that the search tries.
const SATURATION_CLIENTS_MAX: usize = 2_048;
/// How much more than saturation an overload run asks.
const OVERLOAD_FACTOR: usize = 4;

const CLOSED_LOOP_NOTE: &str = "Closed loops: a slow server slows the asking, so these tails cannot be compared \
with those of an open loop.";

#[derive(Serialize)]
struct GridRecord {
    #[serde(flatten)]
    preamble: Preamble,
    format: String,
    seconds_per_cell: f64,
    threads: usize,
    load_model: &'static str,
    cells: Vec<CellRecord>,
    overload: Option<OverloadRecord>,
    load_average_at_end: Option<f64>,
    failed: bool,
}

#[derive(Clone, Debug, Serialize)]
struct OverloadRecord {
    saturating_clients: usize,
    overload_clients: usize,
    best_goodput_per_second: f64,
    goodput_in_overload_per_second: f64,
    goodput_ratio: f64,
}

/// Runs the command; whether nothing failed.
///
/// # Errors
/// Wrong usage, in one sentence.
pub fn run(arguments: &GridArguments) -> Result<bool, String> {
    let servers = arguments.common.servers()?;
    let plan = plan(arguments, servers)?;
    let cells = cells(arguments)?;
    let preamble = Preamble::new(plan.seed, &plan.servers);
    let mut progress = Progress::new();
    progress.line(&format!("grid, {:?}: {}", plan.format, preamble.summary()));
    let mut results = Vec::new();
    let overload = if arguments.overload {
        Some(find_overload(&plan, &mut results, &mut progress)?)
    } else {
        for cell in cells {
            results.push(run_wiped(&plan, cell, &mut progress)?);
        }
        None
    };
    let failed = results.iter().any(|result| !result.faults().is_empty());
    print_results(&results, overload.as_ref(), failed, &mut progress);
    if let Some(path) = &arguments.common.run.json {
        let record = GridRecord {
            preamble,
            format: format!("{:?}", plan.format).to_lowercase(),
            seconds_per_cell: arguments.seconds,
            threads: plan.threads,
            load_model: "closed loop",
            cells: results.iter().map(CellResult::record).collect(),
            overload,
            load_average_at_end: machine::load_average(),
            failed,
        };
        report::write_json(path, &record)?;
    }
    Ok(!failed)
}

fn plan(arguments: &GridArguments, servers: Vec<SocketAddr>) -> Result<GridPlan, String> {
    let format = arguments.common.run.format.map_or(Format::Protobuf, Format::from);
    if !(0.0 < arguments.seconds && arguments.seconds <= SECONDS_MAX) {
        return Err(format!("--seconds {}: must be above 0 and at most {SECONDS_MAX}", arguments.seconds));
    }
    if !(1..=THREADS_MAX).contains(&arguments.threads) {
        return Err(format!("--threads {}: must be 1 to {THREADS_MAX}", arguments.threads));
    }
    let bytes_max = match format {
        Format::Raw => RAW_VALUE_BYTES_MAX,
        Format::Protobuf => PROTOBUF_VALUE_BYTES_MAX,
    };
    if let Some(bytes) = arguments.value_bytes.filter(|bytes| !(1..=bytes_max).contains(bytes)) {
        return Err(format!("--value-bytes {bytes}: must be 1 to {bytes_max}"));
    }
    let seed = arguments.common.run.seed.unwrap_or_else(Random::fresh_seed);
    Ok(GridPlan {
        servers,
        format,
        window: Duration::from_secs_f64(arguments.seconds),
        sizes: arguments.value_bytes.map_or(Sizes::UpTo(grid::VALUE_BYTES_MAX), Sizes::Fixed),
        threads: arguments.threads,
        names: KeyNames::new(Mark::fresh(), seed, KEY_BYTES_MIN),
        same_key: false,
        seed,
    })
}

/// The cells that were asked for; with `--zero-hop` a Z cell behind them for each R cell.
fn cells(arguments: &GridArguments) -> Result<Vec<Cell>, String> {
    let mut cells = named_cells(arguments)?;
    if arguments.zero_hop {
        let random = cells.iter().filter(|cell| cell.asked == Asked::Random);
        let beside: Vec<Cell> = random.map(|cell| Cell { asked: Asked::Holder, ..*cell }).collect();
        if beside.is_empty() {
            return Err(
                "--zero-hop: there is no R cell to put a Z cell beside; name Z cells with --cells".into()
            );
        }
        cells.extend(beside);
    }
    Ok(cells)
}

fn named_cells(arguments: &GridArguments) -> Result<Vec<Cell>, String> {
    if !arguments.clients.is_empty() {
        let names = ['S', 'R']
            .into_iter()
            .flat_map(|letter| arguments.clients.iter().map(move |clients| format!("{letter}{clients}")));
        return names.map(|name| Cell::parse(&name)).collect();
    }
    if arguments.cells.is_empty() {
        return CELLS.iter().map(|name| Cell::parse(name)).collect();
    }
    arguments.cells.iter().map(|name| Cell::parse(name.trim())).collect()
}

/// Runs a cell on an empty cluster.
fn run_wiped(plan: &GridPlan, cell: Cell, progress: &mut Progress) -> Result<CellResult, String> {
    progress.show(&format!("{}: wiping", cell.name()));
    let everyone: Vec<usize> = (0..plan.servers.len()).collect();
    for (server, what) in batch::wipe_out(&plan.servers, &everyone, plan.format)? {
        progress.line(&format!("{}: {} {what} when told to wipe out", cell.name(), plan.servers[server]));
    }
    let name = cell.name();
    let result = grid::run_cell(plan, cell, &mut |glimpse| {
        progress.show(&format!("{name}: {} answers", glimpse.answered));
        ControlFlow::Continue(())
    })?;
    let share =
        result.ran.processor_share.map_or(String::new(), |share| format!(", own CPU {:.0} %", share * 100.0));
    progress.line(&format!(
        "{:<5} {:>7.0} req/s  {:>7.0} good/s  p50 {} ms  p99 {} ms{share}",
        cell.name(),
        result.ran.tally.throughput(),
        result.ran.tally.goodput(),
        report::milliseconds(result.ran.tally.latency_ms(50.0)),
        report::milliseconds(result.ran.tally.latency_ms(99.0)),
    ));
    for remark in [result.faults(), result.remarks()].concat() {
        progress.line(&format!("      {remark}"));
    }
    Ok(result)
}

/// Doubles the clients of an R cell until that brings nothing any more, then runs four times as many
/// as the fewest that came close to the best.
fn find_overload(
    plan: &GridPlan,
    results: &mut Vec<CellResult>,
    progress: &mut Progress,
) -> Result<OverloadRecord, String> {
    let goodput = |result: &CellResult| result.ran.tally.goodput();
    let mut clients = 1;
    let mut best = 0.0_f64;
    let mut steps_without_gain = 0;
    while clients <= SATURATION_CLIENTS_MAX && steps_without_gain < STEPS_WITHOUT_GAIN_MAX {
        let result = run_wiped(plan, Cell { asked: Asked::Random, clients }, progress)?;
        let gained = SATURATION_GAIN * best < goodput(&result);
        steps_without_gain = if gained { 0 } else { steps_without_gain + 1 };
        best = best.max(goodput(&result));
        results.push(result);
        clients *= 2;
    }
    let is_near_best = |result: &&CellResult| best <= SATURATION_GAIN * goodput(result);
    let saturating = results.iter().find(is_near_best).map_or(1, |result| result.cell.clients);
    let overload_clients = saturating * OVERLOAD_FACTOR;
    let over = run_wiped(plan, Cell { asked: Asked::Random, clients: overload_clients }, progress)?;
    let record = OverloadRecord {
        saturating_clients: saturating,
        overload_clients,
        best_goodput_per_second: best,
        goodput_in_overload_per_second: goodput(&over),
        goodput_ratio: goodput(&over) / best.max(f64::MIN_POSITIVE),
    };
    results.push(over);
    Ok(record)
}

fn print_results(
    results: &[CellResult],
    overload: Option<&OverloadRecord>,
    failed: bool,
    progress: &mut Progress,
) {
    progress.line(&format!("\n{}\n", grid::table(results).text()));
    progress.line(CLOSED_LOOP_NOTE);
    let granted =
        results.iter().filter_map(|result| result.ran.tally.receive_buffer_bytes).min().unwrap_or(0);
    if granted < RECEIVE_BUFFER_BYTES {
        progress.line(&format!(
            "Receive buffers: {granted} of {RECEIVE_BUFFER_BYTES} bytes granted (net.core.rmem_max); replies may be lost here."
        ));
    }
    if let Some(overload) = overload {
        progress.line(&format!(
            "Overload: {} clients saturate, {} clients keep {:.0} % of the best goodput ({:.0} of {:.0} per second).",
            overload.saturating_clients,
            overload.overload_clients,
            100.0 * overload.goodput_ratio,
            overload.goodput_in_overload_per_second,
            overload.best_goodput_per_second,
        ));
    }
    progress.line(if failed { "FAILED: see the remarks above." } else { "No value was wrong or missing." });
}
