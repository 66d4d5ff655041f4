//! When the tombstones of a partition were written, so that the old ones are found.
//!
//! A *grave* is the time and the block of a tombstone. They are kept per partition, in a heap with the
//! oldest on top, because tombstones of other members come in any order and because a partition's graves
//! all wait for the same two times: when the oldest may not be closed, none of the partition may, and it
//! stands in no other partition's way.
//! A tombstone that is overwritten leaves its grave in the heap, to be found void when it comes up. Lest
//! that add up where the wait is long, the heap is gone through when most of it must be void.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Void graves that are not worth the work of going through the heap.
const VOID_MAX: usize = 32;
/// Places of the heap per grave from which it is made smaller, and what it is then made for.
const SPARSE: usize = 8;
const SPARSE_AFTER: usize = 2;

/// Where a tombstone is, unless the grave is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Grave {
    /// The time of its version.
    pub(super) time: u64,
    /// Its block.
    pub(super) block: u32,
}

/// The graves of a partition that has tombstones.
#[derive(Debug, Default)]
pub(super) struct Graves {
    heap: BinaryHeap<Reverse<Grave>>,
    tombstones: usize,
}

impl Graves {
    /// Takes note of a tombstone.
    pub(super) fn open(&mut self, grave: Grave) {
        self.heap.push(Reverse(grave));
        self.tombstones += 1;
    }

    /// Takes note that a tombstone is gone, with or without its grave.
    pub(super) fn count_out(&mut self) {
        self.tombstones -= 1;
    }

    /// Tombstones that there are.
    pub(super) fn tombstones(&self) -> usize {
        self.tombstones
    }

    /// The time of the oldest grave.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(grave)| grave.time)
    }

    /// Takes the oldest grave out.
    pub(super) fn pop(&mut self) -> Option<Grave> {
        self.heap.pop().map(|Reverse(grave)| grave)
    }

    /// Gives back what is not needed any more.
    pub(super) fn shrink(&mut self, is_void: impl Fn(&Grave) -> bool) {
        if 2 * self.tombstones + VOID_MAX < self.heap.len() {
            let mut graves = std::mem::take(&mut self.heap).into_vec();
            graves.retain(|Reverse(grave)| !is_void(grave));
            // A tombstone that was undone and written anew in the same place has two.
            graves.sort_unstable();
            graves.dedup();
            self.heap = graves.into();
        }
        if SPARSE * self.heap.len() < self.heap.capacity() {
            self.heap.shrink_to(SPARSE_AFTER * self.heap.len());
        }
    }

    /// Bytes of all this.
    pub(super) fn held_bytes(&self) -> usize {
        size_of::<Self>() + self.heap.capacity() * size_of::<Reverse<Grave>>()
    }
}
