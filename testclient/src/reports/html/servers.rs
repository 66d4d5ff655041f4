//! The split by server: median and tail of each as a dot and a line, the odd one named.
//!
//! Of a large cluster only the slowest are drawn, and it is said so.

use super::svg::{Area, Panel, Scale};
use super::{drawing, escape, figure};
use crate::reports::digest::{Load, failure_share};
use crate::reports::servers::{Split, split};
use crate::reports::words;

const SERVERS_DRAWN_MAX: usize = 24;
const WIDTH: f64 = 380.0;
const ROW_HEIGHT: f64 = 22.0;

/// The section; empty when no load asked several servers.
pub fn section(loads: &[Load], caveats: &dyn Fn(&[&Load]) -> Vec<String>) -> String {
    let (mut figures, mut sentences) = (String::new(), String::new());
    for load in loads {
        let splits = split(load);
        if splits.is_empty() {
            continue;
        }
        for (server, why) in splits.iter().filter_map(|split| Some((&split.server, split.odd.as_ref()?))) {
            let (server, why) = (escape(server), escape(why));
            sentences +=
                &format!("<p>In {}, <strong>{server} stands out</strong>: {why}.</p>", escape(&load.name));
        }
        let mut notes = caveats(&[load]);
        if SERVERS_DRAWN_MAX < splits.len() {
            notes.push(format!("The {SERVERS_DRAWN_MAX} slowest of {} servers", splits.len()));
        }
        let legend = [("l1", "p50 to p99")];
        figures += &figure(&load.name, &legend, &draw(&load.name, splits), &notes);
    }
    if figures.is_empty() {
        return String::new();
    }
    let quiet = if sentences.is_empty() { "<p>No server stands out.</p>" } else { "" };
    format!(r#"<section><h2>By server</h2>{sentences}{quiet}<div class="many">{figures}</div></section>"#)
}

fn draw(name: &str, mut splits: Vec<Split>) -> String {
    if SERVERS_DRAWN_MAX < splits.len() {
        splits.sort_by(|one, other| other.latency.ms(99.0).total_cmp(&one.latency.ms(99.0)));
        splits.truncate(SERVERS_DRAWN_MAX);
    }
    let longest = splits.iter().map(|split| split.server.chars().count()).max().unwrap_or(0);
    let left = (16.0 + 6.6 * longest as f64).min(190.0);
    let area = Area { left, top: 10.0, right: WIDTH - 66.0, bottom: 10.0 + ROW_HEIGHT * splits.len() as f64 };
    let ends = splits.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), split| {
        (low.min(split.latency.ms(50.0)), high.max(split.latency.ms(99.0)))
    });
    let x = Scale::log(ends, (area.left, area.right));
    let mut panel = Panel::new(area, x, Scale::linear((0.0, splits.len() as f64), (area.top, area.bottom)));
    let ticks: Vec<(f64, String)> =
        x.ticks(4).into_iter().map(|tick| (tick, words::latency_tick(tick))).collect();
    panel.x_axis("corrected latency", &ticks);
    for (index, split) in splits.iter().enumerate() {
        let row = index as f64 + 0.5;
        let place = panel.y.at(row);
        let class = if split.odd.is_some() { "tick end outlier" } else { "tick end" };
        panel.text(class, (area.left - 8.0, place + 4.0), &split.server);
        let (p50, p99) = (split.latency.ms(50.0), split.latency.ms(99.0));
        panel.line("l1", (x.at(p50), place), (x.at(p99), place));
        let title = format!(
            "{}: {} requests, p50 {}, p99 {}, {} failed",
            split.server,
            words::count(split.counts.offered),
            words::latency(p50),
            words::latency(p99),
            words::percent(failure_share(&split.counts))
        );
        panel.dot("d1", "p50 to p99", (p50, row), 4.0, &title);
        panel.dot("hollow", "p50 to p99", (p99, row), 4.0, &title);
        let odd = if split.odd.is_some() { "◀ " } else { "" };
        let class = if split.odd.is_some() { "tick outlier" } else { "tick" };
        panel.text(class, (area.right + 6.0, place + 4.0), &format!("{odd}{}", words::latency(p99)));
    }
    panel.base();
    let label = format!("Median and 99th percentile of each server in {name}");
    drawing("servers", "small", (WIDTH, area.bottom + 40.0), &label, &[], &panel.body)
}
