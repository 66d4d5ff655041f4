//! Whether a history of one key could have happened one request at a time (Wing and Gong 1993, with
//! Lowe's memory of what was tried).
//!
//! Requests whose outcome nobody knows may take effect at any time after they were made, or never.
//! The search is bounded; a history that is too entangled is *unknown*, not wrong.

use crate::time::Instant;
use std::collections::BTreeSet;

/// What one request did, as a step on the state "which value is there".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It wrote this value.
    Write(u32),
    /// It removed a value, and found one.
    Remove,
    /// It removed nothing, or read nothing: there was no value.
    SawNone,
    /// It read this value.
    Saw(u32),
    /// It was a removal whose outcome is not known.
    MayRemove,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// When it was made.
    pub invoked: Instant,
    /// When it was answered; [`Instant::FAR`] when its outcome is not known.
    pub returned: Instant,
    /// What it did.
    pub effect: Effect,
}

/// What the search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order.
    Linearizable,
    /// There is none. The number of requests that could be put in order at most.
    Not(usize),
    /// The search was given up.
    Unknown,
}

type State = Option<u32>;

fn step(state: State, effect: Effect) -> Option<State> {
    match effect {
        Effect::Write(value) => Some(Some(value)),
        Effect::Remove => state.map(|_| None),
        Effect::SawNone => state.is_none().then_some(None),
        Effect::Saw(value) => (state == Some(value)).then_some(state),
        Effect::MayRemove => Some(None),
    }
}

/// Looks for an order of the requests, beginning with no value.
#[must_use]
pub fn check(spans: &[Span], steps_max: usize) -> Verdict {
    let mut spans = spans.to_vec();
    spans.sort_by_key(|span| span.invoked);
    // What was certainly answered must be put in order; what is open may be left out.
    let certain = spans.iter().filter(|span| span.returned != Instant::FAR).count();
    let mut search =
        Search { spans: &spans, taken: vec![0; spans.len().div_ceil(64)], tried: BTreeSet::new() };
    search.run(certain, steps_max)
}

struct Search<'a> {
    spans: &'a [Span],
    taken: Vec<u64>,
    tried: BTreeSet<(Vec<u64>, State)>,
}

/// A choice that was made: which request, and what was there before.
struct Choice {
    index: usize,
    before: State,
}

impl Search<'_> {
    fn run(&mut self, certain: usize, steps_max: usize) -> Verdict {
        let mut choices: Vec<Choice> = Vec::new();
        let (mut state, mut from, mut done, mut best) = (None, 0, 0, 0);
        for _ in 0..steps_max {
            if done == certain {
                return Verdict::Linearizable;
            }
            if let Some((index, after)) = self.next_choice(state, from) {
                choices.push(Choice { index, before: state });
                done += usize::from(self.is_certain(index));
                best = best.max(done);
                state = after;
                from = self.first_open();
                continue;
            }
            let Some(choice) = choices.pop() else { return Verdict::Not(best) };
            self.flip(choice.index);
            done -= usize::from(self.is_certain(choice.index));
            state = choice.before;
            from = choice.index + 1;
        }
        Verdict::Unknown
    }

    fn is_certain(&self, index: usize) -> bool {
        self.spans[index].returned != Instant::FAR
    }

    fn is_taken(&self, index: usize) -> bool {
        self.taken[index / 64] >> (index % 64) & 1 == 1
    }

    fn flip(&mut self, index: usize) {
        self.taken[index / 64] ^= 1 << (index % 64);
    }

    fn first_open(&self) -> usize {
        let word = self.taken.iter().position(|word| *word != u64::MAX).unwrap_or(self.taken.len());
        word * 64 + self.taken.get(word).map_or(0, |word| word.trailing_ones() as usize)
    }

    /// The next request that may come first among the open ones and leads somewhere new; it is taken.
    fn next_choice(&mut self, state: State, from: usize) -> Option<(usize, State)> {
        let mut earliest_return = Instant::FAR;
        for index in self.first_open()..self.spans.len() {
            if self.is_taken(index) {
                continue;
            }
            let span = self.spans[index];
            if earliest_return < span.invoked {
                return None;
            }
            earliest_return = earliest_return.min(span.returned);
            if index < from {
                continue;
            }
            let Some(after) = step(state, span.effect) else { continue };
            self.flip(index);
            if self.tried.insert((self.taken.clone(), after)) {
                return Some((index, after));
            }
            self.flip(index);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Effect::{MayRemove, Remove, Saw, SawNone, Write};

    fn verdict(spans: &[(u64, u64, Effect)]) -> Verdict {
        let at = |time: u64| if time == 0 { Instant::FAR } else { Instant::from_nanos(time) };
        let span =
            |&(invoked, returned, effect): &_| Span { invoked: at(invoked), returned: at(returned), effect };
        check(&spans.iter().map(span).collect::<Vec<_>>(), 10_000)
    }

    #[test]
    fn what_could_have_happened_is_accepted() {
        use Verdict::Linearizable;
        assert_eq!(verdict(&[]), Linearizable);
        assert_eq!(
            verdict(&[(1, 2, Write(1)), (3, 4, Saw(1)), (5, 6, Remove), (7, 8, SawNone)]),
            Linearizable
        );
        // Overlapping: the read may come before or after the second write.
        for seen in [1, 2] {
            assert_eq!(verdict(&[(1, 2, Write(1)), (3, 9, Write(2)), (4, 5, Saw(seen))]), Linearizable);
        }
        // A write without an answer may take effect late, or never.
        for last in [Saw(1), Saw(2)] {
            let spans = [(1, 0, Write(1)), (2, 3, Write(2)), (4, 5, Saw(2)), (6, 7, last)];
            assert_eq!(verdict(&spans), Linearizable);
        }
        assert_eq!(
            verdict(&[(1, 2, Write(1)), (3, 0, MayRemove), (4, 5, Saw(1)), (6, 7, SawNone)]),
            Linearizable
        );
    }

    #[test]
    fn what_cannot_have_happened_is_refused() {
        let spans = [(1, 2, Write(1)), (3, 4, Write(2)), (5, 6, Saw(1))];
        assert_eq!(verdict(&spans), Verdict::Not(2));
        let spans = [(1, 2, Write(1)), (3, 4, SawNone)];
        assert_eq!(verdict(&spans), Verdict::Not(1));
        let spans = [(1, 2, Write(1)), (3, 9, Write(2)), (4, 5, Saw(2)), (6, 7, Saw(1))];
        assert!(matches!(verdict(&spans), Verdict::Not(_)), "new, then old");
        // One write cannot happen twice.
        let spans = [(1, 0, Write(1)), (2, 3, Saw(1)), (4, 5, Write(2)), (6, 7, Saw(2)), (8, 9, Saw(1))];
        assert!(matches!(verdict(&spans), Verdict::Not(_)));
        assert!(matches!(verdict(&[(1, 2, Write(1)), (3, 4, Remove), (5, 6, Remove)]), Verdict::Not(_)));
    }

    #[test]
    fn a_long_history_is_quick_and_an_entangled_one_has_an_end() {
        let mut spans: Vec<(u64, u64, Effect)> = Vec::new();
        for number in 0..2_000u64 {
            spans.push((number * 10 + 1, number * 10 + 15, Write(number as u32)));
        }
        assert_eq!(verdict(&spans), Verdict::Linearizable);
        let mut spans: Vec<_> = (0..40).map(|number| (1 + number, 1_000, Write(number as u32))).collect();
        spans.push((2_000, 2_001, SawNone));
        assert_eq!(verdict(&spans), Verdict::Unknown);
    }
}
