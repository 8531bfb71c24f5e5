//! Why blocks could not be read.

use base::{ErrorKind, PoolAddr, StorageError};

use super::write_copies::no_copy;

/// Why blocks could not be read.
pub(crate) enum ReadFailure {
    /// Of so many copies of this block that could be tried none is good.
    Bad(PoolAddr, usize),
    /// Every device that holds a copy of this block is missing.
    Away(PoolAddr),
}

impl From<ReadFailure> for StorageError {
    fn from(why: ReadFailure) -> StorageError {
        match why {
            ReadFailure::Away(addr) => no_copy(addr),
            ReadFailure::Bad(addr, tried) => StorageError::new(
                ErrorKind::Io,
                format!("block {addr} of the pool: no good copy ({tried} tried)"),
            ),
        }
    }
}
