//! Passes of garbage collection: whether one runs, which tasks wait for one, and what they did.

use std::cell::{Cell, Ref, RefCell};

use base::{Histogram, Instant};
use rt::sync::{Permit, Semaphore};

use crate::policy::gc_pace::Runs;

/// Counts of what the passes of garbage collection over the index did.
#[derive(Clone, Default)]
pub(crate) struct GcStats {
    pub runs: Runs,
    pub slices: Histogram,
    pub dropped_keys: u64,
    /// Dead keys that the last pass met.
    pub dead_last: u64,
    /// Bytes of all keys and their values, as the last pass that came to its end found them.
    pub key_bytes: Option<u64>,
    /// Blocks named by the stale keys that the last pass left.
    pub ghosts: u64,
    pub merged_nodes: u64,
    pub moved_nodes: u64,
    pub moved_blocks: u64,
    /// Blocks that compaction has put together.
    pub compacted_blocks: u64,
    /// Buckets whose counter was not what the keys say.
    pub miscounted: u64,
}

impl GcStats {
    /// The number of changes in the index.
    pub fn changes(&self) -> u64 {
        self.dropped_keys + self.merged_nodes + self.moved_nodes
    }
}

/// The passes of garbage collection.
pub(crate) struct Collections {
    opened_at: Instant,
    /// Held by the pass that runs.
    running: Semaphore,
    /// Tasks that wait for a pass.
    awaited: Cell<u32>,
    /// Nodes are to be moved, as the buckets that they are in gave errors.
    called_for: Cell<bool>,
    /// The fewest buckets that nodes had since the last pass; `None` before the first.
    least_held: Cell<Option<u32>>,
    stats: RefCell<GcStats>,
}

/// A task waits for a pass: passes do not pause while this exists.
pub(crate) struct PassWait<'c>(&'c Collections);

impl Drop for PassWait<'_> {
    fn drop(&mut self) {
        self.0.awaited.set(self.0.awaited.get() - 1);
    }
}

impl Collections {
    /// The passes of a cache that is opened at `now`: none has run.
    pub fn new(now: Instant) -> Collections {
        Collections {
            opened_at: now,
            running: Semaphore::new(1),
            awaited: Cell::new(0),
            called_for: Cell::new(false),
            least_held: Cell::new(None),
            stats: RefCell::default(),
        }
    }

    /// The time at which the cache was opened, if no pass has ended since.
    pub fn none_since(&self) -> Option<Instant> {
        (self.stats.borrow().runs.count() == 0).then_some(self.opened_at)
    }

    /// Waits for the end of the pass that runs; none runs beside the holder of the permit.
    pub fn lock(&self) -> impl Future<Output = Permit> {
        self.running.acquire(1)
    }

    /// True while a pass runs.
    pub fn is_running(&self) -> bool {
        self.running.free() == 0
    }

    /// A task waits for a pass, until the guard is dropped.
    pub fn awaited(&self) -> PassWait<'_> {
        self.awaited.set(self.awaited.get() + 1);
        PassWait(self)
    }

    /// True if a task waits for a pass.
    pub fn is_awaited(&self) -> bool {
        self.awaited.get() > 0
    }

    /// A collection is due, as nodes are to be moved.
    pub fn call_for_one(&self) {
        self.called_for.set(true);
    }

    /// True if one was called for, and none has begun since.
    pub fn is_called_for(&self) -> bool {
        self.called_for.get()
    }

    /// A collection begins; true if it was called for.
    pub fn note_begun(&self) -> bool {
        self.called_for.replace(false)
    }

    /// Notes how many buckets nodes have.
    pub fn note_held(&self, held: u32) {
        self.least_held.set(self.least_held.get().map(|least| least.min(held)));
    }

    /// The fewest buckets that nodes had since the last pass; `None` before the end of the first.
    pub fn least_held(&self) -> Option<u32> {
        self.least_held.get()
    }

    /// A pass has ended, and has left nodes so many buckets.
    pub fn ended(&self, began: Instant, ended: Instant, held: u32) {
        self.least_held.set(Some(held));
        self.stats.borrow_mut().runs.note(began, ended, self.is_awaited());
    }

    /// Counts of what the passes did.
    pub fn stats(&self) -> Ref<'_, GcStats> {
        self.stats.borrow()
    }

    /// Counts what a pass does.
    pub fn count(&self, count: impl FnOnce(&mut GcStats)) {
        count(&mut self.stats.borrow_mut());
    }
}
