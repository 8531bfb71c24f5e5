//! I/O errors, as errno values of Linux.

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

    /// True for ENOSPC and EDQUOT: the space is used up. Nothing is broken, and space may become
    /// free.
    pub fn is_no_space(self) -> bool {
        self.0 == 28 || self.0 == 122
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
