//! The graders' grid beside what the original reached in 2015: a table, and bars.

use super::svg::{Area, Panel, Scale};
use super::{drawing, figure, table};
use crate::reports::digest::Load;
use crate::reports::{text, words};

const WIDTH: f64 = 560.0;
const ROW_HEIGHT: f64 = 34.0;

/// The section; empty without cells.
pub fn section(loads: &[Load], caveats: &dyn Fn(&[&Load]) -> Vec<String>) -> String {
    let cells = text::grid_cells(loads);
    if cells.is_empty() {
        return String::new();
    }
    let of_cells: Vec<&Load> = cells.iter().map(|(load, _)| *load).collect();
    let legend = [("bar1", "this run"), ("bar2", "original of 2015, on its own machines")];
    let figure = figure("Requests answered a second", &legend, &draw(&cells), &caveats(&of_cells));
    let table = table(&text::grid_table(&cells), "cards");
    format!("<section><h2>The grid beside the original of 2015</h2>{figure}{table}</section>")
}

fn draw(cells: &[(&Load, Option<u32>)]) -> String {
    let area =
        Area { left: 52.0, top: 8.0, right: WIDTH - 70.0, bottom: 8.0 + ROW_HEIGHT * cells.len() as f64 };
    let rate = |load: &Load| load.rate(|counts| counts.answered);
    let most = cells
        .iter()
        .map(|(load, original)| rate(load).max(f64::from(original.unwrap_or(0))))
        .fold(1.0, f64::max);
    let x = Scale::linear((0.0, most), (area.left, area.right));
    let mut panel = Panel::new(area, x, Scale::linear((0.0, 1.0), (area.bottom, area.top)));
    let ticks: Vec<(f64, String)> =
        x.ticks(5).into_iter().map(|tick| (tick, words::count(tick as u64))).collect();
    panel.x_axis("requests /s", &ticks);
    for (index, (load, original)) in cells.iter().enumerate() {
        let top = area.top + ROW_HEIGHT * index as f64 + 4.0;
        panel.text("tick end", (area.left - 6.0, top + 14.0), &load.name);
        let right = x.at(rate(load));
        panel.rectangle("bar1", Area { left: area.left, top, right, bottom: top + 14.0 });
        panel.text("tick", (right + 5.0, top + 11.0), &words::rate(rate(load)));
        if let Some(original) = original {
            let right = x.at(f64::from(*original));
            panel.rectangle("bar2", Area { left: area.left, top: top + 16.0, right, bottom: top + 23.0 });
        }
    }
    let label = "Requests answered a second in each cell, and what the original reached in 2015";
    drawing("grid", "middle-size", (WIDTH, area.bottom + 40.0), label, &[], &panel.body)
}
