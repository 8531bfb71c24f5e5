//! Which volumes the pool lacks something of.

use base::{Epoch, VolumeId};
use rustc_hash::FxHashMap;

/// See the [module](self).
pub(crate) struct DirtyVolumes {
    /// The epoch of each volume's last write that the pool did not get at once.
    until: FxHashMap<VolumeId, Epoch>,
    /// And of all volumes', as the cache was opened.
    at_open: Epoch,
}

impl DirtyVolumes {
    pub fn new(at_open: Epoch) -> DirtyVolumes {
        DirtyVolumes { until: FxHashMap::default(), at_open }
    }

    /// A volume was written to in this epoch, which is the newest.
    pub(super) fn note(&mut self, volume: VolumeId, epoch: Epoch) {
        self.until.insert(volume, epoch);
    }

    /// A volume was deleted.
    pub(super) fn forget(&mut self, volume: VolumeId) {
        self.until.remove(&volume);
    }

    /// The last epoch in which the pool did not get all of a volume, or of any.
    pub fn last(&self, volume: Option<VolumeId>) -> Epoch {
        match volume {
            Some(v) => self.until.get(&v).copied().unwrap_or(self.at_open),
            None => self.until.values().copied().fold(self.at_open, Epoch::max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_was_not_written_may_be_dirty_since_the_open() {
        let (a, b) = (VolumeId(1), VolumeId(2));
        let mut dirty = DirtyVolumes::new(Epoch(3));
        dirty.note(a, Epoch(5));
        assert_eq!((dirty.last(Some(a)), dirty.last(Some(b))), (Epoch(5), Epoch(3)));
        assert_eq!(dirty.last(None), Epoch(5));
        dirty.forget(a);
        assert_eq!(dirty.last(None), Epoch(3));
    }
}
