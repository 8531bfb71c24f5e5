//! The status of an open pool.

use base::{BLOCK_U64, Histogram};
use model::device::{DeviceStatus, QueueStatus, SpareStatus};
use model::io::{IoByClass, IoOfClass, IoOfKind, Quantiles};
use model::status::{CommitStatus, GroupUpdates, MemoryStatus, PoolState, PoolStatus, ReadAhead};
use queue::{Class, ClassStats, DeviceStats, KindStats};
use rt::DeviceKind;

use crate::devices::PoolDevice;
use crate::moves::spares::{spare_for, spares_left, time_of_spare};
use crate::pool::Pool;
use crate::volumes::VolumeInfo;

/// Freed runs that a look at the pool makes available; the others are seen by the next.
const STATUS_DRAINS: usize = 256;

/// The pool's part of what a server says of itself.
#[derive(Clone, Debug)]
pub struct Report {
    /// The pool and its devices.
    pub pool: PoolStatus,
    /// The live volumes.
    pub volumes: Vec<VolumeInfo>,
    /// Commits.
    pub commit: CommitStatus,
    /// I/O of all devices together.
    pub io: IoByClass,
    /// Blocks read ahead of clients.
    pub read_ahead: ReadAhead,
    /// Memory.
    pub memory: MemoryStatus,
}

/// The status of a queue, from its counters.
pub fn queue_status(kind: DeviceKind, stats: &DeviceStats) -> QueueStatus {
    QueueStatus {
        kind,
        background_most: stats.background_most,
        waiting: stats.waiting as u64,
        background_waiting: stats.background_waiting as u64,
        silent_ms: stats.silent.as_secs_f64() * 1e3,
        io: by_class(stats),
    }
}

/// Quantiles of a histogram, in units of `unit_ns` nanoseconds.
fn quantiles(h: &Histogram, unit_ns: f64) -> Quantiles {
    let at = |q| h.quantile_ns(q) as f64 / unit_ns;
    Quantiles { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: h.max_ns() as f64 / unit_ns }
}

/// The counters of a kind of requests, with their latencies.
pub fn io_of_kind(k: &KindStats) -> IoOfKind {
    let at_most = if k.count > 0 { k.latency.at_most_bounds().to_vec() } else { Vec::new() };
    IoOfKind {
        count: k.count,
        bytes: k.bytes,
        latency_us: quantiles(&k.latency, 1e3),
        latency_sum_us: k.latency.sum_ns() as f64 / 1e3,
        latency_at_most: at_most,
    }
}

fn io_of_class(c: &ClassStats) -> IoOfClass {
    IoOfClass {
        read: io_of_kind(&c.read),
        write: io_of_kind(&c.write),
        flush: io_of_kind(&c.flush),
        merged: c.merged,
        gap_bytes: c.gap_bytes,
        waited_ms: c.waited_ns as f64 / 1e6,
        in_service_ms: c.in_service_ns as f64 / 1e6,
        late: c.late,
        in_flight: c.in_flight as u64,
    }
}

fn by_class(stats: &DeviceStats) -> IoByClass {
    let of = |class: Class| io_of_class(stats.of(class));
    IoByClass {
        foreground: of(Class::Foreground),
        commit: of(Class::Commit),
        compaction: of(Class::Compaction),
        write_back: of(Class::WriteBack),
        promotion: of(Class::Promotion),
        collection: of(Class::Collection),
        scrub: of(Class::Scrub),
        moves: of(Class::Move),
    }
}

impl Pool {
    /// The pool as it is now.
    pub fn status(&self) -> Report {
        // Blocks that no read is about any more are free, though nothing needed them yet.
        self.core().state_mut().space.drain(STATUS_DRAINS);
        let (scrub, moves) =
            (self.flows().scrubs.known_scrub_status(), self.flows().moves.moves_status());
        let now = self.core().now();
        self.core().state_mut().devices.judge_sources(now);
        let st = self.core().state();
        let degraded = st.devices.degraded();
        let there = st.devices.iter().enumerate().filter(|(_, d)| !d.is_removed());
        let spares = st.devices.iter().any(PoolDevice::is_spare);
        let after = self.core().settings().spare_after;
        let group_bytes = st.space.geometry().group_bytes();
        let spare = |row| {
            let then = time_of_spare(&st, row, after).filter(|_| spares)?;
            let path = spare_for(&st, row).map(|spare| st.devices.path(spare).to_owned());
            Some(SpareStatus { path, in_s: then.since(now).as_secs() })
        };
        let devices = there.map(|(row, d)| DeviceStatus {
            path: d.path().to_owned(),
            id: uuid::Uuid::from_bytes(d.record().uuid).to_string(),
            state: d.state().unwrap_or_default(),
            capacity_bytes: d.record().chunks * group_bytes,
            allocated_bytes: d.chunks().in_use() * group_bytes,
            tried_again: d.is_tried(),
            spare: spare(row),
            write_trouble: d.write_trouble().map(|e| e.to_string()),
            sits_out: d.source().sits_out(now),
            errors: d.errors(),
            rot: d.rot(now),
            queue: d.disk().map(|disk| queue_status(disk.kind(), &disk.stats())),
            emulate: None,
            last_path: None,
            missing_because: d.unfit.clone().filter(|_| d.path().is_empty()),
        });
        let pool = PoolStatus {
            name: st.identity.name.clone(),
            uuid: uuid::Uuid::from_bytes(st.identity.uuid).to_string(),
            state: match (st.standing.ended(), degraded) {
                (Some(_), _) => PoolState::Failed,
                (None, true) => PoolState::Degraded,
                (None, false) => PoolState::Online,
            },
            trouble: st.standing.ended().map(ToString::to_string),
            answers_at_risk: st.host_log.lost(),
            other_writer: st.writers.has_other(),
            copies: st.identity.copies,
            capacity_bytes: st.space.groups().capacity_bytes(&st.devices),
            capacity_limit_bytes: u64::from(st.space.geometry().group_capacity) * group_bytes,
            provisioned_bytes: st.forest.provisioned_bytes(),
            used_bytes: st.space.supply().busy() * BLOCK_U64,
            reserved_bytes: st.space.claims().reserved() * BLOCK_U64,
            available_bytes: st.space.room().left_for_data(&st.devices, &st.demand()) * BLOCK_U64,
            generation: st.txns.committed().0,
            devices: devices.collect(),
            scrub,
            moves,
            spares: st.moves.taken.status(spares_left(&st)),
        };
        let cache = st.forest.store().stats();
        let memory = MemoryStatus {
            cached_nodes: st.forest.store().resident() as u64,
            dirty_nodes: st.demand().dirty_nodes,
            node_hits: cache.hits,
            node_misses: cache.misses,
            node_loads: cache.loaded,
            node_waits: cache.waited,
            buffer_bytes: self.core().rt().bufs().outstanding() as u64,
        };
        let io = by_class(&st.devices.stats());
        let m = self.core().metrics();
        let (written, skipped) = m.group_updates();
        let commit = CommitStatus {
            count: m.count(),
            failed: m.failed(),
            nodes: m.nodes(),
            critical_section_us: quantiles(m.critical_section(), 1e3),
            duration_ms: quantiles(m.duration(), 1e6),
            block_group_updates: GroupUpdates { written, skipped },
        };
        drop(m);
        let read_ahead = st.space.fetched().counts();
        Report { pool, volumes: self.flows().volumes.volumes(), commit, io, read_ahead, memory }
    }
}
