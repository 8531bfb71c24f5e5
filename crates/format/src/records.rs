//! Keys and values of the pool's trees.
//!
//! A mapping tree belongs to a volume. Its key is the first block of an extent (u64, big-endian).
//! Its value is the pool address (6 bytes, little-endian), the length in blocks (u16) and, unless
//! that is 0, the birth of the blocks (u32). Extents do not overlap.
//!
//! A checksum tree belongs to a data block group. Its key is the first block inside the group (u32,
//! big-endian). Its value is the volume that owns the blocks (u32), the first block in that volume
//! (u64), and a crc32c (u32) for each block. Records do not overlap. A record counts only for
//! blocks that are allocated in the group's bitmap. What it says of free blocks is obsolete.
//!
//! A deadlist belongs to a volume or a snapshot. It has the blocks that the volume has lost since
//! its newest snapshot, and that an older one still has. Its key says whether the blocks hold data
//! or a node (u8), their birth, or for a node its generation (u64), the commit in which the volume
//! lost them (u64), and a number that tells records of one commit apart (u32), all big-endian. Its
//! value is the pool address (6 bytes, little-endian) and the number of blocks (u32).

use std::ops::Deref;

use base::{Birth, Crc, Generation, Lba, PoolAddr, VolumeId};

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
    /// The birth of the blocks.
    pub birth: Birth,
}

/// The value of an extent in a mapping tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentValue {
    bytes: [u8; ExtentValue::BYTES],
    len: usize,
}

impl ExtentValue {
    /// Bytes of the value of blocks that were born with the pool.
    const FIRST_BYTES: usize = 8;
    /// Bytes of the value of all other blocks.
    const BYTES: usize = 12;
}

impl Deref for ExtentValue {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl MappedExtent {
    /// The block of the volume behind the extent.
    pub fn end(&self) -> u64 {
        self.lba.0 + u64::from(self.len)
    }

    /// The extent's value in the mapping tree.
    pub fn value(&self) -> ExtentValue {
        let mut bytes = [0; ExtentValue::BYTES];
        bytes[..6].copy_from_slice(&self.addr.0.to_le_bytes()[..6]);
        bytes[6..8].copy_from_slice(&(self.len as u16).to_le_bytes());
        bytes[8..].copy_from_slice(&self.birth.0.to_le_bytes());
        let len = match self.birth {
            Birth(0) => ExtentValue::FIRST_BYTES,
            _ => ExtentValue::BYTES,
        };
        ExtentValue { bytes, len }
    }

    /// Decodes a record of a mapping tree. Returns `None` if it is invalid.
    pub fn decode(key: &[u8], value: &[u8]) -> Option<MappedExtent> {
        let lba = u64::from_be_bytes(key.try_into().ok()?);
        let (v, birth) = value.split_first_chunk::<{ ExtentValue::FIRST_BYTES }>()?;
        let birth = match birth {
            [] => Birth(0),
            birth => Birth(u32::from_le_bytes(birth.try_into().ok()?)),
        };
        let is_short = value.len() == ExtentValue::FIRST_BYTES;
        let addr = u64::from_le_bytes([v[0], v[1], v[2], v[3], v[4], v[5], 0, 0]);
        let len = u32::from(u16::from_le_bytes([v[6], v[7]]));
        let fits = len > 0 && len <= MAX_EXTENT && lba < 1 << 52;
        (fits && is_short == (birth == Birth(0))).then_some(MappedExtent {
            lba: Lba(lba),
            addr: PoolAddr(addr),
            len,
            birth,
        })
    }
}

/// The age of blocks that a snapshot may have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DeadAge {
    /// Blocks of data, of this birth.
    Data(Birth),
    /// A node of this generation.
    Node(Generation),
}

/// Blocks that a volume has lost, and that an older snapshot still has: a record of a deadlist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeadRun {
    /// The age of the blocks.
    pub age: DeadAge,
    /// The commit in which the volume lost them.
    pub died: Generation,
    /// A number that tells records of one commit and age apart.
    pub number: u32,
    /// The first of the blocks.
    pub addr: PoolAddr,
    /// Number of blocks.
    pub len: u32,
}

/// Bytes of a key of a deadlist.
const DEAD_KEY: usize = 21;

impl DeadRun {
    /// The key in the deadlist.
    pub fn key(&self) -> [u8; DEAD_KEY] {
        let mut key = dead_key(self.age);
        key[9..17].copy_from_slice(&self.died.0.to_be_bytes());
        key[17..].copy_from_slice(&self.number.to_be_bytes());
        key
    }

    /// The value in the deadlist.
    pub fn value(&self) -> [u8; 10] {
        let mut value = [0; 10];
        value[..6].copy_from_slice(&self.addr.0.to_le_bytes()[..6]);
        value[6..].copy_from_slice(&self.len.to_le_bytes());
        value
    }

    /// Decodes a record of a deadlist. Returns `None` if it is invalid.
    pub fn decode(key: &[u8], value: &[u8]) -> Option<DeadRun> {
        let key: &[u8; DEAD_KEY] = key.try_into().ok()?;
        let value: &[u8; 10] = value.try_into().ok()?;
        let number = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| key[at + i]));
        let age = match key[0] {
            0 => DeadAge::Data(Birth(u32::try_from(number(1)).ok()?)),
            1 => DeadAge::Node(Generation(number(1))),
            _ => return None,
        };
        let addr = u64::from_le_bytes(std::array::from_fn(|i| if i < 6 { value[i] } else { 0 }));
        let len = u32::from_le_bytes(std::array::from_fn(|i| value[6 + i]));
        let fits = match age {
            DeadAge::Data(_) => len > 0 && len <= MAX_EXTENT,
            DeadAge::Node(_) => len == 1,
        };
        fits.then_some(DeadRun {
            age,
            died: Generation(number(9)),
            number: u32::from_be_bytes(std::array::from_fn(|i| key[17 + i])),
            addr: PoolAddr(addr),
            len,
        })
    }
}

/// The first key that a record of this age may have in a deadlist.
pub fn dead_key(age: DeadAge) -> [u8; DEAD_KEY] {
    let (kind, born) = match age {
        DeadAge::Data(birth) => (0, u64::from(birth.0)),
        DeadAge::Node(generation) => (1, generation.0),
    };
    let mut key = [0; DEAD_KEY];
    key[0] = kind;
    key[1..9].copy_from_slice(&born.to_be_bytes());
    key
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
            birth in prop_oneof![Just(0), any::<u32>()],
        ) {
            let e = MappedExtent { lba: Lba(lba), addr: PoolAddr(addr), len, birth: Birth(birth) };
            prop_assert_eq!(e.value().len(), if birth == 0 { 8 } else { 12 });
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
        fn dead_run_round_trip(
            born in any::<u32>(),
            is_node in any::<bool>(),
            died in any::<u64>(),
            number in any::<u32>(),
            addr in 0u64..1 << 48,
            len in 1u32..=MAX_EXTENT,
        ) {
            let (age, len) = match is_node {
                true => (DeadAge::Node(Generation(born.into())), 1),
                false => (DeadAge::Data(Birth(born)), len),
            };
            let run = DeadRun { age, died: Generation(died), number, addr: PoolAddr(addr), len };
            prop_assert_eq!(DeadRun::decode(&run.key(), &run.value()), Some(run));
            prop_assert!(dead_key(age) <= run.key());
        }

        #[test]
        fn hostile_bytes_never_panic(
            key in prop::collection::vec(any::<u8>(), 0..12),
            value in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let _ = MappedExtent::decode(&key, &value);
            let _ = Checksums::decode(&key, &value);
            let _ = DeadRun::decode(&key, &value);
        }
    }
}
