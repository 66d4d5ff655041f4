//! `violet-testbed logs`: what all nodes said, in one file, in the order in which it happened.
//!
//! Each host's log comes over its master connection, whether its node runs or has crashed. The hosts' clocks differ, so
//! each is compared with this machine's first ([`crate::remote::ClockOffset`]), and times are corrected by what it is
//! ahead. Two lines of different hosts are in the right order as far as their clocks could be measured: to within half a
//! round trip each, which is printed.

use crate::Failure;
use crate::inventory::{Host, Inventory, args, at_once, local_dir};
use crate::nodes::LogLine;
use crate::remote::{ClockOffset, Fleet, HostError, PerHost, SHORT_DEADLINE, quoted, tell_failures};
use clap::{Arg, ArgMatches, Command, value_parser};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How long one host's log may take to come.
const PULL_DEADLINE: Duration = Duration::from_secs(120);

/// Describes the sub-command.
#[must_use]
pub fn command() -> Command {
    Command::new("logs")
        .about("Pulls the logs of all nodes into one file, in order of corrected time")
        .args(args())
        .arg(
            Arg::new("node")
                .long("node")
                .value_name("host,…")
                .help("Only lines of these hosts' nodes.")
                .value_delimiter(','),
        )
        .arg(
            Arg::new("text")
                .long("text")
                .value_name("text")
                .help("Only lines with this text in them, such as a request's id; case does not matter."),
        )
        .arg(
            Arg::new("megabytes")
                .long("megabytes")
                .value_name("MB")
                .help("Most that is taken of the end of each log.")
                .default_value("64")
                .value_parser(value_parser!(u16).range(1..=1_000)),
        )
        .arg(
            Arg::new("output")
                .long("output")
                .short('o')
                .value_name("file")
                .help("Where it goes; '-' is standard output [default: DIR/logs/all.log]")
                .value_parser(value_parser!(PathBuf)),
        )
}

/// Runs the sub-command.
///
/// # Errors
/// One line for bad input. Hosts that fail are named, the rest is written, and the status is 1.
pub fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let mut inventory = Inventory::from_matches(matches)?;
    if let Some(names) = matches.get_many::<String>("node") {
        let names: Vec<&String> = names.collect();
        if let Some(name) = names.iter().find(|name| inventory.host(name).is_none()) {
            return Err(format!(
                "--node: there is no host '{name}' among those of {}",
                inventory.path.display()
            )
            .into());
        }
        inventory.hosts.retain(|host| names.iter().any(|name| **name == host.name));
    }
    let bytes = 1_000_000 * u64::from(*matches.get_one::<u16>("megabytes").expect("the flag has a default"));
    let fleet = Fleet::new()?;
    let results = fleet.on_all(&inventory.all(), at_once(matches), |host| pull(&fleet, host, bytes));
    let text = merge(&results, matches.get_one::<String>("text").map(String::as_str));
    let output = matches.get_one::<PathBuf>("output").cloned();
    let output = output.unwrap_or_else(|| local_dir(matches).join("logs").join("all.log"));
    if output == Path::new("-") {
        print!("{text}");
    } else {
        let fail = |error: std::io::Error| format!("{}: {error}", output.display());
        output.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(fail)?;
        std::fs::write(&output, &text).map_err(fail)?;
        println!("{}: {} lines", output.display(), text.lines().count());
    }
    for (host, result) in &results {
        if let Ok(Pulled { clock, .. }) = result {
            let milliseconds = clock.round_trip.as_secs_f64() * 500.0;
            eprintln!(
                "{}: clock {:+.1} ms, to within {milliseconds:.1} ms",
                host.name,
                clock.ahead_seconds * 1_000.0
            );
        }
    }
    Ok(ExitCode::from(u8::from(!tell_failures(&results))))
}

/// A host's log and how to read its times.
struct Pulled {
    clock: ClockOffset,
    log: String,
}

fn pull(fleet: &Fleet, host: &Host, bytes: u64) -> Result<Pulled, HostError> {
    let script = format!(
        "D={}\n[ -e \"$D/node/node.log\" ] || {{ echo 'no node was ever started there' >&2; exit 1; }}\ntail -c {bytes} \"$D/node/node.log\"",
        quoted(&host.dir)
    );
    // The log comes first: it makes the connection, over which the clock is measured without the cost of making one.
    let log = fleet.run(host, &script, &[], PULL_DEADLINE)?;
    let clock = fleet.clock_offset(host, SHORT_DEADLINE)?;
    Ok(Pulled { clock, log: String::from_utf8_lossy(&log.stdout).into_owned() })
}

/// All lines in order of corrected time. Lines of one host keep their order even where its clock was set back.
fn merge(results: &PerHost<'_, Pulled>, text: Option<&str>) -> String {
    let wanted = text.map(str::to_lowercase);
    let mut lines: Vec<(f64, &str, LogLine<'_>)> = Vec::new();
    for (host, result) in results {
        let Ok(pulled) = result else { continue };
        let mut last = f64::NEG_INFINITY;
        for line in pulled.log.lines().filter_map(LogLine::read) {
            last = last.max(line.time - pulled.clock.ahead_seconds);
            lines.push((last, &host.name, line));
        }
    }
    lines.sort_by(|one, two| one.0.total_cmp(&two.0));
    let width = lines.iter().map(|(_, name, _)| name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (time, name, line) in lines {
        if wanted.as_ref().is_none_or(|wanted| line.text.to_lowercase().contains(wanted)) {
            writeln!(out, "{} {name:<width$} {} {}", utc(time), line.source, line.text)
                .expect("a string takes any text");
        }
    }
    out
}

/// Seconds since 1970 as a date and time of day, UTC, to the microsecond.
#[must_use]
pub fn utc(seconds: f64) -> String {
    let whole = seconds.floor();
    // Times of logs lie within some thousand years of 1970.
    #[allow(clippy::cast_possible_truncation)]
    let (day, second) = ((whole / 86_400.0).floor() as i64, whole.rem_euclid(86_400.0) as i64);
    let micros = ((seconds - whole) * 1e6).floor();
    let (year, month, day) = date(day);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{micros:06}Z",
        second / 3_600,
        second / 60 % 60,
        second % 60
    )
}

/// Year, month and day of the Gregorian calendar, of a count of days since 1970-01-01. Years are counted from March, so
/// that the day that a leap year adds is the last one.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pulled(ahead_seconds: f64, log: &str) -> Result<Pulled, HostError> {
        let clock = ClockOffset { ahead_seconds, round_trip: Duration::from_millis(1) };
        Ok(Pulled { clock, log: log.into() })
    }

    #[test]
    fn lines_come_in_the_order_in_which_they_happened() {
        let (a, b, c) = (Host::new("a", "h"), Host::new("bb", "h"), Host::new("c", "h"));
        let results = vec![
            (&a, pulled(0.0, "10.5 out one\n12.0 out Three\nhalf a li")),
            (&b, pulled(100.0, "111.25 err two\n111.0 out set back\n113.0 end signal 9\n")),
            (&c, Err(HostError::WrongKey)),
        ];
        assert_eq!(
            merge(&results, None),
            "1970-01-01T00:00:10.500000Z a  out one\n\
             1970-01-01T00:00:11.250000Z bb err two\n\
             1970-01-01T00:00:11.250000Z bb out set back\n\
             1970-01-01T00:00:12.000000Z a  out Three\n\
             1970-01-01T00:00:13.000000Z bb end signal 9\n"
        );
        assert_eq!(merge(&results, Some("three")), "1970-01-01T00:00:12.000000Z a  out Three\n");
    }

    #[test]
    fn dates() {
        assert_eq!(utc(951_782_400.0), "2000-02-29T00:00:00.000000Z");
        assert_eq!(utc(1_796_083_199.5), "2026-11-30T23:59:59.500000Z");
        assert_eq!(utc(-1.0), "1969-12-31T23:59:59.000000Z");
    }
}
