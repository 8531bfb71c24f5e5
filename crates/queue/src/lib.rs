//! One device's queue: bounded in flight, plug and merge, one scheduler for all classes, short
//! transfers finished, everything counted by class.
//!
//! Requests that tasks submit before the executor settles are gathered (plug), sorted by offset,
//! and neighbours of one kind are merged up to the device's largest request; what is larger is
//! split. What exceeds the device's depth waits here. Which of it goes next is decided by the
//! scheduler, a state machine without I/O: by class (`share.rs`, `feedback.rs`), by tags
//! (`tags.rs`), and on rotating devices by place (`elevator.rs`). A task is woken once, when all of
//! its request has ended.
//!
//! Fault model: as the seam's. A transfer that is short is continued; one that stands still (0
//! bytes) is an EIO. A merged request that fails is split: each request in it is tried alone, so
//! that none fails because of its neighbour. Other errors are not retried: the caller that knows of
//! other copies decides, or asks for every block by itself ([`Device::read_blocks`]). A write that
//! was to be durable, and a flush, are never tried again here: a device says once that it has lost
//! something.

mod blocks;
mod device;
mod elevator;
mod feedback;
mod given_up;
mod limits;
mod line;
mod request;
mod scheduler;
mod share;
mod stats;
mod tags;
#[cfg(test)]
#[path = "lib_tests.rs"]
mod tests;
mod transfer;
mod work;
mod write_gate;

pub use blocks::Blocks;
pub use device::Device;
pub use limits::{Limits, Targets};
pub use request::{MergedRequest, Request};
pub use scheduler::{Scheduler, Ticket};
pub use share::ScrubReads;
pub use stats::{Class, ClassStats, DeviceStats, KindStats};
