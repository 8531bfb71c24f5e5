//! The structures of a cache device: superblock, bucket table, journal, watermark, index records,
//! summaries of buckets.

pub mod bucket;
pub mod index;
pub mod journal;
pub mod moved;
pub mod pool_seen;
pub mod summary;
pub mod superblock;
pub mod watermark;
