//! Decisions: plain functions on plain data. Time is passed in; nothing here waits or does I/O.

pub(crate) mod doorkeeper;
pub mod gc_pace;
pub mod rate_controller;
pub mod replacement;
pub(crate) mod streams;
pub(crate) mod which_cut;
pub mod writer_delay;
