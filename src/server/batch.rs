//! Receive batches: the memory that datagrams are received into, and the pool they come from.
//!
//! A [`Batch`] holds a fixed number of slots, each large enough for every datagram that UDP can carry.
//! The listener fills one, a job carries it to a worker, and dropping the [`PooledBatch`] brings it
//! home: who holds the batch owns its bytes, so no datagram can be overwritten while it is worked on.
//! The pool never grows. Its memory is mapped at once and touched lazily, so a slot costs no more than
//! the largest datagram it ever held; it does not come from the allocator, which would write zeros
//! into all of it.

use crate::outbox::Datagram;
use crate::time::Instant;
use memmap2::MmapMut;
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Bytes of a slot: more than the longest datagram (65,507 over IPv4, 65,527 over IPv6), so that
/// nothing legal is ever cut.
pub const SLOT_BYTES: usize = 65_536;

/// Slots start this much further apart than they are long. At a distance of exactly 65,536 bytes the
/// first lines of all datagrams of a batch would share one set of the processor's caches.
const STAGGER_BYTES: usize = 320;

/// What is known of one received datagram besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) from: SocketAddr,
    pub(super) received_at: Instant,
    /// Which slot its bytes are in.
    pub(super) slot: usize,
    /// Where in the slot they begin: several datagrams of one sender can arrive as one.
    pub(super) offset: usize,
    pub(super) bytes: usize,
    /// It was longer than the slot; what is in the slot is not the whole datagram.
    pub(super) truncated: bool,
}

/// Some datagrams received in one call.
#[derive(Debug)]
pub struct Batch {
    memory: MmapMut,
    slot_bytes: usize,
    slots: usize,
    received: Vec<Received>,
}

impl Batch {
    /// An empty batch of `slots` slots, each of `slot_bytes`.
    ///
    /// # Errors
    /// When the system has no memory to map.
    pub fn new(slots: usize, slot_bytes: usize) -> io::Result<Self> {
        let memory = MmapMut::map_anon(slots * (slot_bytes + STAGGER_BYTES))?;
        // One large page would make all slots resident at the first touch. A kernel without large
        // pages refuses the advice, which is just as well.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::NoHugePage);
        Ok(Self { memory, slot_bytes, slots, received: Vec::with_capacity(slots) })
    }

    /// Most receptions that it can hold; each is one datagram, or several that arrived as one.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Datagrams that it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.received.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.received.is_empty()
    }

    /// Forgets the datagrams.
    pub fn clear(&mut self) {
        self.received.clear();
    }

    /// The datagrams, in the order of their arrival.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        self.received.iter().map(|received| datagram(&self.memory, self.slot_bytes, received))
    }

    /// Keeps the datagrams for which `keep` says so; it is also told whether the datagram was cut.
    pub fn retain(&mut self, mut keep: impl FnMut(&Datagram<'_>, bool) -> bool) {
        let Self { memory, slot_bytes, received, .. } = self;
        received.retain(|one| keep(&datagram(memory, *slot_bytes, one), one.truncated));
    }

    /// The memory of one slot.
    pub(super) fn slot_mut(&mut self, slot: usize) -> &mut [u8] {
        let start = slot_start(self.slot_bytes, slot);
        &mut self.memory[start..start + self.slot_bytes]
    }

    /// Adds what was received into a slot.
    pub(super) fn push(&mut self, received: Received) {
        assert!(
            received.slot < self.slots && received.offset + received.bytes <= self.slot_bytes,
            "a datagram ends in its slot"
        );
        self.received.push(received);
    }
}

fn slot_start(slot_bytes: usize, slot: usize) -> usize {
    slot * (slot_bytes + STAGGER_BYTES)
}

fn datagram<'a>(memory: &'a [u8], slot_bytes: usize, received: &Received) -> Datagram<'a> {
    let start = slot_start(slot_bytes, received.slot) + received.offset;
    let bytes = &memory[start..start + received.bytes];
    Datagram { from: received.from, received_at: received.received_at, bytes }
}

/// A fixed set of batches. The one that came home last leaves first: its memory is still in the
/// processor's caches, and batches that the load does not need are never touched.
#[derive(Clone, Debug)]
pub struct BatchPool {
    idle: Arc<Mutex<Vec<Batch>>>,
}

impl BatchPool {
    /// A pool of `batches` batches of `slots` slots each, each slot of `slot_bytes`.
    ///
    /// # Errors
    /// When the system has no memory to map.
    pub fn new(batches: usize, slots: usize, slot_bytes: usize) -> io::Result<Self> {
        let idle = (0..batches).map(|_| Batch::new(slots, slot_bytes)).collect::<io::Result<_>>()?;
        Ok(Self { idle: Arc::new(Mutex::new(idle)) })
    }

    /// An empty batch; `None` when all are in use.
    #[must_use]
    pub fn take(&self) -> Option<PooledBatch> {
        let batch = self.idle.lock().pop()?;
        Some(PooledBatch { batch: Some(batch), home: self.clone() })
    }

    /// Batches that are not in use.
    #[cfg(test)]
    pub fn idle(&self) -> usize {
        self.idle.lock().len()
    }
}

/// A batch that returns to its pool when it is dropped.
#[derive(Debug)]
pub struct PooledBatch {
    /// Empty only while it is being dropped.
    batch: Option<Batch>,
    home: BatchPool,
}

const HELD: &str = "only drop takes the batch out";

impl Deref for PooledBatch {
    type Target = Batch;
    fn deref(&self) -> &Batch {
        self.batch.as_ref().expect(HELD)
    }
}

impl DerefMut for PooledBatch {
    fn deref_mut(&mut self) -> &mut Batch {
        self.batch.as_mut().expect(HELD)
    }
}

impl Drop for PooledBatch {
    fn drop(&mut self) {
        let Some(mut batch) = self.batch.take() else { return };
        batch.clear();
        self.home.idle.lock().push(batch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn fill(batch: &mut Batch, texts: &[&str]) {
        for (slot, text) in texts.iter().enumerate() {
            batch.slot_mut(slot)[..text.len()].copy_from_slice(text.as_bytes());
            batch.push(Received {
                from: (Ipv4Addr::LOCALHOST, 1).into(),
                received_at: Instant::ZERO,
                slot,
                offset: 0,
                bytes: text.len(),
                truncated: text.len() == 5,
            });
        }
    }

    fn texts(batch: &Batch) -> Vec<String> {
        batch.datagrams().map(|datagram| String::from_utf8_lossy(datagram.bytes).into_owned()).collect()
    }

    #[test]
    fn a_batch_keeps_its_datagrams_apart_and_lets_some_go() {
        let mut batch = Batch::new(4, 8).expect("memory");
        fill(&mut batch, &["12345678", "", "abcde", "xyz"]);
        assert_eq!(texts(&batch), ["12345678", "", "abcde", "xyz"]);
        batch.retain(|datagram, truncated| !truncated && !datagram.bytes.is_empty());
        assert_eq!(texts(&batch), ["12345678", "xyz"]);
    }

    #[test]
    fn datagrams_that_arrived_as_one_are_told_apart() {
        let mut batch = Batch::new(2, 8).expect("memory");
        batch.slot_mut(1).copy_from_slice(b"abcdefgh");
        for (offset, bytes) in [(0, 3), (3, 3), (6, 2)] {
            let from = (Ipv4Addr::LOCALHOST, 1).into();
            let (received_at, truncated) = (Instant::ZERO, false);
            batch.push(Received { from, received_at, slot: 1, offset, bytes, truncated });
        }
        assert_eq!(texts(&batch), ["abc", "def", "gh"]);
    }

    #[test]
    fn the_pool_is_bounded_and_batches_come_home_empty() {
        let pool = BatchPool::new(2, 3, 8).expect("memory");
        let mut first = pool.take().expect("two are idle");
        let second = pool.take().expect("one is idle");
        assert!(pool.take().is_none());
        fill(&mut first, &["a", "b"]);
        drop((first, second));
        assert_eq!(pool.idle(), 2);
        let again = pool.take().expect("both are idle");
        assert!(again.is_empty() && again.slots() == 3);
    }
}
