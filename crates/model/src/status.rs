//! Everything of `forebay status`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cache::CacheStatus;
use crate::device::{DeviceStatus, SparesStatus};
use crate::health::Problem;
use crate::io::{IoByClass, Quantiles, RequestsByKind};
use crate::moves::MovesStatus;
use crate::scrub::PoolScrub;
use crate::volume::VolumeOfStatus;
use crate::wait::{Layer, Reason};
use crate::words::words;

words! {
    /// Whether the pool takes writes, and has all copies.
    PoolState {
        /// All devices are in use, and lack nothing.
        Online = "online",
        /// A device is out of use, or lacks something.
        Degraded = "degraded",
        /// The pool takes no more writes.
        Failed = "failed",
    }
}

words! {
    /// The interface of the kernel that I/O goes through.
    IoBackend {
        /// io_uring.
        IoUring = "io_uring",
        /// Threads with system calls of POSIX.
        Posix = "posix",
    }
}

/// The server, its pool, cache and volumes. Counters count since the server was started, unless
/// they say something else.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The process, and its clients.
    pub server: ServerStatus,
    /// The files of TLS; null if the server has none.
    pub tls: Option<TlsStatus>,
    /// The pool and its devices.
    pub pool: PoolStatus,
    /// The cache; absent if the pool has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheStatus>,
    /// How the configuration differs from what the pool has; absent if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<ConfigurationDrift>,
    /// The volumes, in the order of their numbers.
    pub volumes: Vec<VolumeOfStatus>,
    /// The problems, the worst first; empty if all is well.
    pub health: Vec<Problem>,
    /// The requests of clients to all volumes.
    pub requests: RequestsByKind,
    /// The bounds of all latency_at_most, in microseconds, ascending.
    pub latency_bounds_us: Vec<u64>,
    /// Requests held back by limits and shares.
    pub admission: Admission,
    /// Text that says what the slowest request waits for now, and what most of the slow ones before
    /// waited for, in one line; null if none is or was slow.
    pub stalls: Option<String>,
    /// Slow requests of the last minutes.
    pub slow_requests: SlowRequests,
    /// Commits of the pool.
    pub commit: CommitStatus,
    /// I/O of all devices of the pool together.
    pub io: IoByClass,
    /// Blocks read ahead of clients.
    pub read_ahead: ReadAhead,
    /// Memory of the pool.
    pub memory: MemoryStatus,
}

words! {
    /// A kind of connections.
    ConnectionKind {
        /// NBD over unix sockets.
        NbdUnix = "nbd-unix",
        /// NBD over TCP.
        NbdTcp = "nbd-tcp",
        /// HTTP.
        Http = "http",
    }
}

/// A client for which there was no room.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Crowd {
    /// The kind of connection.
    pub kind: ConnectionKind,
    /// The origin of the client, in words.
    pub from: String,
    /// True if the client was refused, as all places were taken; false if it had not said what it
    /// wants, and was closed for another one.
    pub refused: bool,
    /// Seconds since then.
    pub seconds_ago: u64,
}

/// How what a server was told at its start differs from the devices and the cache of its pool.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ConfigurationDrift {
    /// Paths of devices of the pool that the configuration does not name.
    pub unnamed_devices: Vec<String>,
    /// Paths that the configuration names, and where no device of the pool is.
    pub needless_devices: Vec<String>,
    /// The path of the pool's cache, where the configuration does not name it.
    pub unnamed_cache: Option<String>,
    /// The path that the configuration names for the cache, and where that is not.
    pub needless_cache: Option<String>,
    /// True if the next start finds devices and cache by itself.
    pub is_found: bool,
    /// Text that says how to make them agree.
    pub todo: String,
}

/// The process, and its clients over NBD.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ServerStatus {
    /// The program's version.
    pub version: String,
    /// The interface of the kernel that I/O goes through.
    pub io_backend: IoBackend,
    /// Seconds since the server was started.
    pub uptime_seconds: u64,
    /// Connections that are open.
    pub connections: u64,
    /// Connections with a volume that can be open: so many over unix sockets, and so many over TCP.
    #[schemars(range(min = 1))]
    pub connections_max: u64,
    /// Connections that were accepted.
    pub connections_accepted: u64,
    /// Connections that were closed at once because there were too many.
    pub connections_refused: u64,
    /// Connections that were closed for others, as they had not said which volume they want.
    pub connections_crowded_out: u64,
    /// Clients for which there was no room a while ago: the last one of each kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crowds: Vec<Crowd>,
    /// Handshakes of TLS that were done.
    pub tls_handshakes: u64,
    /// Handshakes of TLS that failed.
    pub tls_handshakes_failed: u64,
    /// Requests that have been received and not yet answered completely.
    pub requests_in_flight: u64,
    /// Bytes of the data of these requests in memory.
    pub payload_bytes: u64,
    /// Bytes of memory that the process has; null if the kernel does not tell.
    pub resident_bytes: Option<u64>,
    /// The URIs at which clients find volumes over NBD, with {volume} where the name of a volume
    /// stands, percent-encoded; absent if the server does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbd_uris: Option<Vec<String>>,
}

/// The files of TLS that are in use.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct TlsStatus {
    /// The files that end at some time.
    pub files: Vec<TlsFile>,
    /// Why newer files are not used; null if there are none, or they are used.
    pub refused: Option<String>,
}

/// A certificate, or a list of revoked ones.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct TlsFile {
    /// The last part of the path.
    pub file: String,
    /// The path of the file.
    pub path: String,
    /// When the certificate or the list ends, in seconds since 1970.
    pub ends_at: i64,
    /// Seconds until then; less than 0: since then.
    pub ends_in_s: i64,
    /// The end is so near that it is a problem of health.
    pub ends_soon: bool,
}

/// The pool and its devices.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct PoolStatus {
    /// The name of the pool.
    pub name: String,
    /// The uuid of the pool.
    pub uuid: String,
    /// Whether the pool takes writes, and has all copies.
    pub state: PoolState,
    /// Why the pool has failed, and what to do; absent if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Why what is answered does not outlive the process before it is flushed; absent if it does,
    /// and if that is switched off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers_at_risk: Option<String>,
    /// The pool has failed as another process writes to the same devices.
    pub other_writer: bool,
    /// Copies of every block.
    #[schemars(range(min = 1))]
    pub copies: u8,
    /// Bytes that data and metadata may take together, one copy counted.
    pub capacity_bytes: u64,
    /// The most that capacity_bytes can become, whatever devices are added: the pool was made for
    /// it.
    pub capacity_limit_bytes: u64,
    /// Bytes of all volumes together, whether they were written or not.
    pub provisioned_bytes: u64,
    /// Bytes taken, one copy counted.
    pub used_bytes: u64,
    /// Bytes of dirty blocks of a cache for which room is kept.
    pub reserved_bytes: u64,
    /// Bytes that data can still take beside that, one copy counted; metadata keeps a share.
    pub available_bytes: u64,
    /// The number of the last commit.
    pub generation: u64,
    /// The devices of the pool.
    pub devices: Vec<DeviceStatus>,
    /// The scrub that runs, or the last one.
    pub scrub: PoolScrub,
    /// The moves between devices.
    pub moves: MovesStatus,
    /// Spares, and the places that some have taken.
    pub spares: SparesStatus,
}

/// Requests that were held back before they began.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Admission {
    /// Requests that wait now.
    pub waiting: u64,
    /// Requests that waited because of their volume's limit.
    pub waited_for_limit: u64,
    /// Requests that waited because other volumes had their share first.
    pub waited_for_share: u64,
}

/// Slow requests of the last minutes, by what each waited for longest.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SlowRequests {
    /// The number of seconds that the numbers look back.
    pub seconds: u64,
    /// The length from which on a request is slow, in microseconds.
    pub slower_than_us: f64,
    /// Slow requests that have ended.
    pub requests: u64,
    /// Requests that are slow and have not ended; of the oldest 4096.
    pub under_way: u64,
    /// The time that the oldest of these has taken up to now, in microseconds; 0 if there is none.
    pub longest_under_way_us: f64,
    /// The reasons for which slow requests waited longest.
    pub causes: Vec<SlowCause>,
}

/// A reason for which some slow requests waited longest.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SlowCause {
    /// The layer in which the requests waited.
    pub layer: Layer,
    /// The reason for which the requests waited.
    pub reason: Reason,
    /// Requests.
    pub requests: u64,
}

/// Commits since the pool was opened.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct CommitStatus {
    /// Commits.
    pub count: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Nodes written.
    pub nodes: u64,
    /// The times that clients were held up, in microseconds.
    pub critical_section_us: Quantiles,
    /// The times that whole commits took, in milliseconds.
    pub duration_ms: Quantiles,
    /// Updates of block groups.
    pub block_group_updates: GroupUpdates,
}

/// Updates of block groups by commits.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct GroupUpdates {
    /// Updates that were written.
    pub written: u64,
    /// Updates that were not written, because nothing had changed.
    pub skipped: u64,
}

/// Blocks read ahead of clients, since the pool was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ReadAhead {
    /// Blocks read ahead.
    pub read: u64,
    /// Blocks that clients read and that were there.
    pub used: u64,
}

/// Memory of the pool.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct MemoryStatus {
    /// Clean tree nodes, 4096 bytes each.
    pub cached_nodes: u64,
    /// Tree nodes that have changed and have no place on the devices yet: of the open transaction,
    /// and of the write-back pass.
    pub dirty_nodes: u64,
    /// Look-ups of nodes that found them in memory.
    pub node_hits: u64,
    /// Look-ups of nodes that did not.
    pub node_misses: u64,
    /// Nodes that were read.
    pub node_loads: u64,
    /// Steps of requests, commits and passes that had to wait until a node was read.
    pub node_waits: u64,
    /// Bytes of buffers in use.
    pub buffer_bytes: u64,
}
