//! The volumes of a pool, as front ends see them.

use std::cell::RefCell;
use std::rc::Rc;

use base::{ErrorKind, Result, StorageError, VolumeId, shell_word};
use cache::Cache;
use model::snapshot::SnapshotName;
use pool::{CacheMode, Pool, SnapshotInfo, VolumeInfo, VolumeLimit, WantedSnapshot};
use rustc_hash::FxHashMap;

use crate::admission::{Admission, WaitCounts};
use crate::changing::GiveUpOutcome;
use crate::counts::{RequestStats, VolumeStats};
use crate::edge_locks::Locks;
use crate::routes::Blocks;
use crate::volume::{Shrink, Volume};

/// All volumes of one pool; clones are the same set. Handles of one volume share its locks.
#[derive(Clone)]
pub struct Volumes(Rc<Inner>);

struct Inner {
    blocks: Blocks,
    locks: RefCell<FxHashMap<VolumeId, Locks>>,
    admission: Admission,
    stats: Rc<RefCell<RequestStats>>,
    /// The counts of each volume that was opened.
    of_volumes: RefCell<FxHashMap<VolumeId, Rc<RefCell<VolumeStats>>>>,
}

impl Volumes {
    /// The volumes of `pool`, without a cache.
    pub fn new(pool: &Pool) -> Volumes {
        Volumes::with_cache(pool, None)
    }

    /// The volumes of `pool`, behind `cache`, if there is one, as their modes say.
    pub fn with_cache(pool: &Pool, cache: Option<Cache>) -> Volumes {
        Volumes(Rc::new(Inner {
            blocks: Blocks::new(pool, cache),
            locks: RefCell::default(),
            admission: Admission::new(pool.rt()),
            stats: Rc::default(),
            of_volumes: RefCell::default(),
        }))
    }

    /// The pool below.
    pub fn pool(&self) -> &Pool {
        self.0.blocks.pool()
    }

    /// The cache in front of it.
    pub fn cache(&self) -> Option<Cache> {
        self.0.blocks.cache()
    }

    /// Puts a cache, open and empty, in front of the pool, also under load.
    pub async fn attach(&self, cache: Cache) -> Result<()> {
        self.0.blocks.attach(cache).await
    }

    /// Writes everything back, then closes the cache and takes it away, also under load.
    pub async fn detach(&self) -> Result<()> {
        self.0.blocks.detach().await
    }

    /// Changes what the cache does for a volume, also under load; durable when it returns.
    pub async fn set_mode(&self, name: &str, mode: CacheMode) -> Result<()> {
        let info = self.pool().find_volume(name).ok_or_else(|| missing(name))?;
        self.0.blocks.set_mode(info.id, mode).await
    }

    /// Gives up a detach, or the change of a volume's mode, while it still writes back.
    pub fn give_up(&self, name: Option<&str>) -> Result<GiveUpOutcome> {
        let id = |name| self.pool().find_volume(name).map(|v| v.id).ok_or_else(|| missing(name));
        Ok(self.0.blocks.give_up(name.map(id).transpose()?))
    }

    /// Limits what clients may ask of a volume, or not. It holds at once, also for requests that
    /// wait, and is durable when this returns.
    pub async fn set_limit(&self, name: &str, limit: Option<VolumeLimit>) -> Result<()> {
        let info = self.pool().find_volume(name).ok_or_else(|| missing(name))?;
        self.pool().note_limit(info.id, limit)?;
        self.0.admission.set_limit(info.id, limit.as_ref());
        self.pool().commit().await
    }

    /// Lets clients change a volume, or not; durable when it returns. Requests that come from then
    /// on go by it; those that are under way end as they would have.
    pub async fn set_read_only(&self, name: &str, read_only: bool) -> Result<()> {
        let info = self.pool().find_volume(name).ok_or_else(|| missing(name))?;
        self.pool().set_read_only(info.id, read_only).await
    }

    /// Gives a volume another name; durable when it returns.
    pub async fn rename(&self, name: &str, to: &str) -> Result<()> {
        let info = self.pool().find_volume(name).ok_or_else(|| missing(name))?;
        self.pool().rename_volume(info.id, to).await
    }

    /// Fails if clients may not change this volume: nothing else is to, either.
    fn writable(&self, name: &str) -> Result<()> {
        match self.pool().find_volume(name) {
            Some(info) if info.read_only => Err(StorageError::new(
                ErrorKind::Invalid,
                format!(
                    "the volume {name:?} is read-only, and nothing changed: forebay volume \
                     read-only {} off, then try again",
                    shell_word(name)
                ),
            )),
            _ => Ok(()),
        }
    }

    /// From now on no request waits for a limit or for its share: the end is near, and those that
    /// are there are to be answered.
    pub fn admit_all(&self) {
        self.0.admission.open();
    }

    /// Requests that had to wait for a limit or for their share.
    pub fn waits(&self) -> WaitCounts {
        self.0.admission.waits()
    }

    /// The live volumes, in the order of their creation.
    pub fn list(&self) -> Vec<VolumeInfo> {
        self.pool().volumes()
    }

    /// A handle on the live volume `name`, or on a snapshot, `VOLUME@NAME`, which can only be read.
    pub fn open(&self, name: &str) -> Option<Volume> {
        let volume = self.pool().find_volume(name);
        volume.or_else(|| self.snapshot_info(name)).map(|info| self.handle(&info))
    }

    fn snapshot_info(&self, name: &str) -> Option<VolumeInfo> {
        let name: SnapshotName = name.parse().ok()?;
        let snapshot = self.pool().snapshots().find(&name.volume, &name.name)?;
        self.pool().volume(snapshot.id)
    }

    /// Takes snapshots of volumes, all at one moment, or none. They have everything that was
    /// answered before, flushed or not, and nothing that is begun after this has returned. They are
    /// durable then.
    ///
    /// # Errors
    ///
    /// A volume is not there, a name is taken or not allowed, the cache has lost blocks, or the
    /// pool takes no writes.
    pub async fn take_snapshots(&self, names: &[SnapshotName]) -> Result<Vec<SnapshotInfo>> {
        let mut wanted = Vec::with_capacity(names.len());
        let mut writes_back = false;
        for SnapshotName { volume, name } in names {
            let info = self.pool().find_volume(volume).ok_or_else(|| missing(volume))?;
            writes_back |= info.cache_mode == CacheMode::WriteBack;
            wanted.push(WantedSnapshot { of: info.id, name: name.clone() });
        }
        // What the cache alone has comes to the pool first. Cuts are exact past states of all
        // volumes that write back, and a snapshot is taken between two of them.
        while let Some(cache) = self.cache().filter(|cache| writes_back && !cache.is_aside()) {
            self.pool().snapshots().can_be_taken(&wanted)?;
            let link = self.pool().cache_link();
            let before = link.cache_uuid();
            match cache.write_all_back().await {
                // It was taken out meanwhile, and all that it had is in the pool.
                Err(_) if link.cache_uuid() != before => {}
                outcome => {
                    outcome?;
                    break;
                }
            }
        }
        let snapshots = self.pool().snapshots();
        let of: Vec<VolumeId> = wanted.iter().map(|w| w.of).collect();
        let taken = snapshots.take(wanted).await?;
        // A pass publishes what it can carry. A snapshot that lacks the rest is of no moment.
        let cache = self.cache().filter(|cache| writes_back && !cache.is_aside());
        let kept = cache.map_or(Ok(()), |c| of.iter().try_for_each(|&id| c.check_kept(Some(id))));
        if let Err(e) = kept {
            for &id in &taken {
                snapshots.delete(id).await?;
            }
            return Err(e);
        }
        Ok(taken.into_iter().filter_map(|id| snapshots.snapshot(id)).collect())
    }

    /// The snapshots of a volume, or of all, with the name of the volume of each.
    pub fn snapshots(&self, volume: Option<&str>) -> Result<Vec<model::snapshot::Snapshot>> {
        let all = match volume {
            Some(name) => {
                let info = self.pool().find_volume(name).ok_or_else(|| missing(name))?;
                self.pool().snapshots().of(info.id)
            }
            None => self.pool().snapshots().all(),
        };
        Ok(all.into_iter().filter_map(|s| self.shown(s)).collect())
    }

    /// A snapshot as users see it; `None`: its volume is gone.
    pub fn shown(&self, s: SnapshotInfo) -> Option<model::snapshot::Snapshot> {
        let volume = self.pool().volume(s.of)?.name;
        Some(model::snapshot::Snapshot {
            volume,
            name: s.name,
            taken_at: s.taken_at,
            size_bytes: s.size_bytes,
            referenced_bytes: s.referenced_bytes,
            sector_bytes: s.sector_bytes,
        })
    }

    fn find_snapshot(&self, name: &SnapshotName) -> Result<SnapshotInfo> {
        let SnapshotName { volume, name: own } = name;
        let info = self.pool().find_volume(volume).ok_or_else(|| missing(volume))?;
        self.pool().snapshots().find(&info.name, own).ok_or_else(|| {
            let text = format!("there is no snapshot {name}; see forebay snapshot list");
            StorageError::new(ErrorKind::NotFound, text)
        })
    }

    /// Gives a snapshot another name; durable when it returns.
    pub async fn rename_snapshot(&self, name: &SnapshotName, to: &str) -> Result<()> {
        let snapshot = self.find_snapshot(name)?;
        self.pool().snapshots().rename(snapshot.id, to).await
    }

    /// Deletes a snapshot; handles on it fail from now on. Its space comes back in the background.
    pub async fn delete_snapshot(&self, name: &SnapshotName) -> Result<()> {
        let snapshot = self.find_snapshot(name)?;
        self.0.blocks.delete_snapshot(snapshot.id).await?;
        self.0.locks.borrow_mut().remove(&snapshot.id);
        self.0.of_volumes.borrow_mut().remove(&snapshot.id);
        Ok(())
    }

    fn handle(&self, info: &VolumeInfo) -> Volume {
        let locks = self.0.locks.borrow_mut().entry(info.id).or_default().clone();
        let admission = self.0.admission.clone();
        if let Some(limit) = &info.limit {
            admission.know(info.id, limit);
        }
        let own = self.0.of_volumes.borrow_mut().entry(info.id).or_default().clone();
        Volume::new(&self.0.blocks, info.id, locks, admission, self.0.stats.clone(), own)
    }

    /// Makes a volume of `size` bytes with sectors of 512 or 4096 bytes; durable when it returns. A
    /// new volume writes back: there is none while a cache has failed, which takes nothing new.
    pub async fn create(&self, name: &str, size: u64, sector: u32) -> Result<Volume> {
        if self.cache().is_some_and(|cache| !cache.is_aside() && cache.has_failed()) {
            return Err(StorageError::new(
                ErrorKind::Io,
                "the cache has failed, and no volume can begin to write back: restart forebay, \
                 then make the volume",
            ));
        }
        let id = self.pool().create_volume(name, size, sector).await?;
        match self.pool().volume(id) {
            Some(info) => Ok(self.handle(&info)),
            None => Err(missing(name)),
        }
    }

    /// Changes the size of a volume, also while it is in use; durable when it returns. One that is
    /// read-only keeps its size.
    pub async fn resize(&self, name: &str, size: u64) -> Result<()> {
        self.writable(name)?;
        let volume = self.open(name).ok_or_else(|| missing(name))?;
        volume.resize(size, Shrink::Allowed).await
    }

    /// Makes a volume larger, also while it is in use; durable when it returns. Fails with
    /// [`ErrorKind::Loses`] if it is larger now.
    pub async fn grow(&self, name: &str, size: u64) -> Result<()> {
        self.writable(name)?;
        let volume = self.open(name).ok_or_else(|| missing(name))?;
        volume.resize(size, Shrink::Refused).await
    }

    /// Deletes a volume; handles on it fail from now on. One that is read-only stays.
    pub async fn delete(&self, name: &str) -> Result<()> {
        self.writable(name)?;
        let info = self.pool().find_volume(name).ok_or_else(|| missing(name))?;
        self.0.blocks.delete(info.id).await?;
        self.0.locks.borrow_mut().remove(&info.id);
        self.0.of_volumes.borrow_mut().remove(&info.id);
        // Requests that wait are told of its end.
        self.0.admission.set_limit(info.id, None);
        Ok(())
    }

    /// The requests of clients since the pool was opened.
    pub fn requests(&self) -> RequestStats {
        self.0.stats.borrow().clone()
    }

    /// The requests of a volume's clients since the pool was opened, if there were any.
    pub fn requests_of(&self, id: VolumeId) -> Option<VolumeStats> {
        self.0.of_volumes.borrow().get(&id).map(|stats| stats.borrow().clone())
    }
}

fn missing(name: &str) -> StorageError {
    StorageError::new(
        ErrorKind::NotFound,
        format!("there is no volume {name:?}; see forebay volume list"),
    )
}
