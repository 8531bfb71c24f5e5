//! Checkpoints: the index and the bucket table are made durable.

#[allow(clippy::module_inception, reason = "the flow itself")]
pub(crate) mod checkpoint;
pub(crate) mod state;
pub(crate) mod table_slots;
