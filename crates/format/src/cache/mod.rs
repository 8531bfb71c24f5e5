//! The structures of a cache device: superblock, bucket records, journal entries, index records.

pub mod bucket;
pub mod index;
pub mod journal;
pub mod superblock;
