//! Staging volumes, which versions up to 0.2 made: they hold writes of a write-back volume that
//! went past the cache, until the cut that they belong to is published. No version writes to one
//! any more; the cache copies what they hold when it is opened.
//!
//! The staging volume of (volume, epoch) has what was written at the same blocks as the volume that
//! it is for. It has no name and is in no list. Its checksum records name the volume that it is
//! for.
//!
//! A staging volume ends with the commit that publishes its epoch, that deletes its volume, or that
//! says that the pool has no cache: its blocks are freed in the background then.

use std::collections::BTreeSet;

use base::{Epoch, VolumeId};

use crate::state::State;
use crate::writeback::cache_link::CacheLink;

impl CacheLink {
    /// The staging volume of `volume` for `epoch`, if there is one. There is none from the moment a
    /// pass publishes that epoch: what it held and what counts is in the volume then, for every
    /// reader.
    pub fn find_staging(&self, volume: VolumeId, epoch: Epoch) -> Option<VolumeId> {
        self.core.state().forest.staging(volume, epoch)
    }

    /// Blocks of the staging volumes that the attached cache needs: those of cuts that are not
    /// published.
    pub fn staged_blocks(&self) -> u64 {
        let st = self.core.state();
        let needed = st.forest.stagings().filter(|&(volume, epoch, _)| needed(&st, volume, epoch));
        let records = needed.filter_map(|(.., id)| st.forest.volume(id));
        records.map(|v| v.record().allocated_blocks).sum()
    }

    /// Marks staging volumes deleted that nothing can need any more. No commit leaves such a one:
    /// this is for what a newer or a broken program left.
    pub(crate) fn end_stale_stagings(&self) {
        let mut st = self.core.state_mut();
        let all: BTreeSet<(VolumeId, Epoch)> =
            st.forest.stagings().map(|(volume, epoch, _)| (volume, epoch)).collect();
        let stale: BTreeSet<_> = all.into_iter().filter(|&(v, e)| !needed(&st, v, e)).collect();
        st.end_stagings(|volume, epoch| stale.contains(&(volume, epoch)));
    }
}

/// The cut of this epoch is not published, and the volume and a cache are there.
fn needed(st: &State, volume: VolumeId, epoch: Epoch) -> bool {
    let is_served = st.forest.volume(volume).is_some_and(|v| v.is_served());
    is_served && st.attached.uuid().is_some() && epoch > st.attached.published().epoch
}
