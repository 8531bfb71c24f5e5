//! Failures of the cache device, and the steps that follow them.

mod fail;
mod failed_dirty;
mod look;
