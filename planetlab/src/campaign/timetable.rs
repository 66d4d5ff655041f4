//! What runs when: hours of the day, as UTC or as each site's local time, over the next hours.
//!
//! Pure: the present moment and the hosts' time zones come in, a list of moments goes out. Each entry is a run from one
//! host, or from several in turn whose moments are the same.

use std::fmt::Write as _;

use jiff::civil::Time;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

/// Runs of one schedule at most.
pub const RUNS_MAX: usize = 1_000;
/// Hours that a schedule reaches ahead at most: two weeks.
pub const HOURS_MAX: u16 = 336;

/// When in the day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hours {
    /// At these times.
    At(Vec<Time>),
    /// Every so many minutes, from the next whole hour on.
    Every(u32),
}

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// When it begins.
    pub at: Timestamp,
    /// The hosts it runs on, by index.
    pub hosts: Vec<usize>,
}

impl Hours {
    /// Reads `02:00,14:00`.
    ///
    /// # Errors
    /// The word that is no time of day.
    pub fn parse_at(words: &[&str]) -> Result<Self, String> {
        let times = words.iter().map(|word| {
            let parsed = word
                .split_once(':')
                .and_then(|(hour, minute)| Some((hour.parse().ok()?, minute.parse().ok()?)));
            let time = parsed.and_then(|(hour, minute)| Time::new(hour, minute, 0, 0).ok());
            time.ok_or_else(|| format!("--at {word}: a time of day such as 02:00 would be right"))
        });
        times.collect::<Result<Vec<Time>, String>>().map(Self::At)
    }
}

/// All runs after `now` and within `hours` of it, the first first.
///
/// # Errors
/// Too many of them.
pub fn entries(now: Timestamp, hours: u16, when: &Hours, zones: &[TimeZone]) -> Result<Vec<Entry>, String> {
    let end = now + Span::new().hours(i64::from(hours));
    let mut all: Vec<(Timestamp, usize)> = Vec::new();
    for (host, zone) in zones.iter().enumerate() {
        let moments = match when {
            Hours::At(times) => at_times(now, hours, times, zone),
            Hours::Every(minutes) => every(now, end, *minutes),
        };
        all.extend(
            moments.into_iter().filter(|moment| now < *moment && *moment <= end).map(|moment| (moment, host)),
        );
        if RUNS_MAX < all.len() {
            return Err(format!(
                "that is more than {RUNS_MAX} runs: fewer hours, hosts or times would be right"
            ));
        }
    }
    all.sort_unstable();
    let mut entries: Vec<Entry> = Vec::new();
    for (at, host) in all {
        match entries.last_mut().filter(|entry| entry.at == at) {
            Some(entry) => entry.hosts.push(host),
            None => entries.push(Entry { at, hosts: vec![host] }),
        }
    }
    Ok(entries)
}

/// These times of each day that the stretch touches. A time that summer time leaves out is the moment after the gap.
fn at_times(now: Timestamp, hours: u16, times: &[Time], zone: &TimeZone) -> Vec<Timestamp> {
    let today = now.to_zoned(zone.clone()).date();
    let days = i64::from(hours / 24) + 2;
    let dates = (0..days).filter_map(|day| today.checked_add(Span::new().days(day)).ok());
    let moments = dates.flat_map(|date| times.iter().map(move |time| date.to_datetime(*time)));
    moments.filter_map(|moment| zone.to_timestamp(moment).ok()).collect()
}

fn every(now: Timestamp, end: Timestamp, minutes: u32) -> Vec<Timestamp> {
    let step = i64::from(minutes.max(1)) * 60;
    let first = now.as_second().div_euclid(3_600) * 3_600;
    let seconds = (0_i64..).map(|round| first + round * step).take_while(|second| *second <= end.as_second());
    seconds.take(RUNS_MAX + 100).filter_map(|second| Timestamp::from_second(second).ok()).collect()
}

/// The table of what runs when, with the time of day at each host whose time zone is known.
pub fn text(entries: &[Entry], names: &[&str], zones: &[Option<TimeZone>]) -> String {
    let mut text = format!("{:16}  from (time of day there)\n", "UTC");
    for entry in entries {
        let at = entry.at.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d %H:%M");
        let hosts = entry.hosts.iter().map(|host| match &zones[*host] {
            Some(zone) => {
                format!("{} ({})", names[*host], entry.at.to_zoned(zone.clone()).strftime("%a %H:%M"))
            }
            None => names[*host].to_owned(),
        });
        let _ = writeln!(text, "{at}  {}", hosts.collect::<Vec<_>>().join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zones() -> Vec<TimeZone> {
        ["Europe/Berlin", "America/New_York", "Europe/Berlin"]
            .map(|name| TimeZone::get(name).unwrap())
            .to_vec()
    }

    fn check(now: &str, hours: u16, when: &Hours) -> String {
        let entries = entries(now.parse().unwrap(), hours, when, &zones()).unwrap();
        let known: Vec<Option<TimeZone>> = zones().into_iter().map(Some).collect();
        text(&entries, &["fra", "nyc", "ber"], &known)
    }

    #[test]
    fn each_site_has_its_own_two_o_clock() {
        let when = Hours::parse_at(&["02:00", "14:00"]).unwrap();
        let expected = "UTC               from (time of day there)\n\
            2026-12-01 07:00  nyc (Tue 02:00)\n\
            2026-12-01 13:00  fra (Tue 14:00), ber (Tue 14:00)\n\
            2026-12-01 19:00  nyc (Tue 14:00)\n\
            2026-12-02 01:00  fra (Wed 02:00), ber (Wed 02:00)\n";
        assert_eq!(check("2026-12-01T03:45:00Z", 24, &when), expected);
    }

    #[test]
    fn a_day_with_twenty_three_hours_has_each_time_once() {
        // Berlin leaves 02:00 to 03:00 out on 28 March 2027.
        let when = Hours::parse_at(&["02:30"]).unwrap();
        let text = check("2027-03-27T22:00:00Z", 24, &when);
        assert_eq!(text.matches("fra").count(), 1, "{text}");
        assert!(text.contains("2027-03-28 01:30  fra (Sun 03:30)"), "{text}");
    }

    #[test]
    fn a_sweep_visits_every_hour_of_the_day() {
        let text = check("2026-12-01T03:45:00Z", 24, &Hours::Every(120));
        assert_eq!(text.lines().count(), 13, "{text}");
        assert!(
            text.contains("2026-12-01 05:00  fra (Tue 06:00), nyc (Tue 00:00), ber (Tue 06:00)\n"),
            "{text}"
        );
    }

    #[test]
    fn what_is_no_time_and_what_is_too_much_is_refused() {
        assert!(Hours::parse_at(&["25:00"]).unwrap_err().contains("25:00"));
        assert!(Hours::parse_at(&["noon"]).unwrap_err().contains("noon"));
        let many = entries("2026-12-01T03:45:00Z".parse().unwrap(), 336, &Hours::Every(1), &zones());
        assert!(many.unwrap_err().contains("more than 1000 runs"));
    }
}
