//! Nodes of trees of which no copy can be read, for the time of a boot.
//!
//! When the boot has ended they can be read again, as if a device that was away had come back, so
//! nothing is lost. Until then:
//!
//! | a node of | what a client may see |
//! | --- | --- |
//! | the mapping of a volume | errors of that volume, none of any other |
//! | the checksums of a block group | errors where something must be read; none of a flush, or of a write of whole blocks |
//!
//! A pass keeps what needs a node of a mapping. It cannot carry a block of which the cache has a
//! part, where the rest cannot be read. So it cannot be said of which cut such a volume is in the
//! pool, until a pass has carried all: see [`UnreachableData::take_unlike`].

use std::collections::BTreeSet;

/// The data that cannot be reached in this boot.
#[derive(Default)]
pub(crate) struct UnreachableData {
    /// Volumes of the model of whose mapping a node is lost.
    volumes: BTreeSet<u32>,
    /// Nodes of checksums are lost.
    checksums: bool,
    /// Volumes of which something may have been kept while the rest was published.
    kept: BTreeSet<u32>,
    /// Nodes cannot be read now.
    now: bool,
    /// Nodes could not be read in this boot or one before.
    ever: bool,
}

impl UnreachableData {
    /// Whether a request of the volume may fail, whatever it is.
    pub fn has(&self, volume: u32) -> bool {
        self.volumes.contains(&volume)
    }

    /// Whether something that must read data may fail, of whichever volume.
    pub fn checksums(&self) -> bool {
        self.checksums
    }

    pub fn any(&self) -> bool {
        self.now
    }

    pub fn ever(&self) -> bool {
        self.ever
    }

    /// Volumes that the pool alone may hold as they were at no cut. The cache is gone.
    pub fn take_unlike(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.kept)
    }

    /// A node is lost: of the mapping of a volume, which is deleted if it has no number, or of
    /// checksums, which concerns all that are `live`.
    pub fn lose(&mut self, volume: Option<u32>, checksums: bool, live: impl Iterator<Item = u32>) {
        (self.now, self.ever) = (true, true);
        self.checksums |= checksums;
        self.volumes.extend(volume);
        self.kept.extend(volume);
        if checksums {
            self.kept.extend(live);
        }
    }

    /// All that is dirty is in the pool: nothing is kept any more.
    pub fn all_published(&mut self) {
        if !self.any() {
            self.kept.clear();
        }
    }

    /// Everything can be read again.
    pub fn end(&mut self) {
        self.volumes.clear();
        (self.checksums, self.now) = (false, false);
    }
}
