//! Room for nodes of the index.
//!
//! A checkpoint may use only buckets that were free when it froze the index: keys of the one before
//! may still name what became free since. So as much is kept free as checkpoints will need, of what
//! has changed and not been written yet, and somewhat more, for requests that are under way. Others
//! leave it alone, and a task that changes the index waits where there is less. What makes room
//! needs none of it: passes, evictions, and nodes that are given back.
//!
//! A client's request holds its nodes from before it begins ([`crate::store::ring_room::Room`]): a
//! leaf, one more that this is split into or merged with, and one for every few of the extents that
//! it may replace. What lies above these leaves most requests share; the margin is for it, for
//! garbage collection, and for the few that must not wait for passes. So a checkpoint finds the
//! room that it needs. Should it not, for more nodes were changed than was foreseen, it waits for
//! evictions and passes, which change nothing in the index.

use base::{ErrorKind, Result, StorageError};
use rt::sync::either;

use crate::Cache;
use crate::buckets::census::Stream;
use crate::policy::delay::PATIENCE;

impl Cache {
    /// Nodes that checkpoints have yet to write: the running one, and the next.
    pub(crate) fn nodes_due(&self) -> u64 {
        self.state().nodes_due()
    }

    /// Blocks that nodes find free.
    fn node_room(&self) -> u64 {
        let st = self.state();
        u64::from(st.buckets.free()) * u64::from(self.0.layout.bucket_blocks)
            + u64::from(st.buckets.left_open(Stream::Nodes))
    }

    /// Nodes that requests under way hold.
    fn nodes_held(&self) -> u64 {
        self.state().journal.room().nodes()
    }

    /// A request that may change so many nodes finds room for them, beside all others.
    pub(crate) fn has_nodes_for(&self, nodes: u64) -> bool {
        !self.lacks_node_room(self.nodes_held() + nodes + self.0.layout.node_margin())
    }

    /// Buckets that only nodes may take: a share of the cache, or more if they are about to need
    /// it.
    pub(crate) fn node_reserve(&self) -> u32 {
        let due = self.nodes_due() + self.nodes_held() + self.0.layout.node_margin();
        let needed = due.div_ceil(u64::from(self.0.layout.bucket_blocks)) as u32;
        self.0.layout.node_reserve().max(needed)
    }

    /// Buckets that are to be free.
    pub(crate) fn free_target(&self) -> u32 {
        self.node_reserve() + self.0.layout.free_band()
    }

    /// Nodes would not find room if `spare` more had to be written than are due.
    pub(crate) fn lacks_node_room(&self, spare: u64) -> bool {
        self.nodes_due() + spare > self.node_room()
    }

    /// Clients have to wait until there is room for nodes.
    pub(crate) fn wants_node_room(&self) -> bool {
        self.lacks_node_room(self.0.layout.node_margin())
    }

    /// Has all that makes room go on, and waits until there may be more; or for so long that it has
    /// to be asked again whether waiting is of use.
    pub(crate) async fn wait_for_room(&self) {
        let room = self.0.wakes.room.wait();
        self.0.wakes.wanted();
        either(room, self.0.rt.sleep(PATIENCE)).await;
    }

    /// Waits until a checkpoint that begins now has room for its nodes.
    pub(crate) async fn room_for_checkpoint(&self) -> Result<()> {
        while self.lacks_node_room(0) {
            self.check_failed()?;
            self.check_open()?;
            self.check_carried()?;
            self.wait_for_room().await;
        }
        Ok(())
    }

    /// Makes room for a checkpoint while the cache is being opened: the journal is not written, and
    /// it cannot tell of evictions before the first one. A clean bucket may go without: after a
    /// crash its blocks fail their checksums and are read from the pool. Fails if that is not
    /// enough.
    pub(crate) fn make_room_for_nodes(&self) -> Result<()> {
        let durable = self.state().journal.durable();
        self.state_mut().buckets.journal_durable(durable);
        // The checkpoint that follows says it.
        while self.state().buckets.free() < self.node_reserve()
            && self.state_mut().buckets.evict_unlogged()
        {}
        if self.lacks_node_room(0) {
            let text = format!(
                "the cache {} has no room for the {} changed nodes of its index, only for {}: \
                 start without it to use the pool's image",
                self.0.path,
                self.nodes_due(),
                self.node_room()
            );
            return Err(StorageError::new(ErrorKind::NoSpace, text));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "node_room_tests.rs"]
mod tests;
