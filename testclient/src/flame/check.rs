//! A check of the hot path that does not depend on speed: what may not be there is not there.
//!
//! A short run under load is sampled, and the shares of the named groups are printed. Where requests
//! are worked on, no sample may show socket set-up, formatting or allocation.

use clap::Args;

use super::episodes::{Entry, Episode, Side};
use super::groups::{self, Forbidden};
use super::stacks::Stacks;
use super::take::{self, HowArguments, UNKNOWN_SHARE_MAX};
use crate::report::Table;

/// Fewer samples on the request path say nothing about what is missing in them.
const PATH_SAMPLES_MIN: u64 = 200;
/// Stacks shown of what is forbidden.
const STACKS_SHOWN_MAX: usize = 3;

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

/// Runs the check; whether all is as it must be.
///
/// # Errors
/// One sentence, when nothing could be sampled.
pub fn run(arguments: &CheckArguments) -> Result<bool, String> {
    let side = if arguments.planted { RUN.before } else { RUN.after };
    let profile = take::take("check", &RUN, side, &arguments.how)?;
    let findings = judge(&profile.stacks);
    println!("{}", table(&profile.stacks).text());
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

/// What is wrong, one sentence each.
fn judge(stacks: &Stacks) -> Vec<String> {
    let path_share = stacks.share(groups::is_on_request_path);
    let path_samples = (path_share * stacks.samples() as f64).round() as u64;
    let mut findings = Vec::new();
    if path_samples < PATH_SAMPLES_MIN {
        findings.push(format!(
            "TOO FEW SAMPLES: {path_samples} of {} were taken where requests are worked on, {PATH_SAMPLES_MIN} are needed",
            stacks.samples()
        ));
    }
    for what in Forbidden::ALL {
        let is_there = |frames: &[&str]| groups::has_forbidden(frames, what);
        let share = stacks.share(is_there);
        if 0.0 < share {
            let found: Vec<_> = stacks.iter().filter(|(frames, _)| is_there(frames)).collect();
            findings.push(format!(
                "FORBIDDEN where requests are worked on: {} in {:.2} % of all samples, as in{}",
                what.name(),
                share * 100.0,
                largest(found)
            ));
        }
    }
    if UNKNOWN_SHARE_MAX < stacks.unknown_share() {
        findings.push(format!("UNKNOWN FRAMES in {:.1} % of the samples", stacks.unknown_share() * 100.0));
    }
    findings
}

fn largest(mut stacks: Vec<(Vec<&str>, u64)>) -> String {
    stacks.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
    let line = |(frames, samples): &(Vec<&str>, u64)| format!("\n  {samples} {}", frames.join(";"));
    stacks.iter().take(STACKS_SHOWN_MAX).map(line).collect()
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
            [format!(
                "FORBIDDEN where requests are worked on: socket set-up in 10.00 % of all samples, as in\n  \
                 100 {path};server::SingleUse::open;bind"
            )]
        );
        let wrong = findings("v-listener;x 90\nv-listener;[unknown] 10\n");
        assert!(wrong[0].starts_with("TOO FEW SAMPLES: 0 of 100"));
        assert_eq!(wrong[1], "UNKNOWN FRAMES in 10.0 % of the samples");
    }
}
