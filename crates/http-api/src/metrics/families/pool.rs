//! The pool, its devices and their queues, scrub and moves.

use crate::metrics::family::Each::{Class, ClassOp, Device, Once, Queue};
use crate::metrics::family::{
    Each, Family, Kind, MS, US, count, exists, gauge, info, latency, row,
};

const POOL_STATES: Each = Each::State(&["online", "degraded", "failed"]);
const SCRUB_STATES: Each = Each::State(&["never", "running", "paused", "done", "cancelled"]);
const MOVES_STATES: Each = Each::State(&["none", "running", "paused", "waiting"]);
const DEVICE_STATES: Each = Each::DeviceState(&[
    "online", "spare", "joining", "leaving", "behind", "offline", "stale", "failed", "flapping",
    "missing",
]);
const ERRORS: Each = Each::DeviceFields("error", &["read", "write", "checksum"]);

/// Metrics of this part.
pub const FAMILIES: &[Family] = &[
    // The pool.
    info("forebay_pool_info", Each::Texts(&["name", "uuid"]), "/pool", "the pool"),
    gauge("forebay_pool_state", POOL_STATES, "/pool/state", "1 for the state that the pool is in"),
    gauge("forebay_pool_copies", Once, "/pool/copies", "copies of every block"),
    gauge(
        "forebay_pool_capacity_bytes",
        Once,
        "/pool/capacity_bytes",
        "room of the pool, one copy counted",
    ),
    gauge(
        "forebay_pool_provisioned_bytes",
        Once,
        "/pool/provisioned_bytes",
        "sizes of all volumes together",
    ),
    gauge("forebay_pool_used_bytes", Once, "/pool/used_bytes", "what is taken of it"),
    gauge(
        "forebay_pool_reserved_bytes",
        Once,
        "/pool/reserved_bytes",
        "what is kept of it for dirty data of the cache",
    ),
    gauge(
        "forebay_pool_available_bytes",
        Once,
        "/pool/available_bytes",
        "what data can still take: metadata keeps a share",
    ),
    count("forebay_commits_total", Once, "/commit/count", "commits of the pool"),
    count(
        "forebay_commits_failed_total",
        Once,
        "/commit/failed",
        "commits that failed, and were tried again",
    ),
    count("forebay_commit_nodes_total", Once, "/commit/nodes", "tree nodes that commits wrote"),
    row(
        "forebay_commit_duration_seconds",
        Kind::Summary,
        Once,
        "/commit/duration_ms",
        MS,
        "how long commits took",
    ),
    row(
        "forebay_commit_duration_max_seconds",
        Kind::Gauge,
        Once,
        "/commit/duration_ms/max",
        MS,
        "the longest commit",
    ),
    row(
        "forebay_commit_critical_section_seconds",
        Kind::Summary,
        Once,
        "/commit/critical_section_us",
        US,
        "how long commits let all others wait",
    ),
    row(
        "forebay_commit_critical_section_max_seconds",
        Kind::Gauge,
        Once,
        "/commit/critical_section_us/max",
        US,
        "the longest time that a commit let all others wait",
    ),
    gauge("forebay_nodes_cached", Once, "/memory/cached_nodes", "clean tree nodes in memory"),
    gauge(
        "forebay_nodes_dirty",
        Once,
        "/memory/dirty_nodes",
        "changed tree nodes that have no place on the devices yet",
    ),
    count(
        "forebay_node_hits_total",
        Once,
        "/memory/node_hits",
        "look-ups of tree nodes that found them in memory",
    ),
    count(
        "forebay_node_misses_total",
        Once,
        "/memory/node_misses",
        "look-ups of tree nodes that did not",
    ),
    count(
        "forebay_node_waits_total",
        Once,
        "/memory/node_waits",
        "steps that had to wait until a tree node was read",
    ),
    count(
        "forebay_read_ahead_blocks_total",
        Once,
        "/read_ahead/read",
        "blocks read ahead of clients",
    ),
    count(
        "forebay_read_ahead_used_blocks_total",
        Once,
        "/read_ahead/used",
        "those of them that a client asked for",
    ),
    // Devices of the pool.
    info(
        "forebay_device_info",
        Each::DeviceTexts(&["path", "kind"]),
        "",
        "a device of the pool; path is shown with a token or on the unix socket only",
    ),
    gauge("forebay_device_state", DEVICE_STATES, "/state", "1 for the state that a device is in"),
    gauge("forebay_device_capacity_bytes", Device, "/capacity_bytes", "size of all its chunks"),
    gauge("forebay_device_allocated_bytes", Device, "/allocated_bytes", "size of those in use"),
    exists(
        "forebay_device_sits_out",
        Device,
        "/sits_out",
        "1 while a device is read only where no other has a good copy",
    ),
    count(
        "forebay_device_errors_total",
        ERRORS,
        "/errors",
        "requests that failed (read, write), and blocks with a wrong checksum",
    ),
    count(
        "forebay_device_healed_blocks_total",
        Device,
        "/errors/healed",
        "blocks that were rewritten from a good copy",
    ),
    count(
        "forebay_spares_taken_total",
        Once,
        "/pool/spares/taken_total",
        "devices whose place a spare has taken by itself",
    ),
    // Queues of the devices, and of the cache's.
    gauge(
        "forebay_queue_waiting",
        Queue,
        "/waiting",
        "requests of clients, commits and the journal that wait for a device",
    ),
    gauge(
        "forebay_queue_background_waiting",
        Queue,
        "/background_waiting",
        "requests of the background that wait for a device",
    ),
    gauge(
        "forebay_queue_background_limit",
        Queue,
        "/background_most",
        "requests of the background that a device may have while it has nothing else to do",
    ),
    row(
        "forebay_queue_silent_seconds",
        Kind::Gauge,
        Queue,
        "/silent_ms",
        MS,
        "for how long a device has not answered the oldest of the requests that it has",
    ),
    gauge("forebay_queue_in_flight", Class, "/in_flight", "requests that a device has"),
    count(
        "forebay_queue_merged_total",
        Class,
        "/merged",
        "requests that became part of a neighbour's",
    ),
    count(
        "forebay_queue_late_total",
        Class,
        "/late",
        "requests of clients that took longer than the latency target",
    ),
    row(
        "forebay_queue_wait_seconds_total",
        Kind::Counter,
        Class,
        "/waited_ms",
        MS,
        "time that requests waited before they went to a device, all together",
    ),
    row(
        "forebay_queue_service_seconds_total",
        Kind::Counter,
        Class,
        "/in_service_ms",
        MS,
        "time that a device had requests, all together",
    ),
    count("forebay_device_requests_total", ClassOp, "/count", "requests to a device"),
    count(
        "forebay_device_request_bytes_total",
        ClassOp,
        "/bytes",
        "bytes that were read or written",
    ),
    latency(
        "forebay_device_request_latency_seconds",
        ClassOp,
        "from submission to completion, with the time in the queue; of kinds that there were",
    ),
    // Scrub and moves.
    gauge(
        "forebay_scrub_state",
        SCRUB_STATES,
        "/pool/scrub/state",
        "1 for the state of the scrub that runs, or of the last one",
    ),
    gauge(
        "forebay_scrub_completed_timestamp_seconds",
        Once,
        "/pool/scrub/completed_at",
        "when a scrub of everything completed last, Unix time; 0: none has",
    ),
    gauge(
        "forebay_scrub_ended_timestamp_seconds",
        Once,
        "/pool/scrub/ended_at",
        "when a scrub ended last, Unix time; where none has, when the pool began to wait for one",
    ),
    gauge(
        "forebay_scrub_verified_bytes",
        Once,
        "/pool/scrub/verified_bytes",
        "what this scrub has verified",
    ),
    gauge("forebay_scrub_expected_bytes", Once, "/pool/scrub/all_bytes", "what it is to verify"),
    gauge("forebay_scrub_rate_bytes", Once, "/pool/scrub/rate", "bytes a second that it verifies"),
    gauge("forebay_scrub_bad", Once, "/pool/scrub/bad", "what it found bad"),
    gauge("forebay_scrub_healed", Once, "/pool/scrub/healed", "what of it was healed"),
    gauge("forebay_scrub_lost", Once, "/pool/scrub/lost", "what of it has no good copy"),
    gauge(
        "forebay_lost_extents",
        Once,
        "/pool/scrub/lost_blocks",
        "known parts of volumes without a good copy",
    ),
    gauge(
        "forebay_moves_state",
        MOVES_STATES,
        "/pool/moves/state",
        "1 for the state of the moves between devices",
    ),
    gauge(
        "forebay_moves_left_bytes",
        Once,
        "/pool/moves/left_bytes",
        "what is yet to be moved, and at most has to be copied to devices that were away",
    ),
    gauge("forebay_moves_copied_bytes", Once, "/pool/moves/copied_bytes", "what was moved"),
    gauge("forebay_moves_rate_bytes", Once, "/pool/moves/rate", "bytes a second that are moved"),
    gauge(
        "forebay_moves_behind_groups",
        Once,
        "/pool/moves/behind_groups",
        "block groups that a device that was away lacks",
    ),
];
