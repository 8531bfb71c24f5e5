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

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::rc::Rc;

use base::{Birth, ErrorKind, Generation, Result, VolumeId};
use btree::{Changes, NodePtr, Tree};
use format::node::RootPtr;
use format::page::{SnapshotOrigin, VolumeState};
use format::records::{DeadAge, DeadRun, MAX_EXTENT, dead_key};
use format::tree::volume_of_tree;
use queue::Class;

use super::frozen::{FrozenDeadlist, FrozenDeadlists, FrozenTxn, SLICE};
use crate::core::Core;
use crate::forest::{FrozenVolume, Successor, deadlist_tree, may_have};
use crate::space::Run;
use crate::state::State;
use crate::transfer::Writes;
use crate::transfer::load::NodeLoader;
use crate::transfer::node_writer::NodeWrites;
use crate::txn::LostBlocks;

/// Records that a commit takes out of the lists for one deleted snapshot: so many that a commit
/// takes no longer for it than for a few thousand changed blocks.
const DRAINED_AT_ONCE: usize = 1024;
/// Behind all keys of a deadlist.
const END: [u8; 1] = [2];

/// Edits the deadlists of commits.
pub(crate) struct Deadlists {
    core: Core,
    loader: Rc<NodeLoader>,
    nodes: Rc<NodeWrites>,
}

/// The deadlists that a commit edits, and what it frees.
struct DeadlistEdit {
    generation: Generation,
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
                DeadAge::Node(Generation(kept.generation.0 + 1)),
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
        loader: &Rc<NodeLoader>,
        nodes: &Rc<NodeWrites>,
    ) -> Rc<Deadlists> {
        Rc::new(Deadlists { core: core.clone(), loader: loader.clone(), nodes: nodes.clone() })
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
        let deleted: Vec<SnapshotToDrain> = {
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
        };
        if frozen.lost.is_none() {
            frozen.lost = Some(frozen.txn.take_lost());
        }
        let Some(lost) = &frozen.lost else { unreachable!("it was just taken") };
        let mut edit = DeadlistEdit {
            generation: frozen.generation,
            lists: BTreeMap::new(),
            frees: Vec::new(),
            freed_nodes: Vec::new(),
        };
        self.enter_lost(&mut edit, lost).await?;
        let mut drained = Vec::new();
        for snapshot in deleted {
            if self.drain(&mut edit, &snapshot).await? {
                drained.push(snapshot.id);
            }
        }
        self.settle(frozen, edit, drained).await;
        Ok(())
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
    async fn enter_lost(&self, edit: &mut DeadlistEdit, lost: &LostBlocks) -> Result<()> {
        let mut dead = DeadBlocks { died: edit.generation, ..DeadBlocks::default() };
        for part in lost.data.chunks(SLICE) {
            {
                let st = self.core.state();
                for lost in part {
                    dead.add(&st, lost.volume, DeadAge::Data(lost.birth), lost.run);
                }
            }
            self.core.breathe(part.len()).await;
        }
        for part in lost.nodes.chunks(SLICE) {
            {
                let st = self.core.state();
                for node in part {
                    let Some(volume) = volume_of_tree(node.tree) else {
                        unreachable!("only mappings have snapshots")
                    };
                    let run = Run { addr: node.ptr.addr, len: 1 };
                    if !dead.add(&st, volume, DeadAge::Node(node.ptr.generation), run) {
                        edit.freed_nodes.push(node.ptr);
                    }
                }
            }
            self.core.breathe(part.len()).await;
        }
        edit.frees.append(&mut dead.frees);
        for (volume, records) in dead.records {
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
            let step = |st: &mut State| {
                for record in part {
                    let (store, key) = (st.forest.store_mut(), record.key());
                    let mut editor = store.edit(&mut list.tree, &mut list.changes, &key, &key)?;
                    editor.insert(&key, &record.value());
                }
                Ok(())
            };
            match self.loader.resident(Class::Commit, step).await {
                Err(e) if e.kind == ErrorKind::Damaged => self.give_up(edit, owner, &e),
                outcome => outcome?,
            }
            self.core.rt().yield_now().await;
        }
        Ok(())
    }

    /// Takes records of a range out of a deadlist, at most `most`.
    async fn take(
        &self,
        edit: &mut DeadlistEdit,
        owner: VolumeId,
        range: &DeadRange,
        most: usize,
    ) -> Result<Vec<DeadRun>> {
        let mut taken = Vec::new();
        while taken.len() < most {
            let list = self.list(edit, owner);
            let wanted = SLICE.min(most - taken.len());
            let step = |st: &mut State| {
                let mut found: Vec<DeadRun> = Vec::new();
                let mut bad = false;
                list.tree.scan(st.forest.store(), &range.from, &range.to, |k, v| {
                    match DeadRun::decode(k, v) {
                        Some(record) => found.push(record),
                        None => bad = true,
                    }
                    let goes_on = !bad && found.len() < wanted;
                    if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                })?;
                if bad {
                    let text = "a record of a deadlist makes no sense; run forebay check";
                    return Err(base::StorageError::new(ErrorKind::Damaged, text).into());
                }
                for record in &found {
                    let (store, key) = (st.forest.store_mut(), record.key());
                    let mut editor = store.edit(&mut list.tree, &mut list.changes, &key, &key)?;
                    editor.remove(&key);
                }
                Ok(found)
            };
            let found = match self.loader.resident(Class::Commit, step).await {
                Err(e) if e.kind == ErrorKind::Damaged => {
                    self.give_up(edit, owner, &e);
                    Vec::new()
                }
                outcome => outcome?,
            };
            let is_over = found.len() < wanted;
            taken.extend(found);
            if is_over {
                break;
            }
            self.core.rt().yield_now().await;
        }
        Ok(taken)
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
    fn give_up(&self, edit: &mut DeadlistEdit, owner: VolumeId, why: &base::StorageError) {
        let st = self.core.state();
        tracing::error!(
            volume = st.volume_name(owner),
            "the list of blocks that snapshots of this volume have cannot be read, and begins anew: \
             the space of those blocks is lost until forebay check --repair frees it: {why}"
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
        let own = self.take(edit, snapshot.id, &DeadRange::all(), DRAINED_AT_ONCE).await?;
        let mut left = DRAINED_AT_ONCE - own.len();
        let has_kept = |record: &DeadRun| kept.is_some_and(|kept| may_have(&kept, record.age));
        let (stays, goes): (Vec<_>, Vec<_>) = own.into_iter().partition(has_kept);
        self.insert(edit, next, &stays).await?;
        edit.free(goes);
        for range in DeadRange::younger_than(kept) {
            let taken = self.take(edit, next, &range, left).await?;
            left -= taken.len();
            edit.free(taken);
        }
        Ok(left > 0)
    }
}

/// A snapshot that a durable commit calls deleted.
struct SnapshotToDrain {
    id: VolumeId,
    origin: SnapshotOrigin,
    /// The owner of the deadlist that gets what others still have.
    next: VolumeId,
}

impl DeadlistEdit {
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
    /// Adds blocks; false if no snapshot has them. Blocks of data are freed then.
    fn add(&mut self, st: &State, volume: VolumeId, age: DeadAge, run: Run) -> bool {
        let died = self.died;
        let newest = self.newest.entry(volume);
        let newest = newest.or_insert_with(|| st.forest.newest_kept(volume, died));
        let is_data = matches!(age, DeadAge::Data(_));
        if !newest.is_some_and(|snapshot| may_have(&snapshot, age)) {
            self.frees.extend(is_data.then_some(run));
            return false;
        }
        let records = self.records.entry(volume).or_default();
        let group_blocks = st.space.geometry().group_blocks;
        if let Some(last) = records.last_mut().filter(|last| is_data && last.age == age) {
            let goes_on = last.addr.plus(last.len.into()) == run.addr
                && last.len + run.len <= MAX_EXTENT
                && last.addr.0 / u64::from(group_blocks) == run.addr.0 / u64::from(group_blocks);
            if goes_on {
                last.len += run.len;
                return true;
            }
        }
        let Run { addr, len } = run;
        records.push(DeadRun { age, died, number: self.entered, addr, len });
        self.entered += 1;
        true
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
