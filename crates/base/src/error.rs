//! Errors. [`IoError`] is what the world returns, an errno of Linux. [`StorageError`] is what the
//! layers above return: a kind for control flow, a text for people.

use std::fmt;

/// An I/O error: an errno of Linux. Code decides by the predicates; people read the text.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IoError(pub i32);

impl IoError {
    /// EIO: the device failed the operation.
    pub const IO: IoError = IoError(5);
    /// ENXIO: there is no such device, or it is gone.
    pub const GONE: IoError = IoError(6);
    /// EAGAIN: the operation would block; try again later.
    pub const AGAIN: IoError = IoError(11);
    /// ENODEV: there is no such device.
    pub const NO_DEVICE: IoError = IoError(19);
    /// EINVAL: the operation or an argument is invalid.
    pub const INVALID: IoError = IoError(22);
    /// ENOSPC: no space on the device.
    pub const NO_SPACE: IoError = IoError(28);
    /// EOPNOTSUPP: the device does not support the operation.
    pub const UNSUPPORTED: IoError = IoError(95);
    /// ECONNRESET: the peer reset the connection.
    pub const RESET: IoError = IoError(104);
    /// ECANCELED: the operation was cancelled before it was done.
    pub const CANCELED: IoError = IoError(125);

    /// True for ENOSPC, EDQUOT and EFBIG: the space is used up, or a limit of the process is in the
    /// way. Nothing is broken, and space may become free.
    pub fn is_no_space(self) -> bool {
        [27, 28, 122].contains(&self.0)
    }

    /// True if trying again is useless: the device does not exist, or the operation was cancelled.
    pub fn is_gone(self) -> bool {
        [IoError::GONE, IoError::NO_DEVICE, IoError::CANCELED].contains(&self)
    }
}

impl fmt::Debug for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {} ({self})", self.0)
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for IoError {}

impl From<std::io::Error> for IoError {
    /// An error without an errno becomes EIO.
    fn from(e: std::io::Error) -> Self {
        IoError(e.raw_os_error().unwrap_or(5))
    }
}

/// The kind of an error, as far as callers tell it apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// No good copy could be read, or no copy could be written.
    Io,
    /// The pool, or the file system under its devices, is full.
    NoSpace,
    /// A limit of the pool's format is reached.
    Limit,
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
    /// Devices are missing, so many that blocks have no copy left.
    Missing,
    /// The records that say where a volume's blocks are cannot be read. Other volumes are not
    /// concerned.
    Unreachable,
    /// The work was asked for, and then cancelled before anything was changed.
    GivenUp,
    /// The request would take data away, and does not say that it may.
    Loses,
}

/// An error of the pool, a cache or a volume.
#[derive(Clone, Debug)]
pub struct StorageError {
    /// For control flow.
    pub kind: ErrorKind,
    /// Text that says what went wrong, where, and what to do.
    pub context: String,
}

/// The result of the functions of the storage layers.
pub type Result<T> = std::result::Result<T, StorageError>;

impl StorageError {
    /// An error of `kind` that reads `context`.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> StorageError {
        StorageError { kind, context: context.into() }
    }

    /// For what a task would have told, had the runtime not ended under it.
    pub fn ended() -> StorageError {
        StorageError::new(ErrorKind::Io, "the runtime has ended")
    }

    /// The kind by `e`; the text says what was done, and `e`.
    pub fn from_io(e: IoError, context: impl fmt::Display) -> StorageError {
        let kind = if e.is_no_space() { ErrorKind::NoSpace } else { ErrorKind::Io };
        StorageError::new(kind, format!("{context}: {e}"))
    }
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)
    }
}

impl std::error::Error for StorageError {}
