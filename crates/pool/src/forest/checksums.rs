//! A data group's checksum tree: of every allocated block its crc32c and the volume's block that it
//! is. Synchronous steps over resident nodes. Records of freed blocks stay until their place is
//! written again: a free costs no edit here.

use std::ops::ControlFlow;

use base::{Crc, Lba, VolumeId};
use btree::{Editor, Fault, Key, Store, Tree};
use format::records::{Checksums, MAX_CHECKSUMS, checksum_key, encode_checksums};

/// A record, taken out of its node.
struct OwnedRecord {
    offset: u32,
    volume: VolumeId,
    lba: Lba,
    crcs: Vec<Crc>,
}

impl OwnedRecord {
    fn of(r: &Checksums<'_>) -> OwnedRecord {
        let crcs = (0..r.len()).filter_map(|i| r.crc(i)).collect();
        OwnedRecord { offset: r.offset, volume: r.volume, lba: r.lba, crcs }
    }

    fn end(&self) -> u32 {
        self.offset + self.crcs.len() as u32
    }

    /// The part from `offset` on.
    fn tail(&self, offset: u32) -> OwnedRecord {
        let skip = offset - self.offset;
        OwnedRecord {
            offset,
            volume: self.volume,
            lba: self.lba.plus(u64::from(skip)),
            crcs: self.crcs[skip as usize..].to_vec(),
        }
    }

    fn insert(&self, edit: &mut Editor<'_>) {
        let mut value = Vec::with_capacity(12 + 4 * self.crcs.len());
        encode_checksums(&mut value, self.volume, self.lba, self.crcs.iter().copied());
        edit.insert(&checksum_key(self.offset), &value);
    }
}

/// The tree and the range of keys that [`record`] of `[offset, offset + len)` edits.
pub(crate) fn range(tree: &Tree, offset: u32, len: u32) -> (&Tree, Key, Key) {
    (tree, Key::new(&checksum_key(offset)), Key::new(&checksum_key(offset + len)))
}

/// Records the checksums of the blocks from `offset` on, which are `volume`'s from `lba` on. A
/// malformed record counts as none, its blocks have no checksum then.
pub(crate) fn record(edit: &mut Editor<'_>, offset: u32, volume: VolumeId, lba: Lba, crcs: &[Crc]) {
    let end = offset + crcs.len() as u32;
    let owned = |k: &[u8], v: &[u8]| Checksums::decode(k, v).map(|r| OwnedRecord::of(&r));
    let mut before =
        offset.checked_sub(1).and_then(|last| edit.get_le(&checksum_key(last), owned).flatten());
    if let Some(b) = before.as_mut().filter(|b| b.end() > offset) {
        if b.end() > end {
            b.tail(end).insert(edit);
        }
        b.crcs.truncate((offset - b.offset) as usize);
        b.insert(edit);
    }
    let mut old = Vec::new();
    edit.scan(&checksum_key(offset), &checksum_key(end), |k, v| {
        old.push((k.to_vec(), Checksums::decode(k, v).map_or(0, |r| r.offset + r.len())));
        ControlFlow::Continue(())
    });
    if let Some((key, last_end)) = old.last()
        && *last_end > end
        && let Some(last) = edit.get(key).and_then(|v| owned(key, v))
    {
        last.tail(end).insert(edit);
    }
    for (key, _) in &old {
        edit.remove(key);
    }
    let mut at = 0;
    if let Some(mut b) = before.filter(|b| {
        b.end() == offset && b.volume == volume && b.lba.0 + b.crcs.len() as u64 == lba.0
    }) {
        let room = (MAX_CHECKSUMS as usize).saturating_sub(b.crcs.len());
        at = room.min(crcs.len());
        if at > 0 {
            b.crcs.extend_from_slice(&crcs[..at]);
            b.insert(edit);
        }
    }
    while at < crcs.len() {
        let n = (crcs.len() - at).min(MAX_CHECKSUMS as usize);
        let crcs = crcs[at..at + n].to_vec();
        OwnedRecord { offset: offset + at as u32, volume, lba: lba.plus(at as u64), crcs }
            .insert(edit);
        at += n;
    }
}

/// Appends the checksums of `len` blocks from `offset` on to `out`; false if one is missing or
/// belongs to another block than `lba` and those after it of `volume`.
pub(crate) fn lookup(
    tree: &Tree,
    store: &Store,
    offset: u32,
    len: u32,
    volume: VolumeId,
    lba: Lba,
    out: &mut impl Extend<Crc>,
) -> Result<bool, Fault> {
    let mut at = 0;
    while at < len {
        let taken = tree.get_le(store, &checksum_key(offset + at), |k, v| {
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
