//! Wakes the listener at a deadline.
//!
//! A time-out given to every poll costs a hardware timer set and cancelled for every sleep, and a busy
//! node sleeps a hundred thousand times a second. Its deadlines hardly ever come true: an operation
//! sets one and is over long before it. So on Linux a timer stands beside the sockets and is left
//! alone until it rings, unless an earlier deadline turns up; when it rings too early, the listener
//! sets it anew. Elsewhere the poll's time-out serves.

use crate::time::Instant;
use mio::{Registry, Token};
use std::io;
use std::time::Duration;

/// The token of the alarm.
pub(super) const ALARM: Token = Token(usize::MAX - 1);

/// The listener's alarm.
#[derive(Debug)]
pub(super) struct Alarm {
    #[cfg(target_os = "linux")]
    timer: std::os::fd::OwnedFd,
    /// When it will ring; `None` when it has.
    set_for: Option<Instant>,
}

#[cfg(target_os = "linux")]
impl Alarm {
    /// An alarm that is not set.
    ///
    /// # Errors
    /// When the system has no timer for us.
    pub(super) fn new(registry: &Registry) -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        use std::os::fd::AsRawFd;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        registry.register(&mut mio::unix::SourceFd(&timer.as_raw_fd()), ALARM, mio::Interest::READABLE)?;
        Ok(Self { timer, set_for: None })
    }

    /// Makes sure that a poll that begins now ends at `until` or earlier; returns its time-out.
    pub(super) fn set(&mut self, now: Instant, until: Instant) -> Option<Duration> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        if self.set_for.is_some_and(|moment| moment <= until) {
            return None;
        }
        // Zero would disarm it.
        let wait = until.since(now).max(Duration::from_nanos(1));
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec::try_from(wait).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let timer = Itimerspec { it_interval: none, it_value: value };
        match timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer) {
            Ok(_) => {
                self.set_for = Some(until);
                None
            }
            Err(_) => Some(wait),
        }
    }

    /// It has rung. Its count need not be read: each ring is told once.
    pub(super) fn rang(&mut self) {
        self.set_for = None;
    }
}

#[cfg(not(target_os = "linux"))]
impl Alarm {
    /// An alarm that is not set.
    ///
    /// # Errors
    /// None on this system.
    pub(super) fn new(_: &Registry) -> io::Result<Self> {
        Ok(Self { set_for: None })
    }

    /// Makes sure that a poll that begins now ends at `until` or earlier; returns its time-out.
    pub(super) fn set(&mut self, now: Instant, until: Instant) -> Option<Duration> {
        self.set_for = Some(until);
        Some(until.since(now))
    }

    /// It has rung.
    pub(super) fn rang(&mut self) {
        self.set_for = None;
    }
}
