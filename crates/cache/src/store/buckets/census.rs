//! The streams that fill buckets, and how many buckets are in which state.

use format::cache::bucket::BucketKind;

use crate::policy::replacement::Origin;

/// A source of appended blocks: each stream fills buckets of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// Writes of clients.
    Writes,
    /// Blocks that were read from the pool and are kept.
    Promoted,
    /// Nodes of the index.
    Nodes,
    /// Blocks that were hit again: survivors, and blocks that came back soon; and what was moved
    /// out of sparse buckets.
    Main,
}

pub(crate) const STREAMS: usize = 4;

impl Stream {
    pub(crate) fn kind(self) -> BucketKind {
        if self == Stream::Nodes { BucketKind::Nodes } else { BucketKind::Data }
    }

    /// The origin of the blocks in the stream's buckets; `None`: nodes of the index.
    pub(crate) fn origin(self) -> Option<Origin> {
        match self {
            Stream::Writes => Some(Origin::Write),
            Stream::Promoted => Some(Origin::Read),
            Stream::Main => Some(Origin::Main),
            Stream::Nodes => None,
        }
    }
}

/// The number of buckets in each state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Free, or about to be.
    pub free: u32,
    /// Full of published or read data.
    pub clean: u32,
    /// With unpublished blocks, or being filled.
    pub dirty: u32,
    /// With nodes of the index.
    pub metadata: u32,
    /// Out of use.
    pub retired: u32,
}
