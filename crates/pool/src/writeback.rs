//! Write-back: passes, which carry a cut of the cache into the pool, and the staging volumes of
//! older versions. The contract with the cache is in [`attached`](crate::attached).

pub(crate) mod cache_link;
pub(crate) mod lost_nodes;
pub(crate) mod old_staging_volumes;
pub(crate) mod pass;
pub(crate) mod read_ahead;
pub(crate) mod spill;

pub use pass::{HandedOverPass, Pass};
pub use read_ahead::PassPart;
