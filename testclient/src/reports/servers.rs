//! The split by server, and which server stands out.
//!
//! A server stands out when its tail is twice the median of the others' tails, when it fails much more often
//! than they do, or when it got half more or less of the requests than its share. With two servers nobody can say which of them
//! is the odd one, so there must be three. Deliberately not here: why it stands out.

use super::digest::{Load, failure_share};
use super::words;
use crate::result::{Counts, Latency};
use crate::statistics::Estimate;

/// Fewer have no majority.
const SERVERS_MIN: usize = 3;
/// Fewer answers have no 99th percentile.
const ANSWERS_MIN: u64 = 100;
/// How much slower than the others' median is slow.
const TIMES_SLOWER: f64 = 2.0;
/// Failures below this share are nobody's in particular.
const FAILURE_SHARE_MIN: f64 = 0.01;
/// How much more than the others' median is often.
const TIMES_MORE_FAILURES: f64 = 5.0;

/// One server in all repeats of a load.
#[derive(Clone, Debug)]
pub struct Split {
    /// Its address.
    pub server: String,
    /// What became of the requests that asked it.
    pub counts: Counts,
    /// Corrected.
    pub latency: Latency,
    /// Why it stands out, if it does.
    pub odd: Option<String>,
}

/// The servers of a load that were asked; empty if that is only one.
pub fn split(load: &Load) -> Vec<Split> {
    let mut splits: Vec<Split> = Vec::new();
    for share in load.phases.iter().flat_map(|phase| &phase.by_server) {
        match splits.iter_mut().find(|split| split.server == share.server) {
            Some(split) => {
                split.counts.add(&share.counts);
                split.latency.add(&share.latency);
            }
            None => splits.push(Split {
                server: share.server.clone(),
                counts: share.counts,
                latency: share.latency.clone(),
                odd: None,
            }),
        }
    }
    splits.retain(|split| 0 < split.counts.offered);
    if splits.len() < 2 {
        return Vec::new();
    }
    let odd: Vec<Option<String>> = (0..splits.len()).map(|index| odd(&splits, index)).collect();
    splits.iter_mut().zip(odd).for_each(|(split, odd)| split.odd = odd);
    splits
}

/// A sentence for each server that stands out in a load.
pub fn outliers(loads: &[Load]) -> Vec<String> {
    let of_load = |load: &Load| {
        let odd = split(load).into_iter().filter_map(|split| Some((split.server, split.odd?)));
        odd.map(|(server, why)| format!("In {}, {server} stands out: {why}.", load.name)).collect::<Vec<_>>()
    };
    loads.iter().flat_map(of_load).collect()
}

fn odd(splits: &[Split], index: usize) -> Option<String> {
    if splits.len() < SERVERS_MIN {
        return None;
    }
    let others = |figure: &dyn Fn(&Split) -> f64| {
        let all = splits.iter().enumerate().filter(|(other, _)| *other != index);
        Estimate::of(&all.map(|(_, split)| figure(split)).collect::<Vec<_>>()).map(|estimate| estimate.median)
    };
    let one = &splits[index];
    let (failures, theirs) = (failure_share(&one.counts), others(&|split| failure_share(&split.counts))?);
    if FAILURE_SHARE_MIN < failures && TIMES_MORE_FAILURES * theirs < failures {
        let (failures, theirs) = (words::percent(failures), words::percent(theirs));
        return Some(format!("{failures} of its requests failed, the others' median is {theirs}"));
    }
    let p99 = |split: &Split| split.latency.ms(99.0);
    let theirs = others(&p99)?;
    if ANSWERS_MIN <= one.counts.answered && TIMES_SLOWER * theirs < p99(one) {
        let (own, theirs) = (words::latency(p99(one)), words::latency(theirs));
        return Some(format!("its p99 is {own}, the others' median {theirs}"));
    }
    let offered = |split: &Split| split.counts.offered as f64;
    let theirs = others(&offered)?;
    let times = offered(one) / theirs;
    let is_uneven = ANSWERS_MIN as f64 <= theirs && !(0.5..=1.5).contains(&times);
    is_uneven.then(|| format!("it was asked {times:.1} times as often as the others' median"))
}

#[cfg(test)]
mod tests {
    use super::super::{digest, samples};
    use super::*;

    #[test]
    fn the_bad_server_is_named_and_no_other() {
        let faults = samples::faults();
        let sentences = outliers(&digest::loads(&faults));
        assert_eq!(sentences.len(), 1, "{sentences:?}");
        assert!(
            sentences[0].starts_with("In faults, 127.0.0.1:4413 stands out: its p99 is "),
            "{sentences:?}"
        );
        assert_eq!(outliers(&digest::loads(&samples::grid())), Vec::<String>::new());
    }

    #[test]
    fn failures_and_uneven_shares_stand_out_too() {
        let mut grid = samples::grid();
        grid.phases.truncate(1);
        let counts = &mut grid.phases[0].by_server[2].counts;
        counts.answered -= counts.sent / 10;
        counts.good -= counts.sent / 10;
        counts.timed_out += counts.sent / 10;
        let said = outliers(&digest::loads(&grid));
        assert!(said[0].contains("4412 stands out: 9.99 % of its requests failed"), "{said:?}");
        let mut grid = samples::grid();
        grid.phases.truncate(1);
        grid.phases[0].by_server[0].counts.offered *= 4;
        let said = outliers(&digest::loads(&grid));
        assert!(said[0].contains("4410 stands out: it was asked 4.0 times as often"), "{said:?}");
        grid.phases[0].by_server.truncate(2);
        assert!(outliers(&digest::loads(&grid)).is_empty());
    }
}
