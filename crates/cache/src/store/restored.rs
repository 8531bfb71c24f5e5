//! Index and buckets of a checkpoint, while the journal is replayed over them: they change without
//! a journal, and what they contradict is an error of the disk.

use base::{BlockRange, BucketGen, BucketId, Epoch, VolumeId};
use btree::Store;
use pool::Step;

use crate::store::buckets::Buckets;
use crate::store::index::Index;
use crate::store::key::IndexKey;

/// See the [module](self).
pub(crate) struct RestoredIndex {
    index: Index,
    buckets: Buckets,
}

impl RestoredIndex {
    /// As the checkpoint has them; it has so many staged blocks that are not published.
    pub fn new(index: Index, mut buckets: Buckets, staged: u64) -> RestoredIndex {
        buckets.counts_mut().restore_staged(staged);
        RestoredIndex { index, buckets }
    }

    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The nodes of the index in memory, to load some or let go of them.
    pub fn nodes_mut(&mut self) -> &mut Store {
        self.index.store_mut()
    }

    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    /// Makes `range` of `volume` what `new` says, or nothing that the cache knows.
    pub fn replace(&mut self, volume: VolumeId, range: BlockRange, new: &[IndexKey]) -> Step<()> {
        self.index.replace(&mut self.buckets, volume, range, new)
    }

    /// Replays a raised generation.
    pub fn raise(&mut self, bucket: BucketId, generation: BucketGen) {
        self.buckets.raise(bucket, generation);
    }

    /// The first contradiction in what was replayed.
    pub fn contradiction(&mut self) -> Option<String> {
        self.buckets.contradiction()
    }

    /// All is replayed, and `epoch` is open now. If the cache is not `empty`, there may be
    /// discards; and only a pass says that all is written back.
    pub fn settle(mut self, epoch: Epoch, empty: bool) -> (Index, Buckets) {
        self.buckets.settle(epoch);
        self.buckets.counts_mut().add_zeros(u64::from(!empty));
        (self.index, self.buckets)
    }
}
