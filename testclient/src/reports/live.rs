//! What a person sees while load is made: rates and latencies of the last minutes, counts, the time that is left, what
//! was done to the servers, and what comes next.
//!
//! On a terminal it fills the screen of standard error, a few times a second, and takes it down again however the run ends;
//! else it is a plain line every few seconds, so that a log stays readable. `q` and Ctrl-C ask for the end: the run stops,
//! and its report is written. Deliberately not here: making load, and signals; a terminal in this mode sends none for Ctrl-C.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Stderr};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Gauge, Paragraph, Sparkline};
use ratatui::{Frame, Terminal};

use super::words;
use crate::load::Glimpse;

/// How often a plain line is printed.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Seconds that are remembered; more than any terminal has columns.
const HISTORY_SECONDS_MAX: usize = 600;
/// Deeds that are shown at a time.
const HAPPENINGS_SHOWN: usize = 2;
/// A point of the history.
const POINT_SECONDS: f64 = 1.0;

/// What there is to see of a run at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scene {
    /// What is running.
    pub phase: String,
    /// Its number, from 1.
    pub phase_number: usize,
    /// How many there are.
    pub phases: usize,
    /// How it goes.
    pub glimpse: Glimpse,
    /// What has been done to the servers in this phase so far, in order.
    pub happenings: Vec<String>,
    /// What was done to the servers last, before this phase.
    pub last_event: Option<String>,
    /// What comes after this phase.
    pub next: Option<String>,
}

/// What the person who watches wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing.
    GoOn,
    /// To end the run now and have its report.
    End,
}

/// The view.
#[derive(Debug)]
pub struct Live {
    history: History,
    screen: Screen,
    wish: Wish,
}

#[derive(Debug)]
enum Screen {
    Full(Terminal<CrosstermBackend<Stderr>>),
    Lines { printed: Option<Instant> },
}

/// The last minutes, a point a second.
#[derive(Debug, Default)]
struct History {
    answered_per_second: VecDeque<u64>,
    p99_us: VecDeque<u64>,
    /// Whether something was done to the servers in that second.
    is_marked: VecDeque<bool>,
    /// What was done in this phase, with the second at which it was seen first.
    happenings: Vec<(f64, String)>,
    /// How many of these have been in a point.
    marked: usize,
    /// Of the phase that is shown.
    phase_number: usize,
    /// Where the present point began.
    since: Glimpse,
    /// Of the latest whole second.
    rates: Rates,
}

/// Of one second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rates {
    offered: f64,
    answered: f64,
    good: f64,
}

/// Whether the terminal is ours, for a panic anywhere.
static IS_FULL: AtomicBool = AtomicBool::new(false);

impl Live {
    /// Takes the screen if there is one.
    pub fn start() -> Self {
        let screen = match io::stderr().is_terminal().then(full_screen) {
            Some(Ok(terminal)) => Screen::Full(terminal),
            // A terminal that cannot be drawn on can still be written to.
            Some(Err(_)) | None => Screen::Lines { printed: None },
        };
        Self { history: History::default(), screen, wish: Wish::GoOn }
    }

    /// Shows the state, and returns what the person wants.
    pub fn show(&mut self, scene: &Scene) -> Wish {
        let known = self.history.happenings.len();
        self.history.add(scene);
        match &mut self.screen {
            Screen::Full(terminal) => {
                // A terminal that went away must not end the run.
                let _ = terminal.draw(|frame| draw(frame, scene, &self.history));
                if is_end_asked() {
                    self.wish = Wish::End;
                }
            }
            Screen::Lines { printed } => {
                // What is done to the servers is told at once, not when a line is due.
                for happening in self.history.happenings.iter().skip(known) {
                    eprintln!("{}", happening_line(scene, happening));
                }
                if printed.is_none_or(|at| LINE_EVERY <= at.elapsed()) {
                    *printed = Some(Instant::now());
                    eprintln!("{}", line(scene, &self.history.rates));
                }
            }
        }
        self.wish
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if matches!(self.screen, Screen::Full(_)) {
            give_back();
        }
    }
}

fn full_screen() -> io::Result<Terminal<CrosstermBackend<Stderr>>> {
    enable_raw_mode()?;
    IS_FULL.store(true, Ordering::Relaxed);
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        // What went wrong must be readable.
        give_back();
        before(info);
    }));
    let opened = execute!(io::stderr(), EnterAlternateScreen)
        .and_then(|()| Terminal::new(CrosstermBackend::new(io::stderr())));
    if opened.is_err() {
        give_back();
    }
    opened
}

fn give_back() {
    if IS_FULL.swap(false, Ordering::Relaxed) {
        // Nothing can be done about a terminal that went away.
        let _ = execute!(io::stderr(), LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

/// Whether one of the keys that have come since asks for the end.
fn is_end_asked() -> bool {
    let mut is_asked = false;
    while event::poll(Duration::ZERO).unwrap_or(false) {
        let Ok(event) = event::read() else { break };
        is_asked |= asks_for_end(&event);
    }
    is_asked
}

fn asks_for_end(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let is_interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind != KeyEventKind::Release && (is_interrupt || key.code == KeyCode::Char('q'))
}

impl History {
    fn add(&mut self, scene: &Scene) {
        let glimpse = &scene.glimpse;
        if self.phase_number != scene.phase_number || glimpse.at_seconds < self.since.at_seconds {
            self.phase_number = scene.phase_number;
            self.since = Glimpse::default();
            self.happenings.clear();
            self.marked = 0;
        }
        for happening in scene.happenings.iter().skip(self.happenings.len()) {
            self.happenings.push((glimpse.at_seconds, happening.clone()));
        }
        let seconds = glimpse.at_seconds - self.since.at_seconds;
        if seconds < POINT_SECONDS {
            return;
        }
        let rate =
            |count: fn(&Glimpse) -> u64| count(glimpse).saturating_sub(count(&self.since)) as f64 / seconds;
        self.rates = Rates {
            offered: rate(|glimpse| glimpse.offered),
            answered: rate(|glimpse| glimpse.answered),
            good: rate(|glimpse| glimpse.good),
        };
        self.since = *glimpse;
        push(&mut self.answered_per_second, self.rates.answered as u64);
        push(&mut self.p99_us, (glimpse.p99_ms * 1e3) as u64);
        push(&mut self.is_marked, self.marked < self.happenings.len());
        self.marked = self.happenings.len();
    }
}

fn push<T>(history: &mut VecDeque<T>, point: T) {
    if history.len() == HISTORY_SECONDS_MAX {
        history.pop_front();
    }
    history.push_back(point);
}

/// Something that was done to the servers, as one line of a log.
fn happening_line(scene: &Scene, (seconds, what): &(f64, String)) -> String {
    format!(
        "{} ({} of {}), {}: {what}",
        scene.phase,
        scene.phase_number,
        scene.phases,
        words::seconds(*seconds)
    )
}

/// The state as one line of a log.
fn line(scene: &Scene, rates: &Rates) -> String {
    let glimpse = &scene.glimpse;
    let mut parts = vec![
        format!("{} ({} of {})", scene.phase, scene.phase_number, scene.phases),
        words::seconds(glimpse.at_seconds),
        format!("answered {} of {} offered", words::rate(rates.answered), words::rate(rates.offered)),
        format!("p50 {}", words::latency(glimpse.p50_ms)),
        format!("p99 {}", words::latency(glimpse.p99_ms)),
        format!("{} under way", words::count(glimpse.in_flight as u64)),
    ];
    for (count, what) in [(glimpse.timed_out, "timed out"), (glimpse.wrong, "WRONG")] {
        if 0 < count {
            parts.push(format!("{} {what}", words::count(count)));
        }
    }
    parts.extend(glimpse.left_seconds.map(|left| format!("{} left", words::seconds(left))));
    parts.join(", ")
}

fn draw(frame: &mut Frame, scene: &Scene, history: &History) {
    let rows = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(3),
        Constraint::Fill(1),
        Constraint::Fill(1),
        Constraint::Length(3),
        Constraint::Length(1),
    ]);
    let [title, progress, counts, rate, latency, told, keys] = rows.areas(frame.area());
    let place = format!("  {} of {}", scene.phase_number, scene.phases);
    frame.render_widget(Line::from(vec![scene.phase.as_str().bold(), place.dim()]), title);
    draw_progress(frame, progress, &scene.glimpse);
    draw_counts(frame, counts, &scene.glimpse, &history.rates);
    let now = words::rate(history.rates.answered);
    let most = history.answered_per_second.iter().copied().max().unwrap_or(0) as f64;
    let title = format!(" answered: now {now}, at most {} ", words::rate(most.max(history.rates.answered)));
    let marks = &history.is_marked;
    draw_history(
        frame,
        rate,
        &title,
        history.answered_per_second.iter().copied(),
        marks,
        Style::new().cyan(),
    );
    // The present second is no point yet.
    let most = history.p99_us.iter().copied().max().unwrap_or(0) as f64 / 1e3;
    let title = format!(
        " p99: now {}, at most {} (logarithmic) ",
        words::latency(scene.glimpse.p99_ms),
        words::latency(most.max(scene.glimpse.p99_ms))
    );
    let logarithms =
        history.p99_us.iter().map(|&us| ((us + 1) as f64).log2() * 16.0).map(|height| height as u64);
    draw_history(frame, latency, &title, logarithms, marks, Style::new().yellow());
    let mut lines: Vec<Line> = done(scene, history);
    lines.push(Line::from(vec!["next: ".dim(), scene.next.as_deref().unwrap_or("nothing").into()]));
    frame.render_widget(Paragraph::new(lines), told);
    frame.render_widget("q or Ctrl-C ends the run and writes its report".dim(), keys);
}

/// What was done to the servers: the latest of this phase, else the last before it.
fn done<'a>(scene: &'a Scene, history: &'a History) -> Vec<Line<'a>> {
    let heading = "done to the servers: ";
    let from = history.happenings.len().saturating_sub(HAPPENINGS_SHOWN);
    let latest = &history.happenings[from..];
    if latest.is_empty() {
        let last = scene.last_event.as_deref().unwrap_or("nothing");
        return vec![Line::from(vec![heading.dim(), last.into()])];
    }
    let row = |(place, (seconds, what)): (usize, &'a (f64, String))| {
        let before = if place == 0 { heading.to_owned() } else { " ".repeat(heading.len()) };
        let when = format!("at {}  ", words::seconds(*seconds));
        Line::from(vec![before.dim(), when.magenta(), what.as_str().into()])
    };
    latest.iter().enumerate().map(row).collect()
}

fn draw_progress(frame: &mut Frame, area: Rect, glimpse: &Glimpse) {
    let gone = glimpse.at_seconds.max(0.0);
    let left = glimpse.left_seconds;
    let text = match left {
        Some(left) => format!("{} gone, {} left", words::seconds(gone), words::seconds(left)),
        None => format!("{} gone", words::seconds(gone)),
    };
    let share = left.map_or(0.0, |left| gone / (gone + left).max(f64::MIN_POSITIVE));
    let gauge = Gauge::default().ratio(share.clamp(0.0, 1.0)).label(text);
    frame.render_widget(gauge.gauge_style(Style::new().blue().on_black()), area);
}

fn draw_counts(frame: &mut Frame, area: Rect, glimpse: &Glimpse, rates: &Rates) {
    let pair = |name: &'static str, value: String| {
        vec![Span::from(name).dim(), Span::from(value), Span::from("   ")]
    };
    let rate = |name, per_second| pair(name, words::rate(per_second));
    let count = |name, count| pair(name, words::count(count));
    let first = [
        rate("offered ", rates.offered),
        rate("answered ", rates.answered),
        rate("good ", rates.good),
        count("under way ", glimpse.in_flight as u64),
    ];
    let second = [
        pair("p50 ", words::latency(glimpse.p50_ms)),
        pair("p99 ", words::latency(glimpse.p99_ms)),
        count("answers ", glimpse.answered),
        count("timed out ", glimpse.timed_out),
    ];
    let mut lines = [first, second].map(|parts| Line::from(parts.concat())).to_vec();
    if 0 < glimpse.wrong {
        lines[1].push_span(Span::from(format!("{} WRONG", words::count(glimpse.wrong))).red().bold());
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// The latest points, as many as there is room for.
fn draw_history(
    frame: &mut Frame,
    area: Rect,
    title: &str,
    points: impl DoubleEndedIterator<Item = u64>,
    marks: &VecDeque<bool>,
    style: Style,
) {
    let block = Block::bordered().title(title);
    let width = usize::from(block.inner(area).width);
    let mut shown: Vec<u64> = points.rev().take(width).collect();
    shown.reverse();
    let inner = block.inner(area);
    frame.render_widget(Sparkline::default().block(block).data(&shown).style(style), area);
    // On the frame below, because a second without an answer has no bar.
    let places = marks.iter().rev().take(shown.len()).rev().zip(inner.x..);
    for (_, x) in places.filter(|(is_marked, _)| **is_marked) {
        if let Some(cell) = frame.buffer_mut().cell_mut((x, inner.bottom())) {
            cell.set_symbol("▲").set_style(Style::new().magenta());
        }
    }
}

#[cfg(test)]
mod tests {
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyEvent;

    use super::*;

    fn scene(second: u64) -> Scene {
        Scene {
            phase: "R16".to_owned(),
            phase_number: 3,
            phases: 9,
            glimpse: Glimpse {
                at_seconds: second as f64,
                left_seconds: Some(60.0 - second as f64),
                offered: 12_000 * second,
                answered: 11_000 * second,
                good: 10_000 * second,
                wrong: 2,
                timed_out: 4,
                in_flight: 37,
                answered_per_second: 11_000.0,
                p50_ms: 0.4,
                p99_ms: if second == 10 { 40.0 } else { 2.5 },
            },
            happenings: if second < 8 { Vec::new() } else { vec!["kill 127.0.0.1:4411".to_owned()] },
            last_event: Some("start 127.0.0.1:4412: done".to_owned()),
            next: Some("R32".to_owned()),
        }
    }

    fn history(seconds: u64) -> History {
        let mut history = History::default();
        (1..=seconds).for_each(|second| history.add(&scene(second)));
        history
    }

    fn screen(width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &scene(12), &history(12))).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen_tells_what_happens_and_what_comes() {
        let screen = screen(100, 24);
        for expected in [
            "R16  3 of 9",
            "12 s gone, 48 s left",
            "offered 12,000 /s",
            "answered 11,000 /s",
            "good 10,000 /s",
            "under way 37",
            "p99 2.50 ms",
            "timed out 4",
            "2 WRONG",
            "answered: now 11,000 /s, at most 11,000 /s",
            "p99: now 2.50 ms, at most 40.0 ms",
            "done to the servers: at 8.0 s  kill 127.0.0.1:4411",
            "next: R32",
            "q or Ctrl-C ends the run",
        ] {
            assert!(screen.contains(expected), "{expected} is not in\n{screen}");
        }
        assert!(screen.contains('█'), "{screen}");
        // In the eighth second, under both curves.
        assert_eq!(screen.matches("└───────▲").count(), 2, "{screen}");
    }

    #[test]
    fn what_is_done_to_the_servers_is_told_when_it_happens_and_once() {
        let mut history = History::default();
        let told: Vec<usize> = (6..=9)
            .map(|second| {
                let known = history.happenings.len();
                history.add(&scene(second));
                history.happenings.len() - known
            })
            .collect();
        assert_eq!(told, [0, 0, 1, 0]);
        assert_eq!(
            happening_line(&scene(8), &history.happenings[0]),
            "R16 (3 of 9), 8.0 s: kill 127.0.0.1:4411"
        );
        assert_eq!(history.is_marked, [false, false, true, false]);
        history.add(&Scene { phase_number: 4, happenings: Vec::new(), ..scene(1) });
        assert!(history.happenings.is_empty(), "another phase");
        let before = Scene { happenings: Vec::new(), ..scene(1) };
        assert_eq!(done(&before, &history)[0].to_string(), "done to the servers: start 127.0.0.1:4412: done");
    }

    #[test]
    fn a_small_terminal_is_no_reason_to_fail() {
        for (width, height) in [(1, 1), (20, 5), (40, 10), (300, 80)] {
            assert!(!screen(width, height).is_empty());
        }
    }

    #[test]
    fn rates_are_of_the_last_second_and_begin_anew_with_each_phase() {
        let mut history = history(5);
        assert_eq!(history.rates, Rates { offered: 12_000.0, answered: 11_000.0, good: 10_000.0 });
        let changed = |scene: Scene, at_seconds, answered| Scene {
            glimpse: Glimpse { at_seconds, answered, ..scene.glimpse },
            ..scene
        };
        history.add(&changed(scene(5), 5.5, 99_000_000));
        assert_eq!(history.rates.answered, 11_000.0, "half a second is no point");
        history.add(&Scene { phase_number: 4, ..changed(scene(1), 1.0, 500) });
        assert_eq!(history.rates.answered, 500.0);
        assert_eq!(history.answered_per_second.len(), 6);
        (0..2 * HISTORY_SECONDS_MAX as u64).for_each(|point| push(&mut history.p99_us, point));
        assert_eq!(history.p99_us.len(), HISTORY_SECONDS_MAX);
    }

    #[test]
    fn a_line_says_what_was_offered_beside_the_percentiles() {
        let line = line(&scene(12), &history(12).rates);
        assert_eq!(
            line,
            "R16 (3 of 9), 12 s, answered 11,000 /s of 12,000 /s offered, p50 400 µs, p99 2.50 ms, 37 under way, \
             4 timed out, 2 WRONG, 48 s left"
        );
    }

    #[test]
    fn q_and_ctrl_c_ask_for_the_end_and_nothing_else_does() {
        let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        assert!(asks_for_end(&key(KeyCode::Char('q'), KeyModifiers::NONE)));
        assert!(asks_for_end(&key(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(!asks_for_end(&key(KeyCode::Char('c'), KeyModifiers::NONE)));
        assert!(!asks_for_end(&Event::FocusLost));
    }
}
