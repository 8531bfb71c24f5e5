//! Decides whether waiting for room can succeed.

use base::{ErrorKind, Result, StorageError};
use rt::Reason;

use crate::job;
use crate::policy::writer_delay::{PASSES, PATIENCE};
use crate::space::request_room::Room;
use crate::space::writer_line::WaitStart;

impl Room {
    /// Ends the use of the cache device, and fails, if a task has waited for buckets for too long
    /// and there is nothing that a pass or an eviction could free.
    pub(super) async fn check_worn(&self, waiting: WaitStart) -> Result<()> {
        if self.core.rt().now().since(waiting.since) <= PATIENCE {
            return Ok(());
        }
        // Garbage collection may free nodes with the dead keys that it drops, and a clean bucket
        // that cannot be evicted now may be later. These get more time.
        let more_time = self.core.rt().now().since(waiting.since) <= 10 * PATIENCE;
        if !self.is_worn(more_time) {
            return Ok(());
        }
        // Nothing is dirty: a pass has the pool record that it has everything.
        let published = self.core.writeback().ask_to_publish().ok_or_else(StorageError::ended)?;
        self.core.wakes().pass.notify();
        let published = self.core.rt().waits_for_job(Reason::Publish, job::WRITE_BACK, published);
        published.await.unwrap_or_else(|| Err(StorageError::ended()))?;
        if !self.is_worn(more_time) {
            return Ok(());
        }
        let census = self.core.state().buckets.census();
        let what = format!(
            "no bucket can be written to any more: {} of {} had errors and are not used, {} hold \
             the index; replace the device, or attach a larger one",
            census.retired,
            self.core.state().buckets.geometry().count(),
            census.metadata
        );
        let e = StorageError::new(ErrorKind::Io, what);
        self.failures.fail(&e);
        Err(e)
    }

    fn is_worn(&self, more_time: bool) -> bool {
        let (st, census) = (self.core.state(), self.core.state().buckets.census());
        let dirty = st.buckets.counts().unpublished_blocks() != (0, 0)
            || st.buckets.counts().zeros() != (0, 0);
        let may_come = st.buckets.counts().garbage() > 0 || census.clean > 0;
        !dirty && st.buckets.reuse().pending() == 0 && !(more_time && may_come)
    }

    /// Fails if a longer wait is of no use: write-back has failed for too long, or several passes
    /// have freed nothing.
    pub(crate) fn check_hopeful(&self, waiting: WaitStart) -> Result<()> {
        self.core.levels().check_carried()?;
        if self.core.levels().passes() > waiting.passes + PASSES {
            Err(self.hopeless())
        } else {
            Ok(())
        }
    }

    /// Why there will be no room.
    pub(crate) fn hopeless(&self) -> StorageError {
        let why = self
            .failures
            .check_failed()
            .and_then(|()| self.core.check_open())
            .and_then(|()| self.core.levels().check_carried());
        let full = |e: StorageError| StorageError::new(e.kind, format!("the cache is full: {e}"));
        let why = why.and_then(|()| self.core.levels().check_kept(None).map_err(full));
        why.err().unwrap_or_else(|| {
            let what = "the cache is full of blocks that are bad in it and cannot be written \
                        back: see bad_blocks in forebay status";
            StorageError::new(ErrorKind::Io, what)
        })
    }
}
