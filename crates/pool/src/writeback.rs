//! Write-back: passes, which carry a cut of the cache into the pool, and the staging volumes of
//! older versions. The contract with the cache is in [`attached`](crate::attached).

mod for_cache;
mod lost_nodes;
mod pass;
mod read_ahead;
mod spill;
mod staging;

pub use pass::{HandedOver, Pass};
pub use read_ahead::PassPart;
