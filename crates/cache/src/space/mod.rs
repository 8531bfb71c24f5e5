//! Room: free buckets, room for requests and for nodes of the index, survivors, garbage collection.

mod admit;
pub(crate) mod collected;
mod gc;
mod give_up;
mod mover;
mod node_room;
mod reclaim;
mod survivors;
pub(crate) mod take;
pub(crate) mod turns;
pub(crate) mod writers_line;
