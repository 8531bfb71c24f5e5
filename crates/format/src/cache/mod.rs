//! The structures of a cache device: superblock, bucket records, journal entries, watermark, index records.

pub mod bucket;
pub mod index;
pub mod journal;
pub mod superblock;
pub mod watermark;
