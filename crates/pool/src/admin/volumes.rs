//! Volumes: create, list, resize, delete.

use base::{
    BLOCK_U64, Duration, ErrorKind, Generation, Lba, Result, Slice, StorageError, VolumeId,
};
use format::MAX_VOLUME_BYTES;
use format::page::{CacheMode, VolumeLimit, VolumeRecord, VolumeState};
use queue::Class;

use crate::forest::{Volume, no_such_volume};
use crate::io::END_OF_SPACE;
use crate::pool::Pool;
use crate::settings::check_name;

/// The first pause after an error while the blocks of a deleted volume are being freed.
const REAP_AGAIN: Duration = Duration::from_secs(1);
/// The longest time between two tries: each may read what cannot be read.
const REAP_SELDOM: Duration = Duration::from_secs(60);

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

impl Pool {
    /// The live volumes, in the order of their numbers.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        self.state().forest.volumes().filter(|v| v.is_served()).map(info).collect()
    }

    /// A live volume by name.
    pub fn find_volume(&self, name: &str) -> Option<VolumeInfo> {
        self.state().forest.volumes().find(|v| v.is_served() && v.record().name == name).map(info)
    }

    /// A live volume by number.
    pub fn volume(&self, id: VolumeId) -> Option<VolumeInfo> {
        self.state().forest.served(id).map(info)
    }

    /// The name of a volume, for messages; its number, if it has none any more.
    pub fn volume_name(&self, id: VolumeId) -> String {
        self.state().volume_name(id)
    }

    /// The size of a live volume in bytes.
    pub fn volume_size(&self, id: VolumeId) -> Option<u64> {
        self.state().forest.served(id).map(|v| v.record().size_bytes)
    }

    /// Makes a volume of `size` bytes with sectors of 512 or 4096 bytes; durable when it returns.
    pub async fn create_volume(&self, name: &str, size: u64, sector: u32) -> Result<VolumeId> {
        check_name("volume", name)?;
        if sector != 512 && sector != 4096 {
            return Err(StorageError::new(
                ErrorKind::Invalid,
                format!("a sector of {sector} bytes: only 512 and 4096 are known"),
            ));
        }
        check_size(size, sector)?;
        let id = {
            let mut st = self.state_mut();
            st.standing.permit()?;
            if st.forest.volumes().any(|v| v.is_named() && v.record().name == name) {
                return Err(StorageError::new(
                    ErrorKind::Exists,
                    format!("there is a volume {name:?} already"),
                ));
            }
            let vacancy = st.forest.vacancy();
            let Some(place) = vacancy.first else {
                let text = format!("the volume table is full: {} volumes", vacancy.places);
                return Err(StorageError::new(ErrorKind::NoSpace, text));
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
            };
            st.add_volume(Volume::new(record, place, true))?
        };
        self.commit().await?;
        Ok(id)
    }

    /// Changes a volume's size; durable when it returns. What a shrink cuts off is freed, and reads
    /// as zeros if the volume grows again; for that, where the new end is inside a block, `last` is
    /// that block with zeros behind the end. The caller keeps others from writing behind the end.
    pub async fn resize_volume(&self, id: VolumeId, size: u64, last: Option<Slice>) -> Result<()> {
        let old = {
            let st = self.state();
            let record = st.forest.served(id).ok_or_else(|| no_such_volume(id))?.record();
            check_size(size, record.sector)?;
            record.size_bytes
        };
        if size >= old {
            // A crash after an earlier shrink may have left something behind the end.
            self.discard(id, Lba(old.div_ceil(BLOCK_U64)), END_OF_SPACE).await?;
        }
        match last {
            Some(block) => {
                let (class, lba) = (Class::Foreground, Lba(size / BLOCK_U64));
                self.write_step(id, class, lba, block, Some(size)).await?
            }
            None => {
                let mut st = self.state_mut();
                st.standing.permit()?;
                st.change_volume(id, |record| record.size_bytes = size)?;
            }
        }
        self.commit().await?;
        if size < old {
            // Only now: had the power failed before, the volume would have its old size, and its
            // content.
            self.trim_behind_end(id).await?;
        }
        Ok(())
    }

    /// Notes what a cache does for a volume; durable when it returns.
    pub async fn set_cache_mode(&self, id: VolumeId, mode: CacheMode) -> Result<()> {
        {
            let mut st = self.state_mut();
            st.standing.permit()?;
            st.change_volume(id, |record| record.cache_mode = mode)?;
        }
        self.commit().await
    }

    /// Notes how much clients may ask of a volume; durable with the next commit. The pool
    /// does not enforce the limit. The layer that serves clients does.
    pub fn note_limit(&self, id: VolumeId, limit: Option<VolumeLimit>) -> Result<()> {
        let mut st = self.state_mut();
        st.standing.permit()?;
        st.change_volume(id, |record| record.limit = limit)
    }

    /// Lets clients change a volume, or not; durable when it returns. The pool does
    /// not enforce it. The layer that serves clients does.
    pub async fn set_read_only(&self, id: VolumeId, read_only: bool) -> Result<()> {
        {
            let mut st = self.state_mut();
            st.standing.permit()?;
            st.change_volume(id, |record| record.read_only = read_only)?;
        }
        self.commit().await
    }

    /// Whether clients may not change a volume. One that was deleted has no such rule.
    pub fn is_read_only(&self, id: VolumeId) -> bool {
        self.state().forest.served(id).is_some_and(|v| v.record().read_only)
    }

    /// The newest commit that has changed, or will change, what a volume holds. What was read from
    /// it is durable in the pool when that is.
    pub fn edited(&self, id: VolumeId) -> Generation {
        self.state().forest.edited(id)
    }

    /// Deletes a volume, and its staging volumes: it is gone, durably, when this returns; its
    /// blocks are freed in the background.
    pub async fn delete_volume(&self, id: VolumeId) -> Result<()> {
        let mut ended = {
            let mut st = self.state_mut();
            if st.forest.served(id).is_none() {
                return Err(no_such_volume(id));
            }
            // Reads go on as they were where no commit will succeed.
            st.standing.permit()?;
            st.change_volume(id, |record| record.state = VolumeState::Deleting)?;
            st.end_stagings(|volume, _| volume == id)
        };
        let outcome = self.commit().await;
        // Also if the commit fails: it is tried again, and then the volume is deleted.
        ended.push(id);
        self.reap_each(ended);
        outcome
    }

    /// Frees, in the background, what a deletion or a shrink before the pool was last closed, or
    /// lost power, had not freed yet.
    pub(crate) fn reap_all(&self) {
        let deleting: Vec<VolumeId> = self
            .state()
            .forest
            .volumes()
            .filter(|v| v.is_there() && !v.is_live())
            .map(|v| v.record().id)
            .collect();
        self.reap_each(deleting);
        let live: Vec<VolumeId> = self.volumes().iter().map(|v| v.id).collect();
        let pool = self.clone();
        self.rt().detach(async move {
            for id in live {
                // Deleted meanwhile: another task frees all of it.
                let Err(e) = pool.trim_behind_end(id).await else { continue };
                if e.kind != ErrorKind::NotFound && !pool.is_closed() {
                    tracing::warn!(volume = id.0, "freeing blocks after a shrink stopped: {e}");
                }
            }
        });
    }

    /// Frees, in the background, what these deleted volumes hold.
    pub(crate) fn reap_each(&self, ids: Vec<VolumeId>) {
        ids.into_iter().for_each(|id| self.reap(id));
    }

    fn reap(&self, id: VolumeId) {
        let pool = self.clone();
        self.rt().detach(async move {
            let (mut told, mut wait) = (false, REAP_AGAIN);
            loop {
                pool.left_by_pass(id).await;
                let outcome = match pool.discard(id, Lba(0), END_OF_SPACE).await {
                    Ok(()) => pool.forget_volume(id).await,
                    // All is freed, but the commit of that failed.
                    Err(e) if e.kind == ErrorKind::NotFound => pool.commit().await,
                    Err(e) => Err(e),
                };
                let Err(e) = outcome else { return };
                if pool.is_closed() {
                    return;
                }
                if pool.permit().is_err() {
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
                pool.rt().sleep(wait).await;
                wait = REAP_SELDOM.min(2 * wait);
            }
        });
    }

    /// Waits until no pass has its own version of the volume's mapping, which would take the place
    /// of what is edited now.
    async fn left_by_pass(&self, id: VolumeId) {
        loop {
            let ended = self.state().txns.pass_ended();
            let joined = self.state().forest.volume(id).is_some_and(|v| v.mapping().is_in_pass());
            if !joined || self.is_closed() {
                return;
            }
            ended.await;
        }
    }

    /// The place in the table is empty with the next commit. Nothing waits for that of a staging
    /// volume.
    async fn forget_volume(&self, id: VolumeId) -> Result<()> {
        let staged = self.state_mut().forget_volume(id)?;
        if staged { Ok(()) } else { self.commit().await }
    }
}
