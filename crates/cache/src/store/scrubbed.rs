//! What scrubs found.

/// What scrubs of a cache have found since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, serde::Serialize)]
pub struct CacheScrub {
    /// Times that it went over everything.
    pub completed: u64,
    /// Bytes verified.
    pub verified_bytes: u64,
    /// Clean extents with a bad block, which were dropped.
    pub dropped: u64,
    /// Dirty extents with a bad block, which are lost.
    pub lost: u64,
}
