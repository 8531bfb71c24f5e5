//! A count of the blocks of each bucket, made while the index changes.

use std::collections::BTreeMap;

use base::{BucketId, Epoch};
use format::cache::index::index_key;

use crate::store::buckets::Buckets;
use crate::store::key::{Body, IndexKey};

/// Blocks of each bucket that keys name, counted while the index changes: changes of keys that were
/// counted already are counted too.
pub(crate) struct Audit {
    /// Keys below it were counted.
    passed: Vec<u8>,
    counts: Vec<u16>,
    /// The sum of these.
    blocks: u64,
    /// Blocks of staged keys, by epoch: which of them are published changes meanwhile.
    staged: BTreeMap<Epoch, i64>,
    keys: i64,
}

impl Audit {
    pub fn new(buckets: u32) -> Audit {
        Audit {
            passed: Vec::new(),
            counts: vec![0; buckets as usize],
            blocks: 0,
            staged: BTreeMap::new(),
            keys: 0,
        }
    }

    /// Counts an extent, wherever it is.
    pub(super) fn count(&mut self, buckets: &Buckets, e: &IndexKey, by: i32) {
        self.keys += i64::from(by);
        if let (Body::Staged { crcs }, Some(written)) = (&e.body, e.written) {
            *self.staged.entry(written).or_default() += i64::from(by) * crcs.len() as i64;
        }
        if let Body::Data { addr, generation, crcs, .. } = &e.body
            && buckets.table().is_current(*addr, *generation)
        {
            let count = &mut self.counts[buckets.geometry().of(*addr).0 as usize];
            let before = u64::from(*count);
            *count = count.saturating_add_signed((by * crcs.len() as i32) as i16);
            self.blocks = self.blocks + u64::from(*count) - before;
        }
    }

    /// Keys that were counted.
    pub fn keys(&self) -> i64 {
        self.keys
    }

    /// All keys below this one were counted.
    pub(super) fn pass(&mut self, key: Vec<u8>) {
        self.passed = key;
    }

    /// A bucket was evicted: none of its blocks counts.
    pub(super) fn evicted(&mut self, bucket: BucketId) {
        self.blocks -= u64::from(std::mem::take(&mut self.counts[bucket.0 as usize]));
    }

    /// Blocks of a bucket that keys name.
    pub fn blocks_of(&self, bucket: BucketId) -> u16 {
        self.counts[bucket.0 as usize]
    }

    /// Blocks of all buckets that keys name.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Blocks of staged keys above an epoch.
    pub fn staged_above(&self, epoch: Epoch) -> i64 {
        self.staged.iter().filter(|(of, _)| **of > epoch).map(|(_, n)| n).sum()
    }

    /// A key has come or gone.
    pub(super) fn changed(&mut self, buckets: &Buckets, e: &IndexKey, by: i32) {
        if index_key(e.volume, e.lba)[..] < self.passed[..] {
            self.count(buckets, e, by);
        }
    }
}
