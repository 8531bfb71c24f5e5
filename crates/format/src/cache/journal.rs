//! Entries of the cache's journal. An entry is a header and records, in whole blocks.
//!
//! ```text
//!    0  magic "FBJR"          4  incarnation u32
//!    8  sequence u64         16  durable u64
//!   24  cache uuid           40  record bytes u32
//!   44  records u32          48  the entry that the pool names u64 (0: not recorded)
//!   56  crc32c of the whole entry, with zeros in this field
//!   60  the last epoch that is published u32 (0: not recorded)
//!   64  records
//! ```
//!
//! Records follow one another without padding. Each begins with a tag:
//!
//! ```text
//! 1 insert   volume u32, first block u40, value length u16, value (as in the index)
//! 2 raise    bucket u32, generation u32
//! 3 remove   volume u32, first block u40, blocks u40
//! 4 epoch    epoch u32
//! ```
//!
//! After a crash any block of an entry may be missing or old, so one crc32c covers all of them. The
//! incarnation and the sequence number tell an entry apart from one that an earlier pass over the
//! ring left behind.

use base::{BLOCK, BucketGen, BucketId, EntrySeq, Epoch, Lba, VolumeId, crc32c};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::index::{DATA_HEAD, IndexValue, MAX_EXTENT_BLOCKS, index_key};
use super::pool_seen::PoolSeen;
use crate::FormatError;

/// The largest number of blocks in an entry.
pub const MAX_ENTRY_BLOCKS: u32 = 64;

const HEAD: usize = size_of::<Raw>();
const CAPACITY: usize = MAX_ENTRY_BLOCKS as usize * BLOCK - HEAD;
/// Bytes of an insert before its value. No other record is longer than [`SHORT`].
const INSERT_HEAD: usize = 12;
const SHORT: usize = 16;
/// Bytes of the longest value without a list of checksums: a part over a staged block.
const PART: usize = 27;
/// Bytes of the longest record.
const LONGEST: usize = INSERT_HEAD + DATA_HEAD + 4 * MAX_EXTENT_BLOCKS;
const MAGIC: [u8; 4] = *b"FBJR";
const WHAT: &str = "journal entry";
const CRC_AT: usize = 56;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    incarnation: U32,
    sequence: U64,
    durable: U64,
    uuid: [u8; 16],
    bytes: U32,
    records: U32,
    pool_entry: U64,
    crc: U32,
    published: U32,
}

const _: () = assert!(size_of::<Raw>() == 64 && std::mem::offset_of!(Raw, crc) == CRC_AT);

/// The header of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryHeader {
    /// The cache's uuid.
    pub uuid: [u8; 16],
    /// The incarnation (the open of the cache) that wrote the entry.
    pub incarnation: u32,
    /// The entry's sequence number.
    pub sequence: EntrySeq,
    /// The last entry that was known to be durable, with the data of its records, when this one was
    /// written.
    pub durable: EntrySeq,
    /// The state of the pool that the cache had seen then.
    pub pool_seen: PoolSeen,
}

/// A record: one change of the index or of a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// Blocks of a volume have a new value.
    Insert {
        /// The volume that the blocks belong to.
        volume: VolumeId,
        /// The first block.
        lba: Lba,
        /// The value, encoded as in the index.
        value: &'a [u8],
    },
    /// A bucket was evicted, which raised its generation.
    Raise {
        /// The bucket whose blocks count no more.
        bucket: BucketId,
        /// The new generation of the bucket.
        generation: BucketGen,
    },
    /// The cache does not know these blocks any more.
    Remove {
        /// The volume that the blocks belong to.
        volume: VolumeId,
        /// The first block.
        lba: Lba,
        /// Number of blocks.
        len: u64,
    },
    /// A cut was taken.
    Epoch {
        /// The epoch that is open from now on.
        epoch: Epoch,
    },
}

/// The largest number of blocks that `records` consecutive records add to the journal, if their
/// extents have `checksums` checksums in all. The records may begin a new entry. They may also
/// leave the rest of an entry empty, because the next record does not fit into it.
pub const fn blocks_for(records: usize, checksums: usize) -> u32 {
    let bytes = records * (INSERT_HEAD + PART) + 4 * checksums;
    let entry = LEAST_ENTRY_BLOCKS as usize * BLOCK - HEAD - LONGEST;
    (bytes + (bytes / entry + 1) * (HEAD + LONGEST)).div_ceil(BLOCK) as u32
}

/// The least number of blocks that an entry may be limited to.
pub const LEAST_ENTRY_BLOCKS: u32 = 4;

/// Collects the records of an entry.
pub struct EntryBuilder {
    bytes: Vec<u8>,
    records: u32,
    /// The most bytes of records.
    most: usize,
}

impl EntryBuilder {
    /// Creates an entry without records, for at most so many blocks: from [`LEAST_ENTRY_BLOCKS`] to
    /// [`MAX_ENTRY_BLOCKS`].
    pub fn new(most_blocks: u32) -> EntryBuilder {
        let blocks = most_blocks.clamp(LEAST_ENTRY_BLOCKS, MAX_ENTRY_BLOCKS);
        let most = blocks as usize * BLOCK - HEAD;
        EntryBuilder { bytes: Vec::new(), records: 0, most }
    }

    /// True if there are no records.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Number of records.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Number of blocks that the entry takes.
    pub fn blocks(&self) -> u32 {
        (HEAD + self.bytes.len()).div_ceil(BLOCK) as u32
    }

    /// Adds a record. Returns false, and changes nothing, if the record does not fit into the
    /// entry.
    pub fn push(&mut self, record: &Record<'_>) -> bool {
        let need = match record {
            Record::Insert { value, .. } => INSERT_HEAD + value.len(),
            _ => SHORT,
        };
        if self.bytes.len() + need > self.most {
            return false;
        }
        let out = &mut self.bytes;
        match *record {
            Record::Insert { volume, lba, value } => {
                out.push(1);
                out.extend_from_slice(&index_key(volume, lba));
                out.extend_from_slice(&(value.len() as u16).to_le_bytes());
                out.extend_from_slice(value);
            }
            Record::Raise { bucket, generation } => {
                out.push(2);
                out.extend_from_slice(&bucket.0.to_le_bytes());
                out.extend_from_slice(&generation.0.to_le_bytes());
            }
            Record::Remove { volume, lba, len } => {
                out.push(3);
                out.extend_from_slice(&index_key(volume, lba));
                out.extend_from_slice(&len.min((1 << 40) - 1).to_le_bytes()[..5]);
            }
            Record::Epoch { epoch } => {
                out.push(4);
                out.extend_from_slice(&epoch.0.to_le_bytes());
            }
        }
        self.records += 1;
        true
    }

    /// The bytes of the records from this one on, which was the length before they were pushed.
    pub fn records_from(&self, len: usize) -> &[u8] {
        &self.bytes[len..]
    }

    /// Bytes of the records.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Writes the entry into `out`, which must have exactly the entry's blocks.
    pub fn seal(&self, header: &EntryHeader, out: &mut [u8]) {
        assert_eq!(out.len(), self.blocks() as usize * BLOCK);
        let raw = Raw {
            magic: MAGIC,
            incarnation: header.incarnation.into(),
            sequence: header.sequence.0.into(),
            durable: header.durable.0.into(),
            uuid: header.uuid,
            bytes: (self.bytes.len() as u32).into(),
            records: self.records.into(),
            pool_entry: header.pool_seen.entry.0.into(),
            crc: 0.into(),
            published: header.pool_seen.published.0.into(),
        };
        out[..HEAD].copy_from_slice(raw.as_bytes());
        out[HEAD..HEAD + self.bytes.len()].copy_from_slice(&self.bytes);
        out[HEAD + self.bytes.len()..].fill(0);
        let crc = crc32c(out);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// A verified entry.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The entry's sequence number.
    pub sequence: EntrySeq,
    /// See [`EntryHeader::durable`].
    pub durable: EntrySeq,
    /// See [`EntryHeader::pool_seen`].
    pub pool_seen: PoolSeen,
    blocks: u32,
    bytes: Vec<u8>,
}

impl Entry {
    /// Number of blocks that the entry takes.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Iterates over the records in the order in which they were pushed.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (record, left) = take(rest)?;
            rest = left;
            Some(record)
        })
    }
}

/// Decodes the entry at the start of `bytes` (whole blocks), which must be the expected one. All
/// its records are verified.
pub fn decode_entry(
    bytes: &[u8],
    uuid: &[u8; 16],
    incarnation: u32,
    sequence: EntrySeq,
) -> Result<Entry, FormatError> {
    let short = FormatError::Length { what: WHAT, want: BLOCK, got: bytes.len() };
    let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| short.clone())?;
    if raw.magic != MAGIC {
        return Err(FormatError::Magic(WHAT));
    }
    let expect = |field, found: u64, want: u64| {
        if found == want {
            Ok(())
        } else {
            Err(FormatError::Unexpected { what: WHAT, field, found, want })
        }
    };
    expect("sequence", raw.sequence.get(), sequence.0)?;
    expect("incarnation", raw.incarnation.get().into(), incarnation.into())?;
    if raw.uuid != *uuid {
        return Err(FormatError::Value { what: WHAT, field: "cache uuid", found: 0 });
    }
    let len = raw.bytes.get() as usize;
    if len > CAPACITY {
        return Err(FormatError::Value { what: WHAT, field: "length", found: len as u64 });
    }
    let blocks = (HEAD + len).div_ceil(BLOCK);
    let whole = bytes.get(..blocks * BLOCK).ok_or(short)?;
    let mut zeroed = raw;
    zeroed.crc = 0.into();
    let crc = base::checksum::crc32c_parts(&[zeroed.as_bytes(), &whole[HEAD..]]);
    if crc != raw.crc.get() {
        return Err(FormatError::Checksum(WHAT));
    }
    let entry = Entry {
        sequence,
        durable: EntrySeq(raw.durable.get()),
        pool_seen: PoolSeen {
            entry: EntrySeq(raw.pool_entry.get()),
            published: Epoch(raw.published.get()),
        },
        blocks: blocks as u32,
        bytes: whole[HEAD..HEAD + len].to_vec(),
    };
    let mut rest = &entry.bytes[..];
    let mut count = 0;
    while let Some((_, left)) = take(rest) {
        rest = left;
        count += 1;
    }
    if !rest.is_empty() || count != raw.records.get() {
        return Err(FormatError::Value { what: WHAT, field: "records", found: count.into() });
    }
    Ok(entry)
}

/// The number of blocks of the entry at the start of `bytes`, by its header alone. Returns `None`
/// if the header is not that of the expected entry. Nothing else is verified.
pub fn blocks_of(
    bytes: &[u8],
    uuid: &[u8; 16],
    incarnation: u32,
    sequence: EntrySeq,
) -> Option<usize> {
    let (raw, _) = Raw::read_from_prefix(bytes).ok()?;
    let expected = raw.magic == MAGIC
        && raw.uuid == *uuid
        && raw.incarnation.get() == incarnation
        && raw.sequence.get() == sequence.0
        && raw.bytes.get() as usize <= CAPACITY;
    expected.then(|| (HEAD + raw.bytes.get() as usize).div_ceil(BLOCK))
}

/// The sequence number in what looks like the header of an entry. Nothing is verified but the
/// magic.
pub fn sequence_of(bytes: &[u8]) -> Option<EntrySeq> {
    let (raw, _) = Raw::read_from_prefix(bytes).ok()?;
    (raw.magic == MAGIC).then(|| EntrySeq(raw.sequence.get()))
}

/// Decodes a record that stands alone. `None`: it is none, or something follows it.
pub fn decode_record(bytes: &[u8]) -> Option<Record<'_>> {
    take(bytes).filter(|(_, rest)| rest.is_empty()).map(|(record, _)| record)
}

/// Splits off the first record. Returns `None` if it is invalid or `bytes` is empty.
fn take(bytes: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let u32_at = |b: &[u8]| Some(u32::from_le_bytes(b.try_into().ok()?));
    match tag {
        1 => {
            let (key, rest) = rest.split_at_checked(9)?;
            let (volume, lba) = super::index::decode_key(key)?;
            let (len, rest) = rest.split_at_checked(2)?;
            let (value, rest) =
                rest.split_at_checked(usize::from(u16::from_le_bytes(len.try_into().ok()?)))?;
            IndexValue::decode(value)?;
            Some((Record::Insert { volume, lba, value }, rest))
        }
        2 => {
            let (bucket, rest) = rest.split_at_checked(4)?;
            let (generation, rest) = rest.split_at_checked(4)?;
            let record = Record::Raise {
                bucket: BucketId(u32_at(bucket)?),
                generation: BucketGen(u32_at(generation)?),
            };
            Some((record, rest))
        }
        3 => {
            let (key, rest) = rest.split_at_checked(9)?;
            let (volume, lba) = super::index::decode_key(key)?;
            let (l, rest) = rest.split_at_checked(5)?;
            let len = u64::from_le_bytes([l[0], l[1], l[2], l[3], l[4], 0, 0, 0]);
            Some((Record::Remove { volume, lba, len }, rest))
        }
        4 => {
            let (epoch, rest) = rest.split_at_checked(4)?;
            Some((Record::Epoch { epoch: Epoch(u32_at(epoch)?) }, rest))
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
