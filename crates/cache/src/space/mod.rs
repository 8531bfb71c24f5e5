//! Room: free buckets, room for requests and for nodes of the index, survivors, garbage collection.

pub(crate) mod admission;
mod cache_full;
pub(crate) mod collected;
mod compact;
mod contents;
mod evict;
mod gc;
pub(crate) mod mover;
mod node_room;
mod request_room;
mod survivors;
pub(crate) mod take;
mod throttle;
pub(crate) mod turns;
