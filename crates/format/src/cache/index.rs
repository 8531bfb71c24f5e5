//! Records of the cache's index.
//!
//! ```text
//! key:          volume u32 big-endian, first block u40 big-endian
//! data:         kind u8 (0 clean, 1 dirty), epoch u32, address u40, generation u32, then a crc32c for each of its 1 to 64 blocks
//! zeros:        kind u8 (2), epoch u32, blocks u40
//! staged:       kind u8 (3), epoch u32, then a crc32c for each of its 1 to 64 blocks
//! part:         kind u8 (4), epoch u32, address u40, generation u32, sectors u8, crc32c
//! part over staged: the same with kind 5, then the epoch u32 and the crc32c of the staged block
//! ```
//!
//! A *part* is one block of a bucket of which only some sectors of 512 bytes count: bit 0 of `sectors` is the first one. The others are zeros there, and their
//! content is what the pool's published image has; or, where the part was written over a staged block, what the staging volume of that epoch has, until that is
//! published. It is always dirty when it is written, and counts for nothing when its epoch is published.
//!
//! Little-endian but for the keys, whose order counts. A record stands in a node that was verified as a whole; it may still make no sense, so
//! decoding checks every length and range.

use base::{BucketGen, CacheAddr, Crc, Epoch, Lba, Sectors, VolumeId};

/// Most blocks in one data extent.
pub const MAX_EXTENT_BLOCKS: usize = 64;
/// Bytes of a key.
pub const KEY_LEN: usize = 9;
/// Bytes of a data record before its checksums.
pub const DATA_HEAD: usize = 14;
/// Volumes have no block at or behind this.
const MAX_LBA: u64 = 1 << 40;

/// The key of the extent that begins at a block. A block beyond the largest is the largest: a range may end there.
pub fn index_key(volume: VolumeId, lba: Lba) -> [u8; KEY_LEN] {
    let mut key = [0; KEY_LEN];
    key[..4].copy_from_slice(&volume.0.to_be_bytes());
    key[4..].copy_from_slice(&lba.0.min(MAX_LBA - 1).to_be_bytes()[3..]);
    key
}

/// Reads a key; `None` if it cannot be one.
pub fn decode_key(key: &[u8]) -> Option<(VolumeId, Lba)> {
    let (volume, lba) = key.split_at_checked(4)?;
    let lba: [u8; 5] = lba.try_into().ok()?;
    Some((VolumeId(u32::from_be_bytes(volume.try_into().ok()?)), Lba(u40_be(lba))))
}

fn u40_be(b: [u8; 5]) -> u64 {
    u64::from_be_bytes([0, 0, 0, b[0], b[1], b[2], b[3], b[4]])
}

fn u40(b: &[u8]) -> Option<u64> {
    let b: [u8; 5] = b.try_into().ok()?;
    Some(u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], 0, 0, 0]))
}

/// Checksums in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CrcList<'a>(&'a [u8]);

impl<'a> CrcList<'a> {
    /// How many.
    pub fn len(&self) -> usize {
        self.0.len() / 4
    }

    /// Never true of a decoded record.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `len` of them from number `from` on. Panics if there are fewer.
    pub fn cut(&self, from: usize, len: usize) -> CrcList<'a> {
        CrcList(&self.0[from * 4..][..len * 4])
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = Crc> + use<'a> {
        self.0.chunks_exact(4).map(|c| Crc::from_le_bytes([c[0], c[1], c[2], c[3]]))
    }
}

/// A block of the pool's staging volume of an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StagedBelow {
    /// The epoch.
    pub epoch: Epoch,
    /// What the block should be.
    pub crc: Crc,
}

/// What of a block counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cover {
    /// These sectors.
    pub sectors: Sectors,
    /// Where the others are, until that epoch is published; `None`: in the pool's published image.
    pub below: Option<StagedBelow>,
}

impl Cover {
    /// The whole block.
    pub const ALL: Cover = Cover { sectors: Sectors::ALL, below: None };

    /// True if it is the whole block.
    pub fn is_all(&self) -> bool {
        self.sectors.is_all()
    }
}

/// What blocks of a volume are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexValue<'a> {
    /// Blocks of a bucket.
    Data {
        /// Written here, not read from the pool.
        dirty: bool,
        /// In which epoch; 0 if clean.
        epoch: Epoch,
        /// First block.
        addr: CacheAddr,
        /// The generation of its bucket.
        generation: BucketGen,
        /// Of each block.
        crcs: CrcList<'a>,
    },
    /// Discarded.
    Zeros {
        /// In which epoch.
        epoch: Epoch,
        /// Blocks.
        len: u64,
    },
    /// Blocks of the pool's staging volume of this volume and epoch.
    Staged {
        /// In which epoch.
        epoch: Epoch,
        /// Of each block.
        crcs: CrcList<'a>,
    },
    /// A block of a bucket of which some sectors count.
    Part {
        /// In which epoch it was written.
        epoch: Epoch,
        /// The block.
        addr: CacheAddr,
        /// The generation of its bucket.
        generation: BucketGen,
        /// What of it counts: some sectors, but not all.
        cover: Cover,
        /// Of the whole block, in which all other sectors are zeros.
        crc: Crc,
    },
}

impl<'a> IndexValue<'a> {
    /// Reads a value; `None` if it cannot be one.
    pub fn decode(value: &'a [u8]) -> Option<IndexValue<'a>> {
        let (&kind, rest) = value.split_first()?;
        let (epoch, rest) = rest.split_at_checked(4)?;
        let epoch = Epoch(u32::from_le_bytes(epoch.try_into().ok()?));
        match kind {
            0 | 1 => {
                let (addr, rest) = rest.split_at_checked(5)?;
                let (generation, crcs) = rest.split_at_checked(4)?;
                let blocks = crcs.len() / 4;
                let sound = crcs.len() % 4 == 0 && (1..=MAX_EXTENT_BLOCKS).contains(&blocks);
                let sound = sound && (kind == 1) == (epoch.0 > 0);
                sound.then_some(IndexValue::Data {
                    dirty: kind == 1,
                    epoch,
                    addr: CacheAddr(u40(addr)?),
                    generation: BucketGen(u32::from_le_bytes(generation.try_into().ok()?)),
                    crcs: CrcList(crcs),
                })
            }
            2 => {
                let len = u40(rest)?;
                (len > 0 && epoch.0 > 0).then_some(IndexValue::Zeros { epoch, len })
            }
            3 => {
                let sound =
                    rest.len() % 4 == 0 && (1..=MAX_EXTENT_BLOCKS).contains(&(rest.len() / 4));
                (sound && epoch.0 > 0).then_some(IndexValue::Staged { epoch, crcs: CrcList(rest) })
            }
            4 | 5 => {
                let (addr, rest) = rest.split_at_checked(5)?;
                let (generation, rest) = rest.split_at_checked(4)?;
                let (&bits, rest) = rest.split_first()?;
                let (crc, rest) = rest.split_at_checked(4)?;
                let below = match (kind, rest.split_at_checked(4)) {
                    (4, _) if rest.is_empty() => None,
                    (5, Some((epoch, crc))) => Some(StagedBelow {
                        epoch: Epoch(u32::from_le_bytes(epoch.try_into().ok()?)),
                        crc: Crc::from_le_bytes(crc.try_into().ok()?),
                    }),
                    _ => return None,
                };
                let sound = bits != 0 && bits != 0xff && epoch.0 > 0;
                let sound = sound && below.is_none_or(|b| b.epoch.0 > 0 && b.epoch <= epoch);
                sound.then_some(IndexValue::Part {
                    epoch,
                    addr: CacheAddr(u40(addr)?),
                    generation: BucketGen(u32::from_le_bytes(generation.try_into().ok()?)),
                    cover: Cover { sectors: Sectors::from_bits(bits), below },
                    crc: Crc::from_le_bytes(crc.try_into().ok()?),
                })
            }
            _ => None,
        }
    }
}

/// Puts a data record into `out`, which is cleared first. An epoch of 0 is clean.
pub fn encode_data(
    out: &mut Vec<u8>,
    epoch: Epoch,
    addr: CacheAddr,
    generation: BucketGen,
    crcs: &[Crc],
) {
    debug_assert!((1..=MAX_EXTENT_BLOCKS).contains(&crcs.len()));
    out.clear();
    out.push(u8::from(epoch.0 > 0));
    out.extend_from_slice(&epoch.0.to_le_bytes());
    out.extend_from_slice(&addr.0.to_le_bytes()[..5]);
    out.extend_from_slice(&generation.0.to_le_bytes());
    for crc in crcs {
        out.extend_from_slice(&crc.to_le_bytes());
    }
}

/// Puts a record of zeros into `out`, which is cleared first.
pub fn encode_zeros(out: &mut Vec<u8>, epoch: Epoch, len: u64) {
    out.clear();
    out.push(2);
    out.extend_from_slice(&epoch.0.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes()[..5]);
}

/// Puts a record of staged blocks into `out`, which is cleared first.
pub fn encode_staged(out: &mut Vec<u8>, epoch: Epoch, crcs: &[Crc]) {
    debug_assert!((1..=MAX_EXTENT_BLOCKS).contains(&crcs.len()) && epoch.0 > 0);
    out.clear();
    out.push(3);
    out.extend_from_slice(&epoch.0.to_le_bytes());
    crcs.iter().for_each(|c| out.extend_from_slice(&c.to_le_bytes()));
}

/// Puts a record of a part of a block into `out`, which is cleared first.
pub fn encode_part(
    out: &mut Vec<u8>,
    epoch: Epoch,
    (addr, generation): (CacheAddr, BucketGen),
    cover: &Cover,
    crc: Crc,
) {
    debug_assert!(epoch.0 > 0 && !cover.is_all() && cover.sectors != Sectors::NONE);
    out.clear();
    out.push(if cover.below.is_some() { 5 } else { 4 });
    out.extend_from_slice(&epoch.0.to_le_bytes());
    out.extend_from_slice(&addr.0.to_le_bytes()[..5]);
    out.extend_from_slice(&generation.0.to_le_bytes());
    out.push(cover.sectors.bits());
    out.extend_from_slice(&crc.to_le_bytes());
    if let Some(below) = cover.below {
        out.extend_from_slice(&below.epoch.0.to_le_bytes());
        out.extend_from_slice(&below.crc.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(volume in 1u32.., lba in 0u64..MAX_LBA, epoch: u32, addr in 0u64..1 << 40, generation: u32, crcs in prop::collection::vec(any::<u32>(), 1..=MAX_EXTENT_BLOCKS), len in 1u64..1 << 40) {
            prop_assert_eq!(decode_key(&index_key(VolumeId(volume), Lba(lba))), Some((VolumeId(volume), Lba(lba))));
            let mut out = Vec::new();
            encode_data(&mut out, Epoch(epoch), CacheAddr(addr), BucketGen(generation), &crcs);
            let Some(IndexValue::Data { dirty, epoch: e, addr: a, generation: g, crcs: c }) = IndexValue::decode(&out) else { panic!("no data") };
            prop_assert_eq!((dirty, e, a, g), (epoch > 0, Epoch(epoch), CacheAddr(addr), BucketGen(generation)));
            prop_assert_eq!(c.iter().collect::<Vec<_>>(), crcs.clone());
            encode_staged(&mut out, Epoch(epoch.max(1)), &crcs);
            let Some(IndexValue::Staged { epoch: e, crcs: c }) = IndexValue::decode(&out) else { panic!("not staged") };
            prop_assert_eq!((e, c.iter().collect::<Vec<_>>()), (Epoch(epoch.max(1)), crcs.clone()));
            prop_assert_eq!(IndexValue::decode(&out[..out.len() - 1]), None);
            prop_assert_eq!(IndexValue::decode(&out[..5]), None);
            out[1..5].fill(0);
            prop_assert_eq!(IndexValue::decode(&out), None);
            encode_zeros(&mut out, Epoch(epoch.max(1)), len);
            prop_assert_eq!(IndexValue::decode(&out), Some(IndexValue::Zeros { epoch: Epoch(epoch.max(1)), len }));
            let (epoch, addr, generation) = (Epoch(epoch.max(1)), CacheAddr(addr), BucketGen(generation));
            let (sectors, crc) = (Sectors::from_bits((generation.0 as u8).clamp(1, 0xfe)), crcs[0]);
            for below in [None, Some(StagedBelow { epoch: Epoch(epoch.0.div_ceil(2)), crc })] {
                let cover = Cover { sectors, below };
                encode_part(&mut out, epoch, (addr, generation), &cover, crc);
                prop_assert_eq!(IndexValue::decode(&out), Some(IndexValue::Part { epoch, addr, generation, cover, crc }));
                prop_assert_eq!(IndexValue::decode(&out[..out.len() - 1]), None);
                out[14] = 0xff;
                prop_assert_eq!(IndexValue::decode(&out), None);
            }
        }

        #[test]
        fn keys_are_in_the_order_of_blocks(a in (0u32..3, 0u64..1000), b in (0u32..3, 0u64..1000)) {
            let key = |x: (u32, u64)| index_key(VolumeId(x.0), Lba(x.1));
            prop_assert_eq!(key(a).cmp(&key(b)), a.cmp(&b));
        }

        #[test]
        fn hostile_bytes_never_panic(key in prop::collection::vec(any::<u8>(), 0..12), value in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode_key(&key);
            let _ = IndexValue::decode(&value);
        }
    }
}
