//! The state of a cache in memory: the index, the journal, and what goes with them.

pub(crate) mod audit;
pub(crate) mod bad_blocks;
pub(crate) mod buckets;
pub(crate) mod dirty_volumes;
pub(crate) mod frozen;
pub(crate) mod hit_ratio;
pub(crate) mod host_entries;
pub(crate) mod index;
pub(crate) mod index_walk;
pub(crate) mod journal;
pub(crate) mod key;
pub(crate) mod limbo;
pub(crate) mod load;
pub(crate) mod node_copies;
pub(crate) mod promotions;
pub(crate) mod restored;
pub(crate) mod ring_read;
pub(crate) mod ring_room;
pub(crate) mod scrubbed;
pub(crate) mod state;
pub(crate) mod taken;
