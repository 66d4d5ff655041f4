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
/// Direct reads remembered, to notice a repeat of one; a power of two.
const READS: usize = 8_192;

/// The clients that need their front end, and the reads whose repeat would show another.
#[derive(Debug)]
pub struct Clients {
    known: AtomicUsize,
    /// A leaf lock.
    needing_proxy: Mutex<BTreeMap<IpAddr, Instant>>,
    /// Digests of reads that another member answered; a newer one takes an older one's place.
    direct_reads: Vec<AtomicU64>,
}

impl Default for Clients {
    fn default() -> Self {
        Self {
            known: AtomicUsize::new(0),
            needing_proxy: Mutex::default(),
            direct_reads: (0..READS).map(|_| AtomicU64::new(0)).collect(),
        }
    }
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
        self.direct_reads[digest as usize % READS].store(digest, Ordering::Relaxed);
    }

    /// Whether another member answered a read with this digest lately.
    #[must_use]
    pub fn is_repeated_read(&self, digest: u64) -> bool {
        self.direct_reads[digest as usize % READS].load(Ordering::Relaxed) == digest
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
        assert!(clients.is_repeated_read(5) && !clients.is_repeated_read(5 + READS as u64));
    }
}
