//! The pool, its devices and their queues, scrub and moves.

use model::device::{DeviceErrors, DeviceState, DeviceStatus};
use model::io::IoOfKind;
use model::moves::MovesState;
use model::scrub::ScrubState;
use model::status::PoolState;

use crate::metrics::family::MetricSource::{By, Histogram, Number, Summary, Texts};
use crate::metrics::family::Samples::{Class, ClassOp, Device, Once, Queue};
use crate::metrics::family::{
    Family, LabelledNumber, MS, US, count, gauge, info, latency, one_of, summary,
};

/// Metrics of this part.
pub const FAMILIES: &[Family] = &[
    // The pool.
    info(
        "forebay_pool_info",
        Once(Texts(&["name", "uuid"], |s| vec![&s.pool.name, &s.pool.uuid])),
        "the pool",
    ),
    gauge(
        "forebay_pool_state",
        Once(By("state", |s| one_of(PoolState::ALL, PoolState::word, s.pool.state))),
        "1 for the state that the pool is in",
    ),
    gauge("forebay_pool_copies", Once(Number(|s| s.pool.copies as f64)), "copies of every block"),
    gauge(
        "forebay_pool_capacity_bytes",
        Once(Number(|s| s.pool.capacity_bytes as f64)),
        "room of the pool, one copy counted",
    ),
    gauge(
        "forebay_pool_provisioned_bytes",
        Once(Number(|s| s.pool.provisioned_bytes as f64)),
        "sizes of all volumes together",
    ),
    gauge(
        "forebay_pool_used_bytes",
        Once(Number(|s| s.pool.used_bytes as f64)),
        "what is taken of it",
    ),
    gauge(
        "forebay_pool_reserved_bytes",
        Once(Number(|s| s.pool.reserved_bytes as f64)),
        "what is kept of it for dirty data of the cache",
    ),
    gauge(
        "forebay_pool_available_bytes",
        Once(Number(|s| s.pool.available_bytes as f64)),
        "what data can still take: metadata keeps a share",
    ),
    count("forebay_commits_total", Once(Number(|s| s.commit.count as f64)), "commits of the pool"),
    count(
        "forebay_commits_failed_total",
        Once(Number(|s| s.commit.failed as f64)),
        "commits that failed, and were tried again",
    ),
    count(
        "forebay_commit_nodes_total",
        Once(Number(|s| s.commit.nodes as f64)),
        "tree nodes that commits wrote",
    ),
    summary(
        "forebay_commit_duration_seconds",
        Once(Summary(|s| &s.commit.duration_ms, MS)),
        "how long commits took",
    ),
    gauge(
        "forebay_commit_duration_max_seconds",
        Once(Number(|s| s.commit.duration_ms.max * MS)),
        "the longest commit",
    ),
    summary(
        "forebay_commit_critical_section_seconds",
        Once(Summary(|s| &s.commit.critical_section_us, US)),
        "how long commits let all others wait",
    ),
    gauge(
        "forebay_commit_critical_section_max_seconds",
        Once(Number(|s| s.commit.critical_section_us.max * US)),
        "the longest time that a commit let all others wait",
    ),
    gauge(
        "forebay_nodes_cached",
        Once(Number(|s| s.memory.cached_nodes as f64)),
        "clean tree nodes in memory",
    ),
    gauge(
        "forebay_nodes_dirty",
        Once(Number(|s| s.memory.dirty_nodes as f64)),
        "changed tree nodes that have no place on the devices yet",
    ),
    count(
        "forebay_node_hits_total",
        Once(Number(|s| s.memory.node_hits as f64)),
        "look-ups of tree nodes that found them in memory",
    ),
    count(
        "forebay_node_misses_total",
        Once(Number(|s| s.memory.node_misses as f64)),
        "look-ups of tree nodes that did not",
    ),
    count(
        "forebay_node_waits_total",
        Once(Number(|s| s.memory.node_waits as f64)),
        "steps that had to wait until a tree node was read",
    ),
    count(
        "forebay_read_ahead_blocks_total",
        Once(Number(|s| s.read_ahead.read as f64)),
        "blocks read ahead of clients",
    ),
    count(
        "forebay_read_ahead_used_blocks_total",
        Once(Number(|s| s.read_ahead.used as f64)),
        "those of them that a client asked for",
    ),
    // Devices of the pool.
    info(
        "forebay_device_info",
        Device(Texts(&["path", "kind"], path_and_kind)),
        "a device of the pool; path is shown with a token or on the unix socket only",
    ),
    gauge(
        "forebay_device_state",
        Device(By("state", |d| one_of(DeviceState::ALL, DeviceState::word, d.state))),
        "1 for the state that a device is in",
    ),
    gauge(
        "forebay_device_capacity_bytes",
        Device(Number(|d| d.capacity_bytes as f64)),
        "size of all its chunks",
    ),
    gauge(
        "forebay_device_allocated_bytes",
        Device(Number(|d| d.allocated_bytes as f64)),
        "size of those in use",
    ),
    gauge(
        "forebay_device_sits_out",
        Device(Number(|d| f64::from(d.sits_out.is_some()))),
        "1 while a device is read only where no other has a good copy",
    ),
    count(
        "forebay_device_errors_total",
        Device(By("error", |d| errors(&d.errors))),
        "requests that failed (read, write), and blocks with a wrong checksum",
    ),
    count(
        "forebay_device_healed_blocks_total",
        Device(Number(|d| d.errors.healed as f64)),
        "blocks that were rewritten from a good copy",
    ),
    count(
        "forebay_spares_taken_total",
        Once(Number(|s| s.pool.spares.taken_total as f64)),
        "devices whose place a spare has taken by itself",
    ),
    // Queues of the devices, and of the cache's.
    gauge(
        "forebay_queue_waiting",
        Queue(Number(|q| q.waiting as f64)),
        "requests of clients, commits and the journal that wait for a device",
    ),
    gauge(
        "forebay_queue_background_waiting",
        Queue(Number(|q| q.background_waiting as f64)),
        "requests of the background that wait for a device",
    ),
    gauge(
        "forebay_queue_background_limit",
        Queue(Number(|q| q.background_most as f64)),
        "requests of the background that a device may have while it has nothing else to do",
    ),
    gauge(
        "forebay_queue_silent_seconds",
        Queue(Number(|q| q.silent_ms * MS)),
        "for how long a device has not answered the oldest of the requests that it has",
    ),
    gauge(
        "forebay_queue_in_flight",
        Class(Number(|c| c.in_flight as f64)),
        "requests that a device has",
    ),
    count(
        "forebay_queue_merged_total",
        Class(Number(|c| c.merged as f64)),
        "requests that became part of a neighbour's",
    ),
    count(
        "forebay_queue_late_total",
        Class(Number(|c| c.late as f64)),
        "requests of clients that took longer than the latency target",
    ),
    count(
        "forebay_queue_wait_seconds_total",
        Class(Number(|c| c.waited_ms * MS)),
        "time that requests waited before they went to a device, all together",
    ),
    count(
        "forebay_queue_service_seconds_total",
        Class(Number(|c| c.in_service_ms * MS)),
        "time that a device had requests, all together",
    ),
    count(
        "forebay_device_requests_total",
        ClassOp(Number(|io| io.count as f64)),
        "requests to a device",
    ),
    count(
        "forebay_device_request_bytes_total",
        ClassOp(Number(|io| io.bytes as f64)),
        "bytes that were read or written",
    ),
    latency(
        "forebay_device_request_latency_seconds",
        ClassOp(Histogram(IoOfKind::latencies)),
        "from submission to completion, with the time in the queue; of kinds that there were",
    ),
    // Scrub and moves.
    gauge(
        "forebay_scrub_state",
        Once(By("state", |s| one_of(ScrubState::ALL, ScrubState::word, s.pool.scrub.state))),
        "1 for the state of the scrub that runs, or of the last one",
    ),
    gauge(
        "forebay_scrub_completed_timestamp_seconds",
        Once(Number(|s| s.pool.scrub.completed_at as f64)),
        "when a scrub of everything completed last, Unix time; 0: none has",
    ),
    gauge(
        "forebay_scrub_ended_timestamp_seconds",
        Once(Number(|s| s.pool.scrub.ended_at as f64)),
        "when a scrub ended last, Unix time; where none has, when the pool began to wait for one",
    ),
    gauge(
        "forebay_scrub_verified_bytes",
        Once(Number(|s| s.pool.scrub.verified_bytes as f64)),
        "what this scrub has verified",
    ),
    gauge(
        "forebay_scrub_expected_bytes",
        Once(Number(|s| s.pool.scrub.all_bytes as f64)),
        "what it is to verify",
    ),
    gauge(
        "forebay_scrub_rate_bytes",
        Once(Number(|s| s.pool.scrub.rate as f64)),
        "bytes a second that it verifies",
    ),
    gauge("forebay_scrub_bad", Once(Number(|s| s.pool.scrub.bad as f64)), "what it found bad"),
    gauge(
        "forebay_scrub_healed",
        Once(Number(|s| s.pool.scrub.healed as f64)),
        "what of it was healed",
    ),
    gauge(
        "forebay_scrub_lost",
        Once(Number(|s| s.pool.scrub.lost as f64)),
        "what of it has no good copy",
    ),
    gauge(
        "forebay_lost_extents",
        Once(Number(|s| s.pool.scrub.lost_blocks.len() as f64)),
        "known parts of volumes without a good copy",
    ),
    gauge(
        "forebay_moves_state",
        Once(By("state", |s| one_of(MovesState::ALL, MovesState::word, s.pool.moves.state))),
        "1 for the state of the moves between devices",
    ),
    gauge(
        "forebay_moves_left_bytes",
        Once(Number(|s| s.pool.moves.left_bytes as f64)),
        "what is yet to be moved, and at most has to be copied to devices that were away",
    ),
    gauge(
        "forebay_moves_copied_bytes",
        Once(Number(|s| s.pool.moves.copied_bytes as f64)),
        "what was moved",
    ),
    gauge(
        "forebay_moves_rate_bytes",
        Once(Number(|s| s.pool.moves.rate as f64)),
        "bytes a second that are moved",
    ),
    gauge(
        "forebay_moves_behind_groups",
        Once(Number(|s| s.pool.moves.behind_groups as f64)),
        "block groups that a device that was away lacks",
    ),
];

fn path_and_kind(device: &DeviceStatus) -> Vec<&str> {
    let kind = device.queue.as_ref().map(|queue| queue.kind.word());
    [device.path.as_str()].into_iter().chain(kind).collect()
}

fn errors(errors: &DeviceErrors) -> Vec<LabelledNumber> {
    let of = [("read", errors.read), ("write", errors.write), ("checksum", errors.checksum)];
    of.map(|(error, count)| (error, Some(count as f64))).into()
}
