//! The pool's counters of its commits.

use base::{Duration, Histogram};

/// Counters of commits since the pool was opened.
#[derive(Clone, Default)]
pub struct CommitMetrics {
    count: u64,
    failed: u64,
    critical_section: Histogram,
    duration: Histogram,
    group_updates: (u64, u64),
    nodes: u64,
}

impl CommitMetrics {
    /// A commit became durable, so long after its freeze.
    pub fn note_committed(&mut self, took: Duration) {
        self.count += 1;
        self.duration.record(took);
    }

    /// A commit failed. It will be tried again.
    pub fn note_failed(&mut self) {
        self.failed += 1;
    }

    /// Records the time that a freeze took.
    pub fn note_frozen(&mut self, took: Duration) {
        self.critical_section.record(took);
    }

    /// Pages and records of block groups that a commit touched: those that it had to write, and
    /// those that said the same as before.
    pub fn note_group_updates(&mut self, written: u64, skipped: u64) {
        self.group_updates.0 += written;
        self.group_updates.1 += skipped;
    }

    /// Counts `nodes` nodes that are written.
    pub fn note_nodes(&mut self, nodes: u64) {
        self.nodes += nodes;
    }

    /// Commits that became durable.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Commits that failed and were or will be tried again.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// The freeze: what foreground changes wait for.
    pub fn critical_section(&self) -> &Histogram {
        &self.critical_section
    }

    /// From the freeze to the last superblock.
    pub fn duration(&self) -> &Histogram {
        &self.duration
    }

    /// Pages and records of block groups that were written, and that were not.
    pub fn group_updates(&self) -> (u64, u64) {
        self.group_updates
    }

    /// Nodes written.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }
}
