//! The places of the blocks of all volumes: in the pool, or in the cache in front of it, as each
//! volume's mode says; and what changes that.
//!
//! Every request of a volume is counted ([`crate::quiesce`]) and has one [`Route`]. A change of the
//! cache or of a mode freezes the volume first, so that no request has two routes.
//!
//! **A freeze is short.** What takes long comes before it or after it: all is written back, and
//! what the cache has is dropped, while requests go on; a mode and the end of a cache become
//! durable when requests go on again, where a crash before that does no harm. Nothing waits for a
//! pass while requests are held, but for a deletion, whose volume ends.
//!
//! **What the pool says of a mode.** A volume may use less of the cache than the pool says, and
//! never more: what is dirty would be hidden after a crash by a mode that does not write back, and
//! what is kept would be out of date after a time without the cache. So a mode that uses more is
//! durable first, and one that uses less afterwards.
//!
//! **A cache that has failed** with something dirty in it is in the way of volumes that write back
//! alone. All others go around it, and it is not told what they change: for as long as it is there,
//! it must not be asked about them again, and none of them may begin to write back.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;

use base::{Duration, ErrorKind, Result, StorageError, VolumeId};
use cache::{Cache, Change, Drain};
use pool::{CacheMode, Pool};
use rt::Reason;
use rt::sync::{Permit, Semaphore, within};
use rustc_hash::FxHashMap;

use crate::changing::{self, ChangeLock, GiveUpOutcome};
use crate::quiesce::{FreezeGuard, Quiesce};
use crate::route::Route;

/// The routes of all volumes; clones are the same.
#[derive(Clone)]
pub(crate) struct Blocks(Rc<Inner>);

struct Inner {
    pool: Pool,
    cache: RefCell<Option<Cache>>,
    quiesces: RefCell<FxHashMap<VolumeId, Quiesce>>,
    /// While all volumes are frozen, or about to be: those that were made meanwhile.
    born_frozen: RefCell<Option<Vec<FreezeGuard>>>,
    /// One change of a cache or a mode at a time.
    changing: ChangeLock,
    /// One task at a time freezes volumes, or changes the size of one.
    turn: Semaphore,
}

/// For so long a detach waits for requests under way before the pool carries them out instead.
const PATIENCE: Duration = Duration::from_millis(100);

/// All volumes that ask a cache stay frozen until it is dropped, and those that are made meanwhile.
struct FreezeAllGuard {
    blocks: Blocks,
    quiesces: Vec<FreezeGuard>,
}

impl FreezeAllGuard {
    /// Waits until none of their requests is in flight.
    async fn settled(&self) {
        for frozen in &self.quiesces {
            frozen.settled().await;
        }
    }
}

impl Drop for FreezeAllGuard {
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
            changing: ChangeLock::new(),
            turn: Semaphore::new(1),
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
            frozen.push(quiesce.born_frozen(Reason::CacheChange));
        }
        quiesces.insert(volume, quiesce.clone());
        Ok(quiesce)
    }

    /// Deletes a snapshot. Reads under way end first: they would meet what its blocks have next.
    pub async fn delete_snapshot(&self, snapshot: VolumeId) -> Result<()> {
        let quiesce = self.quiesce(snapshot)?;
        let _frozen = quiesce.freeze(Reason::ModeChange).await;
        let outcome = self.0.pool.snapshots().delete(snapshot).await;
        if self.0.pool.volume(snapshot).is_none() {
            quiesce.set_gone();
            self.0.quiesces.borrow_mut().remove(&snapshot);
        }
        outcome
    }

    /// Begins a request of a volume, once that is not frozen, and chooses its route.
    pub async fn route(&self, volume: VolumeId) -> Result<Route<'_>> {
        self.enter(volume, &self.quiesce(volume)?, None).await
    }

    /// The same for a client's request that changes blocks, which costs so much work when they are
    /// written back: it waits for a drain.
    pub async fn route_to_change(&self, volume: VolumeId, work: u64) -> Result<Route<'_>> {
        let quiesce = self.quiesce(volume)?;
        let mode = quiesce.mode();
        let change = match self.cache_for(mode).filter(|_| mode == CacheMode::WriteBack) {
            Some(cache) => Some(cache.begin_change(work).await),
            None => None,
        };
        self.enter(volume, &quiesce, change).await
    }

    async fn enter(
        &self,
        volume: VolumeId,
        quiesce: &Quiesce,
        change: Option<Change>,
    ) -> Result<Route<'_>> {
        let in_flight = quiesce.enter(self.0.pool.rt()).await.ok_or_else(|| is_gone(volume))?;
        let mode = quiesce.mode();
        let cache = self.cache_for(mode);
        Ok(Route::new(&self.0.pool, cache, volume, mode, change, in_flight))
    }

    /// Waits until no other task freezes volumes or changes the size of one.
    pub async fn turn(&self) -> Permit {
        self.0.turn.acquire(1).await
    }

    /// Waits until no pass is in the way of a change of a volume's size, for as long as the permit
    /// is held; `None`: none ever is. The caller has the [turn](Blocks::turn).
    pub async fn no_pass(&self, volume: VolumeId) -> Result<Option<Permit>> {
        let mode = self.quiesce(volume)?.mode();
        Ok(match self.cache_for(mode) {
            Some(cache) if mode == CacheMode::WriteBack => Some(cache.between_cuts().await?),
            Some(cache) if mode != CacheMode::None => Some(cache.between_passes().await),
            _ => None,
        })
    }

    /// The cache, if a volume of this mode may ask it for anything.
    fn cache_for(&self, mode: CacheMode) -> Option<Cache> {
        let serves = |c: &Cache| !c.is_aside() && (mode == CacheMode::WriteBack || !c.has_failed());
        self.cache().filter(serves)
    }

    /// Deletes a volume; nothing of it is carried to the pool any more. Requests under way end
    /// first, or they would leave in the cache what is of no volume.
    pub async fn delete(&self, volume: VolumeId) -> Result<()> {
        let _turn = self.turn().await;
        let quiesce = self.quiesce(volume)?;
        let _frozen = quiesce.freeze(Reason::ModeChange).await;
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

    /// Changes what the cache does for a volume, under load; durable when it returns.
    pub async fn set_mode(&self, volume: VolumeId, mode: CacheMode) -> Result<()> {
        let change = self.0.changing.begin(Some(volume)).await?;
        let quiesce = self.quiesce(volume)?;
        let before = quiesce.mode();
        if before == mode {
            // A switch to it, or away from it, may have failed at the commit.
            return self.0.pool.set_cache_mode(volume, mode).await;
        }
        if mode < before {
            change.go_through()?;
            return self.use_more(&quiesce, volume, mode).await;
        }
        let cache = self.cache().filter(|c| !c.is_aside());
        if before == CacheMode::WriteBack {
            let drained = self.drain(cache.as_ref(), volume, &change).await?;
            change.go_through()?;
            let _frozen = quiesce.freeze(Reason::ModeChange).await;
            if let Some(cache) = &cache {
                // The drain has written back all but what was asked for behind its back.
                self.write_back(cache, volume).await?;
            }
            // A cache with blocks of the volume is told of its writes until it has dropped them.
            quiesce.set_mode(mode.min(CacheMode::WriteAround));
            drop(drained);
        }
        change.go_through()?;
        self.use_less(&quiesce, volume, mode).await?;
        self.0.pool.set_cache_mode(volume, mode).await
    }

    /// Writes a volume back, while requests go on. Until what is returned is dropped, nothing
    /// becomes dirty, and no other task freezes volumes.
    async fn drain(
        &self,
        cache: Option<&Cache>,
        volume: VolumeId,
        change: &changing::Change<'_>,
    ) -> Result<(Option<Drain>, Permit)> {
        let Some(cache) = cache else { return Ok((None, self.turn().await)) };
        let (drain, turn) = cache.drain(Some(volume), self.turn(), || change.go_on()).await?;
        self.write_back(cache, volume).await?;
        Ok((Some(drain), turn))
    }

    /// From a mode that does not write back to one that uses less of the cache.
    async fn use_less(&self, quiesce: &Quiesce, volume: VolumeId, mode: CacheMode) -> Result<()> {
        // One that has failed is not asked for what it still has of the volume.
        let cache = self.cache().filter(|c| !c.is_aside() && !c.has_failed());
        let _not_kept = match &cache {
            Some(cache) if mode == CacheMode::None => match cache.drop_volume(volume).await {
                // Blocks that are left in a cache that went out of use do not count.
                Err(_) if cache.is_aside() || cache.has_failed() => None,
                outcome => Some(outcome?),
            },
            _ => None,
        };
        let _turn = self.turn().await;
        let _frozen = quiesce.freeze(Reason::ModeChange).await;
        quiesce.set_mode(mode);
        Ok(())
    }

    /// To a mode that uses more of the cache.
    async fn use_more(&self, quiesce: &Quiesce, volume: VolumeId, mode: CacheMode) -> Result<()> {
        // The commit leaves little to commit while requests are held.
        self.0.pool.commit().await?;
        let _turn = self.turn().await;
        let _frozen = quiesce.freeze(Reason::ModeChange).await;
        if mode == CacheMode::WriteBack
            && self.cache().is_some_and(|c| !c.is_aside() && c.has_failed())
        {
            return Err(StorageError::new(
                ErrorKind::Io,
                "the cache has failed: no volume can begin to write back before forebay was \
                 restarted",
            ));
        }
        // The commit has all that came before: what comes now may be durable in the cache before
        // the pool's next one. One that fails may have got through nonetheless.
        self.0.pool.set_cache_mode(volume, mode).await?;
        quiesce.set_mode(mode);
        Ok(())
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
        // The commit leaves little to commit while requests are held.
        self.0.pool.commit().await?;
        let _turn = self.turn().await;
        let _frozen = self.freeze_all().await;
        self.0.pool.commit().await?;
        *self.0.cache.borrow_mut() = Some(cache);
        Ok(())
    }

    /// Writes everything back and takes the cache away, under load; durable when it returns.
    pub async fn detach(&self) -> Result<()> {
        let change = self.0.changing.begin(None).await?;
        let Some(cache) = self.cache() else {
            return Err(StorageError::new(ErrorKind::NotFound, "the pool has no cache"));
        };
        let drained = if cache.is_aside() {
            (None, self.turn().await)
        } else {
            let (drain, turn) = cache.drain(None, self.turn(), || change.go_on()).await?;
            cache.empty().await?;
            (Some(drain), turn)
        };
        change.go_through()?;
        let frozen = self.begin_freeze_all().await;
        let settled = {
            let mut settled = pin!(frozen.settled());
            within(&mut settled, self.0.pool.rt().sleep(PATIENCE)).await.is_some()
        };
        cache.empty().await?;
        cache.leave();
        if !settled {
            // The pool carries out what waits for the cache's device.
            cache.give_up_device();
        }
        drop((frozen, drained));
        // The cache is asked for nothing any more, and what the pool changes now is durable
        // together with the statement that there is no cache.
        let left = self.0.pool.cache_link().set_cache_uuid(None).await;
        cache.end().await;
        left?;
        *self.0.cache.borrow_mut() = None;
        Ok(())
    }

    /// Has a detach given up, or the change of a volume's mode.
    pub fn give_up(&self, volume: Option<VolumeId>) -> GiveUpOutcome {
        self.0.changing.give_up(volume)
    }

    async fn freeze_all(&self) -> FreezeAllGuard {
        let all = self.begin_freeze_all().await;
        all.settled().await;
        all
    }

    /// Freezes all volumes that ask a cache. Their requests that are in flight go on.
    async fn begin_freeze_all(&self) -> FreezeAllGuard {
        let quiesces = self.0.pool.volumes().into_iter().filter_map(|v| self.quiesce(v.id).ok());
        let there: Vec<Quiesce> =
            quiesces.filter(|quiesce| quiesce.mode() != CacheMode::None).collect();
        *self.0.born_frozen.borrow_mut() = Some(Vec::new());
        let mut all =
            FreezeAllGuard { blocks: self.clone(), quiesces: Vec::with_capacity(there.len()) };
        for quiesce in there {
            all.quiesces.push(quiesce.begin_freeze(Reason::CacheChange).await);
        }
        all
    }
}

fn is_gone(volume: VolumeId) -> StorageError {
    StorageError::new(ErrorKind::NotFound, format!("there is no volume {volume} any more"))
}
