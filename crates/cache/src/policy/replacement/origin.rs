//! Origins of blocks.

/// The origin of the blocks of a bucket; blocks of each origin fill buckets of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Blocks that were read, and missed.
    Read,
    /// Blocks that were written.
    Write,
    /// Blocks that were hit again: survivors, and blocks that were read again soon after they were
    /// dropped.
    Main,
}

impl Origin {
    /// All origins, by number.
    pub const ALL: [Origin; 3] = [Origin::Read, Origin::Write, Origin::Main];
}
