//! The cache: buckets, index and journal on one fast device, in front of the pool.
//!
//! The content of a volume is the pool's published image and, over it, the index. A write is
//! appended to an open bucket, its key enters the index, and the reply goes out; FLUSH makes data
//! and journal durable on the fast device alone. *Passes* carry what is dirty to the pool: each
//! takes a cut of the index (a snapshot of the tree, taken in O(1), which seals an epoch), writes
//! its blocks in the order of addresses, and publishes all of it at once; so the pool alone is
//! always an exact past state.
//!
//! **Invariants.**
//! 1. A bucket's bytes are overwritten only when the index does not refer to it, the journal's
//!    record that made it so is durable, no read of it is under way, no unpublished cut needs it,
//!    and what replaced it is durable.
//! 2. The reply to a FLUSH follows the entries with the records of all writes that completed before
//!    it, and then a device flush. It never waits for the pool.
//! 3. Checkpoint and journal give the index as it was not before the last FLUSH that was answered.
//! 4. The buckets' counters are exact at all times, as of the epoch that they name
//!    ([`store::buckets::epochs::Epochs::counted_above`]).
//! 5. The pool's image changes by publishing a whole cut, and by nothing else, for volumes that
//!    write back.
//! 6. A clean key is what the pool has; but for those of a cache that has failed, of which the pool
//!    then says that they do not count ([`lifecycle::failed_dirty`]).

mod cache;
mod checkpoint;
mod core;
mod device;
mod error;
mod health;
mod io;
mod job;
mod latch;
mod lifecycle;
mod policy;
pub mod raw;
mod scrub;
mod settings;
mod space;
mod status;
mod store;
#[cfg(test)]
mod testkit;
mod transfer;
mod wakes;
mod writeback;

pub use cache::Cache;
pub use device::file::CacheFile;
pub use io::direct::DropGuard;
pub use io::parts::Patch;
pub use lifecycle::create::{CreateOptions, check_create, create};
pub use lifecycle::detached::{holds_nothing, mark_detached};
pub use lifecycle::open::ReadyCache;
pub use model::cache::Policy;
pub use policy::{gc_pace, rate_controller, replacement, writer_delay};
pub use settings::{LagPolicy, Promote, Settings};
pub use transfer::block_part::BlockPart;
pub use writeback::detach_drain::Drain;
pub use writeback::drain_gate::{Change, work_of_discard, work_of_write};
