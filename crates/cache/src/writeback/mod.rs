//! Write-back: cuts, and the passes that carry them to the pool.

mod age;
mod asked;
pub(crate) mod cuts;
mod pass;
pub(crate) mod passes;
mod take_cut;
mod walk;
