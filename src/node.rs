//! The data plane: the entry point of workers (interface only, for now).

use crate::config::Config;
use crate::metrics::Metrics;
use crate::outbox::{Datagram, Outbox};
use crate::time::Instant;
use std::sync::Arc;

/// This process's data plane.
#[derive(Debug)]
pub struct Node {
    metrics: Arc<Metrics>,
}

impl Node {
    /// A node.
    #[must_use]
    pub fn new(_config: &Config, _birth: Birth, metrics: Arc<Metrics>) -> Self {
        Self { metrics }
    }

    /// Handles one datagram of the client or peer lane to completion; never blocks.
    pub fn handle(&self, _now: Instant, _datagram: &Datagram<'_>, _outbox: &mut Outbox) {}

    /// Works off what is due; called by the listener when `next_deadline` has come.
    pub fn tick(&self, _now: Instant, _outbox: &mut Outbox) {}

    /// When `tick` should be called next, at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        Instant::FAR
    }

    /// The counts.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Counters and ledger as JSON, as the STATS command returns them.
    #[must_use]
    pub fn stats_json(&self) -> String {
        String::new()
    }
}

/// What a process is born with.
#[derive(Clone, Debug)]
pub struct Birth {
    /// Moment of the start.
    pub now: Instant,
    /// The operating system's process id.
    pub pid: u32,
    /// Random seed.
    pub seed: u64,
    /// The cluster's key, if there is one.
    pub cluster_key: [u8; 32],
    /// The first member list (addresses), this node's own included or not.
    pub members: Vec<std::net::SocketAddr>,
}
