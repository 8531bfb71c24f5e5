//! A data group's checksum tree: of every allocated block its crc32c and the volume's block that it is. Synchronous steps over resident
//! nodes. Records of freed blocks stay until their place is written again: a free costs no edit here.

use std::ops::ControlFlow;

use base::{Crc, Lba, VolumeId};
use btree::{Edit, Fault, NodeCache, Tree};
use format::records::{Checksums, MAX_CHECKSUMS, checksum_key, encode_checksums};

type Step<T> = std::result::Result<T, Fault>;

/// A record, taken out of its node.
struct Owned {
    offset: u32,
    volume: VolumeId,
    lba: Lba,
    crcs: Vec<Crc>,
}

impl Owned {
    fn of(r: &Checksums<'_>) -> Owned {
        let crcs = (0..r.len()).filter_map(|i| r.crc(i)).collect();
        Owned { offset: r.offset, volume: r.volume, lba: r.lba, crcs }
    }

    fn end(&self) -> u32 {
        self.offset + self.crcs.len() as u32
    }

    /// The part from `offset` on.
    fn tail(&self, offset: u32) -> Owned {
        let skip = offset - self.offset;
        Owned {
            offset,
            volume: self.volume,
            lba: self.lba.plus(u64::from(skip)),
            crcs: self.crcs[skip as usize..].to_vec(),
        }
    }

    fn insert(&self, tree: &mut Tree, edit: &mut Edit<'_>) -> Step<()> {
        let mut value = Vec::with_capacity(12 + 4 * self.crcs.len());
        encode_checksums(&mut value, self.volume, self.lba, self.crcs.iter().copied());
        tree.insert(edit, &checksum_key(self.offset), &value)
    }
}

/// The record that begins at or before `offset`; a malformed one counts as none, its blocks have no checksum then.
fn floor(tree: &Tree, cache: &mut NodeCache, offset: u32) -> Step<Option<Owned>> {
    let found = tree.get_le(cache, &checksum_key(offset), |k, v| Checksums::decode(k, v).map(|r| Owned::of(&r)))?;
    Ok(found.flatten())
}

/// `Ok` when all that [`record`] of `[offset, offset + len)` needs is resident.
pub(crate) fn prepare(tree: &Tree, cache: &mut NodeCache, offset: u32, len: u32) -> Step<()> {
    // From the record before, which may be cut or prolonged.
    let from = tree.get_le(cache, &checksum_key(offset.saturating_sub(1)), |k, _| k.to_vec())?;
    let from = from.unwrap_or_else(|| checksum_key(offset).to_vec());
    tree.prepare(cache, &from, &checksum_key(offset + len))
}

/// Up to `max` nodes of the tree of a group of `blocks` blocks that are not resident though their parents are.
pub(crate) fn missing(tree: &Tree, cache: &mut NodeCache, blocks: u32, max: usize) -> Vec<Fault> {
    // Leaves of fewer blocks may be passed over.
    const STRIDE: usize = 64;
    let mut missing: Vec<Fault> = Vec::new();
    for offset in (0..blocks).step_by(STRIDE) {
        let found = tree.get_le(cache, &checksum_key(offset), |_, _| ());
        if let Err(fault) = found
            && missing.last().is_none_or(|last| last.ptr.addr != fault.ptr.addr)
        {
            missing.push(fault);
            if missing.len() == max {
                break;
            }
        }
    }
    missing
}

/// Records the checksums of the blocks from `offset` on, which are `volume`'s from `lba` on. After [`prepare`] it does not fault.
pub(crate) fn record(
    tree: &mut Tree,
    edit: &mut Edit<'_>,
    offset: u32,
    volume: VolumeId,
    lba: Lba,
    crcs: &[Crc],
) -> Step<()> {
    let end = offset + crcs.len() as u32;
    let mut before = if offset > 0 { floor(tree, edit.cache, offset - 1)? } else { None };
    if let Some(b) = before.as_mut().filter(|b| b.end() > offset) {
        if b.end() > end {
            b.tail(end).insert(tree, edit)?;
        }
        b.crcs.truncate((offset - b.offset) as usize);
        b.insert(tree, edit)?;
    }
    let mut old = Vec::new();
    tree.scan(edit.cache, &checksum_key(offset), &checksum_key(end), |k, v| {
        old.push((k.to_vec(), Checksums::decode(k, v).map(|r| r.offset + r.len()).unwrap_or(0)));
        ControlFlow::Continue(())
    })?;
    if let Some((key, last_end)) = old.last()
        && *last_end > end
        && let Some(tail) =
            tree.get_with(edit.cache, key, |v| Checksums::decode(key, v).map(|r| Owned::of(&r).tail(end)))?.flatten()
    {
        tail.insert(tree, edit)?;
    }
    for (key, _) in &old {
        tree.remove(edit, key)?;
    }
    let mut at = 0;
    if let Some(mut b) =
        before.filter(|b| b.end() == offset && b.volume == volume && b.lba.0 + b.crcs.len() as u64 == lba.0)
    {
        let room = (MAX_CHECKSUMS as usize).saturating_sub(b.crcs.len());
        at = room.min(crcs.len());
        if at > 0 {
            b.crcs.extend_from_slice(&crcs[..at]);
            b.insert(tree, edit)?;
        }
    }
    while at < crcs.len() {
        let n = (crcs.len() - at).min(MAX_CHECKSUMS as usize);
        let crcs = crcs[at..at + n].to_vec();
        Owned { offset: offset + at as u32, volume, lba: lba.plus(at as u64), crcs }.insert(tree, edit)?;
        at += n;
    }
    Ok(())
}

/// Appends the checksums of `len` blocks from `offset` on to `out`; false if one is missing or belongs to another block than `lba` and
/// those after it of `volume`.
pub(crate) fn lookup(
    tree: &Tree,
    cache: &mut NodeCache,
    (offset, len): (u32, u32),
    volume: VolumeId,
    lba: Lba,
    out: &mut impl Extend<Crc>,
) -> Step<bool> {
    let mut at = 0;
    while at < len {
        let taken = tree.get_le(cache, &checksum_key(offset + at), |k, v| {
            let r = Checksums::decode(k, v)?;
            let skip = offset + at - r.offset;
            let owned = r.volume == volume && r.lba.0 + u64::from(skip) == lba.0 + u64::from(at);
            if skip >= r.len() || !owned {
                return None;
            }
            let n = (r.len() - skip).min(len - at);
            out.extend((skip..skip + n).filter_map(|i| r.crc(i)));
            Some(n)
        })?;
        match taken.flatten() {
            Some(n) => at += n,
            None => return Ok(false),
        }
    }
    Ok(true)
}

#[cfg(test)]
#[path = "checksums_tests.rs"]
mod tests;
