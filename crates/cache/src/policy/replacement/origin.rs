//! Where blocks come from.

/// Where the blocks of a bucket come from; each fills buckets of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// They were read, and missed.
    Read,
    /// They were written.
    Write,
    /// They were hit again: survivors, and blocks that were read again soon after they were
    /// dropped.
    Main,
}

impl Origin {
    /// All of them, by number.
    pub const ALL: [Origin; 3] = [Origin::Read, Origin::Write, Origin::Main];
}
