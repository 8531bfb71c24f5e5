//! The forest: the mapping tree of each volume, the checksum tree of each data group, and the
//! volumes themselves. Plain data; every function is one synchronous step over resident nodes.

mod checksums;
mod edit;
mod mapping;
mod missing;
mod readers;
mod snapshot_index;
mod snapshots;
mod tree;
mod volume;

use std::collections::BTreeMap;

use base::{
    BlockRange, Crc, Epoch, ErrorKind, Generation, GroupId, Lba, Result, StorageError, VolumeId,
};
use btree::{Fault, Store, Tree, UnneededTrees};
use format::node::RootPtr;
use format::page::{GroupRecord, VolumeRecord, VolumeState};
use format::records::{MappedExtent, checksum_key};
use format::tree::checksum_tree_id;
use smallvec::SmallVec;

use crate::error::Step;
use crate::space::Geometry;
use crate::txn::{Generations, Kind, Txn};

pub(crate) use edit::{Change, EditOutcome};
pub(crate) use missing::MissingNodes;
pub(crate) use snapshots::{NewSnapshot, Successor, deadlist_tree, may_have};
pub(crate) use tree::LiveTree;
pub(crate) use volume::{BlockCount, FrozenVolume, Volume};

use readers::Readers;
pub(crate) use readers::UpcomingReads;
use snapshot_index::SnapshotIndex;

/// The transaction that a volume is edited in, and the generations of now.
pub(crate) struct Edit<'a> {
    pub txn: &'a mut Txn,
    pub g: Generations,
}

/// Volumes and trees.
pub(crate) struct Forest {
    geometry: Geometry,
    store: Store,
    volumes: BTreeMap<VolumeId, Volume>,
    /// The staging volumes that are not deleted, by volume and epoch.
    stagings: BTreeMap<(VolumeId, Epoch), VolumeId>,
    /// The volume table as committed, by place.
    places: Vec<Option<VolumeRecord>>,
    next_volume: u32,
    held: BlockCount,
    /// The checksum tree of each group.
    sums: Vec<LiveTree>,
    /// The readers that read volumes in order.
    readers: Readers,
    /// The snapshots, by volume and the commit that took them.
    snapshots: SnapshotIndex,
    /// Entries of the table that say that a snapshot is deleted, or gone.
    deletions: u64,
}

/// The number of volumes that the table has room for, and a place that is free.
pub(crate) struct Vacancy {
    pub places: usize,
    pub first: Option<u32>,
}

pub(crate) fn no_such_volume(id: VolumeId) -> StorageError {
    StorageError::new(ErrorKind::NotFound, format!("there is no volume with the id {id}"))
}

impl Forest {
    /// As the tables say. Error: they contradict themselves.
    pub fn new(
        geometry: Geometry,
        cached_nodes: usize,
        places: Vec<Option<VolumeRecord>>,
        next_volume: u32,
        groups: &[GroupRecord],
    ) -> Result<Forest> {
        let damaged = |text: String| StorageError::new(ErrorKind::Damaged, text);
        let (mut volumes, mut stagings) = (BTreeMap::new(), BTreeMap::new());
        for (place, record) in places.iter().enumerate() {
            let Some(r) = record else { continue };
            if volumes.insert(r.id, Volume::new(r.clone(), place as u32, false)).is_some() {
                return Err(damaged(format!("two volumes have the number {}", r.id)));
            }
            if let Some((volume, epoch)) = r.staged.filter(|_| r.state == VolumeState::Live)
                && stagings.insert((volume, epoch), r.id).is_some()
            {
                return Err(damaged(format!(
                    "volume {volume} has two staging volumes for epoch {epoch}"
                )));
            }
        }
        let snapshots = snapshot_index::found(&mut volumes)?;
        let sums = |(i, r): (usize, &GroupRecord)| {
            LiveTree::open(checksum_tree_id(GroupId(i as u32)), r.checksums)
        };
        Ok(Forest {
            geometry,
            store: Store::new(cached_nodes),
            held: BlockCount::of(volumes.values()),
            volumes,
            stagings,
            places,
            next_volume,
            sums: groups.iter().enumerate().map(sums).collect(),
            readers: Readers::new(cached_nodes),
            snapshots,
            deletions: 0,
        })
    }

    /// The clean nodes.
    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

    pub fn volumes(&self) -> impl Iterator<Item = &Volume> {
        self.volumes.values()
    }

    pub fn volume(&self, id: VolumeId) -> Option<&Volume> {
        self.volumes.get(&id)
    }

    /// The first volume with this number or a higher one, of any kind.
    pub fn volume_from(&self, id: VolumeId) -> Option<VolumeId> {
        self.volumes.range(id..).next().map(|(&id, _)| id)
    }

    /// A volume that its users see.
    pub fn served(&self, id: VolumeId) -> Option<&Volume> {
        self.volumes.get(&id).filter(|v| v.is_served())
    }

    /// A volume that its users see, or a snapshot that they may read.
    pub fn readable(&self, id: VolumeId) -> Option<&Volume> {
        self.volumes.get(&id).filter(|v| v.is_served() || v.is_snapshot() && v.is_readable())
    }

    /// The number of the next volume.
    pub fn next_volume(&self) -> u32 {
        self.next_volume
    }

    /// Bytes of all volumes that are served, whether they were written or not.
    pub fn provisioned_bytes(&self) -> u64 {
        let served = self.volumes().filter(|v| v.is_served());
        served.fold(0, |sum: u64, v| sum.saturating_add(v.record().size_bytes))
    }

    /// The volume table as committed, from a place on.
    pub fn places(&self, first: usize, count: usize) -> &[Option<VolumeRecord>] {
        &self.places[first..first + count]
    }

    /// Blocks that volumes have.
    pub fn held(&self) -> BlockCount {
        debug_assert_eq!(
            self.held,
            BlockCount::of(self.volumes.values()),
            "what volumes have was not counted"
        );
        self.held
    }

    /// The staging volume of a volume for an epoch.
    pub fn staging(&self, volume: VolumeId, epoch: Epoch) -> Option<VolumeId> {
        self.stagings.get(&(volume, epoch)).copied()
    }

    /// All staging volumes: volume, epoch, and the number of the staging volume.
    pub fn stagings(&self) -> impl Iterator<Item = (VolumeId, Epoch, VolumeId)> {
        self.stagings.iter().map(|(&(volume, epoch), &id)| (volume, epoch, id))
    }

    /// The number of places in the volume table, and a place that is free.
    pub fn vacancy(&self) -> Vacancy {
        let mut taken = vec![false; self.places.len()];
        for v in self.volumes.values() {
            taken[v.place as usize] = true;
        }
        Vacancy { places: taken.len(), first: taken.iter().position(|t| !t).map(|p| p as u32) }
    }

    /// Places of the table that are free, at most `most`.
    pub fn free_places(&self, most: usize) -> Vec<u32> {
        let mut taken = vec![false; self.places.len()];
        for v in self.volumes.values() {
            taken[v.place as usize] = true;
        }
        let free = (0..).zip(taken).filter(|(_, taken)| !taken).map(|(place, _)| place);
        free.take(most).collect()
    }

    /// Error: so many numbers for volumes are not left.
    pub fn has_numbers(&self, count: usize) -> Result<()> {
        let left = u64::from(u32::MAX - self.next_volume);
        match left > count as u64 {
            true => Ok(()),
            false => {
                let text = "there are no more numbers for volumes";
                Err(StorageError::new(ErrorKind::NoSpace, text))
            }
        }
    }

    /// Enters a new volume, which has the next number; it becomes durable with the transaction.
    pub fn add(&mut self, edit: Edit<'_>, v: Volume) -> Result<VolumeId> {
        let id = v.record.id;
        let Some(next) = self.next_volume.checked_add(1).filter(|_| id.0 == self.next_volume)
        else {
            return Err(StorageError::new(
                ErrorKind::NoSpace,
                "there are no more numbers for volumes",
            ));
        };
        self.next_volume = next;
        assert_eq!(v.record.allocated_blocks, 0, "a new volume has nothing");
        self.volumes.insert(id, v);
        self.change(edit, id, |_| ())?;
        Ok(id)
    }

    /// Changes the record of a volume in the direct transaction.
    pub fn change(
        &mut self,
        Edit { txn, g }: Edit<'_>,
        id: VolumeId,
        f: impl FnOnce(&mut VolumeRecord),
    ) -> Result<()> {
        let v = self.volumes.get_mut(&id).filter(|v| !v.gone).ok_or_else(|| no_such_volume(id))?;
        v.begin_edit(g);
        txn.join_volume(id, g.open);
        self.held.change(v, |v| f(&mut v.record));
        Ok(())
    }

    /// A deleted volume has nothing any more: its place is empty with the transaction. Returns
    /// whether it was a staging volume.
    pub fn forget(&mut self, edit: Edit<'_>, id: VolumeId) -> Result<bool> {
        self.change(edit, id, |_| ())?;
        let Some(v) = self.volumes.get_mut(&id) else { unreachable!("it was just changed") };
        self.held.change(v, |v| v.gone = true);
        Ok(v.record.staged.is_some())
    }

    /// A commit has failed, and with it every creation that waits for one: a client that is told so
    /// must not find the volume later.
    pub fn give_up_creations(&mut self, Edit { txn, g }: Edit<'_>) {
        let waiting: Vec<VolumeId> = self
            .volumes
            .values()
            .filter(|v| v.creating && !v.is_snapshot())
            .map(|v| v.record.id)
            .collect();
        for id in waiting {
            if self.forget(Edit { txn, g }, id).is_ok()
                && let Some(v) = self.volumes.get_mut(&id)
            {
                v.creating = false;
            }
        }
    }

    /// Marks staging volumes deleted, those that `f` says; their blocks have yet to be freed.
    pub fn end_stagings(
        &mut self,
        Edit { txn, g }: Edit<'_>,
        f: impl Fn(VolumeId, Epoch) -> bool,
    ) -> Vec<VolumeId> {
        let ended: Vec<_> =
            self.stagings().filter(|&(volume, epoch, _)| f(volume, epoch)).collect();
        for &(volume, epoch, id) in &ended {
            self.stagings.remove(&(volume, epoch));
            let _ = self.change(Edit { txn, g }, id, |record| record.state = VolumeState::Deleting);
        }
        ended.into_iter().map(|(.., id)| id).collect()
    }

    /// The extents of a live volume that overlap `range`, at most `max`, in order, whole as they
    /// stand.
    pub fn extents(
        &self,
        id: VolumeId,
        range: BlockRange,
        max: usize,
    ) -> Step<SmallVec<[MappedExtent; 4]>> {
        let readable = self.volumes.get(&id).filter(|v| v.is_readable());
        let v = readable.ok_or_else(|| no_such_volume(id))?;
        mapping::overlapping(v.mapping.tree(), &self.store, &self.geometry, range, max)
    }

    /// Appends the checksums of `len` blocks of a group to `out`; false if one is missing or is of
    /// another block than `lba` and those after it of `owner`.
    pub fn checksums(
        &self,
        group: GroupId,
        offset: u32,
        len: u32,
        owner: VolumeId,
        lba: Lba,
        out: &mut impl Extend<Crc>,
    ) -> std::result::Result<bool, Fault> {
        let tree = self.sums[group.0 as usize].tree();
        checksums::lookup(tree, &self.store, offset, len, owner, lba, out)
    }

    /// The live checksum tree of a group.
    pub fn sums_tree(&self, group: GroupId) -> &Tree {
        self.sums[group.0 as usize].tree()
    }

    /// The newest transaction that has changed, or will change, what a volume holds.
    pub fn edited(&self, id: VolumeId) -> Generation {
        self.volumes.get(&id).map_or(Generation(0), |v| v.mapping.edited())
    }

    /// True if direct transactions that are not durable yet have not changed a group's checksums.
    pub fn is_quiet(&self, id: GroupId, g: Generations) -> bool {
        self.sums[id.0 as usize].edited() <= g.committed
    }

    /// A pass begins to edit the checksums of a group.
    pub fn join_sums(&mut self, pass: &mut Txn, g: Generations, id: GroupId) {
        self.sums[id.0 as usize].join_pass();
        pass.join_sums(id, g.of_pass());
    }

    /// Sees that what a write of `range` needs of a volume's mapping is resident.
    pub fn ready_mapping(
        &mut self,
        id: VolumeId,
        range: BlockRange,
    ) -> std::result::Result<(), Fault> {
        if let Some(v) = self.volumes.get(&id) {
            let tree = v.mapping.of(Kind::Pass).unwrap_or(v.mapping.tree());
            self.store.ready([mapping::range(tree, range)])?;
        }
        Ok(())
    }

    /// Nodes of the pass's checksums of the blocks `[from, to)` of a group that are not resident,
    /// at most `max`; none if the pass does not have the group.
    pub fn missing_sums(&self, id: GroupId, from: u32, to: u32, max: usize) -> Vec<Fault> {
        let tree = self.sums[id.0 as usize].of(Kind::Pass);
        let (from, to) = (checksum_key(from.saturating_sub(1)), checksum_key(to));
        tree.map_or_else(Vec::new, |tree| tree.missing(&self.store, &from, &to, max))
    }

    /// Nodes of the mapping of `range` of a volume that are not resident, at most `max`.
    pub fn missing_mapping(&self, id: VolumeId, range: BlockRange, max: usize) -> Vec<Fault> {
        let Some(v) = self.volumes.get(&id) else { return Vec::new() };
        let (tree, from, to) = mapping::range(v.mapping.tree(), range);
        tree.missing(&self.store, &from, &to, max)
    }

    /// Adds nodes of checksums to `missing` that a read of `range` of a volume needs, of at most
    /// `max` extents. Returns how far that is.
    pub fn missing_checksums(
        &self,
        id: VolumeId,
        range: BlockRange,
        max: usize,
        missing: &mut MissingNodes,
    ) -> Step<Lba> {
        let extents = self.extents(id, range, max)?;
        for e in &extents {
            let (from, to) = (e.lba.0.max(range.from.0), e.end().min(range.end.0));
            let (group, offset) = self.geometry.split(e.addr.plus(from - e.lba.0));
            let Some(sums) = self.sums.get(group.0 as usize) else { continue };
            let last = offset + (to - from) as u32 - 1;
            if missing.is_new(group, last) {
                let (from, to) = (checksum_key(offset), checksum_key(last));
                missing.add(sums.tree().missing(&self.store, &from, &to, usize::MAX));
            }
        }
        let last = extents.last().filter(|_| extents.len() >= max);
        Ok(last.map_or(range.end, |e| Lba(e.end().min(range.end.0))))
    }

    /// A client reads; see [`Readers::follow`].
    pub fn follow(&mut self, id: VolumeId, lba: Lba, blocks: u64, most: u64) -> UpcomingReads {
        self.readers.follow(id, lba, blocks, most)
    }

    /// A transaction's version of a volume's mapping.
    pub fn mapping_of(&self, kind: Kind, id: VolumeId) -> Option<&Tree> {
        self.volumes.get(&id)?.mapping.of(kind)
    }

    /// A transaction's version of a group's checksums.
    pub fn sums_of(&self, kind: Kind, id: GroupId) -> Option<&Tree> {
        self.sums[id.0 as usize].of(kind)
    }

    /// The nodes of the pass's mapping of a volume have their addresses.
    pub fn settle_pass_mapping(&mut self, id: VolumeId, written: &Tree) {
        if let Some(v) = self.volumes.get_mut(&id) {
            v.mapping.settle_pass(written);
        }
    }

    /// The nodes of the pass's checksums of a group have their addresses.
    pub fn settle_pass_sums(&mut self, id: GroupId, written: &Tree) {
        self.sums[id.0 as usize].settle_pass(written);
    }

    /// The trees of a pass take the place of the live ones, in the direct transaction.
    pub fn publish_pass(&mut self, Edit { txn, g }: Edit<'_>, pass: &Txn) {
        for (id, joined) in pass.volumes() {
            let Some(v) = self.volumes.get_mut(&id) else { continue };
            v.begin_edit(g);
            if v.mapping.publish_pass() {
                self.held.change(v, |v| v.record.allocated_blocks = joined.blocks);
            }
            txn.join_volume(id, g.open);
        }
        for (id, _) in pass.groups() {
            let sums = &mut self.sums[id.0 as usize];
            sums.begin_edit(g);
            sums.publish_pass();
            txn.join_sums(id, g.open);
        }
    }

    /// A pass is given up.
    pub fn leave_pass(&mut self, pass: &Txn) -> UnneededTrees {
        let mut trees = UnneededTrees::default();
        for (id, _) in pass.volumes() {
            if let Some(v) = self.volumes.get_mut(&id) {
                v.mapping.leave_pass().into_iter().for_each(|tree| trees.add(tree));
            }
        }
        for (id, _) in pass.groups() {
            self.sums[id.0 as usize].leave_pass().into_iter().for_each(|tree| trees.add(tree));
        }
        trees
    }

    /// A volume as of the freeze of `generation`. From now on edits need not keep it.
    pub fn take_frozen_volume(
        &mut self,
        id: VolumeId,
        generation: Generation,
    ) -> Option<FrozenVolume> {
        self.volumes.get_mut(&id).map(|v| v.take_frozen(generation))
    }

    /// The same of a group's checksums.
    pub fn take_frozen_sums(&mut self, id: GroupId, generation: Generation) -> Tree {
        self.sums[id.0 as usize].take_frozen(generation)
    }

    /// A commit has written a volume's mapping and deadlist. Returns the volume's place in the
    /// table.
    pub fn enter_root(
        &mut self,
        frozen: &FrozenVolume,
        root: Option<RootPtr>,
        deadlist: Option<RootPtr>,
    ) -> Option<u32> {
        let v = self.volumes.get(&frozen.id)?;
        // A volume whose creation was reported as failed, in the first try of this commit, must not
        // come to be by the second.
        let cancelled = v.gone && root.is_none();
        let record = VolumeRecord { mapping: root, deadlist, ..frozen.record.clone() };
        let is_kept = frozen.record.state == VolumeState::Live && !frozen.gone;
        self.deletions += u64::from(v.is_snapshot() && !is_kept);
        self.places[v.place as usize] = (!frozen.gone && !cancelled).then_some(record);
        Some(v.place)
    }

    /// The commit that has written a volume is durable.
    pub fn settle_volume(&mut self, frozen: &FrozenVolume) {
        if frozen.gone {
            if let Some(v) = self.volumes.remove(&frozen.id) {
                self.held.remove(&v);
                if let Some(origin) = v.record.snapshot {
                    self.snapshots.remove(&(origin.volume, origin.generation));
                    let left = self.snapshots.keys().any(|(of, _)| *of == origin.volume);
                    let of = self.volumes.get_mut(&origin.volume);
                    of.into_iter().for_each(|of| of.has_snapshots = left);
                }
            }
        } else if let Some(v) = self.volumes.get_mut(&frozen.id) {
            v.settle(&frozen.mapping);
        }
    }

    /// The commit that has written a group's checksums is durable.
    pub fn settle_sums(&mut self, id: GroupId, written: &Tree) {
        self.sums[id.0 as usize].settle(written);
    }
}

#[cfg(test)]
#[path = "forest_tests.rs"]
mod tests;
