//! Devices of the pool, their queues, and spares.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::io::IoByClass;
use crate::words::words;

words! {
    /// The state of a device in the pool; docs/operations.md has a page for each state that is
    /// wrong.
    DeviceState {
        /// The device is in use, and has everything that it should have.
        Online = "online",
        /// The device waits to take the place of one that stays out of use.
        Spare = "spare",
        /// The device is in use, and still lacks something that was written without it.
        Behind = "behind",
        /// The device gets everything that is written, and nothing is read from it yet.
        Joining = "joining",
        /// Everything on the device moves to others; then it leaves the pool.
        Leaving = "leaving",
        /// The device failed and is out of use.
        Failed = "failed",
        /// The device failed again and again, and is left out.
        Flapping = "flapping",
        /// The device was away while the pool was written.
        Stale = "stale",
        /// A command took the device out of use.
        Offline = "offline",
        /// The device was not found when the pool was opened, or it was unplugged.
        Missing = "missing",
    }
}

impl DeviceState {
    /// Whether the pool does not use a device in this state, though it should.
    pub const fn is_out_of_use(self) -> bool {
        match self {
            DeviceState::Online
            | DeviceState::Spare
            | DeviceState::Behind
            | DeviceState::Joining
            | DeviceState::Leaving => false,
            DeviceState::Failed
            | DeviceState::Flapping
            | DeviceState::Stale
            | DeviceState::Offline
            | DeviceState::Missing => true,
        }
    }
}

words! {
    /// The kind of a file or block device, as far as that decides how it is used best.
    DeviceKind {
        /// A disk with a head that has to move.
        Rotating = "rotating",
        /// Flash behind a link for disks.
        Ssd = "ssd",
        /// Flash on the bus.
        Nvme = "nvme",
        /// Not known, as of virtual disks: used as one that does not rotate.
        Unknown = "unknown",
        /// Memory: transfers only copy bytes.
        Memory = "memory",
    }
}

words! {
    /// Why a device sits out.
    SitsOutWhy {
        /// Reads of the device took much longer than those of another device of its kind.
        Slow = "slow",
        /// Many blocks of the device could not be read.
        Errs = "errs",
    }
}

words! {
    /// The kind of device that a device is made to behave like on purpose.
    Emulate {
        /// A hard disk.
        Hdd = "hdd",
        /// An SSD.
        Ssd = "ssd",
    }
}

/// A device.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Device")]
pub struct DeviceStatus {
    /// The path of the device; empty if it is missing.
    pub path: String,
    /// If the device is missing: the path at which it was last; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_path: Option<String>,
    /// If the device is missing: why the one that is there is not used, or why it could not be
    /// opened, in words; absent where nothing is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_because: Option<String>,
    /// The uuid of the device.
    pub id: String,
    /// The state of the device in the pool.
    pub state: DeviceState,
    /// Bytes of block groups that the device has room for.
    pub capacity_bytes: u64,
    /// Of these, bytes that block groups have.
    pub allocated_bytes: u64,
    /// If the device is out of use: it is tried again by itself.
    pub tried_again: bool,
    /// The spare that is to take the place of the device if it stays out of use.
    pub spare: Option<SpareStatus>,
    /// Why the last write to the device failed, if it did and the device is in use: clients get
    /// errors, unless a cache takes their writes.
    pub write_trouble: Option<String>,
    /// Whether the device is read only where no other has a good copy, and why.
    pub sits_out: Option<SitsOut>,
    /// Errors since the pool was opened.
    pub errors: DeviceErrors,
    /// Blocks that were not what was written, since the last scrub that found none.
    pub rot: Option<Rot>,
    /// The queue of the device; null if it is missing.
    pub queue: Option<QueueStatus>,
    /// The kind of device that the device is made to behave like on purpose; null: it behaves like
    /// itself.
    pub emulate: Option<Emulate>,
}

impl DeviceStatus {
    /// The path of the device, or its uuid if it is missing.
    pub fn name(&self) -> &str {
        if self.path.is_empty() { &self.id } else { &self.path }
    }
}

/// Errors seen on a device since the pool was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DeviceErrors {
    /// Reads that failed.
    pub read: u64,
    /// Writes and flushes that failed.
    pub write: u64,
    /// Blocks whose content was not what was written.
    pub checksum: u64,
    /// Blocks that were rewritten from a good copy.
    pub healed: u64,
}

/// Blocks of a device that were not what was written, since the last scrub that found none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Rot {
    /// The number of blocks. A block that is met again counts once; no more than 65,536 are kept.
    pub blocks: u64,
    /// Seconds since the first one was met.
    pub since_s: u64,
}

/// A device is read only where no other has a good copy.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SitsOut {
    /// The fault of the device.
    pub why: SitsOutWhy,
    /// Seconds until the device is tried again.
    pub seconds_left: u64,
}

/// A spare for a device that is out of use.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SpareStatus {
    /// The path of the spare; null: no spare in use has room for what that device holds.
    pub path: Option<String>,
    /// Seconds until the spare takes the place.
    pub in_s: u64,
}

/// A spare that has taken the place of a device.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SpareTaken {
    /// The path of the spare.
    pub spare: String,
    /// The device that was out of use: its path, or its uuid if it was missing.
    pub device: String,
    /// When, in seconds of Unix time; 0: not known.
    pub at: u32,
}

/// The spares of a pool.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SparesStatus {
    /// Spares that could take a place now.
    pub left: u64,
    /// The number of times that a spare has taken a place by itself since the pool was opened.
    pub taken_total: u64,
    /// The spares that have taken a place, until a spare is added.
    pub taken: Vec<SpareTaken>,
}

/// The queue of one device.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Queue")]
pub struct QueueStatus {
    /// The kind of the device.
    pub kind: DeviceKind,
    /// Requests that the background may have in flight now while the device has nothing else to do.
    pub background_most: u32,
    /// Requests of clients, of commits and of the journal that wait for the device now.
    pub waiting: u64,
    /// Requests of the background that wait for the device now.
    pub background_waiting: u64,
    /// For so many milliseconds the device has not answered the oldest of the requests that it has
    /// now; 0 if it has none.
    #[schemars(range(min = 0.0))]
    pub silent_ms: f64,
    /// I/O of the device by class.
    pub io: IoByClass,
}

/// The size of a device, after a command that lets it grow.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DeviceSize {
    /// The path of the device.
    pub device: String,
    /// The size of the device, in bytes.
    pub size_bytes: u64,
    /// Bytes of the device that the pool uses.
    pub usable_bytes: u64,
}
