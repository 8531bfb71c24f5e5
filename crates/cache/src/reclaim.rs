//! Free buckets ahead of need, and room for what requests change.

use std::time::Duration;

use pool::Result;
use queue::Class;

use crate::Cache;
use crate::write::PATIENCE;

/// Buckets evicted, or looked at, in one go.
const SLICE: usize = 64;
/// What has to wait for the journal is tried again after this time.
const AGAIN: Duration = Duration::from_millis(200);
/// Entries of the journal that may wait in memory before writers do.
const JOURNAL_WAITING: usize = 64;

impl Cache {
    /// Fewer buckets are free, or soon will be, than should be.
    pub(crate) fn is_short(&self) -> bool {
        let st = self.state();
        st.buckets.free() + st.buckets.pending() < self.free_target()
    }

    /// It is short; or of those that writers may take, fewer than half are free now.
    pub(crate) fn is_hungry(&self) -> bool {
        self.is_short() || self.state().buckets.free() < self.node_reserve() + self.0.layout.free_band() / 2
    }

    /// Keeps a reserve of free buckets: evicts, and makes the journal durable so that what was evicted may be used.
    pub(crate) async fn reclaimer(&self) {
        while !self.0.closed.get() {
            let wait = self.0.hungry.wait();
            if !self.is_hungry() {
                wait.await;
                continue;
            }
            let mut evicted = 0;
            {
                // Somewhat more than the least, so that it is not short again with the next bucket.
                let enough = self.free_target() + self.free_target() / 4 + 1;
                let mut st = self.state_mut();
                let pushed = st.journal.pushed();
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
                if let Err(e) = self.durable(target, Class::Commit).await {
                    if self.check_failed().is_err() {
                        return;
                    }
                    tracing::warn!(cache = %self.0.path, "what was evicted has to wait: {e}");
                    self.0.rt.sleep(AGAIN).await;
                    continue;
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
                // Whoever waits for room looks whether there will be any.
                self.0.room.notify();
            }
            self.0.rt.yield_now().await;
        }
    }

    /// Waits until there is room for the records of one more request.
    pub(crate) async fn room_for_records(&self) -> Result<()> {
        self.room_beside(Some(self.0.layout.node_margin())).await
    }

    /// The same for who may go on when clients may not: what it does makes room in the end.
    pub(crate) async fn room_for_upkeep(&self) -> Result<()> {
        self.room_beside(Some(self.0.layout.node_margin() / 2)).await
    }

    /// The same for who keeps rounds away: they might be what makes room for nodes, so that is not waited for.
    pub(crate) async fn room_between_rounds(&self) -> Result<()> {
        self.room_beside(None).await
    }

    async fn room_beside(&self, nodes: Option<u64>) -> Result<()> {
        self.check_failed()?;
        if self.is_crowded(nodes) {
            Box::pin(self.uncrowd(nodes)).await?;
        }
        Ok(())
    }

    /// More has changed than checkpoints and the journal keep up with, or than there is room for if `nodes` more change.
    pub(crate) fn is_crowded(&self, nodes: Option<u64>) -> bool {
        let much_changed = self.state().index.dirty.get() as u64 >= 4 * self.0.settings.dirty_nodes;
        much_changed
            || self.state().journal.waiting() > JOURNAL_WAITING
            || self.ring_is_short()
            || nodes.is_some_and(|nodes| self.lacks_node_room(nodes))
    }

    /// The journal's ring is nearly full: commits of the pool wait for records that must find room without a checkpoint.
    fn ring_is_short(&self) -> bool {
        let st = self.state();
        let (_, ring) = st.journal.usage();
        st.journal.needed() * 4 >= ring * 3
    }

    /// Waits until it is not crowded. All who wait share one checkpoint, of which they need the beginning only: from then on changes count anew.
    async fn uncrowd(&self, nodes: Option<u64>) -> Result<()> {
        let (rounds, since) = (self.rounds(), self.0.rt.now());
        while self.is_crowded(nodes) {
            self.check_failed()?;
            self.check_open()?;
            if nodes.is_none() && self.wants_node_room() {
                // A checkpoint may not find room before the next round: nothing that may need one is waited for.
                break;
            }
            let wait = self.0.checkpoint_moved.wait();
            // What is in the ring already is freed by a checkpoint, what is not has to be written first.
            if self.state().journal.waiting() > JOURNAL_WAITING
                || self.ring_is_short() && self.state().journal.gathers()
            {
                let target = self.state_mut().journal.close();
                self.durable(target, Class::Foreground).await?;
                continue;
            }
            if nodes.is_some_and(|nodes| self.lacks_node_room(nodes)) {
                self.check_carried()?;
                if self.0.rt.now().since(since) > PATIENCE {
                    self.check_hopeful(rounds)?;
                    Box::pin(self.check_worn(since)).await?;
                }
                self.wait_for_node_room().await;
                continue;
            }
            if self.ring_is_short() {
                self.checkpoint_one().await?;
                continue;
            }
            self.0.checkpoint_wanted.notify();
            wait.await;
        }
        Ok(())
    }

    /// A round should not wait until the pool's image is old.
    pub(crate) fn much_is_dirty(&self) -> bool {
        let (open, _) = self.state().buckets.dirty_blocks();
        let target = self.0.layout.data_blocks() * u64::from(self.0.settings.dirty_target_percent) / 100;
        open > 0 && (open > target / 2 || self.pressure() > 0.5)
    }

    /// Write-back is needed more than it was, perhaps: a round that paces itself is to look again.
    pub(crate) fn pressed(&self) {
        let slow = self.0.round.borrow().sleeps_at.is_some_and(|rate| self.wanted_rate() > 2.0 * rate as f64);
        if slow {
            self.0.pressed.notify();
        }
    }

    fn wanted_rate(&self) -> f64 {
        self.0.settings.writeback.max as f64 * self.pressure()
    }

    /// To be called after a change: wakes the checkpointer when much has changed, and the round when much is dirty.
    pub(crate) fn after_write(&self) {
        let st = self.state();
        if st.index.dirty.get() as u64 >= self.0.settings.dirty_nodes {
            self.0.checkpoint_wanted.notify();
        }
        // Whoever runs rounds has not noted yet that something is dirty.
        let any = st.buckets.unpublished_blocks().0 > 0 || st.zeros > 0;
        let asleep = self.0.round.borrow().dirty_since.is_none() && any;
        drop(st);
        if asleep || self.much_is_dirty() || self.round_wanted_by_staged() {
            self.0.round_wanted.notify();
        }
        self.pressed();
        if self.wants_seal() {
            self.0.seal_wanted.notify();
        }
    }
}

#[cfg(test)]
#[path = "reclaim_tests.rs"]
mod tests;
