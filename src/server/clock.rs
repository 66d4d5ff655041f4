//! The one clock of a process: the wall clock at its start plus steady time since then.
//!
//! So the core's [`Instant`] never runs backwards, whatever is done to the wall clock later, and is
//! still roughly the same on all members.

use crate::time::Instant;
use std::time::{Instant as SteadyInstant, SystemTime, UNIX_EPOCH};

/// Yields the `now` that is handed to the core.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: SteadyInstant,
    wall_at_start_nanos: u64,
}

impl Clock {
    /// Reads both clocks once.
    #[must_use]
    pub fn start() -> Self {
        Self { started: SteadyInstant::now(), wall_at_start_nanos: wall_nanos() }
    }

    /// The present moment.
    #[must_use]
    pub fn now(&self) -> Instant {
        let elapsed = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(self.wall_at_start_nanos.saturating_add(elapsed))
    }
}

/// The wall clock, in nanoseconds since the epoch: what the kernel stamps datagrams with. It may jump,
/// so only ages are taken from it.
pub(super) fn wall_nanos() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}
