//! Experiments that others have published, again, in virtual time: the old policy beside ours.
//!
//! Each of the six experiments is a module. It has a *model* of the world around the policy
//! (devices, clients, costs), the *old policies*, written anew from how they are described in
//! public, and *ours*, which is the code of the product. It ends in a chapter of
//! `docs/experiments.md`: what is modelled, a table, a picture.
//!
//! | module | question |
//! | --- | --- |
//! | [`gc`] | how long does the collection of an index hold up requests? |
//! | [`victims`] | what does it cost to find the bucket that is evicted next? |
//! | [`tags`] | which tasks are woken when a device has a free tag, and what does that do to a disk? |
//! | [`commit`] | which records of block groups does a commit write? |
//! | [`writeback`] | how fast is dirty data written back, and which requests stand still for it? |
//! | [`scrub`] | how are the reads of a scrub gathered, and its checksums found? |
//!
//! Nothing here measures this machine. All time is virtual and all costs are numbers that the
//! chapter names, so the same digits come out each time, and a test sees to it. [`Scale::Short`]
//! is the same with less of everything, for tests.

pub mod commit;
pub mod document;
pub mod gc;
pub mod report;
pub mod scrub;
mod svg;
pub mod tags;
pub mod victims;
pub mod writeback;

pub use report::{Report, Scale};

/// All experiments, by number.
pub const ALL: [fn(Scale) -> Report; 6] =
    [gc::run, victims::run, tags::run, commit::run, writeback::run, scrub::run];
