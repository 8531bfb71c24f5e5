//! Checkpoint: makes the index durable as it is, so that the journal before it is not needed any
//! more.
//!
//! 1. *Freeze*, in O(1): the tree is cloned, the buckets' records are kept from then on, the
//!    journal's next place is noted; the next generation opens.
//! 2. The changed nodes get addresses in buckets of their own and are written, children before
//!    parents.
//! 3. Pages of the bucket table that say something new are written to their other slot.
//! 4. The device is flushed. Then the superblock is written, twice. From now on replay begins at
//!    the noted place.
//! 5. The changed pages are written into their other slots too; a page or a superblock that goes
//!    bad by itself loses nothing.
//! 6. The nodes that were replaced are given back as soon as no read uses them, and the journal's
//!    ring up to the place is free. Those that a cut knows wait for its end; younger ones, which
//!    are most of them while a pass is long, do not.
//!
//! A write that fails here, and fails again, ends the use of the cache: what the device holds then
//! cannot be known, but the state before is whole. Not one of step 5: by then all is durable.

use std::rc::Rc;
use std::time::Duration;

use base::{
    BLOCK, Buf, ErrorKind, Generation, OpenId, PoolAddr, Result, Slice, SliceList, StorageError,
};
use btree::{NodePtr, WriteOut};
use format::node::RootPtr;
use queue::Class;
use smallvec::SmallVec;

use crate::checkpoint::table_slots::{DurableState, NewPage};
use crate::core::Core;
use crate::device::cache_device::{ends_the_cache, write_vital};
use crate::device::flush_barrier::Durable;
use crate::health::fail::Failures;
use crate::health::writer_watch::WriterWatch;
use crate::space::request_room::Room;
use crate::store::buckets::census::Stream;
use crate::store::frozen::{CheckpointState, FrozenIndex};
use crate::store::index::node_addr;
use crate::store::taken::TakenRun;
use crate::transfer::journal_writer::JournalWriter;

/// Nodes serialised, or pages encoded, before others get a turn.
const SLICE: usize = 32;
/// Pages of the bucket table compared before others get a turn.
const COMPARED: u32 = 4;
/// Nodes that cannot be written are tried in so many other places, one after the other.
const ELSEWHERE: u32 = 8;
/// Blocks of replaced nodes given back in one go.
const GIVEN_BACK: usize = 256;
/// A checkpoint that had no room is tried again after this time.
const AGAIN: Duration = Duration::from_millis(200);

/// Writes checkpoints.
pub(crate) struct Checkpointer {
    core: Core,
    failures: Rc<Failures>,
    watch: Rc<WriterWatch>,
    journal: Rc<JournalWriter>,
    room: Rc<Room>,
}

impl Checkpointer {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        failures: &Rc<Failures>,
        watch: &Rc<WriterWatch>,
        journal: &Rc<JournalWriter>,
        room: &Rc<Room>,
    ) -> Rc<Checkpointer> {
        Rc::new(Checkpointer {
            core: core.clone(),
            failures: failures.clone(),
            watch: watch.clone(),
            journal: journal.clone(),
            room: room.clone(),
        })
    }

    /// Runs checkpoints when asked.
    pub(crate) async fn checkpointer(&self) {
        while !self.core.health().is_closed() {
            let wait = self.core.wakes().checkpoint.wait();
            if !self.core.due().wants_checkpoint() {
                wait.await;
                continue;
            }
            if let Err(e) = self.checkpoint_now().await {
                if self.failures.check_failed().is_err() {
                    return;
                }
                tracing::warn!(cache = %self.core.path(), "a checkpoint has no room yet: {e}");
                self.core.state().journal().room().refuse_clients(&e);
                self.core.rt().sleep(AGAIN).await;
            }
        }
    }

    /// A checkpoint that begins now, or when the running one has ended.
    pub(crate) async fn checkpoint_now(&self) -> Result<()> {
        let _turn = loop {
            self.failures.check_failed()?;
            match self.core.checkpoints().begin() {
                Some(turn) => break turn,
                None => self.core.checkpoints().moved().await,
            }
        };
        self.watch.check_alone().await?;
        self.write_crowded_journal().await?;
        // The last that is waited for: nodes find room in what is free when it begins.
        self.room.room_for_checkpoint().await?;
        self.checkpoint().await.inspect_err(|e| self.failures.fail(e))
    }

    /// A checkpoint makes room for those records only that are in the ring when it begins: where
    /// room is short, all are brought there.
    async fn write_crowded_journal(&self) -> Result<()> {
        if self.core.due().journal_wants_checkpoint() {
            let target = self.core.state().journal().pushed();
            self.journal.durable(target, Class::Commit).await?;
        }
        Ok(())
    }

    async fn checkpoint(&self) -> Result<()> {
        let mut frozen = self.core.state_mut().freeze(self.core.pool().cache_link().named_entry());
        self.core.checkpoints().note_frozen();
        // Before anything is written that the checkpoint before this superblock may need.
        if self.core.checkpoints().durable().lacks_twin() {
            self.write_next_superblock().await?;
        }
        frozen.named.root = self.write_nodes(&frozen).await?;
        let freed = std::mem::take(&mut frozen.freed).resolve().collect::<Vec<_>>();
        let pages = self.changed_pages(&freed).await;
        self.write_pages(frozen.named.generation, &pages).await?;
        self.failures.flush_device(Class::Commit, "flush of a checkpoint").await?;
        let durable = self.write_superblock(&frozen.named, &pages).await?;
        let written: Vec<u32> = pages.iter().map(|new| new.page).collect();
        self.core.checkpoints().durable_mut().complete(frozen.named.generation, pages);
        self.core.state_mut().complete(durable, &frozen, freed);
        self.core.give_back_nodes().await;
        if let Err(e) = self.write_again(&written).await {
            // The pages count all the same: each of them is in one of its two places.
            tracing::error!(
                cache = %self.core.path(),
                "pages of the bucket table are in one of their two places only: {e}"
            );
        }
        Ok(())
    }

    async fn write_nodes(&self, frozen: &FrozenIndex) -> Result<Option<RootPtr>> {
        let mut out = WriteOut::new(&frozen.tree, frozen.named.generation);
        let mut in_vain = 0;
        loop {
            // A run of neighbouring blocks, as long as there are nodes.
            let left = self.core.state().nodes_left();
            if left == 0 {
                return Ok(out.root());
            }
            let mut taken = self.room.take(Stream::Nodes, left.min(SLICE as u64) as u32).await?;
            // The nodes of this run have their room; other tasks may count on what is left of it.
            self.core.state_mut().took_for_nodes(u64::from(taken.blocks()));
            let outcome = taken.write(async |all| self.write_twice(&mut out, all).await).await;
            drop(taken);
            match outcome {
                Ok(()) => {
                    out.keep();
                    in_vain = 0;
                }
                Err(e) => {
                    in_vain += 1;
                    if in_vain > ELSEWHERE || e.is_gone() || e.is_no_space() {
                        return Err(ends_the_cache(self.core.path(), "write of the index", e));
                    }
                    let moved = self.core.state_mut().take_nodes_back(&mut out);
                    self.core.node_copies().note_moved(moved);
                    tracing::warn!(
                        cache = %self.core.path(),
                        "nodes of the index are written elsewhere, as a write failed: {e}"
                    );
                }
            }
            self.core.rt().yield_now().await;
        }
    }

    /// Writes the next nodes to these blocks, and to those of the twins. Fails if there are some
    /// that stand in neither.
    async fn write_twice(
        &self,
        out: &mut WriteOut,
        taken: &[TakenRun],
    ) -> std::result::Result<(), base::IoError> {
        let mut writes = Vec::with_capacity(taken.len());
        for t in taken {
            let mut buf = self.core.rt().bufs().take(t.len as usize * BLOCK);
            for (next, block) in (t.addr.0..).zip(buf.chunks_exact_mut(BLOCK)) {
                self.core.state_mut().write_node(out, PoolAddr(next), block);
            }
            let (nodes, copy) = (buf.freeze(), self.core.state().buckets.table().copy_of(t.addr));
            let places = [Some(t.addr), copy].into_iter().flatten();
            let each =
                places.map(|addr| (addr, self.write_at(self.core.offset_of(addr), nodes.clone())));
            writes.push(each.collect::<SmallVec<[_; 2]>>());
        }
        let mut outcome = Ok(());
        for each in writes {
            let mut well = Err(base::IoError::CANCELED);
            for (addr, write) in each {
                match write.await.unwrap_or(Err(base::IoError::CANCELED)) {
                    Ok(()) => well = Ok(()),
                    Err(e) => {
                        self.core.leave_bucket(addr);
                        well = well.or(Err(e));
                    }
                }
            }
            outcome = outcome.and(well);
        }
        outcome
    }

    fn write_at(
        &self,
        offset: u64,
        bytes: Slice,
    ) -> rt::JoinHandle<std::result::Result<(), base::IoError>> {
        let (device, data) = (self.core.device().queue().clone(), SliceList::from_iter([bytes]));
        self.core.rt().spawn(async move { write_vital(&device, Class::Commit, offset, data).await })
    }

    /// The pages that say something else than on the device, and what. Buckets of nodes are as this
    /// checkpoint leaves them: its own nodes count, those it replaced do not.
    async fn changed_pages(&self, freed: &[NodePtr]) -> Vec<NewPage> {
        for part in freed.chunks(GIVEN_BACK) {
            {
                let mut st = self.core.state_mut();
                for node in part {
                    let id = st.buckets.geometry().of(node_addr(node.addr));
                    st.buckets.replace_node(id);
                }
            }
            self.core.rt().yield_now().await;
        }
        let mut changed = Vec::new();
        for page in 0..self.core.layout().pages() {
            let records = self.core.state().buckets.table().frozen_page(page);
            if self.core.checkpoints().durable().differs(page, &records) {
                changed.push(NewPage { page, records });
            }
            if page % COMPARED == COMPARED - 1 {
                self.core.rt().yield_now().await;
            }
        }
        self.core.state_mut().buckets.thaw();
        changed
    }

    async fn write_pages(&self, generation: Generation, pages: &[NewPage]) -> Result<()> {
        let written = self.write_table(pages.iter(), |durable, page| {
            let (slot, block) = durable.encode_page(page, generation, self.core.rt().bufs());
            (page.page, slot, block)
        });
        let failed = |e| ends_the_cache(self.core.path(), "write of the bucket table", e);
        written.await.map_err(failed)
    }

    /// Writes pages of the bucket table, as `encode` says.
    async fn write_table<P>(
        &self,
        mut pages: impl Iterator<Item = P>,
        encode: impl Fn(&DurableState, P) -> (u32, u8, Buf),
    ) -> std::result::Result<(), base::IoError> {
        loop {
            let writes: Vec<_> = pages
                .by_ref()
                .take(SLICE)
                .map(|page| {
                    let (page, slot, block) = encode(&self.core.checkpoints().durable(), page);
                    let block = block.freeze();
                    (page, slot, block.clone(), self.write_slot(page, slot, block))
                })
                .collect();
            if writes.is_empty() {
                return Ok(());
            }
            let mut outcome = Ok(());
            for (page, slot, block, write) in writes {
                let mut written = write.await.unwrap_or(Err(base::IoError::CANCELED));
                while let Err(e) = written
                    && !e.is_gone()
                    && !e.is_no_space()
                    && self.move_page(page, slot, e)
                {
                    let write = self.write_slot(page, slot, block.clone());
                    written = write.await.unwrap_or(Err(base::IoError::CANCELED));
                }
                outcome = outcome.and(written);
            }
            outcome?;
            self.core.rt().yield_now().await;
        }
    }

    fn write_slot(
        &self,
        page: u32,
        slot: u8,
        block: Slice,
    ) -> rt::JoinHandle<std::result::Result<(), base::IoError>> {
        let offset = self.core.checkpoints().durable().offset_of(self.core.layout(), page, slot);
        self.write_at(offset, block)
    }

    /// A slot of a page is to stand in a spare block, as its place takes no write. False: there is
    /// none left.
    fn move_page(&self, page: u32, slot: u8, e: base::IoError) -> bool {
        let moved = self.core.checkpoints().durable_mut().move_page(page, slot);
        if moved {
            self.core.node_copies().note_moved(1);
            tracing::warn!(
                cache = %self.core.path(),
                "page {page} of the bucket table is written to a spare block: a write failed: {e}"
            );
        }
        moved
    }

    /// Writes the superblock into two slots, one after the other: if one of them goes bad, what it
    /// says is not lost.
    async fn write_superblock(
        &self,
        named: &CheckpointState,
        pages: &[NewPage],
    ) -> Result<Durable> {
        self.core.checkpoints().durable_mut().name(named, pages);
        self.write_next_superblock().await?;
        self.write_next_superblock().await
    }

    /// Writes the superblock of the last checkpoint again, as the next pair: durable superblocks of
    /// the pool name this open for the cache.
    pub(crate) async fn renew_superblock(&self, named: OpenId) -> Result<()> {
        let _turn = loop {
            self.failures.check_failed()?;
            match self.core.checkpoints().begin() {
                Some(turn) => break turn,
                None => self.core.checkpoints().moved().await,
            }
        };
        self.core.checkpoints().durable_mut().named_by_pool(named);
        for _ in 0..2 {
            self.write_next_superblock().await.inspect_err(|e| self.failures.fail(e))?;
        }
        Ok(())
    }

    async fn write_next_superblock(&self) -> Result<Durable> {
        self.watch.look_before_superblock().await?;
        let (offset, block) =
            self.core.checkpoints().durable_mut().next_superblock(self.core.rt().bufs());
        let data = SliceList::from_iter([block.freeze()]);
        self.failures.write_durable(Class::Commit, offset, data, "write of the superblock").await
    }

    /// Writes the twin of the superblock that was found, of its pair, again. It says the same, and
    /// the one that was found stays: so this changes nothing, and a device that takes no writes any
    /// more is found out.
    pub(crate) async fn write_twin(&self) -> Result<()> {
        let (offset, block) = self.core.checkpoints().durable_mut().twin(self.core.rt().bufs());
        let (queue, data) = (self.core.device().queue(), SliceList::from_iter([block.freeze()]));
        let written = match queue.write(Class::Commit, offset, data).await {
            Ok(()) => queue.flush(Class::Commit).await,
            Err(e) => Err(e),
        };
        written.map_err(|e| {
            if e.is_no_space() {
                return ends_the_cache(self.core.path(), "write of the superblock", e);
            }
            let text = format!(
                "{}: the cache device cannot be written to ({e}): nothing was changed; try again, \
                 or replace it",
                self.core.path()
            );
            StorageError::new(ErrorKind::Io, text)
        })
    }

    /// Writes the pages that a checkpoint has changed into their other slots too: if one goes bad,
    /// the other has the same.
    async fn write_again(&self, pages: &[u32]) -> std::result::Result<(), base::IoError> {
        self.write_table(pages.iter(), |durable, &page| {
            let (slot, block) = durable.encode_again(page, self.core.rt().bufs());
            (page, slot, block)
        })
        .await
    }
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
