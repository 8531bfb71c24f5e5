//! What stands where on the cache device: superblocks and the bucket table.

pub(crate) mod file;
pub(crate) mod health;
pub(crate) mod layout;
pub(crate) mod slots;
pub(crate) mod table;
