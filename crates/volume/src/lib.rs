//! Volumes in bytes: from requests to blocks.
//!
//! [`Volumes`] is the set of a pool's volumes as front ends see it; a [`Volume`] is one of them,
//! open. Requests are in bytes and may begin and end anywhere: a write of part of a block is merged
//! with what else is in it, under a lock on the block, so that concurrent writes to different
//! sectors of one block do not lose one another ([`range_locks`], [`edge_locks`]).
//!
//! Front ends admit each request before they carry it out, but FLUSH ([`Volume::admit`]): limits of
//! volumes, and shares of what they use together, are kept there ([`admission`]).

mod admission;
mod changing;
mod counts;
mod edge_locks;
mod quiesce;
pub mod range_locks;
mod route;
mod routes;
mod volume;
mod volumes;

pub use admission::{Ticket, WaitCounts};
pub use changing::GiveUpOutcome;
pub use counts::{ByOp, RequestStats, VolumeCounts, VolumeStats};
pub use volume::{RangeStatus, Volume};
pub use volumes::Volumes;
