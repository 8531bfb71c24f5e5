//! The bucket table: pages with two slots each, as in the pool.

use base::{BLOCK, BucketId, Buf, BufPool, ErrorKind, Generation, Result, StorageError};
use format::cache::bucket::{BucketRecord, RECORDS_PER_PAGE, decode_buckets, encode_buckets};
use format::page::{PageId, PageKind, PageVersion, open_page, payload_mut, seal_page};
use queue::{Class, Device};

use super::layout::Layout;

fn page_id(uuid: [u8; 16], page: u32, slot: u8) -> PageId {
    PageId { pool_uuid: uuid, kind: PageKind::Buckets, page: page.into(), slot }
}

/// The records of the buckets that one page is about.
pub(crate) fn encode_page(
    uuid: [u8; 16],
    page: u32,
    slot: u8,
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
pub struct FoundPage {
    /// The slot of the version that counts.
    pub slot: u8,
    /// The checkpoint that wrote the page.
    pub generation: Generation,
    /// The records of the page.
    pub records: Vec<BucketRecord>,
    /// The other slot is bad, or holds what a crash left of a later checkpoint: this page must be
    /// written by the next one, whatever it says.
    pub renew: bool,
}

/// Both slots of a page; `None` where it cannot be read.
pub type PageSlots = [Option<Buf>; 2];

/// Reads both slots of a page.
pub async fn read_slots(device: &Device, layout: &Layout, page: u32) -> PageSlots {
    let mut slots = [None, None];
    for (slot, read) in slots.iter_mut().enumerate() {
        let offset = layout.page_offset(page, slot as u8);
        let block = device.read_blocks(Class::Commit, offset, 1).await;
        *read = block.unreadable.is_empty().then_some(block.buf);
    }
    slots
}

/// Returns which checkpoint wrote a slot, and its records; or why the slot is bad.
pub fn open_slot(
    block: Option<&Buf>,
    layout: &Layout,
    uuid: [u8; 16],
    page: u32,
    slot: u8,
) -> std::result::Result<(Generation, Vec<BucketRecord>), String> {
    let block = block.ok_or("it cannot be read")?;
    let (PageVersion { generation, .. }, payload) =
        open_page(&page_id(uuid, page, slot), block).map_err(|e| e.to_string())?;
    let mut records = decode_buckets(payload).map_err(|e| e.to_string())?;
    records.truncate(buckets_of(layout, page).count());
    Ok((generation, records))
}

/// The page as a checkpoint not after `newest` wrote it: its slot and what it says.
pub fn choose_slot(
    slots: &PageSlots,
    layout: &Layout,
    uuid: [u8; 16],
    page: u32,
    newest: Generation,
) -> Option<FoundPage> {
    let mut best: Option<FoundPage> = None;
    let mut renew = false;
    for slot in 0..2u8 {
        let Ok((generation, records)) =
            open_slot(slots[usize::from(slot)].as_ref(), layout, uuid, page, slot)
        else {
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

/// Reads both slots of a page, and chooses the one that counts.
pub(crate) async fn read_page(
    device: &Device,
    layout: &Layout,
    uuid: [u8; 16],
    page: u32,
    newest: Generation,
) -> Result<FoundPage> {
    let slots = read_slots(device, layout, page).await;
    choose_slot(&slots, layout, uuid, page, newest).ok_or_else(|| {
        let text = format!(
            "page {page} of the cache's bucket table is damaged in both slots; run forebay check"
        );
        StorageError::new(ErrorKind::Damaged, text)
    })
}

/// The buckets of a page.
pub fn buckets_of(layout: &Layout, page: u32) -> impl Iterator<Item = BucketId> + use<> {
    let first = page * RECORDS_PER_PAGE as u32;
    (first..(first + RECORDS_PER_PAGE as u32).min(layout.buckets)).map(BucketId)
}
