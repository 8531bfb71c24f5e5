//! When a pass begins: passes run one after the other, while anything is dirty.

use std::time::Duration;

use base::StorageError;
use rt::sync::either;

use crate::writeback::pass_runner::PassRunner;

/// After an error a pass is tried again after this time.
const AGAIN: Duration = Duration::from_secs(1);
/// After a pass that found nothing but what cannot be carried the next one begins after this time,
/// however much room is needed, and not before so many times as it took.
const AFTER_NOTHING: Duration = Duration::from_millis(125);
const TIMES: u32 = 4;

impl PassRunner {
    /// Runs passes: when much is dirty, and before the pool's image is older than it may be.
    pub(crate) async fn write_back(&self) {
        let _answers = self.core.writeback().answers();
        while !self.core.health().is_closed() {
            let wait = self.core.wakes().pass.wait();
            if self.core.writeback().is_asked() {
                self.core.writeback().answer(self.publish_all()).await;
                continue;
            }
            match self.due_in() {
                None => wait.await,
                Some(Duration::ZERO) => {
                    let begun = self.core.rt().now();
                    let outcome = self.next_pass().await;
                    if self.core.health().is_closed() {
                        return;
                    }
                    if let Err(e) = outcome {
                        if self.core.has_failed() {
                            if !self.core.levels().has_handed_over() {
                                return;
                            }
                            self.core.rt().sleep(AGAIN).await;
                            continue;
                        }
                        self.note_failing(e);
                        self.core.rt().sleep(AGAIN).await;
                    } else if self.core.writeback().passes().was_in_vain() {
                        let took = self.core.rt().now().since(begun);
                        self.core.rt().sleep(AFTER_NOTHING.max(took * TIMES)).await;
                    }
                }
                Some(time) => either(self.core.rt().sleep(time), wait).await,
            }
        }
    }

    /// Notes that write-back has failed. Each cause is logged once.
    fn note_failing(&self, e: StorageError) {
        let what = format!("write-back: {e}; tried again each second");
        if self.core.writeback().passes_mut().fails(e, self.core.rt().now()) {
            tracing::warn!("{what}");
        }
        // Writers that wait for room look whether there will be any.
        self.core.wakes().room.notify();
    }

    /// When the next pass is due; `None`: nothing is dirty.
    fn due_in(&self) -> Option<Duration> {
        let age = self.core.writeback().passes().age(self.core.rt().now())?;
        if self.core.due().wants_pass() {
            return Some(Duration::ZERO);
        }
        // The cut is taken at half of the lag that is allowed, and carried in the other half.
        Some((self.core.settings().max_lag / 2).saturating_sub(age))
    }
}
