//! What is known of a block of which only some sectors were written.

use base::{Sectors, Slice};
use format::cache::index::Cover;

/// What is known of a block: some sectors of it, the others are zeros here.
#[derive(Clone)]
pub struct BlockPart {
    /// The sectors that count.
    pub sectors: Sectors,
    /// A block.
    pub data: Slice,
}

impl BlockPart {
    /// All of a block.
    pub fn whole(data: Slice) -> BlockPart {
        BlockPart { sectors: Sectors::ALL, data }
    }

    /// What of it counts.
    pub(crate) fn cover(&self) -> Cover {
        if self.sectors.is_all() {
            Cover::ALL
        } else {
            Cover { sectors: self.sectors, below: None }
        }
    }
}
