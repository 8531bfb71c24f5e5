//! Cuts: the moments at which the cache is carried to the pool.
//!
//! A cut *seals* the open epoch: it is a snapshot of the index's tree, taken in O(1), and the next
//! epoch opens. There may be several that are not published: `published < e1 < e2 < ... < en <
//! open`. The snapshot of a cut has everything that was dirty when it was taken, so a pass of
//! write-back takes any one of them, carries what its snapshot has above the published epoch, and
//! publishes its epoch: that cut and all before it are done at once.
//!
//! **When one is taken.** When a pass begins, unless it takes an older one; and while a pass runs,
//! whenever enough is dirty in the open epoch that no cut has
//! ([`crate::policy::seal::should_seal`]). So what comes in during a long pass is not one large
//! next cut, but several that can be published one by one, and room comes free in small lumps.
//! Where clients write the same blocks again and again, each cut would keep them all once more, and
//! none would bring room.
//!
//! **What one costs.** Nodes of the index that are replaced while it is the newest stay where they
//! are until it is published, all of the index at most. Where changes are all over the index, many
//! small cuts would fill the cache with old nodes. So cuts are small only as long as few nodes are
//! held for them.
//!
//! **Which is carried** ([`crate::policy::seal::next`]). Each publication has a price: it writes
//! nodes of the pool's trees and a commit, and a block that was overwritten from one cut to the
//! next is carried for both. So the newest cut is taken, with all that is dirty, as long as there
//! is room. While much of the cache is dirty the oldest is taken, because it is published soonest.
//!
//! **By whom.** While a pass runs, cuts are taken by a task of its own ([`Cache::sealer`]), as room
//! for the record of a cut may have to be waited for. The task takes cuts only while a pass runs,
//! so there is no new cut while a task holds the lock of passes without a pass.

use base::Result;
use rt::sync::Permit;

use super::cuts::Cut;
use super::state::Passing;
use crate::Cache;
use crate::policy::seal::{SealInput, WhichCut, next, seal_at, should_seal};
use crate::store::ring_room::JournalRoom;
use crate::store::state::Sealed;

impl Cache {
    /// Takes cuts while a pass runs.
    pub(crate) async fn sealer(&self) {
        while !self.health().is_closed() {
            let wait = self.wakes().seal.wait();
            if !self.wants_seal() {
                wait.await;
                continue;
            }
            let Ok(mut room) = self.upkeep_room().await else { return };
            // The pass may have ended meanwhile.
            if self.wants_seal() {
                self.take_cut(&mut room);
            }
        }
    }

    /// True if so much is dirty in the open epoch that it should be sealed now.
    pub(crate) fn wants_seal(&self) -> bool {
        let passes = self.writeback().passes();
        let cuts = passes.cuts();
        if !cuts.may_seal() {
            return false;
        }
        let layout = self.layout();
        let least =
            seal_at(layout.data_blocks(), layout.bucket_blocks, self.settings().seal_blocks);
        let standing = {
            let st = self.state();
            SealInput {
                fresh: st.buckets.fresh_blocks(),
                cuts: cuts.count(),
                held: st.limbo().held(),
                data_blocks: layout.data_blocks(),
            }
        };
        should_seal(standing, least) && !self.has_failed() && !self.wants_node_room()
    }

    /// Seals the open epoch.
    pub(crate) fn take_cut(&self, room: &mut JournalRoom) {
        // Nothing is woken before both have it.
        let mut st = self.state_mut();
        let Sealed { epoch, tree, blocks, reserved } = st.take_cut(room);
        let cut = Cut { epoch, tree, taken_at: self.rt().now(), blocks, handed_over: false };
        self.writeback().passes_mut().cuts_mut().push(cut, reserved);
    }

    /// The cut that the next pass carries, taken now if need be.
    pub(crate) async fn choose_cut(&self) -> Result<Cut> {
        let next = {
            let passes = self.writeback().passes();
            let (open, sealed) = self.state().buckets.dirty_blocks();
            let all = passes.is_urgent();
            let blocks = self.layout().data_blocks();
            next(
                passes.cuts().count(),
                open + sealed,
                blocks,
                self.settings().pressure_percent,
                all,
            )
        };
        let may_take = self.writeback().passes().cuts().may_take();
        if next == WhichCut::Newest && may_take {
            let mut room = self.upkeep_room().await?;
            self.take_cut(&mut room);
        }
        let cut = self.writeback().passes_mut().cuts_mut().carry(next);
        Ok(cut.unwrap_or_else(|| unreachable!("one was there, or was taken")))
    }

    /// A pass carries until this is dropped.
    pub(super) fn passing(&self) -> Passing<'_> {
        let passing = self.writeback().passing();
        self.wakes().seal.notify();
        passing
    }

    /// The number of dirty blocks that the pass leaves, and of those that it publishes.
    pub(crate) fn split_by_pass(&self) -> (u64, u64) {
        let carried = self.writeback().passes().cuts().carried().map(|cut| cut.epoch);
        let st = self.state();
        let (open, sealed) = st.buckets.dirty_blocks();
        let cut = carried.map_or(0, |epoch| st.buckets.dirty_blocks_upto(epoch));
        (open + sealed - cut, cut)
    }

    /// As [`Cache::between_passes`], and there is no cut while the permit is held. The size of a
    /// volume that writes back changes with this permit only. Otherwise a cut could have blocks
    /// from behind a new end, and a pass would carry them to the volume after it has grown again.
    /// This runs passes that are not paced until there is no cut, and returns the error of one that
    /// fails. If the cache has failed, cuts may be left: of these only one that the pool has
    /// already is still published.
    pub async fn between_cuts(&self) -> Result<Permit> {
        let _urgent = self.urgent();
        let alone = self.between_passes().await;
        let _none = self.writeback().keep_cuts_away();
        let mut outcome = Ok(());
        while outcome.is_ok() && !self.has_failed() && self.writeback().passes().cuts().count() > 0
        {
            outcome = Box::pin(self.run_pass()).await;
        }
        outcome.map(|()| alone)
    }
}

#[cfg(test)]
#[path = "take_cut_tests.rs"]
mod tests;
