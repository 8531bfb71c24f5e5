//! State that the last checkpoint has made durable: the superblock, and the pages of the bucket
//! table with the slot in which each stands.
//!
//! A page goes to the slot that the checkpoint before does not need, or to a spare block where that
//! slot takes no write, and a superblock to the next pair in turn. So whatever a crash leaves of a
//! checkpoint, the one before is whole.

use base::{BLOCK, Buf, BufPool, Generation, OpenId};
use format::cache::bucket::BucketRecord;
use format::cache::moved::SPARES;
use format::cache::pool_seen::PoolOpens;
use format::cache::superblock::CacheSuperblock;
use format::page::page_digest;

use crate::device::layout::Layout;
use crate::device::table::{FoundPage, encode_page};
use crate::store::frozen::CheckpointState;

/// A page and what it is to say.
pub(crate) struct NewPage {
    pub page: u32,
    pub records: Vec<BucketRecord>,
}

struct TablePage {
    /// The slot in which the page stands; or both.
    slot: u8,
    /// The checkpoint that wrote the page.
    generation: Generation,
    /// The records of the page; empty: the page is to be written anew.
    records: Vec<BucketRecord>,
}

/// The durable state.
pub(crate) struct DurableState {
    /// The superblock as it was written last; until the first checkpoint, as it was found.
    superblock: CacheSuperblock,
    /// The incarnation of checkpoints from now on.
    incarnation: u32,
    opens: PoolOpens,
    pages: Vec<TablePage>,
    /// Spare blocks that took no write in this life.
    bad_spares: [bool; SPARES],
    checkpoints: u64,
}

impl DurableState {
    /// The state as it was found, with the incarnation of checkpoints from now on, and the open of
    /// the pool that they are of.
    pub fn new(found: CacheSuperblock, incarnation: u32, opens: PoolOpens) -> DurableState {
        let (pages, bad_spares) = (Vec::new(), [false; SPARES]);
        DurableState { superblock: found, incarnation, opens, pages, bad_spares, checkpoints: 0 }
    }

    /// Durable superblocks of the pool name this open for the cache.
    pub fn named_by_pool(&mut self, opened: OpenId) {
        self.opens.named = opened;
        self.superblock.opens = self.opens;
    }

    /// The next page, as it was found.
    pub fn add_page(&mut self, found: FoundPage) {
        let FoundPage { slot, generation, records, renew } = found;
        let records = if renew { Vec::new() } else { records };
        self.pages.push(TablePage { slot, generation, records });
    }

    /// The number of the newest superblock that was given out.
    pub fn sequence(&self) -> u64 {
        self.superblock.sequence
    }

    /// Checkpoints since it was opened.
    pub fn checkpoints(&self) -> u64 {
        self.checkpoints
    }

    /// A page does not say this yet.
    pub fn differs(&self, page: u32, records: &[BucketRecord]) -> bool {
        self.page(page).records != records
    }

    /// A page as a checkpoint writes it first, and the slot for it.
    pub fn encode_page(
        &self,
        NewPage { page, records }: &NewPage,
        generation: Generation,
        bufs: &BufPool,
    ) -> (u8, Buf) {
        let slot = 1 - self.page(*page).slot;
        (slot, encode_page(self.uuid(), *page, slot, records, generation, bufs))
    }

    /// A page that is durable, for its other slot.
    pub fn encode_again(&self, page: u32, bufs: &BufPool) -> (u8, Buf) {
        let TablePage { slot, generation, records } = self.page(page);
        (1 - slot, encode_page(self.uuid(), page, 1 - slot, records, *generation, bufs))
    }

    /// The byte at which a slot of a page stands.
    pub fn offset_of(&self, layout: &Layout, page: u32, slot: u8) -> u64 {
        Layout { moved: self.superblock.moved, ..*layout }.page_offset(page, slot)
    }

    /// A slot of a page, which is not the one that counts, took no write where it stands: it stands
    /// in a spare block from now on. The next superblock says so. False: there is none left.
    pub fn move_page(&mut self, page: u32, slot: u8) -> bool {
        let moved = &mut self.superblock.moved;
        if let Some(spare) = moved.spare_of(page, slot) {
            self.bad_spares[spare] = true;
        }
        let free = |spare: &usize| moved.0[*spare] == 0 && !self.bad_spares[*spare];
        let spare = (0..SPARES).find(free);
        if let Some(spare) = spare {
            moved.put(spare, page, slot);
        }
        spare.is_some()
    }

    /// True if only the first of the pair of superblocks is there: the second is to be written
    /// before another pair ([`crate::device::slots`]).
    pub fn lacks_twin(&self) -> bool {
        self.superblock.sequence % 2 == 0
    }

    /// Makes the superblock name a checkpoint that has written these pages: the next pair of
    /// superblocks says so.
    pub fn name(&mut self, named: &CheckpointState, written: &[NewPage]) {
        let generation_of =
            |page: usize| match written.binary_search_by_key(&(page as u32), |new| new.page) {
                Ok(_) => named.generation,
                Err(_) => self.pages[page].generation,
            };
        let digests =
            (0..self.pages.len()).map(|page| page_digest(page as u32, generation_of(page)));
        let digest = digests.fold(0, u64::wrapping_add);
        let sb = &mut self.superblock;
        sb.incarnation = self.incarnation;
        sb.opens = self.opens;
        sb.table_digest = digest;
        sb.generation = named.generation;
        sb.root = named.root;
        sb.replay_position = named.place.position;
        sb.replay_sequence = named.place.sequence;
        (sb.epoch, sb.cut) = named.epochs;
        (sb.staged, sb.counted_from) = (named.staged, named.counted_from);
        sb.pool_seen = named.pool_seen;
    }

    /// The next superblock, and its offset on the device.
    pub fn next_superblock(&mut self, bufs: &BufPool) -> (u64, Buf) {
        self.superblock.sequence += 1;
        let mut block = bufs.zeroed(BLOCK);
        self.superblock.encode(&mut block);
        (CacheSuperblock::offset_of(self.superblock.sequence), block)
    }

    /// The other one of the pair of the superblock that was found, and its offset. From now on the
    /// pair is whole.
    pub fn twin(&mut self, bufs: &BufPool) -> (u64, Buf) {
        let mut twin = self.superblock.clone();
        twin.sequence ^= 1;
        self.superblock.sequence |= 1;
        let mut block = bufs.zeroed(BLOCK);
        twin.encode(&mut block);
        (CacheSuperblock::offset_of(twin.sequence), block)
    }

    /// The superblocks of a checkpoint are durable: its pages stand where it wrote them first.
    pub fn complete(&mut self, generation: Generation, written: Vec<NewPage>) {
        for NewPage { page, records } in written {
            let at = &mut self.pages[page as usize];
            *at = TablePage { slot: 1 - at.slot, generation, records };
        }
        self.checkpoints += 1;
    }

    fn uuid(&self) -> [u8; 16] {
        self.superblock.uuid
    }

    fn page(&self, page: u32) -> &TablePage {
        &self.pages[page as usize]
    }
}

#[cfg(test)]
#[path = "table_slots_tests.rs"]
mod tests;
