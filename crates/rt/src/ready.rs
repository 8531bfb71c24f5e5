//! The tasks that were woken and wait for their turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

#[allow(clippy::disallowed_types, reason = "a Waker must be Send; never contended")]
type WokenSlots = std::sync::Mutex<VecDeque<usize>>;

/// The tasks that were woken.
#[derive(Default)]
pub(crate) struct ReadyQueue {
    tasks: WokenSlots,
    background: WokenSlots,
}

impl ReadyQueue {
    /// Tasks of the background, or the others.
    pub fn of(&self, background: bool) -> std::sync::MutexGuard<'_, VecDeque<usize>> {
        lock(if background { &self.background } else { &self.tasks })
    }
}

/// The waker of a place for tasks.
pub(crate) struct TaskWaker {
    pub task: usize,
    pub queued: AtomicBool,
    pub background: AtomicBool,
    pub woken: Arc<ReadyQueue>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        Wake::wake_by_ref(&self);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.woken.of(self.background.load(Ordering::Relaxed)).push_back(self.task);
        }
    }
}

#[allow(clippy::disallowed_types, reason = "see WokenSlots")]
fn lock(woken: &WokenSlots) -> std::sync::MutexGuard<'_, VecDeque<usize>> {
    woken.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
