//! Shows the structures of a cache device as data that can be written as JSON. It is as
//! read-only as [`crate::cache::check`]. What is damaged is said to be unreadable, and the dump
//! goes on.

use base::{BucketId, Buf, CacheAddr, Crc, EntrySeq, ErrorKind, Result, StorageError};
use cache::CacheFile;
use cache::raw::{
    Layout, Slot, buckets_of, choose_slot, layout_of, read_journal, read_slots, replay_from,
};
use format::cache::bucket::{BucketKind, BucketRecord};
use format::cache::index::{IndexValue, decode_key};
use format::cache::journal::Record;
use format::cache::summary::{SummaryOwner, decode_summary, summary_blocks};
use format::cache::superblock::{CacheState, CacheSuperblock, SLOTS};
use format::cache::watermark::{WATERMARK_SLOTS, Watermark};
use queue::Class;
use rt::Rt;
use serde::Serialize;

use crate::cache::check::checker::{CacheLog, CacheSource};
use crate::cache::check::plan::CacheRepairPlan;
use crate::cache::check::walk::{self, IndexNodes, NodeCopies};
use crate::items::{NodeItem, RootItem, SlotItem, crc_text, hex, root};

/// The structures that can be shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheStructure {
    /// All superblock slots.
    Superblock,
    /// The bucket table.
    Buckets,
    /// The nodes of the index as of the checkpoint, and the keys in them.
    Index,
    /// The journal's entries since the checkpoint, and their records.
    Journal,
    /// The journal's watermark, both times that it is written.
    Watermark,
    /// The summaries of full buckets of data.
    Summaries,
}

impl CacheStructure {
    /// The words for the structures, for usage texts.
    pub const USAGE: &str = "superblock | buckets | index | journal | watermark | summaries";

    /// Reads a word.
    pub fn parse(word: &str) -> Option<CacheStructure> {
        match word {
            "superblock" => Some(CacheStructure::Superblock),
            "buckets" => Some(CacheStructure::Buckets),
            "index" => Some(CacheStructure::Index),
            "journal" => Some(CacheStructure::Journal),
            "watermark" => Some(CacheStructure::Watermark),
            "summaries" => Some(CacheStructure::Summaries),
            _ => None,
        }
    }
}

/// A structure.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[allow(missing_docs, reason = "fields are named as in docs/format.md, which explains them")]
pub enum CacheItem {
    /// A superblock slot.
    Superblock(Box<SlotItem<CacheSuperblockItem>>),
    /// A bucket that is not free and empty.
    Bucket {
        bucket: u32,
        #[serde(rename = "use")]
        use_: &'static str,
        generation: u32,
        live_blocks: u16,
        dirty_open: u16,
        dirty_cut: u16,
    },
    /// Buckets that are free, of which nothing else is to be said.
    Free { buckets: u64 },
    /// A key of the index.
    Key(KeyItem),
    /// An entry of the journal; its records follow.
    Entry { sequence: u64, durable: u64, blocks: u32 },
    /// A record: blocks are what the key says.
    Insert(KeyItem),
    /// A record: a bucket was evicted.
    Raise { bucket: u32, generation: u32 },
    /// A record: the cache knows nothing of these blocks any more.
    Remove { volume: u32, lba: u64, blocks: u64 },
    /// A record: a cut was taken.
    Epoch { epoch: u32 },
    /// One of the two blocks of the watermark, or why it has none.
    Watermark {
        offset: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        uuid: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        incarnation: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        durable: Option<u64>,
    },
    /// The volume and block that each block of a bucket was written as, if it was written.
    Summary { bucket: u32, generation: u32, keys: Vec<Option<(u32, u64)>> },
    /// Something that could not be read; what stands below it is missing.
    Unreadable { what: String },
    /// A node of the index.
    Node(NodeItem),
}

/// The content of a superblock.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "fields are named as in docs/format.md, which explains them")]
pub struct CacheSuperblockItem {
    pub uuid: String,
    pub pool_uuid: String,
    pub sequence: u64,
    pub generation: u64,
    pub incarnation: u32,
    pub attached: bool,
    pub bucket_blocks: u32,
    pub buckets: u32,
    pub journal_blocks: u32,
    pub replay_position: u32,
    pub replay_sequence: u64,
    pub table_start: u64,
    pub journal_start: u64,
    pub epoch: u32,
    pub cut: u32,
    pub staged_open: u64,
    pub staged_cut: u64,
    pub counted_from: u32,
    pub index: Option<RootItem>,
    pub table_digest: String,
}

/// A key of the index: blocks of a volume.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "fields are named as in docs/format.md, which explains them")]
pub struct KeyItem {
    pub volume: u32,
    pub lba: u64,
    pub blocks: u64,
    /// 0: clean.
    pub epoch: u32,
    /// None of zeros, and of what is staged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<DataItem>,
    /// Checksums of staged blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staged: Option<Vec<String>>,
}

/// The place of blocks on the cache's device.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "fields are named as in docs/format.md, which explains them")]
pub struct DataItem {
    pub address: u64,
    pub bucket: u64,
    pub generation: u32,
    pub crcs: Vec<String>,
    /// Of a part: a bit for each sector that counts, the lowest for the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sectors: Option<String>,
    /// Of a part that was written over a staged block: its epoch and checksum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below: Option<(u32, String)>,
}

/// Hands `what` of the cache on `file` to `out`, structure by structure.
pub async fn dump(
    rt: &Rt,
    file: &CacheFile,
    what: CacheStructure,
    out: &mut dyn FnMut(CacheItem),
) -> Result<()> {
    let src = CacheSource::new(rt, file);
    let outcome = dump_on(&src, file, what, out).await;
    src.device.close();
    outcome
}

async fn dump_on(
    src: &CacheSource,
    file: &CacheFile,
    what: CacheStructure,
    out: &mut dyn FnMut(CacheItem),
) -> Result<()> {
    let mut best: Option<CacheSuperblock> = None;
    for slot in 0..SLOTS {
        let offset = CacheSuperblock::offset_of(slot);
        let read = src.block(offset).await;
        if what == CacheStructure::Superblock {
            let decode = |block: &Buf| CacheSuperblock::decode(block).map_err(|e| e.to_string());
            let read = read.as_ref().map_err(String::clone).and_then(decode);
            let read = read.as_ref().map(CacheSuperblockItem::from).map_err(String::clone);
            out(CacheItem::Superblock(Box::new(SlotItem::new(&src.path, slot, offset, read))));
            continue;
        }
        let found = Slot::of(read.as_ref().map(|block| &block[..]).map_err(String::clone));
        // Next to one of a newer version the others are old.
        let newer = |e| StorageError::new(ErrorKind::Newer, format!("{}: {e}", src.path));
        if let Slot::Whole(sb) = found.map_err(newer)? {
            best = best.into_iter().chain([sb]).max_by_key(|sb| sb.sequence);
        }
    }
    if what == CacheStructure::Superblock {
        return Ok(());
    }
    let Some(sb) = best else {
        let text = format!("{}: no superblock of a cache can be read", src.path);
        return Err(StorageError::new(ErrorKind::Foreign, text));
    };
    let layout = layout_of(&sb, file)?;
    match what {
        CacheStructure::Superblock => {}
        CacheStructure::Buckets => buckets(src, &sb, &layout, out).await,
        CacheStructure::Index => index(src, &sb, &layout, out).await,
        CacheStructure::Journal => journal(src, &sb, &layout, out).await?,
        CacheStructure::Watermark => watermark(src, out).await,
        CacheStructure::Summaries => summaries(src, &sb, &layout, out).await,
    }
    Ok(())
}

async fn buckets(
    src: &CacheSource,
    sb: &CacheSuperblock,
    layout: &Layout,
    out: &mut dyn FnMut(CacheItem),
) {
    let (mut bucket, mut free) = (0, 0);
    for page in 0..layout.pages() {
        let slots = read_slots(&src.device, layout, page).await;
        let Some(found) = choose_slot(&slots, layout, sb.uuid, page, sb.generation) else {
            out(CacheItem::Unreadable {
                what: format!("page {page} of the bucket table; run forebay check"),
            });
            bucket += buckets_of(layout, page).count() as u32;
            continue;
        };
        for f in found.records {
            let use_ = match f.kind {
                BucketKind::Free => "free",
                BucketKind::Data => "data",
                BucketKind::Nodes => "nodes",
                BucketKind::Copies => "copies",
            };
            if f.kind == BucketKind::Free && f.generation.0 == 0 {
                free += 1;
            } else {
                let (live_blocks, dirty_open, dirty_cut) = (f.live, f.dirty_open, f.dirty_cut);
                out(CacheItem::Bucket {
                    bucket,
                    use_,
                    generation: f.generation.0,
                    live_blocks,
                    dirty_open,
                    dirty_cut,
                });
            }
            bucket += 1;
        }
    }
    out(CacheItem::Free { buckets: free });
}

/// Finds where the copies of nodes stand, as far as the bucket table can be read.
async fn twins(src: &CacheSource, sb: &CacheSuperblock, layout: &Layout) -> NodeCopies {
    let mut records = Vec::with_capacity(layout.buckets as usize);
    for page in 0..layout.pages() {
        let slots = read_slots(&src.device, layout, page).await;
        let found = choose_slot(&slots, layout, sb.uuid, page, sb.generation);
        let unknown = || vec![BucketRecord::default(); buckets_of(layout, page).count()];
        records.extend(found.map_or_else(unknown, |f| f.records));
    }
    NodeCopies::of(&records)
}

async fn index(
    src: &CacheSource,
    sb: &CacheSuperblock,
    layout: &Layout,
    out: &mut dyn FnMut(CacheItem),
) {
    let mut log = CacheLog::new(0);
    let mut walk = walk::over(sb);
    let (twins, mut plan) = (twins(src, sb, layout).await, CacheRepairPlan::default());
    let mut nodes = IndexNodes { src, log: &mut log, sb, layout, twins: &twins, plan: &mut plan };
    while let Some((r, page)) = walk.next_node(&mut nodes).await {
        out(CacheItem::Node(NodeItem::new(&r, &page)));
        for i in (0..page.count()).filter(|_| page.level() == 0) {
            match key_item(&page.key(i), page.value(i), layout) {
                Some(key) => out(CacheItem::Key(key)),
                None => out(CacheItem::Unreadable { what: format!("key {}", hex(&page.key(i))) }),
            }
        }
    }
    if !walk.is_whole() {
        out(CacheItem::Unreadable { what: "a part of the index; run forebay check".to_owned() });
    }
}

async fn watermark(src: &CacheSource, out: &mut dyn FnMut(CacheItem)) {
    for slot in 0..WATERMARK_SLOTS {
        let offset = Watermark::offset_of(slot);
        let read = src.block(offset).await;
        let read = read.and_then(|block| Watermark::decode(&block).map_err(|e| e.to_string()));
        let mark = read.as_ref().ok();
        out(CacheItem::Watermark {
            offset,
            uuid: mark.map(|m| hex(&m.uuid)),
            incarnation: mark.map(|m| m.incarnation),
            durable: mark.map(|m| m.durable.0),
            error: read.err(),
        });
    }
}

/// Shows the summaries that are there: no bucket need have one.
async fn summaries(
    src: &CacheSource,
    sb: &CacheSuperblock,
    layout: &Layout,
    out: &mut dyn FnMut(CacheItem),
) {
    let blocks = summary_blocks(layout.bucket_blocks);
    let mut first = 0;
    for page in 0..layout.pages() {
        let slots = read_slots(&src.device, layout, page).await;
        let found = choose_slot(&slots, layout, sb.uuid, page, sb.generation);
        if found.is_none() {
            let what = format!("page {page} of the bucket table; run forebay check");
            out(CacheItem::Unreadable { what });
        }
        for (bucket, record) in (first..).zip(found.into_iter().flat_map(|f| f.records)) {
            let end = (u64::from(bucket) + 1) * u64::from(layout.bucket_blocks);
            let offset = layout.offset_of(CacheAddr(end - u64::from(blocks)));
            let read = src.device.read_blocks(Class::Foreground, offset, blocks as usize).await;
            let generation = record.generation;
            let of = SummaryOwner { uuid: sb.uuid, bucket: BucketId(bucket), generation };
            // One that is not this bucket's says nothing, and may be any data.
            let Ok(keys) = decode_summary(&of, &read.buf) else { continue };
            let keys = keys.into_iter().map(|k| k.map(|(volume, lba)| (volume.0, lba.0)));
            out(CacheItem::Summary { bucket, generation: generation.0, keys: keys.collect() });
        }
        first += buckets_of(layout, page).count() as u32;
    }
}

async fn journal(
    src: &CacheSource,
    sb: &CacheSuperblock,
    layout: &Layout,
    out: &mut dyn FnMut(CacheItem),
) -> Result<()> {
    let ((of, place), ring) = (replay_from(sb), layout.ring());
    let found = read_journal(&src.device, &src.path, ring, of, place, EntrySeq(0)).await?;
    let entries = found.entries;
    for e in entries {
        out(CacheItem::Entry { sequence: e.sequence.0, durable: e.durable.0, blocks: e.blocks() });
        for record in e.records() {
            out(match record {
                Record::Insert { volume, lba, value } => {
                    let key = format::cache::index::index_key(volume, lba);
                    match key_item(&key, value, layout) {
                        Some(key) => CacheItem::Insert(key),
                        None => CacheItem::Unreadable {
                            what: format!("the record for block {lba} of volume {volume}"),
                        },
                    }
                }
                Record::Raise { bucket, generation } => {
                    CacheItem::Raise { bucket: bucket.0, generation: generation.0 }
                }
                Record::Remove { volume, lba, len } => {
                    CacheItem::Remove { volume: volume.0, lba: lba.0, blocks: len }
                }
                Record::Epoch { epoch } => CacheItem::Epoch { epoch: epoch.0 },
            });
        }
    }
    Ok(())
}

fn key_item(key: &[u8], value: &[u8], layout: &Layout) -> Option<KeyItem> {
    let (volume, lba) = decode_key(key)?;
    let texts = |crcs: format::cache::index::CrcList<'_>| {
        crcs.iter().map(|c: Crc| crc_text(c)).collect::<Vec<_>>()
    };
    let (epoch, blocks, data, staged) = match IndexValue::decode(value)? {
        IndexValue::Zeros { epoch, len } => (epoch, len, None, None),
        IndexValue::Staged { epoch, crcs } => (epoch, crcs.len() as u64, None, Some(texts(crcs))),
        IndexValue::Data { epoch, addr: CacheAddr(address), generation, crcs, .. } => {
            let bucket = address / u64::from(layout.bucket_blocks);
            let crcs = texts(crcs);
            let blocks = crcs.len() as u64;
            (
                epoch,
                blocks,
                Some(DataItem {
                    address,
                    bucket,
                    generation: generation.0,
                    crcs,
                    sectors: None,
                    below: None,
                }),
                None,
            )
        }
        IndexValue::Part { epoch, addr: CacheAddr(address), generation, cover, crc } => {
            let bucket = address / u64::from(layout.bucket_blocks);
            let sectors = Some(format!("{:#010b}", cover.sectors.bits()));
            let below = cover.below.map(|b| (b.epoch.0, crc_text(b.crc)));
            let crcs = vec![crc_text(crc)];
            (
                epoch,
                1,
                Some(DataItem { address, bucket, generation: generation.0, crcs, sectors, below }),
                None,
            )
        }
    };
    Some(KeyItem { volume: volume.0, lba: lba.0, blocks, epoch: epoch.0, data, staged })
}

impl From<&CacheSuperblock> for CacheSuperblockItem {
    fn from(sb: &CacheSuperblock) -> Self {
        CacheSuperblockItem {
            uuid: hex(&sb.uuid),
            pool_uuid: hex(&sb.pool_uuid),
            sequence: sb.sequence,
            generation: sb.generation.0,
            incarnation: sb.incarnation,
            attached: sb.state == CacheState::Attached,
            bucket_blocks: sb.bucket_blocks,
            buckets: sb.bucket_count,
            journal_blocks: sb.journal_blocks,
            replay_position: sb.replay_position,
            replay_sequence: sb.replay_sequence.0,
            table_start: sb.table_start,
            journal_start: sb.journal_start,
            epoch: sb.epoch.0,
            cut: sb.cut.0,
            staged_open: sb.staged.0,
            staged_cut: sb.staged.1,
            counted_from: sb.counted_from.0,
            index: root(sb.root),
            table_digest: format!("{:016x}", sb.table_digest),
        }
    }
}
