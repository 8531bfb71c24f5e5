//! Sectors of the cache's data that cannot be read, and the blocks of volumes that they may cost.
//!
//! A sector costs the block that stood there. But the cache may also know a block there that never
//! arrived: its write was on its way when the program or the power ended, and the entry of the
//! journal that names it is there. Whether the data was there too, and the sector broke later,
//! cannot be known, so the cache says that it is lost. What counts is therefore what was last
//! *sent* to a place, and what was sent there before, which a cut of power may bring back.
//!
//! The last two contents sent are enough: a bucket is written again only when it is durable that
//! nothing in it is named.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use base::{BLOCK_U64, SECTOR, SliceList};
use rt::FileId;
use sim::World;

use crate::content;

/// A block of a volume: the volume's number and its own.
type BlockId = (u32, u64);

/// The blocks of volumes that were sent to a block of the cache's device, last and before that.
#[derive(Default)]
struct SentBlocks {
    last: BTreeSet<BlockId>,
    before: BTreeSet<BlockId>,
}

impl SentBlocks {
    fn begin(&mut self) {
        self.before = std::mem::take(&mut self.last);
    }

    fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.last.iter().chain(&self.before).copied()
    }
}

/// The blocks that cannot be read in the cache: each may cost blocks of a volume.
#[derive(Default)]
pub(crate) struct SpoiltBlocks {
    cache: Option<FileId>,
    /// Blocks of the cache's device that were struck.
    places: BTreeSet<u64>,
    /// The blocks of volumes that they may cost.
    blocks: BTreeSet<BlockId>,
    /// By blocks of the cache's device.
    sent: BTreeMap<u64, SentBlocks>,
}

impl SpoiltBlocks {
    /// Follows what is sent to the cache's device from now on. Nothing of it is struck yet.
    pub fn follow(this: &Rc<RefCell<SpoiltBlocks>>, world: &World, cache: FileId) {
        *this.borrow_mut() = SpoiltBlocks { cache: Some(cache), ..SpoiltBlocks::default() };
        let followed = Rc::downgrade(this);
        world.watch_writes(cache, move |offset, data| {
            if let Some(spoilt) = followed.upgrade() {
                spoilt.borrow_mut().note_write(cache, offset, data);
            }
        });
    }

    fn note_write(&mut self, cache: FileId, offset: u64, data: &SliceList) {
        // A cache that was there before may still write.
        if self.cache != Some(cache) {
            return;
        }
        let (mut at, mut place) = (offset, None);
        for sector in data.iter().flat_map(|s| s.chunks_exact(SECTOR)) {
            let now = at / BLOCK_U64;
            if place != Some(now) {
                place = Some(now);
                self.sent.entry(now).or_default().begin();
            }
            if let (Some(block), Some(sent)) = (block_of(sector), self.sent.get_mut(&now)) {
                sent.last.insert(block);
            }
            at += SECTOR as u64;
        }
    }

    /// The sector at this byte of the device cannot be read; `holds` is what is stored there.
    pub fn insert(&mut self, at: u64, holds: &[u8]) {
        let place = at / BLOCK_U64;
        self.places.insert(place);
        self.blocks.extend(block_of(holds));
        self.note_sent(place);
    }

    /// The program, the power or the device ends. What was written to a struck place since is
    /// readable, unless it is lost now: then it is that which cannot be read.
    pub fn note_end(&mut self) {
        for place in self.places.clone() {
            self.note_sent(place);
        }
    }

    fn note_sent(&mut self, place: u64) {
        if let Some(sent) = self.sent.get(&place) {
            self.blocks.extend(sent.blocks());
        }
    }

    /// Whether it may cost one of these blocks.
    pub fn meets(&self, volume: u32, blocks: Range<u64>) -> bool {
        self.blocks.range((volume, blocks.start)..(volume, blocks.end)).next().is_some()
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The device is empty.
    pub fn clear(&mut self) {
        *self = SpoiltBlocks { cache: self.cache, ..SpoiltBlocks::default() };
    }
}

fn block_of(sector: &[u8]) -> Option<BlockId> {
    let (volume, number) = content::place_of(sector)?;
    Some((volume, number * SECTOR as u64 / BLOCK_U64))
}

#[cfg(test)]
mod tests {
    use base::BufPool;

    use super::*;

    /// A write of one block of a volume to a block of the device.
    fn send(spoilt: &mut SpoiltBlocks, place: u64, (volume, block): BlockId) {
        let mut bytes = vec![0; BLOCK_U64 as usize];
        content::fill(&mut bytes, volume, block * BLOCK_U64 / SECTOR as u64, 1);
        let data = std::iter::once(BufPool::new(0).copy_of(&bytes).freeze()).collect();
        spoilt.note_write(FileId(1), place * BLOCK_U64, &data);
    }

    #[test]
    fn a_place_may_cost_what_was_sent_there_last_and_before() {
        let mut spoilt = SpoiltBlocks { cache: Some(FileId(1)), ..SpoiltBlocks::default() };
        for block in [5, 6, 7] {
            send(&mut spoilt, 3, (1, block));
            send(&mut spoilt, 4, (2, block));
        }
        spoilt.insert(3 * BLOCK_U64 + 512, &[0; SECTOR]);
        let costs =
            |s: &SpoiltBlocks| (0..12).filter(|b| s.meets(1, *b..b + 1)).collect::<Vec<_>>();
        assert_eq!(costs(&spoilt), [6, 7]);
        assert!(!spoilt.meets(2, 0..12), "another place is not struck");
        // A later write is readable until something ends.
        send(&mut spoilt, 3, (1, 8));
        assert_eq!(costs(&spoilt), [6, 7]);
        spoilt.note_end();
        assert_eq!(costs(&spoilt), [6, 7, 8]);
        spoilt.clear();
        assert!(costs(&spoilt).is_empty() && spoilt.is_empty());
    }
}
