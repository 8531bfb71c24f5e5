//! Whether the pool may still be written to: one value, asked at the door of every step that writes
//! to a device, makes something durable or frees something.
//!
//! A device flush that fails has lost what it covered, and says so once: a later flush succeeds,
//! and what was written before the failed one is gone all the same. Data blocks cannot be written
//! again, no other place has them any more. So if such a device cannot be left out, nothing may be
//! named by a superblock from then on, for good. Reads go on. The next start has what the last
//! superblock names, and all of that was flushed before the failure.
//!
//! A caller that writes shows a [`Permit`], and only the door hands one out. What a commit has
//! reached is shown by values too, each made by one step alone: `CommitWritten`, `DevicesFlushed`
//! and `Durable`.
//!
//! The door is closed until the pool is [opened](crate::ReadyPool::open). So nothing that only
//! looks at the pool can write to it, not even to heal a bad copy.

use base::{ErrorKind, Result, StorageError};

use crate::host_log::HostLog;

/// Closed, then good, until it has ended; it never becomes good again.
pub(crate) enum Standing {
    /// The pool is not open yet.
    Closed,
    /// The pool may be written to.
    Good,
    /// Nothing is written any more, for this reason.
    Ended(StorageError),
}

/// The pool was in good standing when this was asked for. It is asked for right before a step, and
/// not kept for another one.
#[derive(Clone, Copy)]
pub(crate) struct Permit(());

impl Standing {
    /// Opens the door for the first time.
    pub fn open(&mut self) {
        if matches!(self, Standing::Closed) {
            *self = Standing::Good;
        }
    }

    /// The door.
    pub fn permit(&self) -> Result<Permit> {
        match self {
            Standing::Closed => {
                Err(StorageError::new(ErrorKind::Invalid, "the pool is not open yet"))
            }
            Standing::Good => Ok(Permit(())),
            Standing::Ended(why) => Err(why.clone()),
        }
    }

    /// Nothing is written any more. The first reason is the one that is told from now on. The host
    /// log becomes void: a device may have forgotten what the log has.
    pub fn end(&mut self, log: &HostLog, why: StorageError) -> StorageError {
        if let Standing::Ended(first) = self {
            return first.clone();
        }
        log.void(&format!("the pool takes no more writes: {why}"));
        tracing::error!("the pool takes no more writes, reads go on: {why}");
        *self = Standing::Ended(why.clone());
        why
    }

    /// Why it has ended, if it has.
    pub fn ended(&self) -> Option<&StorageError> {
        if let Standing::Ended(why) = self { Some(why) } else { None }
    }
}

impl Permit {
    /// For the flush of a device before an open reads it: that changes nothing of what it holds.
    pub fn to_flush_before_reading() -> Permit {
        Permit(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_once_and_for_good() {
        let (mut standing, log) = (Standing::Closed, HostLog::default());
        assert!(standing.permit().is_err() && standing.ended().is_none());
        standing.open();
        assert!(standing.permit().is_ok() && standing.ended().is_none());
        let why = |text| StorageError::new(ErrorKind::Io, text);
        assert_eq!(standing.end(&log, why("first")).context, "first");
        assert_eq!(standing.end(&log, why("second")).context, "first");
        standing.open();
        assert_eq!(standing.permit().err().map(|e| e.context).as_deref(), Some("first"));
    }
}
