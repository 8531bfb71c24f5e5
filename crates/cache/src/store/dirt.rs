//! Which volumes the pool lacks something of, and which dirty blocks are bad.

use base::{Epoch, Lba, VolumeId};
use rustc_hash::FxHashMap;

/// So many bad blocks are named.
const NAMED: usize = 256;

/// See the [module](self).
pub(crate) struct Dirt {
    /// The epoch of each volume's last write that the pool did not get at once.
    until: FxHashMap<VolumeId, Epoch>,
    /// And of all volumes', as the cache was opened.
    at_open: Epoch,
    /// Dirty blocks that are bad, the first so many.
    bad: Vec<(VolumeId, Lba)>,
}

impl Dirt {
    pub fn new(at_open: Epoch) -> Dirt {
        Dirt { until: FxHashMap::default(), at_open, bad: Vec::new() }
    }

    /// A volume was written to in this epoch, which is the newest.
    pub fn note(&mut self, volume: VolumeId, epoch: Epoch) {
        self.until.insert(volume, epoch);
    }

    /// A volume was deleted.
    pub fn forget(&mut self, volume: VolumeId) {
        self.until.remove(&volume);
    }

    /// The last epoch in which the pool did not get all of a volume, or of any.
    pub fn last(&self, volume: Option<VolumeId>) -> Epoch {
        match volume {
            Some(v) => self.until.get(&v).copied().unwrap_or(self.at_open),
            None => self.until.values().copied().fold(self.at_open, Epoch::max),
        }
    }

    /// No copy is left of a dirty block.
    pub fn note_bad(&mut self, volume: VolumeId, lba: Lba) {
        if self.bad.len() < NAMED && !self.bad.contains(&(volume, lba)) {
            self.bad.push((volume, lba));
        }
    }

    /// Dirty blocks of which no copy is left, the first so many.
    pub fn bad(&self) -> &[(VolumeId, Lba)] {
        &self.bad
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_was_not_written_may_be_dirty_since_the_open() {
        let (a, b) = (VolumeId(1), VolumeId(2));
        let mut dirt = Dirt::new(Epoch(3));
        dirt.note(a, Epoch(5));
        assert_eq!((dirt.last(Some(a)), dirt.last(Some(b))), (Epoch(5), Epoch(3)));
        assert_eq!(dirt.last(None), Epoch(5));
        dirt.forget(a);
        assert_eq!(dirt.last(None), Epoch(3));
    }

    #[test]
    fn a_bad_block_is_named_once_and_not_all_are() {
        let mut dirt = Dirt::new(Epoch(0));
        (0..2 * NAMED as u64).for_each(|i| dirt.note_bad(VolumeId(1), Lba(i / 2)));
        assert_eq!(dirt.bad().len(), NAMED);
        dirt.note_bad(VolumeId(1), Lba(1 << 20));
        assert_eq!(dirt.bad().len(), NAMED);
    }
}
