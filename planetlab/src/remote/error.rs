//! What is the matter with a host, from what ssh or a script said, in words for the person who has to mend it.

use super::{LOCKED_STATUS, Output};
use std::fmt;
use std::time::Duration;

/// Longest part of a script's last line that is shown.
const LINE_CHARS_MAX: usize = 300;
/// Status by which ssh says that it failed itself.
const SSH_FAILED_STATUS: i32 = 255;

/// Why something could not be done on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostError {
    /// No connection: it is down, refuses, or has no such name. With what ssh said.
    Dead(String),
    /// It does not let this user in with this key.
    WrongKey,
    /// Its own key is not known here.
    UnknownHostKey,
    /// Its own key is not the one that is known here.
    ChangedHostKey,
    /// It did not finish in time.
    TimedOut(Duration),
    /// There is no room on its disk.
    DiskFull,
    /// Somebody else is at work there; with who, when and what.
    Locked(String),
    /// A command did not succeed.
    Failed {
        /// Its status; none when a signal ended it.
        status: Option<i32>,
        /// The last line that it wrote to stderr, or else to stdout.
        last_line: String,
    },
    /// The host is not to blame: `ssh` could not be run here, or a value is wrong.
    Here(String),
}

impl HostError {
    /// Reads an error from how `ssh` ended and what it and the script printed.
    pub(super) fn of(status: Option<i32>, output: &Output) -> Self {
        let said = String::from_utf8_lossy(&output.stderr);
        let last_line = last_line(&said).or_else(|| last_line(&String::from_utf8_lossy(&output.stdout)));
        let last_line = last_line.unwrap_or_else(|| "it said nothing".into());
        if said.contains("No space left on device") || said.contains("Disk quota exceeded") {
            return Self::DiskFull;
        }
        match status {
            Some(SSH_FAILED_STATUS) => Self::of_ssh(&said, last_line),
            Some(LOCKED_STATUS) => Self::Locked(last_line),
            status => Self::Failed { status, last_line },
        }
    }

    fn of_ssh(said: &str, last_line: String) -> Self {
        if said.contains("REMOTE HOST IDENTIFICATION HAS CHANGED") {
            return Self::ChangedHostKey;
        }
        if said.contains("Host key verification failed") {
            return Self::UnknownHostKey;
        }
        if said.contains("Permission denied (") || said.contains("Too many authentication failures") {
            return Self::WrongKey;
        }
        Self::Dead(last_line)
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dead(said) => write!(f, "dead host: {said}"),
            Self::WrongKey => {
                f.write_str("wrong key: it does not let this user in; see user and identity in the inventory")
            }
            Self::UnknownHostKey => f.write_str(
                "unknown host key: log in once by hand, or give it ssh_options = [\"StrictHostKeyChecking=accept-new\"]",
            ),
            Self::ChangedHostKey => f.write_str(
                "changed host key: it is not the host that known_hosts knows; if that is right, 'ssh-keygen -R' forgets the old one",
            ),
            Self::TimedOut(after) => write!(f, "timed out: not done after {:.1} s", after.as_secs_f64()),
            Self::DiskFull => f.write_str("disk full: there is no room in its dir"),
            Self::Locked(holder) => write!(f, "locked by {holder}; --force takes it over"),
            Self::Failed { status: Some(127), last_line } => {
                write!(f, "command not found: {last_line}")
            }
            Self::Failed { status: Some(status), last_line } => write!(f, "command failed ({status}): {last_line}"),
            Self::Failed { status: None, last_line } => write!(f, "command ended by a signal: {last_line}"),
            Self::Here(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for HostError {}

/// The last line with something in it, cut to a length that fits into a message.
fn last_line(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    let plain = line.chars().filter(|c| !c.is_control());
    Some(plain.take(LINE_CHARS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: Option<i32>, stderr: &str) -> String {
        HostError::of(status, &Output { stdout: b"out\n".to_vec(), stderr: stderr.into() }).to_string()
    }

    #[test]
    fn what_ssh_says_becomes_what_a_person_can_mend() {
        let is = |stderr, begin: &str| {
            let said = check(Some(255), stderr);
            assert!(said.starts_with(begin), "{said}");
        };
        is(
            "ssh: connect to host h port 22: Connection refused\r\n",
            "dead host: ssh: connect to host h port 22: Connection refused",
        );
        is(
            "ssh: Could not resolve hostname h: Name or service not known",
            "dead host: ssh: Could not resolve",
        );
        is("me@h: Permission denied (publickey).\r\n", "wrong key");
        is("No ED25519 host key is known for h\r\nHost key verification failed.\r\n", "unknown host key");
        is(
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.\n",
            "changed host key",
        );
        is("tar: x: Cannot write: No space left on device\n", "disk full");
    }

    #[test]
    fn a_script_is_quoted_with_its_last_line() {
        assert_eq!(check(Some(2), "one\ntwo\u{7}\n\n"), "command failed (2): two");
        assert_eq!(check(Some(1), ""), "command failed (1): out");
        assert_eq!(check(None, "x"), "command ended by a signal: x");
        assert_eq!(
            check(Some(LOCKED_STATUS), "me since 4 (deploy)"),
            "locked by me since 4 (deploy); --force takes it over"
        );
        assert_eq!(
            check(Some(1), "sh: cannot create x: Disk quota exceeded"),
            "disk full: there is no room in its dir"
        );
    }
}
