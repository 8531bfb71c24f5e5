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

use crate::Cache;
use crate::policy::writer_delay::PATIENCE;

impl Cache {
    /// Nodes that checkpoints have yet to write: the running one, and the next.
    pub(crate) fn nodes_due(&self) -> u64 {
        self.state().nodes_due()
    }

    /// Nodes that find room, each twice.
    fn node_room(&self) -> u64 {
        self.state().buckets.room_for_nodes()
    }

    /// True if the nodes that are due would not find room if each were written once.
    fn lacks_room_for_one_copy(&self) -> bool {
        self.nodes_due() > self.state().buckets.room_for_nodes_once()
    }

    /// Nodes that are reserved for requests under way.
    fn nodes_reserved(&self) -> u64 {
        self.state().journal().room().nodes()
    }

    /// True if a request that may change `nodes` nodes finds room for them beside all other
    /// requests.
    pub(crate) fn has_nodes_for(&self, nodes: u64) -> bool {
        !self.lacks_node_room(self.nodes_reserved() + nodes + self.layout().node_margin())
    }

    /// True if steps of a pass may change `nodes` nodes together, which they take of the margin.
    pub(crate) fn margin_has(&self, nodes: u64) -> bool {
        !self.lacks_node_room(self.nodes_reserved() + nodes)
    }

    /// Buckets that only nodes may take: a share of the cache, or more if nodes will need more
    /// soon.
    pub(crate) fn node_reserve(&self) -> u32 {
        let due = self.nodes_due() + self.nodes_reserved() + self.layout().node_margin();
        let needed = 2 * due.div_ceil(u64::from(self.layout().bucket_blocks)) as u32;
        self.layout().node_reserve().max(needed)
    }

    /// Buckets that are to be free.
    pub(crate) fn free_target(&self) -> u32 {
        self.node_reserve() + self.layout().free_band()
    }

    /// True if nodes would not find room if `spare` more had to be written than are due.
    pub(crate) fn lacks_node_room(&self, spare: u64) -> bool {
        self.nodes_due() + spare > self.node_room()
    }

    /// True if clients have to wait until there is room for nodes.
    pub(crate) fn wants_node_room(&self) -> bool {
        self.lacks_node_room(self.layout().node_margin())
    }

    /// Wakes all jobs that make room, and waits until there may be more. Returns after `PATIENCE`
    /// in any case, so that the caller can check whether a longer wait is of use.
    pub(crate) async fn wait_for_room(&self) {
        let room = self.wakes().room.wait();
        self.wakes().wanted();
        either(room, self.rt().sleep(PATIENCE)).await;
    }

    /// Waits until a checkpoint that begins now has room for its nodes. Where no room can be made
    /// for their second copies, it goes on without.
    pub(crate) async fn room_for_checkpoint(&self) -> Result<()> {
        while self.lacks_node_room(0) {
            self.check_failed()?;
            self.check_open()?;
            match self.check_carried() {
                Err(_) if !self.lacks_room_for_one_copy() => return Ok(()),
                outcome => outcome?,
            }
            self.wait_for_room().await;
        }
        Ok(())
    }

    /// Makes room for a checkpoint while the cache is being opened. The journal is not written
    /// then, so evictions cannot be logged before the first checkpoint. A clean bucket may be
    /// evicted all the same: after a crash its blocks fail their checksums and are read from the
    /// pool. Fails if that does not make enough room.
    pub(crate) fn make_room_for_nodes(&self) -> Result<()> {
        self.state_mut().free_durable();
        // The checkpoint that follows records these evictions.
        while self.state().buckets.free() < self.node_reserve()
            && self.state_mut().buckets.evict_unlogged()
        {}
        if self.lacks_room_for_one_copy() {
            let text = format!(
                "the cache {} has no room for the {} changed nodes of its index, only for {}: \
                 start without it (--forget-cache) to use the pool's image",
                self.path(),
                self.nodes_due(),
                self.state().buckets.room_for_nodes_once()
            );
            return Err(StorageError::new(ErrorKind::NoSpace, text));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "node_room_tests.rs"]
mod tests;
