//! The one edit of the forest: mapping, checksums, and the lists of the transaction, all or
//! nothing.
//!
//! Direct transactions and write-back passes do the same with their own versions of trees
//! ([`Kind`]): [`Forest::apply`]. What differs stands in [`Forest::edit_direct`] and
//! [`Forest::edit_pass`]. An edit first finds out what it will do, while nothing is changed yet and
//! nodes may be missing. Then it makes the ranges ready that it touches, and from there on nothing
//! can fail.

use base::{BlockRange, Crc, ErrorKind, Lba, PoolAddr, Result, StorageError, VolumeId};
use btree::{Key, Tree};
use format::records::MappedExtent;
use smallvec::{SmallVec, smallvec};

use super::mapping::{BornRun, NewBlocks};
use super::tree::LiveTree;
use super::volume::Volume;
use super::{Edit, Forest, checksums, mapping, no_such_volume};
use crate::error::Step;
use crate::space::{Geometry, Run};
use crate::txn::{Generations, Kind, LostRun, Txn, not_open};

/// Extents that one edit unmaps.
const STEP_EXTENTS: usize = 128;

/// A change of the content of a volume.
#[derive(Clone, Copy)]
pub(crate) enum Change<'a> {
    /// Written blocks, with these checksums, become the content of a volume from `lba` on. With
    /// `size` the volume has that many bytes from now on; only direct changes have it.
    Map { volume: VolumeId, lba: Lba, runs: &'a [Run], crcs: &'a [Crc], size: Option<u64> },
    /// Blocks of a volume read as zeros.
    Unmap { volume: VolumeId, range: BlockRange },
}

/// The outcome of an edit in a write-back pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EditOutcome {
    /// The change is done up to this block.
    Upto(Lba),
    /// A volume that the pass needs is in the direct transaction, which has to be committed first.
    Busy,
}

impl Change<'_> {
    pub fn volume(&self) -> VolumeId {
        match *self {
            Change::Map { volume, .. } | Change::Unmap { volume, .. } => volume,
        }
    }

    fn runs(&self) -> &[Run] {
        if let Change::Map { runs, .. } = *self { runs } else { &[] }
    }

    fn size(&self) -> Option<u64> {
        if let Change::Map { size, .. } = *self { size } else { None }
    }

    /// The checksums of a part of its blocks.
    fn crcs(&self, part: BlockRange) -> &[Crc] {
        let Change::Map { lba, crcs, .. } = *self else { return &[] };
        &crcs[(part.from.0 - lba.0) as usize..(part.end.0 - lba.0) as usize]
    }

    fn range(&self) -> BlockRange {
        match *self {
            Change::Map { lba, crcs, .. } => BlockRange::of(lba, crcs.len() as u64),
            Change::Unmap { range, .. } => range,
        }
    }
}

/// Blocks of a volume, and what they will be mapped to.
#[derive(Clone, Copy)]
struct EditPiece {
    part: BlockRange,
    addr: Option<PoolAddr>,
}

impl EditPiece {
    /// The blocks of the pool that it maps to.
    fn run(&self) -> Option<Run> {
        self.addr.map(|addr| Run { addr, len: self.part.blocks() as u32 })
    }
}

/// The changes that an edit will make to the mapping of its volume.
struct EditPlan {
    /// Blocks that it touches.
    range: BlockRange,
    /// Parts of them, in order, and what they are mapped to.
    pieces: SmallVec<[EditPiece; 1]>,
    upto: Lba,
    /// Blocks of these parts that are mapped now.
    unmaps: u64,
}

impl EditPlan {
    /// Blocks that it maps.
    fn maps(&self) -> u64 {
        self.pieces.iter().filter(|p| p.addr.is_some()).map(|p| p.part.blocks()).sum()
    }

    /// Counts the blocks of `old`, which is all that overlaps its range, that it unmaps.
    fn count(mut self, old: &[MappedExtent]) -> EditPlan {
        let common = |part: BlockRange, e: &MappedExtent| {
            e.end().min(part.end.0).saturating_sub(e.lba.0.max(part.from.0))
        };
        let of = |p: &EditPiece| old.iter().map(|e| common(p.part, e)).sum::<u64>();
        self.unmaps = self.pieces.iter().map(of).sum();
        self
    }

    /// Blocks that a transaction's version of a volume, which has `had` of them, will have after
    /// the edit. Error: its record says fewer than it has.
    fn blocks_after(&self, id: VolumeId, had: u64) -> Result<u64> {
        let (maps, unmaps) = (self.maps(), self.unmaps);
        had.checked_sub(unmaps).and_then(|left| left.checked_add(maps)).ok_or_else(|| {
            let text = format!(
                "the record of volume {id} says that it has {had} blocks, and {unmaps} of its \
                 blocks are replaced; run forebay check"
            );
            StorageError::new(ErrorKind::Damaged, text)
        })
    }
}

/// Trees, with the first and the last key of what an edit changes in each.
type TreeRanges<'t> = SmallVec<[(&'t Tree, Key, Key); 2]>;

/// The trees that an edit changes, in the version of a kind of transactions, and where.
fn ranges<'t>(
    kind: Kind,
    v: &'t Volume,
    sums: &'t [LiveTree],
    geometry: &Geometry,
    plan: &EditPlan,
) -> Result<TreeRanges<'t>> {
    let tree = v.mapping.of(kind).ok_or_else(not_open)?;
    let mut ranges = smallvec![mapping::range(tree, plan.range)];
    for run in plan.pieces.iter().filter_map(EditPiece::run) {
        let (group, offset) = geometry.split(run.addr);
        let tree = sums[group.0 as usize].of(kind).ok_or_else(not_open)?;
        ranges.push(checksums::range(tree, offset, run.len));
    }
    Ok(ranges)
}

impl Forest {
    /// Changes a bounded part of what is asked for, in the direct transaction `txn`. Returns how
    /// far the change is done.
    pub fn edit_direct(&mut self, txn: &mut Txn, g: Generations, change: &Change<'_>) -> Step<Lba> {
        let id = change.volume();
        // A deleted volume can still be unmapped.
        let is_unmap = matches!(change, Change::Unmap { .. });
        let can = |v: &&Volume| v.is_live() || v.is_deleting() && is_unmap;
        let v = self.volumes.get(&id).filter(can).ok_or_else(|| no_such_volume(id))?;
        let had = v.record.allocated_blocks;
        let Some(plan) = self.plan(Kind::Direct, change)? else { return Ok(change.range().end) };
        let blocks = plan.blocks_after(id, had)?;
        let geometry = self.geometry;
        self.apply(Edit { txn, g }, change, &plan, |txn, v, sums| {
            v.begin_edit(g);
            txn.join_volume(id, g.open);
            for run in change.runs() {
                let group = geometry.split(run.addr).0;
                sums[group.0 as usize].begin_edit(g);
                txn.join_sums(group, g.open);
            }
        })?;
        let Some(v) = self.volumes.get_mut(&id) else { unreachable!("it was just edited") };
        self.held.change(v, |v| {
            v.record.allocated_blocks = blocks;
            if let Some(size) = change.size() {
                v.record.size_bytes = size;
            }
        });
        Ok(plan.upto)
    }

    /// As [`Forest::edit_direct`], in the write-back pass `txn`, which gets its own version of the
    /// mapping.
    pub fn edit_pass(
        &mut self,
        txn: &mut Txn,
        g: Generations,
        change: &Change<'_>,
    ) -> Step<EditOutcome> {
        let id = change.volume();
        let there = self.volumes.get_mut(&id).filter(|v| v.is_live());
        let v = there.ok_or_else(|| no_such_volume(id))?;
        if !v.mapping.is_in_pass() && v.mapping.edited() > g.committed {
            return Ok(EditOutcome::Busy);
        }
        v.mapping.join_pass();
        txn.join_mapping(id, g.of_pass(), v.record.allocated_blocks);
        let Some(plan) = self.plan(Kind::Pass, change)? else {
            return Ok(EditOutcome::Upto(change.range().end));
        };
        let had = txn.volume(id).map(|joined| joined.blocks).ok_or_else(not_open)?;
        let blocks = plan.blocks_after(id, had)?;
        // The groups have joined when blocks were taken from them.
        self.apply(Edit { txn, g }, change, &plan, |_, _, _| ())?;
        txn.set_blocks(id, blocks);
        txn.spend(change.runs().iter().map(|r| u64::from(r.len)).sum());
        Ok(EditOutcome::Upto(plan.upto))
    }

    /// Makes the planned changes in the version of the transaction. `begin` is called when nothing
    /// can fail any more, before the first change.
    fn apply(
        &mut self,
        Edit { txn, g }: Edit<'_>,
        change: &Change<'_>,
        plan: &EditPlan,
        begin: impl FnOnce(&mut Txn, &mut Volume, &mut [LiveTree]),
    ) -> Step<()> {
        let (kind, id) = (txn.kind(), change.volume());
        let Forest { store, volumes, sums, geometry, .. } = self;
        let v = volumes.get_mut(&id).ok_or_else(not_open)?;
        let mut ready = store.ready(ranges(kind, v, sums, geometry, plan)?)?;
        // Nothing below can fail.
        begin(txn, v, sums);
        let owner = v.record.owner();
        let Some(mapping) = v.mapping.of_mut(kind) else { unreachable!("it was just looked at") };
        let generation = txn.volume(id).map_or(g.open, |joined| joined.generation);
        let (birth, has_snapshots) = (txn.birth(), v.has_snapshots);
        let (mut freed, mut unmapped) = (Vec::new(), 0u64);
        for piece in &plan.pieces {
            if let Some(run) = piece.run() {
                let (group, offset) = geometry.split(run.addr);
                let sums = sums[group.0 as usize].of_mut(kind);
                let Some(sums) = sums else { unreachable!("it was just looked at") };
                let changes = txn.changes(txn.sums(group).unwrap_or(g.open));
                let (from, crcs) = (piece.part.from, change.crcs(piece.part));
                checksums::record(&mut ready.edit(sums, changes), offset, owner, from, crcs);
                txn.note_alloc(run, geometry.group_blocks);
            }
            let changes = match has_snapshots {
                true => txn.changes_beside_snapshots(id, generation),
                false => txn.changes(generation),
            };
            let edit = &mut ready.edit(mapping, changes);
            let new = piece.addr.map(|addr| NewBlocks { addr, birth });
            unmapped += u64::from(mapping::replace(edit, piece.part, new, geometry, &mut freed));
        }
        let unmaps = plan.unmaps;
        assert_eq!(unmapped, unmaps, "volume {id} has lost other blocks than were looked at");
        for BornRun { run, birth } in freed {
            match has_snapshots {
                true => txn.note_lost(LostRun { volume: id, birth, run }),
                false => txn.note_free(run, geometry.group_blocks),
            }
        }
        Ok(())
    }

    /// The plan of a change; `None`: nothing is to be done. Malformed records are found here.
    fn plan(&self, kind: Kind, change: &Change<'_>) -> Step<Option<EditPlan>> {
        let range = change.range();
        let v = self.volumes.get(&change.volume());
        let tree = v.and_then(|v| v.mapping.of(kind)).ok_or_else(not_open)?;
        let look = |range, max| mapping::overlapping(tree, &self.store, &self.geometry, range, max);
        let plan = match *change {
            Change::Map { runs, .. } => {
                let mut at = range.from;
                let piece = |run: &Run| {
                    let from = at;
                    at = at.plus(u64::from(run.len));
                    EditPiece { part: BlockRange::new(from, at), addr: Some(run.addr) }
                };
                let pieces = runs.iter().map(piece).collect();
                EditPlan { range, pieces, upto: range.end, unmaps: 0 }
            }
            Change::Unmap { .. } => {
                let old = look(range, STEP_EXTENTS)?;
                let (Some(first), Some(last)) = (old.first(), old.last()) else { return Ok(None) };
                let end = Lba(last.end().min(range.end.0));
                let part = BlockRange::new(first.lba.max(range.from), end);
                let upto = if old.len() >= STEP_EXTENTS { end } else { range.end };
                let pieces = smallvec![EditPiece { part, addr: None }];
                let plan = EditPlan { range: part, pieces, upto, unmaps: 0 };
                return Ok(Some(plan.count(&old)));
            }
        };
        let old = look(plan.range, usize::MAX)?;
        Ok(Some(plan.count(&old)))
    }
}
