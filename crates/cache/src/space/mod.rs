//! Room: free buckets, room for requests and for nodes of the index, garbage collection.

pub(crate) mod admission;
pub(crate) mod collected;
mod gc;
mod give_up;
mod node_room;
mod reclaim;
pub(crate) mod take;
mod throttle;
