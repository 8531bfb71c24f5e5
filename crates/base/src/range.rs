//! Ranges of blocks of a volume, and of bytes of a device.

use crate::units::Lba;

/// A range of blocks of a volume: from the first block on, up to the end, which is not part of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockRange {
    /// The first block.
    pub from: Lba,
    /// The block behind the last one.
    pub end: Lba,
}

impl BlockRange {
    /// The range from `from` up to `end`.
    pub fn new(from: Lba, end: Lba) -> BlockRange {
        BlockRange { from, end }
    }

    /// The range of `blocks` blocks that begins at `from`.
    pub fn of(from: Lba, blocks: u64) -> BlockRange {
        BlockRange { from, end: Lba(from.0 + blocks) }
    }

    /// The number of blocks; 0 if the end is not behind the beginning.
    pub fn blocks(&self) -> u64 {
        self.end.0.saturating_sub(self.from.0)
    }

    /// True if the range has no block.
    pub fn is_empty(&self) -> bool {
        self.blocks() == 0
    }

    /// True if the range has this block.
    pub fn contains(&self, lba: Lba) -> bool {
        (self.from.0..self.end.0).contains(&lba.0)
    }
}

/// A range of bytes of a device: from the first byte on, up to the end, which is not part of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ByteRange {
    /// The first byte.
    pub from: u64,
    /// The byte behind the last one.
    pub end: u64,
}

impl ByteRange {
    /// The range from `from` up to `end`.
    pub fn new(from: u64, end: u64) -> ByteRange {
        ByteRange { from, end }
    }

    /// True if each begins before the other ends.
    pub fn overlaps(&self, other: &ByteRange) -> bool {
        self.from < other.end && other.from < self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_no_part_of_a_range() {
        let range = BlockRange::of(Lba(3), 2);
        assert_eq!(range, BlockRange::new(Lba(3), Lba(5)));
        assert_eq!((range.blocks(), range.is_empty()), (2, false));
        assert!(range.contains(Lba(4)) && !range.contains(Lba(5)) && !range.contains(Lba(2)));
        assert!(BlockRange::new(Lba(5), Lba(3)).is_empty());
    }

    #[test]
    fn ranges_that_only_touch_do_not_overlap() {
        let range = ByteRange::new(3, 5);
        assert!(range.overlaps(&ByteRange::new(4, 9)) && range.overlaps(&ByteRange::new(0, 4)));
        assert!(!range.overlaps(&ByteRange::new(5, 9)) && !range.overlaps(&ByteRange::new(0, 3)));
    }
}
