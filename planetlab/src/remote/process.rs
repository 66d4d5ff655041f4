//! One local process with pipes to it and a hard deadline.
//!
//! The deadline holds whatever the process does: three threads move the bytes, and the process is killed by its handle
//! when it has not ended in time. Threads are left behind, not joined, when somebody else still holds a pipe open.

use super::HostError;
use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Most bytes that are taken of each stream; the rest is read and dropped.
const STREAM_BYTES_MAX: u64 = 1 << 30;
/// How often a process that has closed its pipes is asked whether it has ended.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// How a process ended.
pub struct Ended {
    /// Its status; none when a signal ended it.
    pub status: Option<i32>,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

/// Runs a command to its end, or kills it at the deadline.
pub fn run(mut command: Command, stdin: &[u8], deadline: Duration) -> Result<Ended, HostError> {
    let begun = Instant::now();
    let input = if stdin.is_empty() { Stdio::null() } else { Stdio::piped() };
    command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| HostError::Here(format!("ssh: {error}")))?;
    if let Some(mut pipe) = child.stdin.take() {
        let bytes = stdin.to_vec();
        // Whoever does not read it all says so by other means.
        thread::spawn(move || drop(pipe.write_all(&bytes)));
    }
    let stdout = read(child.stdout.take().expect("it is piped"));
    let stderr = read(child.stderr.take().expect("it is piped"));
    let left = || deadline.saturating_sub(begun.elapsed());
    let outcome = stdout.recv_timeout(left()).ok().zip(stderr.recv_timeout(left()).ok());
    let Some((stdout, stderr)) = outcome else {
        return Err(end(&mut child, deadline));
    };
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Ended { status: status.code(), stdout, stderr }),
            Ok(None) if left().is_zero() => return Err(end(&mut child, deadline)),
            Ok(None) => thread::sleep(END_CHECK_INTERVAL),
            Err(error) => return Err(HostError::Here(format!("ssh: {error}"))),
        }
    }
}

/// Kills a process and takes its status, so that nothing is left of it.
fn end(child: &mut Child, deadline: Duration) -> HostError {
    // It may have ended by itself in between, which is as good.
    drop(child.kill());
    drop(child.wait());
    HostError::TimedOut(deadline)
}

/// Reads a stream to its end in a thread of its own.
fn read(stream: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut stream = stream;
        let mut bytes = Vec::new();
        // What was read before an error is all that there is.
        drop((&mut stream).take(STREAM_BYTES_MAX).read_to_end(&mut bytes));
        drop(io::copy(&mut stream, &mut io::sink()));
        drop(sender.send(bytes));
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn large_streams_pass_both_ways() {
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
        let ended = run(shell("cat; echo done >&2; exit 3"), &bytes, Duration::from_secs(60)).ok().unwrap();
        assert_eq!((ended.status, ended.stderr), (Some(3), b"done\n".to_vec()));
        assert!(ended.stdout == bytes);
    }

    #[test]
    fn a_process_that_hangs_is_ended_at_the_deadline() {
        let deadline = Duration::from_millis(100);
        let error = run(shell("exec sleep 1000"), b"", deadline).err().unwrap();
        assert_eq!(error, HostError::TimedOut(deadline));
        // One that closes its pipes and stays is ended as well.
        let error = run(shell("exec >&- 2>&-; exec sleep 1000"), b"", deadline).err().unwrap();
        assert_eq!(error, HostError::TimedOut(deadline));
    }
}
