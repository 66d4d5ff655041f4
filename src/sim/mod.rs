//! The simulator.

/// Bugs that can be planted in test builds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bugs {
    /// Repeats are executed again.
    pub no_dedup: bool,
    /// The first miss is the answer.
    pub first_miss_wins: bool,
    /// The client is told before the replicas have it.
    pub early_ack: bool,
}
