//! The memory of the engine, in chunks of one size.
//!
//! A chunk is mapped from the system and backed by large pages where the kernel has them: page walks
//! are most of what a lookup costs otherwise. It does not come from the allocator, whose large pages
//! would round every thread's small heap up by megabytes. Once made, chunks are kept: what a wipe-out
//! frees serves the next values, and the budget stays charged for it.

use super::Budget;
use memmap2::MmapMut;
use parking_lot::Mutex;
use std::sync::Arc;

/// Bytes of a chunk: one large page of x86-64 and of most others.
pub const CHUNK_BYTES: usize = 2 * 1024 * 1024;

/// A piece of memory that a shard owns.
pub type Chunk = MmapMut;

/// All chunks that no shard owns, and the budget for more.
#[derive(Debug)]
pub struct Chunks {
    budget: Arc<Budget>,
    /// Bytes of the budget that are left to others.
    leave_bytes: usize,
    /// Chunks that a wipe-out freed. A leaf lock.
    idle: Mutex<Vec<Chunk>>,
}

impl Chunks {
    /// No chunks yet; they may take all of `budget` but `leave_bytes`.
    #[must_use]
    pub fn new(budget: Arc<Budget>, leave_bytes: usize) -> Self {
        Self { budget, leave_bytes, idle: Mutex::default() }
    }

    /// Most chunks that there can be.
    #[must_use]
    pub fn count_max(&self) -> usize {
        self.budget.limit_bytes().saturating_sub(self.leave_bytes) / CHUNK_BYTES
    }

    /// A chunk, if there is one.
    pub fn take(&self) -> Option<Chunk> {
        if let Some(chunk) = self.idle.lock().pop() {
            return Some(chunk);
        }
        if !self.budget.take(CHUNK_BYTES, self.leave_bytes) {
            return None;
        }
        let Ok(chunk) = MmapMut::map_anon(CHUNK_BYTES) else {
            self.budget.give(CHUNK_BYTES);
            return None;
        };
        // A kernel without large pages refuses the advice; then small ones serve.
        #[cfg(target_os = "linux")]
        let _ = chunk.advise(memmap2::Advice::HugePage);
        Some(chunk)
    }

    /// Takes chunks back.
    pub fn give(&self, chunks: Vec<Chunk>) {
        self.idle.lock().extend(chunks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_come_back_and_the_budget_holds() {
        let budget = Arc::new(Budget::new(4 * CHUNK_BYTES));
        let chunks = Chunks::new(Arc::clone(&budget), CHUNK_BYTES);
        let taken: Vec<Chunk> = std::iter::from_fn(|| chunks.take()).collect();
        assert_eq!((taken.len(), chunks.count_max()), (3, 3), "one is left to others");
        chunks.give(taken);
        assert_eq!(budget.used_bytes(), 3 * CHUNK_BYTES, "they are kept");
        let again: Vec<Chunk> = std::iter::from_fn(|| chunks.take()).collect();
        assert_eq!(again.len(), 3);
        assert!(again.iter().all(|chunk| chunk.len() == CHUNK_BYTES));
    }
}
