//! Which of the hosts that can be chosen make the best cluster: greedy, then swaps.
//!
//! A cluster is as slow as its worst pair and as its worst node, since every key whose replicas include it waits for
//! it. So clusters are compared by the worst pair first, then by the worst node (mean cost of its pairs), then by the
//! mean of all. The search starts once from each host, adds the host that leaves the best cluster until there are
//! enough, and exchanges one host at a time as long as that helps. Sites and regions are rules that no step breaks.
//! The exact answer is a clique problem; on small sets the tests compare with it.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::candidate::Field;

/// Starts of the greedy search at most: with more hosts, evenly spaced ones.
const STARTS_MAX: usize = 64;
/// Rounds of exchanges for each start at most.
const SWAPS_MAX: usize = 200;
/// Costs closer than this are the same: probes repeat no better.
const SAME_MS: f64 = 0.1;

/// What the cluster must be like.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wish {
    /// Hosts.
    pub count: usize,
    /// Hosts of each region named; the others, if any are wanted, come from anywhere else.
    pub mix: BTreeMap<String, usize>,
    /// Whether a site may have more than one.
    pub shares_sites: bool,
}

/// How good a cluster is: smaller is better, in the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Cost of the worst pair.
    pub pair_ms: f64,
    /// Mean cost of the pairs of the worst node.
    pub node_ms: f64,
    /// Mean cost of all pairs.
    pub mean_ms: f64,
}

impl Score {
    /// Of these hosts of the field.
    pub fn of(field: &Field, chosen: &[usize]) -> Self {
        let mut score = Self { pair_ms: 0.0, node_ms: 0.0, mean_ms: 0.0 };
        if chosen.len() < 2 {
            return score;
        }
        for one in chosen {
            let mut sum = 0.0;
            for other in chosen.iter().filter(|other| *other != one) {
                let cost = field.cost_ms(*one, *other);
                score.pair_ms = score.pair_ms.max(cost);
                sum += cost;
            }
            let node_ms = sum / (chosen.len() - 1) as f64;
            score.node_ms = score.node_ms.max(node_ms);
            score.mean_ms += node_ms / chosen.len() as f64;
        }
        score
    }

    /// Which of two is better. Rounded first: "about the same" would not be transitive.
    pub fn compare(&self, other: &Self) -> Ordering {
        let steps =
            |score: &Self| [score.pair_ms, score.node_ms, score.mean_ms].map(|ms| (ms / SAME_MS).round());
        let [ours, theirs] = [steps(self), steps(other)];
        let first = ours.iter().zip(&theirs).map(|(ours, theirs)| ours.total_cmp(theirs));
        first.fold(Ordering::Equal, Ordering::then)
    }
}

/// Whether a host may join those that are chosen already, by sites and regions.
pub fn may_join(field: &Field, wish: &Wish, chosen: &[usize], host: usize) -> Result<(), String> {
    let it = &field.hosts[host];
    let neighbour = chosen.iter().find(|other| field.hosts[**other].site == it.site);
    if let Some(neighbour) = neighbour.filter(|_| !wish.shares_sites) {
        return Err(format!("{} is on the same site {}", field.hosts[*neighbour].name, it.site));
    }
    let taken = |region: &str| chosen.iter().filter(|other| field.hosts[**other].region == region).count();
    match wish.mix.get(&it.region) {
        Some(wanted) if *wanted <= taken(&it.region) => {
            Err(format!("{wanted} of region {} are enough", it.region))
        }
        Some(_) => Ok(()),
        None => {
            let free = wish.count - wish.mix.values().sum::<usize>().min(wish.count);
            let others =
                chosen.iter().filter(|other| !wish.mix.contains_key(&field.hosts[**other].region)).count();
            match others < free {
                true => Ok(()),
                false => Err(format!("the mix has no place left for region {}", it.region)),
            }
        }
    }
}

/// The best cluster found among these hosts, in ascending order; nothing if no start leads to enough hosts.
pub fn search(field: &Field, wish: &Wish, able: &[usize]) -> Option<Vec<usize>> {
    let stride = able.len().div_ceil(STARTS_MAX).max(1);
    let mut best: Option<(Score, Vec<usize>)> = None;
    for start in able.iter().step_by(stride) {
        let Some(mut chosen) = greedy(field, wish, able, *start) else { continue };
        swap(field, wish, able, &mut chosen);
        chosen.sort_unstable();
        let score = Score::of(field, &chosen);
        if best.as_ref().is_none_or(|(other, _)| score.compare(other).is_lt()) {
            best = Some((score, chosen));
        }
    }
    best.map(|(_, chosen)| chosen)
}

fn greedy(field: &Field, wish: &Wish, able: &[usize], start: usize) -> Option<Vec<usize>> {
    may_join(field, wish, &[], start).ok()?;
    let mut chosen = vec![start];
    while chosen.len() < wish.count {
        let free = able.iter().copied().filter(|host| !chosen.contains(host));
        let fitting: Vec<usize> = free.filter(|host| may_join(field, wish, &chosen, *host).is_ok()).collect();
        let next = best_addition(field, &chosen, &fitting)?;
        chosen.push(next);
    }
    Some(chosen)
}

fn best_addition(field: &Field, chosen: &[usize], fitting: &[usize]) -> Option<usize> {
    let scored = fitting.iter().map(|host| {
        let with: Vec<usize> = chosen.iter().copied().chain([*host]).collect();
        (*host, Score::of(field, &with))
    });
    scored.min_by(|(_, a), (_, b)| a.compare(b)).map(|(host, _)| host)
}

/// Exchanges one chosen host for one that is not, the best exchange first, until none helps.
fn swap(field: &Field, wish: &Wish, able: &[usize], chosen: &mut [usize]) {
    let mut score = Score::of(field, chosen);
    for _ in 0..SWAPS_MAX {
        let mut best: Option<(Score, usize, usize)> = None;
        for place in 0..chosen.len() {
            let mut rest = chosen.to_vec();
            rest.swap_remove(place);
            let free = able.iter().filter(|host| !chosen.contains(host));
            for host in free.filter(|host| may_join(field, wish, &rest, **host).is_ok()) {
                let with: Vec<usize> = rest.iter().copied().chain([*host]).collect();
                let other = Score::of(field, &with);
                if other.compare(best.as_ref().map_or(&score, |(score, _, _)| score)).is_lt() {
                    best = Some((other, place, *host));
                }
            }
        }
        let Some((better, place, host)) = best else { return };
        chosen[place] = host;
        score = better;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::samples::probe;

    /// Hosts on a plane with a slow access link each: costs as distances have them.
    fn draw(seed: &mut u64, hosts: usize) -> Field {
        let mut next = || {
            *seed ^= *seed << 13;
            *seed ^= *seed >> 7;
            *seed ^= *seed << 17;
            (*seed % 1_000) as f64 / 10.0
        };
        let places: Vec<[f64; 3]> = (0..hosts).map(|_| [next(), next(), next() / 10.0]).collect();
        let cost = |a: &[f64; 3], b: &[f64; 3]| 1.0 + (a[0] - b[0]).hypot(a[1] - b[1]) + a[2] + b[2];
        let rows: Vec<Vec<f64>> =
            places.iter().map(|a| places.iter().map(|b| cost(a, b)).collect()).collect();
        let rows: Vec<&[f64]> = rows.iter().map(Vec::as_slice).collect();
        Field::new(&[probe(&rows)])
    }

    /// The best of all subsets.
    fn brute_force(field: &Field, wish: &Wish) -> Option<Score> {
        let subsets = (0_u32..1 << field.hosts.len()).filter(|set| set.count_ones() as usize == wish.count);
        let fitting = subsets.filter_map(|set| {
            let chosen: Vec<usize> = (0..field.hosts.len()).filter(|at| set & 1 << at != 0).collect();
            let fits = (0..chosen.len()).all(|at| may_join(field, wish, &chosen[..at], chosen[at]).is_ok());
            fits.then(|| Score::of(field, &chosen))
        });
        fitting.min_by(Score::compare)
    }

    #[test]
    fn greedy_with_swaps_finds_nearly_always_what_brute_force_finds() {
        let mut seed = 0x9e37_79b9_7f4a_7c15;
        let (mut draws, mut exact, mut longest) = (0, 0, 1.0_f64);
        for _ in 0..60 {
            for (hosts, count) in [(8, 3), (10, 5), (12, 6)] {
                let field = draw(&mut seed, hosts);
                let wish = Wish { count, ..Wish::default() };
                let able: Vec<usize> = (0..hosts).collect();
                let found = Score::of(&field, &search(&field, &wish, &able).unwrap());
                let best = brute_force(&field, &wish).unwrap();
                draws += 1;
                exact += usize::from((found.pair_ms - best.pair_ms).abs() < SAME_MS);
                longest = longest.max(found.pair_ms / best.pair_ms);
            }
        }
        assert!(
            95 * draws <= 100 * exact && longest < 1.1,
            "{exact} of {draws}, at worst {longest:.3} times"
        );
    }

    #[test]
    fn a_mix_of_regions_and_sites_is_kept() {
        let mut seed = 42;
        for _ in 0..20 {
            let mut field = draw(&mut seed, 10);
            field.hosts[3].site = "s2".to_owned();
            let mix = BTreeMap::from([("eu".to_owned(), 2), ("na".to_owned(), 2)]);
            let wish = Wish { count: 4, mix, shares_sites: false };
            let able: Vec<usize> = (0..10).collect();
            let found = search(&field, &wish, &able).unwrap();
            let europeans = found.iter().filter(|at| field.hosts[**at].region == "eu").count();
            assert_eq!((europeans, found.len()), (2, 4));
            assert!(!(found.contains(&2) && found.contains(&3)), "{found:?}");
            let best = brute_force(&field, &wish).unwrap();
            assert!(Score::of(&field, &found).pair_ms <= 1.1 * best.pair_ms);
        }
    }

    #[test]
    fn what_cannot_be_is_not_found() {
        let field = draw(&mut 7, 6);
        let able: Vec<usize> = (0..6).collect();
        assert_eq!(search(&field, &Wish { count: 7, ..Wish::default() }, &able), None);
        let mix = BTreeMap::from([("eu".to_owned(), 4)]);
        assert_eq!(search(&field, &Wish { count: 4, mix, shares_sites: true }, &able), None);
        assert_eq!(search(&field, &Wish { count: 1, ..Wish::default() }, &[]), None);
    }
}
