//! The grid of closed loops that the course's graders ran: S1 … S32, R1 … R256; and Z cells beside them, whose clients
//! know the table and ask the member that holds the key (Violet only).
//!
//! Each client writes a new key, reads it back (in R cells through another random server) and
//! compares every byte and the version, then begins again. One request is one PUT or one GET. A value
//! that is wrong, or missing after its PUT was acknowledged, fails the run; errors and time-outs lower
//! the goodput. All servers are wiped between cells, as the graders do.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use violet_client::wire::MESSAGE_BYTES_MAX;
use violet_client::{Format, Key, RetryPolicy, Status};

use crate::load::phase::{Ran, run_threads};
use crate::load::{Ask, Call, Conduct, End, Observer, Pace, Verdict, Workload};
use crate::names::KeyNames;
use crate::report::{Table, milliseconds};
use crate::result::{Loop, Phase};
use crate::routes::Routes;
use crate::tally::TallyRecord;
use crate::values::{Contents, Random, Sizes};

/// Requests per second of the original of 2015 on its own machines; R256 "ran out of buffers".
const ORIGINAL_2015: [(&str, u32); 8] = [
    ("S1", 1190),
    ("S16", 3020),
    ("S32", 2810),
    ("R1", 1030),
    ("R16", 2560),
    ("R32", 2470),
    ("R64", 2600),
    ("R128", 2620),
];
/// The cells of the original's grid, in its order.
pub const CELLS: [&str; 9] = ["S1", "S16", "S32", "R1", "R16", "R32", "R64", "R128", "R256"];
/// Largest random value of the 2019 clients, in bytes.
pub const VALUE_BYTES_MAX: usize = 1_000;
/// Above this share of retries a cell is remarked upon: on a healthy local network almost nothing is lost.
const RETRY_SHARE_NOTABLE: f64 = 0.01;
/// Most clients that a cell may have; their ids and buffers must fit.
const CLIENTS_MAX: usize = 65_536;

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The first server, always.
    First,
    /// A random server for each request.
    Random,
    /// A member that holds the key: the one that coordinates its writes, and any for reads.
    Holder,
}

/// One cell: who is asked, and by how many clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Who is asked.
    pub asked: Asked,
    /// Logical clients.
    pub clients: usize,
}

impl Cell {
    /// Reads a name such as `S16`, `R256` or `Z64`.
    ///
    /// # Errors
    /// One sentence.
    pub fn parse(name: &str) -> Result<Self, String> {
        let wrong = || format!("{name:?} is no cell: S, R or Z and 1 to {CLIENTS_MAX} clients, as in R64");
        let asked = match name.chars().next() {
            Some('S' | 's') => Asked::First,
            Some('R' | 'r') => Asked::Random,
            Some('Z' | 'z') => Asked::Holder,
            _ => return Err(wrong()),
        };
        match name[1..].parse() {
            Ok(clients) if 0 < clients && clients <= CLIENTS_MAX => Ok(Self { asked, clients }),
            _ => Err(wrong()),
        }
    }

    /// The name in the graders' style.
    pub fn name(&self) -> String {
        let letter = match self.asked {
            Asked::First => 'S',
            Asked::Random => 'R',
            Asked::Holder => 'Z',
        };
        format!("{letter}{}", self.clients)
    }

    /// What the original reached in 2015, in requests per second.
    pub fn original(&self) -> Option<u32> {
        let name = self.name();
        ORIGINAL_2015.iter().find(|(cell, _)| *cell == name).map(|&(_, rate)| rate)
    }
}

/// How cells are run.
#[derive(Clone, Debug)]
pub struct GridPlan {
    /// Whom to ask.
    pub servers: Vec<SocketAddr>,
    /// The protocol generation.
    pub format: Format,
    /// How long a cell lasts.
    pub window: Duration,
    /// How long values are.
    pub sizes: Sizes,
    /// Generator threads.
    pub threads: usize,
    /// What keys are called.
    pub names: KeyNames,
    /// Whether a client keeps to one key, as the first graders of 2019 did, instead of writing a new one in each loop.
    pub same_key: bool,
    /// Seed of values and draws.
    pub seed: u64,
}

/// What a cell saw.
#[derive(Clone, Debug)]
pub struct CellResult {
    /// Which cell.
    pub cell: Cell,
    /// What was counted.
    pub ran: Ran,
    /// What was wrong with values.
    pub values: ValueFaults,
    format: Format,
}

/// Values that were not what was written.
#[derive(Clone, Debug, Default)]
pub struct ValueFaults {
    /// Other bytes or another version.
    pub wrong: u64,
    /// "No such key" after the PUT was acknowledged.
    pub missing: u64,
    /// The first fault, in words.
    pub first: Option<String>,
}

impl ValueFaults {
    fn add(&mut self, other: Self) {
        self.wrong += other.wrong;
        self.missing += other.missing;
        self.first = self.first.take().or(other.first);
    }
}

/// A cell as it stands in a result file.
#[derive(Clone, Debug, Serialize)]
pub struct CellRecord {
    cell: String,
    clients: usize,
    #[serde(flatten)]
    tally: TallyRecord,
    wrong_values: u64,
    missing_values: u64,
    first_value_fault: Option<String>,
    original_2015_per_second: Option<u32>,
    ratio_to_original: Option<f64>,
    own_processor_share: Option<f64>,
    remarks: Vec<String>,
}

impl CellResult {
    /// Why the cell has failed: a value was wrong or missing, or nothing at all succeeded. One sentence each.
    pub fn faults(&self) -> Vec<String> {
        let ValueFaults { wrong, missing, first } = &self.values;
        let mut faults = Vec::new();
        if 0 < wrong + missing {
            let first = first.as_deref().unwrap_or_default();
            faults.push(format!("{wrong} wrong and {missing} missing values; first: {first}"));
        }
        if self.ran.tally.successes_in_window == 0 {
            faults.push("no request succeeded".to_owned());
        }
        faults
    }

    /// What a reader should notice beside that, one sentence each.
    pub fn remarks(&self) -> Vec<String> {
        let tally = &self.ran.tally;
        let counts = tally.counts();
        let mut remarks = Vec::new();
        if 0 < tally.unreadable_by_proto2 {
            let count = tally.unreadable_by_proto2;
            remarks.push(format!("{count} replies leave errCode out when it is 0: clients before 2021 fail"));
        }
        if RETRY_SHARE_NOTABLE < tally.retry_share() {
            let share = 100.0 * tally.retry_share();
            remarks.push(format!(
                "{share:.1} % of the datagrams were retries: requests or replies were lost or late"
            ));
        }
        for (code, count) in tally.errors(self.format) {
            let meaning = Status::from_code(code, self.format);
            remarks.push(format!("{count} answers with code {code} ({meaning})"));
        }
        let odd = [
            (
                counts.foreign,
                "replies carried an id that was never asked with, or came from an address not on the list",
            ),
            (
                counts.duplicates,
                "surplus replies to requests sent once: sent twice, or with another request's id",
            ),
            (counts.undecodable, "datagrams were no reply of this format"),
            (tally.send_failures, "datagrams were refused by the own kernel"),
        ];
        remarks.extend(
            odd.iter().filter(|(count, _)| 0 < *count).map(|(count, what)| format!("{count} {what}")),
        );
        remarks
    }

    /// The cell as a phase of this name, at the beginning of its run.
    pub fn phase(&self, name: &str, group: &str, servers: &[SocketAddr]) -> Phase {
        let timing = Loop::Closed { clients: self.cell.clients };
        self.ran.phase(name, group, timing, 0.0, servers, self.format)
    }

    /// The numbers for a result file.
    pub fn record(&self) -> CellRecord {
        let original = self.cell.original();
        CellRecord {
            cell: self.cell.name(),
            clients: self.cell.clients,
            tally: TallyRecord::of(&self.ran.tally, self.format),
            wrong_values: self.values.wrong,
            missing_values: self.values.missing,
            first_value_fault: self.values.first.clone(),
            original_2015_per_second: original,
            ratio_to_original: original.map(|rate| self.ran.tally.throughput() / f64::from(rate)),
            own_processor_share: self.ran.processor_share,
            remarks: [self.faults(), self.remarks()].concat(),
        }
    }
}

#[derive(Clone, Copy)]
struct LoopClient {
    /// `None` before the first loop.
    key_number: Option<u64>,
    /// Counts the PUTs of the key.
    round: u64,
    put_acknowledged: bool,
}

/// The loop of one thread's clients: PUT a new key, GET it, compare.
struct PutGetLoop<'a> {
    asked: Asked,
    servers: usize,
    /// For [`Asked::Holder`].
    routes: Option<&'a Routes>,
    format: Format,
    contents: Contents,
    names: KeyNames,
    same_key: bool,
    random: Random,
    clients: Vec<LoopClient>,
    next_key_number: u64,
    key_step: u64,
    faults: ValueFaults,
}

impl<'a> PutGetLoop<'a> {
    fn new(plan: &GridPlan, cell: Cell, thread: usize, clients: usize, routes: Option<&'a Routes>) -> Self {
        Self {
            asked: cell.asked,
            servers: plan.servers.len(),
            routes,
            format: plan.format,
            contents: Contents::new(plan.seed, plan.sizes),
            random: Random::new(plan.seed ^ (thread as u64 + 1) << 32),
            names: plan.names,
            same_key: plan.same_key,
            clients: vec![LoopClient { key_number: None, round: 0, put_acknowledged: false }; clients],
            next_key_number: thread as u64,
            key_step: plan.threads as u64,
            faults: ValueFaults::default(),
        }
    }

    fn server(&mut self, key: &Key, is_write: bool) -> usize {
        match (self.asked, self.routes) {
            (Asked::First, _) => 0,
            (Asked::Holder, Some(routes)) => routes.server(key, is_write, &mut self.random),
            (Asked::Random, _) | (Asked::Holder, None) => self.random.below(self.servers),
        }
    }

    fn note(&mut self, key_number: u64, what: impl FnOnce() -> String) {
        self.faults.first.get_or_insert_with(|| format!("key {key_number}: {}", what()));
    }
}

/// Versions are drawn, negative ones too, because they are opaque to a server.
fn version_of(key_number: u64, round: u64) -> i32 {
    Random::new(key_number ^ round << 32).next() as i32
}

impl Workload for PutGetLoop<'_> {
    fn next(&mut self, client: usize, value: &mut Vec<u8>) -> Option<Call> {
        let LoopClient { key_number, round, put_acknowledged } = self.clients[client];
        if let Some(key_number) = key_number.filter(|_| put_acknowledged) {
            let key = self.names.key(key_number);
            return Some(Call { server: self.server(&key, false), ask: Ask::Get { key } });
        }
        let key_number = key_number.filter(|_| self.same_key).unwrap_or_else(|| {
            self.next_key_number += self.key_step;
            self.next_key_number - self.key_step
        });
        let round = round + 1;
        self.clients[client] = LoopClient { key_number: Some(key_number), round, put_acknowledged };
        let (key, version) = (self.names.key(key_number), version_of(key_number, round));
        self.contents.write(key_number, version, value);
        Some(Call { server: self.server(&key, true), ask: Ask::Put { key, version } })
    }

    fn on_end(&mut self, client: usize, end: End<'_>) -> Verdict {
        let LoopClient { key_number, round, put_acknowledged } = self.clients[client];
        let key_number = key_number.unwrap_or_default();
        if !put_acknowledged {
            let is_acknowledged = end.status() == Some(Status::Success);
            self.clients[client].put_acknowledged = is_acknowledged;
            if !is_acknowledged {
                // It may be carried out yet, so nothing could be said of that key any more.
                self.clients[client].key_number = None;
            }
            return end.verdict();
        }
        self.clients[client].put_acknowledged = false;
        let End::Answered(response) = end else { return end.verdict() };
        let version = version_of(key_number, round);
        match response.status {
            Status::Success => {
                let value = response.value.unwrap_or_default();
                let version_fits = self.format == Format::Raw || value.version == version;
                if version_fits && self.contents.matches(key_number, version, value.bytes) {
                    return Verdict::Good;
                }
                self.faults.wrong += 1;
                let bytes = self.contents.value_bytes(key_number, version);
                self.note(key_number, || format!("wrote {bytes} bytes version {version}, read {value:?}"));
                Verdict::Wrong
            }
            Status::NoSuchKey => {
                self.faults.missing += 1;
                self.note(key_number, || "no such key after an acknowledged PUT".to_owned());
                Verdict::Wrong
            }
            _ => Verdict::Refused,
        }
    }
}

/// Runs one cell. The clients of a Z cell learn the table once, before it begins.
///
/// # Errors
/// Sockets that cannot be opened; for a Z cell, servers that tell no table.
pub fn run_cell(plan: &GridPlan, cell: Cell, observer: Observer<'_>) -> Result<CellResult, String> {
    let threads = plan.threads.min(cell.clients);
    let routes = match cell.asked {
        Asked::Holder => Some(Routes::learn(&plan.servers, plan.format)?),
        Asked::First | Asked::Random => None,
    };
    let routes = routes.as_ref();
    let clients = |thread: usize| cell.clients / threads + usize::from(thread < cell.clients % threads);
    let mut loops: Vec<_> =
        (0..threads).map(|thread| PutGetLoop::new(plan, cell, thread, clients(thread), routes)).collect();
    let conducts: Vec<Conduct> =
        (0..threads).map(|thread| conduct(plan, cell, clients(thread), thread)).collect();
    let ran = run_threads(&conducts, &mut loops, observer);
    let ran = ran.map_err(|error| format!("cannot run {}: {error}", cell.name()))?;
    let mut values = ValueFaults::default();
    loops.into_iter().for_each(|one| values.add(one.faults));
    Ok(CellResult { cell, ran, values, format: plan.format })
}

fn conduct(plan: &GridPlan, cell: Cell, clients: usize, thread: usize) -> Conduct {
    Conduct {
        servers: plan.servers.clone(),
        format: plan.format,
        waits: course_policy(plan.format).waits,
        pace: Pace::Closed { clients, rest: Duration::ZERO },
        warm_up: Duration::ZERO,
        window: Some(plan.window),
        overload_restarts_max: u32::MAX,
        redraw_server: cell.asked != Asked::First,
        seed: plan.seed ^ thread as u64,
        reply_bytes_max: MESSAGE_BYTES_MAX,
    }
}

/// How patient the course's clients of a generation are.
pub fn course_policy(format: Format) -> RetryPolicy {
    match format {
        Format::Raw => RetryPolicy::course_2016(),
        Format::Protobuf => RetryPolicy::course_2019(),
    }
}

/// Cells as a table.
pub fn table(results: &[CellResult]) -> Table {
    let headings = [
        "cell",
        "req/s",
        "good/s",
        "2015",
        "ratio",
        "retry %",
        "p50 ms",
        "p99",
        "p99.9",
        "max",
        "time-outs",
        "errors",
        "wrong",
        "missing",
        "odd",
        "own CPU %",
    ];
    let mut table = Table::new(&headings, 1);
    for result in results {
        let tally = &result.ran.tally;
        let (counts, patience) = (tally.counts(), tally.patience());
        let original = result.cell.original();
        let dash = || "-".to_owned();
        let errors: u64 = tally.errors(result.format).iter().map(|(_, count)| count).sum();
        table.row(vec![
            result.cell.name(),
            format!("{:.0}", tally.throughput()),
            format!("{:.0}", tally.goodput()),
            original.map_or_else(dash, |rate| rate.to_string()),
            original.map_or_else(dash, |rate| format!("{:.2}", tally.throughput() / f64::from(rate))),
            format!("{:.2}", 100.0 * tally.retry_share()),
            milliseconds(patience.ms(50.0)),
            milliseconds(patience.ms(99.0)),
            milliseconds(patience.ms(99.9)),
            milliseconds(patience.ms(100.0)),
            counts.timed_out.to_string(),
            errors.to_string(),
            result.values.wrong.to_string(),
            result.values.missing.to_string(),
            (counts.foreign + counts.duplicates + counts.undecodable).to_string(),
            result.ran.processor_share.map_or_else(dash, |share| format!("{:.0}", 100.0 * share)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cell_names() {
        for name in CELLS {
            assert_eq!(Cell::parse(name).unwrap().name(), name);
        }
        assert_eq!(Cell::parse("S16").unwrap().original(), Some(3020));
        assert_eq!(Cell::parse("R256").unwrap().original(), None);
        for name in ["", "S", "S0", "T4", "R1x", "R-1", "é4", "R65537"] {
            assert!(Cell::parse(name).unwrap_err().contains("is no cell"), "{name}");
        }
    }
}
