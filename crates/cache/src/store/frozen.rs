//! Content of a checkpoint: the index as it was frozen, and what the superblock is to say.

use base::{Epoch, Generation, RecordSeq};
use btree::{FreedNodes, Tree};
use format::cache::pool_seen::PoolSeen;
use format::node::RootPtr;

use crate::store::journal::Place;

/// The state that a checkpoint makes durable, but for the pages.
pub(crate) struct CheckpointState {
    pub generation: Generation,
    pub root: Option<RootPtr>,
    /// The place where replay begins.
    pub place: Place,
    /// The open epoch, and the last that is sealed.
    pub epochs: (Epoch, Epoch),
    pub staged: (u64, u64),
    pub counted_from: Epoch,
    pub pool_seen: PoolSeen,
}

/// The state at the moment of a checkpoint.
#[must_use = "it is to be written"]
pub(crate) struct FrozenIndex {
    pub tree: Tree,
    pub named: CheckpointState,
    pub freed: FreedNodes,
    /// The last record before the place where replay begins.
    pub(super) last: RecordSeq,
}
