//! Errors that several files return.

use base::{ErrorKind, StorageError};
use btree::Fault;

/// A record of the index cannot be decoded.
pub(crate) fn malformed() -> StorageError {
    let what = "the cache index has a malformed record; run forebay check";
    StorageError::new(ErrorKind::Damaged, what)
}

/// The error for a node of the index that cannot be had; `why` gives the reason.
pub(crate) fn damaged(fault: &Fault, why: impl std::fmt::Display) -> StorageError {
    let text = format!(
        "the cache's index: the node at block {}: {why}; run forebay check, or start without the \
         cache to use the pool's image",
        fault.ptr.addr
    );
    StorageError::new(ErrorKind::Damaged, text)
}
