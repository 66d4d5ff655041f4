//! Figures as people read them, the same in every kind of report.
//!
//! Three digits that matter, thousands parted by commas, and the unit always there. Deliberately not here:
//! whole sentences; those are written where their meaning is known.

use crate::report::milliseconds;
use crate::result::{Arrivals, Loop};

/// A whole number with its thousands parted.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if 0 < index && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of things and their name: `1 server`, `3 servers`.
pub fn several(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// A rate in events a second, with its unit.
pub fn rate(rate: f64) -> String {
    if rate.is_finite() { per_second(rate) + " /s" } else { "-".to_owned() }
}

/// A number of events a second where the sentence names the unit.
pub fn per_second(rate: f64) -> String {
    match rate {
        rate if rate < 10.0 => format!("{rate:.2}"),
        rate if rate < 100.0 => format!("{rate:.1}"),
        rate => count(rate.round() as u64),
    }
}

/// A latency with its unit.
pub fn latency(ms: f64) -> String {
    match ms {
        ms if ms < 1.0 => format!("{:.0} µs", ms * 1e3),
        ms if ms < 1e3 => format!("{} ms", milliseconds(ms)),
        ms => format!("{:.2} s", ms / 1e3),
    }
}

/// A latency at a tick of an axis, which is a round one.
pub fn latency_tick(ms: f64) -> String {
    match ms {
        ms if ms < 0.999e-3 => format!("{} ns", (ms * 1e6).round()),
        ms if ms < 0.999 => format!("{} µs", (ms * 1e3).round()),
        ms if ms < 999.0 => format!("{} ms", ms.round()),
        ms => format!("{} s", (ms / 1e3).round()),
    }
}

/// A share of one, in percent; what is not nothing never looks like nothing.
pub fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    match percent {
        0.0 => "0 %".to_owned(),
        percent if percent.is_nan() => "-".to_owned(),
        percent if percent < 0.001 => "< 0.001 %".to_owned(),
        percent if percent < 0.1 => format!("{percent:.3} %"),
        percent if percent < 10.0 => format!("{percent:.2} %"),
        percent => format!("{percent:.1} %"),
    }
}

/// A length of time.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 10.0 => format!("{seconds:.1} s"),
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds => {
            let whole = seconds.round() as u64;
            match (whole / 3_600, whole / 60 % 60, whole % 60) {
                (0, minutes, rest) => format!("{minutes} min {rest} s"),
                (hours, minutes, _) => format!("{hours} h {minutes} min"),
            }
        }
    }
}

/// An amount of memory or data.
pub fn bytes(bytes: f64) -> String {
    match bytes {
        bytes if bytes < 1e3 => format!("{bytes:.0} B"),
        bytes if bytes < 1e6 => format!("{:.1} kB", bytes / 1e3),
        bytes if bytes < 1e9 => format!("{:.1} MB", bytes / 1e6),
        bytes => format!("{:.2} GB", bytes / 1e9),
    }
}

/// How requests were timed.
pub fn timing(timing: &Loop) -> String {
    match *timing {
        Loop::Open { rate: per_second, arrivals: Arrivals::Constant } => {
            format!("open, {}", rate(per_second))
        }
        Loop::Open { rate: per_second, arrivals: Arrivals::Poisson } => {
            format!("open, {} Poisson", rate(per_second))
        }
        Loop::Closed { clients } => format!("closed, {}", several(clients as u64, "client", "clients")),
    }
}

/// How requests were timed, in as few words as tell rates or numbers of clients apart.
pub fn brief_timing(timing: &Loop) -> String {
    match *timing {
        Loop::Open { rate: per_second, .. } => rate(per_second),
        Loop::Closed { clients } => several(clients as u64, "client", "clients"),
    }
}

/// A moment as a date and time of day in UTC.
pub fn moment(unix_seconds: u64) -> String {
    let (days, rest) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day) = date(days);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", rest / 3_600, rest / 60 % 60, rest % 60)
}

/// The Gregorian date of a number of days after 1970, by eras of 400 years that begin in March.
fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(several(1, "key", "keys") + &several(2, "key", "keys"), "1 key2 keys");
        assert_eq!([3.21, 45.67, 12_345.6].map(rate), ["3.21 /s", "45.7 /s", "12,346 /s"]);
        assert_eq!([0.0471, 4.71, 47.12, 4_712.0].map(latency), ["47 µs", "4.71 ms", "47.1 ms", "4.71 s"]);
        assert_eq!([0.01, 0.1, 1.0, 1e3, 1e4].map(latency_tick), ["10 µs", "100 µs", "1 ms", "1 s", "10 s"]);
        let shares = [0.0, 1e-6, 0.000_5, 0.012, 0.5].map(percent);
        assert_eq!(shares, ["0 %", "< 0.001 %", "0.050 %", "1.20 %", "50.0 %"]);
        assert_eq!([5.0, 59.6, 125.0, 7_320.0].map(seconds), ["5.0 s", "60 s", "2 min 5 s", "2 h 2 min"]);
        assert_eq!([5.0, 2e3, 3e6, 4e9].map(bytes), ["5 B", "2.0 kB", "3.0 MB", "4.00 GB"]);
    }

    #[test]
    fn moments_are_dates() {
        assert_eq!(moment(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(moment(951_827_696), "2000-02-29 12:34:56 UTC");
        assert_eq!(moment(1_796_083_199), "2026-11-30 23:59:59 UTC");
    }
}
