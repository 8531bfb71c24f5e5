//! Errors: a kind for control flow, a text for people.

use std::fmt;

use base::IoError;

/// What went wrong, as far as callers tell it apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// No good copy could be read, or no copy could be written.
    Io,
    /// The pool, or the file system under its devices, is full.
    NoSpace,
    /// There is no such volume.
    NotFound,
    /// A volume of that name is there already.
    Exists,
    /// The request makes no sense.
    Invalid,
    /// A device that is no device of this pool, or of any.
    Foreign,
    /// A device that the pool went on without.
    Stale,
    /// Two parts of the pool were each written without the other.
    SplitBrain,
    /// Written by a newer Forebay.
    Newer,
    /// A structure of the pool is damaged in all copies.
    Damaged,
    /// So many devices are missing that blocks have no copy left.
    Missing,
}

/// An error of the pool.
#[derive(Clone, Debug)]
pub struct PoolError {
    /// For control flow.
    pub kind: ErrorKind,
    /// What, where and what to do.
    pub context: String,
}

/// What the pool's functions return.
pub type Result<T> = std::result::Result<T, PoolError>;

/// What a synchronous step over resident nodes returns.
pub type Step<T> = std::result::Result<T, btree::Stop<PoolError>>;

impl From<PoolError> for btree::Stop<PoolError> {
    fn from(e: PoolError) -> btree::Stop<PoolError> {
        btree::Stop::Error(e)
    }
}

impl PoolError {
    /// An error of `kind` that reads `context`.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> PoolError {
        PoolError { kind, context: context.into() }
    }

    /// For what a task would have told, had the runtime not ended under it.
    pub fn ended() -> PoolError {
        PoolError::new(ErrorKind::Io, "the runtime has ended")
    }

    pub(crate) fn from_io(e: IoError, context: impl fmt::Display) -> PoolError {
        let kind = if e.is_no_space() { ErrorKind::NoSpace } else { ErrorKind::Io };
        PoolError::new(kind, format!("{context}: {e}"))
    }
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)
    }
}

impl std::error::Error for PoolError {}
