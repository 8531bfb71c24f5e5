//! Requests of clients: one file for each kind. Addresses are blocks of a volume. Write-back passes
//! wait for room and take blocks here too (`wait_for_room.rs`).

mod plan;
pub(crate) mod read;
pub(crate) mod read_ahead;
pub(crate) mod taken_runs;
pub(crate) mod wait_for_room;
pub(crate) mod write;

use base::{BLOCK_U64, Lba};

pub use read::Blocks;

/// Blocks that are read, written or mapped in one step.
const STEP_BLOCKS: u64 = 256;
/// No volume has a block at or behind this.
pub(crate) const END_OF_SPACE: Lba = Lba(format::MAX_VOLUME_BYTES / BLOCK_U64);
