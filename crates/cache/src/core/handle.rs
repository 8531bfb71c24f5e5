//! The handle to the parts of an open cache. Every change of the state goes through it, and wakes
//! the tasks that the change concerns.

use std::cell::RefMut;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::time::Duration;

use pool::Pool;
use rt::Rt;
use rt::sync::either;

use super::parts::{FoundCache, Parts};
use crate::settings::Settings;
use crate::store::state::State;
use crate::wakes::Marks;

/// The core of an open cache; clones are the same. Flows are built on it.
#[derive(Clone)]
pub(crate) struct Core(Rc<Parts>);

impl Deref for Core {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// A change of the state, until the next await.
pub(crate) struct StateGuard<'c> {
    core: &'c Core,
    before: Marks,
    st: Option<RefMut<'c, State>>,
}

impl Deref for StateGuard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.st.as_deref().unwrap_or_else(|| unreachable!("it is there until the drop"))
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.st.as_deref_mut().unwrap_or_else(|| unreachable!("it is there until the drop"))
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        let after = Marks::of(self);
        self.st = None;
        if after != self.before {
            self.core.wake(&self.before, &after);
        }
    }
}

impl Core {
    /// The core of the cache that was found. Nothing runs yet.
    pub(crate) fn over(rt: &Rt, pool: &Pool, settings: Settings, found: FoundCache) -> Core {
        Core(Rc::new(Parts::new(rt, pool, settings, found)))
    }

    /// The one way to change the state. When it is dropped it wakes the tasks that the change
    /// concerns.
    pub(crate) fn state_mut(&self) -> StateGuard<'_> {
        let st = self.state_cell().borrow_mut();
        StateGuard { core: self, before: Marks::of(&st), st: Some(st) }
    }

    /// Wakes the tasks that a change concerns.
    fn wake(&self, before: &Marks, after: &Marks) {
        let wakes = self.wakes();
        if after.has_more_room(before) {
            wakes.room.notify();
        }
        if after.may_reclaim(before) && self.due().wants_victims() {
            wakes.reclaim.notify();
        }
        if after.takes_room(before) && self.due().wants_compaction() {
            wakes.compact.notify();
        }
        if after.has_more_summaries(before) {
            wakes.summary.notify();
        }
        if (after.has_more_records(before) || after.takes_room(before))
            && self.due().wants_checkpoint()
        {
            wakes.checkpoint.notify();
        }
        if after.has_other_dirt(before) {
            self.note_dirty();
            self.pressed();
            if self.due().wants_seal() {
                wakes.seal.notify();
            }
            if self.due().much_is_dirty() {
                wakes.pass.notify();
            }
        }
    }

    /// Notes when the pool's image begins to lack something.
    pub(crate) fn note_dirty(&self) {
        let dirty = self.state().buckets.counts().is_dirty();
        if self.writeback().passes_mut().note_dirty(dirty, self.rt().now()) {
            self.wakes().pass.notify();
        }
    }

    /// Wakes a pass that waits for its turn, if write-back is needed much more than when its rate
    /// was computed.
    pub(crate) fn pressed(&self) {
        let slow = self
            .writeback()
            .passes()
            .sleeps_at()
            .is_some_and(|rate| self.due().wanted_rate() > 2.0 * rate as f64);
        if slow {
            self.wakes().pace.notify();
        }
    }

    /// Sleeps for as long as the settings say, also where they change meanwhile, or until the cache
    /// is closed.
    pub(crate) async fn sleep_by(&self, time: impl Fn(&Settings) -> Duration) {
        let began = self.rt().now();
        loop {
            let changed = self.wakes().settings.wait();
            let due = began.after(time(&self.settings()));
            if self.rt().now() >= due || self.health().is_closed() {
                return;
            }
            either(self.rt().sleep_until(due), changed).await;
        }
    }

    /// The parts, to look whether anything still holds them.
    #[cfg(test)]
    pub(crate) fn downgrade(&self) -> std::rc::Weak<Parts> {
        Rc::downgrade(&self.0)
    }
}
