//! A volume in memory, and how many blocks all of them have.

use base::{Generation, VolumeId};
use btree::Tree;
use format::node::RootPtr;
use format::page::{VolumeRecord, VolumeState};
use format::tree::mapping_tree_id;

use super::tree::LiveTree;
use crate::txn::Generations;

/// A volume in memory.
pub(crate) struct Volume {
    pub(super) record: VolumeRecord,
    pub(super) mapping: LiveTree,
    /// The volume's place in the volume table.
    pub(super) place: u32,
    /// Deleted, all of it: the place is to be emptied.
    pub(super) gone: bool,
    /// No commit has it yet; if the next one fails, its maker is told that it does not exist.
    pub(super) creating: bool,
    /// There are snapshots of the volume, which may have what it loses.
    pub(super) has_snapshots: bool,
    /// The deadlist as committed. Commits alone change it.
    pub(super) deadlist: Option<RootPtr>,
    /// Nothing is left to be done before a snapshot that is being deleted is gone.
    pub(super) drained: bool,
    pub(super) frozen: Option<(VolumeRecord, bool)>,
}

impl Volume {
    pub fn new(record: VolumeRecord, place: u32, creating: bool) -> Volume {
        let tree = record.snapshot.map_or(record.id, |origin| origin.volume);
        let mapping = LiveTree::open(mapping_tree_id(tree), record.mapping);
        let deadlist = record.deadlist;
        Volume {
            record,
            mapping,
            place,
            gone: false,
            creating,
            has_snapshots: false,
            deadlist,
            drained: false,
            frozen: None,
        }
    }

    /// True of a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.record.snapshot.is_some()
    }

    /// True if it was deleted, and has something left, or its place.
    pub fn is_deleting(&self) -> bool {
        !self.gone && self.record.state == VolumeState::Deleting && !self.is_snapshot()
    }

    /// True if it may be read: a volume or a snapshot that was not deleted, and that a commit has.
    pub fn is_readable(&self) -> bool {
        let is_kept = self.is_snapshot() && !self.creating;
        self.is_live() || is_kept && !self.gone && self.record.state == VolumeState::Live
    }

    /// True if nothing is left to be done before a snapshot that is being deleted is gone.
    pub fn is_drained(&self) -> bool {
        self.drained
    }

    /// The record that the volume table will have of the volume.
    pub fn record(&self) -> &VolumeRecord {
        &self.record
    }

    /// The volume's mapping tree.
    pub fn mapping(&self) -> &LiveTree {
        &self.mapping
    }

    /// True unless it was deleted, and all that it had is freed.
    pub fn is_there(&self) -> bool {
        !self.gone
    }

    /// True of a volume that was not deleted.
    pub fn is_live(&self) -> bool {
        !self.gone && self.record.state == VolumeState::Live && !self.is_snapshot()
    }

    /// True if it has its name: neither deleted nor a staging volume.
    pub fn is_named(&self) -> bool {
        self.is_live() && self.record.staged.is_none()
    }

    /// True if it is a volume for its users: one with a name, that a commit has. Until then it may
    /// be given up, and nothing may be in it.
    pub fn is_served(&self) -> bool {
        self.is_named() && !self.creating
    }

    /// As [`LiveTree::begin_edit`], for the record and the mapping.
    pub(super) fn begin_edit(&mut self, g: Generations) {
        if self.mapping.begin_edit(g) {
            self.frozen = Some((self.record.clone(), self.gone));
        }
    }

    /// Record, deletion and mapping as of the freeze of `generation`.
    pub(super) fn take_frozen(&mut self, generation: Generation) -> FrozenVolume {
        let (record, gone) = self.frozen.take().unwrap_or_else(|| (self.record.clone(), self.gone));
        FrozenVolume { id: record.id, record, gone, mapping: self.mapping.take_frozen(generation) }
    }

    /// A commit that has written it is durable.
    pub(super) fn settle(&mut self, written: &Tree) {
        self.creating = false;
        self.frozen = None;
        self.mapping.settle(written);
    }
}

/// A volume as of a freeze.
pub(crate) struct FrozenVolume {
    pub id: VolumeId,
    pub record: VolumeRecord,
    pub gone: bool,
    pub mapping: Tree,
}

/// Blocks that all volumes have together, deleted ones too, by what their records say: kept up to
/// date with every change, as each write asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct BlockCount(pub u64);

impl BlockCount {
    /// Of these volumes. Snapshots share theirs.
    pub fn of<'a>(volumes: impl IntoIterator<Item = &'a Volume>) -> BlockCount {
        BlockCount(volumes.into_iter().map(own_blocks).sum())
    }

    /// A volume is gone.
    pub fn remove(&mut self, v: &Volume) {
        self.0 -= own_blocks(v);
    }

    /// Changes a volume in a way that may change how many blocks it has.
    pub fn change(&mut self, v: &mut Volume, f: impl FnOnce(&mut Volume)) {
        self.remove(v);
        f(v);
        self.0 += own_blocks(v);
    }
}

fn own_blocks(v: &Volume) -> u64 {
    if v.is_snapshot() { 0 } else { v.record.allocated_blocks }
}
