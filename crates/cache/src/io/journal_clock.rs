//! The journal's clock: what is done at every tick.

use queue::Class;

use crate::Cache;

impl Cache {
    /// Makes what was written durable from time to time, also unasked, so that replay has
    /// little to verify and buckets become free.
    pub(crate) async fn journal_clock(&self) {
        let mut fails = false;
        while !self.health().is_closed() {
            self.sleep_by(|s| s.journal_interval).await;
            if self.health().is_closed() {
                return;
            }
            let target = self.state().journal().pushed();
            if self.durable(target, Class::Commit).await.is_err() && self.check_failed().is_err() {
                return;
            }
            match self.write_watermark().await {
                // The next one is as good. Of a row of failures the first is logged.
                Err(e) if !std::mem::replace(&mut fails, true) => {
                    tracing::warn!(cache = %self.path(), "the journal's watermark was not \
                        written, tried again with each tick: {e}");
                }
                Err(_) => {}
                Ok(()) => fails = false,
            }
            self.give_back_nodes().await;
            self.watch_age();
        }
    }
}
