//! What garbage collection did.

use base::Histogram;

use crate::policy::gc_pace::Runs;

/// What the passes of garbage collection over the index did.
#[derive(Clone, Default)]
pub(crate) struct GcStats {
    pub runs: Runs,
    pub slices: Histogram,
    pub dropped_keys: u64,
    /// Dead keys that the last pass met.
    pub dead_last: u64,
    /// Bytes of all keys and their values, as the last pass that came to its end found them.
    pub key_bytes: Option<u64>,
    /// Blocks named by the stale keys that the last pass left.
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
