//! What scrubs found.

use std::cell::Cell;

/// What scrubs of a cache have found since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, serde::Serialize)]
pub struct CacheScrub {
    /// Times that it went over everything.
    pub completed: u64,
    /// Bytes verified.
    pub verified_bytes: u64,
    /// Clean extents with a bad block, which were dropped.
    pub dropped: u64,
    /// Dirty extents with a bad block, which are lost.
    pub lost: u64,
}

/// What scrubs have found, while more is found.
#[derive(Default)]
pub(crate) struct ScrubCounts(Cell<CacheScrub>);

impl ScrubCounts {
    /// What was found so far.
    pub fn found(&self) -> CacheScrub {
        self.0.get()
    }

    /// Counts what was found now.
    pub fn count(&self, count: impl FnOnce(&mut CacheScrub)) {
        let mut found = self.0.get();
        count(&mut found);
        self.0.set(found);
    }
}
