//! Moments as people and file names write them, in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Seconds from 1970 to now.
pub fn now_unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// As it stands in file names: `20261201-034500`.
pub fn in_name(unix_seconds: u64) -> String {
    format(unix_seconds, "%Y%m%d-%H%M%S")
}

/// As people read it: `2026-12-01 03:45 UTC`.
pub fn for_people(unix_seconds: u64) -> String {
    format(unix_seconds, "%Y-%m-%d %H:%M UTC")
}

fn format(unix_seconds: u64, how: &str) -> String {
    let seconds = i64::try_from(unix_seconds).unwrap_or(i64::MAX);
    match Timestamp::from_second(seconds) {
        Ok(moment) => moment.to_zoned(TimeZone::UTC).strftime(how).to_string(),
        // Beyond the year 9999 a number says as much.
        Err(_) => unix_seconds.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_in_utc() {
        assert_eq!(in_name(1_796_096_700), "20261201-034500");
        assert_eq!(for_people(0), "1970-01-01 00:00 UTC");
        assert_eq!(for_people(u64::MAX), u64::MAX.to_string());
    }
}
