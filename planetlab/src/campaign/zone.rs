//! The time of day where a host stands. Clocks of hosts mostly show UTC wherever they are, so the inventory says it: a
//! label `tz=Europe/Berlin`, a name of the time zone database, which also knows summer time.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::inventory::Host;

/// Start of the label.
pub const LABEL: &str = "tz=";

/// The host's time zone; nothing if it names none.
///
/// # Errors
/// A label that names no time zone, with the host.
pub fn of(host: &Host) -> Result<Option<TimeZone>, String> {
    let Some(name) = host.labels.iter().find_map(|label| label.strip_prefix(LABEL)) else { return Ok(None) };
    TimeZone::get(name).map(Some).map_err(|_| {
        format!(
            "{}: label '{LABEL}{name}': there is no such time zone; '{LABEL}Europe/Berlin' would be right",
            host.name
        )
    })
}

/// Minutes that local time is ahead of UTC at that moment.
pub fn minutes_ahead(zone: &TimeZone, unix_seconds: u64) -> i32 {
    let moment = Timestamp::from_second(i64::try_from(unix_seconds).unwrap_or(0)).unwrap_or_default();
    zone.to_offset(moment).seconds() / 60
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summer_time_is_known_and_a_wrong_name_is_named() {
        let mut host = Host::new("fra", "127.0.0.1");
        assert!(of(&host).unwrap().is_none());
        host.labels = vec!["fast".to_owned(), "tz=Europe/Berlin".to_owned()];
        let zone = of(&host).unwrap().unwrap();
        // 1 January and 1 July 2026.
        assert_eq!((minutes_ahead(&zone, 1_767_225_600), minutes_ahead(&zone, 1_782_864_000)), (60, 120));
        host.labels = vec!["tz=Berlin".to_owned()];
        assert!(of(&host).unwrap_err().starts_with("fra: label 'tz=Berlin'"));
    }
}
