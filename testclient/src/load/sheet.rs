//! What an engine hands in while it runs.

use super::Nanos;
use crate::result::Latency;

/// How often sheets are handed in, and signals looked at.
pub const SHEET: Nanos = 250_000_000;

/// What was seen since the last sheet: for the second-by-second account and for who watches.
#[derive(Debug)]
pub struct Sheet {
    /// Quarter of a second since requests count; those of the warm-up are left out.
    pub quarter: u64,
    /// Requests that began or fell due.
    pub offered: u64,
    /// Answers.
    pub answered: u64,
    /// Good ones.
    pub good: u64,
    /// Wrong ones.
    pub wrong: u64,
    /// Requests given up.
    pub timed_out: u64,
    /// Requests under way at its end.
    pub in_flight: usize,
    /// Corrected latencies of the answers.
    pub latency: Latency,
}

impl Sheet {
    /// Nothing seen.
    pub fn new(quarter: u64) -> Self {
        Self {
            quarter,
            offered: 0,
            answered: 0,
            good: 0,
            wrong: 0,
            timed_out: 0,
            in_flight: 0,
            latency: Latency::new(),
        }
    }
}
