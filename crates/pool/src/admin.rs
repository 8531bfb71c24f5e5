//! What operators ask of an open pool: volumes, and its state in numbers.

pub mod status;
pub(crate) mod volumes;
