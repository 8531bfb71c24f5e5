//! What commits of the pool wait for, and what waits for commits of the pool.
//!
//! A commit that freezes waits for the records of the journal up to [`Commits::needs`]. Staged
//! blocks are durable with the commit that has them; the blocks of buckets that they replaced are
//! kept until then, as replay may need them.

use std::collections::VecDeque;

use base::{CacheAddr, Generation, RecordSeq, VolumeId};
use rustc_hash::FxHashMap;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Commits {
    /// The last record that tells of clean or dead keys that were dropped.
    drops: RecordSeq,
    /// The last intent of staged blocks.
    intents: RecordSeq,
    /// The commit that has the staged blocks of each volume.
    staged: FxHashMap<VolumeId, Generation>,
    /// Pinned blocks, in the order of the commits that they wait for.
    replaced: VecDeque<(Generation, Vec<CacheAddr>)>,
}

impl Commits {
    /// Clean or dead keys were dropped: commits wait for all records up to this one. Where these
    /// can never be durable, the pool says that no clean block counts.
    pub(super) fn hold_for_drops(&mut self, pushed: RecordSeq) {
        self.drops = pushed;
    }

    /// Intents were logged: commits wait for them. Nothing takes their place.
    pub(super) fn hold_for_intents(&mut self, pushed: RecordSeq) {
        self.intents = pushed;
    }

    /// The last record that the next commit waits for.
    pub fn needs(&self) -> RecordSeq {
        self.drops.max(self.intents)
    }

    /// An intent is not among the records up to `durable`.
    pub fn lacks_intents(&self, durable: RecordSeq) -> bool {
        durable < self.intents
    }

    /// A dropped key is not among the records up to `durable`.
    pub fn lacks_drops(&self, durable: RecordSeq) -> bool {
        durable < self.drops
    }

    /// `commit` has staged blocks of a volume, which have replaced these pinned ones.
    pub(super) fn stage(&mut self, volume: VolumeId, commit: Generation, replaced: Vec<CacheAddr>) {
        if !replaced.is_empty() {
            self.replaced.push_back((commit, replaced));
        }
        self.staged.insert(volume, commit);
    }

    /// The last commit that has staged blocks of a volume, or of any.
    pub fn last_staged(&self, volume: Option<VolumeId>) -> Option<Generation> {
        match volume {
            Some(v) => self.staged.get(&v).copied(),
            None => self.staged.values().copied().max(),
        }
    }

    /// A volume was deleted.
    pub(super) fn forget(&mut self, volume: VolumeId) {
        self.staged.remove(&volume);
    }

    /// Replaced blocks wait for a commit.
    pub fn has_replaced(&self) -> bool {
        !self.replaced.is_empty()
    }

    /// Some of the replaced blocks that no commit after `committed` is needed for.
    pub(super) fn pop_replaced(&mut self, committed: Generation) -> Option<Vec<CacheAddr>> {
        let ready = self.replaced.front().is_some_and(|(needs, _)| *needs <= committed);
        if ready { self.replaced.pop_front().map(|(_, addrs)| addrs) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_wait_for_the_later_of_drops_and_intents() {
        let mut commits = Commits::default();
        assert_eq!(commits.needs(), RecordSeq(0));
        commits.hold_for_drops(RecordSeq(7));
        commits.hold_for_intents(RecordSeq(5));
        assert_eq!(commits.needs(), RecordSeq(7));
        assert!(commits.lacks_drops(RecordSeq(6)) && !commits.lacks_drops(RecordSeq(7)));
        assert!(commits.lacks_intents(RecordSeq(4)) && !commits.lacks_intents(RecordSeq(5)));
    }

    #[test]
    fn replaced_blocks_wait_for_their_commit() {
        let (a, b) = (VolumeId(1), VolumeId(2));
        let mut commits = Commits::default();
        commits.stage(a, Generation(4), vec![CacheAddr(1), CacheAddr(2)]);
        commits.stage(b, Generation(5), Vec::new());
        commits.stage(a, Generation(6), vec![CacheAddr(3)]);
        assert_eq!(commits.last_staged(Some(b)), Some(Generation(5)));
        assert_eq!(commits.last_staged(None), Some(Generation(6)));
        assert_eq!(commits.pop_replaced(Generation(3)), None);
        assert_eq!(commits.pop_replaced(Generation(5)), Some(vec![CacheAddr(1), CacheAddr(2)]));
        assert_eq!(commits.pop_replaced(Generation(5)), None);
        assert!(commits.has_replaced());
        assert_eq!(commits.pop_replaced(Generation(6)), Some(vec![CacheAddr(3)]));
        assert!(!commits.has_replaced());
        commits.forget(a);
        assert_eq!(commits.last_staged(None), Some(Generation(5)));
    }
}
