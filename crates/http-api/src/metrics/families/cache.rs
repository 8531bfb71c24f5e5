//! The cache.

use model::cache::{BucketStatus, CacheState, HitRatioStatus};

use crate::metrics::family::MetricSource::{By, Number, Texts};
use crate::metrics::family::Samples::Cache;
use crate::metrics::family::{Family, LabelledNumber, MS, US, count, gauge, info, one_of};

/// Metrics of this part.
pub const FAMILIES: &[Family] = &[
    // The cache.
    info(
        "forebay_cache_info",
        Cache(Texts(&["mode", "path"], |c| vec![c.mode.word(), &c.path])),
        "the cache; path is shown with a token or on the unix socket only",
    ),
    gauge(
        "forebay_cache_state",
        Cache(By("state", |c| one_of(CacheState::ALL, CacheState::word, c.state))),
        "1 for the state that the cache is in",
    ),
    gauge(
        "forebay_cache_capacity_bytes",
        Cache(Number(|c| c.size_bytes as f64)),
        "room of the cache",
    ),
    gauge(
        "forebay_cache_dirty_bytes",
        Cache(Number(|c| c.dirty_bytes as f64)),
        "what is not in the pool's image yet",
    ),
    gauge(
        "forebay_cache_clean_bytes",
        Cache(Number(|c| c.clean_bytes as f64)),
        "what is in the pool too",
    ),
    count(
        "forebay_cache_hits_total",
        Cache(Number(|c| c.hits as f64)),
        "blocks found in the cache",
    ),
    count(
        "forebay_cache_misses_total",
        Cache(Number(|c| c.misses as f64)),
        "blocks read from the pool",
    ),
    gauge(
        "forebay_cache_hit_ratio",
        Cache(By("span", |c| spans(&c.hit_ratio))),
        "share of the blocks read that was found in the cache, 0 to 1",
    ),
    count(
        "forebay_cache_bypassed_total",
        Cache(Number(|c| c.bypassed as f64)),
        "blocks that went past the cache",
    ),
    count(
        "forebay_cache_promoted_total",
        Cache(Number(|c| c.promoted as f64)),
        "blocks kept after a miss",
    ),
    count(
        "forebay_cache_evicted_buckets_total",
        Cache(Number(|c| c.evicted as f64)),
        "buckets evicted",
    ),
    count(
        "forebay_cache_refetched_total",
        Cache(Number(|c| c.refetched as f64)),
        "clean blocks that were bad and were dropped, as the pool has them",
    ),
    count(
        "forebay_cache_lost_reads_total",
        Cache(Number(|c| c.lost as f64)),
        "reads that met a bad block that is not in the pool",
    ),
    gauge(
        "forebay_cache_bad_blocks",
        Cache(Number(|c| c.bad_blocks_known as f64)),
        "known blocks that cannot be written back",
    ),
    gauge(
        "forebay_cache_kept_blocks",
        Cache(Number(|c| c.kept_blocks as f64)),
        "blocks that cannot come to the pool, as the mapping of their volume cannot be read",
    ),
    gauge("forebay_cache_buckets", Cache(By("state", |c| buckets(&c.buckets))), "buckets by state"),
    gauge(
        "forebay_cache_index_memory_bytes",
        Cache(Number(|c| c.index.resident_bytes as f64)),
        "nodes of the index in memory",
    ),
    count(
        "forebay_cache_checkpoints_total",
        Cache(Number(|c| c.index.checkpoints as f64)),
        "checkpoints of the index",
    ),
    gauge(
        "forebay_cache_journal_used_bytes",
        Cache(Number(|c| c.journal.used as f64)),
        "what is taken of the journal",
    ),
    gauge(
        "forebay_cache_journal_capacity_bytes",
        Cache(Number(|c| c.journal.size as f64)),
        "room of the journal",
    ),
    count(
        "forebay_cache_journal_commits_total",
        Cache(Number(|c| c.journal.commits as f64)),
        "group commits of the journal",
    ),
    gauge(
        "forebay_cache_writeback_rate_bytes",
        Cache(Number(|c| c.writeback.rate as f64)),
        "the controller's rate of write-back, which room or age may raise",
    ),
    gauge(
        "forebay_cache_writeback_lag_seconds",
        Cache(Number(|c| c.writeback.lag_seconds)),
        "how much older the pool's image is than the volumes",
    ),
    gauge(
        "forebay_cache_writeback_max_lag_seconds",
        Cache(Number(|c| c.writeback.max_lag_seconds)),
        "how much older it should be at most",
    ),
    gauge(
        "forebay_cache_writeback_writers_waiting",
        Cache(Number(|c| c.writeback.writers_waiting as f64)),
        "writes that wait for room",
    ),
    count(
        "forebay_cache_writeback_passes_total",
        Cache(Number(|c| c.writeback.passes as f64)),
        "passes of write-back",
    ),
    count(
        "forebay_cache_writeback_bytes_total",
        Cache(Number(|c| c.writeback.carried_bytes as f64)),
        "bytes that passes have carried",
    ),
    gauge(
        "forebay_cache_writeback_failing",
        Cache(Number(|c| f64::from(c.writeback.error.is_some()))),
        "1 while write-back fails",
    ),
    count(
        "forebay_cache_gc_passes_total",
        Cache(Number(|c| c.gc.passes as f64)),
        "passes of garbage collection",
    ),
    count(
        "forebay_cache_gc_moved_blocks_total",
        Cache(Number(|c| c.gc.moved_blocks as f64)),
        "blocks moved out of sparse buckets",
    ),
    count(
        "forebay_cache_lost_summaries_total",
        Cache(Number(|c| c.replacement.lost_summaries as f64)),
        "buckets of which nothing is kept, as their summaries were not written in time",
    ),
    count(
        "forebay_cache_compacted_blocks_total",
        Cache(Number(|c| c.gc.compacted_blocks as f64)),
        "blocks of thin buckets put together, so that writers find room",
    ),
    gauge(
        "forebay_cache_gc_pass_max_seconds",
        Cache(Number(|c| c.gc.max_duration_ms * MS)),
        "the longest pass of garbage collection",
    ),
    gauge(
        "forebay_cache_gc_slice_max_seconds",
        Cache(Number(|c| c.gc.slice_us.max * US)),
        "the longest time that garbage collection gave others no turn",
    ),
];

fn spans(ratio: &HitRatioStatus) -> Vec<LabelledNumber> {
    vec![("last_minute", ratio.last_minute), ("last_hour", ratio.last_hour), ("total", ratio.total)]
}

fn buckets(of: &BucketStatus) -> Vec<LabelledNumber> {
    let states = [
        ("free", of.free),
        ("clean", of.clean),
        ("dirty", of.dirty),
        ("metadata", of.metadata),
        ("retired", of.retired),
    ];
    states.map(|(state, buckets)| (state, Some(f64::from(buckets)))).into()
}
