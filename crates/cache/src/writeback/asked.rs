//! Passes on request.
//!
//! The task of write-back asks for a pass when one is due. A write asks for which the pool has no
//! room left, as a pass may give some back. So does a task that waits for all of it: a detach, a
//! change of a mode. As with commits of the pool, all tasks that ask while a pass runs share the
//! next one. Its outcome tells each of them what a pass of its own would.
//!
//! If each task ran a pass of its own, the last of hundreds would wait for hundreds of passes.
//! Where the pool is gone all of them fail. Meanwhile these writes keep their room in the journal's
//! ring and the locks on their blocks, so that others wait for them as often again.

use base::Result;

use crate::Cache;

/// A flow waits for all of it: passes are not paced until this is dropped.
pub(crate) struct Urgent(Cache);

impl Drop for Urgent {
    fn drop(&mut self) {
        self.0.0.passes.borrow_mut().set_urgent(false);
    }
}

impl Cache {
    /// Passes are not paced from now on.
    pub(crate) fn urgent(&self) -> Urgent {
        self.0.passes.borrow_mut().set_urgent(true);
        self.0.wakes.pace.notify();
        Urgent(self.clone())
    }

    /// Publishes everything that is dirty now, as fast as the pool takes it.
    pub async fn publish_all(&self) -> Result<()> {
        let target = self.epoch();
        let _urgent = self.urgent();
        let mut outcome = Ok(());
        // A cut that is under way first; then what came after it.
        while outcome.is_ok() && self.state().index.published() < target {
            outcome = self.next_pass().await;
        }
        outcome
    }

    /// Waits for a pass that begins from now on, and returns how it ended. The first task in line
    /// runs it.
    pub(crate) async fn next_pass(&self) -> Result<()> {
        let begun = self.0.passes.borrow_mut().tries().begun();
        let _alone = self.0.pass_lock.acquire(1).await;
        let shared = self.0.passes.borrow_mut().tries().after(begun);
        match shared {
            Some(outcome) => outcome,
            None => self.run_pass().await,
        }
    }

    /// Runs a pass. The caller holds the lock of passes.
    pub(crate) async fn run_pass(&self) -> Result<()> {
        let number = self.0.passes.borrow_mut().tries().begin();
        let outcome = self.one_pass().await;
        if outcome.is_err() {
            // A cut may be left, which is to be carried first.
            self.0.wakes.pass.notify();
        }
        self.0.passes.borrow_mut().tries().end(number, outcome.clone());
        outcome
    }
}

#[cfg(test)]
#[path = "asked_tests.rs"]
mod tests;
