//! The cache device: what stands where, superblocks and the bucket table, and whether what was
//! written is durable.

pub(crate) mod cache_device;
pub(crate) mod file;
pub(crate) mod flush_barrier;
pub(crate) mod layout;
pub(crate) mod slots;
pub(crate) mod superblock_origin;
pub(crate) mod table;
