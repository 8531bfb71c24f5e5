//! A flow that runs once at a time.

use std::cell::Cell;

use rt::sync::Event;

/// Taken by one flow, until it ends or is dropped.
#[derive(Default)]
pub(crate) struct Latch {
    taken: Cell<bool>,
    moved: Event,
}

/// The latch is taken until this is dropped.
pub(crate) struct LatchGuard<'l>(&'l Latch);

impl Latch {
    /// Takes it, if it is free.
    pub fn take(&self) -> Option<LatchGuard<'_>> {
        (!self.taken.replace(true)).then(|| LatchGuard(self))
    }

    /// Waits until it is free again, or its holder reports progress. Counts from this call on, not
    /// from the first poll.
    pub fn moved(&self) -> impl Future<Output = ()> + use<> {
        self.moved.wait()
    }

    /// Wakes the tasks that wait until it is free or its holder reports progress. Also called when
    /// such a wait has become useless.
    pub fn tell(&self) {
        self.moved.notify();
    }

    /// True while a flow has it.
    pub fn is_taken(&self) -> bool {
        self.taken.get()
    }
}

impl Drop for LatchGuard<'_> {
    fn drop(&mut self) {
        self.0.taken.set(false);
        self.0.moved.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_has_it() {
        let latch = Latch::default();
        let first = latch.take();
        assert!(first.is_some() && latch.take().is_none() && latch.take().is_none());
        assert!(latch.is_taken());
        drop(first);
        assert!(!latch.is_taken());
        assert!(latch.take().is_some());
    }
}
