//! Room: free buckets, room for requests and for nodes of the index, garbage collection.

pub(crate) mod admission;
pub(crate) mod gc;
mod node_room;
pub(crate) mod reclaim;
