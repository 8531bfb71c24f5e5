//! The core of an open cache, on which its flows are built: runtime, settings, state and device.
//!
//! A flow holds the core and the flows below it, and nothing else; so no flow calls one above it.
//! What a flow has to know of one above it stands in the [`parts`] as data: a mark that the
//! other sets, or an event that its task waits for.

mod due;
mod handle;
pub(crate) mod levels;
mod nodes;
pub(crate) mod parts;
pub(crate) mod pins;

pub(crate) use handle::Core;
