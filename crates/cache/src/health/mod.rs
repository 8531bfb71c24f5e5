//! What happens when the cache device fails.

mod fail;
mod failed_dirty;
mod look;
