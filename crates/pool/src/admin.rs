//! Operations of administrators on an open pool: its settings, and its state in numbers. Commands
//! for devices are in `moves.rs`.

mod set;
pub mod status;
