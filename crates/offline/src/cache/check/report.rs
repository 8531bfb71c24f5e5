//! The report of a check of a cache.

use std::ops::Deref;

use serde::Serialize;

use crate::report::{Findings, Slot};

/// The relation of a device to the pool that it was checked with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolRelation {
    /// The cache of the pool.
    Attached,
    /// A former cache of the pool: nothing in it counts, and nothing else was checked.
    Detached,
    /// Something else: nothing else was checked.
    Foreign,
}

/// The counters of what was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct CacheCounts {
    /// Pages of the bucket table.
    pub table_pages: u64,
    /// Buckets.
    pub buckets: u64,
    /// Nodes of the index, as of the checkpoint.
    pub nodes: u64,
    /// Entries of the journal since.
    pub journal_entries: u64,
    /// Records in them.
    pub journal_records: u64,
    /// Blocks that they name and that had not arrived: no client was told that they had.
    pub not_arrived: u64,
    /// Keys, with the journal applied.
    pub keys: u64,
    /// Keys of these whose bucket holds something else by now: they count as absent.
    pub stale_keys: u64,
    /// Blocks that keys name.
    pub live_blocks: u64,
    /// Blocks of these that the pool's image does not have.
    pub dirty_blocks: u64,
    /// Blocks that are in the pool's staging volumes, and not in its image.
    pub staged_blocks: u64,
    /// Discarded blocks that the pool's image does not know of.
    pub dirty_zeros: u64,
    /// Bytes of data that were verified against their checksum.
    pub verified_bytes: u64,
}

/// The outcome of a check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CacheReport {
    /// The path of the device.
    pub path: String,
    /// The cache's uuid, in hexadecimal digits; `None` if the device has no superblock.
    pub uuid: Option<String>,
    /// The relation of the device to the pool.
    pub standing: PoolRelation,
    /// The last checkpoint.
    pub generation: u64,
    /// The newest superblock.
    pub sequence: u64,
    /// The number of times that the cache was opened.
    pub incarnation: u32,
    /// The superblock slots of the device.
    pub slots: Vec<Slot>,
    /// True if the content of blocks was verified too.
    pub data: bool,
    /// The findings of the check. The pool has the blocks of damaged copies.
    #[serde(flatten)]
    pub findings: Findings<CacheCounts>,
}

impl Deref for CacheReport {
    type Target = Findings<CacheCounts>;
    fn deref(&self) -> &Findings<CacheCounts> {
        &self.findings
    }
}
