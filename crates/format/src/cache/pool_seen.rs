//! The state of the pool that a cache has seen.

use base::{EntrySeq, Epoch, OpenId};

/// The values that durable superblocks of the pool said of the cache when this was written. Neither
/// ever goes back: a pool that says less is older than the cache. Both are 0 in what was written
/// before they were recorded.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolSeen {
    /// The entry of the cache's journal that they named.
    pub entry: EntrySeq,
    /// The last epoch that was published.
    pub published: Epoch,
}

impl PoolSeen {
    /// True if a pool that says this is older than a cache that has seen that.
    pub fn is_older(self, seen: PoolSeen) -> bool {
        self.max(seen) != self
    }

    /// The text for the user if the pool is older.
    pub fn refusal(self, seen: PoolSeen) -> String {
        format!(
            "the pool is older than the cache: it has cut {} and knows entry {} of the journal, \
             and the cache has seen it with cut {} and entry {}. Devices of the pool that were in \
             use with this cache are not here: start with all of them. If they are lost, \
             --forget-cache goes on from the pool's older image, without the cache",
            self.published, self.entry, seen.published, seen.entry
        )
    }

    /// The newer of each.
    pub fn max(self, other: PoolSeen) -> PoolSeen {
        PoolSeen {
            entry: self.entry.max(other.entry),
            published: self.published.max(other.published),
        }
    }
}

/// Which open of its pool a cache is of. Counters do not tell a pool from its copy, and a random
/// name of each open does.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolOpens {
    /// The open of the pool in which the cache was opened last. 0 in what was written before this
    /// was recorded, and in a cache that was never opened.
    pub opened: OpenId,
    /// The one that durable superblocks of the pool named for this cache when that was written: the
    /// same, or the one before, if the pool has not heard of this one yet.
    pub named: OpenId,
}

impl PoolOpens {
    /// True if a pool whose superblocks name this open for the cache is the one that the cache was
    /// opened with last. A pool or a cache that was written without the other is not, nor is an
    /// older copy of one of them.
    pub fn is_of(self, named: OpenId) -> bool {
        named == self.opened || named == self.named
    }

    /// The advice to the user if it is not.
    pub fn refusal(self, named: OpenId) -> String {
        format!(
            "the cache and the pool were each written without the other: the cache was last in \
             use in the open {} of the pool, and the pool had it last in the open {named}. One of \
             them is a copy, or an older copy was put back. Start the pool with the cache that it \
             was used with last, and with all of its devices. If that cache is lost, \
             --forget-cache goes on from the pool's own image, without the cache",
            self.opened
        )
    }
}

/// The statement of a pool's newest superblock on its cache.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolStatement {
    /// An entry of the cache's journal that must be there; 0: not known.
    pub entry: EntrySeq,
    /// The open of the pool in which the cache was opened last; 0: not known.
    pub opened: OpenId,
}
