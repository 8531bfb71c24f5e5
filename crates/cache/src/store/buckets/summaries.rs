//! Keys that buckets were filled with, until their summaries are written.
//!
//! A bucket says only here, and in its summary on the device, of which volumes and blocks it has
//! the data. It is needed when the bucket leaves and some of its blocks are to be kept: the index
//! is searched by volume and block.

use std::collections::{BTreeMap, VecDeque};

use base::{BucketGen, BucketId, CacheAddr, Lba, VolumeId};
use format::cache::summary::{SummaryKey, summary_blocks};

/// No more summaries wait to be written; what comes on top of it gets none.
const MOST_WAITING: usize = 256;

struct FilledBucket {
    generation: BucketGen,
    keys: Vec<SummaryKey>,
    /// True if the bucket is full, and its summary waits to be written.
    waits: bool,
}

/// Keys of the buckets that are being filled, and of those whose summaries wait.
pub struct Summaries {
    /// Blocks of a bucket, and of its summary; 0: there is none.
    bucket_blocks: u32,
    blocks: u32,
    filled: BTreeMap<BucketId, FilledBucket>,
    waiting: VecDeque<BucketId>,
    /// Buckets that got no summary, as too many waited.
    lost: u64,
}

/// A summary to be written. Its bucket is pinned.
pub struct NextSummary {
    /// The bucket.
    pub id: BucketId,
    /// The generation of the bucket.
    pub generation: BucketGen,
    /// The volume and block that each block of the bucket was written as.
    pub keys: Vec<SummaryKey>,
    /// The address of the summary.
    pub addr: CacheAddr,
    /// Blocks of the summary.
    pub blocks: u32,
}

impl Summaries {
    pub(super) fn new(keeps: bool, bucket_blocks: u32) -> Summaries {
        let blocks = if keeps { summary_blocks(bucket_blocks) } else { 0 };
        let (filled, waiting) = (BTreeMap::new(), VecDeque::new());
        Summaries { bucket_blocks, blocks, filled, waiting, lost: 0 }
    }

    /// Blocks of a summary; 0: there are none.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// A bucket is to be filled.
    pub(super) fn begin(&mut self, id: BucketId, generation: BucketGen) {
        if self.blocks > 0 {
            let keys = vec![None; (self.bucket_blocks - self.blocks) as usize];
            self.filled.insert(id, FilledBucket { generation, keys, waits: false });
        }
    }

    /// A bucket is full, and no write to it is under way.
    pub(super) fn complete(&mut self, id: BucketId) {
        let Some(filled) = self.filled.get_mut(&id).filter(|f| !f.waits) else { return };
        if self.waiting.len() < MOST_WAITING {
            filled.waits = true;
            self.waiting.push_back(id);
        } else {
            self.filled.remove(&id);
            self.lost += 1;
        }
    }

    /// Blocks of a bucket from its block `from` on are those of a volume from `lba` on.
    pub(super) fn name(&mut self, id: BucketId, from: usize, volume: VolumeId, lba: Lba, len: u64) {
        if let Some(filled) = self.filled.get_mut(&id) {
            let keys = filled.keys[from..].iter_mut().take(len as usize);
            keys.zip(lba.0..).for_each(|(key, lba)| *key = Some((volume, Lba(lba))));
        }
    }

    /// The keys of a bucket whose summary is not written yet.
    pub fn keys_of(&self, id: BucketId) -> Option<&[SummaryKey]> {
        self.filled.get(&id).map(|f| &f.keys[..])
    }

    /// Summaries that wait to be written.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Buckets that got no summary, as too many waited to be written.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The address of the summary of a bucket.
    pub fn place(&self, id: BucketId) -> CacheAddr {
        let end = (u64::from(id.0) + 1) * u64::from(self.bucket_blocks);
        CacheAddr(end - u64::from(self.blocks))
    }

    /// The next summary that is to be written.
    pub(super) fn pop(&mut self) -> Option<NextSummary> {
        let id = self.waiting.pop_front()?;
        let FilledBucket { generation, keys, .. } = self.filled.remove(&id)?;
        Some(NextSummary { id, generation, keys, addr: self.place(id), blocks: self.blocks })
    }

    /// A bucket holds nothing that is needed.
    pub(super) fn forget(&mut self, id: BucketId) {
        if self.filled.remove(&id).is_some_and(|f| f.waits) {
            self.waiting.retain(|waiting| *waiting != id);
        }
    }
}
