//! Status of an open cache.

use base::{BLOCK_U64, VolumeId};
use model::cache::{
    BucketStatus, CacheJob, CacheState, CacheStatus, CommonMode, GcStatus, HitRatioStatus,
    IndexStatus, JournalStatus, KeptStatus, ReplacementStatus, ReplayStatus, ShareStatus,
    SliceStatus, VolumeHitRatio, WritebackStatus,
};
use pool::status::queue_status;

use crate::Cache;
use crate::store::hit_ratio::Sums;
use crate::writeback::all_kept::KeptBlocks;

/// The number of bad blocks that the status names at most.
const NAMED: usize = 256;

impl Cache {
    fn working(&self) -> Vec<CacheJob> {
        let jobs = [
            (CacheJob::WriteBack, self.core().writeback().passes().carried() > 0),
            (CacheJob::Checkpoint, self.core().checkpoints().is_running()),
            (CacheJob::Collection, self.core().collections().is_running()),
        ];
        jobs.into_iter().filter(|(_, works)| *works).map(|(job, _)| job).collect()
    }

    fn kept_status(&self) -> Vec<KeptStatus> {
        let status = |(id, kept): (VolumeId, KeptBlocks)| KeptStatus {
            volume: self.core().pool().volume_name(id),
            id: id.0,
            blocks: kept.blocks,
            why: kept.why.to_string(),
        };
        self.core().levels().kept().into_iter().map(status).collect()
    }

    fn gc_status(&self) -> GcStatus {
        let gc = self.core().collections().stats();
        let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
        let now = self.core().rt().precise_now();
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
        let (now, st) = (self.core().rt().now(), self.core().state());
        let all = st.ratios().all(now);
        // A volume may be on its way out.
        let named = |(volume, sums): (VolumeId, Sums)| {
            let name = self.core().pool().volume(volume)?.name;
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
        let st = self.core().state();
        let shares = st.buckets.usage().shares().map(|thousandths| {
            let [read, write, main] = thousandths.map(|n| f64::from(n) / 1e3);
            ShareStatus { read, write, main }
        });
        ReplacementStatus {
            policy: self.core().settings().policy,
            shares,
            ghost_hits: st.stats().ghost_hits,
            moved_blocks: st.stats().survivors,
            lost_survivors: st.buckets.usage().lost_survivors(),
            bad_survivors: st.stats().bad_survivors,
            lost_summaries: st.buckets.summaries().lost(),
        }
    }

    fn mode(&self) -> CommonMode {
        let mut modes = self.core().pool().volumes().into_iter().map(|v| v.cache_mode);
        let first = modes.next().unwrap_or_default();
        if modes.all(|m| m == first) { first.into() } else { CommonMode::Mixed }
    }

    /// The state now.
    pub fn status(&self) -> CacheStatus {
        let st = self.core().state();
        let passes = self.core().writeback().passes();
        let (open, cut) = st.buckets.counts().dirty_blocks();
        let dirty = (open + cut) * BLOCK_U64;
        let census = st.buckets.census();
        let controller = passes.controller();
        let (used, size) = st.journal().usage();
        let journal = st.journal().stats();
        let replay = self.core().replayed();
        CacheStatus {
            path: self.core().path().to_owned(),
            state: match (st.health().has_failed(), self.core().is_aside()) {
                (_, true) => CacheState::Aside,
                (true, false) => CacheState::Failed,
                (false, false) => CacheState::Serving,
            },
            error: st.health().error(),
            answers_at_risk: st.health().host_log().lost(),
            working: self.working(),
            mode: self.mode(),
            size_bytes: self.core().layout().data_blocks() * BLOCK_U64,
            dirty_bytes: dirty,
            clean_bytes: (st.buckets.counts().live_blocks() * BLOCK_U64).saturating_sub(dirty),
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
            kept_blocks: self.core().levels().kept_blocks(),
            replacement: self.replacement(),
            buckets: BucketStatus {
                free: census.free,
                clean: census.clean,
                dirty: census.dirty,
                metadata: census.metadata,
                retired: census.retired,
            },
            index: IndexStatus {
                nodes: st.buckets.nodes().index_nodes(),
                nodes_once: st.buckets.nodes().nodes_once(),
                bad_copies: self.core().node_copies().bad_and_healed().0,
                healed_copies: self.core().node_copies().bad_and_healed().1,
                moved: self.core().node_copies().moved(),
                key_bytes: self.core().collections().stats().key_bytes,
                resident_bytes: st.index.store().resident_bytes() as u64,
                unwritten_nodes: st.index.dirty_nodes(),
                keys: st.index.keys(),
                stale_keys: self.core().collections().stats().dead_last,
                stale_blocks: st.buckets.counts().stale_blocks(),
                checkpoints: self.core().checkpoints().count(),
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
                lag_seconds: self.core().levels().age().as_secs_f64(),
                image_of_before_s: self.core().levels().image_of_before().map(|age| age.as_secs()),
                max_lag_seconds: self.core().settings().max_lag.as_secs_f64(),
                writers_waiting: self.core().admission().waiting(),
                room_gone: self.core().levels().load(self.core().rt().now()).gone(),
                min: self.core().settings().writeback.min,
                max: self.core().settings().writeback.max,
                error: passes.failing().map(|(_, e)| e.to_string()),
            },
            gc: self.gc_status(),
            scrub: self.flows().scrubber.scrub_found(),
            scrub_part: self.flows().scrubber.scrub_part(),
            replay: ReplayStatus {
                entries: replay.entries,
                records: replay.records,
                dropped_blocks: replay.dropped,
                took_ms: replay.took.as_secs_f64() * 1e3,
            },
            queue: queue_status(
                self.core().device().queue().kind(),
                &self.core().device().queue().stats(),
            ),
        }
    }
}
