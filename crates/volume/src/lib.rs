//! Volumes in bytes: from requests to blocks.
//!
//! [`Volumes`] is the set of a pool's volumes as front ends see it; a [`Volume`] is one of them, open. Requests are in bytes and may begin and
//! end anywhere: what is not whole blocks is read, changed and written again, under a lock on its range, so that concurrent writes to
//! different sectors of one block do not lose one another ([`ranges`]).

mod blocks;
mod gate;
pub mod ranges;
mod requests;
mod volumes;

pub use requests::{Extent, RequestStats, Volume};
pub use volumes::Volumes;
