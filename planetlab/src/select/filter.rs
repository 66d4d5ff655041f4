//! Who cannot be chosen at all, and why: limits on single hosts, and UDP that does not get both ways.

use super::candidate::{Candidate, Field};

/// What a host must have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Processors at least.
    pub cores_min: usize,
    /// One-minute load average for each processor, at most.
    pub load_per_core_max: f64,
    /// Memory that can be had, in MiB, at least.
    pub memory_free_mib_min: u64,
    /// Free disk in MiB, at least.
    pub disk_free_mib_min: u64,
    /// Share of lost small round trips over all its pairs (median), at most.
    pub loss_max: f64,
    /// Share of earlier probes without it, at most.
    pub absent_max: f64,
}

/// Earlier probes that a judgement on absence takes at least: one bad hour is none.
const PROBES_MIN: usize = 3;

impl Default for Limits {
    fn default() -> Self {
        Self {
            cores_min: 1,
            load_per_core_max: 1.0,
            memory_free_mib_min: 256,
            disk_free_mib_min: 256,
            loss_max: 0.05,
            absent_max: 0.34,
        }
    }
}

/// For each host why it is left out, if it is.
pub fn filter(field: &Field, limits: &Limits) -> Vec<Option<String>> {
    let single = field.hosts.iter().map(|host| fault_of_one(host, limits));
    let mut faults: Vec<Option<String>> = single.collect();
    leave_out_unreachable(field, &mut faults);
    // Loss is judged among those that reach each other: a dead host is nobody else's loss.
    let lossy: Vec<usize> =
        left(&faults).into_iter().filter(|at| limits.loss_max < loss(field, &faults, *at)).collect();
    for at in lossy {
        let share = 100.0 * loss(field, &faults, at);
        faults[at] = Some(format!(
            "loses {share:.1} % of round trips to the others (limit {} %)",
            100.0 * limits.loss_max
        ));
    }
    faults
}

fn left(faults: &[Option<String>]) -> Vec<usize> {
    (0..faults.len()).filter(|at| faults[*at].is_none()).collect()
}

fn fault_of_one(host: &Candidate, limits: &Limits) -> Option<String> {
    let Some(facts) = &host.facts else {
        return Some(host.failure.clone().unwrap_or_else(|| "did not report".to_owned()));
    };
    let load = facts.load.unwrap_or(0.0) / facts.cores.max(1) as f64;
    let memory = facts.memory_free_bytes.unwrap_or(u64::MAX) >> 20;
    let disk = facts.disk_free_bytes.unwrap_or(u64::MAX) >> 20;
    let (absent, probes) = host.absent;
    if facts.cores < limits.cores_min {
        return Some(format!("{} cores, fewer than {}", facts.cores, limits.cores_min));
    }
    if limits.load_per_core_max < load {
        return Some(format!("load {load:.2} a core (limit {})", limits.load_per_core_max));
    }
    if memory < limits.memory_free_mib_min {
        return Some(format!("{memory} MiB of memory free, fewer than {}", limits.memory_free_mib_min));
    }
    if disk < limits.disk_free_mib_min {
        return Some(format!("{disk} MiB of disk free, fewer than {}", limits.disk_free_mib_min));
    }
    (PROBES_MIN <= probes && limits.absent_max < absent).then(|| {
        format!("was not there in {:.0} % of {probes} earlier probes, weighted by age", 100.0 * absent)
    })
}

/// As long as some pair does not reach each other, whoever fails with most of the others is left out: one host behind
/// a firewall does not condemn those that cannot reach it.
fn leave_out_unreachable(field: &Field, faults: &mut [Option<String>]) {
    loop {
        let rest = left(faults);
        let closed = |at: usize| {
            rest.iter().filter(|other| **other != at && field.cost_ms(at, **other).is_infinite()).count()
        };
        let worst = rest.iter().copied().max_by_key(|at| (closed(*at), *at));
        let Some(worst) = worst.filter(|at| 0 < closed(*at)) else { return };
        let others = rest.len() - 1;
        let names: Vec<&str> = rest
            .iter()
            .filter(|other| **other != worst && field.cost_ms(worst, **other).is_infinite())
            .map(|other| field.hosts[*other].name.as_str())
            .take(3)
            .collect();
        faults[worst] = Some(match closed(worst) {
            all if all == others => "no UDP both ways with any other host".to_owned(),
            some => format!("no UDP both ways with {some} of {others} other hosts ({}…)", names.join(", ")),
        });
    }
}

/// Median share of lost small round trips to the others that are left.
fn loss(field: &Field, faults: &[Option<String>], at: usize) -> f64 {
    let others = left(faults).into_iter().filter(|other| *other != at);
    let mut shares: Vec<f64> =
        others.filter_map(|other| field.pair(at, other)).map(|pair| pair.loss_small).collect();
    shares.sort_by(f64::total_cmp);
    shares.get(shares.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::record::Probe;
    use crate::probe::samples;

    const FOUR: [&[f64]; 4] =
        [&[0.0, 1.0, 1.0, 1.0], &[1.0, 0.0, 1.0, 1.0], &[1.0, 1.0, 0.0, 1.0], &[1.0, 1.0, 1.0, 0.0]];

    /// What the default limits say after a change.
    fn check(change: impl Fn(&mut Probe)) -> Vec<String> {
        let mut probe = samples::probe(&FOUR);
        change(&mut probe);
        let faults = filter(&Field::new(&[probe]), &Limits::default());
        faults.into_iter().map(Option::unwrap_or_default).collect()
    }

    #[test]
    fn each_limit_names_the_host_and_the_figure() {
        let facts = |change: fn(&mut crate::probe::record::Facts)| {
            check(|probe| change(&mut probe.hosts[2].report.as_mut().unwrap().facts))
        };
        assert_eq!(check(|_| ()), ["", "", "", ""]);
        assert_eq!(facts(|facts| facts.cores = 0), ["", "", "0 cores, fewer than 1", ""]);
        assert_eq!(facts(|facts| facts.load = Some(9.0)), ["", "", "load 2.25 a core (limit 1)", ""]);
        let memory = facts(|facts| facts.memory_free_bytes = Some(1 << 20));
        assert_eq!(memory, ["", "", "1 MiB of memory free, fewer than 256", ""]);
        let disk = facts(|facts| facts.disk_free_bytes = Some(0));
        assert_eq!(disk, ["", "", "0 MiB of disk free, fewer than 256", ""]);
        let dead = check(|probe| {
            probe.hosts[1].report = None;
            probe.hosts[1].failure = Some("ssh: timed out".to_owned());
        });
        assert_eq!(dead, ["", "ssh: timed out", "", ""]);
    }

    #[test]
    fn who_was_often_away_is_left_out_once_enough_is_known() {
        let healthy = samples::probe(&FOUR);
        let mut without = healthy.clone();
        without.hosts[1].report = None;
        let mut broken = without.clone();
        (0..3).for_each(|at| broken.hosts[at].report = None);
        let check = |earlier: &[&Probe]| {
            let probes: Vec<Probe> = earlier.iter().copied().chain([&healthy]).cloned().collect();
            filter(&Field::new(&probes), &Limits::default())[1].clone()
        };
        assert_eq!(check(&[&without, &without]), None);
        let reason = "was not there in 67 % of 3 earlier probes, weighted by age";
        assert_eq!(check(&[&without, &healthy, &without]).as_deref(), Some(reason));
        // A probe in which most were silent says nothing about one of them.
        assert_eq!(check(&[&broken, &broken, &broken]), None);
    }

    #[test]
    fn who_reaches_nobody_is_left_out_not_those_it_does_not_reach() {
        let deaf = check(|probe| {
            probe.hosts[3].report.as_mut().unwrap().links.iter_mut().for_each(|link| link.is_heard = false);
        });
        assert_eq!(deaf, ["", "", "", "no UDP both ways with any other host"]);
    }

    #[test]
    fn one_lossy_host_is_left_out_alone() {
        let lossy = check(|probe| {
            for host in &mut probe.hosts {
                let is_it = host.name == "h0";
                for link in &mut host.report.as_mut().unwrap().links {
                    if is_it || link.peer == 0 {
                        link.small.answered = 80;
                    }
                }
            }
        });
        assert_eq!(lossy, ["loses 20.0 % of round trips to the others (limit 5 %)", "", "", ""]);
    }
}
