//! The choice with its reasons: who was taken, who was left and why, and what gossip preset fits.

use super::candidate::Field;
use super::filter::{Limits, filter};
use super::search::{Score, Wish, may_join, search};

/// Up to this round trip between the worst pair the nodes' `lan` preset fits: it waits 150 ms for the answer to a ping,
/// and that must be several round trips, or jitter looks like a member that is silent.
pub const LAN_MS_MAX: f64 = 30.0;
/// A clock that is further off than this is told: versions order by time when writers tie.
const CLOCK_MS_MAX: f64 = 500.0;

/// What came of choosing.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The chosen, by index.
    pub taken: Vec<usize>,
    /// For each host of the field, why it was taken or left: a sentence.
    pub reasons: Vec<String>,
    /// How good the cluster is.
    pub score: Score,
    /// The worst pair of it, if there is one.
    pub worst_pair: Option<(usize, usize)>,
    /// `lan` or `wan`.
    pub gossip: &'static str,
}

/// Chooses.
///
/// # Errors
/// Why no such cluster can be had, in one line; each host's reason stands in the second part.
pub fn choose(field: &Field, limits: &Limits, wish: &Wish) -> Result<Choice, (String, Vec<String>)> {
    let faults = filter(field, limits);
    let able: Vec<usize> = (0..faults.len()).filter(|at| faults[*at].is_none()).collect();
    let Some(taken) = search(field, wish, &able) else {
        let reasons = faults.into_iter().map(|fault| fault.unwrap_or_else(|| "could be taken".to_owned()));
        return Err((why_not(field, wish, &able), reasons.collect()));
    };
    let score = Score::of(field, &taken);
    let reasons = faults.into_iter().enumerate().map(|(at, fault)| {
        fault.unwrap_or_else(|| match taken.contains(&at) {
            true => why_taken(field, &taken, at),
            false => why_left(field, wish, &taken, score, at),
        })
    });
    Ok(Choice {
        reasons: reasons.collect(),
        score,
        worst_pair: worst_pair(field, &taken),
        gossip: gossip(field, &taken),
        taken,
    })
}

/// The gossip preset that fits these hosts' round trips.
pub fn gossip(field: &Field, taken: &[usize]) -> &'static str {
    let (one, other) = worst_pair(field, taken).unwrap_or_default();
    let worst_ms = field.pair(one, other).map_or(0.0, |pair| pair.p95_ms);
    if worst_ms <= LAN_MS_MAX { "lan" } else { "wan" }
}

fn why_not(field: &Field, wish: &Wish, able: &[usize]) -> String {
    let in_region = |region: &str| able.iter().filter(|at| field.hosts[**at].region == region).count();
    let short = wish.mix.iter().find(|(region, wanted)| in_region(region) < **wanted);
    match short {
        Some((region, wanted)) => {
            format!("{} hosts of region {region} can be taken, {wanted} are wanted", in_region(region))
        }
        None if able.len() < wish.count => {
            format!("{} hosts can be taken, {} are wanted", able.len(), wish.count)
        }
        None => format!(
            "{} hosts can be taken, but not {} of them together by sites and mix (--share-sites lets sites have several)",
            able.len(),
            wish.count
        ),
    }
}

fn worst_pair(field: &Field, taken: &[usize]) -> Option<(usize, usize)> {
    let pairs = taken.iter().flat_map(|one| taken.iter().map(move |other| (*one, *other)));
    pairs
        .filter(|(one, other)| one < other)
        .max_by(|(a, b), (c, d)| field.cost_ms(*a, *b).total_cmp(&field.cost_ms(*c, *d)))
}

fn why_taken(field: &Field, taken: &[usize], at: usize) -> String {
    let others = taken.iter().copied().filter(|other| *other != at);
    let worst = others.max_by(|a, b| field.cost_ms(at, *a).total_cmp(&field.cost_ms(at, *b)));
    let pair = worst.and_then(|other| Some((other, field.pair(at, other)?)));
    let mut text = match pair {
        None => "the only one".to_owned(),
        Some((other, pair)) => {
            let loss = 100.0 * pair.loss_large;
            format!(
                "at worst {:.1} ms p95, {loss:.1} % loss of 10 KB, with {}",
                pair.p95_ms, field.hosts[other].name
            )
        }
    };
    if let Some(ahead) = field.hosts[at].clock_ahead_ms.filter(|ahead| CLOCK_MS_MAX < ahead.abs()) {
        text += &format!(
            "; its clock is {:.1} s {}",
            ahead.abs() / 1e3,
            if 0.0 < ahead { "ahead" } else { "behind" }
        );
    }
    text
}

/// The exchange that would have been best shows what the host would have cost.
fn why_left(field: &Field, wish: &Wish, taken: &[usize], score: Score, at: usize) -> String {
    let mut best: Option<(Score, usize)> = None;
    let mut rule = None;
    for place in taken {
        let rest: Vec<usize> = taken.iter().copied().filter(|other| other != place).collect();
        if let Err(reason) = may_join(field, wish, &rest, at) {
            rule = Some(reason);
            continue;
        }
        let with: Vec<usize> = rest.into_iter().chain([at]).collect();
        let other = Score::of(field, &with);
        if best.is_none_or(|(best, _)| other.compare(&best).is_lt()) {
            best = Some((other, *place));
        }
    }
    let Some((other, place)) = best else { return rule.unwrap_or_else(|| "not needed".to_owned()) };
    let name = &field.hosts[place].name;
    match () {
        () if other.pair_ms.is_infinite() => "no UDP both ways with all that were taken".to_owned(),
        () if score.pair_ms + 0.05 < other.pair_ms => {
            format!(
                "instead of {name} the worst pair would cost {:.1} ms, not {:.1}",
                other.pair_ms, score.pair_ms
            )
        }
        () if score.node_ms + 0.05 < other.node_ms => {
            format!(
                "instead of {name} the worst node would cost {:.1} ms, not {:.1}",
                other.node_ms, score.node_ms
            )
        }
        () => format!("as good as {name}, which was taken"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::samples;

    /// Five hosts 10 ms apart, and one that is 80 ms from everybody.
    fn planted() -> Field {
        let row = |me: usize| -> Vec<f64> {
            (0..6)
                .map(|other| {
                    if me == other {
                        0.0
                    } else if me == 4 || other == 4 {
                        80.0
                    } else {
                        10.0
                    }
                })
                .collect()
        };
        let rows: Vec<Vec<f64>> = (0..6).map(row).collect();
        let rows: Vec<&[f64]> = rows.iter().map(Vec::as_slice).collect();
        Field::new(&[samples::probe(&rows)])
    }

    fn wish(count: usize) -> Wish {
        Wish { count, ..Wish::default() }
    }

    #[test]
    fn a_planted_bad_node_is_left_out_and_named() {
        let choice = choose(&planted(), &Limits::default(), &wish(5)).unwrap();
        assert_eq!(choice.taken, [0, 1, 2, 3, 5]);
        assert_eq!(choice.reasons[4], "instead of h0 the worst pair would cost 80.0 ms, not 10.0");
        assert_eq!(choice.reasons[0], "at worst 10.0 ms p95, 0.0 % loss of 10 KB, with h5");
        assert_eq!(choice.gossip, "lan");
    }

    #[test]
    fn with_the_bad_node_the_preset_is_wan() {
        let choice = choose(&planted(), &Limits::default(), &wish(6)).unwrap();
        assert_eq!(choice.gossip, "wan");
        let (one, other) = choice.worst_pair.unwrap();
        assert!(one == 4 || other == 4);
    }

    #[test]
    fn what_cannot_be_had_says_what_is_missing() {
        let field = planted();
        let (short, reasons) = choose(&field, &Limits::default(), &wish(7)).unwrap_err();
        assert_eq!(short, "6 hosts can be taken, 7 are wanted");
        assert_eq!(reasons.len(), 6);
        let mix = [("eu".to_owned(), 4)].into();
        let (short, _) = choose(&field, &Limits::default(), &Wish { mix, ..wish(4) }).unwrap_err();
        assert_eq!(short, "3 hosts of region eu can be taken, 4 are wanted");
    }

    #[test]
    fn a_site_gives_one_and_the_second_says_so() {
        let mut field = planted();
        field.hosts[1].site = "s0".to_owned();
        let choice = choose(&field, &Limits::default(), &wish(4)).unwrap();
        let left = if choice.taken.contains(&0) { 1 } else { 0 };
        assert!(!choice.taken.contains(&left));
        assert!(choice.reasons[left].contains("as good as") || choice.reasons[left].contains("same site"));
    }
}
