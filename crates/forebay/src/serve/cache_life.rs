//! The life of a pool's cache at a server: made and attached, opened, written back and detached,
//! given up.
//!
//! Fault model: a pool that has a cache is not served without it, since the cache may hold what was
//! flushed; only the user can say that it is lost, and then is told how old the pool's image is. A
//! cache that was not asked for and that cannot be made is no reason not to serve.

mod lost;
mod preflight;

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use cache::{Cache, CacheFile};
use model::{Failure, FailureKind};
use pool::Pool;
use posix::Handles;
use rt::sync::within;
use rt::{FileId, Rt};
use uuid::Uuid;
use volume::Volumes;

use crate::config::CacheSection;
use crate::error::{CommandError, Result};
use crate::host::cache_file::{NewCachePlace, open_existing, open_place};
use crate::host::home::{CachePlace, Home};
use crate::host::world::OpenError;
use crate::serve::device_places::KeptCache;
use crate::serve::mailbox::{close_file, spawn_blocking};
use crate::serve::pool_devices::PoolDevices;
use crate::serve::tuning::Tuning;
use crate::units::human_bytes;
use lost::{missing, report};
pub use preflight::{preflight, preflight_made};

/// The time between two log lines that tell the progress of a detach.
const PROGRESS: Duration = Duration::from_secs(1);

/// The cache that a start will have. Nothing of the pool was changed for it.
pub enum PreparedCache {
    /// The cache of the pool.
    Cache {
        /// The cache itself.
        ready: cache::ReadyCache,
        /// The file or device of the cache.
        file: CacheFile,
        /// The uuid of the cache.
        uuid: [u8; 16],
    },
    /// A place for a new cache.
    Place(NewPlace),
    /// No cache; the text tells the user why.
    Unused(String),
    /// No cache.
    None,
}

/// A place for a new cache, open.
pub struct NewPlace {
    file: CacheFile,
    /// True if the file was not there before.
    is_new: bool,
}

/// The means to open and make caches.
pub struct Caches {
    rt: Rt,
    handles: Handles,
    config: CacheSection,
    tuning: Rc<Tuning>,
    devices: Rc<PoolDevices>,
    /// The file of the cache that is in use.
    file: RefCell<Option<CacheFile>>,
    /// True while a cache is being attached or detached.
    changing: Cell<bool>,
}

impl Caches {
    /// Opens nothing yet.
    pub fn new(
        rt: &Rt,
        handles: &Handles,
        config: CacheSection,
        tuning: Rc<Tuning>,
        devices: Rc<PoolDevices>,
    ) -> Caches {
        let (file, changing) = (RefCell::default(), Cell::new(false));
        Caches { rt: rt.clone(), handles: handles.clone(), config, tuning, devices, file, changing }
    }

    /// Finds the cache of a pool that is about to be opened, or a place for a new one: all for
    /// which a start may be refused. Changes nothing, but that a new file may be there.
    pub async fn prepare(&self, pool: &pool::ReadyPool) -> Result<PreparedCache> {
        let uuid = pool.pool().cache_link().cache_uuid().filter(|_| !self.config.forget);
        let Some(uuid) = uuid else { return self.prepare_none(pool.pool().uuid()).await };
        let Some(path) = &self.config.path else {
            return Err(missing(uuid, "is not named".into()));
        };
        let at = path.clone();
        let opening = spawn_blocking(&self.rt, &self.handles, move || open_existing(&at, uuid));
        let opened = opening.await.map_err(|e| CommandError::failed(path.display(), e))?.map_err(
            |e| match e {
                OpenError::Gone(text) => missing(uuid, format!("is not there ({text})")),
                OpenError::ReadOnly(text) => CommandError::Failed(text),
                OpenError::Refused(e) => e,
            },
        )?;
        let file = self.adopt(path, opened);
        let ready = Cache::ready(&self.rt, &file, pool, self.tuning.cache()).await;
        let ready = match ready {
            Ok(ready) => ready,
            Err(e) => return Err(self.unopened(file.file, uuid, e).await),
        };
        Ok(PreparedCache::Cache { ready, file, uuid })
    }

    /// The pool has no cache, or will have none in a moment.
    async fn prepare_none(&self, pool_uuid: [u8; 16]) -> Result<PreparedCache> {
        let Some(path) = &self.config.path else { return Ok(PreparedCache::None) };
        let size = match self.config.size {
            Some(0) => return Ok(PreparedCache::None),
            Some(size) => size,
            None if self.config.kept_in.is_some() => {
                let text = "the pool has no cache, as it was taken out or not wanted: \
                            --cache-size SIZE, or forebay cache attach PATH, gives it one";
                return Ok(PreparedCache::Unused(text.into()));
            }
            None => {
                return Ok(PreparedCache::Unused(format!(
                    "the pool has no cache, and {} is not used: forebay cache attach makes it one",
                    path.display()
                )));
            }
        };
        match self.open_place(pool_uuid, path, Some(size), false).await {
            Ok(place) => Ok(PreparedCache::Place(place)),
            Err(e) if self.config.optional => Ok(PreparedCache::Unused(without(&e))),
            Err(e) => Err(e),
        }
    }

    /// Undoes [`Caches::prepare`] where the start is refused for another reason.
    pub async fn put_back(&self, prepared: PreparedCache) {
        match prepared {
            PreparedCache::Cache { ready, file, .. } => {
                ready.close();
                self.close_file(file.file).await;
            }
            PreparedCache::Place(place) => self.leave(place).await,
            PreparedCache::Unused(_) | PreparedCache::None => {}
        }
    }

    /// Opens, makes, detaches or forgets the pool's cache when the server starts. What the user
    /// should hear goes to `notes`.
    pub async fn open(
        &self,
        pool: &Pool,
        prepared: PreparedCache,
        notes: &mut Vec<String>,
    ) -> Result<Option<Cache>> {
        let cache = self.open_or_make(pool, prepared, notes).await?;
        if let (Some(_), Some(path)) = (&cache, &self.config.path) {
            self.devices.keep_cache(pool, KeptCache::At(path.clone())).await;
        }
        let place = match (&cache, &self.config.path, self.config.size) {
            (Some(_), Some(path), _) => CachePlace::At(path.clone()),
            (None, _, None | Some(0)) => CachePlace::None,
            // One that was not to be had for now is tried for again.
            _ => CachePlace::Usual,
        };
        if let Err(e) = self.remember(place).await {
            tracing::warn!("the next start does not find the cache by itself: {e}");
        }
        Ok(cache)
    }

    /// Returns the place where the next start looks for a cache.
    async fn remembered(&self) -> Result<CachePlace> {
        let Some(dir) = self.config.kept_in.clone() else { return Ok(CachePlace::Usual) };
        let read = spawn_blocking(&self.rt, &self.handles, move || Home::cache_place(&dir)).await;
        read.map_err(|e| CommandError::failed("reading the place of the cache", e))?
    }

    /// Keeps for the next start where the cache is.
    async fn remember(&self, place: CachePlace) -> Result<()> {
        let Some(dir) = self.config.kept_in.clone() else { return Ok(()) };
        let home = self.config.place.clone();
        let keep = move || {
            Home::keep_cache(&dir, &place)?;
            home.map_or(Ok(()), |home| home.keep(&dir))
        };
        let kept = spawn_blocking(&self.rt, &self.handles, keep).await;
        kept.map_err(|e| CommandError::failed("keeping the place of the cache", e))?
    }

    async fn open_or_make(
        &self,
        pool: &Pool,
        prepared: PreparedCache,
        notes: &mut Vec<String>,
    ) -> Result<Option<Cache>> {
        if self.config.forget
            && let Err(e) = self.forget(pool, notes).await
        {
            self.put_back(prepared).await;
            return Err(e);
        }
        match prepared {
            PreparedCache::Cache { ready, file, uuid } => {
                let cache = match ready.open().await {
                    Ok(cache) => cache,
                    Err(e) => return Err(self.unopened(file.file, uuid, e).await),
                };
                *self.file.borrow_mut() = Some(file.clone());
                self.keep_or_detach(cache, &file, notes).await
            }
            PreparedCache::Place(place) => self.make_at_start(pool, place, notes).await,
            PreparedCache::Unused(why) => {
                notes.push(why);
                Ok(None)
            }
            PreparedCache::None => Ok(None),
        }
    }

    async fn keep_or_detach(
        &self,
        cache: Cache,
        file: &CacheFile,
        notes: &mut Vec<String>,
    ) -> Result<Option<Cache>> {
        match self.config.size {
            Some(0) => {
                self.detach_at_start(cache, Path::new(&file.path), notes).await?;
                return Ok(None);
            }
            Some(size) if size != file.size_bytes && !self.config.optional => notes.push(format!(
                "the cache keeps its size of {}; for another, let it go with --cache-size 0 and \
                 start again",
                human_bytes(file.size_bytes)
            )),
            _ => {}
        }
        Ok(Some(cache))
    }

    async fn make_at_start(
        &self,
        pool: &Pool,
        place: NewPlace,
        notes: &mut Vec<String>,
    ) -> Result<Option<Cache>> {
        let (path, size_bytes) = (place.file.path.clone(), place.file.size_bytes);
        match self.make(pool, place).await {
            Ok(cache) => {
                notes.push(format!(
                    "the pool has a new write-back cache, {path}, {} (--cache-size 0 takes it out \
                     again)",
                    human_bytes(size_bytes)
                ));
                Ok(Some(cache))
            }
            Err(e) if self.config.optional => {
                notes.push(without(&e));
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Opens a place for a cache of the pool `pool_uuid`. `force`: data there may be lost.
    async fn open_place(
        &self,
        pool_uuid: [u8; 16],
        path: &Path,
        size: Option<u64>,
        force: bool,
    ) -> Result<NewPlace> {
        let at = path.to_owned();
        let open = move || open_place(&at, size, pool_uuid, force);
        let opening = spawn_blocking(&self.rt, &self.handles, open);
        let NewCachePlace { opened, is_new } =
            opening.await.map_err(|e| CommandError::failed(path.display(), e))??;
        Ok(NewPlace { file: self.adopt(path, opened), is_new })
    }

    fn adopt(&self, path: &Path, opened: posix::LockedFile) -> CacheFile {
        let size_bytes = opened.info.size_bytes;
        let file = self.handles.adopt_file(opened);
        CacheFile { path: path.display().to_string(), file, size_bytes }
    }

    /// Why the pool's cache cannot be opened; its file is closed.
    async fn unopened(&self, file: FileId, uuid: [u8; 16], e: base::StorageError) -> CommandError {
        self.close_file(file).await;
        match e.kind {
            // The cache is all right, and a newer version opens it: nothing is to be given up.
            base::ErrorKind::Newer => e.into(),
            // Nor is the cache lost: the advice of the error brings it back.
            base::ErrorKind::NoSpace | base::ErrorKind::Unreachable => e.into(),
            _ => missing(uuid, format!("cannot be opened ({e})")),
        }
    }

    /// Makes a cache for a pool that has none.
    async fn make(&self, pool: &Pool, place: NewPlace) -> Result<Cache> {
        match self.make_on(pool, &place.file).await {
            Ok(cache) => {
                let CacheFile { path, size_bytes, .. } = &place.file;
                tracing::info!(path, size_bytes, "cache made and attached");
                *self.file.borrow_mut() = Some(place.file);
                Ok(cache)
            }
            Err(e) => {
                self.leave(place).await;
                Err(e.into())
            }
        }
    }

    /// No cache was made there.
    async fn leave(&self, place: NewPlace) {
        self.close_file(place.file.file).await;
        if place.is_new {
            let removing = move || std::fs::remove_file(place.file.path);
            let _ = spawn_blocking(&self.rt, &self.handles, removing).await;
        }
    }

    async fn make_on(&self, pool: &Pool, file: &CacheFile) -> base::Result<Cache> {
        let uuid = Uuid::new_v4().into_bytes();
        let made =
            cache::create(&self.rt, file, pool, &cache::CreateOptions::default(), uuid).await;
        let opened = match made {
            Ok(()) => Cache::open(&self.rt, file, pool, self.tuning.cache()).await,
            Err(e) => Err(e),
        };
        if opened.is_err() && pool.cache_link().cache_uuid() == Some(uuid) {
            // Nothing was written to it.
            pool.cache_link().set_cache_uuid(None).await?;
            if let Err(e) = cache::mark_detached(&self.rt, file).await {
                tracing::warn!("{e}");
            }
        }
        opened
    }

    async fn detach_at_start(
        &self,
        cache: Cache,
        path: &Path,
        notes: &mut Vec<String>,
    ) -> Result<()> {
        let dirty_bytes = cache.status().dirty_bytes;
        let before = cache.status().writeback.carried_bytes;
        let what = "writing back, then detaching the cache";
        tracing::info!(path = %path.display(), dirty_bytes, "{what}");
        let done = Rc::new(Cell::new(false));
        let (rt, ended, watched) = (self.rt.clone(), done.clone(), cache.clone());
        self.rt.detach(async move {
            loop {
                rt.sleep(PROGRESS).await;
                if ended.get() {
                    return;
                }
                let carried = watched.status().writeback.carried_bytes - before;
                let (carried, all) = (human_bytes(carried), human_bytes(dirty_bytes));
                tracing::info!("writing back: {carried} of {all}");
            }
        });
        let outcome = cache.detach().await;
        done.set(true);
        outcome.map_err(|e| CommandError::failed("detaching the cache", e))?;
        self.put_away(true).await;
        notes.push(format!(
            "everything was written back and the cache detached: {} is of no use any more",
            path.display()
        ));
        if self.config.owned {
            match std::fs::remove_file(path) {
                Ok(()) => notes.push(format!("{} was removed", path.display())),
                Err(e) => notes.push(format!("{} could not be removed: {e}", path.display())),
            }
        }
        tracing::info!(path = %path.display(), "cache detached");
        Ok(())
    }

    /// Gives up a cache that is lost, and reports.
    async fn forget(&self, pool: &Pool, notes: &mut Vec<String>) -> Result<()> {
        let Some(uuid) = pool.cache_link().cache_uuid() else {
            notes.push("the pool has no cache, so none was given up".into());
            return Ok(());
        };
        for line in report(pool, uuid, self.tuning.cache().max_lag) {
            tracing::warn!("{line}");
            notes.push(line);
        }
        pool.cache_link().set_cache_uuid(None).await?;
        Ok(())
    }

    /// Makes a cache at `path` and puts it in front of the pool, under load. `force`: what stands
    /// there may be lost.
    pub async fn attach(
        &self,
        volumes: &Volumes,
        path: &Path,
        size: Option<u64>,
        force: bool,
    ) -> std::result::Result<(), Failure> {
        let _alone = ChangeGuard::take(&self.changing)?;
        if volumes.cache().is_some() || volumes.pool().cache_link().cache_uuid().is_some() {
            let text = match volumes.cache() {
                Some(cache) if cache.is_aside() => {
                    "the pool still names the cache that is out of use: forebay cache detach takes \
                     it out, then this works"
                }
                _ => "the pool has a cache already: forebay cache detach takes it out",
            };
            return Err(Failure::new(FailureKind::Exists, text));
        }
        let failed = |e: CommandError| Failure::new(FailureKind::Failed, e.to_string());
        let before = self.remembered().await.map_err(failed)?;
        // Before the pool has it: then no crash leaves a cache that the next start does not find.
        self.remember(CachePlace::At(path.to_owned())).await.map_err(failed)?;
        let pool = volumes.pool();
        let kept = self.devices.kept_cache();
        self.devices.keep_cache(pool, KeptCache::At(path.to_owned())).await;
        let attached = self.attach_at(volumes, path, size, force).await;
        if attached.is_err() {
            self.devices.keep_cache(pool, kept).await;
            if let Err(e) = self.remember(before).await {
                tracing::warn!("the next start looks for a cache that is not there: {e}");
            }
        }
        Ok(self.tuning.settle(&attached?)?)
    }

    async fn attach_at(
        &self,
        volumes: &Volumes,
        path: &Path,
        size: Option<u64>,
        force: bool,
    ) -> std::result::Result<Cache, Failure> {
        let made = match self.open_place(volumes.pool().uuid(), path, size, force).await {
            Ok(place) => self.make(volumes.pool(), place).await,
            Err(e) => Err(e),
        };
        let cache = made.map_err(|e| Failure::new(FailureKind::Refused, e.to_string()))?;
        if let Err(e) = volumes.attach(cache.clone()).await {
            cache.abandon().await;
            let committed = volumes.pool().commit().await.is_ok();
            self.put_away(committed).await;
            return Err(e.into());
        }
        Ok(cache)
    }

    /// Writes everything back and takes the cache out, under load. The next start makes none.
    pub async fn detach(&self, volumes: &Volumes) -> std::result::Result<(), Failure> {
        let _alone = ChangeGuard::take(&self.changing)?;
        let path = volumes.cache().map(|cache| PathBuf::from(cache.status().path));
        let own = self.config.owned.then_some(self.config.path.as_ref()).flatten().cloned();
        let pool = volumes.pool();
        let kept = self.devices.kept_cache();
        let mut detaching = std::pin::pin!(volumes.detach());
        // Before the pool has none: then no crash leaves a start that makes a new one. The detach
        // has begun by then, and can be cancelled.
        let ended = match path.clone() {
            Some(path) => {
                let leaving = self.devices.keep_cache(pool, KeptCache::Leaving(path));
                within(&mut detaching, leaving).await
            }
            None => None,
        };
        let outcome = match ended {
            Some(outcome) => outcome,
            None => detaching.await,
        };
        if let Err(e) = outcome {
            self.devices.keep_cache(pool, kept).await;
            return Err(e.into());
        }
        self.put_away(true).await;
        self.devices.keep_cache(pool, KeptCache::TakenOut).await;
        if let Err(e) = self.remember(CachePlace::None).await {
            tracing::warn!("the next start does not know that there is to be no cache: {e}");
        }
        tracing::info!("cache detached");
        if let Some(path) = own.filter(|own| path.as_ref() == Some(own)) {
            self.remove(path).await;
        }
        Ok(())
    }

    /// Removes a file of the server's own, which may take the file system long.
    async fn remove(&self, path: PathBuf) {
        let at = path.clone();
        let removing = move || std::fs::remove_file(at);
        let removed = spawn_blocking(&self.rt, &self.handles, removing).await;
        match removed.and_then(|outcome| outcome) {
            Ok(()) => tracing::info!("{} was removed", path.display()),
            Err(e) => tracing::warn!("{} could not be removed: {e}", path.display()),
        }
    }

    /// Closes the file, so that others can have it. `unneeded`: the pool does not name the cache
    /// any more, which says so from now on.
    async fn put_away(&self, unneeded: bool) {
        let Some(file) = self.file.take() else { return };
        if unneeded && let Err(e) = cache::mark_detached(&self.rt, &file).await {
            tracing::warn!("{e}; a new cache is made there only when the old one was removed");
        }
        self.close_file(file.file).await;
    }

    /// The shard goes on, however long the device takes.
    async fn close_file(&self, file: FileId) {
        if let Err(e) = close_file(&self.rt, &self.handles, file).await {
            tracing::warn!("closing the cache's file: {e}");
        }
    }
}

/// A cache that was not asked for could not be made.
fn without(e: &CommandError) -> String {
    tracing::warn!("no cache: {e}");
    format!("no cache: {e} (a smaller one: --cache-size SIZE; none: --cache-size 0)")
}

/// One change at a time.
struct ChangeGuard<'a>(&'a Cell<bool>);

impl<'a> ChangeGuard<'a> {
    fn take(changing: &'a Cell<bool>) -> std::result::Result<ChangeGuard<'a>, Failure> {
        if changing.replace(true) {
            return Err(Failure::new(
                FailureKind::Refused,
                "a cache is being attached or detached already",
            ));
        }
        Ok(ChangeGuard(changing))
    }
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
