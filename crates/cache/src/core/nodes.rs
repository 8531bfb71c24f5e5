//! Nodes of the index: they are read when a step needs them, healed, and given back.
//!
//! A copy of a node that is bad is written again from the good one. Where that fails, the node is
//! written elsewhere: its bucket is condemned, and a collection is called for.

use std::ops::DerefMut;

use base::{BlockRange, CacheAddr, Result, Slice, SliceList, StorageError, VolumeId, crc32c};
use btree::{Fault, Loader, NodeError, NodePtr, Store};
use pool::Step;
use queue::Class;
use rt::{Reason, Rt};

use super::handle::Core;
use crate::error::damaged;
use crate::store::index::node_addr;
use crate::store::limbo::Pin;
use crate::store::load::{BadCopy, read_node, read_place};
use crate::store::state::State;

/// Blocks of replaced nodes given back in one go.
const GIVEN_BACK: usize = 256;

/// A loader of the index's nodes, by requests of a class.
struct Nodes<'c>(&'c Core, Class);

impl Loader for Nodes<'_> {
    type State = State;
    type Error = StorageError;
    type Pin = Pin;

    fn state(&mut self) -> impl DerefMut<Target = State> {
        self.0.state_mut()
    }

    fn store(st: &mut State) -> &mut Store {
        st.index.store_mut()
    }

    fn pin(st: &State, _: &Fault) -> Pin {
        st.limbo().pin()
    }

    const REASON: Reason = Reason::Index;

    fn rt(&self) -> Rt {
        self.0.rt().clone()
    }

    fn gives_way(&self) -> bool {
        self.1.is_background()
    }

    async fn read(&mut self, fault: &Fault, _: &Pin) -> Result<Slice> {
        let Nodes(cache, class) = *self;
        let copy = cache.state().buckets.table().copy_of(node_addr(fault.ptr.addr));
        let (queue, layout) = (cache.device().queue(), cache.layout());
        let (bytes, bad) = read_node(queue, layout, fault, copy, class).await?;
        if let Some(bad) = bad {
            cache.heal_node(&fault.ptr, bad, bytes.clone(), class);
        }
        Ok(bytes)
    }

    fn refused(fault: &Fault, why: NodeError) -> StorageError {
        damaged(fault, why)
    }
}

impl Core {
    /// Runs a synchronous step over resident nodes until it needs no more.
    pub(crate) async fn resident<T>(
        &self,
        class: Class,
        step: impl FnMut(&mut State) -> Step<T>,
    ) -> Result<T> {
        btree::resident(&mut Nodes(self, class), step).await
    }

    /// The blocks `range` of a volume, which are at `addr`, can be written back.
    pub(crate) async fn note_good(
        &self,
        class: Class,
        volume: VolumeId,
        range: BlockRange,
        addr: CacheAddr,
    ) -> Result<()> {
        if !self.state().bad_blocks().touches(volume, range) {
            return Ok(());
        }
        self.resident(class, |st| st.note_good(volume, range, addr)).await
    }

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
        let (core, pinned, crc) = (self.clone(), self.pinned(of), ptr.crc);
        self.rt().detach(async move {
            let well = core.write_copy(addr, bytes, crc, class).await;
            if well {
                core.node_copies().note_healed();
            } else {
                core.leave_bucket(addr);
            }
            drop(pinned);
        });
    }

    /// Reads both copies of a node, and has a bad one written again. A node without a good copy is
    /// left to those that need it.
    pub(crate) async fn verify_copies(&self, ptr: &NodePtr) {
        let first = node_addr(ptr.addr);
        let Some(second) = self.state().buckets.table().copy_of(first) else { return };
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

    /// Gives back the blocks of replaced nodes that no read can be using.
    pub(crate) async fn give_back_nodes(&self) {
        while self.state_mut().drain_limbo(GIVEN_BACK) {
            self.rt().yield_now().await;
        }
    }
}
