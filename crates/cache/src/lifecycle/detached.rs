//! State of a cache, by its own superblock, when its pool does not name it any more.
//!
//! A device that holds a cache may be asked for again, as the place of a new one. The devices of
//! the pool that are there then may be older than that cache, and know nothing of it. So only what
//! the cache itself says decides whether it is lost: one that was opened, and is not marked as
//! detached, may hold what was flushed.

use base::{BLOCK, BLOCK_U64, IoError, Result, Slice, SliceList, StorageError};
use format::cache::superblock::{CacheState, CacheSuperblock, SLOTS};
use format::edges::edges;
use queue::{Class, Device};
use rt::Rt;

use crate::device::file::CacheFile;
use crate::device::slots::read_superblock;

/// Bytes of one request that writes zeros.
const ZEROS: u64 = 1 << 20;

/// Marks a cache that its pool does not name any more, durably, and of which all was written back
/// or nothing was ever written: nothing in it counts. All else in the edges of its device becomes
/// zeros, so that data that somebody writes there later is not taken for the cache. It is closed.
pub async fn mark_detached(rt: &Rt, file: &CacheFile) -> Result<()> {
    let queue = Device::new(rt, file.file, queue::Limits::default());
    let marked = mark(rt, file, &queue).await;
    queue.close();
    marked
}

async fn mark(rt: &Rt, file: &CacheFile, queue: &Device) -> Result<()> {
    let mut sb = read_superblock(file, queue).await?;
    sb.state = CacheState::Detached;
    // In every slot: whichever is read, it says so. Only then is anything else overwritten.
    let marked = async {
        for _ in 0..SLOTS {
            sb.sequence += 1;
            let mut block = rt.bufs().zeroed(BLOCK);
            sb.encode(&mut block);
            write(queue, CacheSuperblock::offset_of(sb.sequence), block.freeze()).await?;
            queue.flush(Class::Commit).await?;
        }
        empty(rt, file, queue).await
    };
    marked.await.map_err(|e| {
        StorageError::from_io(e, format_args!("{}: marking it as detached", file.path))
    })
}

/// Writes zeros to the edges of the device, around the superblocks.
async fn empty(rt: &Rt, file: &CacheFile, queue: &Device) -> std::result::Result<(), IoError> {
    for edge in edges(file.size_bytes / BLOCK_U64 * BLOCK_U64) {
        let mut at = edge.start;
        while at < edge.end {
            let slots = (0..SLOTS).map(CacheSuperblock::offset_of);
            if slots.clone().any(|slot| slot == at) {
                at += BLOCK_U64;
                continue;
            }
            let next = slots.filter(|slot| *slot > at).min().unwrap_or(edge.end);
            let len = (next.min(edge.end) - at).min(ZEROS) as usize;
            write(queue, at, rt.bufs().zeroed(len).freeze()).await?;
            at += len as u64;
        }
    }
    queue.flush(Class::Commit).await
}

async fn write(queue: &Device, at: u64, data: Slice) -> std::result::Result<(), IoError> {
    queue.write(Class::Commit, at, SliceList::from_iter([data])).await
}

/// Whether nothing in a cache with this superblock counts, for a pool of which no device that is
/// there names it: it is marked so; or it is the pool's own, and was never opened.
pub fn holds_nothing(sb: &CacheSuperblock, pool_uuid: Option<[u8; 16]>) -> bool {
    let is_unused = sb.incarnation == 0 && Some(sb.pool_uuid) == pool_uuid;
    sb.state == CacheState::Detached || is_unused
}
