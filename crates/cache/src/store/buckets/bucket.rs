//! One bucket.

use base::{BucketGen, Epoch};
use format::cache::bucket::{BucketKind, BucketRecord};

use super::epochs::{Dirt, Moment};

/// Where a bucket is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Life {
    /// May be filled.
    #[default]
    Free,
    /// Is being filled.
    Open,
    /// Is full; has unpublished blocks, or nodes, or is a candidate for eviction.
    Sealed,
    /// Holds nothing, but may not be overwritten yet.
    Pending,
    /// Not used any more: it gave errors.
    Retired,
}

#[derive(Clone, Default)]
pub(super) struct Bucket {
    pub generation: BucketGen,
    pub live: u16,
    /// Live nodes in it that checkpoints have replaced. They may still be read.
    pub replaced: u16,
    pub dirt: Dirt,
    /// The freeze after which it became free.
    pub freed_in: u32,
    /// Reads and writes in flight.
    pub pins: u16,
    pub errors: u8,
    pub kind: BucketKind,
    pub life: Life,
    /// The epoch that was open when its dirty blocks were moved last; 0: they were not.
    pub compacted_in: Epoch,
    /// It is a victim, and its survivors move.
    pub leaving: bool,
}

impl Bucket {
    /// What it said at a moment, as the bucket table has it.
    pub fn record_at(&self, moment: Moment) -> BucketRecord {
        let (dirty_open, dirty_cut) = moment.named(&self.dirt);
        let (generation, kind, live) = (self.generation, self.kind, self.live);
        BucketRecord { generation, kind, live, dirty_open, dirty_cut, last_use: 0 }
    }
}

/// A bucket that is being filled.
#[derive(Clone, Copy)]
pub(super) struct OpenBucket {
    pub id: base::BucketId,
    pub filled: u32,
}

/// Whether a contradiction may come from the disk.
#[derive(Default)]
pub(super) enum Source {
    #[default]
    Memory,
    /// The first contradiction that was met.
    Disk(Option<String>),
}
