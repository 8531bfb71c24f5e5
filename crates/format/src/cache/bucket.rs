//! Records of the bucket table: 16 bytes for each bucket, in the payload of a page.
//!
//! ```text
//!    0  generation u32    4  kind u8           5  reserved u8    6  live u16
//!    8  dirty_open u16   10  dirty_cut u16    12  last_use u32, or the twin u32
//! ```
//!
//! Nodes of the index stand in two buckets, at the same places of both: these are *twins*, and each
//! names the other one. Where there was no room for two, a bucket of nodes has no twin.

use base::{BucketGen, BucketId};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::FormatError;
use crate::page::PAYLOAD;

/// Bucket records in a page.
pub const RECORDS_PER_PAGE: usize = PAYLOAD / size_of::<Raw>();

const WHAT: &str = "bucket record";

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    generation: U32,
    kind: u8,
    reserved: u8,
    live: U16,
    dirty_open: U16,
    dirty_cut: U16,
    last_use: U32,
}

const _: () = assert!(size_of::<Raw>() == 16 && RECORDS_PER_PAGE == 252);

/// The content of a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BucketKind {
    /// Nothing: no key that counts refers to it.
    #[default]
    Free,
    /// Blocks of volumes.
    Data,
    /// Nodes of the index.
    Nodes,
    /// Second copies of the nodes of another bucket.
    Copies,
}

impl BucketKind {
    /// True if the bucket belongs to the index, and has no blocks of volumes.
    pub fn is_of_index(self) -> bool {
        matches!(self, BucketKind::Nodes | BucketKind::Copies)
    }
}

/// The record of a bucket, as of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BucketRecord {
    /// The bucket's generation. Keys with another one are stale.
    pub generation: BucketGen,
    /// The content of the bucket.
    pub kind: BucketKind,
    /// Number of blocks that the index refers to.
    pub live: u16,
    /// Of these, the blocks that are dirty in the open epoch.
    pub dirty_open: u16,
    /// Of these, the blocks that are dirty in the sealed epochs.
    pub dirty_cut: u16,
    /// When the bucket was used last, in a coarse unit; 0: not known, or it belongs to the index.
    pub last_use: u32,
    /// Of nodes: the bucket with their copies, if there is one. Of copies: the bucket of the nodes.
    pub twin: Option<BucketId>,
}

/// Encodes at most [`RECORDS_PER_PAGE`] records into the payload of a page. The rest of the page is
/// filled with records of free buckets.
pub fn encode_buckets(records: &[BucketRecord], payload: &mut [u8]) {
    payload.fill(0);
    for (out, r) in payload.chunks_exact_mut(size_of::<Raw>()).zip(records) {
        let raw = Raw {
            generation: r.generation.0.into(),
            kind: match (r.kind, r.twin) {
                (BucketKind::Free, _) => 0,
                (BucketKind::Data, _) => 1,
                (BucketKind::Nodes, None) => 2,
                (BucketKind::Nodes, Some(_)) => 3,
                (BucketKind::Copies, _) => 4,
            },
            reserved: 0,
            live: r.live.into(),
            dirty_open: r.dirty_open.into(),
            dirty_cut: r.dirty_cut.into(),
            last_use: r.twin.map_or(r.last_use, |twin| twin.0).into(),
        };
        out.copy_from_slice(raw.as_bytes());
    }
}

/// Decodes all [`RECORDS_PER_PAGE`] records of a page's payload; fewer if the payload is shorter.
pub fn decode_buckets(payload: &[u8]) -> Result<Vec<BucketRecord>, FormatError> {
    let mut out = Vec::with_capacity(RECORDS_PER_PAGE);
    for bytes in payload.chunks_exact(size_of::<Raw>()).take(RECORDS_PER_PAGE) {
        let raw = Raw::read_from_bytes(bytes).map_err(|_| FormatError::Length {
            what: WHAT,
            want: size_of::<Raw>(),
            got: bytes.len(),
        })?;
        let (last_use, twin) = match raw.kind {
            3 | 4 => (0, Some(BucketId(raw.last_use.get()))),
            _ => (raw.last_use.get(), None),
        };
        let kind = match raw.kind {
            0 => BucketKind::Free,
            1 => BucketKind::Data,
            2 | 3 => BucketKind::Nodes,
            4 => BucketKind::Copies,
            other => {
                return Err(FormatError::Value { what: WHAT, field: "kind", found: other.into() });
            }
        };
        let dirty = u32::from(raw.dirty_open.get()) + u32::from(raw.dirty_cut.get());
        if dirty > raw.live.get().into() || raw.reserved != 0 {
            return Err(FormatError::Value {
                what: WHAT,
                field: "dirty blocks",
                found: dirty.into(),
            });
        }
        out.push(BucketRecord {
            generation: BucketGen(raw.generation.get()),
            kind,
            live: raw.live.get(),
            dirty_open: raw.dirty_open.get(),
            dirty_cut: raw.dirty_cut.get(),
            last_use,
            twin,
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(
            seed in prop::collection::vec(
                (any::<u32>(), 0u8..5, 0u16..500, 0u16..500, 0u16..500, any::<u32>()),
                0..=RECORDS_PER_PAGE,
            ),
        ) {
            let records: Vec<BucketRecord> = seed.iter().map(|&(g, k, l, o, c, u)| BucketRecord {
                generation: BucketGen(g),
                kind: match k {
                    0 => BucketKind::Free,
                    1 => BucketKind::Data,
                    2 | 3 => BucketKind::Nodes,
                    _ => BucketKind::Copies,
                },
                live: l + o + c, dirty_open: o, dirty_cut: c,
                last_use: if k < 3 { u } else { 0 },
                twin: (k >= 3).then_some(BucketId(u)),
            }).collect();
            let mut payload = vec![0xff; PAYLOAD];
            encode_buckets(&records, &mut payload);
            let back = decode_buckets(&payload).expect("good");
            prop_assert_eq!(&back[..records.len()], &records[..]);
            prop_assert!(back[records.len()..].iter().all(|r| *r == BucketRecord::default()));
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..PAYLOAD)) {
            let _ = decode_buckets(&bytes);
        }
    }
}
