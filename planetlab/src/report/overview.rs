//! Results as lines of text, for the command that has just run.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::results::{Counts, Latency, Measured, Phase};
use super::words;

/// Figures of all phases with one setting.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    /// Seconds in which requests fell due.
    pub window_seconds: f64,
    /// Good answers in them.
    pub good_in_window: u64,
    /// Whole counts.
    pub counts: Counts,
    /// All latencies.
    pub latency: Latency,
    /// Whether a generator held some of the figures down.
    pub is_limited: bool,
}

impl Sum {
    /// Adds a phase.
    pub fn add(&mut self, phase: &Phase) {
        self.window_seconds += phase.window_seconds;
        self.good_in_window += phase.good_in_window;
        self.counts.add(&phase.counts);
        self.latency.add(&phase.latency);
        self.is_limited |= phase.limited.is_some();
    }

    /// Good answers a second, in the mean over the time of measuring.
    pub fn good_per_second(&self) -> f64 {
        self.good_in_window as f64 / self.window_seconds.max(f64::MIN_POSITIVE)
    }

    /// What a reader must know beside the figures; empty if nothing.
    pub fn caveat(&self) -> String {
        let mut words = Vec::new();
        let reached = self.counts.good as f64 / self.counts.offered.max(1) as f64;
        if reached < 0.99 {
            words.push(format!("only {} of what was offered was answered well", words::percent(reached)));
        }
        if self.is_limited {
            words.push("limited by the generator".to_owned());
        }
        words.join("; ")
    }
}

/// One line for each host and setting.
pub fn text(all: &[Measured]) -> String {
    let mut text = String::new();
    for measured in all {
        let _ = writeln!(text, "{} ({}):", measured.from.name, measured.region());
        let mut groups: BTreeMap<&str, Sum> = BTreeMap::new();
        measured.phases.iter().for_each(|phase| groups.entry(&phase.group).or_default().add(phase));
        for (group, sum) in groups {
            let caveat = sum.caveat();
            let _ = writeln!(
                text,
                "  {group}: {}, p50 {}, p99 {}, {} failed{}{caveat}",
                words::rate(sum.good_per_second()),
                words::ms(sum.latency.ms(50.0)),
                words::ms(sum.latency.ms(99.0)),
                words::percent(sum.counts.failed()),
                if caveat.is_empty() { "" } else { "; " },
            );
        }
        measured.failed_checks.iter().for_each(|check| text += &format!("  not held: {check}\n"));
        if let Some(reason) = &measured.incomplete {
            let _ = writeln!(text, "  incomplete: {reason}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::sample;
    use super::*;

    #[test]
    fn a_rate_that_was_not_reached_says_so_beside_its_percentile() {
        let good = text(&[sample("eu", 0, 20.0, 0)]);
        assert_eq!(good, "fra (eu):\n  R16: 20.0/s, p50 10.0 ms, p99 20.0 ms, 0 % failed\n");
        let lossy = text(&[sample("eu", 0, 20.0, 50)]);
        assert!(lossy.contains("25 % failed; only 75 % of what was offered was answered well"), "{lossy}");
    }
}
