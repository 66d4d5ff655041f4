//! From probes to what choosing needs: for each host its facts and its past, for each pair what a request between the
//! two costs.
//!
//! The latest probe says who can be chosen at all. Figures of a pair are a mean over all probes in which both hosts were
//! measured, each weighing half as much for every [`HALF_LIFE_SECONDS`] of age, so that one quiet hour does not hide a bad
//! evening. The cost of a pair is the time of a request and its answer when it is slow (p95), plus the wait that loss
//! adds on average.

use crate::probe::record::{Facts, Probe};

/// After this time a probe weighs half as much.
const HALF_LIFE_SECONDS: f64 = 24.0 * 3_600.0;
/// A lost request is asked again after this long, the first time; the course protocol's figure.
const RETRY_MS: f64 = 100.0;

/// A host that may be chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub site: String,
    /// Part of the world.
    pub region: String,
    /// Why the latest probe has no report of it.
    pub failure: Option<String>,
    /// What the latest probe found, if it did.
    pub facts: Option<Facts>,
    /// Weighted share of earlier probes in which it did not report; with how many there were.
    pub absent: (f64, usize),
    /// Clock minus the median clock, in milliseconds.
    pub clock_ahead_ms: Option<f64>,
}

/// What is known of two hosts together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Whether UDP got both ways in the latest probe.
    pub is_open: bool,
    /// Round trip, median, in milliseconds.
    pub p50_ms: f64,
    /// Round trip, 95 of 100.
    pub p95_ms: f64,
    /// Share of small round trips lost, 0 to 1.
    pub loss_small: f64,
    /// Share of large ones.
    pub loss_large: f64,
}

/// All hosts and all pairs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Field {
    /// The hosts.
    pub hosts: Vec<Candidate>,
    /// Row by row; nothing where the pair was never measured, and for a host with itself.
    pairs: Vec<Option<Pair>>,
}

impl Pair {
    /// Milliseconds that a request between the two takes when it is slow, waits for repeats included.
    pub fn cost_ms(&self) -> f64 {
        self.p95_ms + RETRY_MS * self.loss_large.max(self.loss_small)
    }
}

impl Field {
    /// What these probes, the oldest first, say; the last decides who is there.
    pub fn new(probes: &[Probe]) -> Self {
        let Some(latest) = probes.last() else { return Self::default() };
        let count = latest.hosts.len();
        let mut pairs = vec![None; count * count];
        for one in 0..count {
            for other in one + 1..count {
                let pair = pair(probes, latest, one, other);
                pairs[one * count + other] = pair;
                pairs[other * count + one] = pair;
            }
        }
        Self { hosts: (0..count).map(|at| candidate(probes, latest, at)).collect(), pairs }
    }

    /// What is known of two hosts.
    pub fn pair(&self, one: usize, other: usize) -> Option<&Pair> {
        self.pairs[one * self.hosts.len() + other].as_ref()
    }

    /// What a request between two hosts costs; without end if they do not reach each other.
    pub fn cost_ms(&self, one: usize, other: usize) -> f64 {
        self.pair(one, other).filter(|pair| pair.is_open).map_or(f64::INFINITY, Pair::cost_ms)
    }
}

/// How much a probe weighs beside the latest.
fn weight(probe: &Probe, latest: &Probe) -> f64 {
    let age = latest.started_unix_seconds.saturating_sub(probe.started_unix_seconds);
    0.5_f64.powf(age as f64 / HALF_LIFE_SECONDS)
}

fn candidate(probes: &[Probe], latest: &Probe, at: usize) -> Candidate {
    let host = &latest.hosts[at];
    let (mut absent, mut all, mut count) = (0.0, 0.0, 0);
    for probe in &probes[..probes.len() - 1] {
        let Some(then) = probe.hosts.iter().find(|then| then.name == host.name) else { continue };
        // Where most were silent, the fault was the probe's: a taken port, or this machine's own network.
        if 2 * probe.hosts.iter().filter(|then| then.report.is_some()).count() < probe.hosts.len() {
            continue;
        }
        let weight = weight(probe, latest);
        all += weight;
        count += 1;
        absent += if then.report.is_none() { weight } else { 0.0 };
    }
    Candidate {
        name: host.name.clone(),
        site: host.site.clone(),
        region: host.region.clone(),
        failure: host.failure.clone(),
        facts: host.report.as_ref().map(|report| report.facts.clone()),
        absent: (if 0 < count { absent / all } else { 0.0 }, count),
        clock_ahead_ms: host.clock_ahead_ms,
    }
}

fn pair(probes: &[Probe], latest: &Probe, one: usize, other: usize) -> Option<Pair> {
    let names = [&latest.hosts[one].name, &latest.hosts[other].name];
    let mut all = 0.0;
    let mut sums = [0.0; 4];
    for probe in probes {
        let place = |name: &String| probe.hosts.iter().position(|host| host.name == *name);
        let (Some(a), Some(b)) = (place(names[0]), place(names[1])) else { continue };
        let Some(figures) = figures(probe, a, b) else { continue };
        let weight = weight(probe, latest);
        all += weight;
        sums.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += weight * figure);
    }
    let [p50_ms, p95_ms, loss_small, loss_large] = sums.map(|sum| sum / all);
    let is_open = latest.is_open(one, other) && latest.is_open(other, one);
    (0.0 < all).then_some(Pair { is_open, p50_ms, p95_ms, loss_small, loss_large })
}

/// Median, p95, loss of small and of large packets in one probe.
fn figures(probe: &Probe, one: usize, other: usize) -> Option<[f64; 4]> {
    let round_trip = probe.round_trip(one, other)?;
    let (loss_small, loss_large) = probe.loss(one, other)?;
    Some([round_trip.p50_ms, round_trip.p95_ms, loss_small, loss_large])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::samples::probe;

    #[test]
    fn an_evening_weighs_less_the_longer_it_is_ago() {
        let mut old = probe(&[&[0.0, 100.0], &[100.0, 0.0]]);
        let mut new = probe(&[&[0.0, 10.0], &[10.0, 0.0]]);
        new.started_unix_seconds = old.started_unix_seconds + HALF_LIFE_SECONDS as u64;
        let field = Field::new(&[old.clone(), new.clone()]);
        assert!((field.pair(0, 1).unwrap().p50_ms - 40.0).abs() < 1e-9, "{field:?}");
        old.hosts[1].report = None;
        old.hosts[0].report.as_mut().unwrap().links.clear();
        let field = Field::new(&[old, new]);
        assert_eq!(field.pair(0, 1).unwrap().p50_ms, 10.0);
        assert_eq!(field.hosts[1].absent, (1.0, 1));
        assert_eq!(field.hosts[0].absent, (0.0, 1));
    }

    #[test]
    fn a_way_that_is_closed_costs_without_end() {
        let mut probe = probe(&[&[0.0, 10.0], &[10.0, 0.0]]);
        assert_eq!(Field::new(&[probe.clone()]).cost_ms(0, 1), 10.0);
        probe.hosts[0].report.as_mut().unwrap().links[0].is_heard = false;
        assert_eq!(Field::new(&[probe]).cost_ms(1, 0), f64::INFINITY);
        assert!(Field::new(&[]).hosts.is_empty());
    }
}
