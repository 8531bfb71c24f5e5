//! Where things are on the cache device, and the table of buckets: pages with two slots each, as in the pool.

use base::{BLOCK, BLOCK_U64, BucketId, Buf, BufPool, CacheAddr, Generation};
use format::cache::bucket::{BucketRecord, RECORDS_PER_PAGE, decode_buckets, encode_buckets};
use format::page::{PageId, PageKind, open_page, payload_mut, seal_page};
use pool::{ErrorKind, PoolError, Result};
use queue::{Class, Device};

use crate::store::journal::Ring;

/// Buckets that are kept ready at least.
const LEAST_FREE: u32 = 4;

/// The sizes of one cache; everything else follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub bucket_blocks: u32,
    pub buckets: u32,
    pub journal_blocks: u32,
}

impl Layout {
    /// The blocks before are for the superblock's slots.
    pub const TABLE_START: u64 = 32;

    /// As many buckets as find room in `size` bytes, next to everything else.
    pub fn choose(size: u64, bucket_bytes: u64, journal_bytes: Option<u64>) -> Result<Layout> {
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
                "a cache of {size} bytes has room for {buckets} buckets of {bucket_bytes} bytes; it needs 16: make it larger, or its buckets smaller"
            );
            return Err(PoolError::new(ErrorKind::Invalid, text));
        }
        Ok(layout)
    }

    pub fn pages(&self) -> u32 {
        self.buckets.div_ceil(RECORDS_PER_PAGE as u32)
    }

    pub fn page_offset(&self, page: u32, slot: u8) -> u64 {
        (Layout::TABLE_START + 2 * u64::from(page) + u64::from(slot)) * BLOCK_U64
    }

    pub fn ring(&self) -> Ring {
        Ring { offset: (Layout::TABLE_START + 2 * u64::from(self.pages())) * BLOCK_U64, blocks: self.journal_blocks }
    }

    pub fn buckets_offset(&self) -> u64 {
        let ring = self.ring();
        let bucket = u64::from(self.bucket_blocks) * BLOCK_U64;
        (ring.offset + ring.bytes()).next_multiple_of(bucket)
    }

    /// The bytes it takes of the device.
    pub fn bytes(&self) -> u64 {
        self.buckets_offset() + self.data_blocks() * BLOCK_U64
    }

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

    /// Changed nodes from which on a checkpoint begins, of a setting: no more than a small cache can hold twice.
    pub fn dirty_nodes(&self, setting: u64) -> u64 {
        setting.min(self.data_blocks() / 64).max(8)
    }

    /// Blocks that one step of a write takes and enters, all of them at once: no more than a quarter of a small cache.
    pub fn step_blocks(&self) -> usize {
        (self.data_blocks() / 4).min(256) as usize
    }

    /// Buckets that only nodes may take, at least.
    pub fn node_reserve(&self) -> u32 {
        (self.buckets / 32).max(2)
    }

    /// Blocks for nodes that requests under way may change.
    pub fn node_margin(&self) -> u64 {
        u64::from(self.bucket_blocks) * u64::from(1 + self.node_reserve() / 8)
    }

    /// Buckets that are to be free beyond the reserve for nodes.
    pub fn free_band(&self) -> u32 {
        (self.buckets / 64).clamp(LEAST_FREE, 256)
    }
}

fn page_id(uuid: [u8; 16], page: u32, slot: u8) -> PageId {
    PageId { pool_uuid: uuid, kind: PageKind::Buckets, page: page.into(), slot }
}

/// The records of the buckets that one page is about.
pub(crate) fn encode_page(
    (uuid, page, slot): ([u8; 16], u32, u8),
    records: &[BucketRecord],
    generation: Generation,
    bufs: &BufPool,
) -> Buf {
    let mut block = bufs.zeroed(BLOCK);
    encode_buckets(records, payload_mut(&mut block));
    seal_page(&page_id(uuid, page, slot), generation, &mut block);
    block
}

/// A page as it was found.
pub(crate) struct FoundPage {
    pub slot: u8,
    pub generation: Generation,
    pub records: Vec<BucketRecord>,
    /// The other slot is bad, or holds what a crash left of a later checkpoint: this page must be written by the next one, whatever it says.
    pub renew: bool,
}

/// Both slots of a page; `None` where it cannot be read.
pub(crate) type PageSlots = [Option<Buf>; 2];

/// Reads both slots of a page.
pub(crate) async fn read_slots(device: &Device, layout: &Layout, page: u32) -> PageSlots {
    let mut slots = [None, None];
    for (slot, read) in slots.iter_mut().enumerate() {
        let offset = layout.page_offset(page, slot as u8);
        let block = device.read_blocks(Class::Commit, offset, 1).await;
        *read = block.unreadable.is_empty().then_some(block.buf);
    }
    slots
}

/// What a slot says and which checkpoint wrote it; or why it is bad.
pub(crate) fn open_slot(
    block: Option<&Buf>,
    (layout, uuid): (&Layout, [u8; 16]),
    page: u32,
    slot: u8,
) -> std::result::Result<(Generation, Vec<BucketRecord>), String> {
    let block = block.ok_or("it cannot be read")?;
    let (generation, payload) = open_page(&page_id(uuid, page, slot), block).map_err(|e| e.to_string())?;
    let mut records = decode_buckets(payload).map_err(|e| e.to_string())?;
    records.truncate(buckets_of(layout, page).count());
    Ok((generation, records))
}

/// The page as a checkpoint not after `newest` wrote it: its slot and what it says.
pub(crate) fn choose_slot(
    slots: &PageSlots,
    (layout, uuid): (&Layout, [u8; 16]),
    page: u32,
    newest: Generation,
) -> Option<FoundPage> {
    let mut best: Option<FoundPage> = None;
    let mut renew = false;
    for slot in 0..2u8 {
        let Ok((generation, records)) = open_slot(slots[usize::from(slot)].as_ref(), (layout, uuid), page, slot) else {
            renew = true;
            continue;
        };
        renew |= generation > newest;
        if generation <= newest && best.as_ref().is_none_or(|b| b.generation < generation) {
            best = Some(FoundPage { slot, generation, records, renew: false });
        }
    }
    best.map(|b| FoundPage { renew, ..b })
}

/// Reads a page and chooses.
pub(crate) async fn read_page(
    device: &Device,
    (layout, uuid): (&Layout, [u8; 16]),
    page: u32,
    newest: Generation,
) -> Result<FoundPage> {
    let slots = read_slots(device, layout, page).await;
    choose_slot(&slots, (layout, uuid), page, newest).ok_or_else(|| {
        let text = format!("page {page} of the cache's bucket table is damaged in both slots; run forebay check");
        PoolError::new(ErrorKind::Damaged, text)
    })
}

/// The buckets of a page.
pub(crate) fn buckets_of(layout: &Layout, page: u32) -> impl Iterator<Item = BucketId> + use<> {
    let first = page * RECORDS_PER_PAGE as u32;
    (first..(first + RECORDS_PER_PAGE as u32).min(layout.buckets)).map(BucketId)
}
