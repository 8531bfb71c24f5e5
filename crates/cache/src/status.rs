//! What the cache says of itself.

use base::{BLOCK_U64, VolumeId};
use pool::status::QueueStatus;
use serde::Serialize;

use crate::Cache;
use crate::job;
use crate::store::hit_ratio::Sums;
use crate::store::scrubbed::{CacheScrub, CacheScrubPart};
use crate::writeback::all_kept::Kept;

/// So many bad blocks are named.
const NAMED: usize = 256;

/// The state of a cache; sizes in bytes, times in the unit of their name.
#[derive(Clone, Serialize, Debug)]
pub struct CacheStatus {
    /// Its file or device.
    pub path: String,
    /// `serving`; `failed`, with dirty data in it; or `aside`: it has failed, or a detach is not
    /// durable yet, and the pool goes on without it.
    pub state: &'static str,
    /// Why it takes no writes any more; or, while it serves, none for now: the file system under it
    /// is full.
    pub error: Option<String>,
    /// Why what is answered does not outlive the process before it is flushed, though it should.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers_at_risk: Option<String>,
    /// The jobs that are under way: of `write-back`, `checkpoint` and `collection`.
    pub working: Vec<&'static str>,
    /// What it does for the volumes: `writeback`, `writethrough`, `writearound`, `none`, or `mixed`
    /// where they differ.
    pub mode: &'static str,
    /// Bytes in its buckets.
    pub size_bytes: u64,
    /// Not yet in the pool's image.
    pub dirty_bytes: u64,
    /// In the pool too.
    pub clean_bytes: u64,
    /// Of the blocks read, the share that was found here.
    pub hit_ratio: HitRatioStatus,
    /// Blocks found here.
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
    /// Clean blocks that were bad here and were dropped: the pool has them.
    pub refetched: u64,
    /// Reads that met a dirty block that is bad.
    pub lost: u64,
    /// Dirty blocks that cannot be written back, the first of them: volume id and block.
    pub bad_blocks: Vec<(u32, u64)>,
    /// How many there are.
    pub bad_blocks_known: u64,
    /// Which blocks are kept.
    pub replacement: ReplacementStatus,
    /// Volumes of which passes leave something in the cache, as the pool cannot take it.
    pub kept: Vec<KeptStatus>,
    /// Blocks of all of them.
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
    /// What scrubs found since it was opened.
    pub scrub: CacheScrub,
    /// Its part of the newest scrub.
    pub scrub_part: CacheScrubPart,
    /// What the last open replayed.
    pub replay: ReplayStatus,
    /// The queue of its device.
    pub queue: QueueStatus,
}

/// What passes leave of a volume.
#[derive(Clone, Serialize, Debug)]
pub struct KeptStatus {
    /// The volume's name.
    pub volume: String,
    /// The number of the volume.
    pub id: u32,
    /// Blocks that are in the cache alone.
    pub blocks: u64,
    /// Why the pool does not take them.
    pub why: String,
}

/// Of the blocks read, the share that was found in the cache, 0 to 1; `None` where none was read.
#[derive(Clone, Serialize, Debug)]
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
#[derive(Clone, Serialize, Debug)]
pub struct VolumeHitRatio {
    /// Its name.
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

/// Which blocks are kept.
#[derive(Clone, Serialize, Debug)]
pub struct ReplacementStatus {
    /// The policy.
    pub policy: &'static str,
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
#[derive(Clone, Serialize, Debug)]
pub struct ShareStatus {
    /// Of blocks that were read and missed.
    pub read: f64,
    /// Of blocks that were written.
    pub write: f64,
    /// Of blocks that were hit again.
    pub main: f64,
}

/// Garbage collection.
#[derive(Clone, Serialize, Debug)]
pub struct GcStatus {
    /// Passes since the cache was opened.
    pub passes: u64,
    /// How long a pass took, on average; each new one counts an eighth. `None` before the first.
    pub average_duration_ms: Option<f64>,
    /// Seconds from the beginning of a pass to that of the next, in the same way, of passes that
    /// were not asked for; `None` before the second.
    pub average_frequency_sec: Option<f64>,
    /// Seconds since the last pass ended; `None` before the first.
    pub last_sec: Option<f64>,
    /// The longest pass.
    pub max_duration_ms: f64,
    /// Slices, after each of which others had a turn.
    pub slices: u64,
    /// How long they took.
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

/// How long slices took.
#[derive(Clone, Serialize, Debug)]
pub struct SliceStatus {
    /// 99 % took no longer.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

/// Buckets by state.
#[derive(Clone, Serialize, Debug)]
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
#[derive(Clone, Serialize, Debug)]
pub struct IndexStatus {
    /// Nodes on the device. Those of the last checkpoint that have changed since are among them
    /// until the next.
    pub nodes: u64,
    /// Of these, nodes without a second copy.
    pub nodes_once: u64,
    /// Copies of nodes that were bad since it was opened. The other one was good.
    pub bad_copies: u64,
    /// Of these, copies that were written again and are well.
    pub healed_copies: u64,
    /// Nodes and pages of the bucket table that stand elsewhere, as they could not be written where
    /// they were to stand.
    pub moved: u64,
    /// Bytes of all keys and their values; `None` until garbage collection has met all of them.
    pub key_bytes: Option<u64>,
    /// Bytes of nodes in memory.
    pub resident_bytes: u64,
    /// Nodes in memory that the next checkpoint will write.
    pub unwritten_nodes: u64,
    /// Keys in it; `None` until garbage collection has counted them once.
    pub keys: Option<i64>,
    /// Dead keys that the last garbage collection met, and dropped.
    pub stale_keys: u64,
    /// Blocks that stale keys name, of buckets evicted since then, and those of staged keys that
    /// were published since then; and ghosts.
    pub stale_blocks: u64,
    /// Checkpoints since it was opened.
    pub checkpoints: u64,
}

/// The journal.
#[derive(Clone, Serialize, Debug)]
pub struct JournalStatus {
    /// Bytes in use.
    pub used: u64,
    /// Bytes.
    pub size: u64,
    /// Group commits.
    pub commits: u64,
    /// Records for each of them.
    pub records_per_commit: f64,
}

/// Write-back.
#[derive(Clone, Serialize, Debug)]
pub struct WritebackStatus {
    /// Bytes a second that a pass may carry, as the controller has it. Room or age may raise it.
    pub rate: u64,
    /// Bytes a second that the pass under way may carry; `None`: none is under way, or nothing
    /// bounds it, as a task waits until everything is published.
    pub rate_in_force: Option<u64>,
    /// Dirty bytes when the controller looked last.
    pub dirty: u64,
    /// Dirty bytes it aims at.
    pub target: u64,
    /// The controller's proportional part, bytes a second.
    pub proportional: f64,
    /// Its integral part, bytes a second.
    pub integral: f64,
    /// Cuts that are taken and not published.
    pub sealed_cuts: u64,
    /// Passes published.
    pub passes: u64,
    /// Bytes that passes have carried since the cache was opened.
    pub carried_bytes: u64,
    /// How much older the pool's image may be than the volumes, in seconds.
    pub lag_seconds: f64,
    /// How old it should be at most, in seconds.
    pub max_lag_seconds: f64,
    /// Writes that wait for room.
    pub writers_waiting: u64,
    /// The share of the room for writes that only write-back brings back, 0 to 1; writers are
    /// slowed near its end.
    pub room_gone: f64,
    /// Bytes a second at least.
    pub min: u64,
    /// And at most.
    pub max: u64,
    /// Why the last pass failed, if it did.
    pub error: Option<String>,
}

/// What the last open replayed.
#[derive(Clone, Serialize, Debug)]
pub struct ReplayStatus {
    /// Entries of the journal.
    pub entries: u64,
    /// Records in them.
    pub records: u64,
    /// Blocks of writes that were never flushed and had not arrived.
    pub dropped_blocks: u64,
    /// How long opening took.
    pub took_ms: f64,
}

impl Cache {
    fn working(&self) -> Vec<&'static str> {
        let jobs = [
            (job::WRITE_BACK, self.writeback().passes().carried() > 0),
            (job::CHECKPOINT, self.checkpoints().is_running()),
            (job::COLLECTION, self.collections().is_running()),
        ];
        jobs.into_iter().filter(|(_, works)| *works).map(|(name, _)| name).collect()
    }

    fn kept_status(&self) -> Vec<KeptStatus> {
        let status = |(id, kept): (VolumeId, Kept)| KeptStatus {
            volume: self.pool().volume_name(id),
            id: id.0,
            blocks: kept.blocks,
            why: kept.why.to_string(),
        };
        self.kept().into_iter().map(status).collect()
    }

    fn gc_status(&self) -> GcStatus {
        let gc = self.collections().stats();
        let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
        let now = self.rt().precise_now();
        GcStatus {
            passes: gc.runs.count(),
            average_duration_ms: gc.runs.duration().map(ms),
            average_frequency_sec: gc.runs.interval().map(|d| d.as_secs_f64()),
            last_sec: gc.runs.ended().map(|last| now.since(last).as_secs_f64()),
            max_duration_ms: ms(gc.runs.longest()),
            slices: gc.slices.count(),
            slice_us: SliceStatus {
                p99: gc.slices.quantile_ns(0.99) as f64 / 1e3,
                max: gc.slices.max_ns() as f64 / 1e3,
            },
            dropped_keys: gc.dropped_keys,
            merged_nodes: gc.merged_nodes,
            moved_blocks: gc.moved_blocks,
            compacted_blocks: gc.compacted_blocks,
            moved_nodes: gc.moved_nodes,
            miscounted_buckets: gc.miscounted,
        }
    }

    fn hit_ratio(&self) -> HitRatioStatus {
        let (now, st) = (self.rt().now(), self.state());
        let all = st.ratios().all(now);
        // A volume may be on its way out.
        let named = |(volume, sums): (VolumeId, Sums)| {
            let name = self.pool().volume(volume)?.name;
            Some(VolumeHitRatio {
                name,
                hits: sums.total.hits,
                misses: sums.total.misses,
                last_minute: sums.minute.ratio(),
                last_hour: sums.hour.ratio(),
                total: sums.total.ratio(),
            })
        };
        HitRatioStatus {
            last_minute: all.minute.ratio(),
            last_hour: all.hour.ratio(),
            total: all.total.ratio(),
            volumes: st.ratios().by_volume(now).filter_map(named).collect(),
        }
    }

    fn replacement(&self) -> ReplacementStatus {
        let st = self.state();
        let shares = st.buckets.shares().map(|thousandths| {
            let [read, write, main] = thousandths.map(|n| f64::from(n) / 1e3);
            ShareStatus { read, write, main }
        });
        ReplacementStatus {
            policy: self.settings().policy.word(),
            shares,
            ghost_hits: st.stats().ghost_hits,
            moved_blocks: st.stats().survivors,
            lost_survivors: st.buckets.lost_survivors(),
            bad_survivors: st.stats().bad_survivors,
            lost_summaries: st.buckets.lost_summaries(),
        }
    }

    fn mode(&self) -> &'static str {
        let mut modes = self.pool().volumes().into_iter().map(|v| v.cache_mode);
        let first = modes.next().unwrap_or_default();
        if modes.all(|m| m == first) { first.name() } else { "mixed" }
    }

    /// The state now.
    pub fn status(&self) -> CacheStatus {
        let st = self.state();
        let passes = self.writeback().passes();
        let (open, cut) = st.buckets.dirty_blocks();
        let dirty = (open + cut) * BLOCK_U64;
        let census = st.buckets.census();
        let controller = passes.controller();
        let (used, size) = st.journal().usage();
        let journal = st.journal().stats();
        let replay = self.replayed();
        CacheStatus {
            path: self.path().to_owned(),
            state: match (st.health().has_failed(), self.is_aside()) {
                (_, true) => "aside",
                (true, false) => "failed",
                (false, false) => "serving",
            },
            error: st.health().error(),
            answers_at_risk: st.health().host_log().lost(),
            working: self.working(),
            mode: self.mode(),
            size_bytes: self.layout().data_blocks() * BLOCK_U64,
            dirty_bytes: dirty,
            clean_bytes: (st.buckets.live_blocks() * BLOCK_U64).saturating_sub(dirty),
            hit_ratio: self.hit_ratio(),
            hits: st.stats().hits,
            misses: st.stats().misses,
            bypassed: st.stats().bypassed,
            promoted: st.stats().promoted,
            part_writes: st.stats().parts,
            completed_parts: st.stats().completed,
            evicted: st.stats().evicted,
            refetched: st.stats().refetched,
            lost: st.stats().lost,
            bad_blocks: st.bad_blocks().first(NAMED).map(|(v, l)| (v.0, l.0)).collect(),
            bad_blocks_known: st.bad_blocks().blocks(),
            kept: self.kept_status(),
            kept_blocks: self.kept_blocks(),
            replacement: self.replacement(),
            buckets: BucketStatus {
                free: census.free,
                clean: census.clean,
                dirty: census.dirty,
                metadata: census.metadata,
                retired: census.retired,
            },
            index: IndexStatus {
                nodes: st.buckets.index_nodes(),
                nodes_once: st.buckets.nodes_once(),
                bad_copies: self.node_copies().bad_and_healed().0,
                healed_copies: self.node_copies().bad_and_healed().1,
                moved: self.node_copies().moved(),
                key_bytes: self.collections().stats().key_bytes,
                resident_bytes: st.index.store().resident_bytes() as u64,
                unwritten_nodes: st.index.dirty_nodes(),
                keys: st.index.keys(),
                stale_keys: self.collections().stats().dead_last,
                stale_blocks: st.buckets.stale_blocks(),
                checkpoints: self.checkpoints().count(),
            },
            journal: JournalStatus {
                used: u64::from(used) * BLOCK_U64,
                size: u64::from(size) * BLOCK_U64,
                commits: journal.commits,
                records_per_commit: journal.records as f64 / journal.commits.max(1) as f64,
            },
            writeback: WritebackStatus {
                rate: controller.rate,
                rate_in_force: passes.rate_in_force(),
                dirty: controller.dirty,
                target: controller.target,
                proportional: controller.proportional,
                integral: controller.integral,
                sealed_cuts: passes.cuts().count() as u64,
                passes: passes.published(),
                carried_bytes: passes.bytes(),
                lag_seconds: self.age().as_secs_f64(),
                max_lag_seconds: self.settings().max_lag.as_secs_f64(),
                writers_waiting: self.admission().waiting(),
                room_gone: self.load(self.rt().now()).gone(),
                min: self.settings().writeback.min,
                max: self.settings().writeback.max,
                error: passes.failing().map(|(_, e)| e.to_string()),
            },
            gc: self.gc_status(),
            scrub: self.scrub_found(),
            scrub_part: self.scrub_part(),
            replay: ReplayStatus {
                entries: replay.entries,
                records: replay.records,
                dropped_blocks: replay.dropped,
                took_ms: replay.took.as_secs_f64() * 1e3,
            },
            queue: QueueStatus::of(self.device().queue().kind(), &self.device().queue().stats()),
        }
    }
}
