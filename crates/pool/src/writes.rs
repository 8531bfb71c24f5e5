//! The writes of one commit, side by side: nodes, bitmap pages and table pages need not wait for one another, only the flush for all of them.

use std::collections::VecDeque;

use rt::JoinHandle;

use crate::error::{PoolError, Result};

/// Requests of a commit that may be under way at once.
const AT_ONCE: usize = 64;

/// All writes of a commit have ended well: what comes next is the flush for them.
pub(crate) struct Written(());

/// Writes under way, and the first failure among those that ended.
pub(crate) struct Writes {
    tasks: VecDeque<JoinHandle<Result<()>>>,
    outcome: Result<()>,
}

impl Writes {
    pub fn new() -> Writes {
        Writes { tasks: VecDeque::new(), outcome: Ok(()) }
    }

    /// Adds a write; waits for an earlier one if there are too many.
    pub async fn add(&mut self, task: JoinHandle<Result<()>>) {
        if self.tasks.len() >= AT_ONCE
            && let Some(oldest) = self.tasks.pop_front()
        {
            let outcome = oldest.await;
            self.note(outcome);
        }
        self.tasks.push_back(task);
    }

    /// Waits for all of them; fails as the first that failed.
    pub async fn finish(mut self) -> Result<Written> {
        while let Some(task) = self.tasks.pop_front() {
            let outcome = task.await;
            self.note(outcome);
        }
        self.outcome.map(Written)
    }

    fn note(&mut self, outcome: Option<Result<()>>) {
        let outcome = outcome.unwrap_or_else(|| Err(PoolError::ended()));
        if self.outcome.is_ok() {
            self.outcome = outcome;
        }
    }
}
