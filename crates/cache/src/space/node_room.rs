//! Room for nodes of the index.
//!
//! A checkpoint may use only buckets that were free when it froze the index: keys of the one before
//! may still name what became free since. So enough buckets are kept free for the nodes that have
//! changed and are not written yet, and some more for requests that are under way. Nothing but
//! nodes may use them, and a task that changes the index waits where there are fewer. All of this
//! counts each node twice, as it is written ([`crate::store::buckets`]). The jobs that
//! make room need none of them: passes, evictions, and nodes that are given back.
//!
//! Before it begins, a client's request reserves the nodes that it may change
//! ([`crate::store::ring_room::JournalRoom`]): a leaf, one more that this is split into or merged
//! with, and one for every few of the extents that it may replace. Most requests share the nodes
//! above these leaves. The margin is for those nodes, for garbage collection, and for the few
//! changes that must not wait for passes. So a checkpoint finds the room that it needs. If more
//! nodes were changed than that, it waits for evictions and passes, which change nothing in the
//! index: but for what a pass keeps, which takes of the margin and does not wait for room
//! ([`crate::writeback::kept_room`]).

use base::{ErrorKind, Result, StorageError};
use rt::sync::either;

use crate::policy::writer_delay::PATIENCE;
use crate::space::request_room::Room;

impl Room {
    /// Wakes all jobs that make room, and waits until there may be more. Returns after `PATIENCE`
    /// in any case, so that the caller can check whether a longer wait is of use.
    pub(super) async fn wait_for_room(&self) {
        let room = self.core.wakes().room.wait();
        self.core.wakes().wanted();
        either(room, self.core.rt().sleep(PATIENCE)).await;
    }

    /// Waits until a checkpoint that begins now has room for its nodes. Where no room can be made
    /// for their second copies, it goes on without: when write-back fails, or several passes have
    /// freed nothing, and while what would make room waits for the ring, thus for this checkpoint.
    pub(crate) async fn room_for_checkpoint(&self) -> Result<()> {
        let waiting = self.core.levels().begin_waiting();
        while self.core.levels().lacks_node_room(0) {
            self.failures.check_failed()?;
            self.core.check_open()?;
            let hopeful = self.check_hopeful(waiting);
            let is_alone = self.core.state().journal().room().makes_upkeep_wait();
            if (hopeful.is_err() || is_alone) && !self.core.levels().lacks_room_for_one_copy() {
                return Ok(());
            }
            hopeful?;
            self.wait_for_room().await;
        }
        Ok(())
    }

    /// Makes room for a checkpoint while the cache is being opened. The journal is not written
    /// then, so evictions cannot be logged before the first checkpoint. A clean bucket may be
    /// evicted all the same: after a crash its blocks fail their checksums and are read from the
    /// pool. Fails if that does not make enough room.
    pub(crate) fn make_room_for_nodes(&self) -> Result<()> {
        self.core.state_mut().free_durable();
        // The checkpoint that follows records these evictions.
        while self.core.state().buckets.reuse().free() < self.core.levels().node_reserve()
            && self.core.state_mut().buckets.evict_unlogged()
        {}
        if self.core.levels().lacks_room_for_one_copy() {
            let text = format!(
                "the cache {} has no room for the {} changed nodes of its index, only for {}: \
                 start without it (--forget-cache) to use the pool's image",
                self.core.path(),
                self.core.levels().nodes_due(),
                self.core.state().buckets.room_for_nodes_once()
            );
            return Err(StorageError::new(ErrorKind::NoSpace, text));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "node_room_tests.rs"]
mod tests;
