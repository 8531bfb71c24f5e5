//! A volume's mapping tree: which pool blocks hold which of its blocks. Synchronous steps over resident nodes.

use std::ops::ControlFlow;

use base::{Lba, PoolAddr};
use btree::{Edit, Fault, NodeCache, Tree};
use format::records::{Extent, MAX_EXTENT, mapping_key};
use smallvec::SmallVec;

use crate::error::{ErrorKind, PoolError, Result};
use crate::extents::Run;
use crate::geometry::Geometry;

type Step<T> = std::result::Result<T, Fault>;

fn malformed(tree: &Tree) -> PoolError {
    PoolError::new(
        ErrorKind::Damaged,
        format!("tree {:#x} has a record that is no mapping; run forebay check", tree.id()),
    )
}

/// Reads a record and sees that it lies in one group of the pool; `None` if not.
fn sound(geometry: &Geometry, key: &[u8], value: &[u8]) -> Option<Extent> {
    let e = Extent::decode(key, value)?;
    if !geometry.contains(e.addr) {
        return None;
    }
    let (_, block) = geometry.split(e.addr);
    (block + e.len <= geometry.group_blocks).then_some(e)
}

/// The last extent that begins at or before `lba`.
fn floor(tree: &Tree, cache: &mut NodeCache, geometry: &Geometry, lba: Lba) -> Step<Result<Option<Extent>>> {
    let found = tree.get_le(cache, &mapping_key(lba), |k, v| sound(geometry, k, v))?;
    Ok(match found {
        None => Ok(None),
        Some(Some(e)) => Ok(Some(e)),
        Some(None) => Err(malformed(tree)),
    })
}

/// The extents that overlap `[lba, end)`, in order, at most `max`, whole as they stand.
pub(crate) fn overlapping(
    tree: &Tree,
    cache: &mut NodeCache,
    geometry: &Geometry,
    (lba, end): (Lba, Lba),
    max: usize,
) -> Step<Result<SmallVec<[Extent; 4]>>> {
    let mut out: SmallVec<[Extent; 4]> = SmallVec::new();
    let first = match floor(tree, cache, geometry, lba)? {
        Ok(first) => first,
        Err(e) => return Ok(Err(e)),
    };
    if let Some(e) = first {
        if e.end() > lba.0 {
            out.push(e);
        }
        if e.lba == lba && e.end() >= end.0 {
            return Ok(Ok(out));
        }
    }
    let mut bad = false;
    tree.scan(cache, &mapping_key(lba.plus(1)), &mapping_key(end), |k, v| match sound(geometry, k, v) {
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
    })?;
    Ok(if bad { Err(malformed(tree)) } else { Ok(out) })
}

/// `Ok` when all that [`replace`] of `[lba, end)` needs is resident.
pub(crate) fn prepare(tree: &Tree, cache: &mut NodeCache, geometry: &Geometry, (lba, end): (Lba, Lba)) -> Step<()> {
    // From the extent before, which may be cut or prolonged.
    let from = match floor(tree, cache, geometry, Lba(lba.0.saturating_sub(1)))? {
        Ok(Some(e)) => e.lba,
        Ok(None) | Err(_) => lba,
    };
    tree.prepare(cache, &mapping_key(from), &mapping_key(end))
}

/// Maps `[lba, end)` to `new`, or to nothing. What it was mapped to is appended to `freed`; returns the number of those blocks.
/// After [`prepare`] it does not fault.
pub(crate) fn replace(
    tree: &mut Tree,
    edit: &mut Edit<'_>,
    (lba, end): (Lba, Lba),
    new: Option<PoolAddr>,
    geometry: &Geometry,
    freed: &mut Vec<Run>,
) -> Step<Result<u32>> {
    let old = match overlapping(tree, edit.cache, geometry, (lba, end), usize::MAX)? {
        Ok(old) => old,
        Err(e) => return Ok(Err(e)),
    };
    let mut blocks = 0;
    for e in &old {
        let cut = e.lba.0.max(lba.0)..e.end().min(end.0);
        let run = Run { addr: e.addr.plus(cut.start - e.lba.0), len: (cut.end - cut.start) as u32 };
        blocks += run.len;
        freed.push(run);
        if e.lba < lba {
            let left = Extent { len: (lba.0 - e.lba.0) as u32, ..*e };
            tree.insert(edit, &mapping_key(left.lba), &left.value())?;
        } else {
            tree.remove(edit, &mapping_key(e.lba))?;
        }
        if e.end() > end.0 {
            let right = Extent { lba: end, addr: e.addr.plus(end.0 - e.lba.0), len: (e.end() - end.0) as u32 };
            tree.insert(edit, &mapping_key(end), &right.value())?;
        }
    }
    let Some(addr) = new else { return Ok(Ok(blocks)) };
    let mut extent = Extent { lba, addr, len: (end.0 - lba.0) as u32 };
    if lba.0 > 0 {
        // A malformed neighbour is not continued; whoever reads it is told.
        let before = floor(tree, edit.cache, geometry, Lba(lba.0 - 1))?.unwrap_or(None);
        if let Some(b) = before.filter(|b| continues(b, &extent, geometry.group_blocks)) {
            extent = Extent { len: b.len + extent.len, ..b };
        }
    }
    tree.insert(edit, &mapping_key(extent.lba), &extent.value())?;
    Ok(Ok(blocks))
}

/// True if `next` goes on where `before` ends, in the volume and in the same group of the pool.
fn continues(before: &Extent, next: &Extent, group_blocks: u32) -> bool {
    before.end() == next.lba.0
        && before.addr.0 + u64::from(before.len) == next.addr.0
        && before.addr.0 / u64::from(group_blocks) == next.addr.0 / u64::from(group_blocks)
        && before.len + next.len <= MAX_EXTENT
}

#[cfg(test)]
#[path = "mapping_tests.rs"]
mod tests;
