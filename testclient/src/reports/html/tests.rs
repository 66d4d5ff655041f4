//! What must hold of every page, whatever the result.

use super::super::{compare, samples};
use super::*;

fn all() -> Vec<(String, RunResult)> {
    [samples::grid(), samples::scan(), samples::faults(), samples::scaling()]
        .into_iter()
        .map(|result| (result.name.clone(), result))
        .collect()
}

#[test]
fn a_page_refers_to_nothing_outside_itself() {
    let rules = compare::Rules { tolerance: 0.05, meant: Vec::new() };
    let two = [("a".to_owned(), samples::grid()), ("b".to_owned(), samples::grid())];
    let comparison = compare::Comparison::of(&two, &rules);
    for page in [page(&all()), comparison_page(&two, &comparison, 0.05)] {
        let page = page.to_lowercase();
        for reference in
            ["://", "url(", "@import", "src=", "<link", "<iframe", "<img", "javascript:", "xlink"]
        {
            assert!(!page.contains(reference), "{reference}");
        }
        // Links lead within the page only; styles and handlers are nowhere but in the two digested blocks.
        assert_eq!(page.matches("href=").count(), page.matches("href=\"#").count());
        assert!(!page.contains(" style=") && !page.contains(" onclick="));
        assert!(page.contains("content-security-policy"));
    }
}

#[test]
fn the_verdict_and_the_key_table_come_first() {
    let page = page(&[("faults".to_owned(), samples::faults())]);
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}"));
    assert!(at("class=\"verdict bad\"") < at("<table class=\"cards key\""));
    assert!(at("<table class=\"cards key\"") < at("data-plot=\"timeline\""));
}

#[test]
fn every_plot_has_its_place() {
    let page = page(&all());
    let count = |plot: &str| page.matches(&format!("data-plot=\"{plot}\"")).count();
    // Each result has a timeline for wide and one for narrow screens.
    assert_eq!(count("timeline"), 2 * 4);
    assert_eq!(count("knee"), 1);
    assert_eq!(count("grid"), 1);
    assert_eq!(count("scaling"), 4);
    assert_eq!(count("distribution"), 5 + 8 + 1 + 4);
    assert_eq!(count("servers"), 5 + 8 + 1 + 3);
    assert!(page.contains("the honest quantity is the cost of a request"));
    assert!(page.contains("<strong>127.0.0.1:4413 stands out</strong>"));
    assert!(!page.contains("NaN") && !page.contains("inf\""));
}

#[test]
fn a_caveat_stands_with_every_figure_that_it_is_about() {
    let mut result = samples::scan();
    result.incomplete = Some("it was interrupted".to_owned());
    let page = page(&[("scan".to_owned(), result)]);
    let figures: Vec<&str> =
        page.split("<figure>").skip(1).map(|rest| rest.split("</figure>").next().unwrap()).collect();
    assert!(figures.iter().all(|figure| figure.contains("Incomplete: it was interrupted")));
    let of_last: Vec<&&str> =
        figures.iter().filter(|figure| figure.contains("search · 90,000 /s</h3>")).collect();
    assert_eq!(of_last.len(), 2);
    assert!(
        of_last
            .iter()
            .all(|figure| figure.contains("Rate not reached: ") && figure.contains("Generator limited: "))
    );
}

#[test]
fn text_from_a_result_is_nothing_but_text() {
    let evil = "<script>alert(1)</script>\"' onload=x";
    let mut result = samples::faults();
    result.name = evil.to_owned();
    result.servers[0] = evil.to_owned();
    result.settings.insert(evil.to_owned(), evil.to_owned());
    result.checks[0].name = evil.to_owned();
    result.checks[0].seen = evil.to_owned();
    result.events[0].kind = evil.to_owned();
    result.events[0].outcome = evil.to_owned();
    result.incomplete = Some(evil.to_owned());
    let phase = &mut result.phases[0];
    (phase.name, phase.group, phase.format) = (evil.to_owned(), evil.to_owned(), evil.to_owned());
    phase.by_server[0].server = evil.to_owned();
    phase.generator.limited = Some(evil.to_owned());
    let page = page(&[(evil.to_owned(), result)]);
    assert_eq!(page.matches("<script").count(), 1);
    assert!(!page.contains("\"' onload"));
    assert!(page.contains("&lt;script&gt;alert(1)"));
}

#[test]
fn results_with_nothing_in_them_are_drawn_too() {
    let mut empty = samples::faults();
    empty.phases.clear();
    empty.events.clear();
    empty.checks.clear();
    let page_of = |result: RunResult| page(&[("empty".to_owned(), result)]);
    assert!(page_of(empty).contains("No load was made"));
    let mut silent = samples::faults();
    let phase = &mut silent.phases[0];
    phase.counts = crate::result::Counts::default();
    phase.operations.clear();
    phase.by_server.clear();
    phase
        .seconds
        .iter_mut()
        .for_each(|second| *second = crate::result::Second { at: second.at, ..Default::default() });
    let page = page_of(silent);
    assert!(page.contains("Nothing was answered") || page.contains("checks failed"), "{page}");
    assert!(!page.contains("NaN"));
}

#[test]
fn loads_that_are_timed_otherwise_are_no_repeats_of_one_size() {
    let mut result = samples::scaling();
    let others = result.phases.to_vec();
    result.phases.extend(others.into_iter().map(|mut phase| {
        phase.timing = crate::result::Loop::Closed { clients: 7 };
        phase.cost.as_mut().unwrap().retransmissions = Some(0);
        phase
    }));
    let page = super::page(&[("both".to_owned(), result)]);
    assert_eq!(page.matches("data-plot=\"scaling\"").count(), 4 + 3, "nothing is not drawn");
    assert!(page.contains("Server CPU per good answer (closed, 7 clients)"));
}
