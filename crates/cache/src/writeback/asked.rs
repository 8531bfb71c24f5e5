//! Passes on request.
//!
//! The task of write-back asks for a pass when one is due. A write asks for one when the pool has
//! no room left for it, as a pass may give some back. A detach or a change of a mode asks for
//! passes until everything is published. As with commits of the pool, all tasks that ask while a
//! pass runs share the next one, and get its outcome.
//!
//! If each task ran a pass of its own, the last of hundreds would wait for hundreds of passes. If
//! the pool does not take writes, all of these passes would fail, one after the other. Meanwhile
//! these writes would keep their room in the journal's ring and the locks on their blocks, and
//! others would wait for them.

use base::{ErrorKind, Result, StorageError, counted};
use rt::Reason;

use super::state::Urgent;
use crate::Cache;
use crate::job;

impl Cache {
    /// Passes are not paced until the guard is dropped.
    pub(crate) fn urgent(&self) -> Urgent<'_> {
        let urgent = self.writeback().urgent();
        self.wakes().pace.notify();
        urgent
    }

    /// Publishes everything that is dirty now, as fast as the pool takes it.
    pub async fn publish_all(&self) -> Result<()> {
        let target = self.epoch();
        let _urgent = self.urgent();
        let mut outcome = Ok(());
        // The first pass may carry an older cut: then the next one carries what came after it.
        while outcome.is_ok() && self.state().index.published() < target {
            outcome = self.next_pass().await;
        }
        outcome
    }

    /// The same for a request for which the pool has no room: that may give some back.
    pub(crate) async fn publish_for_room(&self) -> Result<()> {
        let publish = Box::pin(self.publish_all());
        self.rt().waits_for_job(Reason::Publish, job::WRITE_BACK, publish).await
    }

    /// The same for a user, who is told if blocks are lost: of these nothing came to the pool.
    pub async fn write_all_back(&self) -> Result<()> {
        self.publish_all().await?;
        self.check_all_came()
    }

    /// An error if something is left in the cache that passes cannot carry.
    pub(crate) fn check_all_came(&self) -> Result<()> {
        self.check_kept(None)?;
        match self.state().bad_blocks().blocks() {
            0 => Ok(()),
            bad => Err(StorageError::new(
                ErrorKind::Io,
                format!(
                    "{} LOST: damaged in the cache before it came to the pool, or written in part, \
                     and the pool cannot read the rest; forebay cache status names what is lost. \
                     Everything else that was written before is in the pool",
                    counted(bad, "block is", "blocks are")
                ),
            )),
        }
    }

    /// Waits for a pass that begins from now on, and returns how it ended. The first task in line
    /// runs it.
    pub(crate) async fn next_pass(&self) -> Result<()> {
        let begun = self.writeback().passes_mut().tries().begun();
        let _alone = self.writeback().lock().await;
        let shared = self.writeback().passes_mut().tries().after(begun);
        match shared {
            Some(outcome) => outcome,
            None => self.run_pass().await,
        }
    }

    /// Runs a pass. The caller holds the lock of passes.
    pub(crate) async fn run_pass(&self) -> Result<()> {
        let number = self.writeback().passes_mut().tries().begin();
        // A pass is work of write-back, also in a task of a request: requests that wait for it say
        // so.
        let outcome = self.rt().as_job(job::WRITE_BACK, self.one_pass()).await;
        if outcome.is_err() {
            // The cut may be left: then it is carried first.
            self.wakes().pass.notify();
        }
        self.writeback().passes_mut().tries().end(number, outcome.clone());
        outcome
    }
}

#[cfg(test)]
#[path = "asked_tests.rs"]
mod tests;
