//! Every on-disk structure as pure bytes: no I/O, no unsafe.
//!
//! Structures are little-endian, and each is declared once. Sizes and offsets are asserted at
//! compile time. Reserved fields are zero. A decoder takes the bytes *and* what is expected of
//! them, and returns a verified type. Decoders treat bytes as hostile: they check every bound,
//! never panic, and never allocate without bound. `docs/format.md` describes the whole format.

pub mod cache;
pub mod edges;
pub mod error;
pub mod host_log;
pub mod node;
pub mod page;
pub mod places;
pub mod records;
pub mod seal;
pub mod superblock;
pub mod tree;

pub use error::FormatError;
pub use node::NodePtr;

/// The largest volume: 1 PiB.
pub const MAX_VOLUME_BYTES: u64 = 1 << 50;
