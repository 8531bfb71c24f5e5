//! Operations of administrators on an open pool: volumes, its settings, and its state in numbers.

mod set;
pub mod status;
pub(crate) mod volumes;
