//! A block of which only some sectors were written, as far as it is known.

use base::{BLOCK, BufPool, CacheAddr, Result, Sectors, Slice, SliceList, StorageError};
use format::cache::index::Cover;

use crate::store::key::Crcs;

/// A part as its key was found.
pub(crate) struct FoundPart {
    pub addr: CacheAddr,
    pub crcs: Crcs,
    pub cover: Cover,
}

/// The known part of a block: some sectors of it; the others are zeros here.
#[derive(Clone)]
pub struct BlockPart {
    /// The sectors that count.
    pub sectors: Sectors,
    /// The data of the whole block.
    pub data: Slice,
}

impl BlockPart {
    /// All of a block.
    pub fn whole(data: Slice) -> BlockPart {
        BlockPart { sectors: Sectors::ALL, data }
    }

    /// The sectors of the block that count, as a key has them.
    pub(crate) fn cover(&self) -> Cover {
        if self.sectors.is_all() {
            Cover::ALL
        } else {
            Cover { sectors: self.sectors, below: None }
        }
    }
}

/// A whole block: sectors of `mine`, and what the image of the pool has of the others.
pub(crate) fn laid_over(
    bufs: &BufPool,
    mine: &[u8],
    sectors: Sectors,
    image: &SliceList,
) -> Result<Slice> {
    let mut whole = bufs.take(BLOCK);
    whole.copy_from_slice(image.first().ok_or_else(StorageError::ended)?);
    sectors.copy(mine, &mut whole);
    Ok(whole.freeze())
}
