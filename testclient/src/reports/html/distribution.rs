//! Latency by percentile, with an axis of nines: each step to the right is ten times rarer.
//!
//! One drawing for each load with the corrected latencies and the raw ones, since the distance between the two is what a
//! generator without a schedule would not have seen; and one for each load of a comparison, with a curve for each result.

use super::svg::{Area, Panel, Scale};
use super::{Reading, drawing, figure};
use crate::reports::digest::{self, Kind, Load};
use crate::reports::words;
use crate::result::{Latency, RunResult};

/// Points of a curve for each nine.
const POINTS_PER_NINE: u32 = 16;
/// More nines than any run has requests for.
const NINES_MAX: f64 = 7.0;
const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 270.0;

/// The section; empty without answers.
pub fn section(loads: &[Load], caveats: &dyn Fn(&[&Load]) -> Vec<String>) -> String {
    let one = |load: &Load| {
        let latencies = [Kind::Corrected, Kind::Raw].map(|kind| load.latency(None, kind));
        let [corrected, raw] = &latencies;
        if corrected.0.is_empty() {
            return None;
        }
        let curves = [("l1", "corrected", corrected), ("l2", "raw", raw)];
        let legend = [("l1", "corrected"), ("l2", "raw")];
        Some(figure(&load.name, &legend, &draw(&load.name, &curves), &caveats(&[load])))
    };
    let figures: Vec<String> = loads.iter().filter_map(one).collect();
    match figures.is_empty() {
        true => String::new(),
        false => format!(
            "<section><h2>Latency by percentile</h2><p>Corrected: from the time at which the request was due. Raw: from the \
             time at which it was sent, as a generator without a schedule would see it.</p><div class=\"many\">{}</div></section>",
            figures.join("")
        ),
    }
}

/// The loads that all results have, with a curve for each result.
pub fn overlay(results: &[(String, RunResult)]) -> String {
    let all: Vec<(&str, Vec<Load>)> =
        results.iter().map(|(name, result)| (name.as_str(), digest::loads(result))).collect();
    let Some((_, first)) = all.first() else { return String::new() };
    let mut figures = String::new();
    for load in first {
        let found: Vec<(&str, &Load)> = all
            .iter()
            .filter_map(|(name, loads)| Some((*name, loads.iter().find(|other| other.name == load.name)?)))
            .collect();
        let latencies: Vec<(&str, Latency)> =
            found.iter().map(|(name, load)| (*name, load.latency(None, Kind::Corrected))).collect();
        if latencies.iter().any(|(_, latency)| latency.0.is_empty()) || latencies.len() < 2 {
            continue;
        }
        let classes = ["l1", "l2", "l3"];
        let curves: Vec<(&str, &str, &Latency)> =
            latencies.iter().zip(classes).map(|((name, latency), class)| (class, *name, latency)).collect();
        let legend: Vec<(&str, &str)> = curves.iter().map(|(class, name, _)| (*class, *name)).collect();
        let caveats: Vec<String> = found
            .iter()
            .flat_map(|(name, load)| {
                load.caveats().into_iter().map(move |caveat| format!("{name}: {caveat}"))
            })
            .collect();
        figures += &figure(&load.name, &legend, &draw(&load.name, &curves), &caveats);
    }
    match figures.is_empty() {
        true => String::new(),
        false => format!(
            "<section><h2>Corrected latency by percentile</h2><div class=\"many\">{figures}</div></section>"
        ),
    }
}

fn draw(name: &str, curves: &[(&str, &str, &Latency)]) -> String {
    let most = curves.iter().map(|(_, _, latency)| latency.0.len()).max().unwrap_or(1);
    // The rarest request of all is the last that can be placed.
    let nines = (most.max(10) as f64).log10().clamp(1.0, NINES_MAX);
    let area = Area { left: 54.0, top: 26.0, right: WIDTH - 14.0, bottom: HEIGHT - 44.0 };
    let x = Scale::linear((0.0, nines), (area.left, area.right));
    let ends = curves.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), (_, _, latency)| {
        (low.min(latency.0.min() as f64 / 1e6), high.max(latency.ms(100.0)))
    });
    let mut panel = Panel::new(area, x, Scale::log(ends, (area.bottom, area.top)));
    panel.y_axis("latency", words::latency_tick);
    let named = [
        (0.0, "0"),
        (50.0, "50"),
        (90.0, "90"),
        (99.0, "99"),
        (99.9, "99.9"),
        (99.99, "99.99"),
        (99.999, "99.999"),
    ];
    let ticks: Vec<(f64, String)> = named
        .into_iter()
        .map(|(percent, text)| (nines_of(percent), text.to_owned()))
        .filter(|(place, _)| *place <= nines)
        .collect();
    panel.x_axis("percentile", &ticks);
    let steps = (nines * f64::from(POINTS_PER_NINE)).ceil() as u32;
    let places: Vec<f64> =
        (0..=steps).map(|step| nines.min(f64::from(step) / f64::from(POINTS_PER_NINE))).collect();
    for (class, series, latency) in curves.iter().rev() {
        let points: Vec<(f64, f64)> =
            places.iter().map(|&place| (place, latency.ms(percent_of(place)))).collect();
        panel.curve(class, series, &points);
    }
    panel.base();
    let readings: Vec<Reading> = places
        .iter()
        .map(|&place| {
            let each = curves.iter().map(|(_, series, latency)| {
                format!("{series} {}", words::latency(latency.ms(percent_of(place))))
            });
            let text = format!("p{}: {}", percent_text(place), each.collect::<Vec<_>>().join(", "));
            Reading { at: x.at(place), text }
        })
        .collect();
    let label = format!("Latency by percentile in {name}");
    drawing("distribution", "small", (WIDTH, HEIGHT), &label, &readings, &panel.body)
}

fn nines_of(percent: f64) -> f64 {
    -(1.0 - percent / 100.0).log10()
}

fn percent_of(nines: f64) -> f64 {
    100.0 * (1.0 - 10f64.powf(-nines))
}

fn percent_text(nines: f64) -> String {
    let digits = (nines.ceil() as usize).max(1);
    format!("{:.digits$}", percent_of(nines))
}
