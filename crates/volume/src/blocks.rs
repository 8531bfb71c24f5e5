//! Where a volume's blocks are: in the pool, or in the cache in front of it, as the volume's mode says.
//!
//! Every request goes in by the volume's gate ([`crate::gate`]). Whoever attaches or detaches a cache, or changes a mode, shuts it first: no request
//! sees two ways at once.
//!
//! **A cache that has failed** with something dirty in it is in the way of volumes that write back alone. All others go around it, and it is not told what they
//! change: for as long as it is there, nobody may ask it about them again, and none of them may begin to write back.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use base::{BLOCK, BLOCK_U64, Lba, Slice, SliceList, VolumeId};
use cache::{BlockPart, Cache};
use pool::{CacheMode, ErrorKind, Pool, PoolError, Result};
use rustc_hash::FxHashMap;

use crate::gate::{Gate, Inside, Shut};

/// The ways of all volumes; clones are the same.
#[derive(Clone)]
pub(crate) struct Blocks(Rc<Inner>);

struct Inner {
    pool: Pool,
    cache: RefCell<Option<Cache>>,
    gates: RefCell<FxHashMap<VolumeId, Gate>>,
    /// While all gates are shut, or about to be: those of volumes that were made meanwhile.
    born_shut: RefCell<Option<Vec<Shut>>>,
    /// One change of a cache or a mode at a time.
    changing: rt::sync::Semaphore,
}

/// All gates stay shut until it is dropped, also those of volumes that are made meanwhile.
struct AllShut {
    blocks: Blocks,
    gates: Vec<Shut>,
}

impl Drop for AllShut {
    fn drop(&mut self) {
        self.blocks.0.born_shut.take();
        self.gates.clear();
    }
}

/// The way of one request.
enum Way {
    Pool,
    Back(Cache),
    /// To the pool, past the cache; true: what is written is kept in the cache too.
    Direct(Cache, bool),
}

impl Blocks {
    pub fn new(pool: &Pool, cache: Option<Cache>) -> Blocks {
        let (cache, gates) = (RefCell::new(cache), RefCell::default());
        let born_shut = RefCell::default();
        Blocks(Rc::new(Inner { pool: pool.clone(), cache, gates, born_shut, changing: rt::sync::Semaphore::new(1) }))
    }

    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    pub fn cache(&self) -> Option<Cache> {
        self.0.cache.borrow().clone()
    }

    /// [`NotFound`](ErrorKind::NotFound) if the volume is gone, or was to be: what its mode was is not known any more, and its blocks may be there after a crash.
    fn gate(&self, volume: VolumeId) -> Result<Gate> {
        let mut gates = self.0.gates.borrow_mut();
        if let Some(gate) = gates.get(&volume) {
            return Ok(gate.clone());
        }
        let Some(status) = self.0.pool.volume(volume) else {
            return Err(is_gone(volume));
        };
        let gate = Gate::new(status.cache_mode);
        if let Some(shut) = &mut *self.0.born_shut.borrow_mut() {
            shut.push(gate.born_shut());
        }
        gates.insert(volume, gate.clone());
        Ok(gate)
    }

    async fn enter(&self, volume: VolumeId) -> Result<(Inside, Way)> {
        let gate = self.gate(volume)?;
        let inside = gate.enter().await.ok_or_else(|| is_gone(volume))?;
        let way = match (self.cache_for(gate.mode()), gate.mode()) {
            (None, _) | (_, CacheMode::None) => Way::Pool,
            (Some(c), CacheMode::WriteBack) => Way::Back(c),
            (Some(c), CacheMode::WriteThrough) => Way::Direct(c, true),
            (Some(c), CacheMode::WriteAround) => Way::Direct(c, false),
        };
        Ok((inside, way))
    }

    /// The cache, if a volume of this mode may ask it for anything.
    fn cache_for(&self, mode: CacheMode) -> Option<Cache> {
        let serves = |c: &Cache| !c.is_aside() && (mode == CacheMode::WriteBack || !c.has_failed());
        self.cache().filter(serves)
    }

    /// The outcome of a request through a cache; once more through the pool if the cache was set aside meanwhile. Changes too that ended well: what they left
    /// may be in the cache only, of which nobody asks any more.
    async fn or_pool<T>(&self, cache: &Cache, outcome: Result<T>, again: impl Future<Output = Result<T>>) -> Result<T> {
        if cache.is_aside() { again.await } else { outcome }
    }

    /// Of a volume that does not write back; also if it failed because the cache did. What ended well is in the pool.
    async fn or_around<T>(
        &self,
        cache: &Cache,
        outcome: Result<T>,
        again: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if cache.is_aside() || outcome.is_err() && cache.has_failed() { again.await } else { outcome }
    }

    pub async fn read(&self, volume: VolumeId, lba: Lba, blocks: u64) -> Result<SliceList> {
        let (_inside, way) = self.enter(volume).await?;
        match way {
            Way::Pool => self.0.pool.read(volume, lba, blocks).await,
            Way::Back(c) => {
                let outcome = c.read(volume, lba, blocks).await;
                if outcome.is_ok() {
                    return outcome;
                }
                Box::pin(self.or_pool(&c, outcome, self.0.pool.read(volume, lba, blocks))).await
            }
            Way::Direct(c, _) => {
                let outcome = c.read(volume, lba, blocks).await;
                if outcome.is_ok() {
                    return outcome;
                }
                Box::pin(self.or_around(&c, outcome, self.0.pool.read(volume, lba, blocks))).await
            }
        }
    }

    pub async fn write(&self, volume: VolumeId, lba: Lba, data: &Slice) -> Result<()> {
        let (_inside, way) = self.enter(volume).await?;
        match way {
            Way::Pool => self.0.pool.write(volume, lba, data).await,
            Way::Back(c) => {
                let outcome = c.write(volume, lba, data).await;
                if !c.is_aside() {
                    return outcome;
                }
                Box::pin(self.or_pool(&c, outcome, self.0.pool.write(volume, lba, data))).await
            }
            Way::Direct(c, keep) => {
                Box::pin(async {
                    let outcome = c.write_direct(volume, lba, data, keep).await;
                    self.or_around(&c, outcome, self.0.pool.write(volume, lba, data)).await
                })
                .await
            }
        }
    }

    /// Writes `data` at byte `at` of a block, which nobody else may be writing. `known`: what is known of the block from the write before; returns what is
    /// known now. A cache that volumes write back to keeps the sectors; past it, and without one, the block is read and written as a whole.
    pub async fn write_part(
        &self,
        (volume, lba): (VolumeId, Lba),
        at: usize,
        data: &Slice,
        known: Option<BlockPart>,
    ) -> Result<BlockPart> {
        if let (_inside, Way::Back(c)) = self.enter(volume).await? {
            let outcome = c.write_part((volume, lba), at, data, known).await;
            if !c.is_aside() {
                return outcome;
            }
            drop(_inside);
            return Box::pin(self.merge_part((volume, lba), at, data, None)).await;
        }
        Box::pin(self.merge_part((volume, lba), at, data, known)).await
    }

    async fn merge_part(
        &self,
        (volume, lba): (VolumeId, Lba),
        at: usize,
        data: &Slice,
        known: Option<BlockPart>,
    ) -> Result<BlockPart> {
        let mut block = self.0.pool.bufs().take(BLOCK);
        match known.filter(|known| known.sectors.is_all()) {
            Some(known) => block.copy_from_slice(&known.data),
            None => block.copy_from_slice(&self.read(volume, lba, 1).await?[0]),
        }
        block[at..at + data.len()].copy_from_slice(data);
        let data = block.freeze();
        self.write(volume, lba, &data).await?;
        Ok(BlockPart::whole(data))
    }

    pub async fn discard(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let (_inside, way) = self.enter(volume).await?;
        match way {
            Way::Pool => self.0.pool.discard(volume, lba, end).await,
            Way::Back(c) => {
                let outcome = c.discard(volume, lba, end).await;
                self.or_pool(&c, outcome, self.0.pool.discard(volume, lba, end)).await
            }
            Way::Direct(c, _) => {
                let outcome = c.discard_direct(volume, lba, end).await;
                self.or_around(&c, outcome, self.0.pool.discard(volume, lba, end)).await
            }
        }
    }

    pub async fn prefetch(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let (_inside, way) = self.enter(volume).await?;
        match way {
            Way::Pool => self.0.pool.prefetch(volume, lba, end).await,
            Way::Back(c) => c.prefetch(volume, lba, end).await,
            Way::Direct(c, _) => {
                let outcome = c.prefetch(volume, lba, end).await;
                self.or_around(&c, outcome, self.0.pool.prefetch(volume, lba, end)).await
            }
        }
    }

    pub async fn allocated(&self, volume: VolumeId, lba: Lba, end: Lba, max: usize) -> Result<(Vec<(Lba, u64)>, Lba)> {
        let (_inside, way) = self.enter(volume).await?;
        match way {
            Way::Back(c) => {
                let outcome = c.allocated(volume, lba, end, max).await;
                self.or_pool(&c, outcome, self.0.pool.allocated(volume, lba, end, max)).await
            }
            Way::Pool | Way::Direct(..) => self.0.pool.allocated(volume, lba, end, max).await,
        }
    }

    /// Makes durable what has completed before: in the cache where the volume writes back, else in the pool.
    pub async fn flush(&self, volume: VolumeId) -> Result<()> {
        let (_inside, way) = self.enter(volume).await?;
        match way {
            Way::Back(c) => {
                let outcome = c.flush_volume(volume).await;
                self.or_pool(&c, outcome, self.0.pool.commit()).await
            }
            Way::Pool | Way::Direct(..) => self.0.pool.commit().await,
        }
    }

    /// Changes a volume's size from `old` to `new` bytes; `last` is its new last block, if that changes.
    pub async fn resize(&self, volume: VolumeId, (old, new): (u64, u64), last: Option<Slice>) -> Result<()> {
        let (_inside, way) = self.enter(volume).await?;
        let (from, to) = (Lba(new.div_ceil(BLOCK_U64)), Lba(old.div_ceil(BLOCK_U64)));
        match way {
            Way::Pool => self.0.pool.resize_volume(volume, new, last).await,
            Way::Back(cache) => {
                // The pool says the size, at once. What the cache has behind a new end is dropped after that, here or when it is opened; and what
                // the last block has there, now or before the volume grows again.
                let no_round = cache.between_cuts().await?;
                if new >= old {
                    self.nothing_behind(&cache, volume, to).await?;
                }
                self.0.pool.resize_volume(volume, new, None).await?;
                if new < old {
                    cache.forget_from(volume, from).await?;
                }
                drop(no_round);
                if let Some(last) = last {
                    debug_assert_eq!(last.len(), BLOCK);
                    cache.write(volume, Lba(new / BLOCK_U64), &last).await?;
                }
                cache.flush_volume(volume).await
            }
            Way::Direct(cache, _) => {
                // The new last block, if it changes, and what is behind it.
                let behind = (Lba(if last.is_some() { new / BLOCK_U64 } else { from.0 }), to);
                // No cut has anything of it that is not published: that was so when it ceased to
                // write back.
                let _no_round = cache.between_rounds().await;
                if new >= old {
                    self.nothing_behind(&cache, volume, to).await?;
                }
                // The pool gives up blocks when it has committed the size: until then a crash leaves the old size, and all of the content.
                let resize = self.0.pool.resize_volume(volume, new, last);
                if new < old { cache.change_direct(volume, behind, resize).await } else { resize.await }
            }
        }
    }

    /// Before a volume grows: a shrink that failed half way may have left something in the cache behind `end`, where the volume ends. The pool makes that end
    /// durable first, or a crash would find the one before, and less in front of it than was flushed.
    async fn nothing_behind(&self, cache: &Cache, volume: VolumeId, end: Lba) -> Result<()> {
        self.0.pool.commit().await?;
        cache.forget_from(volume, end).await?;
        cache.flush().await
    }

    /// Deletes a volume; nothing of it is carried to the pool any more. Requests under way end first, or they would leave in the cache what is of no volume.
    pub async fn delete(&self, volume: VolumeId) -> Result<()> {
        let gate = self.gate(volume)?;
        let _shut = gate.shut().await;
        let outcome = async {
            let mode = gate.mode();
            let Some(cache) = self.cache_for(mode).filter(|_| mode != CacheMode::None) else {
                return self.0.pool.delete_volume(volume).await;
            };
            // Cuts may have blocks of it. They are passed over: the pool does not know the volume
            // any more, and its id is not given again.
            let _no_round = cache.between_rounds().await;
            self.0.pool.delete_volume(volume).await?;
            let forgotten = cache.forget(volume).await;
            if mode == CacheMode::WriteBack {
                forgotten
            } else {
                self.or_around(&cache, forgotten, async { Ok(()) }).await
            }
        }
        .await;
        if self.0.pool.volume(volume).is_none() {
            gate.set_gone();
            self.0.gates.borrow_mut().remove(&volume);
        }
        outcome
    }

    /// Changes what the cache does for a volume, under load; durable when it returns. What is dirty is written back first; requests are held
    /// only while the last of it goes.
    pub async fn set_mode(&self, volume: VolumeId, mode: CacheMode) -> Result<()> {
        let _alone = self.0.changing.acquire(1).await;
        let gate = self.gate(volume)?;
        let before = gate.mode();
        if before == mode {
            // A switch to it, or away from it, may have failed at the commit.
            return self.0.pool.set_cache_mode(volume, mode).await;
        }
        let cache = self.cache().filter(|c| !c.is_aside());
        if let Some(cache) = &cache
            && before == CacheMode::WriteBack
        {
            cache.publish_all().await?;
        }
        let _shut = gate.shut().await;
        if mode == CacheMode::WriteBack && cache.as_ref().is_some_and(|c| !c.is_aside() && c.has_failed()) {
            return Err(PoolError::new(
                ErrorKind::Io,
                "the cache has failed: no volume can begin to write back before forebay was restarted",
            ));
        }
        // What one that has failed still has of the volume, nobody asks it for.
        let cache = cache.filter(|c| before == CacheMode::WriteBack || !c.has_failed());
        if let Some(cache) = &cache {
            if before == CacheMode::WriteBack {
                self.write_back(cache, || cache.is_written_back(volume)).await?;
            } else {
                // What comes now may be durable in the cache before the pool commits what came before.
                self.0.pool.commit().await?;
            }
            if mode == CacheMode::None {
                cache.forget(volume).await?;
                cache.flush().await?;
            }
        }
        let outcome = self.0.pool.set_cache_mode(volume, mode).await;
        // A commit that fails may have got through nonetheless, or the next one does: then a crash finds the new mode. So no more is asked of the cache from now
        // on than each of the two allows: what writes back would be hidden by the other modes, and what is kept by none.
        gate.set_mode(if outcome.is_ok() { mode } else { before.max(mode) });
        outcome
    }

    async fn write_back(&self, cache: &Cache, done: impl Fn() -> bool) -> Result<()> {
        for _ in 0..3 {
            if done() {
                return Ok(());
            }
            cache.publish_all().await?;
        }
        if done() {
            return Ok(());
        }
        let what = "something dirty is bad in the cache and cannot be written back: see bad_blocks in forebay cache status; write those blocks again";
        Err(PoolError::new(ErrorKind::Io, what))
    }

    /// Puts a cache in front of the pool, under load. It must be open and empty.
    pub async fn attach(&self, cache: Cache) -> Result<()> {
        let _alone = self.0.changing.acquire(1).await;
        if self.0.cache.borrow().is_some() {
            return Err(PoolError::new(ErrorKind::Exists, "the pool has a cache already"));
        }
        let _shut = self.shut_all().await;
        self.0.pool.commit().await?;
        *self.0.cache.borrow_mut() = Some(cache);
        Ok(())
    }

    /// Writes everything back and takes the cache away, under load; requests are held only while the last of it goes.
    pub async fn detach(&self) -> Result<()> {
        let _alone = self.0.changing.acquire(1).await;
        let Some(cache) = self.cache() else {
            return Err(PoolError::new(ErrorKind::NotFound, "the pool has no cache"));
        };
        if !cache.is_aside() {
            cache.publish_all().await?;
        }
        let _shut = self.shut_all().await;
        cache.detach().await?;
        *self.0.cache.borrow_mut() = None;
        Ok(())
    }

    async fn shut_all(&self) -> AllShut {
        let there: Vec<Gate> = self.0.pool.volumes().iter().filter_map(|v| self.gate(v.id).ok()).collect();
        *self.0.born_shut.borrow_mut() = Some(Vec::new());
        let mut all = AllShut { blocks: self.clone(), gates: Vec::with_capacity(there.len()) };
        for gate in there {
            all.gates.push(gate.shut().await);
        }
        all
    }
}

fn is_gone(volume: VolumeId) -> PoolError {
    PoolError::new(ErrorKind::NotFound, format!("there is no volume {volume} any more"))
}
