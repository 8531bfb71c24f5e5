//! Commits: the flow of one, its last two steps, the pages that it writes, and the task that runs
//! them.

mod committer;
mod frozen;
mod pages;
mod run;
mod superblocks;

pub(crate) use committer::Committer;
