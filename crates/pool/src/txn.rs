//! A transaction: what it changed, and the trees as they were when it was frozen.
//!
//! What an open transaction has allocated is in memory only, so a crash leaves free space; what it frees stays allocated until its commit
//! is durable. Freezing is O(1): the list of what changed is taken, and the next generation opens. A tree that the next generation
//! edits while the frozen one is being written first leaves a snapshot behind ([`LiveTree::begin_edit`]).

use std::collections::BTreeSet;

use base::{Generation, GroupId, VolumeId};
use btree::{Changes, Freed, Tree};
use format::node::RootPtr;
use format::page::{VolumeRecord, VolumeState};

use crate::extents::Run;

/// The id of a volume's mapping tree.
pub(crate) fn mapping_tree_id(volume: VolumeId) -> u64 {
    1 << 32 | u64::from(volume.0)
}

/// The id of a group's checksum tree.
pub(crate) fn checksum_tree_id(group: GroupId) -> u64 {
    2 << 32 | u64::from(group.0)
}

/// What a transaction has changed.
pub(crate) struct Txn {
    /// In its trees, and its generation.
    pub nodes: Changes,
    /// Blocks that are referred to now.
    pub allocs: Vec<Run>,
    /// Blocks that are not referred to any more.
    pub frees: Vec<Run>,
    /// Volumes whose record or mapping changed.
    pub volumes: BTreeSet<VolumeId>,
    /// Groups whose checksums changed.
    pub checksums: BTreeSet<GroupId>,
    /// Groups that were taken into use or given up.
    pub groups: BTreeSet<GroupId>,
    /// Something else has to be made durable: the device table, the pool's own record.
    pub superblock: bool,
    /// It publishes a round: this cut.
    pub published: Option<crate::round::Published>,
    /// And what that round changed, as it is: taking it over must not take longer the more it is.
    pub rounds: Vec<Merged>,
}

/// What a round that was merged has changed.
pub(crate) struct Merged {
    pub allocs: Vec<Run>,
    pub frees: Vec<Run>,
    pub freed_nodes: Freed,
}

impl Txn {
    pub fn new(generation: Generation) -> Txn {
        Txn {
            nodes: Changes::new(generation),
            allocs: Vec::new(),
            frees: Vec::new(),
            volumes: BTreeSet::new(),
            checksums: BTreeSet::new(),
            groups: BTreeSet::new(),
            superblock: false,
            published: None,
            rounds: Vec::new(),
        }
    }

    /// Its number.
    pub fn generation(&self) -> Generation {
        self.nodes.generation()
    }

    /// True if a commit would change nothing that anyone can tell.
    pub fn is_clean(&self) -> bool {
        self.volumes.is_empty() && self.checksums.is_empty() && self.frees.is_empty() && !self.superblock
    }
}

/// A tree that is edited while an older state of it is being written.
pub(crate) struct LiveTree {
    pub tree: Tree,
    edited: Generation,
    frozen: Option<Tree>,
}

impl LiveTree {
    pub fn open(id: u64, root: Option<RootPtr>) -> LiveTree {
        LiveTree { tree: Tree::open(id, root), edited: Generation(0), frozen: None }
    }

    /// The generation of the last edit.
    pub fn edited(&self) -> Generation {
        self.edited
    }

    /// To be called before every edit in generation `open`: keeps the state that `committing` froze. True if it did.
    pub fn begin_edit(&mut self, open: Generation, committing: Option<Generation>) -> bool {
        let keep = self.edited != open && Some(self.edited) == committing;
        if keep {
            self.frozen = Some(self.tree.clone());
        }
        self.edited = open;
        keep
    }

    /// The tree as it was when `generation` was frozen; it was edited in it.
    pub fn take_frozen(&mut self, generation: Generation) -> Tree {
        let frozen = self.frozen.take();
        frozen.unwrap_or_else(|| {
            debug_assert!(self.edited <= generation);
            self.tree.clone()
        })
    }

    /// The frozen state is not needed any more.
    pub fn forget_frozen(&mut self) {
        self.frozen = None;
    }
}

/// A volume in memory.
pub(crate) struct Volume {
    pub record: VolumeRecord,
    pub mapping: LiveTree,
    /// Its place in the volume table.
    pub place: u32,
    /// Deleted, all of it: the place is to be emptied.
    pub gone: bool,
    /// No commit has it yet; if the next one fails, whoever made it is told that it does not exist.
    pub creating: bool,
    /// The open round's own version of the mapping.
    pub round: Option<Tree>,
    frozen: Option<(VolumeRecord, bool)>,
}

impl Volume {
    pub fn new(record: VolumeRecord, place: u32) -> Volume {
        let mapping = LiveTree::open(mapping_tree_id(record.id), record.mapping);
        Volume { record, mapping, place, gone: false, creating: false, round: None, frozen: None }
    }

    /// True unless it was deleted.
    pub fn is_live(&self) -> bool {
        !self.gone && self.record.state == VolumeState::Live
    }

    /// True if it has its name: neither deleted nor a staging volume.
    pub fn is_named(&self) -> bool {
        self.is_live() && self.record.staged.is_none()
    }

    /// True if it is a volume for its users: one with a name, that a commit has. Until then it may be given up, and nothing may be in it.
    pub fn is_served(&self) -> bool {
        self.is_named() && !self.creating
    }

    /// True of a staging volume whose cut is being carried: what would change it comes too late for that cut.
    pub fn is_being_adopted(&self) -> bool {
        self.record.staged.is_some() && self.round.is_some()
    }

    /// As [`LiveTree::begin_edit`], for the record and the mapping.
    pub fn begin_edit(&mut self, open: Generation, committing: Option<Generation>) {
        if self.mapping.begin_edit(open, committing) {
            self.frozen = Some((self.record.clone(), self.gone));
        }
    }

    /// Record, deletion and mapping as of the freeze of `generation`.
    pub fn take_frozen(&mut self, generation: Generation) -> (VolumeRecord, bool, Tree) {
        let (record, gone) = self.frozen.take().unwrap_or_else(|| (self.record.clone(), self.gone));
        (record, gone, self.mapping.take_frozen(generation))
    }

    pub fn forget_frozen(&mut self) {
        self.frozen = None;
        self.mapping.forget_frozen();
    }
}
