//! Layout of the cache device: the place of each thing on it.

use base::{BLOCK_U64, CacheAddr, ErrorKind, Result, StorageError};
use format::cache::bucket::RECORDS_PER_PAGE;
use format::cache::moved::{MovedPages, SPARES};
use format::cache::superblock::CacheSuperblock;

use super::file::CacheFile;

/// Blocks of the smallest bucket.
pub(crate) const LEAST_BUCKET: u64 = 16;

/// Buckets of the smallest cache.
const LEAST_BUCKETS: u32 = 16;

/// Buckets that are kept ready at least.
const LEAST_FREE: u32 = 6;

/// The sizes of one cache; everything else follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Blocks of a bucket.
    pub bucket_blocks: u32,
    /// Buckets.
    pub buckets: u32,
    /// Blocks of the journal's ring, of which there are two copies.
    pub journal_blocks: u32,
    /// Pages of the bucket table that are not in their place.
    pub moved: MovedPages,
}

/// The sizes that a superblock says. Errors: the device is too small for them, or things are not
/// where they follow from the sizes.
pub fn layout_of(sb: &CacheSuperblock, file: &CacheFile) -> Result<Layout> {
    let layout = Layout {
        bucket_blocks: sb.bucket_blocks,
        buckets: sb.bucket_count,
        journal_blocks: sb.journal_blocks,
        moved: sb.moved,
    };
    if layout.bytes() > file.size_bytes {
        let text = format!(
            "{}: the cache needs {} bytes, the device has {}",
            file.path,
            layout.bytes(),
            file.size_bytes
        );
        return Err(StorageError::new(ErrorKind::Damaged, text));
    }
    let planned = (Layout::TABLE_START, layout.ring().offset / BLOCK_U64);
    if (sb.table_start, sb.journal_start) != planned {
        let text = format!(
            "{}: the cache's table and journal are where this version does not expect them",
            file.path
        );
        return Err(StorageError::new(ErrorKind::Newer, text));
    }
    Ok(layout)
}

impl Layout {
    /// The first of the spare blocks for pages of the bucket table: behind the watermark.
    const SPARE_START: u64 = 25;

    /// The blocks before are for the superblock's slots.
    pub(crate) const TABLE_START: u64 = 32;

    /// As many buckets as find room in `size` bytes, next to everything else.
    pub(crate) fn choose(
        size: u64,
        bucket_bytes: u64,
        journal_bytes: Option<u64>,
    ) -> Result<Layout> {
        let mut layout = Layout::sized(0, size, bucket_bytes, journal_bytes);
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
        if buckets < LEAST_BUCKETS {
            let least = Layout::least_bytes(bucket_bytes, journal_bytes).div_ceil(1 << 20);
            let has = match size {
                n if n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
                n if n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
                n => format!("{n} bytes"),
            };
            let text = format!("a cache of {has} is too small: it needs {least} MiB at least");
            return Err(StorageError::new(ErrorKind::Invalid, text));
        }
        Ok(layout)
    }

    /// A layout of `buckets` buckets, with a journal of `journal_bytes` bytes, or of the length
    /// that a device of `size` bytes gets.
    fn sized(buckets: u32, size: u64, bucket_bytes: u64, journal_bytes: Option<u64>) -> Layout {
        let journal = journal_bytes.unwrap_or((size / 64).clamp(1 << 20, 32 << 20));
        Layout {
            bucket_blocks: (bucket_bytes / BLOCK_U64) as u32,
            buckets,
            journal_blocks: (journal / BLOCK_U64) as u32,
            moved: MovedPages::default(),
        }
    }

    /// The least size for which [`Layout::choose`] finds room.
    fn least_bytes(bucket_bytes: u64, journal_bytes: Option<u64>) -> u64 {
        // The journal grows with the size, and the size by a part of the journal.
        let mut size = 0;
        loop {
            let need = Layout::sized(LEAST_BUCKETS, size, bucket_bytes, journal_bytes).bytes();
            if need <= size {
                return size;
            }
            size = need;
        }
    }

    /// Pages of the bucket table.
    pub fn pages(&self) -> u32 {
        self.buckets.div_ceil(RECORDS_PER_PAGE as u32)
    }

    /// The byte at which a slot (0 or 1) of a page of the bucket table stands.
    pub fn page_offset(&self, page: u32, slot: u8) -> u64 {
        match self.moved.spare_of(page, slot) {
            Some(spare) => (Layout::SPARE_START + spare as u64) * BLOCK_U64,
            None => (Layout::TABLE_START + 2 * u64::from(page) + u64::from(slot)) * BLOCK_U64,
        }
    }

    /// The place of the journal.
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
    /// can hold twice, with their copies.
    pub(crate) fn dirty_nodes(&self, setting: u64) -> u64 {
        setting.min(self.data_blocks() / 64).max(8)
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

/// The place of the journal's entries on the device: each entry is at the same place of two rings,
/// so that one bad sector takes none.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Offset of the first byte of the first ring. The second follows it.
    pub offset: u64,
    /// Blocks of each ring.
    pub blocks: u32,
}

const _: () = assert!(Layout::SPARE_START + SPARES as u64 == Layout::TABLE_START);

impl Ring {
    /// The rings, which are the same.
    pub const COPIES: usize = 2;

    /// Bytes of both.
    pub fn bytes(&self) -> u64 {
        Ring::COPIES as u64 * u64::from(self.blocks) * BLOCK_U64
    }

    /// The byte at which a block of the ring stands, in each of the two rings.
    pub fn places(&self, position: u32) -> [u64; Ring::COPIES] {
        let at = |copy: u64| {
            self.offset + (copy * u64::from(self.blocks) + u64::from(position)) * BLOCK_U64
        };
        [at(0), at(1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_size_is_told_and_is_enough() {
        let mib = 1 << 20;
        for bucket in [64 << 10, 512 << 10, 8 * mib] {
            for journal in [None, Some(mib), Some(32 * mib)] {
                let least = Layout::least_bytes(bucket, journal);
                let layout = Layout::choose(least, bucket, journal).expect("the least size");
                assert!(layout.buckets == LEAST_BUCKETS && layout.bytes() <= least, "{layout:?}");
                assert!(
                    Layout::choose(least - 1, bucket, journal).is_err(),
                    "{bucket} {journal:?}"
                );
            }
        }
        let text = |size| Layout::choose(size, 512 << 10, None).expect_err("too small").context;
        assert_eq!(text(4 * mib), "a cache of 4 MiB is too small: it needs 11 MiB at least");
        assert!(text(6 * mib + 1024).contains("6145 KiB") && text(7).contains("7 bytes"));
        assert!(Layout::choose(11 * mib, 512 << 10, None).is_ok());
    }
}
