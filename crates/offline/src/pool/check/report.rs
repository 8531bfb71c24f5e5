//! The report of a check of a pool.

use std::ops::Deref;
use std::rc::Rc;

use base::{Crc, Epoch, VolumeId};
use format::cache::pool_seen::PoolStatement;
use model::device::DeviceState;
use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};

use crate::report::{Findings, Slot};

/// A device as it was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DeviceReport {
    /// The path of the device; empty if the device is missing.
    pub path: String,
    /// The state of the device in the pool; `None`, shown as `removed`: the device has left the
    /// pool.
    #[serde(serialize_with = "state_word")]
    pub state: Option<DeviceState>,
    /// The superblock slots of the device; none if it is missing.
    pub slots: Vec<Slot>,
}

impl DeviceReport {
    /// The word for the state.
    pub fn state_word(&self) -> &'static str {
        self.state.map_or("removed", DeviceState::word)
    }

    /// True if the device is in use and lacks nothing, or has nothing that could be lacked.
    pub fn is_whole(&self) -> bool {
        matches!(self.state, None | Some(DeviceState::Online | DeviceState::Spare))
    }
}

fn state_word<S: Serializer>(state: &Option<DeviceState>, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(state.map_or("removed", DeviceState::word))
}

/// The counters of what was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct PoolCounts {
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
    /// Snapshots.
    pub snapshots: u64,
    /// Records of deadlists.
    pub dead_runs: u64,
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
    /// The pool's uuid, in hexadecimal digits.
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
    /// The pool's devices.
    pub devices: Vec<DeviceReport>,
    /// The findings of the check.
    #[serde(flatten)]
    pub findings: Findings<PoolCounts>,
    /// The uuid of the cache that is attached to the pool, in hexadecimal digits.
    pub cache: Option<String>,
    /// The state of the pool that the attached cache has to fit.
    #[serde(skip)]
    pub image: Image,
}

/// The state of the pool that a cache in front of it has to fit.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Image {
    /// The uuid of the pool, which an attached cache names.
    pub pool_uuid: [u8; 16],
    /// The cache that is attached to it.
    pub cache_uuid: Option<[u8; 16]>,
    /// The state of the cache as the pool records it: an entry of the cache's journal that was
    /// durable when the pool last committed, say.
    pub cache_says: PoolStatement,
    /// True if the clean keys of the cache do not count.
    pub clean_void: bool,
    /// The epoch of the last cut that was published.
    pub published: Epoch,
    /// The pool's volumes: number, name, bytes. `None` if not all of the table could be read.
    pub volumes: Option<Vec<(VolumeId, String, u64)>>,
    /// No volume ever had this number, or a higher one.
    pub next_volume: u32,
    /// The blocks that staging volumes hold. `None` if something that may tell of them could not be
    /// read.
    pub staged: Option<Rc<StagedSums>>,
}

/// The checksums of the blocks in staging volumes, by the volume they are for, the epoch, and the
/// block.
pub type StagedSums = FxHashMap<(VolumeId, Epoch, u64), Crc>;

impl Deref for Report {
    type Target = Findings<PoolCounts>;
    fn deref(&self) -> &Findings<PoolCounts> {
        &self.findings
    }
}
