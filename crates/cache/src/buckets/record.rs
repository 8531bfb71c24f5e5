//! What is said of buckets: what they hold, who fills them, how many there are of which.

use base::BucketGen;

/// What a bucket's blocks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// Nothing that counts.
    #[default]
    Free,
    /// Blocks of volumes.
    Data,
    /// Nodes of the index.
    Nodes,
}

/// Where appended blocks come from: each stream fills buckets of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// Writes of clients.
    Writes,
    /// What was read from the pool and is kept.
    Promoted,
    /// Nodes of the index.
    Nodes,
    /// What was moved out of sparse buckets.
    Moved,
}

pub(crate) const STREAMS: usize = 4;

impl Stream {
    pub(crate) fn kind(self) -> Kind {
        if self == Stream::Nodes { Kind::Nodes } else { Kind::Data }
    }
}

/// What one bucket says, for the table on the device and for the check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Its generation.
    pub generation: BucketGen,
    /// What it holds.
    pub kind: Kind,
    /// Blocks that the index refers to.
    pub live: u16,
    /// Of these, dirty blocks of the open epoch.
    pub dirty_open: u16,
    /// As `dirty_open`, of all sealed epochs together.
    pub dirty_cut: u16,
}

/// How many buckets are in which state.
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
