//! What the `load` command says about a phase.
//!
//! A percentile of an open loop stands beside the rate that was asked for only if that was reached; else its line says that
//! it was not.

use violet_client::Status;

use crate::load::Work;
use crate::report::milliseconds;
use crate::result::{Latency, Loop, Operation, Phase};
use crate::tally::Tally;
use crate::workload::Faults;

/// Share of the offered requests that must be answered well for the rate to be called reached.
const REACHED_SHARE: f64 = 0.99;

/// A phase in words: one line about the rate, one for each operation, one about the generator.
pub fn phase_lines(phase: &Phase, work: Work) -> Vec<String> {
    let counts = &phase.counts;
    let seconds = phase.window_seconds.max(f64::MIN_POSITIVE);
    let (offered, sent) = (counts.offered as f64 / seconds, counts.sent as f64 / seconds);
    let (answered, good) = (phase.answered_per_second(), phase.good_per_second());
    let remark;
    let head = match phase.timing {
        Loop::Open { rate, arrivals } => {
            let arrivals = format!("{arrivals:?}").to_lowercase();
            remark = remark_on_rate(phase).map_or(String::new(), |remark| format!(" [{remark}]"));
            format!("open loop, {arrivals}, {rate}/s for {seconds:.1} s")
        }
        Loop::Closed { clients } => {
            remark = " [closed loop: tails not comparable]".to_owned();
            format!("closed loop, {clients} clients, {seconds:.2} s")
        }
    };
    let mut lines = vec![format!(
        "{}: {head}: offered {offered:.0}/s, sent {sent:.0}/s, answered {answered:.0}/s, good {good:.0}/s{remark}",
        phase.name,
    )];
    if work != Work::Mix {
        let megabytes = counts.value_bytes as f64 / seconds / 1e6;
        lines.push(format!("  {} transactions, {good:.0}/s, {megabytes:.2} MB/s of values", counts.good));
    }
    for (name, operation) in &phase.operations {
        lines.push(operation_line(name, operation, &remark));
    }
    lines.push(generator_line(phase));
    lines
}

/// What must stand beside every percentile of an open loop, if nearly all that was due was not answered well, or the
/// generator was the limit.
fn remark_on_rate(phase: &Phase) -> Option<String> {
    let counts = &phase.counts;
    let seconds = phase.window_seconds.max(f64::MIN_POSITIVE);
    if (counts.good as f64) < REACHED_SHARE * counts.offered as f64 {
        let (good, offered) = (counts.good as f64 / seconds, counts.offered as f64 / seconds);
        return Some(format!("RATE NOT REACHED: good answers to {good:.0} of {offered:.0} requests/s"));
    }
    phase.generator.limited.as_ref().map(|_| "GENERATOR-LIMITED".to_owned())
}

fn operation_line(name: &str, operation: &Operation, remark: &str) -> String {
    let percentiles = |latency: &Latency| {
        let ms = |percentile| milliseconds(latency.ms(percentile));
        format!("p50 {} p95 {} p99 {} p99.9 {} max {} ms", ms(50.0), ms(95.0), ms(99.0), ms(99.9), ms(100.0))
    };
    let counts = &operation.counts;
    let mut line = format!("  {name}: {} answered: {}", counts.answered, percentiles(&operation.corrected));
    let (raw, last) = (&operation.raw, &operation.last_try);
    line.push_str(&format!(
        "; raw p99 {}, last try p99 {} ms",
        milliseconds(raw.ms(99.0)),
        milliseconds(last.ms(99.0))
    ));
    for (count, what) in
        [(counts.refused, "refused"), (counts.wrong, "wrong"), (counts.timed_out, "timed out")]
    {
        if 0 < count {
            line.push_str(&format!("; {count} {what}"));
        }
    }
    line + remark
}

fn generator_line(phase: &Phase) -> String {
    let generator = &phase.generator;
    let share =
        generator.processor_share.map_or("unknown".to_owned(), |share| format!("{:.0} %", 100.0 * share));
    let lateness = match phase.timing {
        Loop::Open { .. } => format!(
            "late by p50 {} p99 {} max {} ms, ",
            milliseconds(generator.lateness_p50_ms),
            milliseconds(generator.lateness_p99_ms),
            milliseconds(generator.lateness_max_ms)
        ),
        Loop::Closed { .. } => String::new(),
    };
    let verdict = match &generator.limited {
        Some(reason) => format!("GENERATOR-LIMITED: {reason}"),
        None => "not the limit".to_owned(),
    };
    let (threads, buffer) = (generator.threads, generator.receive_buffer_bytes >> 10);
    format!(
        "  generator: {threads} threads, {lateness}{share} of a processor, receive buffers {buffer} KiB; {verdict}"
    )
}

/// Everything odd that was seen, a line each.
pub fn findings(tally: &Tally, faults: &Faults) -> Vec<String> {
    let counts = tally.counts();
    let mut lines = faults.sentences();
    for (status, count) in tally.statuses() {
        let wait = match (status, tally.overload_wait_ms_max) {
            (Status::Success | Status::NoSuchKey, _) => continue,
            (Status::Overload, wait_ms) if 0 < wait_ms => format!(", asks to wait up to {wait_ms} ms"),
            _ => String::new(),
        };
        lines.push(format!("{count} answers: {status}{wait}"));
    }
    let stranger = tally.stranger.map_or(String::new(), |from| format!(" (one from {from})"));
    let retries = counts.datagrams.saturating_sub(counts.sent);
    for (count, what) in [
        (counts.timed_out, "requests were never answered".to_owned()),
        (retries, "datagrams were sent again: requests or replies were lost or late".to_owned()),
        (counts.skipped, "slots were skipped, because too many requests were under way".to_owned()),
        (tally.surplus, "surplus replies to requests that were sent again, as is usual".to_owned()),
        (counts.late, "answers came after their request was given up".to_owned()),
        (
            counts.duplicates,
            "surplus replies to requests sent once: sent twice, or with another request's id".to_owned(),
        ),
        (
            counts.foreign,
            format!("foreign replies: an id never used, or an address not on the list{stranger}"),
        ),
        (counts.undecodable, "datagrams were no reply of this format".to_owned()),
        (
            tally.unreadable_by_proto2,
            "replies leave errCode out when it is 0: clients before 2021 fail".to_owned(),
        ),
        (tally.send_failures, "datagrams were refused by the own kernel".to_owned()),
    ] {
        if 0 < count {
            lines.push(format!("{count} {what}"));
        }
    }
    lines
}
