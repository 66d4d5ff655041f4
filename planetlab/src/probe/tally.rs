//! What an agent remembers of one other agent while it measures, and the account that comes of it.

use std::net::SocketAddr;
use std::time::Duration;

use super::record::{Exchange, Link, RoundTrip};

/// Packets of one size to one peer.
#[derive(Debug, Default)]
pub struct Asked {
    sent: u64,
    /// By sequence number: the round trip, once there is one.
    answers: Vec<Option<Duration>>,
    duplicates: u64,
    received: u64,
}

/// Everything about one peer.
#[derive(Debug, Default)]
pub struct PeerTally {
    /// Small packets.
    pub small: Asked,
    /// Large ones.
    pub large: Asked,
    is_heard: bool,
    seen_as: Option<SocketAddr>,
    /// The shortest round trip so far and what it says about the peer's clock, in nanoseconds ahead of ours.
    clock: Option<(Duration, f64)>,
}

impl Asked {
    /// The sequence number of the next packet.
    pub fn next_sequence(&mut self) -> u32 {
        self.answers.push(None);
        u32::try_from(self.answers.len() - 1).expect("rates and times are limited, so packets are few")
    }

    /// Takes back the last sequence number: its packet could not leave.
    pub fn take_back(&mut self) {
        self.answers.pop();
    }

    /// Notes that the packet with the last sequence number left.
    pub fn on_sent(&mut self) {
        self.sent += 1;
    }

    /// Notes a packet that the peer sent of itself.
    pub fn on_asked(&mut self) {
        self.received += 1;
    }

    /// Notes an answer; whether it is the first to a packet that was sent.
    pub fn on_answer(&mut self, sequence: u32, round_trip: Duration) -> bool {
        match self.answers.get_mut(sequence as usize) {
            None => false,
            Some(Some(_)) => {
                self.duplicates += 1;
                false
            }
            Some(place) => {
                *place = Some(round_trip);
                true
            }
        }
    }

    fn exchange(&self) -> Exchange {
        let in_order: Vec<f64> = self.answers.iter().flatten().map(|took| took.as_secs_f64() * 1e3).collect();
        Exchange {
            sent: self.sent,
            answered: in_order.len() as u64,
            duplicates: self.duplicates,
            received: self.received,
            round_trip: round_trip(&in_order),
        }
    }
}

impl PeerTally {
    /// Notes that something came from the peer, whose address in the plan is `planned`.
    pub fn on_heard(&mut self, from: SocketAddr, planned: SocketAddr) {
        self.is_heard = true;
        if from != planned {
            self.seen_as = Some(from);
        }
    }

    /// Whether anything came from it.
    pub fn is_heard(&self) -> bool {
        self.is_heard
    }

    /// Notes the four clocks of an exchange, in nanoseconds from 1970.
    pub fn on_clocks(&mut self, round_trip: Duration, asked: u64, came: u64, left: u64, back: u64) {
        if self.clock.is_some_and(|(shortest, _)| shortest <= round_trip) {
            return;
        }
        let ahead_there = came as f64 - asked as f64;
        let ahead_back = left as f64 - back as f64;
        self.clock = Some((round_trip, (ahead_there + ahead_back) / 2.0));
    }

    /// The account.
    pub fn link(&self, peer: u16) -> Link {
        Link {
            peer,
            is_heard: self.is_heard,
            seen_as: self.seen_as,
            small: self.small.exchange(),
            large: self.large.exchange(),
            clock_ahead_ms: self.clock.map(|(_, nanoseconds)| nanoseconds / 1e6),
        }
    }
}

/// The percentiles of round trips that stand in the order in which they were asked for.
fn round_trip(in_order: &[f64]) -> Option<RoundTrip> {
    let mut sorted = in_order.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share).round() as usize];
    let steps = in_order.windows(2).map(|pair| (pair[1] - pair[0]).abs());
    (!sorted.is_empty()).then(|| RoundTrip {
        min_ms: at(0.0),
        p50_ms: at(0.5),
        p95_ms: at(0.95),
        max_ms: at(1.0),
        jitter_ms: steps.sum::<f64>() / (in_order.len() - 1).max(1) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn answers_are_counted_once_and_strangers_not_at_all() {
        let mut asked = Asked::default();
        for _ in 0..3 {
            asked.next_sequence();
            asked.on_sent();
        }
        assert!(asked.on_answer(0, ms(10)));
        assert!(!asked.on_answer(0, ms(90)));
        assert!(asked.on_answer(2, ms(14)));
        assert!(!asked.on_answer(3, ms(1)));
        let exchange = asked.exchange();
        assert_eq!((exchange.sent, exchange.answered, exchange.duplicates), (3, 2, 1));
        let expected = RoundTrip { min_ms: 10.0, p50_ms: 14.0, p95_ms: 14.0, max_ms: 14.0, jitter_ms: 4.0 };
        assert_eq!(exchange.round_trip, Some(expected));
        assert!((exchange.loss().unwrap() - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(Asked::default().exchange().round_trip, None);
    }

    #[test]
    fn the_shortest_exchange_tells_the_clock() {
        let mut tally = PeerTally::default();
        // The peer is 5 ms ahead; 10 ms each way, then 10 there and 40 back.
        tally.on_clocks(ms(20), 0, 15_000_000, 15_000_000, 20_000_000);
        tally.on_clocks(ms(50), 0, 15_000_000, 15_000_000, 50_000_000);
        assert_eq!(tally.link(1).clock_ahead_ms, Some(5.0));
    }
}
