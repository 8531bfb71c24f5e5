//! Moving bytes between memory and devices: copies of blocks, nodes of trees, bitmaps; and
//! the walk over the blocks of a group, with what each must be.

pub(crate) mod commit_writes;
pub(crate) mod copies;
pub(crate) mod heal;
pub(crate) mod load;
pub(crate) mod node_writer;
pub(crate) mod sums_ahead;
mod unread;
pub(crate) mod wait_for_reads;
pub(crate) mod walk;
pub(crate) mod write_copies;
pub(crate) mod writer_watch;

pub(crate) use commit_writes::{CommitWritten, Writes};
pub(crate) use load::EntryError;
pub(crate) use unread::ReadFailure;
