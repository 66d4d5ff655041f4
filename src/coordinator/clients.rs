//! What is remembered of clients: who cannot take a reply from another address than it asked.
//!
//! Connected sockets and address translators drop such replies. Nobody can tell beforehand; a client
//! that repeats a request which was already answered directly has shown it. Such clients are
//! remembered by IP address for a while and answered through their front end.

use crate::time::{Duration, Instant};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// How long a client is answered through the front end before a direct reply is tried again.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// Most clients remembered; beyond that a client pays one repeat more.
const CLIENTS_MAX: usize = 4_096;
/// Requests that others answer, remembered to notice a repeat.
const REQUESTS: usize = 8_192;

/// Digests of requests; a newer one takes an older one's place.
#[derive(Debug)]
struct Recent(Vec<AtomicU64>);

impl Recent {
    fn note(&self, digest: u64) {
        self.0[digest as usize % REQUESTS].store(digest, Ordering::Relaxed);
    }

    fn contains(&self, digest: u64) -> bool {
        self.0[digest as usize % REQUESTS].load(Ordering::Relaxed) == digest
    }
}

impl Default for Recent {
    fn default() -> Self {
        Self((0..REQUESTS).map(|_| AtomicU64::new(0)).collect())
    }
}

/// The clients that need their front end, and the requests whose repeat would show another.
#[derive(Debug, Default)]
pub struct Clients {
    known: AtomicUsize,
    /// A leaf lock.
    needing_proxy: Mutex<BTreeMap<IpAddr, Instant>>,
    /// Reads that another member answered.
    direct_reads: Recent,
    /// Mutations that were passed on to their coordinator.
    forwarded: Recent,
}

impl Clients {
    /// Remembers a client.
    pub fn remember(&self, now: Instant, client: IpAddr) {
        let mut clients = self.needing_proxy.lock();
        if clients.len() == CLIENTS_MAX {
            clients.retain(|_, until| now < *until);
        }
        if clients.len() < CLIENTS_MAX {
            clients.insert(client, now + REMEMBERED_FOR);
        }
        self.known.store(clients.len(), Ordering::Relaxed);
    }

    /// Whether a client is to be answered through its front end.
    #[must_use]
    pub fn needs_proxy(&self, now: Instant, client: IpAddr) -> bool {
        if self.known.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.needing_proxy.lock().get(&client).is_some_and(|until| now < *until)
    }

    /// Notes that another member answers the read with this digest.
    pub fn note_direct_read(&self, digest: u64) {
        self.direct_reads.note(digest);
    }

    /// Whether another member answered a read with this digest lately.
    #[must_use]
    pub fn is_repeated_read(&self, digest: u64) -> bool {
        self.direct_reads.contains(digest)
    }

    /// Notes that the mutation with this digest was passed on.
    pub fn note_forwarded(&self, digest: u64) {
        self.forwarded.note(digest);
    }

    /// Whether a mutation with this digest was passed on lately.
    #[must_use]
    pub fn is_forwarded(&self, digest: u64) -> bool {
        self.forwarded.contains(digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_remembered_for_a_while() {
        let clients = Clients::default();
        let client = IpAddr::from([127, 0, 0, 1]);
        let now = Instant::from_nanos(1);
        assert!(!clients.needs_proxy(now, client));
        clients.remember(now, client);
        assert!(clients.needs_proxy(now, client));
        assert!(!clients.needs_proxy(now, IpAddr::from([127, 0, 0, 2])));
        assert!(!clients.needs_proxy(now + REMEMBERED_FOR, client));
        clients.note_direct_read(5);
        assert!(clients.is_repeated_read(5) && !clients.is_repeated_read(5 + REQUESTS as u64));
    }
}
