//! Moving bytes between memory and devices: copies of blocks, nodes of trees, bitmaps; and
//! the walk over the blocks of a group, with what each must be.

mod commit_writes;
mod copies;
mod heal;
mod load;
mod look;
mod node_writer;
mod wait_for_reads;
pub(crate) mod walk;

pub(crate) use commit_writes::{Writes, Written};
pub(crate) use copies::Unread;
pub(crate) use load::NotEntered;
pub(crate) use node_writer::NodeWriter;
