//! The state of a cache.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::device::QueueStatus;
use crate::scrub::{CacheScrub, CacheScrubPart};
use crate::volume::CacheMode;
use crate::words::words;

words! {
    /// Whether the cache is in use.
    CacheState {
        /// The cache serves.
        Serving = "serving",
        /// The cache has failed with dirty data in it.
        Failed = "failed",
        /// The cache has failed, or a detach is not durable yet, and the pool goes on without it.
        Aside = "aside",
    }
}

words! {
    /// The mode of the cache that all volumes have in common.
    CommonMode {
        /// See CacheMode.
        WriteBack = "writeback",
        /// See CacheMode.
        WriteThrough = "writethrough",
        /// See CacheMode.
        WriteAround = "writearound",
        /// See CacheMode.
        None = "none",
        /// Volumes differ.
        Mixed = "mixed",
    }
}

words! {
    /// A background job of the cache.
    CacheJob {
        /// Dirty data is carried to the pool.
        WriteBack = "write-back",
        /// The index is made durable.
        Checkpoint = "checkpoint",
        /// Garbage collection.
        Collection = "collection",
    }
}

words! {
    /// The policy that chooses victims: the buckets that are evicted.
    Policy {
        /// The bucket whose last read hit is the oldest.
        Lru = "lru",
        /// The bucket that was filled first.
        Fifo = "fifo",
        /// Any bucket.
        Random = "random",
        /// Three queues whose shares follow the load; the blocks of a victim that were hit are
        /// kept.
        Adaptive = "adaptive",
    }
    default Adaptive
}

impl From<CacheMode> for CommonMode {
    fn from(mode: CacheMode) -> CommonMode {
        match mode {
            CacheMode::WriteBack => CommonMode::WriteBack,
            CacheMode::WriteThrough => CommonMode::WriteThrough,
            CacheMode::WriteAround => CommonMode::WriteAround,
            CacheMode::None => CommonMode::None,
        }
    }
}

/// The state of a cache; sizes in bytes, times in the unit of their name.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Cache")]
pub struct CacheStatus {
    /// The file or device of the cache.
    pub path: String,
    /// Whether the cache is in use.
    pub state: CacheState,
    /// Why the cache takes no writes any more; or, while it serves, none for now: the file system
    /// under it is full.
    pub error: Option<String>,
    /// Why what is answered does not outlive the process before it is flushed; absent if it does,
    /// and if that is switched off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers_at_risk: Option<String>,
    /// The jobs that are under way.
    pub working: Vec<CacheJob>,
    /// The mode of the cache for the volumes; mixed where they differ.
    pub mode: CommonMode,
    /// Bytes in the buckets.
    pub size_bytes: u64,
    /// Bytes that are not yet in the pool's image.
    pub dirty_bytes: u64,
    /// Bytes that are in the pool too.
    pub clean_bytes: u64,
    /// The share of the blocks read that was found in the cache.
    pub hit_ratio: HitRatioStatus,
    /// Blocks found in the cache.
    pub hits: u64,
    /// Blocks read from the pool.
    pub misses: u64,
    /// Blocks, read or written, that went past the cache.
    pub bypassed: u64,
    /// Blocks kept after a miss.
    pub promoted: u64,
    /// Writes of some sectors of a block, kept without a read of the pool.
    pub part_writes: u64,
    /// Blocks written in part that a read has completed.
    pub completed_parts: u64,
    /// Buckets evicted.
    pub evicted: u64,
    /// Clean blocks that were bad in the cache and were dropped: the pool has them.
    pub refetched: u64,
    /// Reads that met a dirty block that is bad.
    pub lost: u64,
    /// Dirty blocks that cannot be written back, the first of them: volume id and block.
    pub bad_blocks: Vec<(u32, u64)>,
    /// The number of dirty blocks that cannot be written back.
    pub bad_blocks_known: u64,
    /// The choice of what the cache keeps.
    pub replacement: ReplacementStatus,
    /// Volumes of which passes leave something in the cache, as the pool cannot take it.
    pub kept: Vec<KeptStatus>,
    /// Blocks of all of these volumes.
    pub kept_blocks: u64,
    /// Buckets by state.
    pub buckets: BucketStatus,
    /// The index.
    pub index: IndexStatus,
    /// The journal.
    pub journal: JournalStatus,
    /// Write-back.
    pub writeback: WritebackStatus,
    /// Garbage collection.
    pub gc: GcStatus,
    /// The findings of scrubs since the cache was opened.
    pub scrub: CacheScrub,
    /// The cache's part of the newest scrub.
    pub scrub_part: CacheScrubPart,
    /// The replay of the journal by the last open.
    pub replay: ReplayStatus,
    /// The queue of the cache's device.
    pub queue: QueueStatus,
}

/// The blocks of a volume that passes leave in the cache.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct KeptStatus {
    /// The volume's name.
    pub volume: String,
    /// The volume's number.
    pub id: u32,
    /// Blocks that are in the cache alone.
    pub blocks: u64,
    /// Why the pool does not take the blocks.
    pub why: String,
}

/// The share of the blocks read that was found in the cache, 0 to 1; null where none was read.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct HitRatioStatus {
    /// During the last minute.
    pub last_minute: Option<f64>,
    /// During the last hour.
    pub last_hour: Option<f64>,
    /// Since the cache was opened.
    pub total: Option<f64>,
    /// The same for each volume that was read.
    pub volumes: Vec<VolumeHitRatio>,
}

/// The hit ratio of a volume.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct VolumeHitRatio {
    /// The volume's name.
    pub name: String,
    /// Blocks found in the cache.
    pub hits: u64,
    /// Blocks read from the pool.
    pub misses: u64,
    /// During the last minute.
    pub last_minute: Option<f64>,
    /// During the last hour.
    pub last_hour: Option<f64>,
    /// Since the cache was opened.
    pub total: Option<f64>,
}

/// The choice of what the cache keeps.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ReplacementStatus {
    /// The policy.
    pub policy: Policy,
    /// The queues' shares of the cache, of the adaptive policy.
    pub shares: Option<ShareStatus>,
    /// Blocks read and missed that were in the cache not long ago, and entered the main queue.
    pub ghost_hits: u64,
    /// Blocks of buckets to be evicted that were moved, as they had been hit.
    pub moved_blocks: u64,
    /// Such blocks that were dropped, as room was short.
    pub lost_survivors: u64,
    /// Such blocks that were bad.
    pub bad_survivors: u64,
    /// Buckets that got no summary, as too many waited to be written: none of their blocks is kept,
    /// and they are not compacted.
    pub lost_summaries: u64,
}

/// Shares of the cache, 0 to 1.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ShareStatus {
    /// Of blocks that were read and missed.
    pub read: f64,
    /// Of blocks that were written.
    pub write: f64,
    /// Of blocks that were hit again.
    pub main: f64,
}

/// Garbage collection.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct GcStatus {
    /// Passes since the cache was opened.
    pub passes: u64,
    /// The time that a pass took on average, in milliseconds; each new one counts an eighth. null
    /// before the first.
    pub average_duration_ms: Option<f64>,
    /// Seconds from the beginning of a pass to that of the next, in the same way, of passes that
    /// were not asked for; null before the second.
    pub average_frequency_sec: Option<f64>,
    /// Seconds since the last pass ended; null before the first.
    pub last_sec: Option<f64>,
    /// The longest pass.
    pub max_duration_ms: f64,
    /// Slices, after each of which others had a turn.
    pub slices: u64,
    /// The times that slices took, in microseconds.
    pub slice_us: SliceStatus,
    /// Dead keys dropped.
    pub dropped_keys: u64,
    /// Thin nodes merged.
    pub merged_nodes: u64,
    /// Blocks moved out of sparse buckets.
    pub moved_blocks: u64,
    /// Blocks of thin buckets that were put together, so that writers find room.
    pub compacted_blocks: u64,
    /// Nodes of the index that were written elsewhere for the same reason.
    pub moved_nodes: u64,
    /// Buckets whose counter was wrong: there should be none.
    pub miscounted_buckets: u64,
}

/// The times that slices took, in microseconds.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SliceStatus {
    /// 99 % took no longer.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

/// Buckets by state.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct BucketStatus {
    /// Free, or about to be.
    pub free: u32,
    /// May be evicted.
    pub clean: u32,
    /// With dirty blocks, or being filled.
    pub dirty: u32,
    /// With nodes of the index.
    pub metadata: u32,
    /// Out of use after errors.
    pub retired: u32,
}

/// The index.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct IndexStatus {
    /// Nodes on the device. Those of the last checkpoint that have changed since are among them
    /// until the next.
    pub nodes: u64,
    /// Of these, nodes without a second copy.
    pub nodes_once: u64,
    /// Copies of nodes that were bad since the cache was opened; the other copy was good.
    pub bad_copies: u64,
    /// Of these, copies that were written again and are well.
    pub healed_copies: u64,
    /// Nodes and pages of the bucket table that stand elsewhere, as they could not be written in
    /// their place.
    pub moved: u64,
    /// Bytes of all keys and their values; null until garbage collection has met all of them.
    pub key_bytes: Option<u64>,
    /// Bytes of nodes in memory.
    pub resident_bytes: u64,
    /// Nodes in memory that the next checkpoint will write.
    pub unwritten_nodes: u64,
    /// Keys in the index; null until garbage collection has counted them once.
    pub keys: Option<i64>,
    /// Dead keys that the last garbage collection met, and dropped.
    pub stale_keys: u64,
    /// Blocks that stale keys name, of buckets evicted since then; and ghosts.
    pub stale_blocks: u64,
    /// Checkpoints since the cache was opened.
    pub checkpoints: u64,
}

/// The journal.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct JournalStatus {
    /// Bytes in use.
    pub used: u64,
    /// Bytes of the ring.
    pub size: u64,
    /// Group commits.
    pub commits: u64,
    /// Records for each group commit.
    pub records_per_commit: f64,
}

/// Write-back.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct WritebackStatus {
    /// Bytes a second that a pass may carry, as the controller has it. Room or age may raise it.
    pub rate: u64,
    /// Bytes a second that the pass under way may carry; null: none is under way, or nothing bounds
    /// it, as a flush or a detach waits for it.
    pub rate_in_force: Option<u64>,
    /// Dirty bytes when the controller looked last.
    pub dirty: u64,
    /// Dirty bytes that the controller aims at.
    pub target: u64,
    /// The controller's proportional part, bytes a second.
    pub proportional: f64,
    /// The controller's integral part, bytes a second.
    pub integral: f64,
    /// Cuts that are taken and not published.
    pub sealed_cuts: u64,
    /// Passes published.
    pub passes: u64,
    /// Bytes that passes have carried since the cache was opened.
    pub carried_bytes: u64,
    /// The time by which the pool's image may be older than the volumes, in seconds.
    pub lag_seconds: f64,
    /// If the pool's image is still that of before the server's start: how old it may be, in
    /// seconds, by the clock, which goes on while no server runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_of_before_s: Option<u64>,
    /// The highest age that the pool's image should have, in seconds.
    pub max_lag_seconds: f64,
    /// Writes that wait for room.
    pub writers_waiting: u64,
    /// The share of the room for writes that only write-back brings back, 0 to 1; writers are
    /// slowed near its end.
    pub room_gone: f64,
    /// Bytes a second at least.
    pub min: u64,
    /// Bytes a second at most.
    pub max: u64,
    /// Why the last pass failed, if it did.
    pub error: Option<String>,
}

/// The replay of the journal by the last open.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ReplayStatus {
    /// Entries of the journal.
    pub entries: u64,
    /// Records in these entries.
    pub records: u64,
    /// Blocks of writes that were never flushed and had not arrived.
    pub dropped_blocks: u64,
    /// The time that opening took, in milliseconds.
    pub took_ms: f64,
}
