//! What is being done to the servers, told while it is done.
//!
//! One thread treats servers badly and notes each deed here as it begins, another shows the load that goes on meanwhile
//! and reads it. What came of the deeds stands in the result's events when all is over.

use std::sync::{Arc, Mutex, PoisonError};

/// Deeds of one drill, in order; clones are the same list.
#[derive(Clone, Debug, Default)]
pub struct Happenings(Arc<Mutex<Vec<String>>>);

impl Happenings {
    /// Tells one more.
    pub fn tell(&self, text: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    /// All so far.
    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
