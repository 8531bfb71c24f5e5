//! Requests for commits. Tasks that ask while a commit runs share the next one.

use std::rc::Rc;

use base::{ErrorKind, Result, StorageError};
use rt::Reason;
use rt::sync::either;

use crate::core::Core;

/// The job that requests wait for.
pub(super) const JOB: &str = "commit";

/// Requests for commits, and waits for them.
pub(crate) struct Commits {
    core: Core,
}

impl Commits {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core) -> Rc<Commits> {
        Rc::new(Commits { core: core.clone() })
    }

    /// See [`crate::Pool::commit`].
    pub(crate) async fn commit(&self) -> Result<()> {
        let (target, failures) = {
            let st = self.core.state();
            st.standing.permit()?;
            let Some(target) = st.next_commit() else { return Ok(()) };
            (target, self.core.requests().failures())
        };
        loop {
            let ended = self.core.requests().ended();
            if self.core.committed() >= target {
                return Ok(());
            }
            self.core.permit()?;
            if let Some(e) = self.core.requests().error_since(failures) {
                return Err(e);
            }
            if self.core.is_closed() {
                return Err(StorageError::new(ErrorKind::Io, "the pool is closed"));
            }
            self.core.requests().ask();
            self.core.rt().waits_for_job(Reason::Commit, JOB, ended).await;
        }
    }

    /// While the permit is held no commit runs, and the tables in memory are what the last commit
    /// wrote.
    pub(crate) async fn between_commits(&self) -> Result<rt::sync::Permit> {
        // One that has failed is tried again first: memory has what it did not write.
        loop {
            let alone = self.core.commits().acquire(1).await;
            self.core.permit()?;
            if !self.core.requests().retry() {
                return Ok(alone);
            }
            drop(alone);
            self.commit().await?;
        }
    }

    /// See [`crate::Pool::close`].
    pub(crate) async fn close(&self) -> Result<()> {
        let outcome = self.commit().await;
        self.core.set_closed();
        if outcome.is_ok() {
            self.core.state().host_log.end();
            if let Some(place) = self.core.host_place() {
                place.remove_others(self.core.uuid(), None);
            }
        }
        outcome
    }

    pub(crate) fn has_nothing_to_commit(&self) -> bool {
        self.core.state().txns.open().is_clean() && !self.core.requests().retry()
    }

    /// The task that asks for a commit when something has been dirty for the interval.
    pub(crate) async fn clock(&self) {
        loop {
            let dirtied = self.core.requests().dirtied();
            if self.core.is_closed() {
                return;
            }
            if self.has_nothing_to_commit() {
                dirtied.await;
                continue;
            }
            self.sleep_an_interval().await;
            if self.core.permit().is_err() {
                return;
            }
            self.core.requests().ask();
            // The request is taken up before the next look.
            self.core.rt().settled().await;
        }
    }

    /// Sleeps for the commit interval; a change of the setting counts at once.
    async fn sleep_an_interval(&self) {
        let began = self.core.rt().now();
        loop {
            let was_set = self.core.was_set();
            let due = began.after(self.core.settings().commit_interval);
            if self.core.rt().now() >= due {
                return;
            }
            either(self.core.rt().sleep_until(due), was_set).await;
        }
    }

    /// Commits the direct transaction, whatever is in it. It counts as a change: a device that
    /// comes back in this open has one more superblock at most that names none of it
    /// (`was_never_complete` in `devices/split_brain.rs` counts on that).
    pub(crate) async fn commit_direct(&self) -> Result<()> {
        self.core.state_mut().need_superblock();
        self.commit().await
    }
}
