//! Decides which background job is due, by the levels of the state. Nothing here waits, and nothing
//! changes.

use super::levels::Levels;
use super::parts::Parts;
use crate::policy::which_cut::{SealInput, seal_at, should_seal};
use crate::replacement::keeps_blocks;

/// The jobs that are due now, of these parts.
#[derive(Clone, Copy)]
pub(crate) struct DueJobs<'p> {
    parts: &'p Parts,
}

impl Parts {
    /// Which jobs are due now.
    pub(crate) fn due(&self) -> DueJobs<'_> {
        DueJobs { parts: self }
    }
}

impl DueJobs<'_> {
    fn levels(&self) -> Levels<'_> {
        self.parts.levels()
    }

    /// Much has changed, or a checkpoint would make room that is short.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        let much = self.parts.state().index.dirty_nodes() >= self.parts.settings().dirty_nodes;
        much || self.journal_wants_checkpoint() || self.would_give_back()
    }

    /// Half of the ring is taken.
    pub(crate) fn journal_is_crowded(&self) -> bool {
        let (used, all) = self.parts.state().journal().usage();
        used * 2 >= all
    }

    /// The same, or somebody waits for room in the ring that a checkpoint would make.
    pub(crate) fn journal_wants_checkpoint(&self) -> bool {
        let st = self.parts.state();
        let waited_for = st.journal().room().has_line()
            && st.journal().room().wants_checkpoint(st.journal().blocks());
        drop(st);
        waited_for || self.journal_is_crowded()
    }

    /// Room for nodes is short, or a collection asks, and a checkpoint would give back what it
    /// replaces.
    pub(crate) fn would_give_back(&self) -> bool {
        let wanted = self.levels().wants_node_room() || self.parts.checkpoints().is_called_for();
        wanted && self.parts.state().index.dirty_nodes() > 0
    }

    /// True if the room for dirty blocks is getting short, or buckets are while most of what they
    /// hold is garbage.
    pub(crate) fn wants_compaction(&self) -> bool {
        let keeps_blocks = keeps_blocks(self.parts.settings().policy);
        keeps_blocks && (self.levels().pressure() > 0.0 || self.evicts_garbage_soon())
    }

    /// True if buckets would be evicted soon, although at most half of what they hold is needed.
    pub(crate) fn evicts_garbage_soon(&self) -> bool {
        let soon = self.levels().free_target() + self.parts.layout().free_band();
        let st = self.parts.state();
        st.buckets.reuse().free_soon() < soon && st.buckets.is_half_garbage()
    }

    /// True if buckets are to be evicted. Where survivors have to move first, eviction begins ahead
    /// of need.
    pub(crate) fn wants_victims(&self) -> bool {
        let (target, st) = (self.levels().free_target(), self.parts.state());
        let soon = st.buckets.reuse().free_soon() + st.buckets.usage().leaving();
        let ahead = keeps_blocks(self.parts.settings().policy) && soon < target + target / 8;
        drop(st);
        ahead || self.levels().is_low_on_buckets()
    }

    pub(crate) fn wanted_rate(&self) -> f64 {
        self.parts.settings().writeback.max as f64 * self.levels().pressure()
    }

    /// True if a pass should begin now.
    pub(crate) fn wants_pass(&self) -> bool {
        let passes = self.parts.writeback().passes();
        if passes.cuts().count() > 0 || passes.is_urgent() {
            return passes.age(self.parts.rt().now()).is_some();
        }
        drop(passes);
        let open = self.parts.state().buckets.counts().dirty_blocks().0;
        self.parts.state().buckets.counts().is_dirty()
            && (self.much_is_dirty()
                || self.levels().wants_node_room()
                || self.levels().is_short() && open > 0)
    }

    /// True if so much is dirty that a pass should not wait until the pool's image is old.
    pub(crate) fn much_is_dirty(&self) -> bool {
        // Kept blocks are dirty whatever passes do.
        let (dirty, _) = self.parts.state().buckets.counts().dirty_blocks();
        let open = dirty.saturating_sub(self.levels().kept_blocks());
        let target = self.parts.layout().data_blocks()
            * u64::from(self.parts.settings().dirty_target_percent)
            / 100;
        // With the usual target this is about the size of a cut under pressure. A larger first one
        // is published late.
        open > 0 && (open > target / 3 || self.levels().pressure() > 0.5)
    }

    /// True if so much is dirty in the open epoch that it should be sealed now.
    pub(crate) fn wants_seal(&self) -> bool {
        let passes = self.parts.writeback().passes();
        let cuts = passes.cuts();
        if !cuts.may_seal() {
            return false;
        }
        let layout = self.parts.layout();
        let least =
            seal_at(layout.data_blocks(), layout.bucket_blocks, self.parts.settings().seal_blocks);
        let standing = {
            let st = self.parts.state();
            SealInput {
                fresh: st.buckets.counts().fresh_blocks(),
                cuts: cuts.count(),
                held: st.limbo().held(),
                data_blocks: layout.data_blocks(),
            }
        };
        should_seal(standing, least) && !self.parts.has_failed() && !self.levels().wants_node_room()
    }
}
