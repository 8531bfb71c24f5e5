//! Write-back: passes, which carry a cut of the cache into the pool, and the staging volumes of
//! older versions. The contract with the cache is in [`attached`](crate::attached).

pub(crate) mod for_cache;
pub(crate) mod lost_nodes;
pub(crate) mod pass;
pub(crate) mod read_ahead;
pub(crate) mod spill;
pub(crate) mod staging;

pub use pass::{HandedOverPass, Pass};
pub use read_ahead::PassPart;
