//! `schedule PLAN`: runs of a plan at hours of the day, in this process, until the stretch is over.
//!
//! The table of what runs when is printed first. A moment that has passed while an earlier run took longer, or while this
//! machine slept, is left out by name rather than made up for: its hour would be another one.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::command::{Campaign, args, is_good, tell};
use super::timetable::{self, Entry, HOURS_MAX, Hours};
use super::zone;
use crate::Failure;
use crate::remote::Fleet;

/// A run may begin this late and still count as the hour's.
const LATE_MAX: Duration = Duration::from_secs(300);
/// The wall clock is looked at this often: a machine that slept notices.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Describes `schedule`.
pub fn command() -> Command {
    Command::new("schedule")
        .about("Run a plan at hours of the day, of UTC or of each site, until --hours are over")
        .args(args())
        .arg(
            Arg::new("at")
                .long("at")
                .value_name("hh:mm,…")
                .help("Times of day.")
                .value_delimiter(',')
                .required_unless_present("every"),
        )
        .arg(
            Arg::new("every")
                .long("every")
                .value_name("minutes")
                .help("Every so many minutes instead: a sweep through the day.")
                .conflicts_with("at")
                .value_parser(value_parser!(u32).range(1..=1_440)),
        )
        .arg(
            Arg::new("local")
                .long("local")
                .action(ArgAction::SetTrue)
                .help("--at is the time of each host's own place, by its label tz=…; else UTC."),
        )
        .arg(
            Arg::new("hours")
                .long("hours")
                .value_name("hours")
                .help("How far the schedule reaches.")
                .default_value("24")
                .value_parser(value_parser!(u16).range(1..=i64::from(HOURS_MAX))),
        )
        .arg(Arg::new("dry-run").long("dry-run").action(ArgAction::SetTrue).help("Print the table and end."))
}

/// Does `schedule`.
///
/// # Errors
/// Wrong options, in one line.
pub fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let campaign = Campaign::from_matches(matches)?;
    let when = hours(matches)?;
    let known = zones(&campaign, matches.get_flag("local"))?;
    let is_local = matches.get_flag("local");
    let zones: Vec<TimeZone> =
        known.iter().map(|zone| zone.clone().filter(|_| is_local).unwrap_or(TimeZone::UTC)).collect();
    let reach = *matches.get_one::<u16>("hours").expect("it has a default");
    let entries = timetable::entries(Timestamp::now(), reach, &when, &zones)?;
    let names: Vec<&str> =
        campaign.from.iter().map(|at| campaign.inventory.hosts[*at].name.as_str()).collect();
    print!("{}", timetable::text(&entries, &names, &known));
    if matches.get_flag("dry-run") {
        return Ok(ExitCode::SUCCESS);
    }
    let mut all_good = true;
    for entry in &entries {
        all_good &= perform(&campaign, entry)?;
    }
    Ok(ExitCode::from(u8::from(!all_good)))
}

/// Waits for the entry's moment and does its run; whether it went well.
fn perform(campaign: &Campaign, entry: &Entry) -> Result<bool, Failure> {
    loop {
        let left = entry.at.duration_since(Timestamp::now());
        if left.is_negative() || left.is_zero() {
            break;
        }
        thread::sleep(left.unsigned_abs().min(LOOK_EVERY));
    }
    if LATE_MAX < Timestamp::now().duration_since(entry.at).unsigned_abs() {
        eprintln!("{}: left out, its time passed meanwhile", entry.at);
        return Ok(false);
    }
    // A connection does not outlive the hours between two runs, so each has its own.
    let fleet = Fleet::new()?;
    let hosts: Vec<usize> = entry.hosts.iter().map(|host| campaign.from[*host]).collect();
    let run = campaign.perform(&fleet, &hosts)?;
    tell(&campaign.directory, &run);
    Ok(is_good(&run))
}

fn hours(matches: &ArgMatches) -> Result<Hours, Failure> {
    if let Some(minutes) = matches.get_one::<u32>("every") {
        return Ok(Hours::Every(*minutes));
    }
    let words: Vec<&str> =
        matches.get_many::<String>("at").into_iter().flatten().map(String::as_str).collect();
    Ok(Hours::parse_at(&words)?)
}

/// The zone of each host that makes load, where the inventory says it.
fn zones(campaign: &Campaign, is_local: bool) -> Result<Vec<Option<TimeZone>>, Failure> {
    let zones = campaign.from.iter().map(|at| {
        let host = &campaign.inventory.hosts[*at];
        match zone::of(host)? {
            None if is_local => {
                let label = zone::LABEL;
                Err(format!(
                    "{}: --local needs its time zone; a label '{label}Europe/Berlin' would be right",
                    host.name
                )
                .into())
            }
            zone => Ok(zone),
        }
    });
    zones.collect()
}
