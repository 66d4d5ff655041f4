//! What all loads have in common: which requests are made, what is counted, and how a load is run.
//!
//! A load is warmed up, measured and drained as one stream, so that the server sees no pause between.

use std::io;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::codec::Kind;
use crate::values::Random;

/// Longest latency that is told apart.
const LATENCY_MAX: Duration = Duration::from_secs(10);

/// A load that goes on until it is told to stop.
pub trait Stream {
    /// Goes on for this long.
    ///
    /// # Errors
    /// As the system says; a server that has gone refuses.
    fn run(&mut self, duration: Duration) -> io::Result<()>;
    /// Waits for what is under way, without new requests; what does not come in time is lost.
    ///
    /// # Errors
    /// As [`Self::run`].
    fn drain(&mut self) -> io::Result<()>;
    /// What was counted.
    fn tally(&mut self) -> &mut Tally;
    /// The UDP ports of the load's sockets, for the kernel's table of them.
    fn local_ports(&self) -> Vec<u16>;
}

/// Which requests are made.
#[derive(Clone, Debug)]
pub enum Mix {
    /// Random keys; this many GETs of a hundred requests, the others PUTs.
    Random {
        /// Number of keys.
        keys: u32,
        /// GETs of a hundred.
        get_percent: u32,
    },
    /// A PUT of every key, again until it is acknowledged.
    Fill {
        /// Number of keys.
        keys: u32,
        /// The first that has not been sent.
        next: u32,
        /// Those that were lost.
        again: Vec<u32>,
        /// How often something was lost.
        losses: usize,
    },
}

impl Mix {
    /// A PUT of each of this many keys.
    pub fn fill(keys: u32) -> Self {
        Self::Fill { keys, next: 0, again: Vec::new(), losses: 0 }
    }

    /// The next request; `None` when all keys have been put, or only wait for their replies.
    pub fn draw(&mut self, random: &mut Random) -> Option<(Kind, u32)> {
        match self {
            Self::Random { keys, get_percent } => {
                let word = random.next();
                let is_get = (word & 0xffff_ffff) * 100 < u64::from(*get_percent) << 32;
                let key = ((word >> 32) * u64::from(*keys)) >> 32;
                Some((if is_get { Kind::Get } else { Kind::Put }, key as u32))
            }
            Self::Fill { keys, next, again, .. } => {
                let fresh = (*next < *keys).then_some(*next);
                let key = again.pop().or_else(|| fresh.inspect(|_| *next += 1))?;
                Some((Kind::Put, key))
            }
        }
    }

    /// A filling must put this key again.
    pub fn on_lost(&mut self, key: u32) {
        if let Self::Fill { again, losses, .. } = self {
            *losses += 1;
            again.push(key);
        }
    }
}

/// What was counted, from the beginning of the measured time on.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Right answers.
    pub answered: u64,
    /// Requests sent.
    pub sent: u64,
    /// Requests that were not answered in time.
    pub lost: u64,
    /// Answers with a wrong status, length or value.
    pub wrong: u64,
    /// Answers that said "overloaded".
    pub refused: u64,
    /// Datagrams that belonged to no open request: late or doubled.
    pub stray: u64,
    /// Nanoseconds from when a request was sent, or due, to its right answer.
    pub latency: Histogram<u64>,
    /// Nanoseconds from when a request was due to when it was sent; open loads only.
    pub lateness: Histogram<u64>,
    /// Time in which a load that does not sleep had nothing to do.
    pub idle: Duration,
    /// Smallest receive buffer of the load's UDP sockets.
    pub receive_buffer_bytes: usize,
}

impl Tally {
    /// Nothing counted.
    pub fn new() -> Self {
        let histogram = || {
            let limit = LATENCY_MAX.as_nanos() as u64;
            Histogram::new_with_bounds(1, limit, 3).expect("these bounds are legal")
        };
        Self {
            answered: 0,
            sent: 0,
            lost: 0,
            wrong: 0,
            refused: 0,
            stray: 0,
            latency: histogram(),
            lateness: histogram(),
            idle: Duration::ZERO,
            receive_buffer_bytes: usize::MAX,
        }
    }

    /// Forgets what was counted; what is under way stays.
    pub fn begin_measuring(&mut self) {
        *self = Self { receive_buffer_bytes: self.receive_buffer_bytes, ..Self::new() };
    }

    /// Counts a right answer.
    pub fn answer(&mut self, nanos: u64) {
        self.answered += 1;
        self.latency.saturating_record(nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_keep_the_share_and_reach_all_keys() {
        let mut random = Random::new(1);
        for (get_percent, expected) in [(50, 450..550), (95, 930..970), (100, 1_000..1_001), (0, 0..1)] {
            let mut mix = Mix::Random { keys: 10, get_percent };
            let drawn: Vec<_> = (0..1_000).map(|_| mix.draw(&mut random).unwrap()).collect();
            let gets = drawn.iter().filter(|(kind, _)| *kind == Kind::Get).count();
            assert!(expected.contains(&gets), "{get_percent}: {gets}");
            assert!((0..10).all(|key| drawn.iter().any(|&(_, drawn)| drawn == key)));
        }
    }

    #[test]
    fn a_filling_puts_every_key_and_the_lost_ones_again() {
        let mut random = Random::new(1);
        let mut mix = Mix::fill(3);
        assert_eq!(mix.draw(&mut random), Some((Kind::Put, 0)));
        mix.on_lost(0);
        let rest: Vec<_> = std::iter::from_fn(|| mix.draw(&mut random)).map(|(_, key)| key).collect();
        assert_eq!(rest, [0, 1, 2]);
    }
}
