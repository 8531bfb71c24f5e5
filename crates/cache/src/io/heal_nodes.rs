//! A copy of a node of the index that is bad is written again from the good one. Where that fails,
//! the node is written elsewhere: its bucket is condemned, and a collection is called for.

use base::{CacheAddr, Slice, SliceList, crc32c};
use btree::NodePtr;
use queue::Class;

use crate::Cache;
use crate::store::index::node_addr;
use crate::store::load::{BadCopy, read_place};

impl Cache {
    /// Writes `bytes`, which are the node `ptr`, to the place that was bad. Its buckets are kept
    /// until that is done, also where the node is needed no more meanwhile.
    pub(crate) fn heal_node(&self, ptr: &NodePtr, bad: BadCopy, bytes: Slice, class: Class) {
        let BadCopy { addr, why } = bad;
        let healed = self.node_copies().note_bad();
        if base::worth_telling(healed) {
            tracing::warn!(
                cache = %self.path(),
                "a node of the index is bad at block {addr} of the cache device ({why}), and was \
                 read from its other place; it is written again"
            );
        }
        let of = node_addr(ptr.addr);
        self.state_mut().buckets.pin(of);
        let (cache, pinned, crc) = (self.clone(), self.pinned(of), ptr.crc);
        self.rt().detach(async move {
            let well = cache.write_copy(addr, bytes, crc, class).await;
            if well {
                cache.node_copies().note_healed();
            } else {
                cache.leave_bucket(addr);
            }
            drop(pinned);
        });
    }

    /// Reads both copies of a node, and has a bad one written again. A node without a good copy is
    /// left to those that need it.
    pub(crate) async fn verify_copies(&self, ptr: &NodePtr) {
        let first = node_addr(ptr.addr);
        let Some(second) = self.state().buckets.copy_of(first) else { return };
        let (queue, layout) = (self.device().queue(), self.layout());
        let read = |addr| read_place(queue, layout, ptr, addr, Class::Scrub);
        match (read(first).await, read(second).await) {
            (Ok(good), Err(why)) => {
                self.heal_node(ptr, BadCopy { addr: second, why }, good, Class::Scrub);
            }
            (Err(why), Ok(good)) => {
                self.heal_node(ptr, BadCopy { addr: first, why }, good, Class::Scrub);
            }
            (Ok(_), Ok(_)) | (Err(_), Err(_)) => {}
        }
    }

    /// Writes a copy of a node; false if it cannot be read then.
    async fn write_copy(&self, addr: CacheAddr, bytes: Slice, crc: u32, class: Class) -> bool {
        let (queue, offset) = (self.device().queue(), self.offset_of(addr));
        if queue.write(class, offset, SliceList::from_iter([bytes])).await.is_err() {
            return false;
        }
        let read = queue.read_blocks(class, offset, 1).await;
        read.get(0).is_ok_and(|block| crc32c(block) == crc)
    }

    /// The nodes in the bucket of `addr` are to be written elsewhere.
    pub(crate) fn leave_bucket(&self, addr: CacheAddr) {
        self.state_mut().buckets.condemn(addr);
        self.collections().call_for_one();
    }
}
