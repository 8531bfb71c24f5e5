//! Room: free buckets, room for requests and for nodes of the index, garbage collection.

mod admission;
pub(crate) mod collected;
mod gc;
mod hope;
pub(crate) mod line;
mod node_room;
mod reclaim;
pub(crate) mod take;
