//! What a device or socket can answer, as the number the operating system gave it.

use std::fmt;

/// An I/O error: an errno of Linux. Control flow asks its predicates, people read its text.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IoError(pub i32);

impl IoError {
    /// EIO: the device could not do it.
    pub const IO: IoError = IoError(5);
    /// ENXIO: there is no such device (any more).
    pub const GONE: IoError = IoError(6);
    /// EAGAIN: nothing now, try again.
    pub const AGAIN: IoError = IoError(11);
    /// ENODEV.
    pub const NO_DEVICE: IoError = IoError(19);
    /// EINVAL.
    pub const INVALID: IoError = IoError(22);
    /// ENOSPC: no space on the device.
    pub const NO_SPACE: IoError = IoError(28);
    /// EOPNOTSUPP.
    pub const UNSUPPORTED: IoError = IoError(95);
    /// ECONNRESET.
    pub const RESET: IoError = IoError(104);
    /// ECANCELED: the operation was cancelled before it was done.
    pub const CANCELED: IoError = IoError(125);

    /// Out of space (ENOSPC or EDQUOT): nothing is broken, space may come back.
    pub fn is_no_space(self) -> bool {
        self.0 == 28 || self.0 == 122
    }

    /// There is no such device, or nobody waits any more: trying again is of no use.
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
    /// An error without a number of the operating system becomes EIO.
    fn from(e: std::io::Error) -> Self {
        IoError(e.raw_os_error().unwrap_or(5))
    }
}
