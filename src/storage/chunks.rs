//! The memory of the engine, in chunks of one size.
//!
//! A chunk is mapped from the system and backed by large pages where the kernel has them: page walks
//! are most of what a lookup costs otherwise. It does not come from the allocator, whose large pages
//! would round every thread's small heap up by megabytes, and which would keep what a wipe-out frees.
//! A dropped chunk goes back to the system, and its bytes to the budget, at once.

use super::Budget;
use memmap2::MmapMut;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Bytes of a chunk: one large page of x86-64 and of most others.
pub const CHUNK_BYTES: usize = 2 * 1024 * 1024;

/// A piece of memory that a shard owns.
#[derive(Debug)]
pub struct Chunk {
    memory: MmapMut,
    budget: Arc<Budget>,
}

impl Deref for Chunk {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory
    }
}

impl DerefMut for Chunk {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.budget.give(CHUNK_BYTES);
    }
}

/// Where chunks come from.
#[derive(Debug)]
pub struct Chunks {
    budget: Arc<Budget>,
    /// Bytes of the budget that are left to others.
    leave_bytes: usize,
    large_pages: bool,
}

impl Chunks {
    /// Chunks may take all of `budget` but `leave_bytes`. Without `large_pages` a chunk takes only the
    /// memory that was written to.
    #[must_use]
    pub fn new(budget: Arc<Budget>, leave_bytes: usize, large_pages: bool) -> Self {
        Self { budget, leave_bytes, large_pages }
    }

    /// What the chunks are taken from.
    #[must_use]
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Most chunks that there can be.
    #[must_use]
    pub fn count_max(&self) -> usize {
        self.budget.limit_bytes().saturating_sub(self.leave_bytes) / CHUNK_BYTES
    }

    /// A chunk of zeros, if there is one.
    #[must_use]
    pub fn take(&self) -> Option<Chunk> {
        if !self.budget.take(CHUNK_BYTES, self.leave_bytes) {
            return None;
        }
        let Ok(memory) = MmapMut::map_anon(CHUNK_BYTES) else {
            self.budget.give(CHUNK_BYTES);
            return None;
        };
        // A kernel without large pages refuses the advice; then small ones serve.
        #[cfg(target_os = "linux")]
        if self.large_pages {
            let _ = memory.advise(memmap2::Advice::HugePage);
        }
        Some(Chunk { memory, budget: Arc::clone(&self.budget) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_leave_something_to_others_and_come_back() {
        let budget = Arc::new(Budget::new(4 * CHUNK_BYTES));
        let chunks = Chunks::new(Arc::clone(&budget), CHUNK_BYTES, true);
        let taken: Vec<Chunk> = std::iter::from_fn(|| chunks.take()).collect();
        assert_eq!((taken.len(), chunks.count_max()), (3, 3), "one is left to others");
        assert_eq!(budget.used_bytes(), 3 * CHUNK_BYTES);
        assert!(taken.iter().all(|chunk| chunk.len() == CHUNK_BYTES));
        drop(taken);
        assert_eq!(budget.used_bytes(), 0);
    }
}
