//! Names of members, versions and requests.

use crate::time::Instant;
use std::fmt;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// A member's stable name: a hash of its advertised address, the same on every machine and after
/// every restart. Placement depends on it; what changes at a restart is the [`Generation`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

impl MemberId {
    /// The name of the member at this address.
    #[must_use]
    pub fn of(address: SocketAddr) -> Self {
        let hash = match address {
            SocketAddr::V4(address) => with_text_of(address, xxh3_64),
            SocketAddr::V6(address) => xxh3_64(address.to_string().as_bytes()),
        };
        Self(hash)
    }
}

/// An address as text, for `read`. The controller names every member at every tick; the standard
/// formatting took more than half of that.
fn with_text_of<R>(address: SocketAddrV4, read: impl FnOnce(&[u8]) -> R) -> R {
    const BYTES_MAX: usize = "255.255.255.255:65535".len();
    let mut text = [0; BYTES_MAX];
    let mut start = BYTES_MAX;
    let mut put = |byte: u8| {
        start -= 1;
        text[start] = byte;
    };
    let mut put_number = |mut number: u16, before: Option<u8>| {
        loop {
            put(b'0' + (number % 10) as u8);
            number /= 10;
            if number == 0 {
                break;
            }
        }
        before.into_iter().for_each(&mut put);
    };
    // From the back.
    let [a, b, c, d] = address.ip().octets().map(u16::from);
    put_number(address.port(), Some(b':'));
    put_number(d, Some(b'.'));
    put_number(c, Some(b'.'));
    put_number(b, Some(b'.'));
    put_number(a, None);
    read(&text[start..])
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{:04x}", self.0 >> 48)
    }
}

/// The name of a site: what fails together, as an operator sees it. Empty for a member that is on none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Site {
    /// Its text, and zeros behind it.
    bytes: [u8; Self::BYTES_MAX],
}

impl Site {
    /// Longest name.
    pub const BYTES_MAX: usize = 32;

    /// Reads a name: up to 32 bytes without blanks and control characters.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_bad = |character: char| character.is_whitespace() || character.is_control();
        if Self::BYTES_MAX < text.len() || text.contains(is_bad) {
            return None;
        }
        let mut bytes = [0; Self::BYTES_MAX];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Some(Self { bytes })
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let len = self.bytes.iter().position(|byte| *byte == 0).unwrap_or(Self::BYTES_MAX);
        std::str::from_utf8(&self.bytes[..len]).expect("it was made of a text without zeros")
    }

    /// Whether it is the name of a site.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.bytes[0] == 0
    }

    /// A number that stands for it, the same on every machine; 0 for none.
    #[must_use]
    pub fn number(&self) -> u64 {
        if self.is_none() { 0 } else { xxh3_64(self.as_str().as_bytes()).max(1) }
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which start of a member's process: milliseconds since the epoch, larger at every start.
pub type Generation = u64;

/// When a value was written: a hybrid logical clock (Kulkarni et al. 2014), here one number of
/// nanoseconds that never repeats on a node, and the writer, new at every start. The larger wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version {
    /// Nanoseconds since the epoch, pushed ahead of every version its writer has seen.
    pub time: u64,
    /// The process that assigned it; a random number drawn at its start.
    pub writer: u64,
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{:04x}", self.time, self.writer >> 48)
    }
}

/// Assigns versions: later than the clock, later than every version seen, never the same twice.
#[derive(Debug)]
pub struct HybridClock {
    last: AtomicU64,
    writer: u64,
    /// Planted: versions are counted from here on, whatever the time is.
    #[cfg(test)]
    counts: bool,
}

impl HybridClock {
    /// The clock of a process that just started; `writer` is new at every start.
    #[must_use]
    pub fn new(writer: u64) -> Self {
        Self {
            last: AtomicU64::new(0),
            writer,
            #[cfg(test)]
            counts: false,
        }
    }

    /// Planted: a clock that starts from the same moment, under the same name, at every start.
    #[cfg(test)]
    pub(crate) fn reused(from: u64, writer: u64) -> Self {
        Self { last: AtomicU64::new(from), writer, counts: true }
    }

    /// The next version.
    pub fn next(&self, now: Instant) -> Version {
        #[cfg(test)]
        let now = if self.counts { Instant::ZERO } else { now };
        let step = |last: u64| Some((last + 1).max(now.as_nanos()));
        let before = self.last.try_update(Ordering::Relaxed, Ordering::Relaxed, step);
        let before = before.expect("every step has a result");
        Version { time: (before + 1).max(now.as_nanos()), writer: self.writer }
    }

    /// Takes note of a time that someone else assigned.
    pub fn observe(&self, time: u64) {
        self.last.fetch_max(time, Ordering::Relaxed);
    }
}

/// What makes two datagrams the same request: the client's id *and* all other bytes. Real clients reuse
/// ids (some draw them from 16 bits), and repeats of one request are identical to the byte. A hash of
/// 128 bits over the whole datagram, the same on every machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey(pub u128);

impl RequestKey {
    /// The key of a request datagram.
    #[must_use]
    pub fn of(datagram: &[u8]) -> Self {
        Self(xxh3_128(datagram))
    }

    /// Half of the hash, for tables that may err.
    #[must_use]
    pub fn short(self) -> u64 {
        self.0 as u64
    }
}

impl fmt::Debug for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// An operation in progress at the node that drives it; unique in that process.
pub type Token = u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_named_after_its_address_as_text() {
        for text in [
            "0.0.0.0:0",
            "127.0.0.1:4410",
            "10.0.200.9:7",
            "255.255.255.255:65535",
            "100.20.3.0:10000",
            "[::1]:4410",
        ] {
            let address = text.parse().expect("an address");
            assert_eq!(MemberId::of(address), MemberId(xxh3_64(text.as_bytes())), "{text}");
        }
    }
}
