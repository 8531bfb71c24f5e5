//! What a cache says of itself when its pool does not name it any more.
//!
//! A device that holds a cache may be asked for again, as the place of a new one. The devices of
//! the pool that are there then may be older than that cache, and know nothing of it. So only what
//! the cache itself says decides whether it is lost: one that was opened, and is not marked as
//! detached, may hold what was flushed.

use base::{BLOCK, Result, SliceList, StorageError};
use format::cache::superblock::{CacheState, CacheSuperblock};
use queue::{Class, Device};
use rt::Rt;

use crate::device::file::CacheFile;
use crate::device::slots::read_superblock;

/// Marks a cache that its pool does not name any more, durably, and of which all was written back
/// or nothing was ever written: nothing in it counts. It is closed.
pub async fn mark_detached(rt: &Rt, file: &CacheFile) -> Result<()> {
    let queue = Device::new(rt, file.file, queue::Limits::default());
    let marked = mark(rt, file, &queue).await;
    queue.close();
    marked
}

async fn mark(rt: &Rt, file: &CacheFile, queue: &Device) -> Result<()> {
    let mut sb = read_superblock(file, queue).await?;
    sb.state = CacheState::Detached;
    // Both of the next pair: whichever is read last, it is one of them.
    for _ in 0..2 {
        sb.sequence += 1;
        let mut block = rt.bufs().zeroed(BLOCK);
        sb.encode(&mut block);
        let (offset, data) = (CacheSuperblock::offset_of(sb.sequence), block.freeze());
        let written = queue.write(Class::Commit, offset, SliceList::from_iter([data])).await;
        let flushed = match written {
            Ok(()) => queue.flush(Class::Commit).await,
            Err(e) => Err(e),
        };
        flushed.map_err(|e| {
            StorageError::from_io(e, format_args!("{}: marking it as detached", file.path))
        })?;
    }
    Ok(())
}

/// Whether nothing in a cache with this superblock counts, for a pool of which no device that is
/// there names it: it is marked so; or it is the pool's own, and was never opened.
pub fn holds_nothing(sb: &CacheSuperblock, pool_uuid: Option<[u8; 16]>) -> bool {
    let is_unused = sb.incarnation == 0 && Some(sb.pool_uuid) == pool_uuid;
    sb.state == CacheState::Detached || is_unused
}
