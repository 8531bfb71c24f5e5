//! The cache.

use crate::metrics::family::Each::Once;
use crate::metrics::family::{Each, Family, Kind, MS, US, count, exists, gauge, info, row};

const CACHE_STATES: Each = Each::State(&["serving", "failed", "aside"]);
const SPANS: Each = Each::Fields("span", &["last_minute", "last_hour", "total"]);
const BUCKETS: Each = Each::Fields("state", &["free", "clean", "dirty", "metadata", "retired"]);

/// Metrics of this part.
pub const FAMILIES: &[Family] = &[
    // The cache.
    info(
        "forebay_cache_info",
        Each::Texts(&["mode", "path"]),
        "/cache",
        "the cache; path is shown with a token or on the unix socket only",
    ),
    gauge(
        "forebay_cache_state",
        CACHE_STATES,
        "/cache/state",
        "1 for the state that the cache is in",
    ),
    gauge("forebay_cache_capacity_bytes", Once, "/cache/size_bytes", "room of the cache"),
    gauge(
        "forebay_cache_dirty_bytes",
        Once,
        "/cache/dirty_bytes",
        "what is not in the pool's image yet",
    ),
    gauge("forebay_cache_clean_bytes", Once, "/cache/clean_bytes", "what is in the pool too"),
    count("forebay_cache_hits_total", Once, "/cache/hits", "blocks found in the cache"),
    count("forebay_cache_misses_total", Once, "/cache/misses", "blocks read from the pool"),
    gauge(
        "forebay_cache_hit_ratio",
        SPANS,
        "/cache/hit_ratio",
        "share of the blocks read that was found in the cache, 0 to 1",
    ),
    count(
        "forebay_cache_bypassed_total",
        Once,
        "/cache/bypassed",
        "blocks that went past the cache",
    ),
    count("forebay_cache_promoted_total", Once, "/cache/promoted", "blocks kept after a miss"),
    count("forebay_cache_evicted_buckets_total", Once, "/cache/evicted", "buckets evicted"),
    count(
        "forebay_cache_refetched_total",
        Once,
        "/cache/refetched",
        "clean blocks that were bad and were dropped, as the pool has them",
    ),
    count(
        "forebay_cache_lost_reads_total",
        Once,
        "/cache/lost",
        "reads that met a bad block that is not in the pool",
    ),
    gauge(
        "forebay_cache_bad_blocks",
        Once,
        "/cache/bad_blocks_known",
        "known blocks that cannot be written back",
    ),
    gauge(
        "forebay_cache_kept_blocks",
        Once,
        "/cache/kept_blocks",
        "blocks that cannot come to the pool, as the mapping of their volume cannot be read",
    ),
    gauge("forebay_cache_buckets", BUCKETS, "/cache/buckets", "buckets by state"),
    gauge(
        "forebay_cache_index_memory_bytes",
        Once,
        "/cache/index/resident_bytes",
        "nodes of the index in memory",
    ),
    count(
        "forebay_cache_checkpoints_total",
        Once,
        "/cache/index/checkpoints",
        "checkpoints of the index",
    ),
    gauge(
        "forebay_cache_journal_used_bytes",
        Once,
        "/cache/journal/used",
        "what is taken of the journal",
    ),
    gauge(
        "forebay_cache_journal_capacity_bytes",
        Once,
        "/cache/journal/size",
        "room of the journal",
    ),
    count(
        "forebay_cache_journal_commits_total",
        Once,
        "/cache/journal/commits",
        "group commits of the journal",
    ),
    gauge(
        "forebay_cache_writeback_rate_bytes",
        Once,
        "/cache/writeback/rate",
        "the controller's rate of write-back, which room or age may raise",
    ),
    gauge(
        "forebay_cache_writeback_lag_seconds",
        Once,
        "/cache/writeback/lag_seconds",
        "how much older the pool's image is than the volumes",
    ),
    gauge(
        "forebay_cache_writeback_max_lag_seconds",
        Once,
        "/cache/writeback/max_lag_seconds",
        "how much older it should be at most",
    ),
    gauge(
        "forebay_cache_writeback_writers_waiting",
        Once,
        "/cache/writeback/writers_waiting",
        "writes that wait for room",
    ),
    count(
        "forebay_cache_writeback_passes_total",
        Once,
        "/cache/writeback/passes",
        "passes of write-back",
    ),
    count(
        "forebay_cache_writeback_bytes_total",
        Once,
        "/cache/writeback/carried_bytes",
        "bytes that passes have carried",
    ),
    exists(
        "forebay_cache_writeback_failing",
        Once,
        "/cache/writeback/error",
        "1 while write-back fails",
    ),
    count(
        "forebay_cache_gc_passes_total",
        Once,
        "/cache/gc/passes",
        "passes of garbage collection",
    ),
    count(
        "forebay_cache_gc_moved_blocks_total",
        Once,
        "/cache/gc/moved_blocks",
        "blocks moved out of sparse buckets",
    ),
    count(
        "forebay_cache_lost_summaries_total",
        Once,
        "/cache/replacement/lost_summaries",
        "buckets of which nothing is kept, as their summaries were not written in time",
    ),
    count(
        "forebay_cache_compacted_blocks_total",
        Once,
        "/cache/gc/compacted_blocks",
        "blocks of thin buckets put together, so that writers find room",
    ),
    row(
        "forebay_cache_gc_pass_max_seconds",
        Kind::Gauge,
        Once,
        "/cache/gc/max_duration_ms",
        MS,
        "the longest pass of garbage collection",
    ),
    row(
        "forebay_cache_gc_slice_max_seconds",
        Kind::Gauge,
        Once,
        "/cache/gc/slice_us/max",
        US,
        "the longest time that garbage collection gave others no turn",
    ),
];
