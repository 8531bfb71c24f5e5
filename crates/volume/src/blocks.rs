//! Where a volume's blocks are: in the pool, or in the cache in front of it. With a cache every request goes through it, so that what it holds is what
//! the volume holds.

use base::{BLOCK, BLOCK_U64, Lba, Slice, SliceList, VolumeId};
use cache::Cache;
use pool::{Pool, Result};

#[derive(Clone)]
pub(crate) struct Blocks {
    pool: Pool,
    cache: Option<Cache>,
}

impl Blocks {
    pub fn new(pool: &Pool, cache: Option<Cache>) -> Blocks {
        Blocks { pool: pool.clone(), cache }
    }

    pub async fn read(&self, volume: VolumeId, lba: Lba, blocks: u64) -> Result<SliceList> {
        match &self.cache {
            None => self.pool.read(volume, lba, blocks).await,
            Some(cache) => cache.read(volume, lba, blocks).await,
        }
    }

    pub async fn write(&self, volume: VolumeId, lba: Lba, data: &Slice) -> Result<()> {
        match &self.cache {
            None => self.pool.write(volume, lba, data).await,
            Some(cache) => cache.write(volume, lba, data).await,
        }
    }

    pub async fn discard(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        match &self.cache {
            None => self.pool.discard(volume, lba, end).await,
            Some(cache) => cache.discard(volume, lba, end).await,
        }
    }

    pub async fn prefetch(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        match &self.cache {
            None => self.pool.prefetch(volume, lba, end).await,
            Some(cache) => cache.prefetch(volume, lba, end).await,
        }
    }

    pub async fn allocated(&self, volume: VolumeId, lba: Lba, end: Lba, max: usize) -> Result<(Vec<(Lba, u64)>, Lba)> {
        match &self.cache {
            None => self.pool.allocated(volume, lba, end, max).await,
            Some(cache) => cache.allocated(volume, lba, end, max).await,
        }
    }

    pub async fn flush(&self) -> Result<()> {
        match &self.cache {
            None => self.pool.commit().await,
            Some(cache) => cache.flush().await,
        }
    }

    /// Changes a volume's size from `old` to `new` bytes; `last` is its new last block, if that changes.
    pub async fn resize(&self, volume: VolumeId, (old, new): (u64, u64), last: Option<Slice>) -> Result<()> {
        let Some(cache) = &self.cache else { return self.pool.resize_volume(volume, new, last).await };
        if new < old {
            if let Some(last) = last {
                debug_assert_eq!(last.len(), BLOCK);
                cache.write(volume, Lba(new / BLOCK_U64), &last).await?;
            }
            cache.discard(volume, Lba(new.div_ceil(BLOCK_U64)), Lba(old.div_ceil(BLOCK_U64))).await?;
            cache.flush().await?;
        }
        let _no_round = cache.between_rounds().await;
        self.pool.resize_volume(volume, new, None).await
    }

    /// Deletes a volume; nothing of it is carried to the pool any more.
    pub async fn delete(&self, volume: VolumeId) -> Result<()> {
        let Some(cache) = &self.cache else { return self.pool.delete_volume(volume).await };
        let _no_round = cache.between_rounds().await;
        self.pool.delete_volume(volume).await?;
        cache.forget(volume).await
    }
}
