//! Every on-disk structure as pure bytes: no I/O, no unsafe.
//!
//! Structures are little-endian and declared once; sizes and offsets are asserted at compile time; reserved fields are zero. Decoding
//! takes the bytes *and* what is expected and returns a verified type. Every reader treats bytes as hostile: bounds are checked, nothing
//! panics, nothing allocates without bound. `docs/format.md` describes the whole.

pub mod cache;
pub mod error;
pub mod node;
pub mod page;
pub mod records;
pub mod seal;
pub mod superblock;

pub use error::FormatError;
pub use node::NodePtr;

/// The largest volume: 1 PiB.
pub const MAX_VOLUME_BYTES: u64 = 1 << 50;
