//! Where the blocks of all volumes are: in the pool, or in the cache in front of it, as each
//! volume's mode says; and what changes that.
//!
//! Every request of a volume is counted ([`crate::quiesce`]) and has one [`Route`]. A change of the
//! cache or of a mode freezes the volume first, so that no request has two routes.
//!
//! **A cache that has failed** with something dirty in it is in the way of volumes that write back
//! alone. All others go around it, and it is not told what they change: for as long as it is there,
//! it must not be asked about them again, and none of them may begin to write back.

use std::cell::RefCell;
use std::rc::Rc;

use base::{ErrorKind, Result, StorageError, VolumeId};
use cache::Cache;
use pool::{CacheMode, Pool};
use rustc_hash::FxHashMap;

use crate::changing::{Changing, GivenUp};
use crate::quiesce::{Frozen, Quiesce};
use crate::route::Route;

/// The routes of all volumes; clones are the same.
#[derive(Clone)]
pub(crate) struct Blocks(Rc<Inner>);

struct Inner {
    pool: Pool,
    cache: RefCell<Option<Cache>>,
    quiesces: RefCell<FxHashMap<VolumeId, Quiesce>>,
    /// While all volumes are frozen, or about to be: those that were made meanwhile.
    born_frozen: RefCell<Option<Vec<Frozen>>>,
    /// One change of a cache or a mode at a time.
    changing: Changing,
}

/// All volumes stay frozen until it is dropped, also those that are made meanwhile.
struct AllFrozen {
    blocks: Blocks,
    quiesces: Vec<Frozen>,
}

impl Drop for AllFrozen {
    fn drop(&mut self) {
        self.blocks.0.born_frozen.take();
        self.quiesces.clear();
    }
}

impl Blocks {
    pub fn new(pool: &Pool, cache: Option<Cache>) -> Blocks {
        let (cache, quiesces) = (RefCell::new(cache), RefCell::default());
        let born_frozen = RefCell::default();
        Blocks(Rc::new(Inner {
            pool: pool.clone(),
            cache,
            quiesces,
            born_frozen,
            changing: Changing::new(),
        }))
    }

    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    pub fn cache(&self) -> Option<Cache> {
        self.0.cache.borrow().clone()
    }

    /// [`NotFound`](ErrorKind::NotFound) if the volume is gone, or was to be: what its mode was is
    /// not known any more, and its blocks may be there after a crash.
    fn quiesce(&self, volume: VolumeId) -> Result<Quiesce> {
        let mut quiesces = self.0.quiesces.borrow_mut();
        if let Some(quiesce) = quiesces.get(&volume) {
            return Ok(quiesce.clone());
        }
        let Some(status) = self.0.pool.volume(volume) else {
            return Err(is_gone(volume));
        };
        let quiesce = Quiesce::new(status.cache_mode);
        if let Some(frozen) = &mut *self.0.born_frozen.borrow_mut() {
            frozen.push(quiesce.born_frozen());
        }
        quiesces.insert(volume, quiesce.clone());
        Ok(quiesce)
    }

    /// Begins a request of a volume, once that is not frozen, and chooses its route.
    pub async fn route(&self, volume: VolumeId) -> Result<Route<'_>> {
        let quiesce = self.quiesce(volume)?;
        let in_flight = quiesce.enter().await.ok_or_else(|| is_gone(volume))?;
        let mode = quiesce.mode();
        Ok(Route::new(&self.0.pool, self.cache_for(mode), (volume, mode), in_flight))
    }

    /// The cache, if a volume of this mode may ask it for anything.
    fn cache_for(&self, mode: CacheMode) -> Option<Cache> {
        let serves = |c: &Cache| !c.is_aside() && (mode == CacheMode::WriteBack || !c.has_failed());
        self.cache().filter(serves)
    }

    /// Deletes a volume; nothing of it is carried to the pool any more. Requests under way end
    /// first, or they would leave in the cache what is of no volume.
    pub async fn delete(&self, volume: VolumeId) -> Result<()> {
        let quiesce = self.quiesce(volume)?;
        let _frozen = quiesce.freeze().await;
        let outcome = async {
            let mode = quiesce.mode();
            let Some(cache) = self.cache_for(mode).filter(|_| mode != CacheMode::None) else {
                return self.0.pool.delete_volume(volume).await;
            };
            // Cuts may have blocks of it. They are passed over: the pool does not know the volume
            // any more, and its id is not given again.
            let _no_pass = cache.between_passes().await;
            self.0.pool.delete_volume(volume).await?;
            // Deleted it is, whatever the cache can do: what that still has of it counts no more.
            if let Err(e) = cache.forget(volume).await {
                tracing::warn!("the cache still has blocks of a volume that was deleted: {e}");
            }
            Ok(())
        }
        .await;
        if self.0.pool.volume(volume).is_none() {
            quiesce.set_gone();
            self.0.quiesces.borrow_mut().remove(&volume);
        }
        outcome
    }

    /// Changes what the cache does for a volume, under load; durable when it returns. What is dirty
    /// is written back first; requests are held only while the last of it goes.
    pub async fn set_mode(&self, volume: VolumeId, mode: CacheMode) -> Result<()> {
        let change = self.0.changing.begin(Some(volume)).await;
        let quiesce = self.quiesce(volume)?;
        let before = quiesce.mode();
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
        change.go_through()?;
        let _frozen = quiesce.freeze().await;
        if mode == CacheMode::WriteBack
            && cache.as_ref().is_some_and(|c| !c.is_aside() && c.has_failed())
        {
            return Err(StorageError::new(
                ErrorKind::Io,
                "the cache has failed: no volume can begin to write back before forebay was \
                 restarted",
            ));
        }
        // One that has failed is not asked for what it still has of the volume.
        let cache = cache.filter(|c| before == CacheMode::WriteBack || !c.has_failed());
        if let Some(cache) = &cache {
            if before == CacheMode::WriteBack {
                self.write_back(cache, volume).await?;
            } else {
                // What comes now may be durable in the cache before the pool commits what came
                // before.
                self.0.pool.commit().await?;
            }
            if mode == CacheMode::None {
                cache.forget(volume).await?;
                cache.flush().await?;
            }
        }
        let outcome = self.0.pool.set_cache_mode(volume, mode).await;
        // A commit that fails may have got through nonetheless, or the next one does: then a crash
        // finds the new mode. So no more is asked of the cache from now on than each of the two
        // allows: what writes back would be hidden by the other modes, and what is kept by none.
        quiesce.set_mode(if outcome.is_ok() { mode } else { before.max(mode) });
        outcome
    }

    async fn write_back(&self, cache: &Cache, volume: VolumeId) -> Result<()> {
        let done = || cache.is_written_back(volume);
        for _ in 0..3 {
            if done() {
                return Ok(());
            }
            cache.publish_all().await?;
        }
        if done() {
            return Ok(());
        }
        cache.check_kept(Some(volume))?;
        let what = "something dirty is bad in the cache and cannot be written back: see \
                    bad_blocks in forebay cache status; write those blocks again";
        Err(StorageError::new(ErrorKind::Io, what))
    }

    /// Puts a cache in front of the pool, under load. It must be open and empty.
    pub async fn attach(&self, cache: Cache) -> Result<()> {
        let _alone = self.0.changing.alone().await;
        if self.0.cache.borrow().is_some() {
            return Err(StorageError::new(ErrorKind::Exists, "the pool has a cache already"));
        }
        let _frozen = self.freeze_all().await;
        self.0.pool.commit().await?;
        *self.0.cache.borrow_mut() = Some(cache);
        Ok(())
    }

    /// Writes everything back and takes the cache away, under load; requests are held only while
    /// the last of it goes.
    pub async fn detach(&self) -> Result<()> {
        let change = self.0.changing.begin(None).await;
        let Some(cache) = self.cache() else {
            return Err(StorageError::new(ErrorKind::NotFound, "the pool has no cache"));
        };
        if !cache.is_aside() {
            cache.publish_all().await?;
        }
        change.go_through()?;
        let _frozen = self.freeze_all().await;
        cache.detach().await?;
        *self.0.cache.borrow_mut() = None;
        Ok(())
    }

    /// Has a detach given up, or the change of a volume's mode.
    pub fn give_up(&self, volume: Option<VolumeId>) -> GivenUp {
        self.0.changing.give_up(volume)
    }

    async fn freeze_all(&self) -> AllFrozen {
        let there: Vec<Quiesce> =
            self.0.pool.volumes().iter().filter_map(|v| self.quiesce(v.id).ok()).collect();
        *self.0.born_frozen.borrow_mut() = Some(Vec::new());
        let mut all = AllFrozen { blocks: self.clone(), quiesces: Vec::with_capacity(there.len()) };
        for quiesce in there {
            all.quiesces.push(quiesce.freeze().await);
        }
        all
    }
}

fn is_gone(volume: VolumeId) -> StorageError {
    StorageError::new(ErrorKind::NotFound, format!("there is no volume {volume} any more"))
}
