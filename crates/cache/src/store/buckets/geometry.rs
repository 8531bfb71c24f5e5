//! The places of blocks in buckets.

use base::{BucketId, CacheAddr};

/// The number of buckets and their size. Both stay as they are while the cache is open: block `n`
/// of bucket `id` is at `id * blocks + n`.
#[derive(Clone, Copy)]
pub struct Geometry {
    count: u32,
    blocks: u32,
}

impl Geometry {
    /// `count` buckets of `blocks` blocks each.
    pub fn new(count: u32, blocks: u32) -> Geometry {
        assert!(count > 0 && (1..=u32::from(u16::MAX)).contains(&blocks));
        Geometry { count, blocks }
    }

    /// The number of buckets.
    pub fn count(self) -> u32 {
        self.count
    }

    /// Blocks in a bucket.
    pub fn bucket_blocks(self) -> u32 {
        self.blocks
    }

    /// Blocks in all buckets.
    pub fn all_blocks(self) -> u64 {
        u64::from(self.count) * u64::from(self.blocks)
    }

    /// The bucket of a block.
    pub fn of(self, addr: CacheAddr) -> BucketId {
        BucketId((addr.0 / u64::from(self.blocks)) as u32)
    }

    /// The number of a block in its bucket.
    pub fn slot(self, addr: CacheAddr) -> u32 {
        (addr.0 % u64::from(self.blocks)) as u32
    }

    /// The address of a block of a bucket.
    pub fn addr(self, id: BucketId, slot: u32) -> CacheAddr {
        CacheAddr(u64::from(id.0) * u64::from(self.blocks) + u64::from(slot))
    }

    /// True if `addr` up to `addr + len` lies in one bucket of this cache.
    pub fn contains(self, addr: CacheAddr, len: u32) -> bool {
        let b = u64::from(self.blocks);
        addr.0 / b < u64::from(self.count) && len > 0 && addr.0 % b + u64::from(len) <= b
    }
}
