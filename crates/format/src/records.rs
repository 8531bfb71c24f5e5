//! Keys and values of the pool's trees.
//!
//! Mapping tree of a volume: key = first block (u64, big-endian), value = pool address (6 bytes, little-endian), length in blocks
//! (u16). Extents do not overlap and are in the order of blocks.
//!
//! Checksum tree of a data block group: key = first block inside the group (u32, big-endian), value = owner volume (u32), its block
//! (u64), then one crc32c (u32) a block. Records do not overlap. A record speaks for those of its blocks that the group's bitmap
//! says are allocated; what it says of free blocks is old and means nothing.

use base::{Crc, Lba, PoolAddr, VolumeId};

/// Most blocks of one mapping extent.
pub const MAX_EXTENT: u32 = 32_768;
/// Most blocks of one checksum record.
pub const MAX_CHECKSUMS: u32 = 64;
/// Bytes before the checksums of a checksum record.
const OWNER: usize = 12;

/// The key of a volume's block.
pub fn mapping_key(lba: Lba) -> [u8; 8] {
    lba.0.to_be_bytes()
}

/// The key of a group's block.
pub fn checksum_key(offset: u32) -> [u8; 4] {
    offset.to_be_bytes()
}

/// A run of a volume's blocks that is contiguous in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Its first block in the volume.
    pub lba: Lba,
    /// Its first block in the pool.
    pub addr: PoolAddr,
    /// Blocks.
    pub len: u32,
}

impl Extent {
    /// The block after it.
    pub fn end(&self) -> u64 {
        self.lba.0 + u64::from(self.len)
    }

    /// Its value in the mapping tree.
    pub fn value(&self) -> [u8; 8] {
        let a = self.addr.0.to_le_bytes();
        let l = (self.len as u16).to_le_bytes();
        [a[0], a[1], a[2], a[3], a[4], a[5], l[0], l[1]]
    }

    /// Reads a record of a mapping tree; `None` if it cannot be one.
    pub fn decode(key: &[u8], value: &[u8]) -> Option<Extent> {
        let lba = u64::from_be_bytes(key.try_into().ok()?);
        let v: [u8; 8] = value.try_into().ok()?;
        let addr = u64::from_le_bytes([v[0], v[1], v[2], v[3], v[4], v[5], 0, 0]);
        let len = u32::from(u16::from_le_bytes([v[6], v[7]]));
        (len > 0 && len <= MAX_EXTENT && lba < 1 << 52).then_some(Extent {
            lba: Lba(lba),
            addr: PoolAddr(addr),
            len,
        })
    }
}

/// A record of a checksum tree, read in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checksums<'a> {
    /// First block, inside the group.
    pub offset: u32,
    /// The volume it belongs to.
    pub volume: VolumeId,
    /// The volume's block that is at `offset`.
    pub lba: Lba,
    crcs: &'a [u8],
}

impl<'a> Checksums<'a> {
    /// Reads a record; `None` if it cannot be one.
    pub fn decode(key: &[u8], value: &'a [u8]) -> Option<Checksums<'a>> {
        let offset = u32::from_be_bytes(key.try_into().ok()?);
        let (owner, crcs) = value.split_at_checked(OWNER)?;
        let volume = u32::from_le_bytes(owner[..4].try_into().ok()?);
        let lba = u64::from_le_bytes(owner[4..].try_into().ok()?);
        let n = crcs.len() / 4;
        let fits = crcs.len() % 4 == 0 && n > 0 && n <= MAX_CHECKSUMS as usize && lba < 1 << 52;
        (fits && offset.checked_add(n as u32).is_some()).then_some(Checksums {
            offset,
            volume: VolumeId(volume),
            lba: Lba(lba),
            crcs,
        })
    }

    /// Blocks it speaks of.
    pub fn len(&self) -> u32 {
        (self.crcs.len() / 4) as u32
    }

    /// Never true of a decoded record.
    pub fn is_empty(&self) -> bool {
        self.crcs.is_empty()
    }

    /// The checksum of the block `i` behind `offset`.
    pub fn crc(&self, i: u32) -> Option<Crc> {
        let at = i as usize * 4;
        Some(Crc::from_le_bytes(self.crcs.get(at..at + 4)?.try_into().ok()?))
    }
}

/// Appends the value of a checksum record to `out`, which is cleared first.
pub fn encode_checksums(
    out: &mut Vec<u8>,
    volume: VolumeId,
    lba: Lba,
    crcs: impl Iterator<Item = Crc>,
) {
    out.clear();
    out.extend_from_slice(&volume.0.to_le_bytes());
    out.extend_from_slice(&lba.0.to_le_bytes());
    for crc in crcs {
        out.extend_from_slice(&crc.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extents(lba in 0u64..1 << 52, addr in 0u64..1 << 48, len in 1u32..=MAX_EXTENT) {
            let e = Extent { lba: Lba(lba), addr: PoolAddr(addr), len };
            prop_assert_eq!(Extent::decode(&mapping_key(e.lba), &e.value()), Some(e));
        }

        #[test]
        fn checksums(offset in 0u32..1 << 18, volume in 1u32.., lba in 0u64..1 << 52, crcs in prop::collection::vec(any::<u32>(), 1..=64)) {
            let mut v = Vec::new();
            encode_checksums(&mut v, VolumeId(volume), Lba(lba), crcs.iter().copied());
            let key = checksum_key(offset);
            let r = Checksums::decode(&key, &v).expect("good");
            prop_assert_eq!((r.offset, r.volume, r.lba, r.len() as usize), (offset, VolumeId(volume), Lba(lba), crcs.len()));
            prop_assert_eq!((0..r.len()).filter_map(|i| r.crc(i)).collect::<Vec<_>>(), crcs);
            prop_assert_eq!(r.crc(r.len()), None);
        }

        #[test]
        fn hostile_bytes_never_panic(key in prop::collection::vec(any::<u8>(), 0..12), value in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Extent::decode(&key, &value);
            let _ = Checksums::decode(&key, &value);
        }
    }
}
