//! Commits: the flow of one, its last two steps, the pages that it writes, and the task that runs
//! them.

pub(crate) mod commit_flow;
pub(crate) mod commit_requests;
pub(crate) mod committer;
pub(crate) mod deadlists;
pub(crate) mod frozen;
pub(crate) mod pages;
pub(crate) mod superblocks;
pub(crate) mod take_snapshots;

pub(crate) use committer::Committer;
