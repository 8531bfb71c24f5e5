//! Write-back passes: a second transaction, open beside the direct one and published at once.
//!
//! A pass writes into free space and edits private clones of trees: of the mapping trees of its
//! volumes, and of the checksum trees of the groups that it allocates from. Nothing else edits
//! those meanwhile: direct writes take no block of its groups (nor does it take groups of which
//! they have taken some), its volumes write back, and what a shrink left of them is freed when it
//! has ended. Readers and direct commits see the published trees. So a direct commit contains
//! nothing of the pass, and a crash leaves nothing of it but free space.
//!
//! To publish it, its nodes are written first; then, in one step, its trees take the place of the
//! published ones and its lists join the open transaction, whose commit makes all of it durable,
//! together with the epoch, in one superblock. While it goes on, nodes are written whenever there
//! are many of them in memory ([`spill`](super::spill)).
//!
//! **Space** is reserved ahead ([`crate::Pool::reserve`]): direct writes may take what is left. A
//! pass writes within the reservation that it was given.

use std::rc::Rc;

use base::{
    BLOCK, BlockRange, Crc, Epoch, Instant, Lba, Result, SliceList, StorageError, VolumeId,
};
use btree::Fault;
use format::page::GroupKind;
use queue::Class;

use super::lost_nodes::{LostNodes, told};
use super::spill::{Spill, Spiller};
use crate::attached::PublishedCut;
use crate::commit::commit_requests::Commits;
use crate::core::Core;
use crate::error::Step;
use crate::forest::{Change, EditOutcome};
use crate::io::taken_runs::RunWriter;
use crate::io::wait_for_room::PoolRoom;
use crate::space::Reservation;
use crate::state::State;
use crate::transfer::EntryError;
use crate::transfer::load::NodeLoader;
use crate::transfer::sums_ahead::SumReadAhead;
use crate::txn::{Generations, Txn};
use crate::volumes::Volumes;

/// Runs that are given back before other tasks get a turn.
const SLICE: usize = 64;

/// An open write-back pass; clones are the same. A change fails with
/// [`Unreachable`](base::ErrorKind::Unreachable) where a node of the volume's mapping cannot be
/// read: what the pass has of other volumes, and of other parts of this one, stands.
#[derive(Clone)]
pub struct Pass {
    pub(super) passes: Rc<Passes>,
    lost: LostNodes,
    spill: Rc<Spill>,
}

/// All of a pass is in the open transaction: whichever commit ends well next publishes it, if need
/// be without the cache. There is none of a pass that failed.
#[must_use = "a commit publishes the pass"]
pub struct HandedOverPass {
    commits: Rc<Commits>,
    epoch: Epoch,
}

impl HandedOverPass {
    /// The epoch that becomes the published one.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Commits, and so makes everything of the pass durable. A commit that fails is tried again by
    /// the pool.
    pub async fn commit(self) -> Result<()> {
        self.commits.commit().await
    }
}

/// Opens write-back passes.
pub(crate) struct Passes {
    pub(super) core: Core,
    pub(super) loader: Rc<NodeLoader>,
    pub(super) commits: Rc<Commits>,
    pub(super) sums: Rc<SumReadAhead>,
    room: Rc<PoolRoom>,
    runs: Rc<RunWriter>,
    volumes: Rc<Volumes>,
    spiller: Rc<Spiller>,
}

impl Passes {
    /// Makes the flow out of the core and the flows that it calls.
    #[allow(clippy::too_many_arguments, reason = "a flow names each flow that it calls")]
    pub(crate) fn new(
        core: &Core,
        loader: &Rc<NodeLoader>,
        commits: &Rc<Commits>,
        sums: &Rc<SumReadAhead>,
        room: &Rc<PoolRoom>,
        runs: &Rc<RunWriter>,
        volumes: &Rc<Volumes>,
        spiller: &Rc<Spiller>,
    ) -> Rc<Passes> {
        Rc::new(Passes {
            core: core.clone(),
            loader: loader.clone(),
            commits: commits.clone(),
            sums: sums.clone(),
            room: room.clone(),
            runs: runs.clone(),
            volumes: volumes.clone(),
            spiller: spiller.clone(),
        })
    }

    /// See [`crate::Pool::begin_pass`].
    pub(crate) fn begin_pass(self: &Rc<Self>, room: &mut Reservation) -> Result<Pass> {
        let mut st = self.core.state_mut();
        st.standing.permit()?;
        st.txns.begin_pass(room)?;
        Ok(Pass { passes: self.clone(), lost: LostNodes::default(), spill: Rc::default() })
    }
}

impl Pass {
    pub(super) fn lost(&self) -> &LostNodes {
        &self.lost
    }

    /// Writes whole blocks, of these checksums, into free space; they become the content of the
    /// volume from `lba` on when the pass is published.
    pub async fn write(
        &self,
        volume: VolumeId,
        lba: Lba,
        data: SliceList,
        crcs: &[Crc],
    ) -> Result<()> {
        let bytes: usize = data.iter().map(|s| s.len()).sum();
        assert_eq!(bytes, crcs.len() * BLOCK);
        loop {
            let taken = self.passes.room.take_for_pass(crcs.len() as u32).await?;
            let taken = self
                .passes
                .runs
                .write_taken(taken, data.clone(), self.passes.core.pass_class())
                .await?;
            let change = Change::Map { volume, lba, runs: &taken, crcs, size: None };
            match self.edit(&change).await {
                Ok(_) => {
                    taken.entered();
                    return Ok(());
                }
                Err(failed) if self.passes.loader.goes_elsewhere(&failed) => {}
                Err(failed) => return Err(told(&self.passes.core, volume, failed)),
            }
        }
    }

    /// Unmaps `[lba, end)` when the pass is published.
    pub async fn discard(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let mut at = lba;
        while at < end {
            let change = Change::Unmap { volume, range: BlockRange::new(at, end) };
            let edited = self.edit(&change).await;
            at = edited.map_err(|failed| told(&self.passes.core, volume, failed))?;
            self.passes.core.rt().yield_now().await;
        }
        Ok(())
    }

    /// Makes a part of a change; returns how far it came.
    async fn edit(&self, change: &Change<'_>) -> std::result::Result<Lba, EntryError> {
        let failed = |why| EntryError { why, node: None };
        self.spill.if_much(&self.passes.spiller).await.map_err(failed)?;
        loop {
            match self.step(|st| st.edit_pass(change)).await? {
                EditOutcome::Upto(lba) => return Ok(lba),
                EditOutcome::Busy => self.passes.commits.commit_direct().await.map_err(failed)?,
            }
        }
    }

    /// Sees that what a write of `[lba, end)` needs of the volume's mapping is in memory. So a
    /// write that cannot be entered is not begun.
    pub async fn reach(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let range = BlockRange::new(lba, end);
        let reached = self.step(|st| Ok(st.forest.ready_mapping(volume, range)?)).await;
        reached.map_err(|failed| told(&self.passes.core, volume, failed))
    }

    /// Runs a step. A node that the pass could not read before is not asked for again.
    async fn step<T>(
        &self,
        step: impl FnMut(&mut State) -> Step<T>,
    ) -> std::result::Result<T, EntryError> {
        let known = |fault: &Fault| self.lost.why(fault);
        let outcome = self.passes.loader.resident_or_lost(Class::Commit, known, step).await;
        outcome.map_err(|failed| match &failed.node {
            // This pass has carried the blocks of that node, and must not be published without it.
            Some(node) if self.has_written(node) => EntryError { node: None, ..failed },
            Some(node) => {
                self.lost.note(node, failed.why.clone());
                failed
            }
            None => failed,
        })
    }

    /// True if the pass itself has written this node.
    fn has_written(&self, node: &Fault) -> bool {
        let st = self.passes.core.state();
        let oldest = st.txns.pass().and_then(Txn::oldest_of_passes);
        oldest.is_some_and(|oldest| Generations::is_of_pass(node.ptr.generation, oldest))
    }

    /// Why a write of `[lba, end)` would fail, if that is known.
    pub fn unreachable(&self, volume: VolumeId, lba: Lba, end: Lba) -> Option<StorageError> {
        let range = BlockRange::new(lba, end);
        let fault = self.passes.core.state_mut().forest.ready_mapping(volume, range).err()?;
        let why = self.lost.why(&fault)?;
        Some(told(&self.passes.core, volume, EntryError { why, node: Some(fault) }))
    }

    /// Makes everything of the pass visible, and a part of the next commit, with which `epoch`, cut
    /// at `taken_at`, becomes the published one. After an error nothing has changed. Staging
    /// volumes of `epoch` and those before it end with it.
    pub async fn hand_over(&self, epoch: Epoch, taken_at: Instant) -> Result<HandedOverPass> {
        let cut = PublishedCut { epoch, taken_at: self.passes.core.unix_time(taken_at) };
        self.spill.rest(&self.passes.spiller).await?;
        let ended = {
            let mut st = self.passes.core.state_mut();
            let permit = st.standing.permit()?;
            st.merge_pass(permit, cut)?;
            st.end_stagings(|_, of| of <= epoch)
        };
        // Also if the commit fails: what it publishes is what counts from now on.
        self.passes.volumes.reap_each(ended);
        Ok(HandedOverPass { commits: self.passes.commits.clone(), epoch })
    }

    /// Gives everything back: nothing of it was ever there. Returns the room that it had; `None`,
    /// and nothing is done, after it was published.
    pub async fn abort(self) -> Option<Reservation> {
        let (allocs, room, mut trees) = self.passes.core.state_mut().give_up_pass()?;
        self.spill.take().into_iter().for_each(|tree| trees.add(tree));
        self.passes.core.take_apart(trees).await;
        let mut room = room?;
        for part in allocs.chunks(SLICE) {
            {
                let mut st = self.passes.core.state_mut();
                for &run in part {
                    if st.space.groups().kind_of(run) == GroupKind::Data {
                        room.restore(u64::from(run.len));
                        st.space.release(run);
                    } else {
                        // Nodes were written, and may have been read, and be healed just now.
                        st.space.limbo_mut().free_after_reads(vec![vec![run]]);
                    }
                }
            }
            self.passes.core.rt().yield_now().await;
        }
        // Blocks that wait for reads become free with the next commit, so one is due.
        let mut st = self.passes.core.state_mut();
        if st.space.limbo().has_any() {
            st.txns.open_mut().need_superblock();
        }
        drop(st);
        Some(room)
    }
}
