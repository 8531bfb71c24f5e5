//! Blocks of open buckets that were taken to be written, and the extents that they make.

use base::{BucketGen, CacheAddr, Crc, Epoch, Lba, VolumeId};
use format::cache::index::{Cover, MAX_EXTENT_BLOCKS};
use smallvec::SmallVec;

use crate::device::layout::LEAST_BUCKET;
use crate::store::key::{Body, IndexKey};

/// Neighbouring blocks of one bucket, pinned.
#[derive(Clone, Copy)]
pub(crate) struct TakenRun {
    pub addr: CacheAddr,
    pub len: u32,
    pub generation: BucketGen,
}

/// No more extents does one step of a write make of so many blocks: one for each bucket that it
/// gets to, or more where that has more blocks than an extent.
pub(crate) const fn most_extents(blocks: u64) -> usize {
    (blocks / LEAST_BUCKET + 2 + blocks / MAX_EXTENT_BLOCKS as u64) as usize
}

/// The extents that blocks in `taken` make.
pub(crate) fn extents(
    volume: VolumeId,
    lba: Lba,
    taken: &[TakenRun],
    crcs: &[Crc],
    cover: Cover,
    written: Option<Epoch>,
) -> SmallVec<[IndexKey; 1]> {
    let mut out = SmallVec::new();
    let mut at = 0usize;
    for t in taken {
        let end = at + t.len as usize;
        let mut from = at;
        while from < end {
            let to = (from + MAX_EXTENT_BLOCKS).min(end);
            out.push(IndexKey {
                volume,
                lba: lba.plus(from as u64),
                written,
                body: Body::Data {
                    addr: CacheAddr(t.addr.0 + (from - at) as u64),
                    generation: t.generation,
                    crcs: SmallVec::from_slice(&crcs[from..to]),
                    cover,
                },
            });
            from = to;
        }
        at = end;
    }
    out
}
