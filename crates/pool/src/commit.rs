//! Commits: the flow of one, its last two steps, the pages that it writes, and the task that runs
//! them.

pub(crate) mod commits;
pub(crate) mod committer;
pub(crate) mod frozen;
pub(crate) mod pages;
pub(crate) mod run;
pub(crate) mod superblocks;

pub(crate) use committer::Committer;
