//! What garbage collection did.

use std::time::Duration;

use base::{Histogram, Instant};

/// What its walks over the index did.
#[derive(Clone, Default)]
pub(crate) struct GcStats {
    pub passes: u64,
    pub total: Duration,
    pub longest: Duration,
    pub began_first: Option<Instant>,
    pub ended_last: Option<Instant>,
    pub slices: Histogram,
    pub dropped_keys: u64,
    /// Dead keys that the last pass met.
    pub dead_last: u64,
    /// Blocks that stale keys named which the last pass left.
    pub ghosts: u64,
    pub merged_nodes: u64,
    pub moved_nodes: u64,
    /// The fewest buckets that nodes had since the last pass.
    pub least_held: Option<u32>,
    pub moved_blocks: u64,
    /// Buckets whose counter was not what the keys say.
    pub miscounted: u64,
    /// Tasks that wait for a pass.
    pub awaited: u32,
}
