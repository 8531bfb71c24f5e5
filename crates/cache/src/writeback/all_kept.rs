//! Blocks that passes leave in the cache, by volume ([`crate::writeback::kept`]).

use std::collections::{BTreeMap, BTreeSet};

use base::{Epoch, StorageError, VolumeId};

/// The blocks of a volume that are kept.
#[derive(Clone, Debug)]
pub struct KeptBlocks {
    /// Blocks in the cache, without those that are discarded.
    pub blocks: u64,
    /// Why the pool does not take them.
    pub why: StorageError,
    /// The number of blocks of each epoch.
    epochs: BTreeMap<Epoch, u64>,
}

impl KeptBlocks {
    fn none(why: &StorageError) -> KeptBlocks {
        KeptBlocks { blocks: 0, why: why.clone(), epochs: BTreeMap::new() }
    }

    fn add(&mut self, epoch: Epoch, blocks: u64) {
        *self.epochs.entry(epoch).or_default() += blocks;
        self.blocks += blocks;
    }
}

/// The blocks that are kept, by volume.
#[derive(Default)]
pub(crate) struct KeptByVolume {
    /// The blocks as the passes that were published have found them.
    known: BTreeMap<VolumeId, KeptBlocks>,
    /// The blocks as the running pass finds them, and as earlier tries of the same cut have found
    /// them.
    found: BTreeMap<VolumeId, KeptBlocks>,
    /// The cut of that pass.
    cut: Epoch,
    /// The volumes of which the last try keeps something, or has found what an earlier one had
    /// kept.
    stay: BTreeSet<VolumeId>,
}

impl KeptByVolume {
    /// A pass of this cut begins. What an earlier try has kept stays counted: it is of a later
    /// epoch, so this one does not keep it again.
    pub fn begin(&mut self, cut: Epoch) {
        if self.cut != cut {
            self.found.clear();
        }
        (self.cut, self.stay) = (cut, BTreeSet::new());
    }

    /// The pass keeps blocks, which are of this epoch from now on.
    pub fn keep(&mut self, volume: VolumeId, blocks: u64, epoch: Epoch, why: &StorageError) {
        let kept = self.found.entry(volume).or_insert_with(|| KeptBlocks::none(why));
        if self.stay.insert(volume) {
            kept.why = why.clone();
        }
        kept.add(epoch, blocks);
    }

    /// Nothing is dirty.
    pub fn clear(&mut self) {
        self.known.clear();
    }

    /// The cut of `epoch` is published. Returns the volumes of which something is kept from now on,
    /// and those of which nothing is any more.
    pub fn publish(&mut self, epoch: Epoch) -> (Vec<VolumeId>, Vec<VolumeId>) {
        let before: Vec<VolumeId> = self.known.keys().copied().collect();
        // Blocks that were entered into a later epoch are not in this cut.
        self.known.retain(|_, kept| {
            kept.epochs.retain(|&of, _| of > epoch);
            kept.blocks = kept.epochs.values().sum();
            !kept.epochs.is_empty()
        });
        // The next pass carries what an earlier try has kept of the other volumes.
        self.found.retain(|volume, _| self.stay.contains(volume));
        for (volume, found) in std::mem::take(&mut self.found) {
            let kept = self.known.entry(volume).or_insert_with(|| KeptBlocks::none(&found.why));
            found.epochs.into_iter().for_each(|(of, blocks)| kept.add(of, blocks));
            kept.why = found.why;
        }
        let new = self.known.keys().filter(|id| !before.contains(id)).copied().collect();
        let gone = before.into_iter().filter(|id| !self.known.contains_key(id)).collect();
        (new, gone)
    }

    /// True if the pass that ran last keeps something.
    pub fn is_any(&self) -> bool {
        !self.known.is_empty()
    }

    /// The blocks of a volume that are kept.
    pub fn of(&self, volume: VolumeId) -> Option<&KeptBlocks> {
        self.known.get(&volume)
    }

    /// The blocks of all volumes that are kept.
    pub fn all(&self) -> impl Iterator<Item = (VolumeId, &KeptBlocks)> {
        self.known.iter().map(|(&volume, kept)| (volume, kept))
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    #[test]
    fn what_is_of_a_later_epoch_stays_known() {
        let why = StorageError::new(ErrorKind::Unreachable, "lost");
        let (a, b) = (VolumeId(1), VolumeId(2));
        let mut kept = KeptByVolume::default();
        // A pass of the cut 3, while the epoch 5 is open.
        kept.begin(Epoch(3));
        kept.keep(a, 10, Epoch(5), &why);
        kept.keep(a, 5, Epoch(5), &why);
        assert!(!kept.is_any(), "it is known when the cut is published");
        assert_eq!(kept.publish(Epoch(3)), (vec![a], vec![]));
        assert_eq!(kept.of(a).map(|k| k.blocks), Some(15));
        // The next cut does not have what was entered into the epoch 5.
        kept.begin(Epoch(4));
        kept.keep(b, 1, Epoch(6), &why);
        assert_eq!(kept.publish(Epoch(4)), (vec![b], vec![]));
        assert!(kept.of(a).is_some());
        // A pass that fails changes nothing, and the next one reaches the volume.
        kept.begin(Epoch(5));
        kept.keep(a, 99, Epoch(7), &why);
        kept.begin(Epoch(5));
        assert_eq!(kept.of(a).map(|k| k.blocks), Some(15));
        assert_eq!(kept.publish(Epoch(5)), (vec![], vec![a]));
        assert_eq!(kept.publish(Epoch(6)), (vec![], vec![b]));
        assert!(!kept.is_any());
    }

    #[test]
    fn what_several_cuts_leave_of_a_volume_is_added_up() {
        let why = StorageError::new(ErrorKind::Unreachable, "lost");
        let (a, mut kept) = (VolumeId(1), KeptByVolume::default());
        let blocks = |kept: &KeptByVolume| kept.of(a).map(|k| k.blocks);
        kept.begin(Epoch(3));
        kept.keep(a, 100, Epoch(5), &why);
        kept.publish(Epoch(3));
        kept.begin(Epoch(4));
        kept.keep(a, 7, Epoch(6), &why);
        assert_eq!(kept.publish(Epoch(4)), (vec![], vec![]));
        assert_eq!(blocks(&kept), Some(107));
        // All of the epoch 5 again.
        kept.begin(Epoch(5));
        kept.keep(a, 100, Epoch(7), &why);
        kept.publish(Epoch(5));
        assert_eq!(blocks(&kept), Some(107));
        kept.begin(Epoch(7));
        kept.publish(Epoch(7));
        assert!(!kept.is_any());
    }

    #[test]
    fn what_an_earlier_try_has_kept_is_counted_once() {
        let why = StorageError::new(ErrorKind::Unreachable, "lost");
        let (a, b) = (VolumeId(1), VolumeId(2));
        let mut kept = KeptByVolume::default();
        kept.begin(Epoch(3));
        kept.keep(a, 10, Epoch(4), &why);
        kept.keep(b, 10, Epoch(4), &why);
        // It fails. The next try finds the rest of one of them, and reaches the other.
        kept.begin(Epoch(3));
        kept.keep(a, 5, Epoch(5), &why);
        assert_eq!(kept.publish(Epoch(3)), (vec![a], vec![]));
        assert_eq!(kept.of(a).map(|k| k.blocks), Some(15));
        // A pass of another cut begins anew.
        kept.begin(Epoch(4));
        kept.keep(b, 1, Epoch(6), &why);
        kept.begin(Epoch(5));
        assert_eq!(kept.publish(Epoch(5)), (vec![], vec![a]));
    }
}
