//! The route of one request: to the pool alone, or by the cache in front of it, as the volume's
//! mode says. [`Blocks`](crate::routes::Blocks) chooses it.
//!
//! The volume of a [`Route`] cannot be frozen for as long as the route lives. The methods of a
//! route are the requests, in blocks; each decides in one place who carries the request out. A
//! FLUSH of a volume that writes back waits for the cache's journal, of any other for a commit.
//!
//! **A cache that goes out of use under a request.** If it is set aside, the pool has everything
//! that was acknowledged, and the pool carries the request out, once more if need be. If it fails
//! with something dirty in it, requests of volumes that write back fail; those of all others go to
//! the pool.

use base::{BLOCK, BLOCK_U64, BlockRange, Lba, Result, Slice, SliceList, VolumeId};
use cache::{BlockPart, Cache, Change, Patch};
use pool::{CacheMode, Pool};

use rt::Reason;
use rt::sync::Permit;

use crate::quiesce::InFlightGuard;

pub(crate) struct Route<'a> {
    pool: &'a Pool,
    volume: VolumeId,
    by: RequestPath,
    /// For a drain the request is under way until this is dropped.
    _change: Option<Change>,
    _in_flight: InFlightGuard,
}

enum RequestPath {
    /// The pool alone.
    Pool,
    /// The cache, which writes back to the pool.
    Cache(Cache),
    /// The pool first; the cache stays coherent, and if `keep`, it keeps what is written.
    Direct { cache: Cache, keep: bool },
}

impl<'a> Route<'a> {
    /// The route of a request that is in flight on `volume`, whose mode is `mode`.
    /// `cache`: the one that a volume of this mode may ask.
    pub fn new(
        pool: &'a Pool,
        cache: Option<Cache>,
        volume: VolumeId,
        mode: CacheMode,
        change: Option<Change>,
        in_flight: InFlightGuard,
    ) -> Route<'a> {
        let by = match (cache, mode) {
            (None, _) | (_, CacheMode::None) => RequestPath::Pool,
            (Some(cache), CacheMode::WriteBack) => RequestPath::Cache(cache),
            (Some(cache), CacheMode::WriteThrough) => RequestPath::Direct { cache, keep: true },
            (Some(cache), CacheMode::WriteAround) => RequestPath::Direct { cache, keep: false },
        };
        Route { pool, volume, by, _change: change, _in_flight: in_flight }
    }

    /// The way that the request goes now: a cache that was set aside is asked for nothing.
    fn by(&self) -> &RequestPath {
        match &self.by {
            RequestPath::Cache(cache) | RequestPath::Direct { cache, .. } if cache.is_aside() => {
                &RequestPath::Pool
            }
            by => by,
        }
    }

    /// True if `outcome`, of a request that went by the cache, is the answer; else the pool carries
    /// the request out. A change that ended well counts for nothing if the cache was set aside
    /// meanwhile: what it left may be in the cache only. A direct change that ended well is in the
    /// pool, even if the cache has failed.
    fn stands<T>(&self, outcome: &Result<T>) -> bool {
        match &self.by {
            RequestPath::Pool => true,
            RequestPath::Cache(cache) => !cache.is_aside(),
            RequestPath::Direct { cache, .. } => {
                !cache.is_aside() && (outcome.is_ok() || !cache.has_failed())
            }
        }
    }

    pub async fn read(&self, lba: Lba, blocks: u64) -> Result<SliceList> {
        let outcome = match self.by() {
            RequestPath::Pool => return self.pool.read(self.volume, lba, blocks).await,
            RequestPath::Cache(cache) | RequestPath::Direct { cache, .. } => {
                cache.read(self.volume, lba, blocks).await
            }
        };
        if outcome.is_ok() || self.stands(&outcome) {
            return outcome;
        }
        Box::pin(self.pool.read(self.volume, lba, blocks)).await
    }

    pub async fn write(&self, lba: Lba, data: &Slice) -> Result<()> {
        let outcome = match self.by() {
            RequestPath::Pool => return self.pool.write(self.volume, lba, data).await,
            RequestPath::Cache(cache) => cache.write(self.volume, lba, data).await,
            RequestPath::Direct { cache, keep } => {
                Box::pin(cache.write_direct(self.volume, lba, data, *keep)).await
            }
        };
        if self.stands(&outcome) {
            return outcome;
        }
        Box::pin(self.pool.write(self.volume, lba, data)).await
    }

    /// Waits until a cache that the volume writes back to has carried what it has to the pool: as a
    /// write does for which the pool has no room.
    pub async fn publish(&self) -> Result<()> {
        let RequestPath::Cache(cache) = self.by() else { return Ok(()) };
        let publish = Box::pin(cache.publish_all());
        let outcome = self.pool.rt().waits(Reason::Publish, publish).await;
        if self.stands(&outcome) { outcome } else { Ok(()) }
    }

    /// Writes parts of a block, which no other may be writing. `known`: what is known of the block
    /// from the write before; returns what is known now. A cache that the volume writes back to
    /// keeps the sectors; past it, and without one, the block is read and written as a whole.
    pub async fn write_parts(
        &self,
        lba: Lba,
        patches: &[Patch],
        mut known: Option<BlockPart>,
    ) -> Result<BlockPart> {
        if let RequestPath::Cache(cache) = self.by() {
            let outcome = cache.write_parts(self.volume, lba, patches, known).await;
            if self.stands(&outcome) {
                return outcome;
            }
            known = None;
        }
        Box::pin(self.merge_parts(lba, patches, known)).await
    }

    async fn merge_parts(
        &self,
        lba: Lba,
        patches: &[Patch],
        known: Option<BlockPart>,
    ) -> Result<BlockPart> {
        let mut block = self.pool.bufs().take(BLOCK);
        match known.filter(|known| known.sectors.is_all()) {
            Some(known) => block.copy_from_slice(&known.data),
            None => block.copy_from_slice(&self.read(lba, 1).await?[0]),
        }
        patches.iter().for_each(|patch| patch.apply(&mut block));
        let data = block.freeze();
        self.write(lba, &data).await?;
        Ok(BlockPart::whole(data))
    }

    pub async fn discard(&self, lba: Lba, end: Lba) -> Result<()> {
        let outcome = match self.by() {
            RequestPath::Pool => return self.pool.discard(self.volume, lba, end).await,
            RequestPath::Cache(cache) => cache.discard(self.volume, lba, end).await,
            RequestPath::Direct { cache, .. } => cache.discard_direct(self.volume, lba, end).await,
        };
        if self.stands(&outcome) { outcome } else { self.pool.discard(self.volume, lba, end).await }
    }

    pub async fn prefetch(&self, lba: Lba, end: Lba) -> Result<()> {
        let outcome = match self.by() {
            RequestPath::Pool => return self.pool.prefetch(self.volume, lba, end).await,
            RequestPath::Cache(cache) | RequestPath::Direct { cache, .. } => {
                cache.prefetch(self.volume, lba, end).await
            }
        };
        if self.stands(&outcome) {
            outcome
        } else {
            self.pool.prefetch(self.volume, lba, end).await
        }
    }

    pub async fn allocated(
        &self,
        lba: Lba,
        end: Lba,
        max: usize,
    ) -> Result<(Vec<(Lba, u64)>, Lba)> {
        if let RequestPath::Cache(cache) = self.by() {
            let outcome = cache.allocated(self.volume, lba, end, max).await;
            if self.stands(&outcome) {
                return outcome;
            }
        }
        self.pool.allocated(self.volume, lba, end, max).await
    }

    /// Makes durable what has completed before: in the cache where the volume writes back, else in
    /// the pool.
    pub async fn flush(&self) -> Result<()> {
        if let RequestPath::Cache(cache) = self.by() {
            let outcome = cache.flush().await;
            if self.stands(&outcome) {
                return outcome;
            }
        }
        self.pool.commit().await
    }

    /// Changes the volume's size from `old` to `new` bytes; `last` is its new last block, if that
    /// changes. `no_pass`: what [`Blocks::no_pass`](crate::routes::Blocks::no_pass) gave; without
    /// it this waits for passes.
    pub async fn resize(
        &self,
        old: u64,
        new: u64,
        last: Option<Slice>,
        no_pass: Option<Permit>,
    ) -> Result<()> {
        match self.by() {
            RequestPath::Pool => self.pool.resize_volume(self.volume, new, last).await,
            RequestPath::Cache(cache) => {
                let no_pass = match no_pass {
                    Some(no_pass) => no_pass,
                    None => cache.between_cuts().await?,
                };
                self.resize_by_cache(cache, old, new, last, no_pass).await
            }
            RequestPath::Direct { cache, .. } => {
                // No cut has anything of it that is not published: that was so when it ceased to
                // write back.
                let _no_pass = match no_pass {
                    Some(no_pass) => no_pass,
                    None => cache.between_passes().await,
                };
                self.resize_direct(cache, old, new, last).await
            }
        }
    }

    /// The pool says the size, at once. What the cache has behind a new end is dropped after that,
    /// here or when it is opened; and what the last block has there, now or before the volume grows
    /// again.
    async fn resize_by_cache(
        &self,
        cache: &Cache,
        old: u64,
        new: u64,
        last: Option<Slice>,
        no_pass: Permit,
    ) -> Result<()> {
        if new >= old {
            self.nothing_behind(cache, end_of(old)).await?;
        }
        self.pool.resize_volume(self.volume, new, None).await?;
        if new < old {
            cache.forget_from(self.volume, end_of(new)).await?;
        }
        drop(no_pass);
        if let Some(last) = last {
            debug_assert_eq!(last.len(), BLOCK);
            cache.write(self.volume, Lba(new / BLOCK_U64), &last).await?;
        }
        cache.flush().await
    }

    async fn resize_direct(
        &self,
        cache: &Cache,
        old: u64,
        new: u64,
        last: Option<Slice>,
    ) -> Result<()> {
        // The new last block, if it changes, and what is behind it.
        let from = if last.is_some() { Lba(new / BLOCK_U64) } else { end_of(new) };
        if new >= old {
            self.nothing_behind(cache, end_of(old)).await?;
        }
        // The pool gives up blocks when it has committed the size: until then a crash leaves the
        // old size, and all of the content.
        let resize = self.pool.resize_volume(self.volume, new, last);
        if new < old {
            cache.change_direct(self.volume, BlockRange::new(from, end_of(old)), resize).await
        } else {
            resize.await
        }
    }

    /// Before a volume grows: a shrink that failed half way may have left something in the cache
    /// behind `end`, where the volume ends. The pool makes that end durable first, or a crash would
    /// find the one before, and less in front of it than was flushed.
    async fn nothing_behind(&self, cache: &Cache, end: Lba) -> Result<()> {
        self.pool.commit().await?;
        cache.forget_from(self.volume, end).await?;
        cache.flush().await
    }
}

/// The first block that is behind a volume of so many bytes.
fn end_of(size_bytes: u64) -> Lba {
    Lba(size_bytes.div_ceil(BLOCK_U64))
}
