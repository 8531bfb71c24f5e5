//! Summaries of buckets, as the rest of the cache sees them.

use base::{BucketId, CacheAddr, Lba, VolumeId};
use format::cache::summary::SummaryKey;

use super::Buckets;
use super::summaries::NextSummary;

impl Buckets {
    /// Blocks at `addr` are those of a volume from `lba` on.
    pub(in crate::store) fn name(&mut self, addr: CacheAddr, volume: VolumeId, lba: Lba, len: u64) {
        let from = (addr.0 % u64::from(self.blocks)) as usize;
        self.summaries.name(self.of(addr), from, volume, lba, len);
    }

    /// The keys of a bucket whose summary is not written yet.
    pub fn unwritten_summary(&self, id: BucketId) -> Option<Vec<SummaryKey>> {
        self.summaries.keys_of(id).map(<[SummaryKey]>::to_vec)
    }

    /// Summaries that wait to be written.
    pub fn summaries_waiting(&self) -> usize {
        self.summaries.waiting()
    }

    /// Buckets that got no summary, as too many waited to be written.
    pub fn lost_summaries(&self) -> u64 {
        self.summaries.lost()
    }

    /// The address of the summary of a bucket, and the number of its blocks.
    pub fn summary_place(&self, id: BucketId) -> (CacheAddr, u32) {
        (self.summaries.place(id), self.summaries.blocks())
    }

    /// The next summary that is to be written; its bucket is pinned.
    pub fn next_summary(&mut self) -> Option<NextSummary> {
        let next = self.summaries.pop()?;
        self.pin(next.addr);
        Some(next)
    }
}
