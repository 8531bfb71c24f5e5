//! Room: free buckets, room for requests and for nodes of the index, survivors, garbage collection.

pub(crate) mod admission;
mod cache_full;
pub(crate) mod collected;
pub(crate) mod compact;
pub(crate) mod contents;
pub(crate) mod evict;
pub(crate) mod gc;
pub(crate) mod mover;
pub(crate) mod node_room;
pub(crate) mod pacer;
pub(crate) mod request_room;
pub(crate) mod survivors;
mod take;
pub(crate) mod throttle;
pub(crate) mod turns;
