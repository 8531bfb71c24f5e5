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

use base::Result;

use crate::Cache;

/// A flow waits until everything is published: passes are not paced until this is dropped.
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
        // The first pass may carry an older cut: then the next one carries what came after it.
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
            // The cut may be left: then it is carried first.
            self.0.wakes.pass.notify();
        }
        self.0.passes.borrow_mut().tries().end(number, outcome.clone());
        outcome
    }
}

#[cfg(test)]
#[path = "asked_tests.rs"]
mod tests;
