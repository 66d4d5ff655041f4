//! The steps `bulk`, `load` and `grid`.

use std::time::Duration;

use super::course::Course;
use super::loader::Work;
use super::step::{self, Settings, Step};
use crate::grid::Asked;
use crate::result::Loop;
use crate::workload::{KeyOrder, Route};

/// A rest follows cells with so many clients or more, one more for each.
const REST_FROM_CLIENTS: [usize; 3] = [64, 128, 256];
/// Bytes in a MiB.
const MIB: f64 = 1_048_576.0;

/// Writes the whole data set, as fast as the clients get their answers.
pub fn bulk(course: &mut Course<'_>, step: &Step, kind: &step::Bulk) -> Result<(), String> {
    let mut settings = step.settings.clone();
    if let Some(multiple) = kind.memory_multiple {
        settings.keys = keys_of(&settings, multiple * kind.of_memory_mib as f64 * MIB)?;
    }
    settings.warm_up = 0.0;
    fill(course, &step.name, &settings, kind)?;
    if kind.read_back {
        settings.mix = "get:1".parse()?;
        settings.key_order = KeyOrder::Sequential;
        let name = format!("{} read back", step.name);
        let order = course.order(&name, &name, Loop::Closed { clients: kind.clients }, &settings);
        course.load(&order)?;
    }
    Ok(())
}

/// How many keys make so many bytes of keys and values.
fn keys_of(settings: &Settings, bytes: f64) -> Result<u64, String> {
    let mean = step::mean_bytes(&settings.value_bytes);
    let mean = mean.ok_or("memory-multiple needs value-bytes whose mean is known, not a file")?;
    Ok((bytes / mean).ceil().max(1.0) as u64)
}

fn fill(course: &mut Course<'_>, name: &str, settings: &Settings, kind: &step::Bulk) -> Result<(), String> {
    let clients = kind.clients.min(usize::try_from(settings.keys).unwrap_or(usize::MAX));
    let mut order = course.order(name, name, Loop::Closed { clients }, settings);
    order.work = Work::Fill;
    let phase = course.load(&order)?;
    let seconds = phase.window_seconds.max(f64::MIN_POSITIVE);
    let stored = phase.counts.good;
    let text = format!(
        "{stored} of {} keys stored in {seconds:.1} s by {clients} clients: {:.0} transactions/s, {:.2} MB/s of values",
        settings.keys,
        stored as f64 / seconds,
        phase.counts.value_bytes as f64 / seconds / 1e6,
    );
    let is_whole = stored == settings.keys;
    if kind.may_overflow {
        // Silence is no refusal.
        let is_well = is_whole || (0 < phase.counts.refused && phase.counts.timed_out == 0);
        course.check(&format!("{name}: what does not fit is refused"), Some(is_well), text);
    } else {
        course.check(&format!("{name}: the whole data set is stored"), Some(is_whole), text);
    }
    Ok(())
}

/// One phase for each rate and each number of clients, in turns, so that the repeats of one do not all fall
/// into the same minute of the machine.
pub fn load(course: &mut Course<'_>, step: &Step, kind: &step::Load) -> Result<(), String> {
    if kind.fill {
        fill(course, &format!("{} fill", step.name), &step.settings, &step::Bulk::default())?;
    }
    let arrivals = step.settings.arrivals;
    let open = kind.rates.iter().map(|&rate| (format!("{rate}/s"), Loop::Open { rate, arrivals }));
    let closed = kind.clients.iter().map(|&clients| (format!("{clients} clients"), Loop::Closed { clients }));
    let timings: Vec<(String, Loop)> = open.chain(closed).collect();
    let is_alone = timings.len() == 1;
    for _ in 0..step.settings.repeats {
        for (word, timing) in &timings {
            if course.stop.is_set() {
                return Err(format!("before {word}"));
            }
            let name = if is_alone { step.name.clone() } else { format!("{} {word}", step.name) };
            let order = course.order(&name, &name, *timing, &step.settings);
            course.load(&order)?;
        }
    }
    Ok(())
}

/// The graders' closed loops, each on an empty cluster.
pub fn grid(course: &mut Course<'_>, step: &Step, kind: &step::Grid) -> Result<(), String> {
    for _ in 0..step.settings.repeats {
        for cell in &kind.cells {
            let cell = cell.0;
            if course.stop.is_set() {
                return Err(format!("before {}", cell.name()));
            }
            course.wipe(step.settings.format.format())?;
            let route = match cell.asked {
                Asked::First => Route::First,
                Asked::Random => Route::Random,
                Asked::Holder => Route::ZeroHop,
            };
            // The graders warm nothing up.
            let settings = Settings { route, warm_up: 0.0, ..step.settings.clone() };
            // Another load than the cell of that name, and not to be held against it.
            let name = if kind.same_key { format!("{} one key", cell.name()) } else { cell.name() };
            let mut order = course.order(&name, &name, Loop::Closed { clients: cell.clients }, &settings);
            order.work = Work::PutGet { same_key: kind.same_key };
            course.load(&order)?;
            course.stop.sleep(Duration::from_secs_f64(rest_seconds(kind, cell.clients)));
        }
    }
    Ok(())
}

/// How long the servers rest behind a cell: once from 64 clients on, twice from 128, three times from 256.
pub fn rest_seconds(kind: &step::Grid, clients: usize) -> f64 {
    let times = REST_FROM_CLIENTS.iter().filter(|&&least| least <= clients).count();
    times as f64 * kind.rest_seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::ValueBytes;

    #[test]
    fn rests_are_those_of_the_grader_of_2016() {
        let kind = step::Grid { rest_seconds: 10.0, ..step::Grid::default() };
        let rests = [32, 64, 100, 128, 256, 1_000].map(|clients| rest_seconds(&kind, clients));
        assert_eq!(rests, [0.0, 10.0, 10.0, 20.0, 30.0, 30.0]);
    }

    #[test]
    fn a_data_set_is_as_large_as_asked_for() {
        let settings = Settings { value_bytes: ValueBytes::Fixed(1_024), ..Settings::default() };
        assert_eq!(keys_of(&settings, 4.0 * MIB), Ok(4_096));
        let settings = Settings { value_bytes: ValueBytes::File("x".to_owned()), ..settings };
        assert!(keys_of(&settings, 1.0).unwrap_err().contains("whose mean is known"));
    }
}
