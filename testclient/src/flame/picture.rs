//! Folded stacks as SVG: plain and differential.

use std::fs;
use std::path::Path;

use inferno::differential;
use inferno::flamegraph::color::{MultiPalette, Palette};
use inferno::flamegraph::{self, Options};

use super::stacks::Stacks;

/// Frames narrower than this share of the picture, in percent, are left out of it.
const WIDTH_PERCENT_MIN: f64 = 0.1;

/// Draws stacks.
///
/// # Errors
/// One sentence.
pub fn draw(stacks: &Stacks, title: &str, subtitle: &str, path: &Path) -> Result<(), String> {
    let mut options = options(title, subtitle, "samples");
    options.colors = Palette::Multi(MultiPalette::Rust);
    write(&mut options, stacks.text().as_bytes(), path)
}

/// Draws what has changed from one to the other, in the shape of the other: red has grown, blue has
/// shrunk. Counts are nanoseconds per request. `is_reversed` is for the way back, whose colours shall
/// mean the same.
///
/// # Errors
/// One sentence.
pub fn draw_difference(
    from: &Stacks,
    to: &Stacks,
    is_reversed: bool,
    title: &str,
    subtitle: &str,
    path: &Path,
) -> Result<(), String> {
    let mut lines = Vec::new();
    let plain = differential::Options::default();
    differential::from_readers(plain, from.text().as_bytes(), to.text().as_bytes(), &mut lines)
        .map_err(|error| format!("cannot compare: {error}"))?;
    let mut options = options(title, subtitle, "ns per request");
    options.negate_differentials = is_reversed;
    write(&mut options, &lines, path)
}

fn options(title: &str, subtitle: &str, count_name: &str) -> Options<'static> {
    let mut options = Options::default();
    title.clone_into(&mut options.title);
    options.subtitle = Some(subtitle.to_owned());
    count_name.clone_into(&mut options.count_name);
    options.min_width = WIDTH_PERCENT_MIN;
    // The same frame has the same colour in every picture, and a picture taken again differs little.
    options.hash = true;
    options.deterministic = true;
    options
}

fn write(options: &mut Options<'_>, folded: &[u8], path: &Path) -> Result<(), String> {
    let mut svg = Vec::new();
    flamegraph::from_reader(options, folded, &mut svg)
        .map_err(|error| format!("cannot draw {}: {error}", path.display()))?;
    fs::write(path, svg).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_name_their_frames() {
        let path = std::env::temp_dir().join(format!("violet-flame-{}.svg", std::process::id()));
        let stacks = |text: &str| Stacks::parse(text).expect("stacks");
        let (before, after) = (stacks("v-worker-1;a;b 30\n"), stacks("v-worker-1;a;c 20\n"));
        draw(&before, "A title", "and more", &path).expect("drawn");
        let svg = fs::read_to_string(&path).expect("written");
        assert!(
            ["A title", "and more", "v-worker-1 (30 samples", ">b"].iter().all(|text| svg.contains(text))
        );
        draw_difference(&before, &after, false, "Change", "", &path).expect("drawn");
        let svg = fs::read_to_string(&path).expect("written");
        assert!(svg.contains("ns per request") && svg.contains(">c"));
        fs::remove_file(path).expect("it was written");
    }
}
