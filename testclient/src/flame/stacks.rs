//! Folded stacks: one line a stack, outermost frame first, separated by semicolons, then its samples.
//!
//! In a file, stacks whose share is too small to see are cut at the deepest frame that is large enough,
//! so that a file has tens of kilobytes and two of them can be compared as text.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::names::UNKNOWN;

/// Subtrees with fewer samples than one in this many are cut off.
const SHARE_MIN_INVERSE: u64 = 400;

/// Samples by stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stacks {
    counts: BTreeMap<String, u64>,
}

impl Stacks {
    /// Adds samples of one stack, its thread first. A frame that repeats the one before it is left out:
    /// it was a closure of it, or a generic function's other instance.
    pub fn add(&mut self, frames: impl IntoIterator<Item = String>, samples: u64) {
        let mut kept: Vec<String> = frames.into_iter().collect();
        kept.dedup();
        *self.counts.entry(kept.join(";")).or_default() += samples;
    }

    /// Adds all stacks of another profile.
    pub fn add_all(&mut self, other: Self) {
        for (stack, samples) in other.counts {
            *self.counts.entry(stack).or_default() += samples;
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// One sentence that names the file and what is wrong.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text =
            fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Self::parse(&text).map_err(|why| format!("{}: {why}", path.display()))
    }

    /// Reads folded lines.
    ///
    /// # Errors
    /// A sentence that names the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut stacks = Self::default();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
            let parts = line.rsplit_once(' ').filter(|(stack, _)| !stack.is_empty());
            let parsed = parts.and_then(|(stack, count)| Some((stack, count.parse::<u64>().ok()?)));
            let Some((stack, samples)) = parsed else {
                return Err(format!("line {} is no stack with a count", index + 1));
            };
            *stacks.counts.entry(stack.to_owned()).or_default() += samples;
        }
        if stacks.counts.is_empty() {
            return Err("there are no stacks in it".into());
        }
        Ok(stacks)
    }

    /// As folded lines.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (stack, samples) in &self.counts {
            writeln!(text, "{stack} {samples}").expect("a string takes everything");
        }
        text
    }

    /// Every stack as frames, with its samples.
    pub fn iter(&self) -> impl Iterator<Item = (Vec<&str>, u64)> {
        self.counts.iter().map(|(stack, samples)| (stack.split(';').collect(), *samples))
    }

    /// All samples.
    pub fn samples(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Share of the samples for which something holds.
    pub fn share(&self, is_so: impl Fn(&[&str]) -> bool) -> f64 {
        let found: u64 = self.iter().filter(|(frames, _)| is_so(frames)).map(|(_, samples)| samples).sum();
        found as f64 / self.samples().max(1) as f64
    }

    /// Share of the samples with a frame whose name is not known.
    pub fn unknown_share(&self) -> f64 {
        self.share(|frames| frames.iter().any(|frame| frame.starts_with(UNKNOWN)))
    }

    /// Samples by frame: with all that it calls, and alone.
    pub fn by_frame(&self) -> HashMap<&str, Weight> {
        let mut weights: HashMap<&str, Weight> = HashMap::new();
        for (frames, samples) in self.iter() {
            let distinct: HashSet<&str> = frames[1..].iter().copied().collect();
            for frame in distinct {
                weights.entry(frame).or_default().with_callees += samples;
            }
            if let [_, .., last] = frames[..] {
                weights.entry(last).or_default().alone += samples;
            }
        }
        weights
    }

    /// The same without what is too small to see.
    pub fn pruned(&self) -> Self {
        let least = self.samples().div_ceil(SHARE_MIN_INVERSE);
        let mut subtrees: HashMap<&str, u64> = HashMap::new();
        for (stack, samples) in &self.counts {
            for end in ends(stack) {
                *subtrees.entry(&stack[..end]).or_default() += samples;
            }
        }
        let mut pruned = Self::default();
        for (stack, samples) in &self.counts {
            let kept = ends(stack).filter(|end| least <= subtrees[&stack[..*end]]).last();
            if let Some(end) = kept {
                *pruned.counts.entry(stack[..end].to_owned()).or_default() += samples;
            }
        }
        pruned
    }

    /// The stacks with every count multiplied and rounded.
    pub fn scaled(&self, factor: f64) -> Self {
        let scale = |samples: u64| (samples as f64 * factor).round() as u64;
        Self { counts: self.counts.iter().map(|(stack, samples)| (stack.clone(), scale(*samples))).collect() }
    }
}

/// Samples of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// In it or in what it calls.
    pub with_callees: u64,
    /// In itself.
    pub alone: u64,
}

/// Where each frame of a stack ends.
fn ends(stack: &str) -> impl Iterator<Item = usize> {
    stack.match_indices(';').map(|(at, _)| at).chain([stack.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_read_as_they_are_written() {
        let text = "v-listener;a;b 3\nv-listener;a;c 1\nv-worker-1;[unknown]_x 4\n";
        let stacks = Stacks::parse(text).expect("stacks");
        assert_eq!(stacks.text(), text);
        assert_eq!((stacks.samples(), stacks.unknown_share()), (8, 0.5));
        assert_eq!(stacks.by_frame()["a"], Weight { with_callees: 4, alone: 0 });
        assert_eq!(stacks.by_frame()["b"], Weight { with_callees: 3, alone: 3 });
        let error = |text: &str| Stacks::parse(text).expect_err("no stacks");
        assert_eq!(error("a;b 3\na;b c\n"), "line 2 is no stack with a count");
        assert_eq!(error("\n"), "there are no stacks in it");
    }

    #[test]
    fn repeated_frames_become_one() {
        let mut stacks = Stacks::default();
        stacks.add(["t", "f", "f", "g", "f"].map(str::to_owned), 2);
        assert_eq!(stacks.text(), "t;f;g;f 2\n");
    }

    #[test]
    fn what_is_too_small_to_see_is_cut_and_no_sample_is_lost() {
        let stacks = Stacks::parse("t;a 1600\nt;a;b 2\nt;a;b;c 2\nt;a;d;e 2\nt;f;g 394\n").expect("stacks");
        let pruned = stacks.pruned();
        assert_eq!(pruned.text(), "t;a 1606\nt;f;g 394\n");
        assert_eq!(pruned.samples(), stacks.samples());
    }
}
