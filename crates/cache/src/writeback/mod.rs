//! Write-back: cuts, and the passes that carry them to the pool.

pub(crate) mod age;
pub(crate) mod all_kept;
pub(crate) mod asked;
mod cuts;
pub(crate) mod drain;
pub(crate) mod drain_gate;
mod into_pass;
pub(crate) mod kept;
pub(crate) mod kept_room;
mod margin;
pub(crate) mod pass;
mod pass_state;
mod run;
pub(crate) mod run_carrier;
pub(crate) mod staged;
pub(crate) mod state;
pub(crate) mod take_cut;
mod walk;
