//! A transaction: what it has changed, until its commit has written it.
//!
//! There are two kinds, and both may be open at once. The *direct* one has what is written straight
//! to the pool; the next one opens when it is frozen. A *write-back pass* edits private clones of
//! trees, and joins the direct one when it is published: as it is, so that this does not take
//! longer the more it has changed.
//!
//! The allocations of an open transaction are in memory only, so a crash leaves free space. Blocks
//! that the transaction frees stay allocated until its commit is durable.
//!
//! **Generations.** Commits use every other number. A tree joins a pass with the number before the
//! open transaction's, and the pass's edits of it have that one. So they are newer than all that
//! the tree has, older than all that direct transactions will change in it, and no node of a pass
//! is taken for one of a direct transaction.

mod commit_events;
pub(crate) mod logged;
mod metrics;
mod progress;
mod snapshot_requests;
mod tables;

use std::collections::{BTreeMap, BTreeSet};

use base::{Birth, ErrorKind, Generation, GroupId, StorageError, VolumeId};
use btree::{Changes, FreedNodes, ReplacedNode};

use crate::attached::PublishedCut;
use crate::space::{Reservation, Run};

pub(crate) use commit_events::Requests;
pub(crate) use metrics::CommitMetrics;
pub(crate) use progress::{Generations, Progress};
pub use snapshot_requests::WantedSnapshot;
pub(crate) use snapshot_requests::{SnapshotRequest, SnapshotRequests};
pub(crate) use tables::{TablePage, Tables};

/// Records that a leaf of a deadlist holds at least, but for a few leaves.
const RECORDS_PER_DEAD_LEAF: u64 = 40;
/// Nodes that the edits of one deadlist change beside its new leaves, at most: two paths, of data
/// and of nodes.
const DEADLIST_PATHS: u64 = 10;

/// Which of the two transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Direct,
    Pass,
}

/// A volume in a transaction.
#[derive(Clone, Copy)]
pub(crate) struct JoinedVolume {
    /// Of the transaction's edits of its mapping.
    pub generation: Generation,
    /// Blocks that a pass's version of its mapping has. Direct edits change its record at once.
    pub blocks: u64,
}

/// Blocks of data that a volume has lost. A snapshot of the volume may have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LostRun {
    pub volume: VolumeId,
    pub birth: Birth,
    pub run: Run,
}

/// Blocks that volumes with snapshots have lost.
#[derive(Default)]
pub(crate) struct LostBlocks {
    pub data: Vec<Vec<LostRun>>,
    pub nodes: Vec<ReplacedNode>,
}

/// Blocks that a transaction has allocated and freed, and the blocks of nodes that it has replaced.
#[derive(Default)]
struct Lists {
    allocs: Vec<Run>,
    frees: Vec<Run>,
    /// Blocks that it frees unless a snapshot has them.
    lost: Vec<LostRun>,
    freed_nodes: FreedNodes,
}

/// The changes of a transaction.
pub(crate) struct Txn {
    kind: Kind,
    /// The birth of the blocks that it writes.
    birth: Birth,
    nodes: Changes,
    lists: Lists,
    /// Volumes whose record or mapping changed.
    volumes: BTreeMap<VolumeId, JoinedVolume>,
    /// Groups whose checksums changed, or will: those that a pass allocates from.
    sums: BTreeMap<GroupId, Generation>,
    /// Volumes with snapshots that may have lost blocks.
    lost_by: BTreeSet<VolumeId>,
    /// Something else has to be made durable: the device table, the pool's own record.
    superblock: bool,
    /// True if the transaction changes what the pool holds, whatever its lists say.
    changes: bool,
    /// The cut that a pass which has joined it publishes.
    published: Option<PublishedCut>,
    /// The lists of the passes that have joined the transaction.
    merged: Vec<Lists>,
    /// The oldest generation of the trees of these passes.
    oldest_merged: Option<Generation>,
    /// Room for the blocks that a pass has yet to write.
    room: Option<Reservation>,
    /// The oldest generation of the nodes that a pass has written before its end.
    oldest_spilled: Option<Generation>,
}

impl Txn {
    fn new(kind: Kind, generation: Generation, birth: Birth, room: Option<Reservation>) -> Txn {
        let nodes = match kind {
            Kind::Direct => Changes::new(generation),
            Kind::Pass => Changes::beside_readers(generation),
        };
        Txn {
            kind,
            birth,
            nodes,
            lists: Lists::default(),
            volumes: BTreeMap::new(),
            sums: BTreeMap::new(),
            lost_by: BTreeSet::new(),
            superblock: false,
            changes: false,
            published: None,
            merged: Vec::new(),
            oldest_merged: None,
            room,
            oldest_spilled: None,
        }
    }

    /// A direct transaction, which writes blocks of this birth.
    pub fn direct(generation: Generation, birth: Birth) -> Txn {
        Txn::new(Kind::Direct, generation, birth, None)
    }

    /// A write-back pass that writes within `room`, blocks of this birth.
    pub fn pass(room: Reservation, birth: Birth) -> Txn {
        Txn::new(Kind::Pass, Generation(0), birth, Some(room))
    }

    /// The birth of the blocks that it writes.
    pub fn birth(&self) -> Birth {
        self.birth
    }

    /// The blocks that it writes from now on are of this birth.
    pub fn set_birth(&mut self, birth: Birth) {
        self.birth = birth;
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The number of a direct transaction.
    pub fn generation(&self) -> Generation {
        self.nodes.generation()
    }

    /// Nodes that it has changed and that have no address yet.
    pub fn dirty_nodes(&self) -> u64 {
        self.nodes.dirty() as u64
    }

    /// Nodes of deadlists that its commit will write, about and at most.
    pub fn deadlist_nodes(&self) -> u64 {
        let all = std::iter::once(&self.lists).chain(&self.merged);
        let lost = |lists: &Lists| lists.lost.len() + lists.freed_nodes.old();
        let records = all.map(lost).sum::<usize>() + self.nodes.old();
        match records as u64 {
            0 => 0,
            records => records / RECORDS_PER_DEAD_LEAF + DEADLIST_PATHS * self.lost_by.len() as u64,
        }
    }

    /// True if a commit would change nothing that can be read.
    pub fn is_clean(&self) -> bool {
        self.volumes.is_empty()
            && self.sums.is_empty()
            && self.lists.frees.is_empty()
            && self.lists.lost.is_empty()
            && !self.superblock
    }

    /// True if its commit frees something.
    pub fn frees_anything(&self) -> bool {
        !self.lists.frees.is_empty() || !self.merged.is_empty()
    }

    /// Records that the commit has to write the superblocks, whatever else the transaction has.
    pub fn need_superblock(&mut self) {
        self.superblock = true;
    }

    /// Records that the transaction changes what the pool holds, beside what its lists say.
    pub fn note_change(&mut self) {
        self.changes = true;
    }

    /// True if it changes what the pool holds: another half that was opened alone, without it, is
    /// another pool from then on.
    pub fn changes_anything(&self) -> bool {
        self.changes
            || !self.volumes.is_empty()
            || !self.sums.is_empty()
            || !self.lists.allocs.is_empty()
            || !self.lists.frees.is_empty()
            || !self.lists.lost.is_empty()
            || !self.merged.is_empty()
    }

    /// The cut that it publishes.
    pub fn published(&self) -> Option<PublishedCut> {
        self.published
    }

    /// A volume that it edits.
    pub fn volume(&self, id: VolumeId) -> Option<JoinedVolume> {
        self.volumes.get(&id).copied()
    }

    /// All volumes that it edits.
    pub fn volumes(&self) -> Vec<(VolumeId, JoinedVolume)> {
        self.volumes.iter().map(|(&id, &joined)| (id, joined)).collect()
    }

    /// Records that the transaction edits a volume, from now on in this generation.
    pub fn join_volume(&mut self, id: VolumeId, generation: Generation) {
        self.volumes.entry(id).or_insert(JoinedVolume { generation, blocks: 0 });
    }

    /// As [`Txn::join_volume`], of a pass: its version of the mapping has `blocks` blocks at first.
    pub fn join_mapping(&mut self, id: VolumeId, generation: Generation, blocks: u64) {
        self.volumes.entry(id).or_insert(JoinedVolume { generation, blocks });
    }

    /// Gives a pass's edits of a volume this generation from now on. All that the pass has changed
    /// there until now is written.
    pub fn rejoin_volume(&mut self, id: VolumeId, generation: Generation) {
        let Some(joined) = self.volumes.get_mut(&id) else { unreachable!("{id:?} has not joined") };
        let before = std::mem::replace(&mut joined.generation, generation);
        self.oldest_spilled = self.oldest_spilled.into_iter().chain([before]).min();
    }

    /// As [`Txn::rejoin_volume`], of the checksums of a group.
    pub fn rejoin_sums(&mut self, id: GroupId, generation: Generation) {
        let before = self.sums.insert(id, generation);
        self.oldest_spilled = self.oldest_spilled.into_iter().chain(before).min();
    }

    /// Records that `nodes` nodes of a pass have got their addresses.
    pub fn nodes_placed(&mut self, nodes: u64) {
        self.nodes.placed(nodes as usize);
    }

    /// The number of blocks that a pass's version of a volume's mapping has from now on.
    pub fn set_blocks(&mut self, id: VolumeId, blocks: u64) {
        let Some(joined) = self.volumes.get_mut(&id) else { unreachable!("{id:?} has not joined") };
        joined.blocks = blocks;
    }

    /// The generation of its edits of a group's checksums.
    pub fn sums(&self, id: GroupId) -> Option<Generation> {
        self.sums.get(&id).copied()
    }

    /// All groups whose checksums it edits.
    pub fn groups(&self) -> Vec<(GroupId, Generation)> {
        self.sums.iter().map(|(&id, &generation)| (id, generation)).collect()
    }

    /// Records that the transaction edits the checksums of a group, from now on in this generation.
    pub fn join_sums(&mut self, id: GroupId, generation: Generation) {
        self.sums.entry(id).or_insert(generation);
    }

    /// To edit a tree that has joined with this generation.
    pub fn changes(&mut self, generation: Generation) -> &mut Changes {
        self.nodes.at(generation)
    }

    /// Blocks are referred to from now on.
    pub fn note_alloc(&mut self, run: Run, group_blocks: u32) {
        crate::space::push_run(&mut self.lists.allocs, run, group_blocks);
    }

    /// Blocks are not referred to any more.
    pub fn note_free(&mut self, run: Run, group_blocks: u32) {
        crate::space::push_run(&mut self.lists.frees, run, group_blocks);
    }

    /// A volume with snapshots has lost blocks.
    pub fn note_lost(&mut self, lost: LostRun) {
        self.lost_by.insert(lost.volume);
        self.lists.lost.push(lost);
    }

    /// To edit the mapping of a volume with snapshots, which has joined with this generation.
    pub fn changes_beside_snapshots(
        &mut self,
        id: VolumeId,
        generation: Generation,
    ) -> &mut Changes {
        self.lost_by.insert(id);
        self.nodes.beside_snapshots(generation)
    }

    /// Blocks that a pass has entered hold their room themselves.
    pub fn spend(&mut self, blocks: u64) {
        if let Some(room) = &mut self.room {
            room.spend(blocks);
        }
    }

    /// A pass that is published becomes part of this transaction, which publishes `cut`. The trees
    /// have changed hands already. What is left of its room is given back: nothing of the cut is
    /// missing.
    pub fn merge(&mut self, mut pass: Txn, cut: PublishedCut) {
        self.oldest_merged =
            self.oldest_of_passes().into_iter().chain(pass.oldest_of_passes()).min();
        pass.lists.freed_nodes = pass.nodes.take_freed();
        self.lost_by.append(&mut pass.lost_by);
        self.merged.push(pass.lists);
        self.published = Some(cut);
        self.superblock = true;
    }

    /// The oldest generation of a tree of a pass: of this one, or of those that have joined it.
    /// What a pass writes bears the generation in which the tree joined it, however late it is
    /// published.
    pub fn oldest_of_passes(&self) -> Option<Generation> {
        let own = (self.kind == Kind::Pass).then(|| {
            let volumes = self.volumes.values().map(|joined| joined.generation);
            volumes.chain(self.sums.values().copied()).min()
        });
        own.flatten().into_iter().chain(self.oldest_merged).chain(self.oldest_spilled).min()
    }

    /// A pass that is given up: what it has allocated, and the room that it has left.
    pub fn into_allocs(self) -> (Vec<Run>, Option<Reservation>) {
        (self.lists.allocs, self.room)
    }

    /// The blocks that the transaction has allocated, and those that the passes in it have
    /// allocated.
    pub fn allocs(&self) -> impl Iterator<Item = &Vec<Run>> {
        self.merged.iter().chain([&self.lists]).map(|lists| &lists.allocs)
    }

    fn gather_freed_nodes(&mut self) {
        let freed = self.nodes.take_freed();
        if !freed.is_empty() {
            self.lists.freed_nodes = freed;
        }
    }

    /// Takes the blocks that volumes with snapshots have lost in the transaction, and in the passes
    /// in it. Only once the transaction before is written out, and before
    /// [`Txn::take_frees`].
    pub fn take_lost(&mut self) -> LostBlocks {
        self.gather_freed_nodes();
        let mut all = LostBlocks::default();
        for lists in std::iter::once(&mut self.lists).chain(&mut self.merged) {
            all.data.push(std::mem::take(&mut lists.lost));
            all.nodes.extend(lists.freed_nodes.take_old());
        }
        all
    }

    /// Takes the blocks that the transaction has freed, and those that the passes in it have freed.
    pub fn take_frees(&mut self) -> impl Iterator<Item = (Vec<Run>, FreedNodes)> {
        self.gather_freed_nodes();
        let all = std::iter::once(&mut self.lists).chain(&mut self.merged);
        all.map(|l| (std::mem::take(&mut l.frees), std::mem::take(&mut l.freed_nodes)))
    }
}

/// For a step of a pass that has been published or given up.
pub(crate) fn not_open() -> StorageError {
    StorageError::new(ErrorKind::Invalid, "the write-back pass is not open any more")
}

#[cfg(test)]
#[path = "txn_tests.rs"]
mod tests;
