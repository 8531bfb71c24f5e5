//! The journal's clock: what is done at every tick.

use queue::Class;

use crate::Cache;

impl Cache {
    /// Makes what was written durable from time to time, also unasked, so that replay has
    /// little to verify and buckets become free.
    pub(crate) async fn journal_clock(&self) {
        while !self.health().is_closed() {
            self.sleep_by(|s| s.journal_interval).await;
            if self.health().is_closed() {
                return;
            }
            let target = self.state().journal().pushed();
            if self.durable(target, Class::Commit).await.is_err() && self.check_failed().is_err() {
                return;
            }
            if let Err(e) = self.write_watermark().await {
                tracing::warn!(cache = %self.path(), "the journal's watermark was not written, \
                    tried again with the next tick: {e}");
            }
            self.give_back_nodes().await;
            self.watch_age();
        }
    }
}
