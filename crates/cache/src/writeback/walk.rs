//! The walk over a cut: what is dirty in it, in the order of addresses, joined to *runs*, and these
//! in *batches*.
//!
//! While one batch is carried, the next is found, and the nodes of the pool's trees that it will
//! change are read, all together ([`pool::Pass::read_ahead`]). A batch has many runs, as a disk
//! goes to the place of the nodes and back for each: of blocks in no order, a leaf of a mapping
//! tree has few, and all leaves of a batch are read in one sweep. It ends where the nodes that it
//! needs become too many to be held.

use base::{BlockRange, Epoch, Generation, Lba, Result, VolumeId};
use pool::{Pass, PassPart};
use queue::Class;
use rt::JoinHandle;

use crate::core::Core;
use crate::store::index_walk::IndexWalk;
use crate::store::key::{Body, IndexKey};
use crate::writeback::cuts::Cut;

/// Blocks that are carried by one write to the pool.
const RUN_BLOCKS: u64 = 256;
/// Runs of a batch, and blocks that it carries.
const BATCH_RUNS: usize = 8192;
const BATCH_BLOCKS: u64 = 16_384;

/// The content of the blocks of a run.
pub(super) enum Content {
    /// Blocks of buckets.
    Data(Vec<IndexKey>),
    /// Blocks of the staging volume of this epoch, of an older version
    /// ([`crate::writeback::staged`]).
    Staged(Epoch),
    Zeros,
}

/// Neighbouring dirty blocks of a volume, all of one kind.
pub(super) struct CarriedBlocks {
    pub volume: VolumeId,
    pub lba: Lba,
    pub blocks: u64,
    pub content: Content,
}

impl CarriedBlocks {
    /// Blocks that are read and written for it: none for zeros.
    pub fn carried(&self) -> u64 {
        if matches!(self.content, Content::Zeros) { 0 } else { self.blocks }
    }
}

/// A place in a cut.
pub(super) struct Walk {
    leaves: IndexWalk,
    /// The run that the next extent may continue.
    pending: Option<CarriedBlocks>,
    /// Runs that were found, and did not fit into the last batch.
    left: Vec<CarriedBlocks>,
}

impl Walk {
    /// A walk over what has changed in a cut since the last one was published.
    pub fn over(cut: &Cut, published_before: Generation) -> Walk {
        let leaves = IndexWalk::over_cut(&cut.tree, published_before);
        Walk { leaves, pending: None, left: Vec::new() }
    }

    /// True if there may be another batch.
    pub fn goes_on(&self) -> bool {
        self.leaves.goes_on() || !self.left.is_empty()
    }
}

/// The runs of a batch, which are carried after each other, and the walk that goes on behind it.
pub(super) type Batch = JoinHandle<Result<(Vec<CarriedBlocks>, Walk)>>;

impl Walk {
    /// Finds the next batch, and reads ahead what it needs.
    pub(super) fn find_batch(mut self, core: &Core, pass: &Pass) -> Batch {
        let (core, pass) = (core.clone(), pass.clone());
        core.rt().clone().spawn(async move {
            let mut runs = self.next_runs(&core).await?;
            // Larger runs are of zeros. The nodes that they need are read when
            // they are carried.
            let parts: Vec<_> = runs
                .iter()
                .map(|run| {
                    let small = if run.blocks <= RUN_BLOCKS { run.blocks } else { 0 };
                    PassPart { volume: run.volume, range: BlockRange::of(run.lba, small) }
                })
                .collect();
            let blocks = runs.iter().map(CarriedBlocks::carried).sum();
            let ready = pass.read_ahead(&parts, blocks).await;
            self.left = runs.split_off(ready);
            Ok((runs, self))
        })
    }

    async fn next_runs(&mut self, core: &Core) -> Result<Vec<CarriedBlocks>> {
        let mut runs = std::mem::take(&mut self.left);
        let (mut blocks, mut counted) = (0, 0);
        while self.leaves.goes_on() && runs.len() < BATCH_RUNS && blocks < BATCH_BLOCKS {
            for extent in next_dirty(core, &mut self.leaves).await? {
                join(&mut self.pending, extent, &mut runs);
            }
            if !self.leaves.goes_on() {
                runs.extend(self.pending.take());
            }
            blocks += runs[counted..].iter().map(CarriedBlocks::carried).sum::<u64>();
            counted = runs.len();
            core.rt().yield_now().await;
        }
        Ok(runs)
    }
}

/// The dirty extents of the cut's next leaf.
async fn next_dirty(core: &Core, leaves: &mut IndexWalk) -> Result<Vec<IndexKey>> {
    core.resident(Class::WriteBack, |st| {
        let mut extents = leaves.next_leaf(&st.index, &st.buckets)?;
        extents.retain(|e| st.index.unpublished(e).is_some());
        Ok(extents)
    })
    .await
}
/// Adds an extent to the run in `pending`, or begins a new one; a run that ends goes to `out`.
fn join(pending: &mut Option<CarriedBlocks>, e: IndexKey, out: &mut Vec<CarriedBlocks>) {
    if let Some(run) = pending
        && run.volume == e.volume
        && run.lba.0 + run.blocks == e.lba.0
    {
        let fits = match (&mut run.content, &e.body) {
            (Content::Data(parts), Body::Data { .. }) if run.blocks + e.len() <= RUN_BLOCKS => {
                parts.push(e.clone());
                true
            }
            (Content::Staged(epoch), Body::Staged { .. }) => {
                Some(*epoch) == e.written && run.blocks + e.len() <= RUN_BLOCKS
            }
            (Content::Zeros, Body::Zeros { .. }) => true,
            _ => false,
        };
        if fits {
            run.blocks += e.len();
            return;
        }
    }
    out.extend(pending.take());
    let (volume, lba, blocks) = (e.volume, e.lba, e.len());
    let content = match e.body {
        Body::Data { .. } => Content::Data(vec![e]),
        Body::Staged { .. } => Content::Staged(e.written.unwrap_or_default()),
        Body::Zeros { .. } => Content::Zeros,
    };
    *pending = Some(CarriedBlocks { volume, lba, blocks, content });
}
