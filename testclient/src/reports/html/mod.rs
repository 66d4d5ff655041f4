//! A result as one file for a browser: verdict and key table first, then plots as inline SVG, tables, and the setting.
//!
//! The page loads nothing from anywhere, and says so to the browser: its content policy allows only the style sheet and
//! the script that are in the page, by their digests. Without the script the page is complete; with it, pointing at a
//! plot reads it off and a click on a name in the legend hides its curve. Everything from a result is escaped. Deliberately
//! not here: figures that no other report has.

mod distribution;
mod grid;
mod knee;
mod page;
mod scaling;
mod servers;
mod svg;
mod timeline;

use std::fmt::Write as _;

use super::compare::Comparison;
use super::digest::{self, Load};
use super::{cost, text};
use crate::report::Table;
use crate::result::{Check, RunResult};

/// A report about results; each comes with its name.
pub fn page(results: &[(String, RunResult)]) -> String {
    let title = results.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let mut body = String::new();
    if 1 < results.len() {
        let link = |(index, (name, _)): (usize, &(String, RunResult))| {
            format!(r##"<a href="#result-{index}">{}</a>"##, escape(name))
        };
        let links: Vec<String> = results.iter().enumerate().map(link).collect();
        let _ = write!(body, "<nav>{}</nav>", links.join(" "));
    }
    for (index, (name, result)) in results.iter().enumerate() {
        let _ = write!(body, r#"<article id="result-{index}">{}</article>"#, article(name, result));
    }
    page::document(&title, &body)
}

fn article(name: &str, result: &RunResult) -> String {
    let loads = digest::loads(result);
    let verdict = digest::verdict(result);
    let tone = match verdict.tone {
        digest::Tone::Good => "good",
        digest::Tone::Doubtful => "doubtful",
        digest::Tone::Bad => "bad",
    };
    let mut body = format!("<header><h1>{}</h1>", escape(name));
    let _ = write!(
        body,
        r#"<p class="verdict {tone}"><strong>{}.</strong> {}</p></header>"#,
        verdict.tone.word(),
        escape(&verdict.sentences.join(" "))
    );
    if !loads.is_empty() {
        body += &key_table(&loads);
    }
    let caveats = |loads: &[&Load]| caveats(result, loads);
    let all: Vec<&Load> = loads.iter().collect();
    body += &timeline::section(result, &caveats(&all));
    body += &knee::section(&loads, &caveats);
    body += &grid::section(&loads, &caveats);
    body += &scaling::section(result, &loads, &caveats);
    body += &distribution::section(&loads, &caveats);
    if let Some(used) = cost::table(&loads) {
        let used = table(&used, "cards");
        let _ = write!(body, "<section><h2>What the servers used</h2>{used}</section>");
    }
    body += &servers::section(&loads, &caveats);
    if !result.checks.is_empty() {
        let _ = write!(body, "<section><h2>Checks</h2>{}</section>", checks(&result.checks));
    }
    if !loads.is_empty() {
        let operations = table(&text::operations_table(&loads), "cards");
        let _ = write!(body, "<section><h2>Operations</h2>{operations}{}</section>", remarks(&loads));
    }
    body += &setting(result);
    body
}

/// Loads with their figures; a load's caveats stand in its own row.
fn key_table(loads: &[Load]) -> String {
    table(&text::key_table(loads), "cards key")
}

fn checks(checks: &[Check]) -> String {
    let mut rows = String::new();
    for check in checks {
        let (class, sign) = match check.passed {
            Some(true) => ("good", "✓ holds"),
            Some(false) => ("bad", "✗ fails"),
            None => ("doubtful", "? not known"),
        };
        let _ = write!(
            rows,
            r#"<li><span class="sign {class}">{sign}</span> <strong>{}</strong> <span class="seen">{}</span></li>"#,
            escape(&check.name),
            escape(&check.seen)
        );
    }
    format!(r#"<ul class="checks">{rows}</ul>"#)
}

fn remarks(loads: &[Load]) -> String {
    let of_load = |load: &Load| {
        let remarks = load.remarks();
        let name = escape(&load.name);
        (!remarks.is_empty())
            .then(|| format!("<li><strong>{name}</strong>: {}</li>", escape(&remarks.join("; "))))
    };
    let items: String = loads.iter().filter_map(of_load).collect();
    if items.is_empty() { String::new() } else { format!("<h3>To be noticed</h3><ul>{items}</ul>") }
}

fn setting(result: &RunResult) -> String {
    let rows: String = text::settings(result)
        .into_iter()
        .map(|(name, value)| format!("<dt>{}</dt><dd>{}</dd>", escape(&name), escape(&value)))
        .collect();
    let mut generators = Table::new(
        &["phase", "generator cores", "threads", "lateness p50", "p99", "max", "receive buffer", "limited"],
        1,
    )
    .with_words_last();
    for phase in &result.phases {
        let generator = &phase.generator;
        let latency = super::words::latency;
        generators.row(vec![
            phase.name.clone(),
            generator.processor_share.map_or("unknown".to_owned(), |share| format!("{share:.2}")),
            generator.threads.to_string(),
            latency(generator.lateness_p50_ms),
            latency(generator.lateness_p99_ms),
            latency(generator.lateness_max_ms),
            super::words::bytes(generator.receive_buffer_bytes as f64),
            generator.limited.clone().unwrap_or("no".to_owned()),
        ]);
    }
    let generators = match result.phases.is_empty() {
        true => String::new(),
        false => format!(
            "<details><summary>The generator, phase by phase</summary>{}</details>",
            table(&generators, "cards")
        ),
    };
    format!("<section><h2>Setting and machine</h2><dl>{rows}</dl>{generators}</section>")
}

/// A table; with the class `cards` its rows become cards on a narrow screen.
fn table(table: &Table, class: &str) -> String {
    let (headings, rows) = table.parts();
    let side = |column: usize| if table.is_left(column) { "" } else { r#" class="figure""# };
    let is_note = |column: usize| matches!(headings[column].as_str(), "note" | "verdict" | "limited");
    let side = |column: usize| if is_note(column) { r#" class="note""# } else { side(column) };
    let mut html = format!(r#"<div class="wide-table"><table class="{class}"><thead><tr>"#);
    for (column, heading) in headings.iter().enumerate() {
        let _ = write!(html, r#"<th scope="col"{}>{}</th>"#, side(column), escape(heading));
    }
    html += "</tr></thead><tbody>";
    for row in rows {
        html += "<tr>";
        for (column, cell) in row.iter().enumerate() {
            let label = escape(&headings[column]);
            let tone = match headings[column].as_str() {
                "verdict" => tone_of(cell),
                _ => side(column),
            };
            let cell = escape(cell);
            let _ = match column {
                0 => write!(html, r#"<th scope="row" data-label="{label}">{cell}</th>"#),
                _ => write!(html, r#"<td data-label="{label}"{tone}>{cell}</td>"#),
            };
        }
        html += "</tr>";
    }
    html + "</tbody></table></div>"
}

/// How the verdict of a comparison looks.
fn tone_of(verdict: &str) -> &'static str {
    match verdict {
        "better" => r#" class="note good""#,
        worse if worse.starts_with("worse") => r#" class="note bad""#,
        _ => r#" class="note""#,
    }
}

/// What must be known to read a figure of these loads: each caveat with the loads that it is about.
fn caveats(result: &RunResult, loads: &[&Load]) -> Vec<String> {
    let mut caveats: Vec<(String, Vec<&str>)> = Vec::new();
    for load in loads {
        for caveat in load.caveats() {
            match caveats.iter_mut().find(|(known, _)| *known == caveat) {
                Some((_, names)) => names.push(&load.name),
                None => caveats.push((caveat, vec![&load.name])),
            }
        }
    }
    let sentence = |(caveat, names): (String, Vec<&str>)| match names.len() == loads.len() {
        true => digest::capitalised(&caveat),
        false => format!("{}: {caveat}", names.join(", ")),
    };
    let incomplete = result.incomplete.iter().map(|why| format!("Incomplete: {why}"));
    incomplete.chain(caveats.into_iter().map(sentence)).collect()
}

/// A figure with its legend, its drawing, and what must be known to read it.
fn figure(title: &str, legend: &[(&str, &str)], drawing: &str, caveats: &[String]) -> String {
    let mut html = format!("<figure><h3>{}</h3>", escape(title));
    if !legend.is_empty() {
        html += r#"<p class="legend">"#;
        for (class, name) in legend {
            let name = escape(name);
            let sample = match class.starts_with("bar") {
                true => format!(r#"<rect class="{class}" x="2" y="1" width="24" height="10"/>"#),
                false => format!(r#"<path class="{class}" d="M2 6L26 6"/>"#),
            };
            let _ = write!(
                html,
                r#"<span data-toggles="{name}"><svg class="sample" viewBox="0 0 28 12" aria-hidden="true">{sample}</svg>{name}</span>"#
            );
        }
        html += "</p>";
    }
    html += drawing;
    if !caveats.is_empty() {
        let items: String = caveats.iter().map(|caveat| format!("<li>{}</li>", escape(caveat))).collect();
        let _ = write!(html, r#"<figcaption><ul class="caveats">{items}</ul></figcaption>"#);
    }
    html + "</figure>"
}

/// A drawing of this size; `plot` names it for whoever looks for it.
fn drawing(
    plot: &str,
    class: &str,
    size: (f64, f64),
    label: &str,
    readings: &[Reading],
    body: &str,
) -> String {
    let (width, height) = size;
    let mut points = String::new();
    for (index, reading) in readings.iter().enumerate() {
        let comma = if index == 0 { "" } else { "\n" };
        let _ = write!(points, "{comma}{:.1}\t{}", reading.at, reading.text.replace(['\n', '\t'], " "));
    }
    let points = match points.is_empty() {
        true => String::new(),
        false => format!(r#" data-readings="{}""#, escape(&points)),
    };
    format!(
        r#"<svg class="plot {class}" data-plot="{plot}" viewBox="0 0 {width} {height}" role="img" aria-label="{}"{points}>{body}</svg>"#,
        escape(label)
    )
}

/// What can be read off a drawing at one place from left to right.
struct Reading {
    at: f64,
    text: String,
}

/// Two or three results held against each other.
pub fn comparison_page(results: &[(String, RunResult)], comparison: &Comparison, tolerance: f64) -> String {
    let names: Vec<&str> = results.iter().map(|(name, _)| name.as_str()).collect();
    let title = names.join(" / ");
    let tone = match (comparison.is_worse(), comparison.is_any_judged()) {
        (true, _) => "bad",
        (false, false) => "doubtful",
        (false, true) => "good",
    };
    let mut body = format!("<article><header><h1>{}</h1>", escape(&title));
    let sentence = escape(&comparison.sentence(tolerance));
    let _ = write!(body, r#"<p class="verdict {tone}">{sentence}</p></header>"#);
    body += &table(&comparison.table(), "cards");
    let notes: String = comparison.notes.iter().map(|note| format!("<p>{}</p>", escape(note))).collect();
    body += &notes;
    body += &distribution::overlay(results);
    for (name, result) in results {
        let heading = format!("<section><h2>Setting of {}</h2>", escape(name));
        body += &setting(result).replacen("<section><h2>Setting and machine</h2>", &heading, 1);
    }
    page::document(&title, &(body + "</article>"))
}

/// Text that is nothing but text, also in an attribute.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
