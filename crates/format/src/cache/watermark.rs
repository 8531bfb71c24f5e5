//! The journal's watermark: a block that names the last durable entry of the journal.
//!
//! ```text
//!    0  magic "FBWATER1"    8  cache uuid      24  incarnation u32
//!   28  reserved u32       32  durable u64   4092  crc32c of all bytes before it
//! ```
//!
//! An entry names the last entry that was durable when it was written, so no entry says that the
//! last one is durable. If no entry follows for a while, the watermark says it. There are
//! [`WATERMARK_SLOTS`] copies, written one after the other, because a write may tear one of them. A
//! lost or old watermark names an earlier entry. No watermark names an entry that is not durable.

use base::{BLOCK, EntrySeq};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::superblock::{SLOT_STEP, SLOTS};
use crate::FormatError;
use crate::seal::{check_seal, seal};

/// Number of slots for the watermark, which follow those of the superblock.
pub const WATERMARK_SLOTS: u64 = 2;

const WHAT: &str = "journal watermark";
const MAGIC: [u8; 8] = *b"FBWATER1";

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    uuid: [u8; 16],
    incarnation: U32,
    reserved_a: U32,
    durable: U64,
    reserved_b: [u8; 4052],
    crc: U32,
}

const _: () =
    assert!(size_of::<Raw>() == BLOCK && std::mem::offset_of!(Raw, crc) == crate::seal::SEAL_AT);

/// A verified watermark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermark {
    /// The cache's uuid.
    pub uuid: [u8; 16],
    /// The incarnation (the open of the cache) that wrote the journal.
    pub incarnation: u32,
    /// The last durable entry. The data of its records and all entries before it are durable too.
    pub durable: EntrySeq,
}

impl Watermark {
    /// The offset of a slot in bytes, from the start of the device.
    pub fn offset_of(slot: u64) -> u64 {
        SLOT_STEP * (1 + SLOTS + slot)
    }

    /// Writes the watermark into `out`, which has [`BLOCK`] bytes.
    pub fn encode(&self, out: &mut [u8]) {
        let raw = Raw {
            magic: MAGIC,
            uuid: self.uuid,
            incarnation: self.incarnation.into(),
            reserved_a: 0.into(),
            durable: self.durable.0.into(),
            reserved_b: [0; 4052],
            crc: 0.into(),
        };
        out.copy_from_slice(raw.as_bytes());
        seal(out);
    }

    /// Decodes and verifies a watermark.
    pub fn decode(bytes: &[u8]) -> Result<Watermark, FormatError> {
        let raw = Raw::read_from_bytes(bytes).map_err(|_| FormatError::Length {
            what: WHAT,
            want: BLOCK,
            got: bytes.len(),
        })?;
        if raw.magic != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        check_seal(WHAT, bytes)?;
        Ok(Watermark {
            uuid: raw.uuid,
            incarnation: raw.incarnation.get(),
            durable: EntrySeq(raw.durable.get()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_every_flipped_bit() {
        let mut block = vec![0; BLOCK];
        let mark = Watermark { uuid: [3; 16], incarnation: 4, durable: EntrySeq(1 << 40) };
        mark.encode(&mut block);
        assert_eq!(Watermark::decode(&block), Ok(mark));
        for bit in 0..BLOCK * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(Watermark::decode(&block).is_err(), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(Watermark::decode(&block[1..]).is_err());
        assert_eq!((Watermark::offset_of(0), Watermark::offset_of(1)), (80 << 10, 96 << 10));
    }
}
