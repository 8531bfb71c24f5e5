//! Commits: the flow of one, its last two steps, the pages that it writes, and the task that runs
//! them.

mod frozen;
mod pages;
mod run;
mod superblocks;
mod task;

pub(crate) use task::Committer;
