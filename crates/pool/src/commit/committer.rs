//! Runs commits, one at a time. Tasks that ask while a commit runs share the next one.

use std::rc::Rc;

use base::Result;

use super::commit_requests::JOB;
use super::frozen::FrozenTxn;
use crate::commit::commit_flow::CommitRun;

/// Runs the commits of a pool, one after another.
pub(crate) struct Committer {
    run: Rc<CommitRun>,
    /// A commit that failed and has to be tried again.
    failed: Option<FrozenTxn>,
}

impl Committer {
    pub fn new(run: &Rc<CommitRun>) -> Committer {
        Committer { run: run.clone(), failed: None }
    }

    fn take_failed(&mut self) -> Option<FrozenTxn> {
        self.run.core.requests().set_retry(false);
        self.failed.take()
    }

    fn keep_failed(&mut self, frozen: FrozenTxn) {
        self.run.core.requests().set_retry(true);
        self.failed = Some(FrozenTxn { attempt: frozen.attempt.saturating_add(1), ..frozen });
    }

    /// Begins to run commits in the background: when one is asked for, and when something has been
    /// dirty for the interval.
    pub fn start(self) {
        let (rt, commits) = (self.run.core.rt().clone(), self.run.commits.clone());
        rt.detach_job(JOB, async move { self.serve().await });
        drop(rt.spawn(async move { commits.clock().await }));
    }

    async fn serve(mut self) {
        let run = self.run.clone();
        let requests = run.core.requests();
        loop {
            let asked = requests.asked();
            if self.run.core.is_closed() {
                return;
            }
            if !requests.take() {
                asked.await;
                continue;
            }
            if self.run.commits.has_nothing_to_commit() {
                requests.tell_ended();
                continue;
            }
            let alone = self.run.core.commits().acquire(1).await;
            let outcome = self.run().await;
            drop(alone);
            if let Err(e) = outcome {
                if self.run.core.permit().is_ok() {
                    tracing::error!("a commit failed, it is tried again with the next: {e}");
                }
                requests.note_failure(e);
            }
            requests.tell_ended();
        }
    }

    /// Runs one commit, or the rest of one that failed.
    pub async fn run(&mut self) -> Result<()> {
        let flow = self.run.clone();
        let permit = flow.core.permit()?;
        let started = flow.core.rt().now();
        let mut frozen = match self.take_failed() {
            Some(frozen) => frozen,
            None => flow.freeze(permit),
        };
        match flow.write_frozen(&mut frozen).await {
            Ok(durable) => {
                let trees = flow.complete(durable, frozen).await;
                let took = flow.core.rt().now().since(started);
                flow.core.metrics_mut().note_committed(took);
                flow.core.requests().tell_ended();
                flow.core.take_apart(trees).await;
                flow.tidy_up().await;
                Ok(())
            }
            Err(e) => {
                flow.core.metrics_mut().note_failed();
                self.keep_failed(frozen);
                flow.core.state_mut().give_up_creations();
                // The clock tries it again.
                flow.core.requests().tell_dirtied();
                Err(e)
            }
        }
    }
}
