//! Results as an HdrHistogram interval log, which that project's own tools read and plot.
//!
//! One interval for each phase: without a tag the corrected latencies of all operations, with the tags `get`,
//! `get.raw`, `get.last-try` … those of each. Values are nanoseconds; the column of the longest is in
//! milliseconds. Deliberately not here: single seconds, of which no histograms are kept.

use std::fs;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use super::digest::{self, Kind};
use crate::result::{Latency, RunResult};

/// Nanoseconds in the unit of the column of the longest latency.
const NS_PER_MS: f64 = 1e6;

/// Writes the log.
///
/// # Errors
/// One sentence that names the file.
pub fn write(path: &Path, result: &RunResult) -> Result<(), String> {
    let bytes = log(result).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    fs::write(path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn log(result: &RunResult) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let started = UNIX_EPOCH + Duration::from_secs(result.started_unix_seconds);
    let describe = |error: &dyn std::fmt::Debug| format!("{error:?}");
    let mut builder = IntervalLogWriterBuilder::new();
    builder.with_start_time(started).with_base_time(started).with_max_value_divisor(NS_PER_MS);
    builder.add_comment(&one_line(&format!("violet-testclient {}: {}", result.version, result.name)));
    if let Some(why) = &result.incomplete {
        builder.add_comment(&one_line(&format!("incomplete: {why}")));
    }
    let mut writer = builder.begin_log_with(&mut bytes, &mut serializer).map_err(|error| describe(&error))?;
    for phase in &result.phases {
        let comment = one_line(&format!("phase {} of group {}", phase.name, phase.group));
        writer.write_comment(&comment).map_err(|error| describe(&error))?;
        let (start, length) = (duration(phase.at_seconds), duration(phase.window_seconds));
        let mut put = |latency: &Latency, tag: Option<&str>| {
            let tag = tag.and_then(Tag::new);
            writer.write_histogram(&latency.0, start, length, tag).map_err(|error| describe(&error))
        };
        put(&digest::latency(phase, None, Kind::Corrected), None)?;
        for (name, operation) in &phase.operations {
            let tag: String = name.chars().filter(|letter| letter.is_ascii_alphanumeric()).collect();
            put(&operation.corrected, Some(&tag))?;
            put(&operation.raw, Some(&format!("{tag}.raw")))?;
            put(&operation.last_try, Some(&format!("{tag}.last-try")))?;
        }
    }
    drop(writer);
    Ok(bytes)
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO)
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::super::samples;
    use super::*;

    #[test]
    fn a_log_comes_back_as_it_was() {
        let result = samples::grid();
        let bytes = log(&result).unwrap();
        let entries: Vec<LogEntry> = IntervalLogIterator::new(&bytes).map(|entry| entry.unwrap()).collect();
        let started = Duration::from_secs(result.started_unix_seconds);
        assert!(entries.iter().any(|entry| matches!(entry, LogEntry::StartTime(at) if *at == started)));
        let intervals: Vec<_> = entries
            .iter()
            .filter_map(|entry| match entry {
                LogEntry::Interval(interval) => Some(interval),
                _ => None,
            })
            .collect();
        // All, and three kinds for each of two operations.
        assert_eq!(intervals.len(), 15 * 7);
        let second = intervals.iter().filter(|interval| interval.tag().is_none()).nth(1).unwrap();
        assert_eq!((second.start_timestamp(), second.duration()), (duration(6.0), duration(5.0)));
        let raw =
            intervals.iter().find(|interval| interval.tag().is_some_and(|tag| tag.as_str() == "put.raw"));
        let read = Latency::parse(raw.unwrap().encoded_histogram()).unwrap();
        let wrote = &result.phases[0].operations["put"].raw;
        assert_eq!(read.0, wrote.0);
        assert!((raw.unwrap().max() - wrote.ms(100.0)).abs() < 0.001 * wrote.ms(100.0));
    }
}
