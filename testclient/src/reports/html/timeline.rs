//! Rate and percentiles over the time of the run, with what was done to the servers as bands through both.
//!
//! All phases stand one after the other on one axis. A long run has more seconds than a drawing has places; then several
//! seconds are drawn as one: the mean of rates and medians, the worst of the tails. Drawn twice, for wide and narrow screens.

use std::fmt::Write as _;

use super::svg::{Area, Panel, Scale, round_step, width_of};
use super::{Reading, drawing, escape, figure};
use crate::reports::words;
use crate::result::{Event, RunResult, Second};

/// Places of the drawing for one point of a curve.
const POINT_WIDTH: f64 = 2.0;
const MARK_RADIUS: f64 = 8.0;

/// Less of a second than this has no rate.
const INSIDE_MIN: f64 = 0.1;

/// Some seconds of a phase as one point; the place is in seconds of the run. Rates behind the load's end are no numbers.
struct Point {
    at: f64,
    offered: f64,
    answered: f64,
    good: f64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    timed_out: u64,
    wrong: u64,
}

/// A drawing's measures.
struct Layout {
    class: &'static str,
    width: f64,
    left: f64,
    panel_height: f64,
    seconds_per_point: usize,
}

/// The section; empty for a result without seconds.
pub fn section(result: &RunResult, caveats: &[String]) -> String {
    let seconds: usize = result.phases.iter().map(|phase| phase.seconds.len()).sum();
    if seconds == 0 {
        return String::new();
    }
    let layout = |class, width: f64, left: f64, panel_height| {
        let places = ((width - left) / POINT_WIDTH) as usize;
        Layout { class, width, left, panel_height, seconds_per_point: seconds.div_ceil(places.max(1)) }
    };
    let full = layout("full", 1_000.0, 66.0, 190.0);
    let mut notes = caveats.to_vec();
    if 1 < full.seconds_per_point {
        notes.push(format!(
            "A point of the wide drawing stands for up to {} seconds: the mean of rates and medians, the worst of the tails",
            full.seconds_per_point
        ));
    }
    let both = draw(result, &full) + &draw(result, &layout("narrow", 400.0, 56.0, 150.0));
    let legend = [
        ("l-ref", "offered"),
        ("l1-broad", "answered"),
        ("l3", "good"),
        ("l1", "p50"),
        ("l2", "p99"),
        ("l4", "longest"),
    ];
    let figure = figure("Requests a second and corrected latency, second by second", &legend, &both, &notes);
    format!("<section><h2>Over time</h2>{figure}{}</section>", events(result))
}

fn events(result: &RunResult) -> String {
    let item = |event: &Event| {
        let length = match event.for_seconds {
            0.0 => String::new(),
            length => format!(" for {}", words::seconds(length)),
        };
        format!(
            "<li><strong>{}</strong> at {}{length}: {}. {}</li>",
            escape(&event.kind),
            words::seconds(event.at_seconds),
            escape(&event.servers.join(", ")),
            escape(&event.outcome)
        )
    };
    let items: String = result.events.iter().map(item).collect();
    if items.is_empty() {
        String::new()
    } else {
        format!(r#"<h3>Events</h3><ol class="events">{items}</ol>"#)
    }
}

fn draw(result: &RunResult, layout: &Layout) -> String {
    let phases: Vec<Vec<Point>> = result
        .phases
        .iter()
        .map(|phase| {
            let seconds = phase.seconds.chunks(layout.seconds_per_point);
            seconds.map(|some| point(phase.at_seconds, phase.window_seconds, some)).collect()
        })
        .collect();
    let points: Vec<&Point> = phases.iter().flatten().collect();
    let (left, right) = (layout.left, layout.width - 12.0);
    let first = area(left, right, 40.0, layout.panel_height);
    let second = area(left, right, first.bottom + 46.0, layout.panel_height);
    let x = Scale::linear(span(result), (left, right));
    let most = points.iter().flat_map(|point| [point.offered, point.answered]).fold(0.0, f64::max);
    let mut rates = Panel::new(first, x, Scale::linear((0.0, most * 1.05), (first.bottom, first.top)));
    let tails = points.iter().flat_map(|point| [point.p50_ms, point.max_ms]).filter(|ms| 0.0 < *ms);
    let ends = tails.fold((f64::INFINITY, 0.0_f64), |(low, high), ms| (low.min(ms), high.max(ms)));
    let mut latencies = Panel::new(second, x, Scale::log(ends, (second.bottom, second.top)));
    for panel in [&mut rates, &mut latencies] {
        shade_phases(panel, result);
        bands(panel, result);
    }
    phase_names(&mut rates, result);
    rates.y_axis("requests /s", short_rate);
    rates.x_axis("", &[]);
    latencies.y_axis("latency from the intended time", words::latency_tick);
    let about = ((right - left) / 64.0) as usize;
    let step = round_step((x_span(result)) / about as f64);
    let ticks: Vec<(f64, String)> =
        x.ticks(about).into_iter().map(|tick| (tick, tick_seconds(tick, step))).collect();
    latencies.x_axis("", &ticks);
    for points in &phases {
        let of = |figure: fn(&Point) -> f64| {
            points.iter().map(|point| (point.at, figure(point))).collect::<Vec<_>>()
        };
        rates.curve("l1-broad", "answered", &of(|point| point.answered));
        rates.curve("l3", "good", &of(|point| point.good));
        rates.curve("l-ref", "offered", &of(|point| point.offered));
        let known = |ms: f64| if 0.0 < ms { ms } else { f64::NAN };
        let known = |figure: fn(&Point) -> f64| {
            points.iter().map(|point| (point.at, known(figure(point)))).collect::<Vec<_>>()
        };
        latencies.curve("l4", "longest", &known(|point| point.max_ms));
        latencies.curve("l2", "p99", &known(|point| point.p99_ms));
        latencies.curve("l1", "p50", &known(|point| point.p50_ms));
    }
    rates.base();
    latencies.base();
    // Marks lie between the numbers of the axis and its name.
    let has_marks = marks(&mut latencies, result, second.bottom + 32.0);
    let height = second.bottom + if has_marks { 62.0 } else { 40.0 };
    latencies.text("axis middle", ((left + right) / 2.0, height - 6.0), "seconds of the run");
    let body =
        format!(r#"<g data-part="rate">{}</g><g data-part="percentiles">{}</g>"#, rates.body, latencies.body);
    let readings: Vec<Reading> = points.iter().map(|point| reading(point, &x)).collect();
    let label = "Requests a second and latency over the time of the run, with events";
    drawing("timeline", layout.class, (layout.width, height), label, &readings, &body)
}

fn area(left: f64, right: f64, top: f64, height: f64) -> Area {
    Area { left, top, right, bottom: top + height }
}

fn point(phase_at: f64, window: f64, seconds: &[Second]) -> Point {
    let count = seconds.len() as f64;
    let mean = |figure: fn(&Second) -> f64| seconds.iter().map(figure).sum::<f64>() / count;
    // Behind the window nothing is asked any more, and in its last second for a part of it only.
    let inside = |second: &Second| (window - second.at as f64).clamp(0.0, 1.0);
    let length: f64 = seconds.iter().map(inside).sum();
    let rate = |count: fn(&Second) -> u64| {
        let counted = seconds.iter().filter(|second| 0.0 < inside(second)).map(count).sum::<u64>();
        if INSIDE_MIN <= length { counted as f64 / length } else { f64::NAN }
    };
    let worst = |figure: fn(&Second) -> f64| seconds.iter().map(figure).fold(0.0, f64::max);
    Point {
        at: phase_at + seconds[0].at as f64 + count / 2.0,
        offered: rate(|second| second.offered),
        answered: rate(|second| second.answered),
        good: rate(|second| second.good),
        p50_ms: mean(|second| second.p50_ms),
        p99_ms: worst(|second| second.p99_ms),
        max_ms: worst(|second| second.max_ms),
        timed_out: seconds.iter().map(|second| second.timed_out).sum(),
        wrong: seconds.iter().map(|second| second.wrong).sum(),
    }
}

fn reading(point: &Point, x: &Scale) -> Reading {
    let rates = match point.offered.is_nan() {
        true => "after the load".to_owned(),
        false => format!(
            "offered {}, answered {}, good {}",
            words::rate(point.offered),
            words::rate(point.answered),
            words::rate(point.good)
        ),
    };
    let mut text = format!(
        "{}: {rates}; p50 {}, p99 {}, longest {}",
        words::seconds(point.at),
        words::latency(point.p50_ms),
        words::latency(point.p99_ms),
        words::latency(point.max_ms)
    );
    for (count, what) in [(point.timed_out, "timed out"), (point.wrong, "wrong")] {
        if 0 < count {
            let _ = write!(text, "; {} {what}", words::count(count));
        }
    }
    Reading { at: x.at(point.at), text }
}

/// From the first to the last second that is drawn.
fn span(result: &RunResult) -> (f64, f64) {
    let ends = result
        .phases
        .iter()
        .map(|phase| phase.at_seconds + phase.window_seconds.max(phase.seconds.len() as f64));
    (0.0, ends.fold(1.0, f64::max))
}

fn x_span(result: &RunResult) -> f64 {
    span(result).1
}

fn short_rate(rate: f64) -> String {
    match rate {
        rate if 10_000.0 <= rate => format!("{}k", words::count((rate / 1e3).round() as u64)),
        rate => words::count(rate as u64),
    }
}

fn tick_seconds(seconds: f64, step: f64) -> String {
    if step < 1.0 { format!("{seconds:.1}") } else { words::count(seconds as u64) }
}

/// Every other phase lies on a darker ground, so that they are told apart.
fn shade_phases(panel: &mut Panel, result: &RunResult) {
    for phase in result.phases.iter().step_by(2) {
        let ends = [phase.at_seconds, phase.at_seconds + phase.window_seconds].map(|at| panel.x.at(at));
        panel.rectangle("phase", Area { left: ends[0], right: ends[1], ..panel.area });
    }
}

/// The names of the phases over the upper panel, as far as there is room.
fn phase_names(panel: &mut Panel, result: &RunResult) {
    let mut free_from = f64::NEG_INFINITY;
    for phase in &result.phases {
        let ends = [phase.at_seconds, phase.at_seconds + phase.window_seconds].map(|at| panel.x.at(at));
        let middle = (ends[0] + ends[1]) / 2.0;
        let half = width_of(&phase.name) / 2.0;
        let is_inside = panel.area.left - 40.0 <= middle - half && middle + half <= panel.area.right + 12.0;
        if free_from <= middle - half && is_inside {
            panel.text("tick middle", (middle, panel.area.top - 25.0), &phase.name);
            free_from = middle + half + 8.0;
        }
    }
}

fn bands(panel: &mut Panel, result: &RunResult) {
    for event in &result.events {
        let ends = [event.at_seconds, event.at_seconds + event.for_seconds].map(|at| panel.x.at(at));
        let (top, bottom) = (panel.area.top, panel.area.bottom);
        if 0.0 < event.for_seconds {
            panel.rectangle("band", Area { left: ends[0], right: ends[1], top, bottom });
        }
        for place in ends {
            panel.line("band-edge", (place, top), (place, bottom));
        }
    }
}

/// Numbers under the plot, which the list of events explains; whether there are any.
fn marks(panel: &mut Panel, result: &RunResult, at: f64) -> bool {
    let mut free_from = f64::NEG_INFINITY;
    for (index, event) in result.events.iter().enumerate() {
        let ends = [event.at_seconds, event.at_seconds + event.for_seconds].map(|at| panel.x.at(at));
        if 0.0 < event.for_seconds {
            panel.rectangle("band", Area { left: ends[0], right: ends[1], top: at - 5.0, bottom: at + 5.0 });
        }
        panel.line("band-edge", (ends[0], panel.area.bottom + 19.0), (ends[0], at));
        // Two events in one moment stand side by side.
        let place = ends[0].max(free_from);
        free_from = place + 2.0 * MARK_RADIUS + 1.0;
        let title = escape(&format!("{} {}", event.kind, event.servers.join(", ")));
        let number = index + 1;
        let _ = write!(
            panel.body,
            r#"<circle class="band-mark" cx="{place:.1}" cy="{at:.1}" r="{MARK_RADIUS}"><title>{title}</title></circle>"#
        );
        panel.text("band-number", (place, at + 3.5), &number.to_string());
    }
    !result.events.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_end_with_the_load_and_do_not_fall_to_nothing_behind_it() {
        let second =
            |at, answered| Second { at, answered, offered: answered, p50_ms: 1.0, ..Second::default() };
        assert_eq!(point(10.0, 2.5, &[second(1, 100)]).answered, 100.0);
        assert_eq!(point(10.0, 2.5, &[second(2, 50)]).answered, 100.0, "half a second");
        let behind = point(10.0, 2.5, &[second(3, 7)]);
        assert!(behind.answered.is_nan());
        assert_eq!((behind.at, behind.p50_ms), (13.5, 1.0));
        let text = reading(&behind, &Scale::linear((0.0, 20.0), (0.0, 100.0))).text;
        assert!(text.contains("after the load; p50 1.00 ms"), "{text}");
        assert_eq!(point(0.0, 2.0, &[second(1, 80), second(2, 9)]).answered, 80.0, "several in a point");
    }
}
