//! The pool's record of its cache.

use base::{EntrySeq, OpenId};

/// The cache as the next superblock records it: by an entry of its journal that is durable, with
/// all entries before it. If that entry is not found at the next open, it was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheMark {
    /// The cache.
    pub uuid: [u8; 16],
    /// The entry's sequence number.
    pub entry: EntrySeq,
    /// The open of the pool in which the cache was opened last; 0: not known.
    pub opened: OpenId,
    /// The cache does not know all that the pool was told: its clean keys do not count, until
    /// [it has dropped them](crate::writeback::cache_link::CacheLink::clean_keys_dropped).
    pub clean_void: bool,
}
