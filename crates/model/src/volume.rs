//! Volumes, their limits, and the clients that have them open.

use std::num::{NonZeroU32, NonZeroU64};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::io::IoOfKind;
use crate::words::words;

words! {
    /// The mode of the cache for a volume. The modes are in order: each uses the cache less than
    /// the one before.
    CacheMode {
        /// Writes go to the cache, and a flush makes them durable there. Write-back carries them to
        /// the pool later.
        WriteBack = "writeback",
        /// Writes go to the pool. The cache keeps a copy of what is written and of what is read.
        WriteThrough = "writethrough",
        /// Writes go to the pool. The cache keeps only what is read.
        WriteAround = "writearound",
        /// The volume does not use the cache.
        None = "none",
    }
}

/// The limit on what clients may ask of a volume. At least one of the rates is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VolumeLimit {
    /// Requests a second; null: no limit.
    pub iops: Option<NonZeroU32>,
    /// Bytes a second; null: no limit.
    pub bytes_per_second: Option<NonZeroU64>,
    /// The milliseconds of each rate that an idle volume saves up.
    pub burst_ms: NonZeroU32,
}

/// A volume as its users see it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Volume {
    /// The name of the volume.
    pub name: String,
    /// The size of the volume, in bytes.
    pub size_bytes: u64,
    /// Bytes that the volume takes of the pool, one copy counted.
    pub allocated_bytes: u64,
    /// Bytes in a logical sector.
    pub sector_bytes: u32,
    /// The mode of the cache for the volume, where there is a cache.
    pub cache_mode: CacheMode,
    /// The limit on what clients may ask of the volume; null: there is no limit.
    pub limit: Option<VolumeLimit>,
    /// Clients may change nothing.
    pub read_only: bool,
}

/// A volume, with what its clients asked for.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct VolumeOfStatus {
    /// The volume.
    #[serde(flatten)]
    pub volume: Volume,
    /// The number of the volume.
    pub id: u32,
    /// The requests of the volume's clients since the server was started; absent if none has opened
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestsOfVolume>,
}

/// Requests of clients to one volume, by kind.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct RequestsOfVolume {
    /// Reads; a longer read counts once for each 128 KiB if its client takes replies in parts.
    pub read: VolumeIo,
    /// Writes.
    pub write: VolumeIo,
    /// Flushes.
    pub flush: VolumeIo,
    /// Discards (TRIM).
    pub discard: VolumeIo,
    /// Writes of zeros.
    pub zero: VolumeIo,
}

impl RequestsOfVolume {
    /// All kinds, each with its name.
    pub fn by_name(&self) -> [(&'static str, &VolumeIo); 5] {
        [
            ("read", &self.read),
            ("write", &self.write),
            ("flush", &self.flush),
            ("discard", &self.discard),
            ("zero", &self.zero),
        ]
    }
}

/// Requests of one kind to one volume.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct VolumeIo {
    /// Requests.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
    /// From their arrival until the client has taken the reply, all requests together, in
    /// microseconds.
    pub latency_sum_us: f64,
    /// Requests that took at most each of latency_bounds_us of the status; absent if there was no
    /// request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency_at_most: Vec<u64>,
}

/// The counters that metrics show, of a kind of requests.
#[derive(Clone, Copy, Debug)]
pub struct Latencies<'a> {
    /// Requests.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
    /// All latencies together, in microseconds.
    pub sum_us: f64,
    /// Requests that took at most each of latency_bounds_us of the status.
    pub at_most: &'a [u64],
}

impl VolumeIo {
    /// The counters that metrics show.
    pub fn latencies(&self) -> Latencies<'_> {
        Latencies {
            count: self.count,
            bytes: self.bytes,
            sum_us: self.latency_sum_us,
            at_most: &self.latency_at_most,
        }
    }
}

impl IoOfKind {
    /// The counters that metrics show.
    pub fn latencies(&self) -> Latencies<'_> {
        Latencies {
            count: self.count,
            bytes: self.bytes,
            sum_us: self.latency_sum_us,
            at_most: &self.latency_at_most,
        }
    }
}

/// The limit of a volume, after a change.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct VolumeLimitChange {
    /// The volume's name.
    pub name: String,
    /// The limit now; null: there is none.
    pub limit: Option<VolumeLimit>,
    /// The limit before; null: there was none.
    pub before: Option<VolumeLimit>,
}

/// The place of the first data of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct FirstData {
    /// The first byte of the first block with data; null if there is none.
    pub offset: Option<u64>,
}

words! {
    /// The proof that a client over TLS has given of its names.
    Proof {
        /// The client proved none.
        Nothing = "nothing",
        /// By a certificate.
        Certificate = "certificate",
        /// By a key that was shared before.
        Key = "psk",
    }
}

/// A client that is connected over NBD.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Client {
    /// Counts from 1, in the order in which connections were accepted.
    #[schemars(range(min = 1))]
    pub number: u64,
    /// The address of the client, with its port; null over a unix socket.
    pub address: Option<String>,
    /// The process of the client, if it came over a unix socket; absent where the system does not
    /// say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ClientProcess>,
    /// The volume that the client has open; null during the handshake.
    pub export: Option<String>,
    /// The client may change nothing.
    pub read_only: bool,
    /// Requests that have been received and not yet answered completely.
    pub requests: u64,
    /// Whom TLS found the client to be; null if it does not use TLS.
    pub tls: Option<ClientTls>,
    /// Seconds since the client connected; absent if the server does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected_seconds: Option<u64>,
}

/// A process of this machine that is connected.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ClientProcess {
    /// The number of the process.
    pub pid: u32,
    /// The number of the user of the process.
    pub uid: u32,
    /// The name of the program, as far as the system tells.
    pub program: Option<String>,
}

/// A client that came over TLS.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ClientTls {
    /// TLSv1.2 or TLSv1.3.
    pub version: String,
    /// The cipher of the connection.
    pub cipher: String,
    /// The proof that the client has given of its names.
    pub proof: Proof,
    /// Common name and alternative names of the client's certificate, or the name of its key.
    pub names: Vec<String>,
}
