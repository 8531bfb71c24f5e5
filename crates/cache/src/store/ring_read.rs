//! Reading the journal's ring: the entries that count, and where they end.
//!
//! An entry stands twice, and both copies were flushed before anybody was told that it is durable.
//! So one readable copy is enough to have an entry, and one readable copy that is something else is
//! enough to know that no durable entry is missing there. Where neither copy can be read it is not
//! known, and that is an error: unreadable is not absent. Where both are readable and neither is
//! the entry, it was cut short by a crash, unless something knows that it was durable: a later
//! entry, the pool's superblock, or the watermark.

use base::{EntrySeq, ErrorKind, IoError, Result, StorageError};
use format::cache::journal::{Entry, MAX_ENTRY_BLOCKS, blocks_of, decode_entry, sequence_of};
use format::cache::watermark::{WATERMARK_SLOTS, Watermark};
use queue::{Blocks, Class, Device};

use crate::device::layout::Ring;
use crate::store::journal::{Identity, Place};

/// The entries that count, in order.
pub struct FoundEntries {
    /// The entries, the oldest first.
    pub entries: Vec<Entry>,
    /// The block of the ring at which each begins.
    pub positions: Vec<u32>,
    /// The last entry that is known to be durable, by any that knows.
    pub durable: EntrySeq,
    /// Entries of which the first copy is bad.
    pub healed: u64,
    /// The place where the next entry would be.
    pub end: Place,
}

/// The content of a place at which an entry is expected.
pub enum EntryCopy {
    /// The entry that is expected, whole.
    Entry(Entry),
    /// Something else, or a part of an entry.
    Other,
    /// Nothing: the device cannot read the place.
    Unreadable(IoError),
}

/// Judges one of the two places of an entry; `blocks` begins with that place.
fn judge(blocks: &Blocks, of: &Identity, sequence: EntrySeq) -> EntryCopy {
    if let Ok(entry) = decode_entry(&blocks.buf, &of.uuid, of.incarnation, sequence) {
        return EntryCopy::Entry(entry);
    }
    let all = blocks.get(0).map(|first| blocks_of(first, &of.uuid, of.incarnation, sequence));
    match all {
        Err(e) => EntryCopy::Unreadable(e),
        Ok(None) => EntryCopy::Other,
        Ok(Some(n)) => {
            (0..n).find_map(|i| blocks.error(i)).map_or(EntryCopy::Other, EntryCopy::Unreadable)
        }
    }
}

/// One of an entry's two copies.
pub async fn read_copy(
    device: &Device,
    offset: u64,
    of: &Identity,
    sequence: EntrySeq,
) -> EntryCopy {
    judge(&device.read_blocks(Class::Commit, offset, MAX_ENTRY_BLOCKS as usize).await, of, sequence)
}

/// The entry at `position`, and whether its first copy is bad; or `None` if no durable one is
/// missing there, unless something knows better.
async fn read_entry(
    device: &Device,
    path: &str,
    ring: Ring,
    of: &Identity,
    Place { position, sequence }: Place,
) -> Result<Option<(Entry, bool)>> {
    let mut trouble = Vec::new();
    for (copy, offset) in ring.places(position).into_iter().enumerate() {
        match read_copy(device, offset, of, sequence).await {
            EntryCopy::Entry(entry) => return Ok(Some((entry, copy > 0))),
            EntryCopy::Other => {}
            EntryCopy::Unreadable(e) => trouble.push(e),
        }
    }
    if trouble.len() < Ring::COPIES {
        return Ok(None);
    }
    let text = format!(
        "{path}: entry {sequence} of the cache's journal cannot be read in either of its places \
         ({}): it may be the last that was flushed, \
         and what was before must not be taken for it. Try again; if the device stays unreadable \
         there, restore it, or go on from \
         the pool's older image without the cache: --forget-cache",
        trouble[0]
    );
    Err(StorageError::new(ErrorKind::Io, text))
}

/// The last entry of this journal that a watermark calls durable; 0 if none does.
pub(crate) async fn read_watermark(device: &Device, of: &Identity) -> EntrySeq {
    let mut durable = EntrySeq(0);
    for slot in 0..WATERMARK_SLOTS {
        let read = device.read_blocks(Class::Commit, Watermark::offset_of(slot), 1).await;
        let mark = read.get(0).ok().and_then(|block| Watermark::decode(block).ok());
        let mine = mark.filter(|m| (m.uuid, m.incarnation) == (of.uuid, of.incarnation));
        durable = durable.max(mine.map_or(EntrySeq(0), |m| m.durable));
    }
    durable
}

/// Reads the journal. `path` is for errors; `known`: an entry that the pool knows to be durable. An
/// entry that is damaged in both its places, and was durable, is an error: what was flushed with it
/// is not to be had, and what was before must not be taken for it.
pub async fn read_journal(
    device: &Device,
    path: &str,
    ring: Ring,
    of: Identity,
    place: Place,
    known: EntrySeq,
) -> Result<FoundEntries> {
    let known = known.max(read_watermark(device, &of).await);
    let mut found = FoundEntries {
        entries: Vec::new(),
        positions: Vec::new(),
        durable: known,
        healed: 0,
        end: place,
    };
    let end = &mut found.end;
    loop {
        if ring.blocks - end.position < MAX_ENTRY_BLOCKS {
            end.position = 0;
        }
        let Some((entry, healed)) = read_entry(device, path, ring, &of, *end).await? else {
            break;
        };
        found.positions.push(end.position);
        found.healed += u64::from(healed);
        found.durable = found.durable.max(entry.durable);
        end.position += entry.blocks();
        end.sequence.0 += 1;
        found.entries.push(entry);
    }
    let Place { position, sequence } = found.end;
    let mut was_durable = sequence <= known;
    for from in [position, 0] {
        for offset in ring.places(from) {
            let blocks = (2 * MAX_ENTRY_BLOCKS).min(ring.blocks - from) as usize;
            let read = device.read_blocks(Class::Commit, offset, blocks).await;
            for at in 0..blocks {
                let bytes = &read.buf[at * base::BLOCK..];
                let Some(later) = sequence_of(bytes).filter(|&s| s > sequence) else { continue };
                was_durable |= decode_entry(bytes, &of.uuid, of.incarnation, later)
                    .is_ok_and(|e| e.durable >= sequence);
            }
        }
    }
    if was_durable {
        let text = format!(
            "{path}: entry {sequence} of the cache's journal is damaged in both its places, and \
             was durable: what was flushed with it and after it \
             cannot be replayed; restore the device, or go on from the pool's older image without \
             the cache: --forget-cache"
        );
        return Err(StorageError::new(ErrorKind::Damaged, text));
    }
    Ok(found)
}

#[cfg(test)]
#[path = "ring_read_tests.rs"]
mod tests;
