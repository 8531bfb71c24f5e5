//! One device's queue: bounded in flight, plug and merge, short transfers finished, everything counted by class.
//!
//! Requests that tasks submit before the executor settles are gathered (plug), sorted by offset, and neighbours of one kind are merged
//! up to the device's largest request. What exceeds the device's depth waits here. Completed I/O wakes exactly the tasks that
//! asked for it.
//!
//! Fault model: as the seam's. A transfer that is short is continued; one that stands still (0 bytes) is an EIO. Nothing is retried
//! here after an error: whoever knows of other copies decides.

mod device;
pub mod emulate;
mod stats;
#[cfg(test)]
mod tests;

pub use device::{Device, Limits};
pub use emulate::Emulate;
pub use stats::{Class, ClassStats, DeviceStats, KindStats};
