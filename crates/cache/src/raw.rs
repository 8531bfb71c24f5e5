//! Readers of a cache device, for the tools that verify and show a cache offline.
//!
//! An open uses the same readers: those of the layout, of slots, of the journal's ring, of keys,
//! and the replay of the journal over a checkpoint in memory. None of them writes.

pub use crate::device::layout::{Layout, Ring, layout_of};
pub use crate::device::slots::{Slot, newer_may_be_lost};
pub use crate::device::table::{
    FoundPage, PageSlots, buckets_of, choose_slot, open_slot, read_slots,
};
pub use crate::lifecycle::replay::{
    Checkpoint, ReplayOutcome, Replayer, counted_above, dirty_now, record_now, replay_from,
};
pub use crate::lifecycle::staged::{CommittedBlocks, PoolImage, StagedBlock};
pub use crate::store::index::node_addr;
pub use crate::store::journal::{Identity, Place};
pub use crate::store::key::{Body, Crcs, IndexKey};
pub use crate::store::load::read_node;
pub use crate::store::ring_read::{EntryCopy, FoundEntries, read_copy, read_journal};
