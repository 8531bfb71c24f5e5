//! Write-back: cuts, and the passes that carry them to the pool.

mod age;
mod asked;
mod cuts;
pub(crate) mod kept;
mod pass;
mod pass_state;
mod rate;
mod run;
pub(crate) mod state;
mod take_cut;
mod walk;
