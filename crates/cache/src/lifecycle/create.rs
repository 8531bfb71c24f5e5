//! Making a cache on an empty device.

use base::{
    BLOCK, BLOCK_U64, EntrySeq, Epoch, ErrorKind, Generation, Result, SliceList, StorageError,
};
use format::cache::bucket::BucketRecord;
use format::cache::moved::MovedPages;
use format::cache::pool_seen::{PoolOpens, PoolSeen};
use format::cache::superblock::{CacheState, CacheSuperblock, SLOTS};
use format::page::page_digest;
use pool::Pool;
use queue::{Class, Device};
use rt::Rt;

use crate::device::file::CacheFile;
use crate::device::layout::{LEAST_BUCKET, Layout};
use crate::device::table::{buckets_of, encode_page};

/// The choices for a new cache.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Bytes of a bucket: a power of two from 64 KiB to 8 MiB.
    pub bucket_bytes: u64,
    /// Bytes of the journal; chosen by the size of the cache if `None`.
    pub journal_bytes: Option<u64>,
}

impl Default for CreateOptions {
    fn default() -> Self {
        CreateOptions { bucket_bytes: 512 << 10, journal_bytes: None }
    }
}

/// The generation of a new cache's table.
const FIRST: Generation = Generation(1);
/// The least that a journal may have: so that a full entry, and what is passed over at the ring's
/// end, always finds room.
const LEAST_JOURNAL: u64 = 1 << 20;
/// Pages written by one request.
const PAGES: u32 = 64;

/// Plans the layout of a cache of `size_bytes` bytes. Fails if there can be none. Changes nothing.
fn plan(size_bytes: u64, options: &CreateOptions) -> Result<Layout> {
    let invalid = |text: String| Err(StorageError::new(ErrorKind::Invalid, text));
    let bucket = options.bucket_bytes;
    if !bucket.is_power_of_two() || !(LEAST_BUCKET * BLOCK_U64..=8 << 20).contains(&bucket) {
        return invalid(format!("a bucket of {bucket} bytes: a power of two from 64 KiB to 8 MiB"));
    }
    if let Some(j) = options.journal_bytes
        && !(LEAST_JOURNAL..=1 << 30).contains(&j)
    {
        return invalid(format!("a journal of {j} bytes: 1 MiB to 1 GiB"));
    }
    Layout::choose(size_bytes, bucket, options.journal_bytes)
}

/// Fails where [`create`] would, on a file or device of this size, as far as that can be told
/// without touching it.
pub fn check_create(size_bytes: u64, options: &CreateOptions) -> Result<()> {
    plan(size_bytes, options).map(drop)
}

/// Makes an empty cache for `pool` on `file`, and attaches it. What stood there is lost: the
/// caller has asked. `uuid` is from a source of true randomness.
pub async fn create(
    rt: &Rt,
    file: &CacheFile,
    pool: &Pool,
    options: &CreateOptions,
    uuid: [u8; 16],
) -> Result<()> {
    let layout = plan(file.size_bytes, options)?;
    let sb = CacheSuperblock {
        uuid,
        pool_uuid: pool.uuid(),
        sequence: 1,
        incarnation: 0,
        generation: FIRST,
        root: None,
        bucket_blocks: layout.bucket_blocks,
        bucket_count: layout.buckets,
        table_start: Layout::TABLE_START,
        journal_start: layout.ring().offset / BLOCK_U64,
        journal_blocks: layout.journal_blocks,
        replay_position: 0,
        replay_sequence: EntrySeq(1),
        epoch: Epoch(pool.cache_link().published().0 + 1),
        cut: Epoch(0),
        staged: (0, 0),
        counted_from: Epoch(pool.cache_link().published().0 + 1),
        pool_seen: PoolSeen::default(),
        opens: PoolOpens::default(),
        moved: MovedPages::default(),
        table_digest: (0..layout.pages())
            .fold(0, |sum: u64, page| sum.wrapping_add(page_digest(page, FIRST))),
        state: CacheState::Attached,
        shard: 0,
    };
    let queue = Device::new(rt, file.file, queue::Limits::default());
    let outcome = format_device(rt, &queue, &layout, &sb).await;
    queue.close();
    outcome
        .map_err(|e| StorageError::from_io(e, format_args!("{}: creating the cache", file.path)))?;
    pool.cache_link().set_cache_uuid(Some(uuid)).await
}

/// Old superblocks go first and the new one comes last: a crash between leaves no cache, and never
/// half of one that looks whole.
async fn format_device(
    rt: &Rt,
    queue: &Device,
    layout: &Layout,
    sb: &CacheSuperblock,
) -> std::result::Result<(), base::IoError> {
    let one = |slice: base::Slice| SliceList::from_iter([slice]);
    let zero = rt.bufs().zeroed(BLOCK).freeze();
    queue.write(Class::Commit, 0, one(zero.clone())).await?;
    for slot in 0..SLOTS {
        queue.write(Class::Commit, CacheSuperblock::offset_of(slot), one(zero.clone())).await?;
    }
    queue.flush(Class::Commit).await?;
    let mut page = 0;
    while page < layout.pages() {
        let n = PAGES.min(layout.pages() - page);
        // Both slots: the second must not hold a page of an older cache.
        let mut buf = rt.bufs().zeroed(n as usize * 2 * BLOCK);
        for (i, slots) in buf.chunks_exact_mut(2 * BLOCK).enumerate() {
            let number = page + i as u32;
            let records = vec![BucketRecord::default(); buckets_of(layout, number).count()];
            slots[..BLOCK].copy_from_slice(&encode_page(
                sb.uuid,
                number,
                0,
                &records,
                FIRST,
                rt.bufs(),
            ));
        }
        queue.write(Class::Commit, layout.page_offset(page, 0), one(buf.freeze())).await?;
        page += n;
    }
    queue.flush(Class::Commit).await?;
    let mut block = rt.bufs().zeroed(BLOCK);
    sb.encode(&mut block);
    queue
        .write(Class::Commit, CacheSuperblock::offset_of(sb.sequence), one(block.freeze()))
        .await?;
    queue.flush(Class::Commit).await
}
