//! The report as one HTML file: style inside, no script, nothing fetched from anywhere. Wide tables scroll within
//! themselves, so that the page fits a narrow screen; colours follow the reader's choice of light or dark.

use std::fmt::Write as _;

use super::Report;
use super::tables::{Cell, Table};

const STYLE: &str = include_str!("style.css");

/// The whole page.
pub fn page(report: &Report) -> String {
    let mut html = String::with_capacity(64 << 10);
    let title = escaped(&report.title);
    let _ = write!(
        html,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<p>{}</p>\n",
        escaped(&report.about)
    );
    list(&mut html, &report.findings);
    report.tables.iter().for_each(|table| section(&mut html, table));
    if !report.faults.is_empty() {
        html += "<h2>What could not be read, and what did not hold</h2>\n";
        list(&mut html, &report.faults);
    }
    html += "</body>\n</html>\n";
    html
}

fn list(html: &mut String, sentences: &[String]) {
    if sentences.is_empty() {
        return;
    }
    *html += "<ul class=\"finding\">\n";
    for sentence in sentences {
        let _ = writeln!(html, "<li>{}</li>", escaped(sentence));
    }
    *html += "</ul>\n";
}

fn section(html: &mut String, table: &Table) {
    let _ = writeln!(
        html,
        "<h2>{}</h2>\n<p class=\"about\">{}</p>",
        escaped(&table.title),
        escaped(&table.about)
    );
    if !table.finding.is_empty() {
        let _ = writeln!(html, "<p class=\"finding\">{}</p>", escaped(&table.finding));
    }
    // A region that scrolls must be reachable by keyboard.
    let _ = writeln!(
        html,
        "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">",
        escaped(&table.title)
    );
    *html += "<table>\n<thead><tr>";
    for head in &table.head {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escaped(head));
    }
    *html += "</tr></thead>\n<tbody>\n";
    for row in &table.rows {
        *html += "<tr>";
        for (at, cell) in row.iter().enumerate() {
            write_cell(html, cell, at == 0);
        }
        *html += "</tr>\n";
    }
    *html += "</tbody>\n</table>\n</div>\n";
}

fn write_cell(html: &mut String, cell: &Cell, is_head: bool) {
    let tag = if is_head { "th scope=\"row\"" } else { "td" };
    let bad = if cell.is_bad { " class=\"bad\"" } else { "" };
    let heat = cell.heat.map_or(String::new(), |heat| format!(" style=\"--v:{:.2}\"", heat.clamp(0.0, 1.0)));
    let more =
        if cell.more.is_empty() { String::new() } else { format!(" title=\"{}\"", escaped(&cell.more)) };
    let end = if is_head { "th" } else { "td" };
    let _ = write!(html, "<{tag}{bad}{heat}{more}>{}</{end}>", escaped(&cell.text));
}

/// Text as it may stand in an element or an attribute.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\'' => safe += "&#39;",
            // What a host printed may hold anything.
            character if character.is_control() => safe.push(' '),
            character => safe.push(character),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_refers_to_nothing_outside_and_takes_no_markup_from_hosts() {
        let table = Table {
            title: "t".to_owned(),
            about: "a".to_owned(),
            head: vec!["n".to_owned(), "<b>".to_owned()],
            rows: vec![vec![
                Cell::text("<script>"),
                Cell { text: "1 ms".to_owned(), more: "\"x\"".to_owned(), heat: Some(2.0), is_bad: true },
            ]],
            finding: "f\u{1b}[1m".to_owned(),
        };
        let report = Report {
            title: "T".to_owned(),
            about: "A".to_owned(),
            findings: vec!["one".to_owned()],
            tables: vec![table],
            faults: vec!["two & three".to_owned()],
        };
        let html = page(&report);
        for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "<script"] {
            assert!(!html.contains(outside), "{outside}");
        }
        assert!(html.contains("<th scope=\"row\">&lt;script&gt;</th>"));
        assert!(html.contains("<td class=\"bad\" style=\"--v:1.00\" title=\"&quot;x&quot;\">1 ms</td>"));
        assert!(html.contains("two &amp; three") && !html.contains('\u{1b}'));
        assert!(html.contains("prefers-color-scheme: dark") && html.contains("max-width: 30rem"));
    }
}
