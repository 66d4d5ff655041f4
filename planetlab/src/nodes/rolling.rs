//! A rolling restart: one node after the other, each only when the one before is a settled member again.
//!
//! *Settled* is what the node says of itself: it counts as many live members as there were before, is not catching up,
//! holds no hints and has nothing to repair, several times in a row. The first host that fails ends it, because going on
//! would take a second node away from a cluster that misses one.

use super::{Plan, status_of, statuses};
use crate::inventory::Host;
use crate::remote::{Fleet, HostError, tell_failures};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How often a node that comes back is asked.
const ASK_INTERVAL: Duration = Duration::from_millis(500);
/// How often it has to be settled in a row.
const TIMES_IN_A_ROW: usize = 3;

/// Restarts all nodes of the plan, one after the other.
pub fn restart(plan: &Plan, fleet: &Fleet, settle_time_max: Duration, at_once: usize) -> ExitCode {
    let before = statuses(fleet, &plan.inventory.all(), at_once);
    if !tell_failures(&before) {
        eprintln!(
            "nothing was restarted: a host that is not reached could not be told from one that is gone"
        );
        return ExitCode::from(1);
    }
    // As many as the nodes themselves count, which may be more than this run works on.
    let counted = before.iter().filter_map(|(_, result)| result.as_ref().ok()?.members_alive);
    let members = counted.max().unwrap_or(0);
    for host in &plan.inventory.hosts {
        let begun = Instant::now();
        let settled =
            plan.restart(fleet, host).and_then(|_| await_settled(fleet, host, members, settle_time_max));
        match settled {
            Ok(()) => {
                println!("{}: restarted, settled after {:.1} s", host.name, begun.elapsed().as_secs_f64())
            }
            Err(error) => {
                eprintln!("{}: {error}", host.name);
                eprintln!("the hosts after {} were left as they are", host.name);
                return ExitCode::from(1);
            }
        }
    }
    ExitCode::SUCCESS
}

fn await_settled(fleet: &Fleet, host: &Host, members: usize, time_max: Duration) -> Result<(), HostError> {
    let begun = Instant::now();
    let mut in_a_row = 0;
    loop {
        let status = status_of(fleet, host)?;
        let alive = status.members_alive.unwrap_or(0);
        let is_settled = status.is_settled == Some(true) && members <= alive;
        in_a_row = if is_settled { in_a_row + 1 } else { 0 };
        if in_a_row == TIMES_IN_A_ROW {
            return Ok(());
        }
        if status.state != "running" || time_max < begun.elapsed() {
            let last_line = format!(
                "not settled after {:.0} s: {}, {alive} of {members} members, {}",
                begun.elapsed().as_secs_f64(),
                status.state,
                status.last_error.unwrap_or_else(|| "no error".into())
            );
            return Err(HostError::Here(last_line));
        }
        std::thread::sleep(ASK_INTERVAL);
    }
}
