//! Cost and throughput against the number of servers, with every repeat, their mean and their spread.
//!
//! Drawn when loads of one kind were made against at least two numbers of servers and nothing was done to the
//! servers meanwhile, since a killed server is no smaller cluster.

use super::svg::{Area, Panel, Scale};
use super::{Reading, drawing, figure};
use crate::reports::digest::{Load, cost_us};
use crate::reports::{cost, words};
use crate::result::{Phase, RunResult};

const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 250.0;
/// What may happen to servers without making their number another thing.
const HARMLESS_EVENTS: [&str; 1] = ["start"];

const HONEST: &str = "On one machine all servers share the same processors, so throughput says little about more of them: \
the honest quantity is the cost of a request.";

/// One number of servers: the figure of each repeat.
struct Step {
    servers: usize,
    figures: Vec<f64>,
}

/// The section; empty unless the number of servers was varied.
pub fn section(result: &RunResult, loads: &[Load], caveats: &dyn Fn(&[&Load]) -> Vec<String>) -> String {
    let is_harmless = |kind: &str| HARMLESS_EVENTS.contains(&kind);
    if result.events.iter().any(|event| !is_harmless(&event.kind)) {
        return String::new();
    }
    // The same nodes under another load are no repeat of this one.
    let mut timings: Vec<String> = Vec::new();
    for timing in loads.iter().map(|load| words::timing(&load.first().timing)) {
        if !timings.contains(&timing) {
            timings.push(timing);
        }
    }
    let mut figures = String::new();
    for timing in &timings {
        let of_timing = |load: &&Load| words::timing(&load.first().timing) == *timing;
        let same: Vec<&Load> = loads.iter().filter(of_timing).collect();
        let apart = if timings.len() == 1 { String::new() } else { format!(" ({timing})") };
        figures += &of_one_timing(&same, &apart, &caveats(&same));
    }
    match figures.is_empty() {
        true => String::new(),
        false => format!(
            "<section><h2>Against the number of servers</h2><p>{HONEST}</p><div class=\"many\">{figures}</div></section>"
        ),
    }
}

/// The figures of loads that were timed alike.
fn of_one_timing(loads: &[&Load], apart: &str, caveats: &[String]) -> String {
    let mut figures = String::new();
    for (title, unit, of) in [
        ("Server CPU per good answer", "µs", cost_us as fn(&Phase) -> Option<f64>),
        ("Good answers a second", "/s", |phase| Some(phase.counts.good as f64 / phase.window_seconds)),
        ("Resident memory of all servers", "MB", |phase| Some(phase.cost?.resident_bytes as f64 / 1e6)),
        ("Sent again between servers for 1,000 requests", "", |phase| {
            Some(1e3 * cost::sent_again_per_request(phase)?)
        }),
    ] {
        let steps = steps(loads, of);
        // Nothing at all is said in the table of what the servers used.
        let is_something = steps.iter().flat_map(|step| &step.figures).any(|figure| 0.0 < *figure);
        if 2 <= steps.len() && is_something {
            let title = format!("{title}{apart}");
            let legend = [("l1", "mean"), ("base", "repeats and their spread")];
            figures += &figure(&title, &legend, &draw(&title, unit, &steps), caveats);
        }
    }
    figures
}

fn steps(loads: &[&Load], of: fn(&Phase) -> Option<f64>) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for phase in loads.iter().flat_map(|load| &load.phases) {
        let Some(figure) = of(phase) else { continue };
        match steps.iter_mut().find(|step| step.servers == phase.servers) {
            Some(step) => step.figures.push(figure),
            None => steps.push(Step { servers: phase.servers, figures: vec![figure] }),
        }
    }
    steps.sort_by_key(|step| step.servers);
    steps
}

fn draw(title: &str, unit: &str, steps: &[Step]) -> String {
    let area = Area { left: 54.0, top: 26.0, right: WIDTH - 20.0, bottom: HEIGHT - 44.0 };
    let last = steps.last().map_or(1, |step| step.servers) as f64;
    let x = Scale::linear((0.0, last * 1.03), (area.left, area.right));
    let most = steps.iter().flat_map(|step| &step.figures).copied().fold(0.0, f64::max);
    let mut panel = Panel::new(area, x, Scale::linear((0.0, most * 1.1), (area.bottom, area.top)));
    let short = |figure: f64| match figure {
        figure if 10_000.0 <= figure => format!("{:.0}k", figure / 1e3),
        // Steps of a tenth are no round numbers to the machine.
        figure if figure < 10.0 => format!("{}", (figure * 1e3).round() / 1e3),
        figure => words::count(figure as u64),
    };
    panel.y_axis(unit, short);
    let ticks: Vec<(f64, String)> =
        steps.iter().map(|step| (step.servers as f64, step.servers.to_string())).collect();
    panel.x_axis("servers", &ticks);
    let mean = |step: &Step| step.figures.iter().sum::<f64>() / step.figures.len() as f64;
    let means: Vec<(f64, f64)> = steps.iter().map(|step| (step.servers as f64, mean(step))).collect();
    panel.curve("l1", "mean", &means);
    let mut readings = Vec::new();
    for step in steps {
        let servers = step.servers as f64;
        let low = step.figures.iter().copied().fold(f64::INFINITY, f64::min);
        let high = step.figures.iter().copied().fold(0.0, f64::max);
        let place = panel.x.at(servers);
        let (top, bottom) = (panel.y.at(high), panel.y.at(low));
        panel.line("base", (place, top), (place, bottom));
        for end in [top, bottom] {
            panel.line("base", (place - 5.0, end), (place + 5.0, end));
        }
        let text = format!(
            "{}: mean {:.1} {unit}, {low:.1} to {high:.1} in {}",
            words::several(step.servers as u64, "server", "servers"),
            mean(step),
            words::several(step.figures.len() as u64, "repeat", "repeats")
        );
        panel.dot("d1", "mean", (servers, mean(step)), 4.0, &text);
        for figure in &step.figures {
            panel.dot("d3", "repeats and their spread", (servers, *figure), 2.0, &text);
        }
        readings.push(Reading { at: place, text });
    }
    panel.base();
    drawing(
        "scaling",
        "small",
        (WIDTH, HEIGHT),
        &format!("{title} against the number of servers"),
        &readings,
        &panel.body,
    )
}
