//! The structures of a cache device: superblock, bucket table, journal, watermark, index records.

pub mod bucket;
pub mod index;
pub mod journal;
pub mod superblock;
pub mod watermark;
