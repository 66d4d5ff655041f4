//! Axes, curves and marks of inline SVG, as text.
//!
//! A [`Panel`] is a rectangle with an x and a y [`Scale`]; it draws its grid, then curves and marks upon it. All
//! colours, dashes and fonts are classes of the page's style sheet, so that both colour schemes and print are one drawing.
//! Deliberately not here: what is drawn.

use std::fmt::Write as _;

use super::escape;

/// Room for one character of a label, in units of the drawing.
const LETTER_WIDTH: f64 = 6.3;

/// From values to places.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    is_log: bool,
    from: f64,
    to: f64,
    /// Where `from` lies.
    low: f64,
    /// Where `to` lies.
    high: f64,
}

/// A rectangle of the drawing.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// Left end.
    pub left: f64,
    /// Upper end.
    pub top: f64,
    /// Right end.
    pub right: f64,
    /// Lower end.
    pub bottom: f64,
}

impl Scale {
    /// Equal differences are equal distances.
    pub fn linear(values: (f64, f64), places: (f64, f64)) -> Self {
        let to = if values.0 < values.1 { values.1 } else { values.0 + 1.0 };
        Self { is_log: false, from: values.0, to, low: places.0, high: places.1 }
    }

    /// Equal ratios are equal distances; whole decades, so that there are ticks.
    pub fn log(values: (f64, f64), places: (f64, f64)) -> Self {
        let low = if values.0.is_finite() && 0.0 < values.0 { values.0 } else { 0.001 };
        let high = if values.1.is_finite() { values.1.max(low) } else { low };
        let from = 10f64.powf(low.log10().floor());
        let to = 10f64.powf(high.log10().ceil()).max(from * 10.0);
        Self { is_log: true, from, to, low: places.0, high: places.1 }
    }

    /// Where a value lies; what is beyond an end lies at it.
    pub fn at(&self, value: f64) -> f64 {
        let share = match self.is_log {
            true => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        self.low + share.clamp(0.0, 1.0) * (self.high - self.low)
    }

    /// Round values along the scale, about this many.
    pub fn ticks(&self, about: usize) -> Vec<f64> {
        if self.is_log {
            let decades = (self.to / self.from).log10().round() as i32;
            let step = 1.max(decades / i32::try_from(about).unwrap_or(1).max(1));
            // A single decade would have but its ends.
            let between: &[f64] = if decades <= 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let of_decade = |decade| between.iter().map(move |times| times * self.from * 10f64.powi(decade));
            let ticks = (0..=decades).step_by(step as usize).flat_map(of_decade);
            return ticks.filter(|tick| *tick <= self.to * 1.000_001).collect();
        }
        let step = round_step((self.to - self.from) / about.max(1) as f64);
        let first = (self.from / step).ceil() as i64;
        let last = (self.to / step + 1e-9).floor() as i64;
        (first..=last).map(|index| index as f64 * step).collect()
    }
}

/// One, two or five times a power of ten, at least as large.
pub fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|times| times * power)
        .find(|step| least <= *step * 1.000_001)
        .unwrap_or(power)
}

/// A rectangle with two scales and what is drawn in it.
#[derive(Debug)]
pub struct Panel {
    /// Where it is.
    pub area: Area,
    /// From left to right.
    pub x: Scale,
    /// From bottom to top.
    pub y: Scale,
    /// The SVG so far.
    pub body: String,
}

impl Panel {
    /// An empty panel.
    pub fn new(area: Area, x: Scale, y: Scale) -> Self {
        Self { area, x, y, body: String::new() }
    }

    /// Horizontal lines with labels, and the axis' name above them.
    pub fn y_axis(&mut self, name: &str, label: impl Fn(f64) -> String) {
        let about = ((self.area.bottom - self.area.top) / 30.0) as usize;
        for tick in self.y.ticks(about) {
            let place = self.y.at(tick);
            self.line("grid", (self.area.left, place), (self.area.right, place));
            self.text("tick end", (self.area.left - 6.0, place + 4.0), &label(tick));
        }
        self.text("axis", (self.area.left, self.area.top - 9.0), name);
    }

    /// Vertical lines with labels under them, left out where they would touch, and the axis' name.
    pub fn x_axis(&mut self, name: &str, ticks: &[(f64, String)]) {
        let mut free_from = f64::NEG_INFINITY;
        for (tick, label) in ticks {
            let place = self.x.at(*tick);
            self.line("grid", (place, self.area.top), (place, self.area.bottom));
            let half = label.chars().count() as f64 * LETTER_WIDTH / 2.0;
            if free_from <= place - half {
                self.text("tick middle", (place, self.area.bottom + 16.0), label);
                free_from = place + half + 6.0;
            }
        }
        let middle = (self.area.left + self.area.right) / 2.0;
        self.text("axis middle", (middle, self.area.bottom + 33.0), name);
    }

    /// The line on which the panel stands.
    pub fn base(&mut self) {
        self.line("base", (self.area.left, self.area.bottom), (self.area.right, self.area.bottom));
    }

    /// A curve through places; a `NaN` parts it.
    pub fn curve(&mut self, class: &str, series: &str, points: &[(f64, f64)]) {
        let mut path = String::new();
        for run in points.split(|(_, y)| !y.is_finite()) {
            for (place, &(x, y)) in run.iter().enumerate() {
                let pen = if place == 0 { 'M' } else { 'L' };
                let _ = write!(path, "{pen}{:.1} {:.1}", self.x.at(x), self.y.at(y));
            }
            if run.len() == 1 {
                // With its round ends a line of no length is a dot.
                path += "h.01";
            }
        }
        let _ = write!(self.body, r#"<path class="{class}" data-series="{}" d="{path}"/>"#, escape(series));
    }

    /// A straight line between places.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = write!(
            self.body,
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        );
    }

    /// A filled rectangle.
    pub fn rectangle(&mut self, class: &str, area: Area) {
        let (width, height) = ((area.right - area.left).max(0.5), (area.bottom - area.top).max(0.5));
        let (x, y) = (area.left, area.top);
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"/>"#
        );
    }

    /// Words at a place.
    pub fn text(&mut self, class: &str, at: (f64, f64), text: &str) {
        let (x, y) = at;
        let _ = write!(self.body, r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{}</text>"#, escape(text));
    }

    /// A round mark at values, with words for whoever points at it.
    pub fn dot(&mut self, class: &str, series: &str, at: (f64, f64), radius: f64, title: &str) {
        let (x, y) = (self.x.at(at.0), self.y.at(at.1));
        let (series, title) = (escape(series), escape(title));
        let _ = write!(
            self.body,
            r#"<circle class="{class}" data-series="{series}" cx="{x:.1}" cy="{y:.1}" r="{radius}"><title>{title}</title></circle>"#
        );
    }

    /// Whether words at a place stay inside the drawing to the right; else they are to be flush right.
    pub fn label(&mut self, class: &str, at: (f64, f64), text: &str) {
        let width = text.chars().count() as f64 * LETTER_WIDTH;
        if at.0 + width < self.area.right + 6.0 {
            self.text(class, at, text);
        } else {
            self.text(&format!("{class} end"), (at.0.min(self.area.right + 6.0), at.1), text);
        }
    }
}

/// How wide words are, roughly.
pub fn width_of(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER_WIDTH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_have_round_ticks_and_keep_to_their_ends() {
        let linear = Scale::linear((0.0, 47_000.0), (100.0, 0.0));
        assert_eq!(linear.ticks(5), [0.0, 10_000.0, 20_000.0, 30_000.0, 40_000.0]);
        assert_eq!((linear.at(0.0), linear.at(47_000.0), linear.at(1e9)), (100.0, 0.0, 0.0));
        let log = Scale::log((0.3, 40.0), (0.0, 90.0));
        assert_eq!(log.ticks(5).len(), 4);
        assert_eq!(Scale::log((1.0, 9.0), (0.0, 1.0)).ticks(5), [1.0, 2.0, 5.0, 10.0]);
        assert!((log.at(1.0) - 30.0).abs() < 1e-9 && (log.at(100.0) - 90.0).abs() < 1e-9);
        assert_eq!(log.at(0.0), 0.0);
        // Nothing to draw is drawn all the same.
        assert!(Scale::log((f64::INFINITY, 0.0), (0.0, 1.0)).at(1.0).is_finite());
        assert!(Scale::linear((0.0, 0.0), (0.0, 1.0)).at(0.0).is_finite());
        assert_eq!([0.7, 1.0, 3.0, 6.0].map(round_step), [1.0, 1.0, 5.0, 10.0]);
    }

    #[test]
    fn curves_part_where_nothing_is_known() {
        let scale = || Scale::linear((0.0, 10.0), (0.0, 10.0));
        let area = Area { left: 0.0, top: 0.0, right: 10.0, bottom: 10.0 };
        let mut panel = Panel::new(area, scale(), scale());
        panel.curve("c", "a<b", &[(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0), (3.0, 4.0)]);
        assert_eq!(panel.body, r#"<path class="c" data-series="a&lt;b" d="M0.0 1.0h.01M2.0 3.0L3.0 4.0"/>"#);
    }
}
