//! The phases of several agents as one.
//!
//! They began together, so their seconds are the same seconds. Counts and histograms add up. What stands of a second's
//! latency are three percentiles, which do not: the merged median is the mean weighted by answers, and p99 and
//! longest are the largest of the agents', so the merged p99 of a *second* is an upper bound. The percentiles of the
//! whole phase come from histograms and are exact.

use crate::result::{Loop, Phase, Second, ServerShare};

/// Adds up the parts of one phase, which have their agents' names; `None` of none.
pub fn merge(parts: Vec<(String, Phase)>) -> Option<Phase> {
    let mut parts = parts.into_iter();
    let (name, mut sum) = parts.next()?;
    if let Some(why) = &mut sum.generator.limited {
        *why = format!("agent {name}: {why}");
    }
    for (name, part) in parts {
        add(&mut sum, &name, part);
    }
    Some(sum)
}

fn add(sum: &mut Phase, name: &str, part: Phase) {
    sum.window_seconds = sum.window_seconds.max(part.window_seconds);
    match (&mut sum.timing, part.timing) {
        (Loop::Open { rate, .. }, Loop::Open { rate: more, .. }) => *rate += more,
        (Loop::Closed { clients }, Loop::Closed { clients: more }) => *clients += more,
        (Loop::Open { .. } | Loop::Closed { .. }, _) => {}
    }
    sum.counts.add(&part.counts);
    for (word, operation) in part.operations {
        match sum.operations.get_mut(&word) {
            None => drop(sum.operations.insert(word, operation)),
            Some(own) => {
                own.counts.add(&operation.counts);
                for (code, count) in operation.codes {
                    *own.codes.entry(code).or_default() += count;
                }
                own.corrected.add(&operation.corrected);
                own.raw.add(&operation.raw);
                own.last_try.add(&operation.last_try);
            }
        }
    }
    add_seconds(&mut sum.seconds, part.seconds);
    add_shares(&mut sum.by_server, part.by_server);
    let (own, more) = (&mut sum.generator, part.generator);
    own.processor_share = own.processor_share.zip(more.processor_share).map(|(own, more)| own + more);
    own.threads += more.threads;
    own.lateness_p50_ms = own.lateness_p50_ms.max(more.lateness_p50_ms);
    own.lateness_p99_ms = own.lateness_p99_ms.max(more.lateness_p99_ms);
    own.lateness_max_ms = own.lateness_max_ms.max(more.lateness_max_ms);
    own.receive_buffer_bytes = own.receive_buffer_bytes.min(more.receive_buffer_bytes);
    if let Some(why) = more.limited {
        let why = format!("agent {name}: {why}");
        own.limited = Some(own.limited.take().map_or(why.clone(), |other| format!("{other}; {why}")));
    }
}

fn add_seconds(sum: &mut Vec<Second>, part: Vec<Second>) {
    for second in part {
        let Some(own) = sum.iter_mut().find(|own| own.at == second.at) else {
            sum.push(second);
            continue;
        };
        let (answers, more) = (own.answered as f64, second.answered as f64);
        if 0.0 < answers + more {
            own.p50_ms = (own.p50_ms * answers + second.p50_ms * more) / (answers + more);
        }
        own.offered += second.offered;
        own.answered += second.answered;
        own.good += second.good;
        own.timed_out += second.timed_out;
        own.wrong += second.wrong;
        own.p99_ms = own.p99_ms.max(second.p99_ms);
        own.max_ms = own.max_ms.max(second.max_ms);
    }
    sum.sort_by_key(|second| second.at);
}

fn add_shares(sum: &mut Vec<ServerShare>, part: Vec<ServerShare>) {
    for share in part {
        match sum.iter_mut().find(|own| own.server == share.server) {
            None => sum.push(share),
            Some(own) => {
                own.counts.add(&share.counts);
                own.latency.add(&share.latency);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fake;

    fn part(rate: f64, good: u64, seconds: &[(u64, u64, f64)]) -> Phase {
        let mut phase = fake::phase(rate, good, 1);
        let second = |&(at, answered, ms): &(u64, u64, f64)| Second {
            at,
            answered,
            good: answered,
            p50_ms: ms,
            p99_ms: 2.0 * ms,
            max_ms: 3.0 * ms,
            ..Second::default()
        };
        phase.seconds = seconds.iter().map(second).collect();
        phase
    }

    #[test]
    fn counts_and_histograms_add_up_and_seconds_are_aligned() {
        let left = part(100.0, 100, &[(0, 30, 1.0), (1, 70, 1.0)]);
        let mut right = part(50.0, 50, &[(1, 30, 2.0), (2, 20, 4.0)]);
        right.generator.limited = Some("late".to_owned());
        let sum = merge(vec![("a".to_owned(), left), ("b".to_owned(), right)]).unwrap();
        assert!(matches!(sum.timing, Loop::Open { rate, .. } if rate == 150.0));
        assert_eq!((sum.counts.good, sum.counts.timed_out, sum.counts.is_balanced()), (150, 2, true));
        let get = &sum.operations["get"];
        assert_eq!((get.counts.good, get.codes[&0], get.corrected.0.len()), (150, 150, 150));
        let seconds: Vec<(u64, u64)> =
            sum.seconds.iter().map(|second| (second.at, second.answered)).collect();
        assert_eq!(seconds, [(0, 30), (1, 100), (2, 20)]);
        assert!((sum.seconds[1].p50_ms - 1.3).abs() < 1e-9);
        assert_eq!((sum.seconds[1].p99_ms, sum.seconds[1].max_ms), (4.0, 6.0));
        assert_eq!((sum.generator.threads, sum.generator.limited.as_deref()), (2, Some("agent b: late")));
        assert!(merge(Vec::new()).is_none());
    }
}
