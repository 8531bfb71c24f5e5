//! What a check of a pool found.

use std::ops::Deref;
use std::rc::Rc;

use base::{Crc, Epoch, VolumeId};
use format::cache::pool_seen::PoolSays;
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::report::{Findings, Slot};

/// A device as it was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DeviceReport {
    /// Where it is; empty if it is missing.
    pub path: String,
    /// `online`, `failed`, `stale` or `missing`.
    pub state: &'static str,
    /// Its superblock slots; none if it is missing.
    pub slots: Vec<Slot>,
}

/// How much was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Counts {
    /// Table pages.
    pub table_pages: u64,
    /// Bitmap pages.
    pub bitmap_pages: u64,
    /// Block groups in use.
    pub groups: u64,
    /// Volumes, those that are being deleted included.
    pub volumes: u64,
    /// Staging volumes, likewise.
    pub stagings: u64,
    /// Nodes of trees.
    pub nodes: u64,
    /// Extents of volumes.
    pub extents: u64,
    /// Checksum records.
    pub checksum_records: u64,
    /// Blocks of volumes.
    pub data_blocks: u64,
    /// Copies of nodes and data blocks that were read and were good.
    pub good_copies: u64,
    /// Bytes of data that were verified against their checksum, all copies counted.
    pub verified_bytes: u64,
}

/// The outcome of a check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// The pool's name.
    pub pool: String,
    /// Its uuid, in hexadecimal digits.
    pub uuid: String,
    /// The last committed transaction.
    pub generation: u64,
    /// The newest superblock.
    pub sequence: u64,
    /// Copies of every block.
    pub copies: u8,
    /// True if a device is missing, failed or stale: only what the others hold was checked.
    pub degraded: bool,
    /// True if the content of data blocks was verified too.
    pub data: bool,
    /// Its devices.
    pub devices: Vec<DeviceReport>,
    /// What was found.
    #[serde(flatten)]
    pub findings: Findings<Counts>,
    /// The uuid of the cache that is attached to it, in hexadecimal digits.
    pub cache: Option<String>,
    /// What that cache has to fit.
    #[serde(skip)]
    pub image: Image,
}

/// What a cache in front of the pool has to fit.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Image {
    /// The pool.
    pub pool_uuid: [u8; 16],
    /// The cache that is attached to it.
    pub cache_uuid: Option<[u8; 16]>,
    /// What the pool says of it: an entry of its journal that was durable when the pool last
    /// committed, say.
    pub cache_says: PoolSays,
    /// Its clean keys do not count.
    pub clean_void: bool,
    /// The epoch of the last cut that was published.
    pub published: Epoch,
    /// Its volumes: number, name, bytes. `None` if not all of the table could be read.
    pub volumes: Option<Vec<(VolumeId, String, u64)>>,
    /// No volume ever had this number, or a higher one.
    pub next_volume: u32,
    /// What staging volumes hold. `None` if something that may tell of it could not be read.
    pub staged: Option<Rc<Staged>>,
}

/// The checksums of the blocks in staging volumes, by the volume they are for, the epoch, and the
/// block.
pub type Staged = FxHashMap<(VolumeId, Epoch, u64), Crc>;

impl Deref for Report {
    type Target = Findings<Counts>;
    fn deref(&self) -> &Findings<Counts> {
        &self.findings
    }
}
