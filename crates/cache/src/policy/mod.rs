//! Decisions: plain functions on plain data. Time is passed in; nothing here waits or does I/O.

pub mod controller;
pub mod replacement;
pub(crate) mod streams;
pub mod throttle;
