//! Records of the cache's index.
//!
//! ```text
//! key:          volume u32 big-endian, first block u40 big-endian
//! data:         kind u8 (0 clean, 1 dirty), epoch u32, address u40, generation u32,
//!               then a crc32c for each of its 1 to 64 blocks
//! zeros:        kind u8 (2), epoch u32, blocks u40
//! staged:       kind u8 (3), epoch u32, then a crc32c for each of its 1 to 64 blocks
//! part:         kind u8 (4), epoch u32, address u40, generation u32, sectors u8, crc32c
//! part over staged: the same with kind 5, then the epoch u32 and the crc32c of the staged block
//! ```
//!
//! A *part* is one block of a bucket in which only some sectors of 512 bytes count; bit 0 of
//! `sectors` stands for the first sector. The other sectors of that block are zeros. Their real
//! content is in the pool's published image. If the part was written over a staged block, their
//! content is in the staging volume of that block's epoch until that epoch is published. A part is
//! always dirty when it is written, and does not count any more once its epoch is published.
//!
//! Numbers are little-endian, except in keys, where the order of bytes must be the order of blocks.
//! The node that holds a record was verified as a whole. The record may still be invalid, so
//! decoding checks every length and range.

use base::{BucketGen, CacheAddr, Crc, Epoch, Lba, Sectors, VolumeId};

/// The largest number of blocks in a data extent.
pub const MAX_EXTENT_BLOCKS: usize = 64;
/// Bytes of a key.
pub const KEY_LEN: usize = 9;
/// Bytes of a data record before its checksums.
pub(super) const DATA_HEAD: usize = 14;
/// Block numbers of volumes are below this.
const MAX_LBA: u64 = 1 << 40;

/// The key of an extent that begins at block `lba`. A larger number than the largest block is
/// reduced to it, because the end of a range may be there.
pub fn index_key(volume: VolumeId, lba: Lba) -> [u8; KEY_LEN] {
    let mut key = [0; KEY_LEN];
    key[..4].copy_from_slice(&volume.0.to_be_bytes());
    key[4..].copy_from_slice(&lba.0.min(MAX_LBA - 1).to_be_bytes()[3..]);
    key
}

/// Decodes a key. Returns `None` if it is invalid.
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

/// A list of checksums, read in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CrcList<'a>(&'a [u8]);

impl<'a> CrcList<'a> {
    /// Number of checksums.
    pub fn len(&self) -> usize {
        self.0.len() / 4
    }

    /// True if there are none. The list of a decoded record is never empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The `len` checksums from number `from` on. Panics if there are fewer.
    pub fn slice(&self, from: usize, len: usize) -> CrcList<'a> {
        CrcList(&self.0[from * 4..][..len * 4])
    }

    /// Iterates over the checksums.
    pub fn iter(&self) -> impl Iterator<Item = Crc> + use<'a> {
        self.0.chunks_exact(4).map(|c| Crc::from_le_bytes([c[0], c[1], c[2], c[3]]))
    }
}

/// A reference to a block of one of the pool's staging volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StagedBelow {
    /// The epoch of the staging volume.
    pub epoch: Epoch,
    /// The crc32c that the block should have.
    pub crc: Crc,
}

/// The part of a block that counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cover {
    /// The sectors that count.
    pub sectors: Sectors,
    /// The place of the other sectors. `Some`: in this staged block, until its epoch is published.
    /// `None`: in the pool's published image.
    pub below: Option<StagedBelow>,
}

impl Cover {
    /// The whole block.
    pub const ALL: Cover = Cover { sectors: Sectors::ALL, below: None };

    /// True if the whole block counts.
    pub fn is_all(&self) -> bool {
        self.sectors.is_all()
    }
}

/// The value of a key: what the cache knows of some blocks of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexValue<'a> {
    /// The blocks are in a bucket.
    Data {
        /// True if a client wrote the blocks, false if they were read from the pool or also written
        /// to it.
        dirty: bool,
        /// The epoch of the write; 0 if clean.
        epoch: Epoch,
        /// The first block in the cache.
        addr: CacheAddr,
        /// The generation of the bucket.
        generation: BucketGen,
        /// The crc32c of each block.
        crcs: CrcList<'a>,
    },
    /// The blocks were discarded or zeroed; they read as zeros.
    Zeros {
        /// The epoch of the discard.
        epoch: Epoch,
        /// Number of blocks.
        len: u64,
    },
    /// The blocks are in the pool's staging volume of this volume and epoch.
    Staged {
        /// The epoch of the write.
        epoch: Epoch,
        /// The crc32c of each block.
        crcs: CrcList<'a>,
    },
    /// Some sectors of one block are in a bucket.
    Part {
        /// The epoch of the write.
        epoch: Epoch,
        /// The block in the cache.
        addr: CacheAddr,
        /// The generation of the bucket.
        generation: BucketGen,
        /// The sectors that count, which are never none or all of them.
        cover: Cover,
        /// The crc32c of the whole block in the cache, in which all other sectors are zeros.
        crc: Crc,
    },
}

impl<'a> IndexValue<'a> {
    /// Decodes a value. Returns `None` if it is invalid.
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

/// Encodes a data record into `out`, which is cleared first. The blocks are clean if `epoch` is 0.
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

/// Encodes a record of zeros into `out`, which is cleared first. `len` counts blocks.
pub fn encode_zeros(out: &mut Vec<u8>, epoch: Epoch, len: u64) {
    out.clear();
    out.push(2);
    out.extend_from_slice(&epoch.0.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes()[..5]);
}

/// Encodes a record of staged blocks into `out`, which is cleared first.
pub fn encode_staged(out: &mut Vec<u8>, epoch: Epoch, crcs: &[Crc]) {
    assert!((1..=MAX_EXTENT_BLOCKS).contains(&crcs.len()) && epoch.0 > 0);
    out.clear();
    out.push(3);
    out.extend_from_slice(&epoch.0.to_le_bytes());
    crcs.iter().for_each(|c| out.extend_from_slice(&c.to_le_bytes()));
}

/// Encodes a record of a part of a block into `out`, which is cleared first.
pub fn encode_part(
    out: &mut Vec<u8>,
    epoch: Epoch,
    addr: CacheAddr,
    generation: BucketGen,
    cover: &Cover,
    crc: Crc,
) {
    // The decoder takes nothing else for a part.
    assert!(epoch.0 > 0 && !cover.is_all() && cover.sectors != Sectors::NONE);
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
        fn round_trip(
            volume in 1u32..,
            lba in 0u64..MAX_LBA,
            epoch: u32,
            addr in 0u64..1 << 40,
            generation: u32,
            crcs in prop::collection::vec(any::<u32>(), 1..=MAX_EXTENT_BLOCKS),
            len in 1u64..1 << 40,
        ) {
            let block = (VolumeId(volume), Lba(lba));
            prop_assert_eq!(decode_key(&index_key(block.0, block.1)), Some(block));
            let (addr, generation) = (CacheAddr(addr), BucketGen(generation));
            let mut out = Vec::new();
            encode_data(&mut out, Epoch(epoch), addr, generation, &crcs);
            let Some(IndexValue::Data { dirty, epoch: e, addr: a, generation: g, crcs: c }) =
                IndexValue::decode(&out)
            else {
                panic!("not data")
            };
            prop_assert_eq!((dirty, e, a, g), (epoch > 0, Epoch(epoch), addr, generation));
            prop_assert_eq!(c.iter().collect::<Vec<_>>(), crcs.clone());
            let epoch = Epoch(epoch.max(1));
            encode_staged(&mut out, epoch, &crcs);
            let Some(IndexValue::Staged { epoch: e, crcs: c }) = IndexValue::decode(&out) else {
                panic!("not staged")
            };
            prop_assert_eq!((e, c.iter().collect::<Vec<_>>()), (epoch, crcs.clone()));
            prop_assert_eq!(IndexValue::decode(&out[..out.len() - 1]), None);
            prop_assert_eq!(IndexValue::decode(&out[..5]), None);
            out[1..5].fill(0);
            prop_assert_eq!(IndexValue::decode(&out), None);
            encode_zeros(&mut out, epoch, len);
            prop_assert_eq!(IndexValue::decode(&out), Some(IndexValue::Zeros { epoch, len }));
            let (sectors, crc) = (Sectors::from_bits((generation.0 as u8).clamp(1, 0xfe)), crcs[0]);
            for below in [None, Some(StagedBelow { epoch: Epoch(epoch.0.div_ceil(2)), crc })] {
                let cover = Cover { sectors, below };
                encode_part(&mut out, epoch, addr, generation, &cover, crc);
                let part = IndexValue::Part { epoch, addr, generation, cover, crc };
                prop_assert_eq!(IndexValue::decode(&out), Some(part));
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
        fn hostile_bytes_never_panic(
            key in prop::collection::vec(any::<u8>(), 0..12),
            value in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let _ = decode_key(&key);
            let _ = IndexValue::decode(&value);
        }
    }
}
