//! When requests under way must be sent again or given up.
//!
//! Each attempt of a number waits equally long, so the deadlines of one attempt number come in the order in which its
//! requests were sent: a queue for each, whose front is the next. Setting and taking are O(1), whatever the number of
//! requests. An answered request stays in its queue; it is dropped when it gets to the front, at the latest when its
//! deadline has come.

use std::collections::VecDeque;

use super::{NEVER, Nanos};

/// A request that waits, told from later ones in the same slot by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// When.
    pub at: Nanos,
    /// Where it is.
    pub slot: u32,
    /// Which it is.
    pub number: u64,
}

/// The queues.
#[derive(Debug)]
pub struct Deadlines {
    /// By attempt, the first at 0: how long it waits, and who waits.
    queues: Vec<(Nanos, VecDeque<Waiting>)>,
}

impl Deadlines {
    /// Queues for attempts that wait this long.
    pub fn new(waits: impl Iterator<Item = Nanos>) -> Self {
        Self { queues: waits.map(|wait| (wait, VecDeque::new())).collect() }
    }

    /// How many attempts there are.
    pub fn attempts(&self) -> usize {
        self.queues.len()
    }

    /// Notes that attempt `attempt` of a request left at `now`, which never runs backwards.
    pub fn set(&mut self, attempt: usize, now: Nanos, slot: u32, number: u64) {
        let (wait, queue) = &mut self.queues[attempt];
        queue.push_back(Waiting { at: now.saturating_add(*wait), slot, number });
    }

    /// Takes one that is due, with its attempt. `is_alive` says whether a request still waits for that attempt.
    pub fn take(
        &mut self,
        now: Nanos,
        is_alive: impl Fn(&Waiting, usize) -> bool,
    ) -> Option<(Waiting, usize)> {
        for (attempt, (_, queue)) in self.queues.iter_mut().enumerate() {
            while let Some(front) = queue.front().copied() {
                let alive = is_alive(&front, attempt);
                if alive && now < front.at {
                    break;
                }
                queue.pop_front();
                if alive {
                    return Some((front, attempt));
                }
            }
        }
        None
    }

    /// When the next can be due at the earliest.
    pub fn next(&self) -> Nanos {
        let fronts = self.queues.iter().filter_map(|(_, queue)| queue.front());
        fronts.map(|waiting| waiting.at).min().unwrap_or(NEVER)
    }

    /// Entries in all queues.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.queues.iter().map(|(_, queue)| queue.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_come_in_order_and_those_of_answered_requests_do_not() {
        let mut deadlines = Deadlines::new([100, 200].into_iter());
        deadlines.set(0, 0, 1, 1);
        deadlines.set(0, 10, 2, 2);
        deadlines.set(1, 10, 3, 3);
        deadlines.set(0, 20, 4, 4);
        assert_eq!(deadlines.next(), 100);
        assert_eq!(deadlines.take(99, |_, _| true), None);
        let alive = |waiting: &Waiting, _: usize| waiting.number != 2;
        assert_eq!(deadlines.take(100, alive), Some((Waiting { at: 100, slot: 1, number: 1 }, 0)));
        assert_eq!(deadlines.take(119, alive), None, "the answered one at the front is dropped");
        assert_eq!((deadlines.len(), deadlines.next()), (2, 120));
        assert_eq!(deadlines.take(500, alive).unwrap().0.number, 4);
        assert_eq!(deadlines.take(500, alive), Some((Waiting { at: 210, slot: 3, number: 3 }, 1)));
        assert_eq!((deadlines.len(), deadlines.next()), (0, NEVER));
    }
}
