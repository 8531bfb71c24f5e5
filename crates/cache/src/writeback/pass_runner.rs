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

use std::rc::Rc;

use base::{ErrorKind, Result, StorageError, counted};
use rt::Reason;
use rt::sync::Permit;

use super::state::UrgencyGuard;
use crate::core::Core;
use crate::job;
use crate::writeback::pass::Carrier;

/// Runs passes, when they are due and when a task asks for one.
pub(crate) struct PassRunner {
    pub(super) core: Core,
    pub(super) carrier: Rc<Carrier>,
}

impl PassRunner {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, carrier: &Rc<Carrier>) -> Rc<PassRunner> {
        Rc::new(PassRunner { core: core.clone(), carrier: carrier.clone() })
    }

    /// See [`crate::Cache::between_passes`].
    pub(crate) async fn between_passes(&self) -> Permit {
        let _urgent = self.urgent();
        self.core.writeback().lock().await
    }

    /// Passes are not paced until the guard is dropped.
    fn urgent(&self) -> UrgencyGuard<'_> {
        let urgent = self.core.writeback().urgent();
        self.core.wakes().pace.notify();
        urgent
    }

    /// See [`crate::Cache::publish_all`].
    pub(crate) async fn publish_all(&self) -> Result<()> {
        let target = self.core.epoch();
        let _urgent = self.urgent();
        let mut outcome = Ok(());
        // The first pass may carry an older cut: then the next one carries what came after it.
        while outcome.is_ok() && self.core.state().index.published() < target {
            outcome = self.next_pass().await;
        }
        outcome
    }

    /// The same for a request for which the pool has no room: that may give some back.
    pub(crate) async fn publish_for_room(&self) -> Result<()> {
        let publish = Box::pin(self.publish_all());
        self.core.rt().waits_for_job(Reason::Publish, job::WRITE_BACK, publish).await
    }

    /// See [`crate::Cache::write_all_back`].
    pub(crate) async fn write_all_back(&self) -> Result<()> {
        self.publish_all().await?;
        self.check_all_came()
    }

    /// An error if something is left in the cache that passes cannot carry.
    pub(crate) fn check_all_came(&self) -> Result<()> {
        self.core.levels().check_kept(None)?;
        match self.core.state().bad_blocks().blocks() {
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
    pub(super) async fn next_pass(&self) -> Result<()> {
        let begun = self.core.writeback().passes_mut().tries().begun();
        let _alone = self.core.writeback().lock().await;
        let shared = self.core.writeback().passes_mut().tries().ended_after(begun);
        match shared {
            Some(outcome) => outcome,
            None => self.run_pass().await,
        }
    }

    /// Runs a pass. The caller holds the lock of passes.
    pub(crate) async fn run_pass(&self) -> Result<()> {
        let number = self.core.writeback().passes_mut().tries().begin();
        // A pass is work of write-back, also in a task of a request: requests that wait for it say
        // so.
        let outcome = self.core.rt().as_job(job::WRITE_BACK, self.carrier.one_pass()).await;
        if outcome.is_err() {
            // The cut may be left: then it is carried first.
            self.core.wakes().pass.notify();
        }
        self.core.writeback().passes_mut().tries().end(number, outcome.clone());
        outcome
    }

    /// Carries all staged blocks to their volumes. To be called while the cache is opened, [between
    /// passes](PassRunner::between_passes).
    pub(crate) async fn carry_staged(&self) -> Result<()> {
        let blocks = self.core.pool().cache_link().staged_blocks();
        if blocks == 0 {
            return Ok(());
        }
        tracing::info!(
            cache = %self.core.path(), blocks,
            "what an older version has written past the cache is carried to the volumes, which are \
             served after that"
        );
        self.publish_staged(blocks).await.map_err(|e| {
            let text = format!(
                "{}: {} that an older version of Forebay has written past the cache cannot be \
                 carried to the volumes, which are not served before that: {e}",
                self.core.path(),
                counted(blocks, "block", "blocks")
            );
            // Nothing is lost by it: the cache is not to be given up.
            let kind = match e.kind {
                ErrorKind::NoSpace => ErrorKind::NoSpace,
                _ => ErrorKind::Unreachable,
            };
            StorageError::new(kind, text)
        })?;
        tracing::info!(cache = %self.core.path(), blocks, "carried");
        Ok(())
    }

    async fn publish_staged(&self, blocks: u64) -> Result<()> {
        let _urgent = self.urgent();
        let room = self.core.pool().reserve_beside_changes(blocks).await?;
        // The pass takes a cut of this epoch.
        self.core.writeback().passes_mut().cuts_mut().put_room(self.core.epoch(), room);
        self.run_pass().await
    }

    /// See [`crate::Cache::between_cuts`].
    pub(crate) async fn between_cuts(&self) -> Result<Permit> {
        let _urgent = self.urgent();
        let alone = self.between_passes().await;
        let _none = self.core.writeback().keep_cuts_away();
        let mut outcome = Ok(());
        while outcome.is_ok()
            && !self.core.has_failed()
            && self.core.writeback().passes().cuts().count() > 0
        {
            outcome = Box::pin(self.run_pass()).await;
        }
        outcome.map(|()| alone)
    }
}

#[cfg(test)]
#[path = "pass_runner_tests.rs"]
mod tests;
