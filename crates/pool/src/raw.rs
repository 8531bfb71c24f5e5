//! Readers of a pool's devices, for the tools that verify and show a pool offline.
//!
//! The readers are those that an open begins with: where things are, superblock slots, and which
//! devices belong together. Nothing that can be reached from here writes: of a device's queue only
//! reads are public.

pub use crate::devices::slots::{Copy, Slots};
pub use crate::devices::split_brain::is_up_to_date;
pub use crate::devices::{Disk, PoolDevice};
pub use crate::open::{Candidate, doubt, judge, newest, newest_superblock, without_blank};
pub use crate::space::Geometry;
