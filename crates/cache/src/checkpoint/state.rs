//! State that stays from one checkpoint to the next: whether one runs, and what the last one has
//! made durable.

use std::cell::{Cell, Ref, RefCell, RefMut};

use super::table_slots::DurableState;
use crate::latch::{Latch, LatchGuard};

/// See the [module](self).
pub(crate) struct Checkpoints {
    /// The checkpoint that is under way. It tells when it has frozen what it writes.
    running: Latch,
    /// True if a checkpoint is due, however little has changed.
    called_for: Cell<bool>,
    durable: RefCell<DurableState>,
}

impl Checkpoints {
    /// No checkpoint runs, and this is what the device has.
    pub fn new(durable: DurableState) -> Checkpoints {
        Checkpoints {
            running: Latch::default(),
            called_for: Cell::new(false),
            durable: RefCell::new(durable),
        }
    }

    /// Begins a checkpoint, unless one runs. It runs until the guard is dropped.
    pub fn begin(&self) -> Option<LatchGuard<'_>> {
        self.running.take()
    }

    /// Waits until the running checkpoint has frozen what it writes, or has ended.
    pub fn moved(&self) -> impl Future<Output = ()> + use<> {
        self.running.moved()
    }

    /// Makes a checkpoint due, however little has changed since the last one.
    pub fn call_for_one(&self) {
        self.called_for.set(true);
    }

    /// True if one was called for, and none has begun since.
    pub fn is_called_for(&self) -> bool {
        self.called_for.get()
    }

    /// Notes that the running checkpoint has frozen what it writes.
    pub(super) fn note_frozen(&self) {
        self.called_for.set(false);
        self.running.tell();
    }

    /// Wakes the tasks that wait for a checkpoint: the cache has failed.
    pub fn wake(&self) {
        self.running.tell();
    }

    /// True while a checkpoint runs.
    pub fn is_running(&self) -> bool {
        self.running.is_taken()
    }

    /// Checkpoints since the cache was opened.
    pub fn count(&self) -> u64 {
        self.durable.borrow().checkpoints()
    }

    /// The state that the last checkpoint has made durable.
    pub(crate) fn durable(&self) -> Ref<'_, DurableState> {
        self.durable.borrow()
    }

    /// The same, for the running checkpoint to change it.
    pub(super) fn durable_mut(&self) -> RefMut<'_, DurableState> {
        self.durable.borrow_mut()
    }
}
