//! Room: free buckets, room for requests and for nodes of the index, survivors, garbage collection.

pub(crate) mod collected;
pub(crate) mod compact;
pub(crate) mod contents;
pub(crate) mod evict;
pub(crate) mod gc;
mod hopeless_wait;
pub(crate) mod mover;
pub(crate) mod node_room;
pub(crate) mod pacer;
pub(crate) mod request_room;
pub(crate) mod survivors;
mod take_buckets;
pub(crate) mod throttle;
pub(crate) mod turns;
pub(crate) mod writer_line;
