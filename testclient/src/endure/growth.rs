//! A cluster that grows from one node to many and shrinks back to one, with everything on it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use violet_client::{Client, Operation, Status};

use super::traffic::{Kind, Traffic};
use super::trial::{Tolerance, Trial};
use crate::cluster::{Finding, StageResult};

/// The private command that tells a node to hand its data over and end.
const LEAVE: u32 = 0x24;
/// How long a node may take to hand its data over.
const DRAIN_MAX: Duration = Duration::from_secs(120);
/// So many join, and leave, at the same time at the end of each way.
const AT_ONCE: usize = 3;
/// A light load: a few clients, each with a long rest.
const LIGHT_CLIENTS: usize = 4;
const LIGHT_REST: Duration = Duration::from_millis(20);

/// 1 node to N and back, one by one and three at once, under light load.
pub fn grow_shrink(trial: &mut Trial) -> StageResult {
    let count = trial.nodes.addresses().len();
    if count < 2 {
        return Err(Finding::Skip("needs two nodes at least".to_owned()));
    }
    trial.start_cluster(&[0])?;
    trial.fill()?;
    let traffic = light_load(trial, &[0])?;
    let mut living = vec![0];
    for newcomers in groups(&(1..count).collect::<Vec<_>>()) {
        join(trial, &traffic, &mut living, &newcomers)?;
    }
    // The first node is not special: another one is the last.
    let mut leavers = trial.shuffled(&living);
    leavers.pop();
    for group in groups(&leavers) {
        leave(trial, &traffic, &mut living, &group)?;
    }
    trial.end_load(traffic)?;
    trial.final_sweep(&living)?;
    Ok(())
}

/// One by one, the last three together.
fn groups(nodes: &[usize]) -> Vec<Vec<usize>> {
    let single = nodes.len().saturating_sub(AT_ONCE);
    let mut groups: Vec<Vec<usize>> = nodes[..single].iter().map(|&node| vec![node]).collect();
    groups.push(nodes[single..].to_vec());
    groups
}

fn light_load(trial: &mut Trial, via: &[usize]) -> Result<Traffic, Finding> {
    let kind = Kind {
        clients: LIGHT_CLIENTS,
        rest: LIGHT_REST,
        numbers: 0..trial.busy(),
        more: 0..0,
        via: via.to_vec(),
        split: None,
        seed: trial.random.next(),
    };
    trial.load_of(&kind)
}

fn join(trial: &mut Trial, traffic: &Traffic, living: &mut Vec<usize>, newcomers: &[usize]) -> StageResult {
    let since = Instant::now();
    for &newcomer in newcomers {
        let known = living[trial.random.below(living.len())];
        trial.nodes.start(newcomer, &[newcomer, known]).map_err(Finding::Undecided)?;
    }
    living.extend(newcomers);
    let when = format!("{} nodes after {newcomers:?} joined", living.len());
    step(trial, traffic, living, &when, since)
}

fn leave(trial: &mut Trial, traffic: &Traffic, living: &mut Vec<usize>, leavers: &[usize]) -> StageResult {
    living.retain(|node| !leavers.contains(node));
    traffic.ask_via(living);
    let since = Instant::now();
    let mut refused = BTreeSet::new();
    for &leaver in leavers {
        if let Err(why) = ask_to_leave(trial, leaver) {
            refused.insert(leaver);
            trial.break_claim(why);
        }
    }
    for &leaver in leavers {
        let ended = match refused.contains(&leaver) {
            true => Err("it is killed instead".to_owned()),
            false => trial.nodes.await_end(leaver, DRAIN_MAX),
        };
        match ended {
            Ok((took, status)) => {
                trial.figure(format!("node {leaver}: drained and ended after"), took.as_secs_f64(), "s");
                trial.claim(status.success(), || format!("node {leaver} left, but ended with {status}"));
            }
            Err(why) => {
                trial.break_claim(format!("node {leaver} did not leave: {why}"));
                trial.nodes.kill(&[leaver]);
            }
        }
    }
    let when = format!("{} nodes after {leavers:?} left", living.len());
    step(trial, traffic, living, &when, since)
}

fn step(trial: &mut Trial, traffic: &Traffic, living: &[usize], when: &str, since: Instant) -> StageResult {
    trial.await_healed(when, living);
    traffic.ask_via(living);
    trial.sweep(when, living, since, Tolerance::None)?;
    trial.judge_load(when);
    trial.check_processes();
    Ok(())
}

fn ask_to_leave(trial: &Trial, node: usize) -> Result<(), String> {
    let address = trial.addresses(&[node])[0];
    let mut client = Client::new(vec![address]).map_err(|error| error.to_string())?;
    match client.ask(address, Operation::Unknown(LEAVE)) {
        Ok(reply) if reply.status == Status::Success => Ok(()),
        Ok(reply) => Err(format!("node {node} answers `leave` (0x24) with {}", reply.status)),
        Err(error) => Err(format!("node {node} does not answer `leave` (0x24): {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_three_go_together() {
        assert_eq!(groups(&[1, 2, 3, 4, 5]), [vec![1], vec![2], vec![3, 4, 5]]);
        assert_eq!(groups(&[1, 2]), [vec![1, 2]]);
    }
}
