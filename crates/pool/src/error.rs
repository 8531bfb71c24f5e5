//! What synchronous steps return.

use base::StorageError;

/// What a synchronous step over resident nodes returns.
pub type Step<T> = std::result::Result<T, btree::Stop<StorageError>>;
