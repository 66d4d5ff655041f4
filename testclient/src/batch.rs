//! Many calls, some at a time, each once: the parallel part of stages and of the wipe-out between cells.

use std::net::SocketAddr;
use std::time::Duration;

use violet_client::Format;

use crate::load::{self, Ask, Call, End, Plan, Signals, Verdict, Workload};
use crate::tally::Tally;

/// How often an overloaded server is asked again before that is the answer.
const OVERLOAD_RESTARTS_MAX: u32 = 10;

/// Draws calls from one source until it is dry.
struct Batch<N, E> {
    next: N,
    on_end: E,
    under_way: Vec<Option<Call>>,
}

impl<N, E> Workload for Batch<N, E>
where
    N: FnMut(&mut Vec<u8>) -> Option<Call>,
    E: FnMut(&Call, End<'_>),
{
    fn next(&mut self, client: usize, value: &mut Vec<u8>) -> Option<Call> {
        self.under_way[client] = (self.next)(value);
        self.under_way[client]
    }

    fn on_end(&mut self, client: usize, end: End<'_>) -> Verdict {
        if let Some(call) = &self.under_way[client] {
            (self.on_end)(call, end);
        }
        end.verdict()
    }
}

/// Makes all calls that `next` yields, `clients` at a time, and hands each one's end to `on_end`.
///
/// # Errors
/// Sockets that cannot be opened.
pub fn run(
    servers: &[SocketAddr],
    format: Format,
    waits: &[Duration],
    clients: usize,
    next: impl FnMut(&mut Vec<u8>) -> Option<Call>,
    on_end: impl FnMut(&Call, End<'_>),
) -> Result<Tally, String> {
    let plan = Plan {
        servers: servers.to_vec(),
        format,
        waits: waits.to_vec(),
        clients,
        rest: Duration::ZERO,
        window: None,
        overload_restarts_max: OVERLOAD_RESTARTS_MAX,
        redraw_server: false,
        seed: 0,
    };
    let mut batch = Batch { next, on_end, under_way: vec![None; clients] };
    load::run(&plan, &mut batch, &Signals::default())
        .map_err(|error| format!("cannot send requests: {error}"))
}

/// Wipes these servers in parallel. Returns those that did not answer "success", with what they did.
///
/// # Errors
/// Sockets that cannot be opened.
pub fn wipe_out(
    servers: &[SocketAddr],
    chosen: &[usize],
    format: Format,
) -> Result<Vec<(usize, String)>, String> {
    // The 2016 graders give this command a fourth attempt; a wipe-out can take a while.
    let mut waits = crate::grid::course_policy(format).waits;
    waits.push(Duration::from_secs(4));
    let mut queue = chosen.iter();
    let mut failed = Vec::new();
    run(
        servers,
        format,
        &waits,
        chosen.len().max(1),
        |_| queue.next().map(|&server| Call { server, ask: Ask::Wipeout }),
        |call, end| match end.status() {
            Some(violet_client::Status::Success) => {}
            Some(status) => failed.push((call.server, format!("answered {status}"))),
            None => failed.push((call.server, "did not answer".to_owned())),
        },
    )?;
    Ok(failed)
}
