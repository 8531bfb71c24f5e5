//! Blocks that were written in part a moment ago, in memory, so that the next write of the same
//! block is merged without a read of the cache device.
//!
//! A stream whose requests begin and end inside of blocks comes back to the last block of each
//! request with the next one; a log comes back to the same block again and again. Each such write
//! would read what it has just written.
//!
//! An entry is taken only if the index has the block where it was written to, with the checksum and
//! the sectors that it was written with. So nothing has to be told here when a block is changed,
//! moved, dropped or published in any other way.

use std::collections::{BTreeMap, VecDeque};

use base::{CacheAddr, Crc, Lba, VolumeId};
use format::cache::index::Cover;

use crate::transfer::block_part::BlockPart;

/// Blocks that are kept: 4 MiB of memory.
const KEPT: usize = 1024;

type BlockKey = (VolumeId, Lba);

/// The blocks that were written in part last.
#[derive(Default)]
pub(crate) struct RecentParts {
    all: BTreeMap<BlockKey, Entry>,
    /// In the order in which they came.
    order: VecDeque<BlockKey>,
}

struct Entry {
    stands: IndexedBlock,
    part: BlockPart,
}

/// The place of a block in a bucket, and its checksum and sectors by the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IndexedBlock {
    pub addr: CacheAddr,
    pub crc: Crc,
    pub cover: Cover,
}

impl RecentParts {
    /// Keeps what was written, instead of what was known of the block.
    pub fn keep(&mut self, volume: VolumeId, lba: Lba, stands: IndexedBlock, part: BlockPart) {
        let key = (volume, lba);
        if self.all.insert(key, Entry { stands, part }).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
    }

    /// The content of a block that stands there by the index.
    pub fn find(&self, volume: VolumeId, lba: Lba, stands: IndexedBlock) -> Option<BlockPart> {
        let entry = self.all.get(&(volume, lba))?;
        (entry.stands == stands).then(|| entry.part.clone())
    }
}

#[cfg(test)]
mod tests {
    use base::{BufPool, Sectors};

    use super::*;

    const V: VolumeId = VolumeId(1);

    fn part() -> BlockPart {
        let data = BufPool::new(0).zeroed(base::BLOCK).freeze();
        BlockPart { sectors: Sectors::NONE, data }
    }

    fn stands(n: u64) -> IndexedBlock {
        IndexedBlock { addr: CacheAddr(n), crc: n as u32, cover: Cover::ALL }
    }

    #[test]
    fn only_what_stands_there_is_found_and_the_oldest_go() {
        let mut recent = RecentParts::default();
        for n in 0..KEPT as u64 {
            recent.keep(V, Lba(n), stands(n), part());
        }
        assert!(recent.find(V, Lba(0), stands(0)).is_some());
        for other in [
            IndexedBlock { addr: CacheAddr(9), ..stands(0) },
            IndexedBlock { crc: 9, ..stands(0) },
            IndexedBlock { cover: Cover { sectors: Sectors::NONE, below: None }, ..stands(0) },
        ] {
            assert!(recent.find(V, Lba(0), other).is_none(), "{other:?}");
        }
        assert!(recent.find(V, Lba(1), stands(0)).is_none());
        // The same block once more keeps its place in line.
        recent.keep(V, Lba(0), stands(5000), part());
        assert!(recent.find(V, Lba(0), stands(5000)).is_some());
        recent.keep(V, Lba(1 << 40), stands(1), part());
        assert!(recent.find(V, Lba(0), stands(5000)).is_none());
        assert_eq!((recent.all.len(), recent.order.len()), (KEPT, KEPT));
    }
}
