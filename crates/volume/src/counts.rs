//! The requests of clients: counted for all volumes together, and for each.

use std::cell::RefCell;
use std::rc::Rc;

use base::{CoarseHistogram, Duration};
use ledger::{Operation, RequestCounter};
use queue::KindStats;

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
    pub(crate) fn of(&mut self, operation: Operation) -> &mut T {
        match operation {
            Operation::Read => &mut self.read,
            Operation::Write => &mut self.write,
            Operation::Flush => &mut self.flush,
            Operation::Discard => &mut self.discard,
            Operation::Zero => &mut self.zero,
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
    /// From the arrival of the request until its reply was sent.
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

/// The counters of one volume's requests, and of all volumes'.
pub(crate) struct VolumeCounter {
    all: Rc<RefCell<RequestStats>>,
    own: Rc<RefCell<VolumeStats>>,
}

impl VolumeCounter {
    /// A counter that adds to both.
    pub(crate) fn of(
        all: Rc<RefCell<RequestStats>>,
        own: Rc<RefCell<VolumeStats>>,
    ) -> Rc<dyn RequestCounter> {
        Rc::new(VolumeCounter { all, own })
    }
}

impl RequestCounter for VolumeCounter {
    fn count(&self, operation: Operation, bytes: u64, took: Duration) {
        self.all.borrow_mut().of(operation).record(bytes, took);
        self.own.borrow_mut().of(operation).record(bytes, took);
    }
}
