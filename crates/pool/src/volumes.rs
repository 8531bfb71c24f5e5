//! Volumes: create, list, resize, delete.

use std::rc::Rc;

use base::{
    BLOCK_U64, Duration, ErrorKind, Generation, Lba, Result, Slice, StorageError, VolumeId, counted,
};
use format::MAX_VOLUME_BYTES;
use format::page::{CacheMode, VolumeLimit, VolumeRecord, VolumeState};
use queue::Class;
use rt::sync::{Event, within};

use crate::commit::commit_requests::Commits;
use crate::core::Core;
use crate::forest::{Volume, no_such_volume};
use crate::io::END_OF_SPACE;
use crate::io::write::Writer;
use crate::settings::check_name;

/// The first pause after an error while the blocks of a deleted volume are being freed.
const REAP_AGAIN: Duration = Duration::from_secs(1);
/// The longest time between two tries: each may read what cannot be read.
const REAP_SELDOM: Duration = Duration::from_secs(60);
/// The time between two looks whether the snapshots of a deleted volume are gone.
const SNAPSHOTS_AGAIN: Duration = Duration::from_millis(200);
/// For so long a new volume waits for the place of one that is being deleted.
const PLACE_PATIENCE: Duration = Duration::from_secs(30);

/// A volume as its users see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeInfo {
    /// The volume's number.
    pub id: VolumeId,
    /// The volume's name.
    pub name: String,
    /// The volume's size in bytes.
    pub size_bytes: u64,
    /// Bytes it takes of the pool, one copy counted.
    pub allocated_bytes: u64,
    /// Bytes in a logical sector.
    pub sector_bytes: u32,
    /// The mode in which a cache serves the volume, where there is a cache.
    pub cache_mode: CacheMode,
    /// The limit of what clients may ask of the volume, if there is one.
    pub limit: Option<VolumeLimit>,
    /// Clients may change nothing.
    pub read_only: bool,
}

impl From<VolumeInfo> for model::volume::Volume {
    fn from(info: VolumeInfo) -> model::volume::Volume {
        model::volume::Volume {
            name: info.name,
            size_bytes: info.size_bytes,
            allocated_bytes: info.allocated_bytes,
            sector_bytes: info.sector_bytes,
            cache_mode: info.cache_mode,
            limit: info.limit,
            read_only: info.read_only,
        }
    }
}

fn info(v: &Volume) -> VolumeInfo {
    let r = v.record();
    VolumeInfo {
        id: r.id,
        name: r.name.clone(),
        size_bytes: r.size_bytes,
        allocated_bytes: r.allocated_blocks * BLOCK_U64,
        sector_bytes: r.sector,
        cache_mode: r.cache_mode,
        limit: r.limit,
        read_only: r.read_only,
    }
}

fn check_size(size: u64, sector: u32) -> Result<()> {
    if size == 0 || size > MAX_VOLUME_BYTES || size % u64::from(sector) != 0 {
        let text = format!(
            "a volume cannot have {size} bytes: more than 0, at most 1 PiB, a multiple of its \
             {sector}-byte sector"
        );
        return Err(StorageError::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

/// The list of volumes, and what changes it.
pub(crate) struct Volumes {
    core: Core,
    commits: Rc<Commits>,
    writer: Rc<Writer>,
    /// Rings when a volume that was deleted has left its place in the table.
    place_freed: Event,
}

impl Volumes {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, commits: &Rc<Commits>, writer: &Rc<Writer>) -> Rc<Volumes> {
        let place_freed = Event::new();
        let (core, commits, writer) = (core.clone(), commits.clone(), writer.clone());
        Rc::new(Volumes { core, commits, writer, place_freed })
    }

    /// See [`crate::Pool::volumes`].
    pub(crate) fn volumes(&self) -> Vec<VolumeInfo> {
        self.core.state().forest.volumes().filter(|v| v.is_served()).map(info).collect()
    }

    /// See [`crate::Pool::find_volume`].
    pub(crate) fn find_volume(&self, name: &str) -> Option<VolumeInfo> {
        self.core
            .state()
            .forest
            .volumes()
            .find(|v| v.is_served() && v.record().name == name)
            .map(info)
    }

    /// See [`crate::Pool::volume`].
    pub(crate) fn volume(&self, id: VolumeId) -> Option<VolumeInfo> {
        let st = self.core.state();
        let v = st.forest.readable(id)?;
        let name = match v.record().snapshot {
            Some(origin) => format!("{}@{}", st.volume_name(origin.volume), v.record().name),
            None => v.record().name.clone(),
        };
        Some(VolumeInfo { name, ..info(v) })
    }

    /// See [`crate::Pool::volume_size`].
    pub(crate) fn volume_size(&self, id: VolumeId) -> Option<u64> {
        self.core.state().forest.readable(id).map(|v| v.record().size_bytes)
    }

    /// See [`crate::Pool::create_volume`].
    pub(crate) async fn create_volume(
        &self,
        name: &str,
        size: u64,
        sector: u32,
    ) -> Result<VolumeId> {
        check_name("volume", name)?;
        if sector != 512 && sector != 4096 {
            return Err(StorageError::new(
                ErrorKind::Invalid,
                format!("a sector of {sector} bytes: only 512 and 4096 are known"),
            ));
        }
        check_size(size, sector)?;
        self.wait_for_place().await;
        let id = {
            let mut st = self.core.state_mut();
            st.standing.permit()?;
            if st.forest.volumes().any(|v| v.is_named() && v.record().name == name) {
                return Err(StorageError::new(
                    ErrorKind::Exists,
                    format!("there is a volume {name:?} already"),
                ));
            }
            let vacancy = st.forest.vacancy();
            let Some(place) = vacancy.first else {
                // More devices, or more free space, would not help.
                let text = format!(
                    "the pool has room for {} volumes, and all places are taken: delete a volume, \
                     or make another pool",
                    vacancy.places
                );
                return Err(StorageError::new(ErrorKind::Limit, text));
            };
            let record = VolumeRecord {
                id: VolumeId(st.forest.next_volume()),
                state: VolumeState::Live,
                sector,
                size_bytes: size,
                allocated_blocks: 0,
                cache_mode: CacheMode::default(),
                mapping: None,
                name: name.to_owned(),
                staged: None,
                limit: None,
                read_only: false,
                snapshot: None,
                deadlist: None,
            };
            st.add_volume(Volume::new(record, place, true))?
        };
        self.commits.commit().await?;
        Ok(id)
    }

    /// Waits for the place of a volume that is being deleted, if there is no other, for a while:
    /// what it holds is being freed.
    async fn wait_for_place(&self) {
        let mut limit = std::pin::pin!(self.core.rt().sleep(PLACE_PATIENCE));
        loop {
            let mut freed = std::pin::pin!(self.place_freed.wait());
            let waits = {
                let st = self.core.state();
                let ends = |v: &Volume| !v.is_live() && !v.is_readable();
                st.forest.vacancy().first.is_none() && st.forest.volumes().any(ends)
            };
            if !waits || within(&mut freed, limit.as_mut()).await.is_none() {
                return;
            }
        }
    }

    /// See [`crate::Pool::rename_volume`].
    pub(crate) async fn rename_volume(&self, id: VolumeId, name: &str) -> Result<()> {
        check_name("volume", name)?;
        {
            let mut st = self.core.state_mut();
            st.standing.permit()?;
            let is_other = |v: &Volume| v.is_named() && v.record().id != id;
            if st.forest.volumes().any(|v| is_other(v) && v.record().name == name) {
                let text = format!("there is a volume {name:?} already");
                return Err(StorageError::new(ErrorKind::Exists, text));
            }
            st.change_volume(id, |record| record.name = name.to_owned())?;
        }
        self.commits.commit().await
    }

    /// See [`crate::Pool::resize_volume`].
    pub(crate) async fn resize_volume(
        &self,
        id: VolumeId,
        size: u64,
        last: Option<Slice>,
    ) -> Result<()> {
        let old = {
            let st = self.core.state();
            let record = st.forest.served(id).ok_or_else(|| no_such_volume(id))?.record();
            check_size(size, record.sector)?;
            record.size_bytes
        };
        if size >= old {
            // A crash after an earlier shrink may have left something behind the end.
            self.writer.discard(id, Lba(old.div_ceil(BLOCK_U64)), END_OF_SPACE).await?;
        }
        match last {
            Some(block) => {
                let (class, lba) = (Class::Foreground, Lba(size / BLOCK_U64));
                self.writer.write_step(id, class, lba, block, Some(size)).await?
            }
            None => {
                let mut st = self.core.state_mut();
                st.standing.permit()?;
                st.change_volume(id, |record| record.size_bytes = size)?;
            }
        }
        self.commits.commit().await?;
        if size < old {
            // Only now: had the power failed before, the volume would have its old size, and its
            // content.
            self.writer.trim_behind_end(id).await?;
        }
        Ok(())
    }

    /// See [`crate::Pool::set_cache_mode`].
    pub(crate) async fn set_cache_mode(&self, id: VolumeId, mode: CacheMode) -> Result<()> {
        {
            let mut st = self.core.state_mut();
            st.standing.permit()?;
            st.change_volume(id, |record| record.cache_mode = mode)?;
        }
        self.commits.commit().await
    }

    /// See [`crate::Pool::note_limit`].
    pub(crate) fn note_limit(&self, id: VolumeId, limit: Option<VolumeLimit>) -> Result<()> {
        let mut st = self.core.state_mut();
        st.standing.permit()?;
        st.change_volume(id, |record| record.limit = limit)
    }

    /// See [`crate::Pool::set_read_only`].
    pub(crate) async fn set_read_only(&self, id: VolumeId, read_only: bool) -> Result<()> {
        {
            let mut st = self.core.state_mut();
            st.standing.permit()?;
            st.change_volume(id, |record| record.read_only = read_only)?;
        }
        self.commits.commit().await
    }

    /// See [`crate::Pool::is_read_only`].
    pub(crate) fn is_read_only(&self, id: VolumeId) -> bool {
        self.core.state().forest.readable(id).is_some_and(|v| v.record().read_only)
    }

    /// See [`crate::Pool::edited`].
    pub(crate) fn edited(&self, id: VolumeId) -> Generation {
        self.core.state().forest.edited(id)
    }

    /// See [`crate::Pool::delete_volume`].
    pub(crate) async fn delete_volume(self: &Rc<Self>, id: VolumeId) -> Result<()> {
        let mut ended = {
            let mut st = self.core.state_mut();
            if st.forest.served(id).is_none() {
                return Err(no_such_volume(id));
            }
            let is_kept = |v: &&Volume| v.record().state == VolumeState::Live;
            let snapshots = st.forest.snapshots_of(id).filter(is_kept).count();
            if snapshots > 0 {
                let text = format!(
                    "the volume {:?} has {}: delete those first",
                    st.volume_name(id),
                    counted(snapshots as u64, "snapshot", "snapshots")
                );
                return Err(StorageError::new(ErrorKind::Invalid, text));
            }
            // Reads go on as they were where no commit will succeed.
            st.standing.permit()?;
            st.change_volume(id, |record| record.state = VolumeState::Deleting)?;
            st.end_stagings(|volume, _| volume == id)
        };
        let outcome = self.commits.commit().await;
        // Also if the commit fails: it is tried again, and then the volume is deleted.
        ended.push(id);
        self.reap_each(ended);
        outcome
    }

    /// Frees, in the background, what a deletion or a shrink before the pool was last closed, or
    /// lost power, had not freed yet.
    pub(crate) fn reap_all(self: &Rc<Self>) {
        let deleting: Vec<VolumeId> = self
            .core
            .state()
            .forest
            .volumes()
            .filter(|v| v.is_deleting())
            .map(|v| v.record().id)
            .collect();
        self.reap_each(deleting);
        let live: Vec<VolumeId> = self.volumes().iter().map(|v| v.id).collect();
        let this = self.clone();
        self.core.rt().detach(async move {
            for id in live {
                // Deleted meanwhile: another task frees all of it.
                let Err(e) = this.writer.trim_behind_end(id).await else { continue };
                if e.kind != ErrorKind::NotFound && !this.core.is_closed() {
                    tracing::warn!(volume = id.0, "freeing blocks after a shrink stopped: {e}");
                }
            }
        });
    }

    /// Frees, in the background, what these deleted volumes hold.
    pub(crate) fn reap_each(self: &Rc<Self>, ids: Vec<VolumeId>) {
        ids.into_iter().for_each(|id| self.reap(id));
    }

    fn reap(self: &Rc<Self>, id: VolumeId) {
        let this = self.clone();
        self.core.rt().detach(async move {
            let (mut told, mut wait) = (false, REAP_AGAIN);
            loop {
                this.left_by_pass(id).await;
                let outcome = match this.writer.discard(id, Lba(0), END_OF_SPACE).await {
                    Ok(()) => {
                        this.left_by_snapshots(id).await;
                        this.forget_volume(id).await
                    }
                    // All is freed, but the commit of that failed.
                    Err(e) if e.kind == ErrorKind::NotFound => this.commits.commit().await,
                    Err(e) => Err(e),
                };
                let Err(e) = outcome else {
                    this.place_freed.notify();
                    return;
                };
                if this.core.is_closed() {
                    return;
                }
                if this.core.permit().is_err() {
                    let text = "freeing a deleted volume stopped, it goes on when the pool is \
                                opened again";
                    tracing::warn!(volume = id.0, "{text}: {e}");
                    return;
                }
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(
                        volume = id.0,
                        "what a deleted volume holds cannot be freed: {e}; it is tried again, \
                         less and less often. If that is lost, stop the server and run forebay \
                         check --repair"
                    );
                }
                this.core.rt().sleep(wait).await;
                wait = REAP_SELDOM.min(2 * wait);
            }
        });
    }

    /// Waits until no pass has its own version of the volume's mapping, which would take the place
    /// of what is edited now.
    async fn left_by_pass(&self, id: VolumeId) {
        loop {
            let ended = self.core.state().txns.pass_ended();
            let joined =
                self.core.state().forest.volume(id).is_some_and(|v| v.mapping().is_in_pass());
            if !joined || self.core.is_closed() {
                return;
            }
            ended.await;
        }
    }

    /// Waits until snapshots of the volume that were deleted are gone: they end in its deadlist.
    async fn left_by_snapshots(&self, id: VolumeId) {
        let any = || self.core.state().forest.snapshots_of(id).next().is_some();
        while any() && !self.core.is_closed() && self.core.permit().is_ok() {
            self.core.rt().sleep(SNAPSHOTS_AGAIN).await;
        }
    }

    /// The place in the table is empty with the next commit. Nothing waits for that of a staging
    /// volume.
    async fn forget_volume(&self, id: VolumeId) -> Result<()> {
        let staged = self.core.state_mut().forget_volume(id)?;
        if staged { Ok(()) } else { self.commits.commit().await }
    }
}
