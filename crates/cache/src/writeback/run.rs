//! When a pass begins: passes run one after the other, while anything is dirty.

use std::time::Duration;

use base::StorageError;
use rt::sync::either;

use crate::Cache;

/// After an error a pass is tried again after this time.
const AGAIN: Duration = Duration::from_secs(1);
/// After a pass that found nothing but what cannot be carried the next one begins after this time,
/// however much room is needed, and not before so many times as it took.
const AFTER_NOTHING: Duration = Duration::from_millis(125);
const TIMES: u32 = 4;

impl Cache {
    /// Runs passes: when much is dirty, and before the pool's image is older than it may be.
    pub(crate) async fn write_back(&self) {
        while !self.health().is_closed() {
            let wait = self.wakes().pass.wait();
            match self.due_in() {
                None => wait.await,
                Some(Duration::ZERO) => {
                    let begun = self.rt().now();
                    let outcome = self.next_pass().await;
                    if self.health().is_closed() {
                        return;
                    }
                    if let Err(e) = outcome {
                        if self.has_failed() {
                            if !self.has_handed_over() {
                                return;
                            }
                            self.rt().sleep(AGAIN).await;
                            continue;
                        }
                        self.note_failing(e);
                        self.rt().sleep(AGAIN).await;
                    } else if self.writeback().passes().was_in_vain() {
                        let took = self.rt().now().since(begun);
                        self.rt().sleep(AFTER_NOTHING.max(took * TIMES)).await;
                    }
                }
                Some(time) => either(self.rt().sleep(time), wait).await,
            }
        }
    }

    /// Notes that write-back has failed. Each cause is logged once.
    fn note_failing(&self, e: StorageError) {
        let what = format!("write-back: {e}; tried again each second");
        if self.writeback().passes_mut().fails(e, self.rt().now()) {
            tracing::warn!("{what}");
        }
        // Writers that wait for room look whether there will be any.
        self.wakes().room.notify();
    }

    /// When the next pass is due; `None`: nothing is dirty.
    fn due_in(&self) -> Option<Duration> {
        let age = self.writeback().passes().age(self.rt().now())?;
        if self.wants_pass() {
            return Some(Duration::ZERO);
        }
        // The cut is taken at half of the lag that is allowed, and carried in the other half.
        Some((self.settings().max_lag / 2).saturating_sub(age))
    }

    /// True if a pass should begin now.
    pub(crate) fn wants_pass(&self) -> bool {
        let passes = self.writeback().passes();
        if passes.cuts().count() > 0 || passes.is_urgent() {
            return passes.age(self.rt().now()).is_some();
        }
        drop(passes);
        let open = self.state().buckets.dirty_blocks().0;
        self.state().buckets.is_dirty()
            && (self.much_is_dirty() || self.wants_node_room() || self.is_short() && open > 0)
    }

    /// Notes when the pool's image begins to lack something.
    pub(crate) fn note_dirty(&self) {
        let dirty = self.state().buckets.is_dirty();
        if self.writeback().passes_mut().note_dirty(dirty, self.rt().now()) {
            self.wakes().pass.notify();
        }
    }

    /// True if so much is dirty that a pass should not wait until the pool's image is old.
    pub(crate) fn much_is_dirty(&self) -> bool {
        // Kept blocks are dirty whatever passes do.
        let open = self.state().buckets.dirty_blocks().0.saturating_sub(self.kept_blocks());
        let target =
            self.layout().data_blocks() * u64::from(self.settings().dirty_target_percent) / 100;
        // With the usual target this is about the size of a cut under pressure. A larger first one
        // is published late.
        open > 0 && (open > target / 3 || self.pressure() > 0.5)
    }

    /// The number of times that all that was dirty has been published: several passes each time
    /// while there are several cuts.
    pub(crate) fn passes(&self) -> u64 {
        self.writeback().passes().turns()
    }
}
