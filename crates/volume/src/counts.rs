//! The requests of clients: counted for all volumes together, and for each.

use base::{CoarseHistogram, Duration};
use queue::KindStats;

/// The kind of a client's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A discard (TRIM).
    Discard,
    /// A write of zeros.
    Zero,
}

/// Something for each kind of request.
#[derive(Clone, Default)]
pub struct ByOp<T> {
    /// Reads.
    pub read: T,
    /// Writes.
    pub write: T,
    /// Flushes.
    pub flush: T,
    /// Discards (TRIM).
    pub discard: T,
    /// Write-zeroes.
    pub zero: T,
}

impl<T> ByOp<T> {
    pub(crate) fn of(&mut self, op: Op) -> &mut T {
        match op {
            Op::Read => &mut self.read,
            Op::Write => &mut self.write,
            Op::Flush => &mut self.flush,
            Op::Discard => &mut self.discard,
            Op::Zero => &mut self.zero,
        }
    }

    /// All of them, by name.
    pub fn by_name(&self) -> [(&'static str, &T); 5] {
        [
            ("read", &self.read),
            ("write", &self.write),
            ("flush", &self.flush),
            ("discard", &self.discard),
            ("zero", &self.zero),
        ]
    }
}

/// Requests of clients, of all volumes.
pub type RequestStats = ByOp<KindStats>;

/// Requests of one kind to one volume, without their exact latencies: there may be many volumes.
#[derive(Clone, Default)]
pub struct VolumeCounts {
    /// Requests.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
    /// From submission to completion.
    pub latency: CoarseHistogram,
}

impl VolumeCounts {
    pub(crate) fn record(&mut self, bytes: u64, took: Duration) {
        self.count += 1;
        self.bytes += bytes;
        self.latency.record(took);
    }
}

/// The requests of one volume's clients since the pool was opened.
pub type VolumeStats = ByOp<VolumeCounts>;
