//! The operation that a request is counted as once it has ended, with the time that its story says.

use std::rc::Rc;

use base::Duration;

/// The operation that a client asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
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

/// Counters of requests.
pub trait RequestCounter {
    /// Counts a request for so many bytes that took so long.
    fn count(&self, operation: Operation, bytes: u64, took: Duration);
}

/// The counter of a request, and what was done of it.
pub(crate) struct CountedRequest {
    counter: Rc<dyn RequestCounter>,
    operation: Operation,
    bytes: u64,
}

impl CountedRequest {
    /// A request of which a first part was done.
    pub fn begun(counter: Rc<dyn RequestCounter>, operation: Operation, bytes: u64) -> Self {
        CountedRequest { counter, operation, bytes }
    }

    /// More of it was done.
    pub fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// The request has ended.
    pub fn end(self, took: Duration) {
        self.counter.count(self.operation, self.bytes, took);
    }
}
