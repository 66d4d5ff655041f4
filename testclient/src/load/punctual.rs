//! Timers that fire when they should, and the processor time that a thread has really worked.

use std::time::Duration;

use super::Nanos;

/// Lets this thread's timers fire when they should, where the system knows of such a thing.
pub fn be_punctual() {
    #[cfg(target_os = "linux")]
    if let Some(slack) = std::num::NonZeroU64::new(1) {
        // Without it the thread is some tens of microseconds later, which its lateness tells.
        let _ = rustix::thread::set_current_timer_slack(Some(slack));
    }
}

/// Processor time of this thread from the start on, without turns in which it only looked at the clock.
#[derive(Debug, Default)]
pub struct ProcessorTime {
    started: Option<Duration>,
    idle_nanos: Nanos,
}

impl ProcessorTime {
    /// Whether it counts.
    pub fn is_started(&self) -> bool {
        self.started.is_some()
    }

    /// Counts from now on.
    pub fn start(&mut self) {
        *self = Self { started: Some(thread_time()), idle_nanos: 0 };
    }

    /// So long this thread only looked at the clock.
    pub fn idle(&mut self, nanos: Nanos) {
        self.idle_nanos += nanos;
    }

    /// Processor time that was used, but for that.
    pub fn busy(&self) -> Duration {
        let used = self.started.map_or(Duration::ZERO, |started| thread_time().saturating_sub(started));
        used.saturating_sub(Duration::from_nanos(self.idle_nanos))
    }
}

fn thread_time() -> Duration {
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    }
    #[cfg(not(target_os = "linux"))]
    Duration::ZERO
}
