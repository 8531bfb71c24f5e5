//! Moving bytes between memory and devices: copies of blocks, nodes of trees, bitmaps.

mod load;
mod mirror;
mod node_writer;
mod writes;

pub(crate) use node_writer::NodeWriter;
pub(crate) use writes::{Writes, Written};
