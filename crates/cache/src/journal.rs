//! The journal: changes of the index since the last checkpoint, in a ring of entries on the cache device.
//!
//! Records gather in memory, in the order in which the index changed. A FLUSH writes them as entries and then flushes the device once; all who ask meanwhile
//! share the next turn. The data that a record is about was written before the record came here, so one flush makes both durable.
//!
//! **Fault model.** One copy of an entry may go bad or become unreadable. Without a flush, any of the last entries may be missing, torn, or there although the data of its records is not. So an entry is verified as
//! a whole, entries count only in sequence, and each names the last entry that was known durable when it was written: what comes behind it has its data
//! verified at replay. Of the newest entry the watermark tells, when none follows it for a while ([`Cache::write_watermark`](crate::Cache)).
//!
//! **Room.** The ring is freed by checkpoints only. An entry whose place cannot be had waits; checkpoints begin when half of the ring is used.

use std::collections::VecDeque;

use base::{BLOCK_U64, BufPool, Slice};
use format::cache::journal::{EntryBuilder, EntryHeader, MAX_ENTRY_BLOCKS, Record};

use crate::health::Durable;

/// Where entries are on the device: each at the same place of two rings, so that one bad sector takes none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    /// Offset of the first byte of the first ring. The second follows it.
    pub offset: u64,
    pub blocks: u32,
}

impl Ring {
    pub const COPIES: usize = 2;

    /// Bytes of both.
    pub fn bytes(&self) -> u64 {
        Ring::COPIES as u64 * u64::from(self.blocks) * BLOCK_U64
    }

    /// Where a block stands, in both.
    pub fn places(&self, position: u32) -> [u64; Ring::COPIES] {
        let at = |copy: u64| self.offset + (copy * u64::from(self.blocks) + u64::from(position)) * BLOCK_U64;
        [at(0), at(1)]
    }
}

/// An entry's place: the first to be replayed, say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Blocks from the ring's start.
    pub position: u32,
    pub sequence: u64,
}

/// What identifies this journal's entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub uuid: [u8; 16],
    pub incarnation: u32,
}

/// An entry that is ready to be written.
pub(crate) struct Ready {
    pub sequence: u64,
    /// The number of its last record.
    pub records: u64,
    /// Where it is written to.
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
    identity: Identity,
    /// The entry that takes records now has this sequence.
    sequence: u64,
    current: EntryBuilder,
    /// Full entries without a place, in order, each with the number of its last record.
    full: VecDeque<(EntryBuilder, u64)>,
    /// Blocks of these.
    full_blocks: u32,
    /// Records pushed, and how many of them, from the first on, are durable.
    pushed: u64,
    durable_records: u64,
    /// Where the next entry goes, and what is taken: by sequence, with the blocks that were passed over.
    head: u32,
    taken: VecDeque<(u64, u32)>,
    used: u32,
    durable: u64,
    pub stats: JournalStats,
}

impl Journal {
    /// An empty journal that goes on at `place`.
    pub fn new(ring: Ring, identity: Identity, place: Place) -> Journal {
        Journal {
            ring,
            identity,
            sequence: place.sequence,
            current: EntryBuilder::new(),
            full: VecDeque::new(),
            full_blocks: 0,
            pushed: 0,
            durable_records: 0,
            head: place.position,
            taken: VecDeque::new(),
            used: 0,
            durable: place.sequence - 1,
            stats: JournalStats::default(),
        }
    }

    /// What its entries are told by.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Records pushed so far. What has to wait for the next ones waits for larger numbers.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// So many records, from the first on, are durable, or in a checkpoint.
    pub fn durable_records(&self) -> u64 {
        self.durable_records
    }

    /// The last entry that is durable, with all before it.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Adds a record.
    pub fn push(&mut self, record: &Record<'_>) {
        self.stats.records += 1;
        if !self.current.push(record) {
            self.close();
            let fits = self.current.push(record);
            assert!(fits, "a record is larger than an entry");
        }
        self.pushed += 1;
    }

    /// Closes the entry that takes records, if it has any; all that was pushed is in entries up to the returned one.
    pub fn close(&mut self) -> u64 {
        if !self.current.is_empty() {
            self.full_blocks += self.current.blocks();
            self.full.push_back((std::mem::replace(&mut self.current, EntryBuilder::new()), self.pushed));
            self.sequence += 1;
        }
        self.sequence - 1
    }

    /// The entry that has, or will have, the last record that was pushed.
    pub fn newest(&self) -> u64 {
        if self.current.is_empty() { self.sequence - 1 } else { self.sequence }
    }

    /// Blocks of the ring that are taken, or will be by all that was pushed.
    pub fn needed(&self) -> u32 {
        let current = if self.current.is_empty() { 0 } else { self.current.blocks() };
        self.used + self.full_blocks + current
    }

    /// True if `records` more, and all that was pushed before them, find room in the ring as it is, with what may be passed over at its end.
    pub fn has_room_for(&self, records: u32) -> bool {
        // None is longer than a tenth of a block; they may begin an entry.
        self.needed() + records.div_ceil(10) + 1 + MAX_ENTRY_BLOCKS < self.ring.blocks
    }

    /// Where the ring is tight, closes the entry that takes records, so that it grows no more: what has room has it then.
    pub fn keep_small(&mut self) {
        if self.needed() + 3 * MAX_ENTRY_BLOCKS >= self.ring.blocks {
            self.close();
        }
    }

    /// True if something was pushed and not written yet.
    pub fn gathers(&self) -> bool {
        !self.current.is_empty() || !self.full.is_empty()
    }

    /// Entries that wait to be written.
    pub fn waiting(&self) -> usize {
        self.full.len()
    }

    /// Blocks of the ring that are taken, and all.
    pub fn usage(&self) -> (u32, u32) {
        (self.used, self.ring.blocks)
    }

    /// Where the next entry is put, and the blocks passed over.
    fn next_position(&self) -> (u32, u32) {
        let left = self.ring.blocks - self.head;
        if left < MAX_ENTRY_BLOCKS { (0, left) } else { (self.head, 0) }
    }

    /// The place of the first entry that has none yet: all records before it are in entries that were taken out to be written.
    pub fn next_place(&self) -> Place {
        let sequence = self.sequence - self.full.len() as u64;
        Place { position: self.next_position().0, sequence }
    }

    /// Gives the first waiting entry its place; `Err` if there is no room for it.
    pub fn take_ready(&mut self, bufs: &BufPool) -> Result<Option<Ready>, ()> {
        let Some((first, records)) = self.full.front() else { return Ok(None) };
        let records = *records;
        let blocks = first.blocks();
        let (position, skipped) = self.next_position();
        if self.used + skipped + blocks >= self.ring.blocks {
            return Err(());
        }
        let sequence = self.sequence - self.full.len() as u64;
        let header = EntryHeader {
            uuid: self.identity.uuid,
            incarnation: self.identity.incarnation,
            sequence,
            durable: self.durable,
        };
        let mut bytes = bufs.zeroed(blocks as usize * base::BLOCK);
        first.seal(&header, &mut bytes);
        self.full.pop_front();
        self.full_blocks -= blocks;
        self.head = position + blocks;
        self.used += skipped + blocks;
        self.taken.push_back((sequence, skipped + blocks));
        self.stats.entries += 1;
        let offsets = self.ring.places(position);
        Ok(Some(Ready { sequence, records, offsets, bytes: bytes.freeze() }))
    }

    /// Everything up to entry `sequence`, and to record `records`, is durable.
    pub fn note_durable(&mut self, _: Durable, sequence: u64, records: u64) {
        self.durable = self.durable.max(sequence);
        self.durable_records = self.durable_records.max(records);
        self.stats.commits += 1;
    }

    /// A checkpoint says what entries before `sequence`, and records up to `records`, said: the entries' places are free.
    pub fn forget_before(&mut self, _: Durable, sequence: u64, records: u64) {
        self.durable_records = self.durable_records.max(records);
        while let Some(&(s, blocks)) = self.taken.front() {
            if s >= sequence {
                break;
            }
            self.taken.pop_front();
            self.used -= blocks;
        }
        // What was never written needs not be any more; what waits for it is told by the checkpoint.
        self.durable = self.durable.max(sequence - 1);
    }
}
