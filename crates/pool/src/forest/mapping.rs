//! A volume's mapping tree: which pool blocks hold which of its blocks. Synchronous steps over
//! resident nodes.

use std::ops::ControlFlow;

use base::{Birth, BlockRange, ErrorKind, Lba, PoolAddr, StorageError};
use btree::{Editor, Key, Store, Tree};
use format::records::{MAX_EXTENT, MappedExtent, mapping_key};
use smallvec::SmallVec;

use crate::error::Step;
use crate::space::{Geometry, Run};

fn malformed(tree: &Tree) -> StorageError {
    StorageError::new(
        ErrorKind::Damaged,
        format!(
            "{}: a record is no mapping; run forebay check",
            format::tree::tree_name(tree.id())
        ),
    )
}

/// Reads a record and sees that it lies in one group of the pool; `None` if not.
fn sound(geometry: &Geometry, key: &[u8], value: &[u8]) -> Option<MappedExtent> {
    let e = MappedExtent::decode(key, value)?;
    if !geometry.contains(e.addr) {
        return None;
    }
    let (_, block) = geometry.split(e.addr);
    (block + e.len <= geometry.group_blocks).then_some(e)
}

/// The last extent that begins at or before `lba`.
fn floor(tree: &Tree, store: &Store, geometry: &Geometry, lba: Lba) -> Step<Option<MappedExtent>> {
    match tree.get_le(store, &mapping_key(lba), |k, v| sound(geometry, k, v))? {
        Some(None) => Err(malformed(tree).into()),
        found => Ok(found.flatten()),
    }
}

/// The extents that overlap a range, in order, at most `max`, whole as they stand.
pub(crate) fn overlapping(
    tree: &Tree,
    store: &Store,
    geometry: &Geometry,
    range: BlockRange,
    max: usize,
) -> Step<SmallVec<[MappedExtent; 4]>> {
    let BlockRange { from, end } = range;
    let mut out: SmallVec<[MappedExtent; 4]> = SmallVec::new();
    if let Some(e) = floor(tree, store, geometry, from)? {
        if e.end() > from.0 {
            out.push(e);
        }
        if e.lba == from && e.end() >= end.0 {
            return Ok(out);
        }
    }
    let mut bad = false;
    tree.scan(store, &mapping_key(from.plus(1)), &mapping_key(end), |k, v| {
        match sound(geometry, k, v) {
            Some(_) if out.len() >= max => ControlFlow::Break(()),
            Some(e) => {
                if out.last().is_none_or(|l| l.lba != e.lba) {
                    out.push(e);
                }
                ControlFlow::Continue(())
            }
            None => {
                bad = true;
                ControlFlow::Break(())
            }
        }
    })?;
    if bad { Err(malformed(tree).into()) } else { Ok(out) }
}

/// The tree and the range of keys that [`replace`] of these blocks edits.
pub(crate) fn range(tree: &Tree, blocks: BlockRange) -> (&Tree, Key, Key) {
    (tree, Key::new(&mapping_key(blocks.from)), Key::new(&mapping_key(blocks.end)))
}

/// Blocks of the pool, and their birth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BornRun {
    pub run: Run,
    pub birth: Birth,
}

/// Where new blocks of a volume stand, and their birth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NewBlocks {
    pub addr: PoolAddr,
    pub birth: Birth,
}

/// Maps a range to `new`, or to nothing. What it was mapped to is appended to `freed`; returns
/// the number of those blocks. A malformed record must have been found before ([`overlapping`]).
pub(crate) fn replace(
    edit: &mut Editor<'_>,
    range: BlockRange,
    new: Option<NewBlocks>,
    geometry: &Geometry,
    freed: &mut Vec<BornRun>,
) -> u32 {
    let BlockRange { from: lba, end } = range;
    let old = edit.look(|tree, store| overlapping(tree, store, geometry, range, usize::MAX));
    let mut blocks = 0;
    for e in old.unwrap_or_else(|e| unreachable!("it was looked at before: {e}")) {
        let (from, to) = (e.lba.0.max(lba.0), e.end().min(end.0));
        let run = Run { addr: e.addr.plus(from - e.lba.0), len: (to - from) as u32 };
        blocks += run.len;
        freed.push(BornRun { run, birth: e.birth });
        if e.lba < lba {
            let left = MappedExtent { len: (lba.0 - e.lba.0) as u32, ..e };
            edit.insert(&mapping_key(left.lba), &left.value());
        } else {
            edit.remove(&mapping_key(e.lba));
        }
        if e.end() > end.0 {
            let right = MappedExtent {
                lba: end,
                addr: e.addr.plus(end.0 - e.lba.0),
                len: (e.end() - end.0) as u32,
                ..e
            };
            edit.insert(&mapping_key(end), &right.value());
        }
    }
    let Some(NewBlocks { addr, birth }) = new else { return blocks };
    let mut extent = MappedExtent { lba, addr, len: (end.0 - lba.0) as u32, birth };
    if lba.0 > 0 {
        // A malformed neighbour is not continued; a read of it tells.
        let before =
            edit.get_le(&mapping_key(Lba(lba.0 - 1)), |k, v| sound(geometry, k, v)).flatten();
        if let Some(b) = before.filter(|b| continues(b, &extent, geometry.group_blocks)) {
            extent = MappedExtent { len: b.len + extent.len, ..b };
        }
    }
    edit.insert(&mapping_key(extent.lba), &extent.value());
    blocks
}

/// True if `next` goes on where `before` ends, in the volume and in the same group of the pool, and
/// is of the same birth.
fn continues(before: &MappedExtent, next: &MappedExtent, group_blocks: u32) -> bool {
    before.end() == next.lba.0
        && before.birth == next.birth
        && before.addr.0 + u64::from(before.len) == next.addr.0
        && before.addr.0 / u64::from(group_blocks) == next.addr.0 / u64::from(group_blocks)
        && before.len + next.len <= MAX_EXTENT
}

#[cfg(test)]
#[path = "mapping_tests.rs"]
mod tests;
