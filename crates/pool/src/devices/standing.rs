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
//! reached is shown by values too, each made by one step alone: `Written`, `Flushed` and `Durable`.

use base::{Result, StorageError};

/// Good, until it has ended; it never becomes good again.
pub(crate) struct Standing {
    ended: Option<StorageError>,
}

/// The pool was in good standing when this was asked for. It is asked for right before a step, and
/// not kept for another one.
#[derive(Clone, Copy)]
pub(crate) struct Permit(());

impl Standing {
    /// As of a pool that is being opened.
    pub fn good() -> Standing {
        Standing { ended: None }
    }

    /// The door.
    pub fn permit(&self) -> Result<Permit> {
        match &self.ended {
            Some(why) => Err(why.clone()),
            None => Ok(Permit(())),
        }
    }

    /// Nothing is written any more. The first reason is the one that is told from now on.
    pub fn end(&mut self, why: StorageError) -> StorageError {
        if self.ended.is_none() {
            tracing::error!("the pool takes no more writes, reads go on: {why}");
        }
        self.ended.get_or_insert(why).clone()
    }

    /// Why it has ended, if it has.
    pub fn ended(&self) -> Option<&StorageError> {
        self.ended.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ErrorKind;

    #[test]
    fn it_ends_once_and_for_good() {
        let mut standing = Standing::good();
        assert!(standing.permit().is_ok() && standing.ended().is_none());
        let why = |text| StorageError::new(ErrorKind::Io, text);
        assert_eq!(standing.end(why("first")).context, "first");
        assert_eq!(standing.end(why("second")).context, "first");
        assert_eq!(standing.permit().err().map(|e| e.context).as_deref(), Some("first"));
    }
}
