//! Write-back: cuts, and the passes that carry them to the pool.

mod age;
mod asked;
mod cuts;
mod pass;
mod passes;
mod take_cut;
mod walk;
pub(crate) mod write_back;
