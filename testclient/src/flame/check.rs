//! A check of the hot path that does not depend on speed: what may not be there is not there.
//!
//! A short run under load is sampled, and the shares of the named groups are printed. Where requests
//! are worked on, no sample may show socket set-up or formatting, and few may show allocation
//! ([`Forbidden::share_max`]).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use clap::Args;

use super::episodes::{Entry, Episode, Side};
use super::groups::{self, Forbidden};
use super::sampler::Sampler;
use super::stacks::Stacks;
use super::take::{self, HowArguments, UNKNOWN_SHARE_MAX};
use crate::report::Table;

/// Fewer samples on the request path say nothing about what is missing in them.
const PATH_SAMPLES_MIN: u64 = 200;
/// Runs that are made at most to get them.
const RUNS_MAX: usize = 4;
/// Functions named of those that lead to what is forbidden.
const CULPRITS_SHOWN_MAX: usize = 6;

/// Options of `check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArguments {
    /// How.
    #[command(flatten)]
    pub how: HowArguments,
    /// Let replication open a socket for every request, and succeed if that is found.
    #[arg(long)]
    pub planted: bool,
}

const USUAL: Side = Side { config: "usual", settings: &[] };
const PLANTED: Side = Side { config: "planted", settings: &[("replication-sockets", "per-request")] };

/// Small, with everything that requests need: replies, replication, forwarding.
const RUN: Episode = Episode {
    name: "check",
    title: "",
    before: PLANTED,
    after: USUAL,
    common: &[],
    nodes: 4,
    entry: Entry::Random,
    rate: 2_000,
    sockets: 16,
    look_at: "",
    original: None,
};

/// Runs the check; whether all is as it must be. Without perf it is skipped, since the nodes' own
/// profiler sees no system calls as such and takes too few samples of a node that mostly sleeps.
///
/// # Errors
/// One sentence, when nothing could be sampled.
pub fn run(arguments: &CheckArguments) -> Result<bool, String> {
    let (sampler, note) = arguments.how.sampler.settle()?;
    if let Some(why) = note {
        println!("flame check SKIPPED: {why}");
        return Ok(true);
    }
    let side = if arguments.planted { RUN.before } else { RUN.after };
    let stacks = gather(side, &arguments.how, sampler)?;
    let findings = judge(&stacks);
    println!("{}", table(&stacks).text());
    for what in Forbidden::ALL {
        println!("Where requests are worked on: {}", presence(&stacks, what).1);
    }
    for finding in &findings {
        println!("{finding}");
    }
    if !arguments.planted {
        return Ok(findings.is_empty());
    }
    let planted = |finding: &String| finding.contains(Forbidden::SocketSetUp.name());
    let is_found = findings.iter().any(planted);
    println!(
        "{}",
        if is_found {
            "The planted fault was found, as it must be."
        } else {
            "THE PLANTED FAULT WAS NOT FOUND."
        }
    );
    Ok(is_found)
}

/// Samples of as many runs as are needed; it does not matter how well the machine kept up.
fn gather(side: Side, how: &HowArguments, sampler: Sampler) -> Result<Stacks, String> {
    let mut stacks = Stacks::default();
    for _ in 0..RUNS_MAX {
        stacks.add_all(take::try_to_take("check", &RUN, side, how, sampler, None)?.stacks);
        if PATH_SAMPLES_MIN <= path_samples(&stacks) {
            break;
        }
    }
    Ok(stacks)
}

fn path_samples(stacks: &Stacks) -> u64 {
    let on_path = stacks.iter().filter(|(frames, _)| groups::is_on_request_path(frames));
    on_path.map(|(_, samples)| samples).sum()
}

/// What is wrong, one sentence each.
fn judge(stacks: &Stacks) -> Vec<String> {
    let path_samples = path_samples(stacks);
    let mut findings = Vec::new();
    if path_samples < PATH_SAMPLES_MIN {
        findings.push(format!(
            "TOO FEW SAMPLES: {path_samples} of {} were taken where requests are worked on, {PATH_SAMPLES_MIN} are needed",
            stacks.samples()
        ));
    }
    for what in Forbidden::ALL {
        let (share, text) = presence(stacks, what);
        if what.share_max() < share {
            findings.push(format!("FORBIDDEN where requests are worked on: {text}"));
        }
    }
    if UNKNOWN_SHARE_MAX < stacks.unknown_share() {
        findings.push(format!("UNKNOWN FRAMES in {:.1} % of the samples", stacks.unknown_share() * 100.0));
    }
    findings
}

/// The share of something forbidden, and in words, with those whose work led to it.
fn presence(stacks: &Stacks, what: Forbidden) -> (f64, String) {
    let mut culprits: BTreeMap<&str, u64> = BTreeMap::new();
    for (frames, samples) in stacks.iter() {
        if let Some(culprit) = groups::culprit(&frames, what) {
            *culprits.entry(culprit).or_default() += samples;
        }
    }
    let percent = |samples: u64| 100.0 * samples as f64 / stacks.samples() as f64;
    let found: u64 = culprits.values().sum();
    let mut largest: Vec<(&str, u64)> = culprits.into_iter().collect();
    largest.sort_by_key(|(_, samples)| Reverse(*samples));
    let named = |(name, samples): &(&str, u64)| format!("{name} {:.2} %", percent(*samples));
    let names: Vec<String> = largest.iter().take(CULPRITS_SHOWN_MAX).map(named).collect();
    let (name, limit) = (what.name(), 100.0 * what.share_max());
    let text =
        format!("{name} in {:.2} % of all samples (at most {limit} %) {}", percent(found), names.join(", "));
    (percent(found) / 100.0, text.trim_end().to_owned())
}

fn table(stacks: &Stacks) -> Table {
    let mut table = Table::new(&["group", "share %"], 1);
    for (group, share) in groups::shares(stacks) {
        table.row(vec![group.name().to_owned(), format!("{:.1}", share * 100.0)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said() {
        let findings = |text: &str| judge(&Stacks::parse(text).expect("stacks"));
        let path = "v-listener;server::Runner::run_batch";
        assert_eq!(findings(&format!("{path};node::Node::handle 900\nv-control;mi_malloc 100\n")), [""; 0]);
        assert_eq!(
            findings(&format!("{path};node::Node::handle 900\n{path};server::SingleUse::open;bind 100\n")),
            [
                "FORBIDDEN where requests are worked on: socket set-up in 10.00 % of all samples (at most 0 %) \
              server::Runner::run_batch 10.00 %"
            ]
        );
        let wrong = findings("v-listener;x 90\nv-listener;[unknown] 10\n");
        assert!(wrong[0].starts_with("TOO FEW SAMPLES: 0 of 100"));
        assert_eq!(wrong[1], "UNKNOWN FRAMES in 10.0 % of the samples");
    }
}
