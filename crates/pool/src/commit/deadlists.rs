//! The deadlists of a commit: what volumes with snapshots have lost is freed or entered, and
//! snapshots that are being deleted are drained, a part at a time.
//!
//! All of it is decided by the volume table as the commit before has left it, and only commits
//! change deadlists, one after another. So:
//!
//! - Nothing is freed that a snapshot has, unless a durable commit calls that snapshot deleted.
//! - A block stands in one deadlist at most, and only while a snapshot has it.
//!
//! A deleted snapshot `S` has a predecessor, the newest older one that is not deleted, and a
//! successor, the next one or the volume. What only `S` has stands in the successor's deadlist, and
//! is younger than the predecessor. What stands in the deadlist of `S` died before `S` was taken:
//! it goes on into the successor's, unless it is younger than the predecessor.
//!
//! **No commit fails for a deadlist for good.** Where a node of one cannot be read, the list begins
//! anew, and its blocks are leaked: `forebay check --repair` finds them. The same holds where there
//! is no room for the nodes of the lists; draining is left for later commits before that.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::rc::Rc;

use base::{Birth, ErrorKind, Generation, Result, StorageError, VolumeId};
use btree::{Changes, NodePtr, ReplacedNode, Tree, UnneededTrees};
use format::node::RootPtr;
use format::page::{GroupKind, SnapshotOrigin, VolumeState};
use format::records::{DeadAge, DeadRun, MAX_EXTENT, dead_key};
use format::tree::volume_of_tree;
use queue::Class;

use super::frozen::{FrozenDeadlist, FrozenDeadlists, FrozenTxn, SLICE};
use crate::core::Core;
use crate::error::Step;
use crate::forest::{FrozenVolume, Successor, deadlist_tree, may_have};
use crate::space::Run;
use crate::state::State;
use crate::transfer::Writes;
use crate::transfer::copies::CopyReader;
use crate::transfer::load::{EntryError, NodeLoader};
use crate::transfer::node_writer::NodeWrites;
use crate::txn::{LostBlocks, LostRun};

/// Records that a commit takes out of the lists for one deleted snapshot: so many that a commit
/// takes no longer for it than for a few thousand changed blocks.
const DRAINED_AT_ONCE: usize = 1024;
/// Behind all keys of a deadlist.
const END: [u8; 1] = [2];
/// So often a commit is tried again for a node that no device gives, and that may be good.
const ATTEMPTS: u32 = 3;

/// Edits the deadlists of commits.
pub(crate) struct Deadlists {
    core: Core,
    copies: Rc<CopyReader>,
    loader: Rc<NodeLoader>,
    nodes: Rc<NodeWrites>,
}

/// The part of its work on deadlists that a commit has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EditScope {
    All,
    /// Deleted snapshots wait for a later commit.
    NoDrain,
    /// What snapshots may have is not entered, and leaks.
    Leak,
}

/// Why records of a deadlist could not be read or changed.
enum ListTrouble {
    /// The list is of no use any more.
    Lost(StorageError),
    /// A device may yet give what is missing.
    NotNow(StorageError),
}

/// Whether a range has more records.
enum SliceEnd {
    More,
    Over,
}

/// Records that were taken out of a deadlist.
struct TakenRecords {
    records: Vec<DeadRun>,
    /// False if a device did not give the rest just now.
    is_all: bool,
}

/// The deadlists that a commit edits, and what it frees.
struct DeadlistEdit {
    generation: Generation,
    /// The commit has waited long enough for what cannot be read.
    is_last: bool,
    lists: BTreeMap<VolumeId, OpenList>,
    frees: Vec<Run>,
    freed_nodes: Vec<NodePtr>,
}

/// A deadlist that is edited.
struct OpenList {
    tree: Tree,
    changes: Changes,
}

/// Records of a deadlist, in the order of their keys.
struct DeadRange {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl DeadRange {
    fn all() -> DeadRange {
        DeadRange { from: dead_key(DeadAge::Data(Birth(0))).to_vec(), to: END.to_vec() }
    }

    /// The records that are younger than what `kept` may have; without it all.
    fn younger_than(kept: Option<SnapshotOrigin>) -> [DeadRange; 2] {
        let first_node = dead_key(DeadAge::Node(Generation(0))).to_vec();
        let (data, node) = match kept {
            None => (DeadAge::Data(Birth(0)), DeadAge::Node(Generation(0))),
            Some(kept) => (
                DeadAge::Data(Birth(kept.birth.0.saturating_add(1))),
                DeadAge::Node(Generation(kept.generation.0.saturating_add(1))),
            ),
        };
        [
            DeadRange { from: dead_key(data).to_vec(), to: first_node },
            DeadRange { from: dead_key(node).to_vec(), to: END.to_vec() },
        ]
    }
}

impl Deadlists {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        copies: &Rc<CopyReader>,
        loader: &Rc<NodeLoader>,
        nodes: &Rc<NodeWrites>,
    ) -> Rc<Deadlists> {
        Rc::new(Deadlists {
            core: core.clone(),
            copies: copies.clone(),
            loader: loader.clone(),
            nodes: nodes.clone(),
        })
    }

    /// Edits the deadlists of a commit whose volumes are captured, and sends their nodes.
    pub(super) async fn write(&self, frozen: &mut FrozenTxn, writes: &mut Writes) -> Result<()> {
        if frozen.deadlists.is_none() {
            self.edit(frozen).await?;
        }
        let generation = frozen.generation;
        let Some(FrozenDeadlists { lists, .. }) = &mut frozen.deadlists else { return Ok(()) };
        let mut writer = self.nodes.uncounted_writer(&mut frozen.node_blocks, writes);
        let mut outcome = Ok(());
        for list in lists {
            match writer.tree(&list.tree, generation).await {
                Ok(root) => list.root = root,
                Err(e) => {
                    outcome = Err(e);
                    break;
                }
            }
        }
        writer.finish().await;
        outcome
    }

    /// What a commit does to deadlists. After an error nothing was done.
    async fn edit(&self, frozen: &mut FrozenTxn) -> Result<()> {
        if frozen.lost.is_none() {
            frozen.lost = Some(frozen.txn.take_lost());
        }
        let Some(lost) = &frozen.lost else { unreachable!("it was just taken") };
        let deleted = self.deleted(frozen);
        for scope in [EditScope::All, EditScope::NoDrain, EditScope::Leak] {
            let mut edit = DeadlistEdit::new(frozen.generation, frozen.attempt >= ATTEMPTS);
            self.enter_lost(&mut edit, lost, scope).await?;
            let mut drained = Vec::new();
            for snapshot in deleted.iter().filter(|_| scope == EditScope::All) {
                if self.drain(&mut edit, snapshot).await? {
                    drained.push(snapshot.id);
                }
            }
            if !self.has_room(&edit) && scope != EditScope::Leak {
                self.core.take_apart(edit.into_trees()).await;
                continue;
            }
            if scope == EditScope::Leak {
                tracing::error!(
                    "the pool has no room for the list of what its snapshots have: the space of \
                     what was overwritten now is lost until forebay check --repair frees it"
                );
            }
            self.settle(frozen, edit, drained).await;
            break;
        }
        Ok(())
    }

    /// Whether the nodes of the lists find room beside what else is dirty.
    fn has_room(&self, edit: &DeadlistEdit) -> bool {
        let nodes: usize = edit.lists.values().map(|list| list.changes.dirty()).sum();
        let st = self.core.state();
        let others = st.txns.open().dirty_nodes() + st.txns.open().deadlist_nodes();
        st.space.room().metadata_left(&st.devices) >= nodes as u64 + others
    }

    /// The snapshots of a commit that a durable commit calls deleted.
    fn deleted(&self, frozen: &FrozenTxn) -> Vec<SnapshotToDrain> {
        let st = self.core.state();
        let joined: BTreeSet<VolumeId> = frozen.volumes.iter().map(|v| v.id).collect();
        let of = |v: &FrozenVolume| {
            let is_deleted = st.forest.committed_state(v.id) == Some(VolumeState::Deleting);
            let origin = v.record.snapshot.filter(|_| is_deleted && !v.gone)?;
            let Successor(next) = st.forest.successor(&origin, frozen.generation);
            // The records of both change.
            let snapshot = SnapshotToDrain { id: v.id, origin, next };
            joined.contains(&next).then_some(snapshot)
        };
        frozen.volumes.iter().filter_map(of).collect()
    }

    /// Gives the outcome of an edit to the transaction.
    async fn settle(&self, frozen: &mut FrozenTxn, edit: DeadlistEdit, drained: Vec<VolumeId>) {
        let DeadlistEdit { lists, mut frees, mut freed_nodes, .. } = edit;
        let mut edited = Vec::with_capacity(lists.len());
        for (owner, OpenList { tree, mut changes }) in lists {
            freed_nodes.extend(changes.take_freed().resolve());
            edited.push(FrozenDeadlist { owner, tree, root: None });
        }
        for part in freed_nodes.chunks(SLICE) {
            {
                let mut st = self.core.state_mut();
                part.iter().for_each(|node| st.forest.store_mut().forget(node.addr));
            }
            frees.extend(part.iter().map(|node| Run { addr: node.addr, len: 1 }));
            self.core.breathe(part.len()).await;
        }
        if !frees.is_empty() {
            frozen.frees.push(frees);
        }
        frozen.lost = None;
        frozen.deadlists = Some(FrozenDeadlists { lists: edited, drained });
    }

    /// Frees what volumes have lost, or enters it, where a snapshot may have it.
    async fn enter_lost(
        &self,
        edit: &mut DeadlistEdit,
        lost: &LostBlocks,
        scope: EditScope,
    ) -> Result<()> {
        let mut dead = DeadBlocks { died: edit.generation, ..DeadBlocks::default() };
        for part in lost.data.iter().flat_map(|list| list.chunks(SLICE)) {
            {
                let st = self.core.state();
                for lost in part {
                    dead.add_data(&st, lost);
                }
            }
            self.core.breathe(part.len()).await;
        }
        for part in lost.nodes.chunks(SLICE) {
            {
                let st = self.core.state();
                edit.freed_nodes.extend(part.iter().filter_map(|node| dead.add_node(&st, node)));
            }
            self.core.breathe(part.len()).await;
        }
        edit.frees.append(&mut dead.frees);
        if scope == EditScope::Leak {
            return Ok(());
        }
        for (volume, mut records) in dead.records {
            // Nodes come in no order of their age.
            records.sort_unstable_by_key(DeadRun::key);
            self.insert(edit, volume, &records).await?;
        }
        Ok(())
    }

    /// Enters records into a deadlist.
    async fn insert(
        &self,
        edit: &mut DeadlistEdit,
        owner: VolumeId,
        records: &[DeadRun],
    ) -> Result<()> {
        for part in records.chunks(SLICE) {
            let list = self.list(edit, owner);
            // To enter a record twice is to enter it once.
            let step = |st: &mut State| {
                for record in part {
                    let (store, key) = (st.forest.store_mut(), record.key());
                    let mut editor = store.edit(&mut list.tree, &mut list.changes, &key, &key)?;
                    editor.insert(&key, &record.value());
                }
                Ok(())
            };
            match self.step(step).await {
                Ok(()) => {}
                Err(ListTrouble::NotNow(e)) if !edit.is_last => return Err(e),
                Err(ListTrouble::NotNow(e) | ListTrouble::Lost(e)) => self.give_up(edit, owner, &e),
            }
            self.core.rt().yield_now().await;
        }
        Ok(())
    }

    /// Runs a step over the nodes of a deadlist.
    async fn step<T>(
        &self,
        step: impl FnMut(&mut State) -> Step<T>,
    ) -> std::result::Result<T, ListTrouble> {
        let outcome = self.loader.resident_or_lost(Class::Commit, |_| None, step).await;
        let EntryError { why, node } = match outcome {
            Ok(done) => return Ok(done),
            Err(failed) => failed,
        };
        let Some(node) = node.filter(|_| why.kind != ErrorKind::Damaged) else {
            return Err(ListTrouble::Lost(why));
        };
        let pin = self.core.state().space.limbo().pin();
        let is_bad = self.copies.is_surely_bad(node.ptr.addr, node.ptr.crc, Class::Commit, &pin);
        match is_bad.await {
            true => Err(ListTrouble::Lost(why)),
            false => Err(ListTrouble::NotNow(why)),
        }
    }

    /// Takes records of a range out of a deadlist, at most `most`.
    async fn take(
        &self,
        edit: &mut DeadlistEdit,
        owner: VolumeId,
        range: &DeadRange,
        most: usize,
    ) -> TakenRecords {
        let mut taken = TakenRecords { records: Vec::new(), is_all: true };
        while taken.records.len() < most {
            let wanted = SLICE.min(most - taken.records.len());
            let slice = self.take_slice(self.list(edit, owner), range, wanted, &mut taken).await;
            match slice {
                Ok(SliceEnd::More) => {}
                Ok(SliceEnd::Over) => return taken,
                Err(ListTrouble::NotNow(e)) => {
                    tracing::warn!("a deleted snapshot waits, as its list cannot be read now: {e}");
                    taken.is_all = false;
                    return taken;
                }
                Err(ListTrouble::Lost(e)) => {
                    self.give_up(edit, owner, &e);
                    return taken;
                }
            }
            self.core.rt().yield_now().await;
        }
        taken
    }

    /// Takes the first records of a range, at most `wanted`. Those that were removed are in `taken`
    /// also after an error.
    async fn take_slice(
        &self,
        list: &mut OpenList,
        range: &DeadRange,
        wanted: usize,
        taken: &mut TakenRecords,
    ) -> std::result::Result<SliceEnd, ListTrouble> {
        let found = self.step(|st| found_in(st, &list.tree, range, wanted)).await?;
        let mut left = found.iter();
        // A node may be missing when some are removed: then the step goes on with the next.
        let remove = |st: &mut State| {
            while let Some(record) = left.as_slice().first() {
                let (store, key) = (st.forest.store_mut(), record.key());
                let mut editor = store.edit(&mut list.tree, &mut list.changes, &key, &key)?;
                editor.remove(&key);
                taken.records.extend(left.next());
            }
            Ok(())
        };
        self.step(remove).await?;
        Ok(if found.len() < wanted { SliceEnd::Over } else { SliceEnd::More })
    }

    /// A deadlist as this commit has it.
    fn list<'e>(&self, edit: &'e mut DeadlistEdit, owner: VolumeId) -> &'e mut OpenList {
        let generation = edit.generation;
        edit.lists.entry(owner).or_insert_with(|| {
            let st = self.core.state();
            let of = st.forest.volume(owner).map_or(owner, |v| v.record().owner());
            let tree = deadlist_tree(of, st.forest.deadlist(owner));
            OpenList { tree, changes: Changes::new(generation) }
        })
    }

    /// A deadlist cannot be read, and an empty one takes its place: its blocks are not freed, and
    /// all else goes on.
    fn give_up(&self, edit: &mut DeadlistEdit, owner: VolumeId, why: &StorageError) {
        let st = self.core.state();
        tracing::error!(
            volume = st.volume_name(owner),
            "the list of blocks that snapshots of this volume have cannot be read, and begins \
             anew: the space of those blocks is lost until forebay check --repair frees it: {why}"
        );
        let of = st.forest.volume(owner).map_or(owner, |v| v.record().owner());
        let empty =
            OpenList { tree: deadlist_tree(of, None), changes: Changes::new(edit.generation) };
        edit.lists.insert(owner, empty);
    }

    /// Takes a part of what only deleted snapshots have out of the lists, and frees it. Returns
    /// whether nothing is left of this one.
    async fn drain(&self, edit: &mut DeadlistEdit, snapshot: &SnapshotToDrain) -> Result<bool> {
        let SnapshotToDrain { next, origin, .. } = *snapshot;
        let kept = self.core.state().forest.newest_kept(origin.volume, origin.generation);
        let mut left = DRAINED_AT_ONCE;
        let own = self.take(edit, snapshot.id, &DeadRange::all(), left).await;
        left -= own.records.len();
        let has_kept = |record: &DeadRun| kept.is_some_and(|kept| may_have(&kept, record.age));
        let (stays, goes): (Vec<_>, Vec<_>) = own.records.into_iter().partition(has_kept);
        edit.free(goes);
        self.insert(edit, next, &stays).await?;
        let mut is_all = own.is_all;
        for range in DeadRange::younger_than(kept) {
            let taken = self.take(edit, next, &range, left).await;
            left -= taken.records.len();
            is_all &= taken.is_all;
            edit.free(taken.records);
        }
        Ok(is_all && left > 0)
    }
}

/// The first records of a range of a deadlist.
fn found_in(st: &State, tree: &Tree, range: &DeadRange, wanted: usize) -> Step<Vec<DeadRun>> {
    let (mut found, mut bad) = (Vec::new(), false);
    tree.scan(st.forest.store(), &range.from, &range.to, |k, v| {
        let record = DeadRun::decode(k, v).filter(|record| is_sound(st, record));
        bad |= record.is_none();
        found.extend(record);
        let goes_on = !bad && found.len() < wanted;
        if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    if bad {
        let text = "a record of a deadlist makes no sense; run forebay check";
        return Err(StorageError::new(ErrorKind::Damaged, text).into());
    }
    Ok(found)
}

/// Whether the blocks of a record lie in one group of their kind.
fn is_sound(st: &State, record: &DeadRun) -> bool {
    let geometry = st.space.geometry();
    if !geometry.contains(record.addr) {
        return false;
    }
    let (group, block) = geometry.split(record.addr);
    let kind = match record.age {
        DeadAge::Data(_) => GroupKind::Data,
        DeadAge::Node(_) => GroupKind::Metadata,
    };
    block + record.len <= geometry.group_blocks && st.space.groups().kind(group) == kind
}

/// A snapshot that a durable commit calls deleted.
struct SnapshotToDrain {
    id: VolumeId,
    origin: SnapshotOrigin,
    /// The owner of the deadlist that gets what others still have.
    next: VolumeId,
}

impl DeadlistEdit {
    fn new(generation: Generation, is_last: bool) -> DeadlistEdit {
        DeadlistEdit {
            generation,
            is_last,
            lists: BTreeMap::new(),
            frees: Vec::new(),
            freed_nodes: Vec::new(),
        }
    }

    /// The edit is given up.
    fn into_trees(self) -> UnneededTrees {
        UnneededTrees::of(self.lists.into_values().map(|list| list.tree))
    }

    fn free(&mut self, records: Vec<DeadRun>) {
        for DeadRun { age, addr, len, .. } in records {
            match age {
                DeadAge::Data(_) => self.frees.push(Run { addr, len }),
                DeadAge::Node(generation) => {
                    self.freed_nodes.push(NodePtr { addr, generation, crc: 0 });
                }
            }
        }
    }
}

/// Blocks that volumes have lost in one commit: those that go at once, and records of the others.
#[derive(Default)]
struct DeadBlocks {
    died: Generation,
    /// The newest snapshot of each volume that may have what it loses.
    newest: BTreeMap<VolumeId, Option<SnapshotOrigin>>,
    frees: Vec<Run>,
    records: BTreeMap<VolumeId, Vec<DeadRun>>,
    entered: u32,
}

impl DeadBlocks {
    /// The newest snapshot of a volume that may have what the volume loses now.
    fn newest(&mut self, st: &State, volume: VolumeId) -> Option<SnapshotOrigin> {
        let died = self.died;
        *self.newest.entry(volume).or_insert_with(|| st.forest.newest_kept(volume, died))
    }

    fn add_data(&mut self, st: &State, lost: &LostRun) {
        let LostRun { volume, birth, run } = *lost;
        let age = DeadAge::Data(birth);
        if !self.newest(st, volume).is_some_and(|snapshot| may_have(&snapshot, age)) {
            self.frees.push(run);
            return;
        }
        let records = self.records.entry(volume).or_default();
        let group_blocks = u64::from(st.space.geometry().group_blocks);
        if let Some(last) = records.last_mut().filter(|last| last.age == age) {
            let goes_on = last.addr.plus(last.len.into()) == run.addr
                && last.len + run.len <= MAX_EXTENT
                && last.addr.0 / group_blocks == run.addr.0 / group_blocks;
            if goes_on {
                last.len += run.len;
                return;
            }
        }
        self.push(volume, age, run);
    }

    /// Returns the node if no snapshot has it.
    fn add_node(&mut self, st: &State, node: &ReplacedNode) -> Option<NodePtr> {
        let Some(volume) = volume_of_tree(node.tree) else {
            unreachable!("only mappings have snapshots")
        };
        let generation = node.ptr.generation;
        let newest = self.newest(st, volume);
        if !newest.is_some_and(|snapshot| may_have(&snapshot, DeadAge::Node(generation))) {
            return Some(node.ptr);
        }
        // The generation of the oldest snapshot that has it: so nodes that died in one commit stand
        // side by side.
        let oldest = st.forest.oldest_since(volume, generation).unwrap_or(generation);
        self.push(volume, DeadAge::Node(oldest), Run { addr: node.ptr.addr, len: 1 });
        None
    }

    fn push(&mut self, volume: VolumeId, age: DeadAge, run: Run) {
        let (died, number) = (self.died, self.entered);
        self.entered += 1;
        let record = DeadRun { age, died, number, addr: run.addr, len: run.len };
        self.records.entry(volume).or_default().push(record);
    }
}

/// The deadlists of volumes and snapshots after a commit that takes these snapshots: the list of a
/// volume goes over to its snapshot.
pub(super) fn roots_after(
    frozen: &FrozenTxn,
    committed: impl Fn(VolumeId) -> Option<RootPtr>,
) -> BTreeMap<VolumeId, Option<RootPtr>> {
    let lists = frozen.deadlists.iter().flat_map(|all| &all.lists);
    let mut roots: BTreeMap<VolumeId, Option<RootPtr>> =
        lists.map(|list| (list.owner, list.root)).collect();
    for taken in &frozen.snapshots {
        let root = roots.get(&taken.of).copied().unwrap_or_else(|| committed(taken.of));
        roots.insert(taken.id, root);
        roots.insert(taken.of, None);
    }
    roots
}
