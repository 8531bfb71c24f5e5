//! Operations of administrators on an open pool: its settings, and its state in numbers.

mod set;
pub mod status;
