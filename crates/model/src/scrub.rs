//! Scrubs: what they do, how far they have come, and what they have found.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::words::words;

words! {
    /// The state of a scrub.
    ScrubState {
        /// No scrub was started yet.
        Never = "never",
        /// The scrub reads and verifies.
        Running = "running",
        /// The scrub rests until a command resumes it.
        Paused = "paused",
        /// The scrub has gone over everything.
        Done = "done",
        /// A command ended the scrub.
        Cancelled = "cancelled",
    }
}

words! {
    /// The kind of a block.
    BlockKind {
        /// A block of a volume.
        Data = "data",
        /// A node of a tree.
        Node = "node",
        /// A page of a table or bitmap.
        Page = "page",
        /// A superblock.
        Superblock = "superblock",
    }
}

/// Bad and healed blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Found {
    /// Blocks that were not what they should be, or could not be read.
    pub bad: u64,
    /// The number of these that were written again and are good now.
    pub healed: u64,
}

/// Bad and healed blocks of one kind on one device.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ScrubFound {
    /// The device's path.
    pub device: String,
    /// The kind of the blocks.
    pub kind: BlockKind,
    /// The numbers of blocks.
    #[serde(flatten)]
    pub found: Found,
}

/// Blocks of which no good copy is left.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct LostBlocks {
    /// The name of the volume that the blocks belong to, or its number if it has no name any more.
    pub volume: String,
    /// The first byte in the volume.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
}

/// The scrub of the pool that runs, or the last one.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct PoolScrub {
    /// The state of the scrub.
    pub state: ScrubState,
    /// The only device that the scrub reads; null: all devices.
    pub device: Option<String>,
    /// When the scrub was started, in seconds of Unix time; 0: not known, or not yet.
    pub started_at: u32,
    /// When the scrub ended, in the same way.
    pub ended_at: u32,
    /// When the last complete scrub of all devices ended.
    pub completed_at: u32,
    /// For so many seconds the scrub has been paused, once that is long: a day, or the interval at
    /// which scrubs begin by themselves if that is shorter. null: it is not, or not for so long.
    pub paused_long_s: Option<u64>,
    /// Bytes verified, all copies counted.
    pub verified_bytes: u64,
    /// Bytes that the scrub will have verified in the end, about.
    pub all_bytes: u64,
    /// Bytes a second over the last seconds, while the scrub runs.
    pub rate: u64,
    /// The most that the scrub may read of each copy, in bytes a second; null: no limit.
    pub rate_limit: Option<u64>,
    /// Seconds that are left at this rate, while the scrub runs.
    pub left_s: Option<u64>,
    /// Blocks that were bad in some copy, all kinds and devices.
    pub bad: u64,
    /// Blocks that were healed.
    pub healed: u64,
    /// Blocks of which the scrub found no good copy, and parts of the pool that it could not verify
    /// because of such a block.
    pub lost: u64,
    /// The number of such parts in lost.
    pub passed_over: u64,
    /// Parts of the pool are not verified: this scrub passed over some, or one before it did and
    /// none has gone over everything since.
    pub incomplete: bool,
    /// A device that the scrub was to read was out of use while it ran, or one that may have the
    /// good copy of a bad block: the scrub does not count as complete.
    pub away: bool,
    /// Leaves of checksum trees that scrubs have read since the pool was opened.
    pub leaves: u64,
    /// Bad and healed blocks by device and kind, since the scrub was started or the pool was
    /// opened, whichever was later.
    pub found: Vec<ScrubFound>,
    /// Blocks without a good copy that a read, a move or any scrub has found, until they are
    /// written again or a scrub finds them good; at most 29 extents.
    pub lost_blocks: Vec<LostBlocks>,
    /// More is lost than lost_blocks names: a complete scrub of all devices names the rest when
    /// these are mended.
    pub more_lost: bool,
}

/// The scrub that runs, or the last one, with the cache's part.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Scrub")]
pub struct ScrubStatus {
    /// The pool's part.
    #[serde(flatten)]
    pub pool: PoolScrub,
    /// The cache's part; null if there is no cache.
    pub cache: Option<CacheScrubPart>,
}

/// The findings of scrubs of a cache since the cache was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct CacheScrub {
    /// The number of times that a scrub has gone over everything.
    pub completed: u64,
    /// Bytes verified.
    pub verified_bytes: u64,
    /// Clean extents with a bad block, which were dropped.
    pub dropped: u64,
    /// Dirty blocks that are bad: they are lost.
    pub lost: u64,
}

/// The cache's part of the newest scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct CacheScrubPart {
    /// The state of the cache's part.
    pub state: ScrubState,
    /// Bytes verified.
    pub verified_bytes: u64,
    /// Bytes that the cache's part will have verified in the end, about.
    pub all_bytes: u64,
    /// Clean extents with a bad block, which were dropped.
    pub dropped: u64,
    /// Dirty blocks that are bad: they are lost.
    pub lost: u64,
}
