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
//! ([`crate::policy::which_cut::should_seal`]). So what comes in during a long pass is not one
//! large next cut, but several that can be published one by one, and room comes free in small
//! lumps. Where clients write the same blocks again and again, each cut would keep them all once
//! more, and none would bring room.
//!
//! **What one costs.** Nodes of the index that are replaced while it is the newest stay where they
//! are until it is published, all of the index at most. Where changes are all over the index, many
//! small cuts would fill the cache with old nodes. So cuts are small only as long as few nodes are
//! held for them.
//!
//! **Which is carried** ([`crate::policy::which_cut::next`]). Each publication has a price: it
//! writes nodes of the pool's trees and a commit, and a block that was overwritten from one cut to
//! the next is carried for both. So the newest cut is taken, with all that is dirty, as long as
//! there is room. While much of the cache is dirty the oldest is taken, because it is published
//! soonest.
//!
//! **By whom.** While a pass runs, cuts are taken by a task of its own ([`CutTaker::sealer`]),
//! as room for the record of a cut may have to be waited for. The task takes cuts only while a pass
//! runs, so there is no new cut while a task holds the lock of passes without a pass.

use std::rc::Rc;

use base::Result;

use super::cuts::Cut;
use super::state::PassGuard;
use crate::core::Core;
use crate::policy::which_cut::{CutChoice, next};
use crate::space::request_room::Room;
use crate::store::ring_room::JournalRoom;
use crate::store::state::SealedCut;

/// Takes the cuts that passes carry.
pub(crate) struct CutTaker {
    core: Core,
    room: Rc<Room>,
}

impl CutTaker {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, room: &Rc<Room>) -> Rc<CutTaker> {
        Rc::new(CutTaker { core: core.clone(), room: room.clone() })
    }

    /// Takes cuts while a pass runs.
    pub(crate) async fn sealer(&self) {
        while !self.core.health().is_closed() {
            let wait = self.core.wakes().seal.wait();
            if !self.core.due().wants_seal() {
                wait.await;
                continue;
            }
            let Ok(mut room) = self.room.upkeep_room().await else { return };
            // The pass may have ended meanwhile.
            if self.core.due().wants_seal() {
                self.take_cut(&mut room);
            }
        }
    }

    /// Seals the open epoch.
    fn take_cut(&self, room: &mut JournalRoom) {
        // Nothing is woken before both have it.
        let mut st = self.core.state_mut();
        let SealedCut { epoch, tree, blocks, reserved } = st.take_cut(room);
        let cut = Cut { epoch, tree, taken_at: self.core.rt().now(), blocks, handed_over: false };
        self.core.writeback().passes_mut().cuts_mut().push(cut, reserved);
    }

    /// The cut that the next pass carries, taken now if need be.
    pub(crate) async fn choose_cut(&self) -> Result<Cut> {
        let next = {
            let passes = self.core.writeback().passes();
            let (open, sealed) = self.core.state().buckets.counts().dirty_blocks();
            let all = passes.is_urgent();
            let blocks = self.core.layout().data_blocks();
            next(
                passes.cuts().count(),
                open + sealed,
                blocks,
                self.core.settings().pressure_percent,
                all,
            )
        };
        let may_take = self.core.writeback().passes().cuts().may_take();
        if next == CutChoice::Newest && may_take {
            let mut room = self.room.room_in_pass(1, 0).await?;
            self.take_cut(&mut room);
        }
        let cut = self.core.writeback().passes_mut().cuts_mut().carry(next);
        Ok(cut.unwrap_or_else(|| unreachable!("one was there, or was taken")))
    }

    /// A pass carries until this is dropped.
    pub(super) fn passing(&self) -> PassGuard<'_> {
        let passing = self.core.writeback().passing();
        self.core.wakes().seal.notify();
        passing
    }
}

#[cfg(test)]
#[path = "take_cut_tests.rs"]
mod tests;
