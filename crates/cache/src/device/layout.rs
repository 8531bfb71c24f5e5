//! Where things are on the cache device.

use base::{BLOCK_U64, CacheAddr, ErrorKind, Result, StorageError};
use format::cache::bucket::RECORDS_PER_PAGE;

/// Blocks of the smallest bucket.
pub(crate) const LEAST_BUCKET: u64 = 16;

/// Buckets that are kept ready at least.
const LEAST_FREE: u32 = 4;

/// The sizes of one cache; everything else follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Blocks of a bucket.
    pub bucket_blocks: u32,
    /// Buckets.
    pub buckets: u32,
    /// Blocks of the journal's ring, of which there are two copies.
    pub journal_blocks: u32,
}

impl Layout {
    /// The blocks before are for the superblock's slots.
    pub(crate) const TABLE_START: u64 = 32;

    /// As many buckets as find room in `size` bytes, next to everything else.
    pub(crate) fn choose(
        size: u64,
        bucket_bytes: u64,
        journal_bytes: Option<u64>,
    ) -> Result<Layout> {
        let bucket_blocks = (bucket_bytes / BLOCK_U64) as u32;
        let journal = journal_bytes.unwrap_or((size / 64).clamp(1 << 20, 32 << 20));
        let journal_blocks = (journal / BLOCK_U64) as u32;
        let mut layout = Layout { bucket_blocks, buckets: 0, journal_blocks };
        let mut buckets = (size / bucket_bytes).min(u64::from(u32::MAX - 1)) as u32;
        while buckets > 0 {
            layout.buckets = buckets;
            let end = layout.buckets_offset() + u64::from(buckets) * bucket_bytes;
            if end <= size {
                break;
            }
            buckets -= ((end - size).div_ceil(bucket_bytes) as u32).min(buckets);
        }
        layout.buckets = buckets;
        if buckets < 16 {
            let text = format!(
                "a cache of {size} bytes has room for {buckets} buckets of {bucket_bytes} bytes; \
                 it needs 16: make it larger, or its buckets smaller"
            );
            return Err(StorageError::new(ErrorKind::Invalid, text));
        }
        Ok(layout)
    }

    /// Pages of the bucket table.
    pub fn pages(&self) -> u32 {
        self.buckets.div_ceil(RECORDS_PER_PAGE as u32)
    }

    /// The byte at which a slot (0 or 1) of a page of the bucket table stands.
    pub fn page_offset(&self, page: u32, slot: u8) -> u64 {
        (Layout::TABLE_START + 2 * u64::from(page) + u64::from(slot)) * BLOCK_U64
    }

    /// Where the journal is.
    pub fn ring(&self) -> Ring {
        Ring {
            offset: (Layout::TABLE_START + 2 * u64::from(self.pages())) * BLOCK_U64,
            blocks: self.journal_blocks,
        }
    }

    /// The byte at which the first bucket stands.
    pub fn buckets_offset(&self) -> u64 {
        let ring = self.ring();
        let bucket = u64::from(self.bucket_blocks) * BLOCK_U64;
        (ring.offset + ring.bytes()).next_multiple_of(bucket)
    }

    /// The bytes it takes of the device.
    pub fn bytes(&self) -> u64 {
        self.buckets_offset() + self.data_blocks() * BLOCK_U64
    }

    /// Blocks of all buckets.
    pub fn data_blocks(&self) -> u64 {
        u64::from(self.buckets) * u64::from(self.bucket_blocks)
    }

    /// True if `len` blocks from `addr` on lie in one bucket.
    pub fn contains(&self, addr: CacheAddr, len: u32) -> bool {
        let blocks = u64::from(self.bucket_blocks);
        addr.0 < self.data_blocks() && len > 0 && addr.0 % blocks + u64::from(len) <= blocks
    }

    /// The byte at which a block of a bucket stands.
    pub fn offset_of(&self, addr: CacheAddr) -> u64 {
        self.buckets_offset() + addr.0 * BLOCK_U64
    }

    /// Changed nodes from which on a checkpoint begins, of a setting: no more than a small cache
    /// can hold twice.
    pub(crate) fn dirty_nodes(&self, setting: u64) -> u64 {
        setting.min(self.data_blocks() / 32).max(8)
    }

    /// Blocks that one step of a write takes and enters, all of them at once: no more than a
    /// quarter of a small cache.
    pub(crate) fn step_blocks(&self) -> usize {
        (self.data_blocks() / 4).min(256) as usize
    }

    /// Buckets that only nodes may take, at least.
    pub(crate) fn node_reserve(&self) -> u32 {
        (self.buckets / 32).max(2)
    }

    /// Blocks for nodes that requests under way may change.
    pub(crate) fn node_margin(&self) -> u64 {
        u64::from(self.bucket_blocks) * u64::from(1 + self.node_reserve() / 8)
    }

    /// Buckets that are to be free beyond the reserve for nodes.
    pub(crate) fn free_band(&self) -> u32 {
        (self.buckets / 64).clamp(LEAST_FREE, 256)
    }
}

/// Where entries are on the device: each at the same place of two rings, so that one bad sector
/// takes none.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Offset of the first byte of the first ring. The second follows it.
    pub offset: u64,
    /// Blocks of each ring.
    pub blocks: u32,
}

impl Ring {
    /// The rings, which are the same.
    pub const COPIES: usize = 2;

    /// Bytes of both.
    pub fn bytes(&self) -> u64 {
        Ring::COPIES as u64 * u64::from(self.blocks) * BLOCK_U64
    }

    /// Where a block stands, in both.
    pub fn places(&self, position: u32) -> [u64; Ring::COPIES] {
        let at = |copy: u64| {
            self.offset + (copy * u64::from(self.blocks) + u64::from(position)) * BLOCK_U64
        };
        [at(0), at(1)]
    }
}
