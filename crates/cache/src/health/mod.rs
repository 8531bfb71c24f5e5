//! What happens when the cache device fails.

pub(crate) mod durable;
mod failover;
