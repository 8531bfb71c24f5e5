//! Write-back: cuts, and the passes that carry them to the pool.

pub(crate) mod age_warning;
pub(crate) mod all_kept;
mod cuts;
pub(crate) mod detach_drain;
pub(crate) mod drain_gate;
mod into_pass;
pub(crate) mod kept;
pub(crate) mod kept_room;
mod margin;
pub(crate) mod pass;
pub(crate) mod pass_runner;
mod pass_state;
mod pass_timer;
pub(crate) mod run_carrier;
pub(crate) mod staged;
pub(crate) mod state;
pub(crate) mod take_cut;
mod walk;
