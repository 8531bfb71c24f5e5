//! Moving bytes between memory and devices: copies of blocks, nodes of trees, bitmaps; and
//! the walk over the blocks of a group, with what each must be.

mod load;
mod mirror;
mod node_writer;
mod reads;
pub(crate) mod walk;
mod writes;

pub(crate) use node_writer::NodeWriter;
pub(crate) use writes::{Writes, Written};
