//! The snapshots of the forest, and what a volume's deadlist has to keep for them.
//!
//! What a commit decides about a snapshot follows from the volume table as the commit before has
//! left it: a snapshot that is deleted in memory only has its blocks still.

use base::{Birth, Generation, VolumeId};
use btree::Tree;
use format::node::RootPtr;
use format::page::{CacheMode, SnapshotOrigin, VolumeRecord, VolumeState};
use format::records::DeadAge;
use format::tree::mapping_tree_id;

use super::{Forest, LiveTree, Volume};

/// A snapshot that is about to be taken.
pub(crate) struct NewSnapshot {
    /// The volume that it is of.
    pub of: VolumeId,
    /// Its place in the volume table.
    pub place: u32,
    pub name: String,
    pub taken_at: u64,
}

/// The owner of the deadlist in which the blocks stand that the snapshot before it has, and it
/// does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Successor(pub VolumeId);

impl Forest {
    /// The snapshots of a volume, the oldest first.
    pub fn snapshots_of(&self, id: VolumeId) -> impl DoubleEndedIterator<Item = &Volume> {
        let all = self.snapshots.range((id, Generation(0))..=(id, Generation(u64::MAX)));
        all.filter_map(|(_, snapshot)| self.volumes.get(snapshot))
    }

    /// The generation since which nodes of a volume or a snapshot are not in the snapshot before.
    pub fn since_snapshot_before(&self, id: VolumeId) -> Generation {
        let Some(v) = self.volumes.get(&id) else { return Generation(0) };
        let (of, until) = match v.record.snapshot {
            Some(own) => (own.volume, own.generation),
            None => (id, Generation(u64::MAX)),
        };
        let mut before = self.snapshots.range((of, Generation(0))..(of, until)).rev();
        let found = before.find(|(_, snapshot)| self.has_all_nodes(**snapshot));
        found.map_or(Generation(0), |(&(_, generation), _)| generation.next())
    }

    /// Counts what the table says of deleted snapshots: while this does not change, no snapshot
    /// has been deleted.
    pub fn deletions(&self) -> u64 {
        self.deletions
    }

    /// False of a snapshot that a durable commit calls deleted: nodes of its tree may be free.
    pub fn has_all_nodes(&self, id: VolumeId) -> bool {
        let Some(v) = self.volumes.get(&id).filter(|v| v.is_snapshot()) else { return true };
        // The running commit may have taken one that is drained out of the table.
        let is_kept = v.is_there() && v.record.state == VolumeState::Live;
        is_kept || self.committed_state(id) == Some(VolumeState::Live)
    }

    /// Enters a snapshot of the state that a volume has now, which the transaction that is frozen
    /// next makes durable.
    pub fn add_snapshot(
        &mut self,
        new: NewSnapshot,
        birth: Birth,
        generation: Generation,
    ) -> VolumeId {
        let NewSnapshot { of, place, name, taken_at } = new;
        let id = VolumeId(self.next_volume);
        self.next_volume += 1;
        let Some(v) = self.volumes.get_mut(&of) else { unreachable!("it was just looked at") };
        v.has_snapshots = true;
        let origin = SnapshotOrigin { volume: of, birth, generation, taken_at };
        let record = VolumeRecord {
            id,
            name,
            snapshot: Some(origin),
            deadlist: None,
            read_only: true,
            cache_mode: CacheMode::None,
            limit: None,
            mapping: None,
            ..v.record.clone()
        };
        // Moves look for its nodes: what the volume changes from now on has other ones.
        let tree = v.mapping.tree().clone();
        let snapshot =
            Volume { mapping: LiveTree::frozen(tree), ..Volume::new(record, place, true) };
        self.volumes.insert(id, snapshot);
        self.snapshots.insert((of, generation), id);
        id
    }

    /// Puts a snapshot into the table that the running commit takes, with the root of its volume
    /// and the deadlist that the volume had. Returns its place.
    pub fn enter_snapshot(
        &mut self,
        id: VolumeId,
        mapping: Option<RootPtr>,
        deadlist: Option<RootPtr>,
    ) -> Option<u32> {
        let v = self.volumes.get_mut(&id)?;
        v.record.mapping = mapping;
        let record = VolumeRecord { deadlist, ..v.record.clone() };
        self.places[v.place as usize] = Some(record);
        Some(v.place)
    }

    /// The commit that took a snapshot is durable.
    pub fn settle_snapshot(&mut self, id: VolumeId) {
        let Some(v) = self.volumes.get_mut(&id) else { return };
        let tree = Tree::open(mapping_tree_id(v.record.owner()), v.record.mapping);
        v.mapping.replace(tree);
        v.creating = false;
    }

    /// What the table as committed says of a snapshot.
    fn committed(&self, v: &Volume) -> Option<&VolumeRecord> {
        self.places[v.place as usize].as_ref().filter(|record| record.id == v.record.id)
    }

    /// The committed state of a snapshot; `None`: it is not committed.
    pub fn committed_state(&self, id: VolumeId) -> Option<VolumeState> {
        self.committed(self.volumes.get(&id)?).map(|record| record.state)
    }

    /// The newest snapshot of a volume, by the table as committed, that is older than a commit and
    /// not deleted.
    pub fn newest_kept(&self, of: VolumeId, before: Generation) -> Option<SnapshotOrigin> {
        let older = self.snapshots.range((of, Generation(0))..(of, before)).rev();
        let all = older.filter_map(|(_, id)| self.committed(self.volumes.get(id)?));
        let mut kept = all.filter(|record| record.state == VolumeState::Live);
        kept.find_map(|record| record.snapshot)
    }

    /// The owner of the deadlist that gets what a deleted snapshot leaves: the next one that is not
    /// deleted, by the table as committed, or the volume. The commit of `now` may be taking another
    /// one, which gets the volume's list afterwards.
    pub fn successor(&self, origin: &SnapshotOrigin, now: Generation) -> Successor {
        let from = Generation(origin.generation.0.saturating_add(1)).min(now);
        let mut later = self.snapshots.range((origin.volume, from)..(origin.volume, now));
        let is_kept = |id: VolumeId| self.committed_state(id) != Some(VolumeState::Deleting);
        let next = later.find(|(_, id)| is_kept(**id));
        Successor(next.map_or(origin.volume, |(_, id)| *id))
    }

    /// The generation of the oldest snapshot of a volume that may have nodes of this one.
    pub fn oldest_since(&self, of: VolumeId, generation: Generation) -> Option<Generation> {
        let mut since = self.snapshots.range((of, generation)..=(of, Generation(u64::MAX)));
        since.next().map(|(&(_, taken), _)| taken)
    }

    /// The deadlist of a volume or a snapshot as committed.
    pub fn deadlist(&self, id: VolumeId) -> Option<RootPtr> {
        self.volumes.get(&id).and_then(|v| v.deadlist)
    }

    /// The tree of that deadlist.
    pub fn deadlist_of(&self, id: VolumeId) -> Option<Tree> {
        let v = self.volumes.get(&id)?;
        Some(deadlist_tree(v.record.owner(), Some(v.deadlist?)))
    }

    /// A commit that has written the deadlist of a volume or a snapshot is durable.
    pub fn set_deadlist(&mut self, id: VolumeId, root: Option<RootPtr>) {
        if let Some(v) = self.volumes.get_mut(&id) {
            v.deadlist = root;
        }
    }

    /// Nothing is left to be done before a snapshot is gone.
    pub fn note_drained(&mut self, id: VolumeId) {
        if let Some(v) = self.volumes.get_mut(&id) {
            v.drained = true;
        }
    }
}

/// True if a snapshot may have blocks of this age.
pub(crate) fn may_have(snapshot: &SnapshotOrigin, age: DeadAge) -> bool {
    match age {
        DeadAge::Data(birth) => birth <= snapshot.birth,
        DeadAge::Node(generation) => generation <= snapshot.generation,
    }
}

/// An empty deadlist of a volume, or the one with this root.
pub(crate) fn deadlist_tree(of: VolumeId, root: Option<RootPtr>) -> Tree {
    Tree::open(format::tree::deadlist_tree_id(of), root)
}
