//! Keys of the index: neighbouring blocks of a volume, and where their data is.

use base::{BlockRange, BucketGen, CacheAddr, Crc, Epoch, Lba, VolumeId};
use format::cache::index::{Cover, IndexValue, MAX_EXTENT_BLOCKS, StagedBelow, decode_key};
use smallvec::SmallVec;

use crate::store::buckets::Buckets;

/// Blocks of a volume are below this.
pub(crate) const END: Lba = Lba(1 << 39);

/// Checksums of an extent's blocks.
pub type Crcs = SmallVec<[Crc; 4]>;

/// The content of blocks of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// Blocks in a bucket. With some sectors only it is a single dirty block; of all other sectors
    /// the pool's published image says what they are, and of all of them once it is published.
    Data {
        /// The address of the first block.
        addr: CacheAddr,
        /// The generation of the bucket when the blocks were written to it.
        generation: BucketGen,
        /// Checksums of the blocks.
        crcs: Crcs,
        /// The sectors that count.
        cover: Cover,
    },
    /// Blocks in the staging volume of their epoch.
    Staged {
        /// Checksums of the blocks.
        crcs: Crcs,
    },
    /// Blocks that were discarded, or zeroed.
    Zeros {
        /// The number of blocks.
        len: u64,
    },
}

/// Neighbouring blocks of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexKey {
    /// The volume that the blocks belong to.
    pub volume: VolumeId,
    /// The first block.
    pub lba: Lba,
    /// The epoch in which it was written; `None`: it came from the pool.
    pub written: Option<Epoch>,
    /// The content of the blocks.
    pub body: Body,
}

impl IndexKey {
    /// The staged block below a part, if the part lies over one that no cut has published by then.
    pub fn staged_below(&self, published: Epoch) -> Option<StagedBelow> {
        let Body::Data { cover, .. } = &self.body else { return None };
        cover.below.filter(|below| below.epoch > published)
    }

    pub(crate) fn len(&self) -> u64 {
        match &self.body {
            Body::Data { crcs, .. } | Body::Staged { crcs } => crcs.len() as u64,
            Body::Zeros { len } => *len,
        }
    }

    /// The block behind the last.
    pub fn end(&self) -> u64 {
        self.lba.0 + self.len()
    }

    /// The blocks, as a range of the volume.
    pub(crate) fn range(&self) -> BlockRange {
        BlockRange::new(self.lba, Lba(self.end()))
    }

    /// Reads a record and sees that it lies in the cache; `None` if not.
    pub(crate) fn decode(buckets: &Buckets, key: &[u8], value: &[u8]) -> Option<IndexKey> {
        IndexKey::decode_within(|addr, len| buckets.geometry().contains(addr, len), key, value)
    }

    /// Reads a record whose blocks `contains` is asked about: whether they lie in one bucket.
    pub fn decode_within(
        contains: impl Fn(CacheAddr, u32) -> bool,
        key: &[u8],
        value: &[u8],
    ) -> Option<IndexKey> {
        let (volume, lba) = decode_key(key)?;
        let (written, body) = match IndexValue::decode(value)? {
            IndexValue::Zeros { epoch, len } => (Some(epoch), Body::Zeros { len }),
            IndexValue::Staged { epoch, crcs } => {
                (Some(epoch), Body::Staged { crcs: crcs.iter().collect() })
            }
            IndexValue::Data { dirty, epoch, addr, generation, crcs } => {
                if !contains(addr, crcs.len() as u32) {
                    return None;
                }
                let crcs = crcs.iter().collect();
                (dirty.then_some(epoch), Body::Data { addr, generation, crcs, cover: Cover::ALL })
            }
            IndexValue::Part { epoch, addr, generation, cover, crc } => {
                if !contains(addr, 1) {
                    return None;
                }
                (
                    Some(epoch),
                    Body::Data { addr, generation, crcs: SmallVec::from_slice(&[crc]), cover },
                )
            }
        };
        Some(IndexKey { volume, lba, written, body })
    }

    /// The value of its record.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        match &self.body {
            Body::Zeros { len } => {
                format::cache::index::encode_zeros(out, self.written.unwrap_or_default(), *len);
            }
            Body::Staged { crcs } => {
                format::cache::index::encode_staged(out, self.written.unwrap_or_default(), crcs);
            }
            Body::Data { addr, generation, crcs, cover } => {
                let epoch = self.written.unwrap_or_default();
                if cover.is_all() {
                    format::cache::index::encode_data(out, epoch, *addr, *generation, crcs);
                } else {
                    format::cache::index::encode_part(
                        out,
                        epoch,
                        *addr,
                        *generation,
                        cover,
                        crcs[0],
                    );
                }
            }
        }
    }

    /// The part of it in `[from, to)`.
    pub(crate) fn slice(&self, from: u64, to: u64) -> IndexKey {
        let (from, to) = (from.max(self.lba.0), to.min(self.end()));
        let skip = from - self.lba.0;
        let part =
            |crcs: &Crcs| SmallVec::from_slice(&crcs[skip as usize..(to - self.lba.0) as usize]);
        let body = match &self.body {
            Body::Zeros { .. } => Body::Zeros { len: to - from },
            Body::Staged { crcs } => Body::Staged { crcs: part(crcs) },
            Body::Data { addr, generation, crcs, cover } => Body::Data {
                addr: CacheAddr(addr.0 + skip),
                generation: *generation,
                crcs: part(crcs),
                cover: *cover,
            },
        };
        IndexKey { volume: self.volume, lba: Lba(from), written: self.written, body }
    }

    /// Takes in `next`, which [continues](IndexKey::continued_by) it.
    pub(crate) fn extend(&mut self, next: &IndexKey) {
        match (&mut self.body, &next.body) {
            (Body::Data { crcs, .. }, Body::Data { crcs: more, .. })
            | (Body::Staged { crcs }, Body::Staged { crcs: more }) => crcs.extend_from_slice(more),
            (Body::Zeros { len }, Body::Zeros { len: more }) => *len += more,
            _ => unreachable!("an extent is continued by its own kind only"),
        }
    }

    /// True if it points into a bucket that holds something else by now.
    pub(crate) fn is_stale(&self, buckets: &Buckets) -> bool {
        match &self.body {
            Body::Data { addr, generation, .. } => !buckets.table().is_current(*addr, *generation),
            Body::Staged { .. } | Body::Zeros { .. } => false,
        }
    }

    /// True for a block of which only some sectors count.
    pub(crate) fn is_part(&self) -> bool {
        matches!(&self.body, Body::Data { cover, .. } if !cover.is_all())
    }

    /// True if `next` continues this key: in the volume, in the bucket, and in kind.
    pub(crate) fn continued_by(&self, next: &IndexKey, bucket_blocks: u32) -> bool {
        if self.volume != next.volume || self.written != next.written || self.end() != next.lba.0 {
            return false;
        }
        match (&self.body, &next.body) {
            (Body::Zeros { .. }, Body::Zeros { .. }) => true,
            (Body::Staged { crcs: c }, Body::Staged { crcs: d }) => {
                c.len() + d.len() <= MAX_EXTENT_BLOCKS
            }
            (
                Body::Data { addr: a, generation: g, crcs: c, cover: s },
                Body::Data { addr: b, generation: h, crcs: d, cover: t },
            ) => {
                let bucket = u64::from(bucket_blocks);
                g == h
                    && s.is_all()
                    && t.is_all()
                    && a.0 + c.len() as u64 == b.0
                    && a.0 / bucket == b.0 / bucket
                    && c.len() + d.len() <= MAX_EXTENT_BLOCKS
            }
            _ => false,
        }
    }
}
