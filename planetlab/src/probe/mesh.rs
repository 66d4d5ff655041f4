//! From hosts to plans for their agents, and from the agents' reports to one probe.

use std::net::SocketAddr;

use super::clocks::clocks;
use super::record::{AgentPlan, AgentReport, Host, LAYOUT, Peer, Probe};

/// A host that is to be probed.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Its name in the inventory.
    pub name: String,
    /// Where it stands.
    pub site: String,
    /// Part of the world.
    pub region: String,
    /// Where its agent listens.
    pub listen: SocketAddr,
    /// Where the others reach it.
    pub address: SocketAddr,
}

/// How agents measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Seconds to wait for agents that start later.
    pub gather_seconds: f64,
    /// Seconds of measuring.
    pub seconds: f64,
    /// Small packets a second to each other host.
    pub small_per_second: f64,
    /// Large ones.
    pub large_per_second: f64,
}

/// One plan for each target, in order.
pub fn plans(targets: &[Target], pace: Pace, run: u64) -> Vec<AgentPlan> {
    let index = |at: usize| u16::try_from(at).expect("the number of hosts is limited before");
    let peers: Vec<Peer> = targets
        .iter()
        .enumerate()
        .map(|(at, target)| Peer { index: index(at), address: target.address })
        .collect();
    let one = |(at, target): (usize, &Target)| AgentPlan {
        run,
        me: index(at),
        listen: target.listen,
        gather_seconds: pace.gather_seconds,
        seconds: pace.seconds,
        small_per_second: pace.small_per_second,
        large_per_second: pace.large_per_second,
        peers: peers.iter().filter(|peer| peer.index != index(at)).cloned().collect(),
    };
    targets.iter().enumerate().map(one).collect()
}

/// The probe that these reports make, with each host's clock.
pub fn join(
    targets: &[Target],
    reports: Vec<Result<AgentReport, String>>,
    started_unix_seconds: u64,
    seconds: f64,
) -> Probe {
    let hosts = targets.iter().zip(reports).map(|(target, outcome)| {
        let (report, failure) = match outcome {
            Ok(report) => (Some(report), None),
            Err(failure) => (None, Some(failure)),
        };
        Host {
            name: target.name.clone(),
            site: target.site.clone(),
            region: target.region.clone(),
            address: Some(target.address),
            failure,
            report,
            clock_ahead_ms: None,
            clock_error_ms: None,
        }
    });
    let mut probe = Probe { layout: LAYOUT, started_unix_seconds, seconds, hosts: hosts.collect() };
    for (at, clock) in clocks(&probe).into_iter().enumerate() {
        probe.hosts[at].clock_ahead_ms = clock.map(|clock| clock.ahead_ms);
        probe.hosts[at].clock_error_ms = clock.map(|clock| clock.error_ms);
    }
    probe
}

/// What is wrong with the host at this index, in sentences; nothing if it takes part fully.
pub fn complaints(probe: &Probe, at: usize) -> Vec<String> {
    let host = &probe.hosts[at];
    if let Some(failure) = &host.failure {
        return vec![failure.clone()];
    }
    let Some(report) = &host.report else { return vec!["no report".to_owned()] };
    let others = (0..probe.hosts.len()).filter(|other| *other != at && probe.hosts[*other].report.is_some());
    let others: Vec<usize> = others.collect();
    let names = |closed: Vec<usize>| match closed.len() == others.len() {
        true => "any other host".to_owned(),
        false => closed.iter().map(|other| probe.hosts[*other].name.as_str()).collect::<Vec<_>>().join(", "),
    };
    let mut all = Vec::new();
    let unheard: Vec<usize> = others.iter().copied().filter(|other| !probe.is_open(*other, at)).collect();
    if !unheard.is_empty() {
        all.push(format!("no UDP arrives from {}", names(unheard)));
    }
    let unreached: Vec<usize> = others.iter().copied().filter(|other| !probe.is_open(at, *other)).collect();
    if !unreached.is_empty() {
        all.push(format!("its UDP does not arrive at {}", names(unreached)));
    }
    if let Some((error, times)) = report.send_errors.iter().max_by_key(|(_, times)| **times) {
        all.push(format!("{times} packets could not leave to {error}"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::samples::probe;
    use super::*;

    #[test]
    fn a_host_without_udp_is_named_on_both_sides() {
        let mut probe = probe(&[&[0.0, 1.0, 1.0], &[1.0, 0.0, 1.0], &[1.0, 1.0, 0.0]]);
        probe.hosts[2].report.as_mut().unwrap().links.iter_mut().for_each(|link| link.is_heard = false);
        assert_eq!(complaints(&probe, 2), ["no UDP arrives from any other host"]);
        assert_eq!(complaints(&probe, 0), ["its UDP does not arrive at h2"]);
        probe.hosts[1].failure = Some("no ssh".to_owned());
        probe.hosts[1].report = None;
        assert_eq!(complaints(&probe, 1), ["no ssh"]);
    }

    #[test]
    fn plans_name_all_others() {
        let targets: Vec<Target> = (1..=3)
            .map(|at| Target {
                name: format!("h{at}"),
                site: String::new(),
                region: String::new(),
                listen: ([0, 0, 0, 0], 4_410).into(),
                address: ([127, 0, 0, at], 4_410).into(),
            })
            .collect();
        let pace = Pace { gather_seconds: 1.0, seconds: 2.0, small_per_second: 3.0, large_per_second: 4.0 };
        let plans = plans(&targets, pace, 9);
        let peers: Vec<Vec<u16>> =
            plans.iter().map(|plan| plan.peers.iter().map(|peer| peer.index).collect()).collect();
        assert_eq!(peers, [[1, 2], [0, 2], [0, 1]]);
        assert!(plans.iter().all(|plan| plan.run == 9));
    }
}
