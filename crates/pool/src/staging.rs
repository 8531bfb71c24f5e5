//! Staging volumes: where writes of a write-back volume stand in the pool before the cut that they belong to is published.
//!
//! The staging volume of (volume, epoch) is a volume like any other to transactions, bitmaps and the offline check, written by direct writes at the
//! same blocks as the volume it is for. To everyone else it is none: it has no name and is in no list. Its checksum records name the volume that it is for, so
//! that a round can hand blocks over without touching them ([`Round::adopt`](crate::Round::adopt)).
//!
//! It ends with the commit that publishes its epoch, that deletes its volume, or that says that the pool has no cache: what it holds then is freed in the
//! background.

use std::collections::BTreeSet;

use base::{Epoch, VolumeId};
use format::page::{CacheMode, VolumeRecord, VolumeState};

use crate::Pool;
use crate::error::{ErrorKind, PoolError, Result};
use crate::state::{State, no_such_volume};
use crate::txn::Volume;

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
    /// The staging volume of `volume` for `epoch`, made in the open transaction if there is none. Once a round has begun to adopt from it, or has published
    /// its epoch, writes to it fail with [`NotFound`](ErrorKind::NotFound), and for a published epoch so does this: the caller begins anew with the
    /// epoch that is open then. [`NoSpace`](ErrorKind::NoSpace): the volume table has no place for it.
    pub async fn staging(&self, volume: VolumeId, epoch: Epoch) -> Result<VolumeId> {
        let made = self.state_mut().staging(volume, epoch);
        self.after_change();
        made
    }

    /// All staging volumes.
    pub fn stagings(&self) -> Vec<Staging> {
        self.state().stagings().collect()
    }

    /// The staging volume of `volume` for `epoch`, if there is one. There is none from the moment a round publishes that epoch: what it held and what counts
    /// is in the volume then, for every reader.
    pub fn find_staging(&self, volume: VolumeId, epoch: Epoch) -> Option<VolumeId> {
        self.state().stagings.get(&(volume, epoch)).copied()
    }
}

impl State {
    pub fn stagings(&self) -> impl Iterator<Item = Staging> {
        self.stagings.iter().map(|(&(volume, epoch), &id)| Staging { id, volume, epoch })
    }

    fn staging(&mut self, volume: VolumeId, epoch: Epoch) -> Result<VolumeId> {
        self.standing.permit()?;
        if let Some(&id) = self.stagings.get(&(volume, epoch)) {
            return Ok(id);
        }
        let Some(sector) = self.volumes.get(&volume).filter(|v| v.is_served()).map(|v| v.record.sector) else {
            return Err(no_such_volume(volume));
        };
        let published = [Some(self.published), self.publishing, self.open.published];
        let published = published.into_iter().flatten().map(|p| p.epoch).max();
        if Some(epoch) <= published {
            return Err(PoolError::new(ErrorKind::NotFound, format!("the cut {epoch} is published already")));
        }
        let (place, left) = self.free_place();
        // Whoever makes a volume must not be told that the table is full of these.
        let Some(place) = place.filter(|_| left > self.places.len() / 16) else {
            let text = format!("the volume table has no place for a staging volume of volume {volume}");
            return Err(PoolError::new(ErrorKind::NoSpace, text));
        };
        let record = VolumeRecord {
            id: VolumeId(self.next_volume),
            state: VolumeState::Live,
            sector,
            // As large as any: the volume may grow.
            size_bytes: format::MAX_VOLUME_BYTES,
            allocated_blocks: 0,
            cache_mode: CacheMode::None,
            mapping: None,
            name: String::new(),
            staged: Some((volume, epoch)),
        };
        self.add_volume(Volume::new(record, place))
    }

    /// Marks staging volumes deleted, in the open transaction; who calls has what they hold freed ([`Pool::reap_each`]).
    pub fn end_stagings(&mut self, f: impl Fn(&Staging) -> bool) -> Vec<VolumeId> {
        let ended: Vec<Staging> = self.stagings().filter(f).collect();
        for s in &ended {
            self.stagings.remove(&(s.volume, s.epoch));
            let edited = self.edit_volume(s.id).is_ok();
            if let Some(v) = self.volumes.get_mut(&s.id).filter(|_| edited) {
                self.held.change(v, |v| v.record.state = VolumeState::Deleting);
            }
        }
        ended.into_iter().map(|s| s.id).collect()
    }

    /// Marks those that nothing can need any more. No commit leaves such a one: this is for what a newer or a broken program left.
    pub fn end_stale_stagings(&mut self) {
        let served: BTreeSet<VolumeId> = self.volumes.values().filter(|v| v.is_served()).map(|v| v.record.id).collect();
        let (published, cached) = (self.published.epoch, self.cache_uuid.is_some());
        let needed = |s: &Staging| cached && s.epoch > published && served.contains(&s.volume);
        let _ = self.end_stagings(|s| !needed(s));
    }
}
