//! Write-back: cuts, and the passes that carry them to the pool.

mod age;
pub(crate) mod all_kept;
mod asked;
mod cuts;
pub(crate) mod drain;
pub(crate) mod drain_gate;
mod kept;
mod kept_room;
mod margin;
mod pass;
mod pass_state;
mod rate;
mod run;
pub(crate) mod staged;
pub(crate) mod state;
mod take_cut;
mod walk;
