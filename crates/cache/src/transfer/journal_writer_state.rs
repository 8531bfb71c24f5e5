//! State that stays from one group commit to the next: whether one runs, and what the watermark on
//! the device says.

use std::cell::Cell;

use base::EntrySeq;

use crate::latch::{Latch, LatchGuard};

/// See the [module](self).
pub(crate) struct GroupCommits {
    running: Latch,
    /// The last entry that the watermark calls durable.
    watermark: Cell<EntrySeq>,
}

impl GroupCommits {
    /// No group commit runs, and all entries up to `newest` are known to be durable.
    pub fn new(newest: EntrySeq) -> GroupCommits {
        GroupCommits { running: Latch::default(), watermark: Cell::new(newest) }
    }

    /// Begins a group commit, unless one runs. It runs until the guard is dropped.
    pub fn begin(&self) -> Option<LatchGuard<'_>> {
        self.running.take()
    }

    /// Waits until the running group commit has ended.
    pub fn moved(&self) -> impl Future<Output = ()> + use<> {
        self.running.moved()
    }

    /// Wakes the tasks that wait for a group commit: the cache has failed.
    pub fn wake(&self) {
        self.running.tell();
    }

    /// The last entry that the watermark calls durable.
    pub fn watermark(&self) -> EntrySeq {
        self.watermark.get()
    }

    /// A watermark was written that calls this entry durable.
    pub fn note_watermark(&self, durable: EntrySeq) {
        self.watermark.set(durable);
    }
}
