//! What is remembered of clients: who cannot take a reply from another address than it asked.
//!
//! Connected sockets and address translators drop such replies. Nobody can tell beforehand; a client
//! that repeats a request which was already answered directly has shown it, or it tests at-most-once,
//! or a datagram was lost. So the repeat itself is answered through the front end, and the client is
//! remembered (by IP address, for a while) when nearly all its requests come twice.

use crate::ids::RequestKey;
use crate::time::{Duration, Instant};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// How long a client is answered through the front end before a direct reply is tried again.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// Most clients remembered; beyond that a client pays one repeat a request.
const CLIENTS_MAX: usize = 4_096;
/// Requests that others answer, remembered to notice a repeat.
const REQUESTS: usize = 8_192;
/// Places for the counts of clients; those that share one are counted together.
const COUNTS: usize = 256;
/// How long requests and repeats are counted before the count starts again.
const COUNTED_FOR: Duration = Duration::from_secs(10);
/// A repeat that comes sooner is no sign of a client that waited in vain (the quickest wait 100 ms).
const REPEAT_AFTER_MIN: Duration = Duration::from_millis(80);
/// Repeats that it takes at least, so that a lost datagram or a test of at-most-once is not enough.
const REPEATS_MIN: u32 = 4;

/// Digests of requests and when they came; a newer one takes an older one's place.
#[derive(Debug)]
struct Recent(Vec<(AtomicU64, AtomicU64)>);

impl Recent {
    fn note(&self, now: Instant, digest: u64) {
        let (noted, at) = &self.0[digest as usize % REQUESTS];
        noted.store(digest, Ordering::Relaxed);
        at.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// How long ago it was noted last.
    fn age(&self, now: Instant, digest: u64) -> Option<Duration> {
        let (noted, at) = &self.0[digest as usize % REQUESTS];
        let is_it = noted.load(Ordering::Relaxed) == digest;
        is_it.then(|| now.since(Instant::from_nanos(at.load(Ordering::Relaxed))))
    }
}

impl Default for Recent {
    fn default() -> Self {
        Self((0..REQUESTS).map(|_| Default::default()).collect())
    }
}

/// One datagram of one socket: clients repeat from the socket that they asked from.
fn digest_of(request: RequestKey, from: SocketAddr) -> u64 {
    request.short().wrapping_add(u64::from(from.port()).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Requests of a client that others answer, and repeats of such.
#[derive(Debug, Default)]
struct Counts {
    since: AtomicU64,
    asked: AtomicU32,
    repeated: AtomicU32,
}

impl Counts {
    /// Starts again when the old counts are too old. Racing threads may lose a count.
    fn refresh(&self, now: Instant) {
        let since = Instant::from_nanos(self.since.load(Ordering::Relaxed));
        if COUNTED_FOR < now.since(since) {
            self.since.store(now.as_nanos(), Ordering::Relaxed);
            self.asked.store(0, Ordering::Relaxed);
            self.repeated.store(0, Ordering::Relaxed);
        }
    }
}

/// The clients that need their front end, and the requests whose repeat would show another.
#[derive(Debug)]
pub struct Clients {
    known: AtomicUsize,
    /// A leaf lock.
    needing_proxy: Mutex<BTreeMap<IpAddr, Instant>>,
    hasher: ahash::RandomState,
    counts: Vec<Counts>,
    /// Reads that another member answered.
    direct_reads: Recent,
    /// Mutations that were passed on to their coordinator.
    forwarded: Recent,
}

impl Clients {
    /// Nobody is known yet.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            known: AtomicUsize::new(0),
            needing_proxy: Mutex::default(),
            hasher: ahash::RandomState::with_seeds(seed, 10, 11, 12),
            counts: (0..COUNTS).map(|_| Counts::default()).collect(),
            direct_reads: Recent::default(),
            forwarded: Recent::default(),
        }
    }

    fn counts(&self, now: Instant, client: IpAddr) -> &Counts {
        let counts = &self.counts[self.hasher.hash_one(client) as usize % COUNTS];
        counts.refresh(now);
        counts
    }

    /// Notes a request that somebody else is going to answer.
    pub fn note_asked(&self, now: Instant, client: IpAddr) {
        self.counts(now, client).asked.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes a repeat of a request that was answered; the client is remembered when that is its habit.
    fn note_repeat(&self, now: Instant, client: IpAddr) {
        let counts = self.counts(now, client);
        let repeated = counts.repeated.fetch_add(1, Ordering::Relaxed) + 1;
        let asked = counts.asked.load(Ordering::Relaxed);
        if REPEATS_MIN <= repeated && asked / 4 * 3 <= repeated {
            self.remember(now, client);
        }
    }

    fn remember(&self, now: Instant, client: IpAddr) {
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

    /// Notes that another member answers this read.
    pub fn note_direct_read(&self, now: Instant, request: RequestKey, from: SocketAddr) {
        self.direct_reads.note(now, digest_of(request, from));
    }

    /// Whether another member answered this read lately, and the client waited in vain.
    #[must_use]
    pub fn is_repeated_read(&self, now: Instant, request: RequestKey, from: SocketAddr) -> bool {
        self.is_repeat(&self.direct_reads, now, request, from)
    }

    /// Notes that this mutation is passed on.
    pub fn note_forwarded(&self, now: Instant, request: RequestKey, from: SocketAddr) {
        self.forwarded.note(now, digest_of(request, from));
    }

    /// Whether this mutation was passed on lately, and the client waited in vain.
    #[must_use]
    pub fn is_forwarded(&self, now: Instant, request: RequestKey, from: SocketAddr) -> bool {
        self.is_repeat(&self.forwarded, now, request, from)
    }

    fn is_repeat(&self, recent: &Recent, now: Instant, request: RequestKey, from: SocketAddr) -> bool {
        let age = recent.age(now, digest_of(request, from));
        let is_repeat = age.is_some_and(|age| REPEAT_AFTER_MIN <= age);
        if is_repeat {
            self.note_repeat(now, from.ip());
        }
        is_repeat
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// Asks so often, repeats so many of them, and tells whether the client is remembered.
    fn check(clients: &Clients, now: Instant, asked: u32, repeated: u32) -> bool {
        for number in 0..asked {
            clients.note_asked(now, CLIENT);
            if number < repeated {
                clients.note_repeat(now, CLIENT);
            }
        }
        clients.needs_proxy(now, CLIENT)
    }

    #[test]
    fn who_repeats_everything_is_remembered_for_a_while() {
        let now = Instant::from_nanos(1 << 60);
        let clients = Clients::new(1);
        assert!(!check(&clients, now, 3, 3));
        assert!(check(&clients, now, 1, 1));
        assert!(!clients.needs_proxy(now, IpAddr::from([127, 0, 0, 2])));
        assert!(!clients.needs_proxy(now + REMEMBERED_FOR, CLIENT));
    }

    #[test]
    fn who_repeats_now_and_then_is_not() {
        let now = Instant::from_nanos(1 << 60);
        let clients = Clients::new(1);
        assert!(!check(&clients, now, 100, 0));
        assert!(!check(&clients, now, 50, 50));
        assert!(check(&clients, now + COUNTED_FOR * 2, 4, 4), "the old counts are forgotten");
    }

    #[test]
    fn a_repeat_comes_from_the_same_socket_after_a_while() {
        let now = Instant::from_nanos(1 << 60);
        let (request, from) = (RequestKey(5), SocketAddr::new(CLIENT, 1));
        let clients = Clients::new(1);
        clients.note_direct_read(now, request, from);
        clients.note_forwarded(now, RequestKey(6), from);
        assert!(!clients.is_repeated_read(now, request, from), "too soon");
        let later = now + REPEAT_AFTER_MIN;
        assert!(clients.is_repeated_read(later, request, from));
        assert!(!clients.is_repeated_read(later, request, SocketAddr::new(CLIENT, 2)));
        assert!(!clients.is_repeated_read(later, RequestKey(6), from));
        assert!(clients.is_forwarded(later, RequestKey(6), from));
    }
}
