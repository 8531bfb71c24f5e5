//! The one edit of the forest: mapping, checksums, and the lists of the transaction, all or
//! nothing.
//!
//! Direct transactions and write-back passes do the same with their own versions of trees
//! ([`Kind`]). An edit first finds out what it will do, while nothing is changed yet and nodes may
//! be missing. Then it makes the ranges ready that it touches, and from there on nothing can fail.

use base::{BlockRange, Crc, ErrorKind, Lba, PoolAddr, Result, StorageError, VolumeId};
use format::records::MappedExtent;
use smallvec::{SmallVec, smallvec};

use super::{Forest, checksums, mapping};
use crate::error::Step;
use crate::space::Run;
use crate::txn::{Generations, Kind, Txn, not_open};

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

/// The outcome of an edit.
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
}

impl Forest {
    /// Changes a bounded part of what is asked for, in the transaction `txn`.
    pub fn edit(
        &mut self,
        txn: &mut Txn,
        g: Generations,
        change: &Change<'_>,
    ) -> Step<EditOutcome> {
        let (kind, volume) = (txn.kind(), change.volume());
        if !self.join(txn, g, volume, change)? {
            return Ok(EditOutcome::Busy);
        }
        let Some(plan) = self.plan(kind, change)? else {
            return Ok(EditOutcome::Upto(change.range().end));
        };
        let (maps, unmaps) = (plan.maps(), plan.unmaps);
        let blocks = self.blocks_after(txn, volume, maps, unmaps)?;
        let Forest { store, volumes, sums, geometry, held, .. } = self;
        let tree = volumes.get(&volume).and_then(|v| v.mapping.of(kind)).ok_or_else(not_open)?;
        let mut ranges: SmallVec<[_; 2]> = smallvec![mapping::range(tree, plan.range)];
        for run in change.runs() {
            let (group, offset) = geometry.split(run.addr);
            let tree = sums[group.0 as usize].of(kind).ok_or_else(not_open)?;
            ranges.push(checksums::range(tree, offset, run.len));
        }
        let mut ready = store.ready(ranges)?;
        // Nothing below can fail.
        let Some(v) = volumes.get_mut(&volume) else { unreachable!("it was just looked at") };
        let owner = v.record.owner();
        if kind == Kind::Direct {
            v.begin_edit(g);
            txn.join_volume(volume, g.open);
        }
        let generation = txn.volume(volume).map_or(g.open, |joined| joined.generation);
        let (mut freed, mut unmapped) = (Vec::new(), 0u64);
        for (i, &EditPiece { part, addr }) in plan.pieces.iter().enumerate() {
            if let (Some(run), Change::Map { lba, crcs, .. }) = (change.runs().get(i), change) {
                let (group, offset) = geometry.split(run.addr);
                let live = &mut sums[group.0 as usize];
                if kind == Kind::Direct {
                    live.begin_edit(g);
                    txn.join_sums(group, g.open);
                }
                let at = (part.from.0 - lba.0) as usize;
                let changes = txn.changes(txn.sums(group).unwrap_or(g.open));
                let Some(tree) = live.of_mut(kind) else { unreachable!("it was just looked at") };
                checksums::record(
                    &mut ready.edit(tree, changes),
                    offset,
                    owner,
                    part.from,
                    &crcs[at..at + run.len as usize],
                );
                txn.note_alloc(*run, geometry.group_blocks);
            }
            let tree = volumes.get_mut(&volume).and_then(|v| v.mapping.of_mut(kind));
            let Some(tree) = tree else { unreachable!("it was just looked at") };
            let mut edit = ready.edit(tree, txn.changes(generation));
            unmapped += u64::from(mapping::replace(&mut edit, part, addr, geometry, &mut freed));
        }
        assert_eq!(unmapped, unmaps, "volume {volume} has lost other blocks than were looked at");
        match kind {
            Kind::Direct => {
                let Some(v) = volumes.get_mut(&volume) else { unreachable!("it was just edited") };
                held.change(v, |v| {
                    v.record.allocated_blocks = blocks;
                    if let Some(size) = change.size() {
                        v.record.size_bytes = size;
                    }
                });
            }
            Kind::Pass => {
                txn.set_blocks(volume, blocks);
                txn.spend(change.runs().iter().map(|r| u64::from(r.len)).sum());
            }
        }
        freed.into_iter().for_each(|run| txn.note_free(run, geometry.group_blocks));
        Ok(EditOutcome::Upto(plan.upto))
    }

    /// Blocks that a transaction's version of a volume will have after an edit that maps and unmaps
    /// these numbers of blocks. Error: its record says fewer than it has.
    fn blocks_after(&self, txn: &Txn, id: VolumeId, maps: u64, unmaps: u64) -> Result<u64> {
        let had = match txn.kind() {
            Kind::Direct => self.volumes.get(&id).map(|v| v.record.allocated_blocks),
            Kind::Pass => txn.volume(id).map(|joined| joined.blocks),
        };
        let had = had.ok_or_else(not_open)?;
        had.checked_sub(unmaps).and_then(|left| left.checked_add(maps)).ok_or_else(|| {
            let text = format!(
                "the record of volume {id} says that it has {had} blocks, and {unmaps} of its \
                 blocks are replaced; run forebay check"
            );
            StorageError::new(ErrorKind::Damaged, text)
        })
    }

    /// Sees that a volume can be edited; a pass gets its own version of the mapping. False: the
    /// direct transaction has changed it.
    fn join(
        &mut self,
        txn: &mut Txn,
        g: Generations,
        id: VolumeId,
        change: &Change<'_>,
    ) -> Result<bool> {
        let there = self.volumes.get_mut(&id);
        let v = match txn.kind() {
            // A deleted volume can still be unmapped.
            Kind::Direct => there
                .filter(|v| v.is_live() || v.is_there() && matches!(change, Change::Unmap { .. })),
            Kind::Pass => there.filter(|v| v.is_live()),
        };
        let v = v.ok_or_else(|| super::no_such_volume(id))?;
        if txn.kind() == Kind::Pass {
            if !v.mapping.is_in_pass() && v.mapping.edited() > g.committed {
                return Ok(false);
            }
            v.mapping.join_pass();
            txn.join_mapping(id, g.of_pass(), v.record.allocated_blocks);
        }
        Ok(true)
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
