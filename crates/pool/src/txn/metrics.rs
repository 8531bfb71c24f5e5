//! What the pool counts about its commits.

use base::Histogram;

/// Counters of commits since the pool was opened.
#[derive(Clone, Default)]
pub struct CommitMetrics {
    /// Commits that became durable.
    pub count: u64,
    /// Commits that failed and were or will be tried again.
    pub failed: u64,
    /// The freeze: what foreground changes wait for.
    pub critical_section: Histogram,
    /// From the freeze to the last superblock.
    pub duration: Histogram,
    /// Pages and records of block groups that a commit touched and had to write.
    pub group_updates_written: u64,
    /// Those that said the same as before, and were not written.
    pub group_updates_skipped: u64,
    /// Nodes written.
    pub nodes: u64,
}
