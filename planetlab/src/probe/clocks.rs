//! How far each host's clock is off, from the exchanges between pairs.
//!
//! An exchange tells the difference of two clocks to within half its round trip. From one host the differences add up
//! along the chain of exchanges whose round trips sum to the least (Dijkstra's shortest paths); what all agree on is
//! then expressed against the median clock, so that one wrong clock is the odd one out rather than all others.

use super::record::Probe;

/// A host's clock minus the median clock, and how far that may be off; both in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    /// How far it is ahead.
    pub ahead_ms: f64,
    /// Half the round trips that the figure rests on.
    pub error_ms: f64,
}

/// The clocks of all hosts that can be compared with most of the others, in the order of the probe.
pub fn clocks(probe: &Probe) -> Vec<Option<Clock>> {
    let trees = (0..probe.hosts.len()).map(|from| from_one(probe, from));
    let reached = |tree: &[Option<Clock>]| tree.iter().flatten().count();
    let error = |tree: &[Option<Clock>]| tree.iter().flatten().map(|clock| clock.error_ms).sum::<f64>();
    // The host that sees most, at the least error, is where the others are compared.
    let best = trees.min_by(|a, b| reached(b).cmp(&reached(a)).then(error(a).total_cmp(&error(b))));
    let Some(mut clocks) = best.filter(|tree| 2 <= reached(tree)) else {
        return vec![None; probe.hosts.len()];
    };
    let mut ahead: Vec<f64> = clocks.iter().flatten().map(|clock| clock.ahead_ms).collect();
    ahead.sort_by(f64::total_cmp);
    let median = ahead[ahead.len() / 2];
    clocks.iter_mut().flatten().for_each(|clock| clock.ahead_ms -= median);
    clocks
}

/// All clocks against one host's.
fn from_one(probe: &Probe, start: usize) -> Vec<Option<Clock>> {
    let mut known: Vec<Option<Clock>> = vec![None; probe.hosts.len()];
    let mut open: Vec<Option<Clock>> = known.clone();
    open[start] = Some(Clock { ahead_ms: 0.0, error_ms: 0.0 });
    while let Some((at, clock)) = nearest(&open) {
        open[at] = None;
        known[at] = Some(clock);
        for to in 0..probe.hosts.len() {
            let Some((ahead_ms, error_ms)) = difference(probe, at, to) else { continue };
            let through = Clock { ahead_ms: clock.ahead_ms + ahead_ms, error_ms: clock.error_ms + error_ms };
            let is_better = open[to].is_none_or(|other| through.error_ms < other.error_ms);
            if known[to].is_none() && is_better {
                open[to] = Some(through);
            }
        }
    }
    known
}

fn nearest(open: &[Option<Clock>]) -> Option<(usize, Clock)> {
    let found = open.iter().enumerate().filter_map(|(at, clock)| Some((at, (*clock)?)));
    found.min_by(|(_, a), (_, b)| a.error_ms.total_cmp(&b.error_ms))
}

/// The clock of `to` minus that of `at`, by the better account of the two, and how far it may be off.
fn difference(probe: &Probe, at: usize, to: usize) -> Option<(f64, f64)> {
    let account = |one: usize, other: usize, sign: f64| {
        let link = probe.link(one, other)?;
        Some((link.clock_ahead_ms? * sign, link.small.round_trip?.min_ms / 2.0))
    };
    let accounts = [account(at, to, 1.0), account(to, at, -1.0)];
    accounts.into_iter().flatten().min_by(|(_, a), (_, b)| a.total_cmp(b))
}

#[cfg(test)]
mod tests {
    use super::super::samples::probe;
    use super::*;

    #[test]
    fn one_wrong_clock_is_the_odd_one_out() {
        let mut probe = probe(&[&[0.0, 10.0, 90.0], &[10.0, 0.0, 20.0], &[90.0, 20.0, 0.0]]);
        // The clock of the third is 500 ms ahead; the direct exchange with the first is worse than the way round.
        for (from, to, ahead) in [(0, 1, 1.0), (1, 0, -1.0), (1, 2, 500.0), (2, 1, -500.0), (0, 2, 540.0)] {
            let report = probe.hosts[from].report.as_mut().unwrap();
            let link = report.links.iter_mut().find(|link| usize::from(link.peer) == to).unwrap();
            link.clock_ahead_ms = Some(ahead);
        }
        let clocks = clocks(&probe);
        let ahead: Vec<f64> = clocks.iter().map(|clock| clock.unwrap().ahead_ms).collect();
        assert_eq!(ahead, [-1.0, 0.0, 500.0]);
        assert_eq!(clocks[2].unwrap().error_ms, 10.0);
    }

    #[test]
    fn without_exchanges_nothing_is_known() {
        let mut probe = probe(&[&[0.0, 10.0], &[10.0, 0.0]]);
        probe.hosts.iter_mut().for_each(|host| host.report = None);
        assert_eq!(clocks(&probe), [None, None]);
    }
}
