//! The result of synchronous steps.

use base::StorageError;

/// The result of a synchronous step over resident nodes.
pub type Step<T> = std::result::Result<T, btree::Stop<StorageError>>;
