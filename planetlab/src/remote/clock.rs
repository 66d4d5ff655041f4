//! How far a host's clock is from this machine's, by asking for its time over a master connection that is there already.
//!
//! A script on the host answers each line with its time. Of several exchanges the one with the shortest round trip
//! counts, and the host's time is taken for that of the exchange's middle; so half of that round trip is the most by
//! which the result can be wrong.

use super::{Fleet, HostError, Output};
use crate::inventory::Host;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How many times a host is asked.
const EXCHANGES: usize = 8;
/// Answers a line with the time; `date +%s.%N` knows no nanoseconds everywhere, and then says "N".
const SCRIPT: &str = "while read -r line; do date +%s.%N; done";

/// How far a clock is from this machine's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockOffset {
    /// Seconds by which the host's clock is ahead of this machine's.
    pub ahead_seconds: f64,
    /// Shortest round trip of the exchanges; the offset is wrong by at most half of it.
    pub round_trip: Duration,
}

impl Fleet {
    /// Measures how far a host's clock is from this machine's.
    ///
    /// # Errors
    /// As [`Fleet::run`], and when the host's answers are no times.
    pub fn clock_offset(&self, host: &Host, deadline: Duration) -> Result<ClockOffset, HostError> {
        let mut command = self.command(host, SCRIPT);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| HostError::Here(format!("ssh: {error}")))?;
        let lines = lines(&mut child);
        let mut stdin = child.stdin.take().expect("it is piped");
        let measured = exchange(&mut stdin, &lines, deadline);
        drop(stdin);
        if let Ok(offset) = measured {
            // Its input is closed, so it is ending already.
            drop(child.kill());
            drop(child.wait());
            return Ok(offset);
        }
        if measured == Err(Trouble::TimedOut) {
            drop(child.kill());
        }
        let status = child.wait().ok().and_then(|status| status.code());
        let mut output = Output::default();
        if let Some(mut stderr) = child.stderr.take() {
            drop(stderr.read_to_end(&mut output.stderr));
        }
        Err(match measured {
            Err(Trouble::TimedOut) => HostError::TimedOut(deadline),
            Err(Trouble::NoTime(line)) => {
                HostError::Failed { status, last_line: format!("'date' answered '{line}', which is no time") }
            }
            Ok(_) | Err(Trouble::Ended) => HostError::of(status, &output),
        })
    }
}

#[derive(PartialEq)]
enum Trouble {
    TimedOut,
    Ended,
    NoTime(String),
}

/// Takes the lines of a process as they come.
fn lines(child: &mut Child) -> Receiver<(Instant, SystemTime, String)> {
    let stdout = child.stdout.take().expect("it is piped");
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            let Ok(line) = line else { return };
            if sender.send((Instant::now(), SystemTime::now(), line)).is_err() {
                return;
            }
        }
    });
    receiver
}

fn exchange(
    stdin: &mut ChildStdin,
    lines: &Receiver<(Instant, SystemTime, String)>,
    deadline: Duration,
) -> Result<ClockOffset, Trouble> {
    let begun = Instant::now();
    let mut best: Option<ClockOffset> = None;
    for _ in 0..EXCHANGES {
        let sent = Instant::now();
        stdin.write_all(b"\n").map_err(|_| Trouble::Ended)?;
        let left = deadline.saturating_sub(begun.elapsed());
        let (received, now, line) = lines.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => Trouble::TimedOut,
            RecvTimeoutError::Disconnected => Trouble::Ended,
        })?;
        let offset = offset(received - sent, now, &line).ok_or(Trouble::NoTime(line))?;
        if best.is_none_or(|best| offset.round_trip < best.round_trip) {
            best = Some(offset);
        }
    }
    best.ok_or(Trouble::Ended)
}

/// The offset by one exchange: `now` is when the answer came.
fn offset(round_trip: Duration, now: SystemTime, line: &str) -> Option<ClockOffset> {
    let theirs: f64 = line.trim().trim_end_matches(".N").parse().ok()?;
    let ours = now.duration_since(UNIX_EPOCH).ok()?.as_secs_f64() - round_trip.as_secs_f64() / 2.0;
    Some(ClockOffset { ahead_seconds: theirs - ours, round_trip })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_the_exchange_is_compared() {
        let now = UNIX_EPOCH + Duration::from_millis(1_000_500);
        let offset = |line| offset(Duration::from_secs(1), now, line).map(|offset| offset.ahead_seconds);
        assert_eq!(offset("1000.000000000"), Some(0.0));
        assert_eq!(offset("1007.500000000"), Some(7.5));
        assert_eq!(offset("998.N"), Some(-2.0));
        assert_eq!(offset("now"), None);
    }
}
