//! The writes of one commit, side by side: nodes, bitmap pages and table pages need not wait for
//! one another, only the flush waits for all of them.

use std::collections::VecDeque;

use rt::JoinHandle;

use base::{Result, StorageError};

/// Requests of a commit that may be under way at once.
const AT_ONCE: usize = 64;
/// And of a write-back pass, for which nothing waits.
const AT_ONCE_IN_PASS: usize = 1;

/// All writes of a commit have ended well: the flush for them comes next.
pub(crate) struct CommitWritten(());

/// Writes under way, and the first failure among those that ended.
pub(crate) struct Writes {
    tasks: VecDeque<JoinHandle<Result<()>>>,
    at_once: usize,
    outcome: Result<()>,
}

impl Writes {
    /// Of a commit.
    pub fn new() -> Writes {
        Writes { tasks: VecDeque::new(), at_once: AT_ONCE, outcome: Ok(()) }
    }

    /// Of a write-back pass.
    pub fn of_pass() -> Writes {
        Writes { at_once: AT_ONCE_IN_PASS, ..Writes::new() }
    }

    /// Adds a write; waits for an earlier one if there are too many.
    pub async fn add(&mut self, task: JoinHandle<Result<()>>) {
        if self.tasks.len() >= self.at_once
            && let Some(oldest) = self.tasks.pop_front()
        {
            let outcome = oldest.await;
            self.note(outcome);
        }
        self.tasks.push_back(task);
    }

    /// Waits for all of them; fails as the first that failed.
    pub async fn finish(mut self) -> Result<CommitWritten> {
        while let Some(task) = self.tasks.pop_front() {
            let outcome = task.await;
            self.note(outcome);
        }
        self.outcome.map(CommitWritten)
    }

    fn note(&mut self, outcome: Option<Result<()>>) {
        let outcome = outcome.unwrap_or_else(|| Err(StorageError::ended()));
        if self.outcome.is_ok() {
            self.outcome = outcome;
        }
    }
}
