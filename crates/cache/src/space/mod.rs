//! Room: free buckets, room for requests and for nodes of the index, survivors, garbage collection.

pub(crate) mod admission;
pub(crate) mod collected;
mod gc;
mod give_up;
mod mover;
mod node_room;
mod reclaim;
mod survivors;
pub(crate) mod take;
mod throttle;
pub(crate) mod turns;
