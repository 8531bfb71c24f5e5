//! Buckets while the journal is replayed over a checkpoint.
//!
//! The counters come from the disk then, and so do the keys that change them. If these contradict
//! each other, the disk is wrong and not the program. So the contradiction is noted, and is an
//! error of the replay. At any other time the same is a fault of the program, and ends it.

use base::{BucketGen, BucketId};

use super::Buckets;
use super::bucket::Source;

impl Buckets {
    /// Blocks of this bucket are about to be named, or not to be named any more. False: that
    /// contradicts what is known of it, so nothing may be changed.
    pub(super) fn check_blocks(&mut self, id: BucketId, more: u32, less: u32) -> bool {
        let b = &self.all[id.0 as usize];
        let live = u32::from(b.live);
        if matches!(self.source, Source::Disk(_)) && b.kind.is_of_index() {
            self.contradicts(format!("{id:?} has nodes of the index, and blocks of a volume"));
        } else if live + more > self.blocks {
            self.contradicts(format!(
                "{id:?} has more live blocks than blocks: {more} more than {live}"
            ));
        } else if live < less {
            self.contradicts(format!(
                "{id:?} has fewer live blocks than are removed: {live}, not {less}"
            ));
        } else {
            return true;
        }
        false
    }

    /// Notes a contradiction during a replay; at any other time, panics.
    pub(super) fn contradicts(&mut self, what: String) {
        match &mut self.source {
            Source::Memory => panic!("{what}"),
            Source::Disk(first) => drop(first.get_or_insert(what)),
        }
    }

    /// The first contradiction in what was replayed.
    pub(in crate::store) fn contradiction(&mut self) -> Option<String> {
        match &mut self.source {
            Source::Memory => None,
            Source::Disk(first) => first.take(),
        }
    }

    /// Replays a raised generation.
    pub(in crate::store) fn raise(&mut self, id: BucketId, generation: BucketGen) {
        let Some(b) = self.all.get_mut(id.0 as usize) else {
            return self.contradicts(format!("{id:?} was evicted, and is not there"));
        };
        if b.generation == generation {
            return;
        }
        if b.kind.is_of_index() {
            return self.contradicts(format!("{id:?} has nodes of the index, and was evicted"));
        }
        b.generation = generation;
        self.drop_clock.set(generation.0);
        self.live_blocks -= u64::from(b.live);
        b.live = 0;
        // All blocks of the bucket were in the pool by then.
        let dirty = u64::from(b.dirt.above(self.epochs.above()));
        b.dirt.clear();
        if !self.dirty.remove(dirty, self.epochs.open()) {
            self.contradicts(format!("{id:?} was evicted, and has more dirty blocks than all"));
        }
    }
}
