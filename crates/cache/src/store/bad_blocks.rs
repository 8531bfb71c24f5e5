//! Dirty blocks that cannot be written back: they are bad in the cache, and no copy is left;
//! or they were written in part, and the pool cannot read the rest. They are known until they are
//! written again or discarded, or are read well after all.

use std::collections::BTreeMap;

use base::{BlockRange, Lba, VolumeId};

/// The number of ranges that are remembered at most. If there are more, the number of blocks is a
/// lower bound.
const RANGES: usize = 1 << 16;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct BadBlocks {
    /// The end of each range, by its beginning. Ranges do not touch each other.
    ranges: BTreeMap<(VolumeId, Lba), Lba>,
    blocks: u64,
}

impl BadBlocks {
    /// A block is bad. Returns how many are now, if it was not known.
    pub fn note(&mut self, volume: VolumeId, lba: Lba) -> Option<u64> {
        if self.has(volume, lba) {
            return None;
        }
        let before = self.ranges.range(..=(volume, lba)).next_back();
        let before = before.map(|(&(v, from), &end)| (v, from, end)).filter(|b| b.0 == volume);
        let mut end = lba.plus(1);
        let next = self.ranges.get(&(volume, end)).copied();
        let grows = before.filter(|&(_, _, end)| end == lba);
        if grows.is_none() && next.is_none() && self.ranges.len() >= RANGES {
            return None;
        }
        if let Some(behind) = next {
            self.ranges.remove(&(volume, end));
            end = behind;
        }
        self.ranges.insert((volume, grows.map_or(lba, |(_, from, _)| from)), end);
        self.blocks += 1;
        Some(self.blocks)
    }

    /// Forgets that blocks of a range are bad: their content was replaced.
    pub fn replaced(&mut self, volume: VolumeId, range: BlockRange) {
        let BlockRange { from: lba, end } = range;
        while let Some((&(v, from), &upto)) = self.ranges.range(..(volume, end)).next_back()
            && v == volume
            && upto > lba
        {
            self.ranges.remove(&(volume, from));
            self.blocks -= upto.min(end).0 - from.max(lba).0;
            if upto > end {
                self.ranges.insert((volume, end), upto);
            }
            if from < lba {
                self.ranges.insert((volume, from), lba);
            }
        }
    }

    /// True if a block is known to be bad.
    pub fn has(&self, volume: VolumeId, lba: Lba) -> bool {
        self.touches(volume, BlockRange::of(lba, 1))
    }

    /// True if a block of a range is known to be bad.
    pub fn touches(&self, volume: VolumeId, range: BlockRange) -> bool {
        let before = self.ranges.range(..(volume, range.end)).next_back();
        before.is_some_and(|(&(v, _), &upto)| v == volume && upto > range.from)
    }

    /// The number of blocks that are known to be bad.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The first `most` blocks that are known to be bad.
    pub fn first(&self, most: usize) -> impl Iterator<Item = (VolumeId, Lba)> {
        let each = |(&(v, from), &end): (&(VolumeId, Lba), &Lba)| {
            (from.0..end.0).map(move |lba| (v, Lba(lba)))
        };
        self.ranges.iter().flat_map(each).take(most)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use base::Prng;

    use super::*;

    #[test]
    fn it_knows_what_a_set_of_blocks_knows() {
        let (mut bad, mut model, mut r) = (BadBlocks::default(), BTreeSet::new(), Prng::new(7));
        for _ in 0..20_000 {
            let (volume, lba) = (VolumeId(r.below(2) as u32), r.below(60));
            if r.one_in(3) {
                let end = lba + 1 + r.below(8);
                bad.replaced(volume, BlockRange::new(Lba(lba), Lba(end)));
                (lba..end).for_each(|lba| _ = model.remove(&(volume, Lba(lba))));
            } else {
                let new = model.insert((volume, Lba(lba)));
                let known = bad.note(volume, Lba(lba));
                assert_eq!(known, new.then_some(model.len() as u64));
            }
            assert_eq!(bad.blocks(), model.len() as u64);
            assert_eq!(bad.has(volume, Lba(lba)), model.contains(&(volume, Lba(lba))));
            let range = BlockRange::of(Lba(lba), 1 + r.below(8));
            let any = (range.from.0..range.end.0).any(|lba| model.contains(&(volume, Lba(lba))));
            assert_eq!(bad.touches(volume, range), any);
            assert!(bad.first(usize::MAX).eq(model.iter().copied()));
            let touching =
                bad.ranges.iter().any(|(&(v, _), &end)| bad.ranges.contains_key(&(v, end)));
            assert!(!touching, "{:?}", bad.ranges);
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut bad = BadBlocks::default();
        for i in 0..RANGES as u64 + 10 {
            let known = bad.note(VolumeId(1), Lba(2 * i));
            assert_eq!(known.is_some(), i < RANGES as u64);
        }
        // One that joins others takes none.
        assert!(bad.note(VolumeId(1), Lba(1)).is_some());
    }
}
