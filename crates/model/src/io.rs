//! Counters of requests and of device I/O, with latencies.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Quantiles of a histogram.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Quantiles {
    /// Median.
    pub p50: f64,
    /// 99 of 100 values are below.
    pub p99: f64,
    /// 999 of 1000 values are below.
    pub p999: f64,
    /// The largest value.
    pub max: f64,
}

/// Requests of one kind, with their latencies.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Io")]
pub struct IoOfKind {
    /// Requests.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
    /// In microseconds: of clients' requests from their arrival until the client has taken the
    /// reply, as `explain` tells them; of device I/O from submission to completion.
    pub latency_us: Quantiles,
    /// All latencies together, in microseconds.
    pub latency_sum_us: f64,
    /// Requests that took at most each of latency_bounds_us of the status; absent if there was no
    /// request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency_at_most: Vec<u64>,
}

/// Requests of clients, by kind.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct RequestsByKind {
    /// Reads; a longer read counts once for each 128 KiB if its client takes replies in parts.
    pub read: IoOfKind,
    /// Writes.
    pub write: IoOfKind,
    /// Flushes.
    pub flush: IoOfKind,
    /// Discards (TRIM).
    pub discard: IoOfKind,
    /// Writes of zeros.
    pub zero: IoOfKind,
}

impl RequestsByKind {
    /// All kinds, each with its name.
    pub fn by_name(&self) -> [(&'static str, &IoOfKind); 5] {
        [
            ("read", &self.read),
            ("write", &self.write),
            ("flush", &self.flush),
            ("discard", &self.discard),
            ("zero", &self.zero),
        ]
    }
}

/// Device I/O of one class.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct IoOfClass {
    /// Reads.
    pub read: IoOfKind,
    /// Writes.
    pub write: IoOfKind,
    /// Flushes.
    pub flush: IoOfKind,
    /// Requests that became part of a neighbour's.
    pub merged: u64,
    /// Bytes between requests that were read and thrown away, as the requests became one.
    pub gap_bytes: u64,
    /// The time that requests waited before they went to the device, all together, in milliseconds.
    pub waited_ms: f64,
    /// The time that the device had the requests, all together, in milliseconds.
    pub in_service_ms: f64,
    /// Requests to the device that took longer than its latency target; of the foreground only.
    pub late: u64,
    /// Requests that the device has now.
    pub in_flight: u64,
}

impl IoOfClass {
    /// All kinds, each with its name.
    pub fn by_name(&self) -> [(&'static str, &IoOfKind); 3] {
        [("read", &self.read), ("write", &self.write), ("flush", &self.flush)]
    }
}

/// Device I/O by class: what the I/O is for.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct IoByClass {
    /// Clients wait for the I/O.
    pub foreground: IoOfClass,
    /// Writing a transaction, the journal or a checkpoint: clients may wait for it.
    pub commit: IoOfClass,
    /// Putting together what is left of thin buckets: clients would wait for the room.
    pub compaction: IoOfClass,
    /// Write-back passes.
    pub write_back: IoOfClass,
    /// Blocks that were read move into the cache.
    pub promotion: IoOfClass,
    /// Garbage collection.
    pub collection: IoOfClass,
    /// A scrub.
    pub scrub: IoOfClass,
    /// Chunks move from one device to another.
    #[serde(rename = "move")]
    pub moves: IoOfClass,
}

impl IoByClass {
    /// All classes, each with its name.
    pub fn by_name(&self) -> [(&'static str, &IoOfClass); 8] {
        [
            ("foreground", &self.foreground),
            ("commit", &self.commit),
            ("compaction", &self.compaction),
            ("write-back", &self.write_back),
            ("promotion", &self.promotion),
            ("collection", &self.collection),
            ("scrub", &self.scrub),
            ("move", &self.moves),
        ]
    }
}
