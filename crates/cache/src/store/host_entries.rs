//! Entries of the journal that the last process had not written, from the records that it has left
//! in its host log: the next start writes them, and is then where any start after a crash is.
//!
//! The records of an entry bear its number, so the same entries come of them, and their places in
//! the ring were reserved when the records were pushed.

use base::{BLOCK, BufPool, EntrySeq, ErrorKind, Result, StorageError};
use format::cache::journal::{
    EntryBuilder, EntryHeader, MAX_ENTRY_BLOCKS, decode_entry, decode_record,
};
use format::cache::pool_seen::PoolSeen;
use pool::SurvivingRecords;

use crate::device::layout::Ring;
use crate::store::journal::{HOST_RECORD, Identity};
use crate::store::ring_read::FoundEntries;

/// An entry that is to be written, in each of its places.
pub(crate) struct UnwrittenEntry {
    pub offsets: [u64; Ring::COPIES],
    pub bytes: base::Slice,
}

/// Adds to the entries that were found those of `survived` that follow them. Returns these, to be
/// written. `seen`: what the newest entry says of the pool. Error: the records do not follow what
/// was found, or there is no room for them, neither of which the last process can have left.
pub(crate) fn add_entries(
    found: &mut FoundEntries,
    survived: &SurvivingRecords,
    of: Identity,
    ring: Ring,
    seen: PoolSeen,
    bufs: &BufPool,
) -> Result<Vec<UnwrittenEntry>> {
    let refused = |text: String| {
        let text = format!(
            "what was answered before the last process ended cannot be added to the cache's \
             journal: {text}; is the device an older copy of the one that was in use?"
        );
        StorageError::new(ErrorKind::Damaged, text)
    };
    let mut unwritten = Vec::new();
    let mut used: u32 = found.entries.iter().map(|entry| entry.blocks()).sum();
    let records = survived.frames.iter().filter(|f| f.kind == HOST_RECORD);
    let next = found.end.sequence.0;
    let mut records = records.filter(|f| f.stamp >= next).peekable();
    while let Some(first) = records.peek() {
        let sequence = found.end.sequence;
        if first.stamp != sequence.0 {
            return Err(refused(format!("entry {sequence} is missing")));
        }
        let mut entry = EntryBuilder::new(MAX_ENTRY_BLOCKS);
        while let Some(frame) = records.next_if(|f| f.stamp == sequence.0) {
            let pushed = decode_record(&frame.payload).is_some_and(|record| entry.push(&record));
            if !pushed {
                return Err(refused(format!("a record of entry {sequence} makes no sense")));
            }
        }
        let blocks = entry.blocks();
        if ring.blocks - found.end.position < MAX_ENTRY_BLOCKS {
            found.end.position = 0;
        }
        used += blocks;
        if used + MAX_ENTRY_BLOCKS > ring.blocks {
            return Err(refused("the ring has no room for its records".into()));
        }
        let header = EntryHeader {
            uuid: of.uuid,
            incarnation: of.incarnation,
            sequence,
            durable: found.durable,
            pool_seen: seen,
        };
        let mut bytes = bufs.zeroed(blocks as usize * BLOCK);
        entry.seal(&header, &mut bytes);
        let decoded = decode_entry(&bytes, &of.uuid, of.incarnation, sequence)
            .map_err(|e| refused(e.to_string()))?;
        let offsets = ring.places(found.end.position);
        unwritten.push(UnwrittenEntry { offsets, bytes: bytes.freeze() });
        found.positions.push(found.end.position);
        found.entries.push(decoded);
        found.end.position += blocks;
        found.end.sequence = EntrySeq(sequence.0 + 1);
    }
    Ok(unwritten)
}
