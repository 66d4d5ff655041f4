//! Many seeds, several at once: each run is one thread's from its beginning to its end, and nothing is
//! shared between runs. They are handed on in the order of their seeds, whoever is done first, so what
//! is printed and summed up does not depend on the number of threads.

use super::report::Summary;
use super::swarm::{self, Options, Run};
use std::any::Any;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

/// Runs `count` seeds from the first on, hands each run to `show`, and sums up.
pub fn run_many(options: &Options, count: u64, threads: NonZeroUsize, mut show: impl FnMut(&Run)) -> Summary {
    let count = count.min(u64::MAX - options.seed);
    let threads = count.min(threads.get() as u64);
    let next = AtomicU64::new(0);
    let (done, runs) = mpsc::channel();
    let mut summary = Summary::default();
    thread::scope(|scope| {
        for _ in 0..threads {
            let (done, next) = (done.clone(), &next);
            scope.spawn(move || {
                let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
                for number in numbers.take_while(|number| *number < count) {
                    let options = Options { seed: options.seed + number, ..options.clone() };
                    let run = run_to_its_end(&options, swarm::run);
                    done.send((number, run)).expect("who receives waits for all senders");
                }
            });
        }
        drop(done);
        let mut early = BTreeMap::new();
        for (number, run) in runs {
            early.insert(number, run);
            while let Some(run) = early.remove(&summary.runs) {
                summary.add(&run);
                show(&run);
            }
        }
    });
    summary
}

/// A run that panics has failed; the others go on.
fn run_to_its_end(options: &Options, run: impl Fn(&Options) -> Run) -> Run {
    let run = panic::catch_unwind(AssertUnwindSafe(|| run(options)));
    run.unwrap_or_else(|cause| swarm::panicked(options, words_of(cause.as_ref())))
}

fn words_of(cause: &(dyn Any + Send)) -> String {
    let fixed = cause.downcast_ref::<&str>().map(|words| (*words).to_owned());
    fixed.or_else(|| cause.downcast_ref().cloned()).unwrap_or_else(|| "it does not say why".into())
}

#[cfg(test)]
mod tests {
    use super::super::{command, report};
    use super::*;

    #[test]
    fn a_run_that_panics_has_failed_and_can_be_repeated() {
        let line = "sim --seed 9 --nodes 5-30 --mood pauses";
        let matches = command::command().try_get_matches_from(line.split(' ')).expect("a command line");
        let options = command::request(&matches, None).options;
        let run = run_to_its_end(&options, |options| panic!("seed {} is bad", options.seed));
        let story = report::story_of(&run, &options);
        let repeat = format!("violet sim --seed 9 --seconds 10 --nodes {} --mood pauses\n", run.nodes);
        assert!(story.contains(&repeat), "{story}");
        assert!(story.contains("nothing panics: seed 9 is bad"), "{story}");
    }
}
