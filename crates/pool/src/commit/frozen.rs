//! A transaction that a commit is writing.

use std::collections::{BTreeMap, BTreeSet};

use base::{Generation, GroupId, VolumeId};
use btree::Tree;
use format::node::RootPtr;
use format::page::PageVersion;

use crate::forest::FrozenVolume;
use crate::space::{BitmapPage, Run};
use crate::txn::{LostBlocks, Txn};

/// Trees or pages that are dealt with before other tasks get a turn.
pub(super) const SLICE: usize = 64;
/// Runs, or blocks of replaced nodes, that are dealt with before other tasks get a turn.
pub(super) const RUNS: usize = 256;

/// A snapshot that a commit takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TakenSnapshot {
    pub id: VolumeId,
    pub of: VolumeId,
}

/// A deadlist that a commit has changed.
pub(super) struct FrozenDeadlist {
    /// The volume or the snapshot that has it before snapshots are taken.
    pub owner: VolumeId,
    pub tree: Tree,
    pub root: Option<RootPtr>,
}

/// Deadlists that a commit has changed.
#[derive(Default)]
pub(super) struct FrozenDeadlists {
    pub lists: Vec<FrozenDeadlist>,
    /// Snapshots of which nothing is left.
    pub drained: Vec<VolumeId>,
}

/// A frozen transaction on its way to the devices. What has been done is kept, so that a second try
/// goes on from there.
pub(super) struct FrozenTxn {
    pub txn: Txn,
    pub generation: Generation,
    /// The change is one of what the pool holds.
    pub changes: bool,
    /// Attempts to write it before this one.
    pub attempt: u32,
    /// Groups that were taken into use or given up.
    pub groups: BTreeSet<GroupId>,
    pub volumes: Vec<FrozenVolume>,
    pub sums: Vec<(GroupId, Tree)>,
    pub captured: bool,
    /// Snapshots that it takes.
    pub snapshots: Vec<TakenSnapshot>,
    /// What volumes with snapshots have lost, until its deadlists are edited.
    pub lost: Option<LostBlocks>,
    /// Deadlists that it has changed; `None`: that was not found out yet.
    pub deadlists: Option<FrozenDeadlists>,
    /// Blocks of nodes that this commit has written.
    pub node_blocks: Vec<Run>,
    /// Allocations and frees are in the bitmaps.
    pub applied: bool,
    /// The blocks that it frees, gathered.
    pub frees: Vec<Vec<Run>>,
    /// Bitmap pages as they were before, as far as they were touched.
    pub before: BTreeMap<BitmapPage, Vec<u64>>,
    pub touched_groups: BTreeSet<GroupId>,
    /// Pages that this commit writes: bitmap pages and table pages, each into the slot that is not
    /// the committed one.
    pub bitmap_pages: Vec<BitmapPage>,
    pub table_pages: BTreeSet<u32>,
}

impl FrozenTxn {
    /// The version of the table pages that this attempt writes.
    pub fn version(&self) -> PageVersion {
        PageVersion { generation: self.generation, attempt: self.attempt }
    }

    pub fn new(txn: Txn, groups: BTreeSet<GroupId>, snapshots: Vec<TakenSnapshot>) -> FrozenTxn {
        FrozenTxn {
            generation: txn.generation(),
            changes: txn.changes_anything() || !groups.is_empty(),
            attempt: 0,
            txn,
            groups,
            volumes: Vec::new(),
            sums: Vec::new(),
            captured: false,
            snapshots,
            lost: None,
            deadlists: None,
            node_blocks: Vec::new(),
            applied: false,
            frees: Vec::new(),
            before: BTreeMap::new(),
            touched_groups: BTreeSet::new(),
            bitmap_pages: Vec::new(),
            table_pages: BTreeSet::new(),
        }
    }

    /// The runs that are allocated (true), then those that are freed (false), in slices.
    pub fn changes(&self) -> impl Iterator<Item = (&[Run], bool)> {
        let allocs = self.txn.allocs().chain([&self.node_blocks]);
        let allocs = allocs.flat_map(|list| list.chunks(RUNS)).map(|part| (part, true));
        allocs.chain(self.frees.iter().flat_map(|list| list.chunks(RUNS)).map(|part| (part, false)))
    }
}
