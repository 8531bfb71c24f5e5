//! Staging volumes: where writes of a write-back volume stand in the pool before the cut that they belong to is published.
//!
//! The staging volume of (volume, epoch) is a volume like any other to transactions, bitmaps and the offline check, written by direct writes at the
//! same blocks as the volume it is for. To everyone else it is none: it has no name and is in no list. Its checksum records name the volume that it is for, so
//! that a round can hand blocks over without touching them ([`Round::adopt`](crate::Round::adopt)).
//!
//! It ends with the commit that publishes its epoch, that deletes its volume, or that says that the pool has no cache: what it holds then is freed in the
//! background.

use base::{Crc, Epoch, Lba, SliceList, VolumeId};

use crate::Pool;
use crate::error::Result;

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
    /// its epoch, writes to it fail with [`NotFound`](crate::ErrorKind::NotFound), and for a published epoch so does this: the caller begins anew with the
    /// epoch that is open then. [`NoSpace`](crate::ErrorKind::NoSpace): the volume table is full.
    pub async fn staging(&self, volume: VolumeId, epoch: Epoch) -> Result<VolumeId> {
        let _ = (volume, epoch);
        unimplemented!()
    }

    /// All staging volumes.
    pub fn stagings(&self) -> Vec<Staging> {
        unimplemented!()
    }

    /// The staging volume of `volume` for `epoch`, if there is one. There is none from the moment a round publishes that epoch: what it held and what counts
    /// is in the volume then, for every reader.
    pub fn find_staging(&self, volume: VolumeId, epoch: Epoch) -> Option<VolumeId> {
        let _ = (volume, epoch);
        unimplemented!()
    }

    /// As [`Pool::read`] of the staging volume of `volume` for `epoch`, or of `volume` itself where that has been published meanwhile; which of them is
    /// decided together with the look at the mapping.
    pub async fn read_staged(&self, volume: VolumeId, epoch: Epoch, lba: Lba, blocks: u64) -> Result<SliceList> {
        let _ = (volume, epoch, lba, blocks);
        unimplemented!()
    }

    /// The checksums that the pool has for the blocks of `[lba, lba + blocks)`; `None` where nothing is mapped. No data is read.
    pub async fn checksums(&self, volume: VolumeId, lba: Lba, blocks: u64) -> Result<Vec<Option<Crc>>> {
        let _ = (volume, lba, blocks);
        unimplemented!()
    }

    /// Deletes the staging volumes for which `f` says so; durable when it returns, what they held is freed in the background.
    pub async fn drop_stagings(&self, f: impl Fn(&Staging) -> bool) -> Result<()> {
        let _ = f;
        unimplemented!()
    }
}
