//! Errors that several files return.

use btree::Fault;
use pool::{ErrorKind, PoolError};

/// A task ended without a result.
pub(crate) fn ended() -> PoolError {
    PoolError::new(ErrorKind::Io, "the runtime has ended")
}

/// A record of the index cannot be decoded.
pub(crate) fn malformed() -> PoolError {
    let what = "the cache's index has a record that makes no sense; run forebay check";
    PoolError::new(ErrorKind::Damaged, what)
}

/// What is said of a node that cannot be had.
pub(crate) fn damaged(fault: &Fault, why: impl std::fmt::Display) -> PoolError {
    let text = format!(
        "the cache's index: the node at block {}: {why}; run forebay check, or start without the \
         cache to use the pool's image",
        fault.ptr.addr
    );
    PoolError::new(ErrorKind::Damaged, text)
}
