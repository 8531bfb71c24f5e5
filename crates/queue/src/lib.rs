//! One device's queue: bounded in flight, plug and merge, short transfers finished, everything
//! counted by class.
//!
//! Requests that tasks submit before the executor settles are gathered (plug), sorted by offset,
//! and neighbours of one kind are merged up to the device's largest request. What exceeds the
//! device's depth waits here. Completed I/O wakes exactly the tasks that asked for it.
//!
//! Fault model: as the seam's. A transfer that is short is continued; one that stands still (0
//! bytes) is an EIO. A merged request that fails is split: each request in it is tried alone, so
//! that none fails because of its neighbour. Other errors are not retried: the caller that knows of
//! other copies decides, or asks for every block by itself ([`Device::read_blocks`]). A write that
//! was to be durable, and a flush, are never tried again here: a device says once that it has lost
//! something.

mod blocks;
mod device;
mod limits;
mod pieces;
mod share;
mod stats;
#[cfg(test)]
mod tests;

pub use blocks::Blocks;
pub use device::Device;
pub use limits::Limits;
pub use stats::{Class, ClassStats, DeviceStats, KindStats};
