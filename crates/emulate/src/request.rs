//! The requests that a model is asked for, and the name of a request in it.

/// The access that a request makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Writes, and is durable when it is done.
    DurableWrite,
    /// Makes durable what was written.
    Flush,
}

/// A request of an emulation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(pub(crate) u64);
