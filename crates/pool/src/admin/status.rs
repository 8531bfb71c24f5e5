//! What can be asked of an open pool.

use std::collections::BTreeMap;

use base::{BLOCK_U64, Histogram};
use queue::{Class, ClassStats, DeviceStats, KindStats};
use rt::DeviceKind;

use super::volumes::VolumeInfo;
use crate::devices::{DeviceErrors, PoolDevice, Rot, SitsOut};
use crate::findings::{MovesStatus, ScrubStatus, SparesStatus};
use crate::pool::Pool;
use crate::space::FetchedCounts;

/// Freed runs that a look at the pool makes available; the others are seen by the next.
const STATUS_DRAINS: usize = 256;

/// Everything `forebay status` shows of a pool.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Status {
    /// The pool.
    pub pool: PoolStatus,
    /// Its live volumes.
    pub volumes: Vec<VolumeInfo>,
    /// Its commits.
    pub commit: CommitStatus,
    /// Device I/O by class.
    pub io: BTreeMap<&'static str, ClassStatus>,
    /// Blocks read ahead of clients.
    pub read_ahead: FetchedCounts,
    /// Memory.
    pub memory: MemoryStatus,
}

/// The pool and its devices.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// Its uuid.
    pub uuid: String,
    /// `online`, `degraded` or `failed`.
    pub state: &'static str,
    /// Why it takes no more writes, and what to do, if it has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Why what is answered does not outlive the process before it is flushed, though it should.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers_at_risk: Option<String>,
    /// The reason is another process that writes to the same devices.
    pub other_writer: bool,
    /// Copies of every block.
    pub copies: u8,
    /// Bytes that data and metadata may take together, one copy counted.
    pub capacity_bytes: u64,
    /// The most that this can become, whatever devices are added: the pool was made for it.
    pub capacity_limit_bytes: u64,
    /// Bytes of all volumes together, whether they were written or not.
    pub provisioned_bytes: u64,
    /// Bytes taken, one copy counted.
    pub used_bytes: u64,
    /// Bytes of dirty blocks of a cache for which room is kept.
    pub reserved_bytes: u64,
    /// Bytes that data can still take beside that, one copy counted; metadata keeps a share.
    pub available_bytes: u64,
    /// The last commit.
    pub generation: u64,
    /// Its devices.
    pub devices: Vec<DeviceStatus>,
    /// The scrub that runs, or the last one.
    pub scrub: ScrubStatus,
    /// What is moved from one device to another.
    pub moves: MovesStatus,
    /// Spares, and the places that some have taken.
    pub spares: SparesStatus,
}

/// A device.
#[derive(Clone, Debug, serde::Serialize)]
pub struct DeviceStatus {
    /// Where it is; empty if it is missing.
    pub path: String,
    /// Its uuid.
    pub id: String,
    /// `online`, `spare`, `behind`, `joining`, `leaving`, `failed`, `flapping`, `stale`, `offline`
    /// or `missing`.
    pub state: &'static str,
    /// Bytes of block groups that it has room for.
    pub capacity_bytes: u64,
    /// Of these, bytes that block groups have.
    pub allocated_bytes: u64,
    /// If it is out of use: it is tried again by itself.
    pub tried_again: bool,
    /// What is to take its place if it stays out of use.
    pub spare: Option<SpareStatus>,
    /// Why the last write to it failed, if it did and the device is in use: clients get errors,
    /// unless a cache takes their writes.
    pub write_trouble: Option<String>,
    /// It is read only where no other has a good copy.
    pub sits_out: Option<SitsOut>,
    /// Errors since the pool was opened.
    pub errors: DeviceErrors,
    /// Blocks that were not what was written, since the last scrub that found none.
    pub rot: Option<Rot>,
    /// Its queue; absent if it is missing.
    pub queue: Option<QueueStatus>,
}

/// A spare for a device that is out of use.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SpareStatus {
    /// Its path; `None`: no spare in use has room for what that device holds.
    pub path: Option<String>,
    /// Seconds until it takes the place.
    pub in_s: u64,
}

/// The queue of one device.
#[derive(Clone, Debug, serde::Serialize)]
pub struct QueueStatus {
    /// What the device is: `rotating`, `ssd`, `nvme`, `memory` or `unknown`.
    pub kind: &'static str,
    /// Requests that the background may have in flight now while the device has nothing else to do.
    pub background_most: u32,
    /// Requests of clients, of commits and of the journal that wait for the device now.
    pub waiting: usize,
    /// Requests of the background that wait for it now.
    pub background_waiting: usize,
    /// For so many milliseconds the device has not answered the oldest of the requests that it has
    /// now; 0 if it has none.
    pub silent_ms: f64,
    /// Its I/O by class.
    pub io: BTreeMap<&'static str, ClassStatus>,
}

impl QueueStatus {
    /// Of a queue's counters.
    pub fn of(kind: DeviceKind, stats: &DeviceStats) -> QueueStatus {
        let io = ClassStatus::by_class(stats);
        QueueStatus {
            kind: kind.name(),
            background_most: stats.background_most,
            waiting: stats.waiting,
            background_waiting: stats.background_waiting,
            silent_ms: stats.silent.as_secs_f64() * 1e3,
            io,
        }
    }
}

/// Commits since the pool was opened.
#[derive(Clone, Debug, serde::Serialize)]
pub struct CommitStatus {
    /// How many.
    pub count: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Nodes written.
    pub nodes: u64,
    /// The freeze, in microseconds.
    pub critical_section_us: Quantiles,
    /// The whole, in milliseconds.
    pub duration_ms: Quantiles,
    /// Updates of block groups.
    pub block_group_updates: GroupUpdates,
}

/// Updates of block groups by commits.
#[derive(Clone, Debug, serde::Serialize)]
pub struct GroupUpdates {
    /// Written.
    pub written: u64,
    /// Not written, because nothing had changed.
    pub skipped: u64,
}

/// A summary of a histogram.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Quantiles {
    /// Median.
    pub p50: f64,
    /// 99 of 100 are below.
    pub p99: f64,
    /// 999 of 1000 are below.
    pub p999: f64,
    /// The largest.
    pub max: f64,
}

impl Quantiles {
    /// Of a histogram, in units of `unit_ns` nanoseconds.
    pub fn of(h: &Histogram, unit_ns: f64) -> Quantiles {
        let at = |q| h.quantile_ns(q) as f64 / unit_ns;
        Quantiles { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: h.max_ns() as f64 / unit_ns }
    }
}

/// I/O of one class.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ClassStatus {
    /// Reads.
    pub read: KindStatus,
    /// Writes.
    pub write: KindStatus,
    /// Flushes.
    pub flush: KindStatus,
    /// Requests that became part of a neighbour's.
    pub merged: u64,
    /// Bytes between requests that were read and thrown away, as they became one.
    pub gap_bytes: u64,
    /// How long requests waited before they went to the device, all together, in milliseconds.
    pub waited_ms: f64,
    /// How long the device had them, all together, in milliseconds.
    pub in_service_ms: f64,
    /// Requests to the device that took longer than its latency target; of the foreground only.
    pub late: u64,
    /// Requests that the device has now.
    pub in_flight: usize,
}

impl ClassStatus {
    fn of(c: &ClassStats) -> ClassStatus {
        ClassStatus {
            read: KindStatus::of(&c.read),
            write: KindStatus::of(&c.write),
            flush: KindStatus::of(&c.flush),
            merged: c.merged,
            gap_bytes: c.gap_bytes,
            waited_ms: c.waited_ns as f64 / 1e6,
            in_service_ms: c.in_service_ns as f64 / 1e6,
            late: c.late,
            in_flight: c.in_flight,
        }
    }

    /// Of all classes, by their names.
    fn by_class(stats: &DeviceStats) -> BTreeMap<&'static str, ClassStatus> {
        let each = Class::ALL.into_iter().zip(&stats.classes);
        each.map(|(class, c)| (class.name(), ClassStatus::of(c))).collect()
    }
}

/// I/O of one kind.
#[derive(Clone, Debug, serde::Serialize)]
pub struct KindStatus {
    /// Requests.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
    /// From submission to completion, in microseconds.
    pub latency_us: Quantiles,
    /// All latencies together, in microseconds.
    pub latency_sum_us: f64,
    /// How many took at most each of [`base::BOUNDS_NS`]; nothing if there was none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latency_at_most: Vec<u64>,
}

/// Memory in use.
#[derive(Clone, Debug, serde::Serialize)]
pub struct MemoryStatus {
    /// Clean nodes.
    pub cached_nodes: usize,
    /// Changed nodes that have no place on the devices yet: of the open transaction, and of the
    /// write-back pass.
    pub dirty_nodes: usize,
    /// Look-ups of nodes that found them in memory.
    pub node_hits: u64,
    /// Look-ups that did not.
    pub node_misses: u64,
    /// Nodes that were read.
    pub node_loads: u64,
    /// Steps of requests, commits and passes that had to wait until a node was read.
    pub node_waits: u64,
    /// Bytes of buffers in use.
    pub buffer_bytes: usize,
}

impl KindStatus {
    /// Of the counters of a kind.
    pub fn of(k: &KindStats) -> KindStatus {
        let at_most = if k.count > 0 { k.latency.at_most_bounds().to_vec() } else { Vec::new() };
        KindStatus {
            count: k.count,
            bytes: k.bytes,
            latency_us: Quantiles::of(&k.latency, 1e3),
            latency_sum_us: k.latency.sum_ns() as f64 / 1e3,
            latency_at_most: at_most,
        }
    }
}

impl Pool {
    /// The pool as it is now.
    pub fn status(&self) -> Status {
        // What no read is about any more is free, though nothing needed it yet.
        self.state_mut().space.drain(STATUS_DRAINS);
        let (scrub, moves) = (self.known_scrub_status(), self.moves_status());
        let now = self.now();
        self.state_mut().devices.judge_sources(now);
        let st = self.state();
        let degraded = st.devices.degraded();
        let there = st.devices.iter().enumerate().filter(|(_, d)| !d.is_removed());
        let spares = st.devices.iter().any(PoolDevice::is_spare);
        let after = self.settings().spare_after;
        let group_bytes = st.space.geometry().group_bytes();
        let spare = |row| {
            let then = st.time_of_spare(row, after).filter(|_| spares)?;
            let path = st.spare_for(row).map(|spare| st.devices.path(spare).to_owned());
            Some(SpareStatus { path, in_s: then.since(now).as_secs() })
        };
        let devices = there.map(|(row, d)| DeviceStatus {
            path: d.path().to_owned(),
            id: uuid::Uuid::from_bytes(d.record().uuid).to_string(),
            state: d.state(),
            capacity_bytes: d.record().chunks * group_bytes,
            allocated_bytes: (d.record().chunks - d.free_chunks()) * group_bytes,
            tried_again: d.is_tried(),
            spare: spare(row),
            write_trouble: d.write_trouble().map(|e| e.to_string()),
            sits_out: d.source().sits_out(now),
            errors: d.errors(),
            rot: d.rot(now),
            queue: d.disk().map(|disk| QueueStatus::of(disk.kind(), &disk.stats())),
        });
        let pool = PoolStatus {
            name: st.identity.name.clone(),
            uuid: uuid::Uuid::from_bytes(st.identity.uuid).to_string(),
            state: match (st.standing.ended(), degraded) {
                (Some(_), _) => "failed",
                (None, true) => "degraded",
                (None, false) => "online",
            },
            trouble: st.standing.ended().map(ToString::to_string),
            answers_at_risk: st.host_log.lost(),
            other_writer: st.writers.has_other(),
            copies: st.identity.copies,
            capacity_bytes: st.space.capacity_bytes(&st.devices),
            capacity_limit_bytes: u64::from(st.space.geometry().group_capacity) * group_bytes,
            provisioned_bytes: st.forest.provisioned_bytes(),
            used_bytes: st.space.used_blocks() * BLOCK_U64,
            reserved_bytes: st.space.reserved() * BLOCK_U64,
            available_bytes: st.space.left_for_data(&st.devices, &st.demand()) * BLOCK_U64,
            generation: st.txns.committed().0,
            devices: devices.collect(),
            scrub,
            moves,
            spares: st.moves.taken.status(st.spares_left()),
        };
        let cache = st.forest.store().stats();
        let memory = MemoryStatus {
            cached_nodes: st.forest.store().resident(),
            dirty_nodes: st.demand().dirty_nodes as usize,
            node_hits: cache.hits,
            node_misses: cache.misses,
            node_loads: cache.loaded,
            node_waits: cache.waited,
            buffer_bytes: self.rt().bufs().outstanding(),
        };
        let io = ClassStatus::by_class(&st.devices.stats());
        let m = self.metrics();
        let (written, skipped) = m.group_updates();
        let commit = CommitStatus {
            count: m.count(),
            failed: m.failed(),
            nodes: m.nodes(),
            critical_section_us: Quantiles::of(m.critical_section(), 1e3),
            duration_ms: Quantiles::of(m.duration(), 1e6),
            block_group_updates: GroupUpdates { written, skipped },
        };
        drop(m);
        let read_ahead = st.space.fetched().counts();
        Status { pool, volumes: self.volumes(), commit, io, read_ahead, memory }
    }
}
