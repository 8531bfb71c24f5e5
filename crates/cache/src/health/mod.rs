//! What happens when the cache device fails.

mod durable;
mod failover;
