//! The summary of a bucket: of which volumes and blocks it was filled.
//!
//! A summary stands in the last blocks of a full bucket, as many as its keys need, in order. Each
//! block is sealed:
//!
//! ```text
//!    0  magic "FBSUMRY1"    8  cache uuid     24  bucket u32     28  generation u32
//!   32  first u16          34  number u16     36  reserved u32
//!   40  keys of the index, 9 bytes each: of block `first` of the bucket and the following ones
//! 4092  crc32c of all bytes before it
//! ```
//!
//! The key of a block that nothing was written to is all ones. A summary is a hint: the index says
//! where a block is. So one that is missing or old loses nothing.

use base::{BLOCK, BucketGen, BucketId, Lba, VolumeId};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::index::{KEY_LEN, decode_key, index_key};
use crate::FormatError;
use crate::seal::{SEAL_AT, check_seal, seal};

const WHAT: &str = "bucket summary";
const MAGIC: [u8; 8] = *b"FBSUMRY1";
const NO_KEY: [u8; KEY_LEN] = [0xff; KEY_LEN];
/// Keys in a block.
const KEYS: u32 = ((SEAL_AT - size_of::<Head>()) / KEY_LEN) as u32;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    uuid: [u8; 16],
    bucket: U32,
    generation: U32,
    first: U16,
    number: U16,
    reserved: U32,
}

const _: () = assert!(size_of::<Head>() == 40 && KEYS == 450);

/// Blocks of a bucket that its summary takes.
pub fn summary_blocks(bucket_blocks: u32) -> u32 {
    bucket_blocks.div_ceil(KEYS + 1)
}

/// The volume and the block that a block of a bucket was written as.
pub type SummaryKey = Option<(VolumeId, Lba)>;

/// The bucket that a summary is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SummaryOwner {
    /// The cache's uuid.
    pub uuid: [u8; 16],
    /// The bucket whose keys it has.
    pub bucket: BucketId,
    /// The generation of the bucket when it was filled.
    pub generation: BucketGen,
}

/// Writes the keys of a bucket's blocks into `out`, which has [`summary_blocks`] blocks.
pub fn encode_summary(of: &SummaryOwner, keys: &[SummaryKey], out: &mut [u8]) {
    out.fill(0);
    for (i, block) in out.chunks_exact_mut(BLOCK).enumerate() {
        let first = (i * KEYS as usize).min(keys.len());
        let keys = &keys[first..keys.len().min(first + KEYS as usize)];
        let head = Head {
            magic: MAGIC,
            uuid: of.uuid,
            bucket: of.bucket.0.into(),
            generation: of.generation.0.into(),
            first: (first as u16).into(),
            number: (keys.len() as u16).into(),
            reserved: 0.into(),
        };
        block[..size_of::<Head>()].copy_from_slice(head.as_bytes());
        let places = block[size_of::<Head>()..SEAL_AT].chunks_exact_mut(KEY_LEN);
        for (place, key) in places.zip(keys) {
            let key = key.map_or(NO_KEY, |(volume, lba)| index_key(volume, lba));
            place.copy_from_slice(&key);
        }
        seal(block);
    }
}

/// Decodes the blocks of a summary; fails if one of them is none, or of another bucket or life.
pub fn decode_summary(of: &SummaryOwner, bytes: &[u8]) -> Result<Vec<SummaryKey>, FormatError> {
    let mut keys = Vec::new();
    for block in bytes.chunks(BLOCK) {
        check_seal(WHAT, block)?;
        let (head, rest) = Head::read_from_prefix(block).map_err(|_| FormatError::Length {
            what: WHAT,
            want: BLOCK,
            got: block.len(),
        })?;
        if head.magic != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        let is = SummaryOwner {
            uuid: head.uuid,
            bucket: BucketId(head.bucket.get()),
            generation: BucketGen(head.generation.get()),
        };
        let number = head.number.get();
        if is != *of || usize::from(head.first.get()) != keys.len() || u32::from(number) > KEYS {
            return Err(FormatError::Value {
                what: WHAT,
                field: "bucket",
                found: is.bucket.0.into(),
            });
        }
        let known = rest.chunks_exact(KEY_LEN).take(number.into());
        keys.extend(known.map(|key| decode_key(key).filter(|_| key != NO_KEY)));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OF: SummaryOwner =
        SummaryOwner { uuid: [5; 16], bucket: BucketId(7), generation: BucketGen(9) };

    fn keys(n: u32) -> Vec<SummaryKey> {
        (0..n).map(|i| (i % 5 != 3).then_some((VolumeId(i % 3), Lba(u64::from(i) << 20)))).collect()
    }

    #[test]
    fn round_trip_for_buckets_of_all_sizes() {
        for (blocks, summary) in [(16, 1), (128, 1), (451, 1), (452, 2), (2048, 5)] {
            assert_eq!(summary_blocks(blocks), summary);
            let keys = keys(blocks - summary);
            let mut out = vec![1; summary as usize * BLOCK];
            encode_summary(&OF, &keys, &mut out);
            assert_eq!(decode_summary(&OF, &out), Ok(keys));
        }
    }

    #[test]
    fn one_of_another_life_and_every_flipped_bit_are_refused() {
        let mut out = vec![0; BLOCK];
        encode_summary(&OF, &keys(15), &mut out);
        for of in [
            SummaryOwner { uuid: [6; 16], ..OF },
            SummaryOwner { bucket: BucketId(8), ..OF },
            SummaryOwner { generation: BucketGen(8), ..OF },
        ] {
            assert!(decode_summary(&of, &out).is_err());
        }
        for bit in 0..BLOCK * 8 {
            out[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_summary(&OF, &out).is_err(), "bit {bit}");
            out[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(decode_summary(&OF, &out[1..]).is_err());
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(
            mut bytes in prop::collection::vec(any::<u8>(), BLOCK),
            number in any::<u16>(),
        ) {
            let mut good = vec![0; BLOCK];
            encode_summary(&OF, &[], &mut good);
            bytes[..32].copy_from_slice(&good[..32]);
            bytes[32..34].fill(0);
            bytes[34..36].copy_from_slice(&number.to_le_bytes());
            seal(&mut bytes);
            if let Ok(keys) = decode_summary(&OF, &bytes) {
                prop_assert_eq!(keys.len(), usize::from(number));
            }
        }
    }
}
