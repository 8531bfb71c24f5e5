//! Staging volumes: where writes of a write-back volume stand in the pool before the cut that they
//! belong to is published.
//!
//! The staging volume of (volume, epoch) is a volume like any other to transactions, bitmaps and
//! the offline check, written by direct writes at the same blocks as the volume it is for. To
//! everyone else it is none: it has no name and is in no list. Its checksum records name the volume
//! that it is for, so that a pass can hand blocks over without touching them
//! ([`Pass::adopt`](super::Pass::adopt)).
//!
//! It ends with the commit that publishes its epoch, that deletes its volume, or that says that the
//! pool has no cache: what it holds then is freed in the background.

use std::collections::BTreeSet;

use base::{Epoch, ErrorKind, Result, StorageError, VolumeId};
use format::page::{CacheMode, VolumeRecord, VolumeState};

use crate::forest::{Volume, no_such_volume};
use crate::pool::Pool;
use crate::state::State;

/// A staging volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Staging {
    /// Its own number.
    pub id: VolumeId,
    /// The volume whose writes it holds.
    pub volume: VolumeId,
    /// The epoch that they belong to.
    pub epoch: Epoch,
}

impl Pool {
    /// The staging volume of `volume` for `epoch`, made in the open transaction if there is none.
    /// Once a pass has begun to adopt from it, or has published its epoch, writes to it fail with
    /// [`NotFound`](ErrorKind::NotFound), and for a published epoch so does this: the caller begins
    /// anew with the epoch that is open then. [`NoSpace`](ErrorKind::NoSpace): the volume table has
    /// no place for it.
    pub async fn staging(&self, volume: VolumeId, epoch: Epoch) -> Result<VolumeId> {
        self.permit()?;
        // A client that makes a volume must not be told that the table is full of these.
        find_or_make(&mut self.state_mut(), (volume, epoch), 16)
    }

    /// The staging volume that writes before a crash went to, made again if it was never committed.
    pub(crate) fn staging_again(&self, volume: VolumeId, epoch: Epoch) -> Result<VolumeId> {
        find_or_make(&mut self.state_mut(), (volume, epoch), usize::MAX)
    }

    /// All staging volumes.
    pub fn stagings(&self) -> Vec<Staging> {
        let st = self.state();
        st.forest.stagings().map(|(volume, epoch, id)| Staging { id, volume, epoch }).collect()
    }

    /// The staging volume of `volume` for `epoch`, if there is one. There is none from the moment a
    /// pass publishes that epoch: what it held and what counts is in the volume then, for every
    /// reader.
    pub fn find_staging(&self, volume: VolumeId, epoch: Epoch) -> Option<VolumeId> {
        self.state().forest.staging(volume, epoch)
    }

    /// Marks staging volumes deleted that nothing can need any more. No commit leaves such a one:
    /// this is for what a newer or a broken program left.
    pub(crate) fn end_stale_stagings(&self) {
        let mut st = self.state_mut();
        let served: BTreeSet<VolumeId> =
            st.forest.volumes().filter(|v| v.is_served()).map(|v| v.record().id).collect();
        let (published, cached) = (st.attached.published().epoch, st.attached.uuid().is_some());
        let needed = |volume, epoch| cached && epoch > published && served.contains(&volume);
        st.end_stagings(|volume, epoch| !needed(volume, epoch));
    }
}

/// A `kept`th of the places of the volume table is for others.
fn find_or_make(
    st: &mut State,
    (volume, epoch): (VolumeId, Epoch),
    kept: usize,
) -> Result<VolumeId> {
    if let Some(id) = st.forest.staging(volume, epoch) {
        return Ok(id);
    }
    let v = st.forest.served(volume).ok_or_else(|| no_such_volume(volume))?;
    let sector = v.record().sector;
    let published = [
        Some(st.attached.published()),
        Some(st.attached.next_published()),
        st.txns.open().published(),
    ];
    if published.into_iter().flatten().any(|p| epoch <= p.epoch) {
        return Err(StorageError::new(
            ErrorKind::NotFound,
            format!("the cut {epoch} is published already"),
        ));
    }
    let vacancy = st.forest.vacancy();
    let Some(place) = vacancy.first.filter(|_| vacancy.free > vacancy.places / kept) else {
        let text = format!("the volume table has no place for a staging volume of volume {volume}");
        return Err(StorageError::new(ErrorKind::NoSpace, text));
    };
    let record = VolumeRecord {
        id: VolumeId(st.forest.next_volume()),
        state: VolumeState::Live,
        sector,
        // As large as any: the volume may grow.
        size_bytes: format::MAX_VOLUME_BYTES,
        allocated_blocks: 0,
        cache_mode: CacheMode::None,
        mapping: None,
        name: String::new(),
        staged: Some((volume, epoch)),
        limit: None,
        read_only: false,
    };
    st.add_volume(Volume::new(record, place, false))
}
