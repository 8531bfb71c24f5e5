//! What a cache has seen of its pool.

use base::{EntrySeq, Epoch};

/// What durable superblocks of the pool said of the cache when this was written. Neither ever goes
/// back: a pool that says less is older than the cache. Both are 0 in what was written before they
/// were recorded.
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

    /// What to tell the user then.
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
