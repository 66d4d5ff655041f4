//! The control plane (interface only, for now).

use crate::config::Config;
use crate::node::{Birth, Node};
use crate::outbox::{Datagram, Outbox};
use crate::time::Instant;
use std::sync::Arc;

/// This process's control plane.
#[derive(Debug)]
pub struct Control {}

impl Control {
    /// The control plane of `node`.
    #[must_use]
    pub fn new(_config: &Config, _birth: &Birth, _node: Arc<Node>) -> Self {
        Self {}
    }

    /// Handles one datagram of the gossip lane.
    pub fn handle(&mut self, _now: Instant, _datagram: &Datagram<'_>, _outbox: &mut Outbox) {}

    /// Works off what is due. Call *after* all waiting datagrams were handled.
    pub fn tick(&mut self, _now: Instant, _outbox: &mut Outbox) {}

    /// When `tick` should be called next, at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        Instant::FAR
    }

    /// Leaves the cluster: call `tick` until it returns `true`, at most for a second.
    pub fn leave(&mut self, _now: Instant, _outbox: &mut Outbox) {}
}
