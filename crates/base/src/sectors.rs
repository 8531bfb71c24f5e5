//! Sets of the sectors of one block.

use crate::units::{BLOCK, SECTOR};

const PER_BLOCK: usize = BLOCK / SECTOR;
const _: () = assert!(PER_BLOCK == 8, "one bit for each sector");

/// A set of the eight 512-byte sectors of a block; bit 0 is the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sectors(u8);

impl Sectors {
    /// The empty set.
    pub const NONE: Sectors = Sectors(0);
    /// The set of all sectors: the whole block.
    pub const ALL: Sectors = Sectors(0xff);

    /// The set whose bitmask is `bits`.
    pub fn from_bits(bits: u8) -> Sectors {
        Sectors(bits)
    }

    /// The bitmask of the set.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// The sectors that lie entirely in the `len` bytes from byte `at` of the block.
    pub fn covered(at: usize, len: usize) -> Sectors {
        Sectors::between(at.div_ceil(SECTOR), (at + len) / SECTOR)
    }

    /// The sectors that share at least one byte with the `len` bytes from byte `at` of the block.
    pub fn touched(at: usize, len: usize) -> Sectors {
        Sectors::between(at / SECTOR, (at + len).div_ceil(SECTOR))
    }

    fn between(from: usize, to: usize) -> Sectors {
        (from..to.min(PER_BLOCK)).fold(Sectors::NONE, |all, i| Sectors(all.0 | 1 << i))
    }

    /// True if the set is the whole block.
    pub fn is_all(self) -> bool {
        self == Sectors::ALL
    }

    /// True if the set contains every sector of `other`.
    pub fn has(self, other: Sectors) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both sets.
    pub fn with(self, other: Sectors) -> Sectors {
        Sectors(self.0 | other.0)
    }

    /// Copies the sectors of the set from the block `from` to the block `to`.
    pub fn copy(self, from: &[u8], to: &mut [u8]) {
        for i in (0..PER_BLOCK).filter(|i| self.0 >> i & 1 == 1) {
            to[i * SECTOR..][..SECTOR].copy_from_slice(&from[i * SECTOR..][..SECTOR]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_cover_and_touch_sectors() {
        assert_eq!(Sectors::covered(0, BLOCK), Sectors::ALL);
        assert_eq!(Sectors::covered(512, 1024), Sectors(0b110));
        assert_eq!(Sectors::touched(512, 1024), Sectors(0b110));
        assert_eq!(Sectors::covered(511, 1026), Sectors(0b110));
        assert_eq!(Sectors::touched(511, 1026), Sectors(0b1111));
        assert_eq!(Sectors::covered(3, 500), Sectors::NONE);
        assert_eq!(Sectors::touched(3584, 512), Sectors(0x80));
        assert!(Sectors::ALL.has(Sectors(3)) && !Sectors(3).has(Sectors(4)));
    }

    #[test]
    fn copy_copies_only_the_sectors_of_the_set() {
        let (from, mut to) = (vec![1u8; BLOCK], vec![0u8; BLOCK]);
        Sectors(0b1000_0001).copy(&from, &mut to);
        assert!(to.iter().enumerate().all(|(i, &b)| u8::from(!(512..3584).contains(&i)) == b));
    }
}
