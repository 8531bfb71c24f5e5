//! Keys and values of the pool's trees.
//!
//! A mapping tree belongs to a volume. Its key is the first block of an extent (u64, big-endian).
//! Its value is the pool address (6 bytes, little-endian) and the length in blocks (u16). Extents
//! do not overlap.
//!
//! A checksum tree belongs to a data block group. Its key is the first block inside the group (u32,
//! big-endian). Its value is the volume that owns the blocks (u32), the first block in that volume
//! (u64), and a crc32c (u32) for each block. Records do not overlap. A record counts only for
//! blocks that are allocated in the group's bitmap. What it says of free blocks is obsolete.

use base::{Crc, Lba, PoolAddr, VolumeId};

/// The largest number of blocks in an extent of a mapping tree.
pub const MAX_EXTENT: u32 = 32_768;
/// The largest number of blocks in a checksum record.
pub const MAX_CHECKSUMS: u32 = 64;
/// Bytes of a checksum record before the checksums.
const OWNER: usize = 12;

/// The key of a block in its volume's mapping tree.
pub fn mapping_key(lba: Lba) -> [u8; 8] {
    lba.0.to_be_bytes()
}

/// The key of a block in its group's checksum tree. `offset` counts blocks from the start of the
/// group.
pub fn checksum_key(offset: u32) -> [u8; 4] {
    offset.to_be_bytes()
}

/// A run of a volume's blocks that is contiguous in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedExtent {
    /// The first block of the extent in the volume.
    pub lba: Lba,
    /// The first block of the extent in the pool.
    pub addr: PoolAddr,
    /// Number of blocks.
    pub len: u32,
}

impl MappedExtent {
    /// The block of the volume behind the extent.
    pub fn end(&self) -> u64 {
        self.lba.0 + u64::from(self.len)
    }

    /// The extent's value in the mapping tree.
    pub fn value(&self) -> [u8; 8] {
        let a = self.addr.0.to_le_bytes();
        let l = (self.len as u16).to_le_bytes();
        [a[0], a[1], a[2], a[3], a[4], a[5], l[0], l[1]]
    }

    /// Decodes a record of a mapping tree. Returns `None` if it is invalid.
    pub fn decode(key: &[u8], value: &[u8]) -> Option<MappedExtent> {
        let lba = u64::from_be_bytes(key.try_into().ok()?);
        let v: [u8; 8] = value.try_into().ok()?;
        let addr = u64::from_le_bytes([v[0], v[1], v[2], v[3], v[4], v[5], 0, 0]);
        let len = u32::from(u16::from_le_bytes([v[6], v[7]]));
        (len > 0 && len <= MAX_EXTENT && lba < 1 << 52).then_some(MappedExtent {
            lba: Lba(lba),
            addr: PoolAddr(addr),
            len,
        })
    }
}

/// A record of a checksum tree, read in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checksums<'a> {
    /// The first block, counted from the start of the group.
    pub offset: u32,
    /// The volume that owns the blocks.
    pub volume: VolumeId,
    /// The block of the volume that is stored at `offset`.
    pub lba: Lba,
    crcs: &'a [u8],
}

impl<'a> Checksums<'a> {
    /// Decodes a record. Returns `None` if it is invalid.
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

    /// Number of blocks.
    pub fn len(&self) -> u32 {
        (self.crcs.len() / 4) as u32
    }

    /// True if there are no blocks. A decoded record is never empty.
    pub fn is_empty(&self) -> bool {
        self.crcs.is_empty()
    }

    /// The checksum of block `offset + i`. Returns `None` if the record does not reach that far.
    pub fn crc(&self, i: u32) -> Option<Crc> {
        let at = i as usize * 4;
        Some(Crc::from_le_bytes(self.crcs.get(at..at + 4)?.try_into().ok()?))
    }
}

/// Encodes the value of a checksum record into `out`, which is cleared first.
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
        fn extent_round_trip(
            lba in 0u64..1 << 52,
            addr in 0u64..1 << 48,
            len in 1u32..=MAX_EXTENT,
        ) {
            let e = MappedExtent { lba: Lba(lba), addr: PoolAddr(addr), len };
            prop_assert_eq!(MappedExtent::decode(&mapping_key(e.lba), &e.value()), Some(e));
        }

        #[test]
        fn checksum_round_trip(
            offset in 0u32..1 << 18,
            volume in 1u32..,
            lba in 0u64..1 << 52,
            crcs in prop::collection::vec(any::<u32>(), 1..=64),
        ) {
            let mut v = Vec::new();
            encode_checksums(&mut v, VolumeId(volume), Lba(lba), crcs.iter().copied());
            let key = checksum_key(offset);
            let r = Checksums::decode(&key, &v).expect("good");
            prop_assert_eq!((r.offset, r.volume, r.lba), (offset, VolumeId(volume), Lba(lba)));
            prop_assert_eq!(r.len() as usize, crcs.len());
            prop_assert_eq!((0..r.len()).filter_map(|i| r.crc(i)).collect::<Vec<_>>(), crcs);
            prop_assert_eq!(r.crc(r.len()), None);
        }

        #[test]
        fn hostile_bytes_never_panic(
            key in prop::collection::vec(any::<u8>(), 0..12),
            value in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let _ = MappedExtent::decode(&key, &value);
            let _ = Checksums::decode(&key, &value);
        }
    }
}
