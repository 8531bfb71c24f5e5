//! What stays from one checkpoint to the next.

use base::Generation;
use format::cache::bucket::BucketRecord;
use format::cache::superblock::CacheSuperblock;

/// What stays between checkpoints.
pub(crate) struct Checkpointer {
    pub superblock: CacheSuperblock,
    /// The pages of the bucket table, as they are on the device.
    pub pages: Vec<TablePage>,
    pub count: u64,
}

/// A page of the bucket table.
pub(crate) struct TablePage {
    /// The slot in which it stands; or both.
    pub slot: u8,
    /// The checkpoint that wrote it.
    pub generation: Generation,
    /// What it says.
    pub records: Vec<BucketRecord>,
}
