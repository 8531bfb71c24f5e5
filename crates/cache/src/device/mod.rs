//! What stands where on the cache device: superblocks and the bucket table.

pub(crate) mod slots;
pub(crate) mod table;
