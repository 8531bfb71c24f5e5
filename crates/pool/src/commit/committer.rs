//! Runs commits, one at a time. Tasks that ask while a commit runs share the next one.

use base::{ErrorKind, Generation, Result, StorageError};
use rt::Reason;
use rt::sync::either;

use super::frozen::FrozenTxn;
use crate::pool::Pool;

/// The job that requests wait for.
const JOB: &str = "commit";

/// Runs the commits of a pool, one after another.
pub(crate) struct Committer {
    pool: Pool,
    /// A commit that failed and has to be tried again.
    failed: Option<FrozenTxn>,
}

impl Committer {
    pub fn new(pool: &Pool) -> Committer {
        Committer { pool: pool.clone(), failed: None }
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn take_failed(&mut self) -> Option<FrozenTxn> {
        self.pool.requests().set_retry(false);
        self.failed.take()
    }

    pub(super) fn keep_failed(&mut self, frozen: FrozenTxn) {
        self.pool.requests().set_retry(true);
        self.failed = Some(FrozenTxn { attempt: frozen.attempt.saturating_add(1), ..frozen });
    }

    /// Begins to run commits in the background: when one is asked for, and when something has been
    /// dirty for the interval.
    pub fn start(self) {
        let pool = self.pool.clone();
        let rt = pool.rt().clone();
        rt.detach_job(JOB, async move { self.serve().await });
        drop(rt.spawn(async move { pool.clock().await }));
    }

    async fn serve(mut self) {
        let pool = self.pool.clone();
        let requests = pool.requests();
        loop {
            let asked = requests.asked();
            if pool.is_closed() {
                return;
            }
            if !requests.take() {
                asked.await;
                continue;
            }
            if pool.has_nothing_to_commit() {
                requests.tell_ended();
                continue;
            }
            let alone = pool.commits().acquire(1).await;
            let outcome = self.run().await;
            drop(alone);
            if let Err(e) = outcome {
                if pool.permit().is_ok() {
                    tracing::error!("a commit failed, it is tried again with the next: {e}");
                }
                requests.note_failure(e);
            }
            requests.tell_ended();
        }
    }
}

impl Pool {
    /// Makes everything durable that had completed before the call. Calls at the same time share a
    /// commit.
    pub async fn commit(&self) -> Result<()> {
        let (target, failures) = {
            let st = self.state();
            st.standing.permit()?;
            let Some(target) = st.next_commit() else { return Ok(()) };
            (target, self.requests().failures())
        };
        loop {
            let ended = self.requests().ended();
            if self.committed() >= target {
                return Ok(());
            }
            self.permit()?;
            if let Some(e) = self.requests().error_since(failures) {
                return Err(e);
            }
            if self.is_closed() {
                return Err(StorageError::new(ErrorKind::Io, "the pool is closed"));
            }
            self.requests().ask();
            self.rt().waits_for_job(Reason::Commit, JOB, ended).await;
        }
    }

    /// While the permit is held no commit runs, and the tables in memory are what the last commit
    /// wrote.
    pub(crate) async fn between_commits(&self) -> Result<rt::sync::Permit> {
        // One that has failed is tried again first: memory has what it did not write.
        loop {
            let alone = self.commits().acquire(1).await;
            self.permit()?;
            if !self.requests().retry() {
                return Ok(alone);
            }
            drop(alone);
            self.commit().await?;
        }
    }

    /// The generation of the last durable commit.
    pub fn committed(&self) -> Generation {
        self.state().txns.committed()
    }

    /// Waits for the end of the next commit, well or not.
    pub fn commit_ended(&self) -> impl Future<Output = ()> + use<> {
        self.requests().ended()
    }

    /// Commits and ends the background tasks. The pool must not be used afterwards.
    pub async fn close(&self) -> Result<()> {
        let outcome = self.commit().await;
        self.set_closed();
        if outcome.is_ok() {
            self.state().host_log.end();
            if let Some(place) = self.host_place() {
                place.remove_others(self.uuid(), None);
            }
        }
        outcome
    }

    fn has_nothing_to_commit(&self) -> bool {
        self.state().txns.open().is_clean() && !self.requests().retry()
    }

    /// The task that asks for a commit when something has been dirty for the interval.
    async fn clock(self) {
        loop {
            let dirtied = self.requests().dirtied();
            if self.is_closed() {
                return;
            }
            if self.has_nothing_to_commit() {
                dirtied.await;
                continue;
            }
            self.sleep_an_interval().await;
            if self.permit().is_err() {
                return;
            }
            self.requests().ask();
            // The request is taken up before the next look.
            self.rt().settled().await;
        }
    }

    /// Sleeps for the commit interval; a change of the setting counts at once.
    async fn sleep_an_interval(&self) {
        let began = self.rt().now();
        loop {
            let was_set = self.was_set();
            let due = began.after(self.settings().commit_interval);
            if self.rt().now() >= due {
                return;
            }
            either(self.rt().sleep_until(due), was_set).await;
        }
    }
}
