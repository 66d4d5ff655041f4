//! The knee curve: right answers and tail latency against what is offered, with the peak and the overwhelmed point.
//!
//! The dashed diagonal is where everything that is offered is answered well. Hollow points have a caveat.

use super::svg::{Area, Panel, Scale};
use super::{Reading, drawing, escape, figure};
use crate::reports::digest::Load;
use crate::reports::knee::{Knee, Point};
use crate::reports::words;

const WIDTH: f64 = 560.0;

/// The section; empty without groups of several rates.
pub fn section(loads: &[Load], caveats: &dyn Fn(&[&Load]) -> Vec<String>) -> String {
    let mut html = String::new();
    for knee in Knee::all(loads) {
        let of_group: Vec<&Load> = loads.iter().filter(|load| load.group == knee.group).collect();
        let legend = [("l-ref", "all that is offered"), ("l1", "goodput"), ("l2", "p99"), ("l3", "p50")];
        let figure = figure(&knee.group, &legend, &draw(&knee), &caveats(&of_group));
        html += &format!("<p>{}</p>{figure}", escape(&knee.sentence()));
    }
    if html.is_empty() { html } else { format!("<section><h2>Knee</h2>{html}</section>") }
}

fn draw(knee: &Knee) -> String {
    let most_offered = knee.points.last().map_or(1.0, |point| point.offered) * 1.04;
    let most_good = knee.points.iter().map(|point| point.good_max).fold(0.0, f64::max) * 1.15;
    let (left, right) = (62.0, WIDTH - 16.0);
    let upper = Area { left, top: 36.0, right, bottom: 216.0 };
    let lower = Area { left, top: 262.0, right, bottom: 402.0 };
    let x = Scale::linear((0.0, most_offered), (left, right));
    let mut goodput = Panel::new(upper, x, Scale::linear((0.0, most_good), (upper.bottom, upper.top)));
    let ends = knee
        .points
        .iter()
        .fold((f64::INFINITY, 0.0_f64), |(low, high), point| (low.min(point.p50_ms), high.max(point.p99_ms)));
    let mut latency = Panel::new(lower, x, Scale::log(ends, (lower.bottom, lower.top)));
    let rate =
        |rate: f64| if rate < 10_000.0 { words::count(rate as u64) } else { format!("{:.0}k", rate / 1e3) };
    goodput.y_axis("good answers /s", rate);
    latency.y_axis("corrected latency", words::latency_tick);
    let ticks: Vec<(f64, String)> = x.ticks(6).into_iter().map(|tick| (tick, rate(tick))).collect();
    latency.x_axis("offered /s", &ticks);
    goodput.x_axis("", &[]);
    let end = most_good.min(most_offered);
    goodput.curve("l-ref", "all that is offered", &[(0.0, 0.0), (end, end)]);
    mark(&mut goodput, &mut latency, knee);
    let of = |figure: fn(&Point) -> f64| {
        knee.points.iter().map(|point| (point.offered, figure(point))).collect::<Vec<_>>()
    };
    goodput.curve("l1", "goodput", &of(|point| point.good));
    latency.curve("l3", "p50", &of(|point| point.p50_ms));
    latency.curve("l2", "p99", &of(|point| point.p99_ms));
    for point in &knee.points {
        let spread = [point.good_min, point.good_max].map(|good| goodput.y.at(good));
        let place = x.at(point.offered);
        goodput.line("l1", (place, spread[0]), (place, spread[1]));
        let class = |filled| if point.caveats.is_empty() { filled } else { "hollow" };
        goodput.dot(class("d1"), "goodput", (point.offered, point.good), 4.0, &text(point));
        latency.dot(class("d2"), "p99", (point.offered, point.p99_ms), 4.0, &text(point));
    }
    goodput.base();
    latency.base();
    let readings: Vec<Reading> =
        knee.points.iter().map(|point| Reading { at: x.at(point.offered), text: text(point) }).collect();
    let label = format!("Good answers and latency against offered load in {}", knee.group);
    drawing("knee", "middle-size", (WIDTH, 442.0), &label, &readings, &(goodput.body + &latency.body))
}

fn mark(goodput: &mut Panel, latency: &mut Panel, knee: &Knee) {
    let peak = &knee.points[knee.peak];
    let mut at = |point: &Point, line: &str, class: &str, row: f64, text: &str| {
        let place = goodput.x.at(point.offered);
        let area = goodput.area;
        goodput.line(line, (place, area.top), (place, area.bottom));
        latency.line(line, (place, latency.area.top), (place, latency.area.bottom));
        // Two lines of labels, so that neighbouring points do not cover one another's.
        goodput.label(class, (place + 4.0, area.top + row), text);
    };
    if let Some((index, _)) = &knee.overwhelmed {
        let point = &knee.points[*index];
        at(point, "over-line", "over", 29.0, &format!("✕ overwhelmed at {}", words::rate(point.offered)));
    }
    at(peak, "peak-line", "peak", 10.0, &format!("▲ peak {}", words::rate(peak.good)));
}

fn text(point: &Point) -> String {
    let caveats = match point.caveats.is_empty() {
        true => String::new(),
        false => format!(" ({})", point.caveats.join("; ")),
    };
    format!(
        "{} offered: {} good, p50 {}, p99 {}, {} failed{caveats}",
        words::rate(point.offered),
        words::rate(point.good),
        words::latency(point.p50_ms),
        words::latency(point.p99_ms),
        words::percent(point.failures)
    )
}
