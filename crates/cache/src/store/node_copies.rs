//! Counts of what happened to the copies of the index's nodes.

use std::cell::Cell;

/// Counts since the cache was opened.
#[derive(Default)]
pub(crate) struct NodeCopies {
    bad: Cell<u64>,
    healed: Cell<u64>,
    moved: Cell<u64>,
}

impl NodeCopies {
    /// A copy was bad. Returns how many were.
    pub fn note_bad(&self) -> u64 {
        self.bad.set(self.bad.get() + 1);
        self.bad.get()
    }

    /// A copy is well again.
    pub fn note_healed(&self) {
        self.healed.set(self.healed.get() + 1);
    }

    /// Nodes or pages could not be written where they were to stand, and stand elsewhere.
    pub fn note_moved(&self, n: u64) {
        self.moved.set(self.moved.get() + n);
    }

    /// Copies that were bad, and those of them that were written again and are well.
    pub fn bad_and_healed(&self) -> (u64, u64) {
        (self.bad.get(), self.healed.get())
    }

    /// Nodes and pages that stand elsewhere, as they could not be written in their place.
    pub fn moved(&self) -> u64 {
        self.moved.get()
    }
}
