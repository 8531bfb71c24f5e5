//! The journal: changes of the index since the last checkpoint, in a ring of entries on the cache
//! device.
//!
//! Records gather in memory, in the order in which the index changed. A FLUSH writes them as
//! entries and then flushes the device once; all who ask meanwhile share the next turn, and one
//! entry. The data that a record is about was written before the record came here, so one flush
//! makes both durable.
//!
//! **Fault model.** One copy of an entry may go bad or become unreadable. Without a flush, any of
//! the last entries may be missing, torn, or there although the data of its records is not. So an
//! entry is verified as a whole, entries count only in sequence, and each names the last entry that
//! was known durable when it was written: what comes behind it has its data verified at replay. Of
//! the newest entry the watermark tells, when none follows it for a while
//! ([`crate::transfer::watermark`]).
//!
//! **The death of the process** loses nothing that was pushed: until an entry is durable, its
//! records are in the [host log](pool::HostLog) too, and the next start writes the entries that are
//! missing ([`crate::store::host_entries`]).
//!
//! **Room.** The ring is freed by checkpoints only; they begin when half of it is used. To push a
//! record one must have reserved room for it ([`crate::store::ring_room`]), so whatever was pushed
//! can be written at any time, and waits for no checkpoint.

use std::collections::VecDeque;

use base::{BufPool, EntrySeq, RecordSeq, Slice};
use format::cache::journal::{EntryBuilder, EntryHeader, MAX_ENTRY_BLOCKS, Record};
use format::cache::pool_seen::PoolSeen;
use pool::HostLog;

use crate::device::flush_barrier::Durable;
use crate::device::layout::Ring;
use crate::store::ring_room::{JournalRoom, RingRoom};

/// The kind of a frame of the host log: a record of the entry whose number is its stamp.
pub(crate) const HOST_RECORD: u8 = 16;

/// Blocks of entries that are taken out to be written before others get a turn.
const AT_ONCE: u32 = 256;

/// An entry's place: the first to be replayed, say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Blocks from the ring's start.
    pub position: u32,
    /// The number of the entry.
    pub sequence: EntrySeq,
}

/// The identity of the entries of a journal.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// The cache.
    pub uuid: [u8; 16],
    /// The incarnation of the cache.
    pub incarnation: u32,
}

/// An entry that is ready to be written.
pub(crate) struct ReadyEntry {
    pub sequence: EntrySeq,
    /// The last record of the entry.
    pub last: RecordSeq,
    /// The offsets on the device in bytes at which the entry is written, one in each ring.
    pub offsets: [u64; Ring::COPIES],
    pub bytes: Slice,
}

/// Statistics since the cache was opened.
#[derive(Clone, Copy, Default, Debug)]
pub struct JournalStats {
    /// Group commits: each one device flush.
    pub commits: u64,
    /// Records written.
    pub records: u64,
    /// Entries written.
    pub entries: u64,
}

pub(crate) struct Journal {
    ring: Ring,
    room: RingRoom,
    identity: Identity,
    /// The entry that takes records now has this sequence.
    sequence: EntrySeq,
    current: EntryBuilder,
    /// The largest entry, in blocks.
    entry_blocks: u32,
    /// Full entries without a place, in order, each with its last record.
    full: VecDeque<(EntryBuilder, RecordSeq)>,
    /// Blocks of these.
    full_blocks: u32,
    /// The last record that was pushed, the last in an entry that was taken out to be written, and
    /// the last that is durable, or in a checkpoint.
    pushed: RecordSeq,
    placed: RecordSeq,
    durable: RecordSeq,
    /// The position of the next entry in the ring, and the entries that take room of it.
    head: u32,
    taken: VecDeque<RingEntry>,
    /// Blocks of these entries, and with those that were passed over.
    taken_blocks: u32,
    used: u32,
    durable_entry: EntrySeq,
    stats: JournalStats,
    /// The records that no durable entry has, for the case that the process dies.
    host_log: HostLog,
}

/// An entry's part of the ring: its last record, its blocks, and those that were passed over before
/// it.
struct RingEntry {
    sequence: EntrySeq,
    last: RecordSeq,
    blocks: u32,
    skipped: u32,
}

impl Journal {
    /// An empty journal that goes on at `place`.
    pub fn new(
        ring: Ring,
        room: RingRoom,
        identity: Identity,
        place: Place,
        entry_blocks: u32,
    ) -> Journal {
        Journal {
            ring,
            room,
            identity,
            sequence: place.sequence,
            current: EntryBuilder::new(entry_blocks),
            entry_blocks,
            full: VecDeque::new(),
            full_blocks: 0,
            pushed: RecordSeq(0),
            placed: RecordSeq(0),
            durable: RecordSeq(0),
            head: place.position,
            taken: VecDeque::new(),
            taken_blocks: 0,
            used: 0,
            durable_entry: EntrySeq(place.sequence.0 - 1),
            stats: JournalStats::default(),
            host_log: HostLog::default(),
        }
    }

    /// The journal, with its records that are not durable in this log too.
    pub fn with_host_log(self, host_log: HostLog) -> Journal {
        Journal { host_log, ..self }
    }

    /// Statistics since the cache was opened.
    pub fn stats(&self) -> JournalStats {
        self.stats
    }

    /// The identity of the journal's entries.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The room in the journal's ring.
    pub fn room(&self) -> &RingRoom {
        &self.room
    }

    /// The last record that was pushed. What has to wait for the next ones waits for larger
    /// numbers.
    pub fn pushed(&self) -> RecordSeq {
        self.pushed
    }

    /// The last record that is durable, or in a checkpoint, with all before it.
    pub fn durable(&self) -> RecordSeq {
        self.durable
    }

    /// The last entry that is durable, with all before it.
    pub fn durable_entry(&self) -> EntrySeq {
        self.durable_entry
    }

    /// Adds a record, in room that was reserved for it. Returns its number.
    pub(super) fn push(&mut self, room: &mut JournalRoom, record: &Record<'_>) -> RecordSeq {
        let before = self.pending();
        self.stats.records += 1;
        let mut at = self.current.len();
        if !self.current.push(record) {
            self.close();
            at = 0;
            let fits = self.current.push(record);
            assert!(fits, "a record is larger than an entry");
        }
        self.host_log.append(HOST_RECORD, self.sequence.0, self.current.records_from(at));
        self.pushed.0 += 1;
        room.spend(self.pending() - before);
        self.pushed
    }

    /// Closes the entry that takes records, if it has any.
    fn close(&mut self) {
        if !self.current.is_empty() {
            self.full_blocks += self.current.blocks();
            let next = EntryBuilder::new(self.entry_blocks);
            self.full.push_back((std::mem::replace(&mut self.current, next), self.pushed));
            self.sequence.0 += 1;
        }
    }

    /// The entry that has, or will have, the last record that was pushed.
    pub fn newest_entry(&self) -> EntrySeq {
        if self.current.is_empty() { EntrySeq(self.sequence.0 - 1) } else { self.sequence }
    }

    /// Blocks that entries without a place will take.
    fn pending(&self) -> u32 {
        let current = if self.current.is_empty() { 0 } else { self.current.blocks() };
        self.full_blocks + current
    }

    /// Blocks that records have, in the ring and in memory.
    pub fn blocks(&self) -> u32 {
        self.taken_blocks + self.pending()
    }

    /// Entries that are full and wait to be written.
    pub fn waiting(&self) -> usize {
        self.full.len()
    }

    /// Blocks of the ring that are taken, and all.
    pub fn usage(&self) -> (u32, u32) {
        (self.used, self.ring.blocks)
    }

    /// The position of the next entry, and the number of blocks that are passed over.
    fn next_position(&self) -> (u32, u32) {
        let left = self.ring.blocks - self.head;
        if left < MAX_ENTRY_BLOCKS { (0, left) } else { (self.head, 0) }
    }

    /// The first entry that was not taken out to be written.
    fn next_entry(&self) -> EntrySeq {
        EntrySeq(self.sequence.0 - self.full.len() as u64)
    }

    /// The place of the first entry that was not taken out to be written, and the last record
    /// before it. A checkpoint of the index as it is now stands for the records up to that one and
    /// no more: replay begins at the place, and applies those that come later, in order. Were what
    /// they emptied used anew, an older record of them could name it.
    pub fn next_place(&self) -> (Place, RecordSeq) {
        (Place { position: self.next_position().0, sequence: self.next_entry() }, self.placed)
    }

    /// All that was pushed until now is in entries before this one.
    pub(super) fn close_entries(&mut self) -> EntrySeq {
        self.close();
        self.sequence
    }

    /// Entries before `before` that were not taken out yet, with their places: some of them, if
    /// they are many, in their order, and none only if all were taken. They always find room: it
    /// was reserved for their records. `pool_seen`: by now.
    pub(super) fn take_ready(
        &mut self,
        before: EntrySeq,
        pool_seen: PoolSeen,
        bufs: &BufPool,
    ) -> Vec<ReadyEntry> {
        let (mut ready, mut all) = (Vec::new(), 0);
        let mut sequence = self.next_entry();
        while sequence < before
            && all < AT_ONCE
            && let Some((entry, last)) = self.full.pop_front()
        {
            let blocks = entry.blocks();
            all += blocks;
            let (position, skipped) = self.next_position();
            assert!(
                self.used + skipped + blocks < self.ring.blocks,
                "room was reserved for every record"
            );
            let header = EntryHeader {
                uuid: self.identity.uuid,
                incarnation: self.identity.incarnation,
                sequence,
                durable: self.durable_entry,
                pool_seen,
            };
            let mut bytes = bufs.zeroed(blocks as usize * base::BLOCK);
            entry.seal(&header, &mut bytes);
            self.full_blocks -= blocks;
            self.head = position + blocks;
            self.used += skipped + blocks;
            self.taken.push_back(RingEntry { sequence, last, blocks, skipped });
            self.taken_blocks += blocks;
            self.placed = last;
            self.stats.entries += 1;
            let offsets = self.ring.places(position);
            ready.push(ReadyEntry { sequence, last, offsets, bytes: bytes.freeze() });
            sequence.0 += 1;
        }
        ready
    }

    /// Everything up to this entry, and to this record, is durable.
    pub(super) fn note_durable(&mut self, _: Durable, entry: EntrySeq, record: RecordSeq) {
        self.durable_entry = self.durable_entry.max(entry);
        self.host_log.note_durable(self.durable_entry.0);
        self.durable = self.durable.max(record);
        self.stats.commits += 1;
    }

    /// A checkpoint says what entries before this one, with records up to this one, said: the
    /// entries' places are free.
    pub(super) fn forget_before(&mut self, _: Durable, entry: EntrySeq, record: RecordSeq) {
        let (mut freed, mut said) = (0, self.durable);
        while self.taken.front().is_some_and(|t| t.sequence < entry)
            && let Some(t) = self.taken.pop_front()
        {
            self.used -= t.blocks + t.skipped;
            freed += t.blocks;
            said = said.max(t.last);
        }
        self.taken_blocks -= freed;
        // Records of later entries are replayed, older ones first: nothing may be used anew for
        // them.
        assert!(record <= said, "a checkpoint frees by a record that it does not stand for");
        self.durable = said;
        self.durable_entry = self.durable_entry.max(EntrySeq(entry.0 - 1));
        self.host_log.note_durable(self.durable_entry.0);
        self.room.forgotten(freed);
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
