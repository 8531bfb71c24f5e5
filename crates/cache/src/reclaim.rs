//! Free buckets ahead of need, and writers held to what the pool can take.

use std::time::Duration;

use pool::Result;
use queue::Class;

use crate::Cache;

/// Buckets evicted, or looked at, in one go.
const SLICE: usize = 64;

impl Cache {
    /// Fewer buckets are free, or soon will be, than should be.
    pub(crate) fn is_short(&self) -> bool {
        let st = self.state();
        st.buckets.free() + st.buckets.pending() < self.0.layout.free_target()
            || st.buckets.free() < self.0.layout.free_target() / 2
    }

    /// Keeps a reserve of free buckets: evicts, and makes the journal durable so that what was evicted may be used.
    pub(crate) async fn reclaimer(&self) {
        while !self.0.closed.get() {
            let wait = self.0.hungry.wait();
            if !self.is_short() {
                wait.await;
                continue;
            }
            let mut evicted = 0;
            {
                let mut st = self.state_mut();
                let pushed = st.journal.pushed();
                // Somewhat more than the least, so that it is not short again with the next bucket.
                let enough = self.0.layout.free_target() + self.0.layout.free_target() / 4 + 1;
                while evicted < SLICE && st.buckets.free() + st.buckets.pending() < enough {
                    // Each is told by one record, in this order.
                    let Some(id) = st.buckets.evict(pushed + evicted as u64 + 1) else { break };
                    if let Some(audit) = &mut st.index.audit {
                        audit.counts[id.0 as usize] = 0;
                    }
                    evicted += 1;
                }
                st.stats.evicted += evicted as u64;
                st.journal_raised();
            }
            if self.state().buckets.pending() > 0 {
                let target = self.state_mut().journal.close();
                if self.durable(target, Class::Commit).await.is_err() {
                    return;
                }
                let mut st = self.state_mut();
                let durable = st.journal.durable_records();
                st.buckets.journal_durable(durable);
                drop(st);
                self.0.room.notify();
            } else if evicted == 0 {
                // All is dirty: a round has to make it clean. Pins and rounds end by themselves.
                self.0.round_wanted.notify();
                let held = !self.state().replaced.is_empty();
                if held {
                    // Or the pool has to commit what has replaced it; the next look will tell whether that went well.
                    let _ = self.0.pool.commit().await;
                }
                self.0.rt.sleep(Duration::from_millis(1)).await;
            }
            self.0.rt.yield_now().await;
        }
    }

    /// Holds a writer back as far as write-back needs it.
    pub(crate) async fn admit(&self) -> Result<()> {
        self.check_failed()?;
        self.0.last_request.set(self.0.rt.now());
        let delay = self.writer_delay();
        if delay > Duration::ZERO {
            Box::pin(self.0.rt.sleep(delay)).await;
        }
        self.room_for_records().await
    }

    /// Waits for a checkpoint if too much has changed since the last one, or the journal's ring is nearly full: commits of the pool wait for records that
    /// must find room without one.
    pub(crate) async fn room_for_records(&self) -> Result<()> {
        self.check_failed()?;
        let crowded = {
            let st = self.state();
            let (_, ring) = st.journal.usage();
            st.index.dirty.get() as u64 >= 4 * self.0.settings.dirty_nodes
                || st.journal.waiting() > 64
                || st.journal.needed() * 4 >= ring * 3
        };
        if crowded {
            Box::pin(self.checkpoint_now()).await?;
        }
        Ok(())
    }

    /// How long a writer waits, so that dirty data grows no faster than it shrinks as it comes near its limit.
    pub(crate) fn writer_delay(&self) -> Duration {
        let all = self.0.layout.data_blocks();
        let (open, cut) = self.state().buckets.dirty_blocks();
        let percent = |p: u8| all * u64::from(p) / 100;
        let (target, limit) =
            (percent(self.0.settings.dirty_target_percent), percent(self.0.settings.dirty_limit_percent));
        crate::controller::delay_for_writer(open + cut, target, limit)
    }

    /// To be called after a change: wakes the checkpointer when much has changed, and the round when much is dirty.
    pub(crate) fn after_write(&self) {
        let st = self.state();
        if st.index.dirty.get() as u64 >= self.0.settings.dirty_nodes {
            self.0.checkpoint_wanted.notify();
        }
        let (open, _) = st.buckets.dirty_blocks();
        // Whoever runs rounds has not noted yet that something is dirty.
        let any = st.buckets.unpublished_blocks().0 > 0 || st.zeros > 0;
        let asleep = self.0.round.borrow().dirty_since.is_none() && any;
        if asleep
            || self.round_wanted_by_staged()
            || open * 100 > self.0.layout.data_blocks() * u64::from(self.0.settings.dirty_target_percent)
        {
            self.0.round_wanted.notify();
        }
    }
}
