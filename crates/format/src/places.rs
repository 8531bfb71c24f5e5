//! The last places of the devices of a pool and of its cache: their paths on the host.
//!
//! The record is a hint. It says where a start looks first for a device that was not named, and
//! what a missing device is called. What stands at a path says itself, by its superblock, whether
//! it is what is looked for; so a record that is old, or of another host, costs nothing.
//!
//! Every device of the pool has the record, in two slots that are written in turn. Of two that are
//! whole, the one with the higher sequence number counts.
//!
//! ```text
//!    0  magic "FBPLACES"       8  version u32         12  bytes of all u32
//!   16  pool uuid             32  sequence u64        40  rows u32
//!   44  crc32c of all bytes, without these four, u32
//!   48  rows
//! ```
//!
//! A row is a header and a path, without padding:
//!
//! ```text
//!    0  uuid                  16  kind u8             17  0
//!   18  length of the path u16                        20  the path, as the host's system has it
//! ```

use base::BLOCK;
use base::checksum::crc32c_parts;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::FormatError;
use crate::superblock::MAX_DEVICES;

/// Slots on a device.
pub const SLOTS: u64 = 2;
/// The offset of the first slot on a device, in bytes.
pub const SLOTS_AT: u64 = 512 << 10;
/// The distance between the slots, in bytes.
pub const SLOT_STEP: u64 = 128 << 10;
/// The bytes of a slot: whole blocks, with room for every row.
pub const SLOT_BYTES: usize = 72 << 10;
/// The longest path that is kept, in bytes.
pub const MAX_PATH: usize = 1024;
/// The most rows: one for each device, one for the cache, and one that says that there is to be
/// none.
const MAX_ROWS: usize = MAX_DEVICES + 2;

const WHAT: &str = "record of places";
const MAGIC: [u8; 8] = *b"FBPLACES";
const VERSION: u32 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    version: U32,
    len: U32,
    pool_uuid: [u8; 16],
    sequence: U64,
    rows: U32,
    crc: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawRow {
    uuid: [u8; 16],
    kind: u8,
    zero: u8,
    path_len: U16,
}

const HEADER: usize = size_of::<RawHeader>();
const ROW: usize = size_of::<RawRow>();
const CRC_AT: usize = std::mem::offset_of!(RawHeader, crc);

const _: () = {
    assert!(HEADER == 48 && ROW == 20 && CRC_AT == 44);
    assert!(HEADER + MAX_ROWS * (ROW + MAX_PATH) <= SLOT_BYTES);
    assert!(SLOT_BYTES as u64 <= SLOT_STEP && SLOT_BYTES % BLOCK == 0);
    // Between the superblocks and the tables.
    assert!(SLOTS_AT > (crate::superblock::SLOTS + 1) * crate::superblock::SLOT_STEP);
    assert!(SLOTS_AT + SLOTS * SLOT_STEP <= 1 << 20);
};

/// The kind of a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlaceKind {
    /// A device of the pool.
    Device,
    /// The cache of the pool.
    Cache,
    /// Nothing: the user took the cache out, and none is to be made. Without uuid and path.
    NoCache,
}

impl PlaceKind {
    const ALL: [PlaceKind; 3] = [PlaceKind::Device, PlaceKind::Cache, PlaceKind::NoCache];

    fn code(self) -> u8 {
        match self {
            PlaceKind::Device => 1,
            PlaceKind::Cache => 2,
            PlaceKind::NoCache => 3,
        }
    }
}

/// A place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The kind of what is there.
    pub kind: PlaceKind,
    /// The uuid of the device or the cache.
    pub uuid: [u8; 16],
    /// The absolute path; at most [`MAX_PATH`] bytes.
    pub path: Vec<u8>,
}

/// The record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Places {
    /// The pool.
    pub pool_uuid: [u8; 16],
    /// Grows with every record that is written.
    pub sequence: u64,
    /// All places; at most one for each device, and one of each other kind.
    pub rows: Vec<Place>,
}

impl Places {
    /// The offset of the slot of a record on a device.
    pub fn offset_of(sequence: u64) -> u64 {
        SLOTS_AT + sequence % SLOTS * SLOT_STEP
    }

    /// Writes the record to `out`, which has [`SLOT_BYTES`]; what is behind it becomes zeros. A
    /// place whose path is too long is left out, and so are more rows than there can be.
    pub fn encode(&self, out: &mut [u8]) {
        out.fill(0);
        let fitting = self.rows.iter().filter(|row| row.path.len() <= MAX_PATH).take(MAX_ROWS);
        let (mut at, mut rows) = (HEADER, 0);
        for row in fitting {
            let head = RawRow {
                uuid: row.uuid,
                kind: row.kind.code(),
                zero: 0,
                path_len: U16::new(row.path.len() as u16),
            };
            out[at..at + ROW].copy_from_slice(head.as_bytes());
            at += ROW;
            out[at..at + row.path.len()].copy_from_slice(&row.path);
            at += row.path.len();
            rows += 1;
        }
        let mut head = RawHeader {
            magic: MAGIC,
            version: U32::new(VERSION),
            len: U32::new(at as u32),
            pool_uuid: self.pool_uuid,
            sequence: U64::new(self.sequence),
            rows: U32::new(rows),
            crc: U32::new(0),
        };
        head.crc = U32::new(crc32c_parts(&[&head.as_bytes()[..CRC_AT], &out[HEADER..at]]));
        out[..HEADER].copy_from_slice(head.as_bytes());
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Result<Places, FormatError> {
        let value = |field, found| FormatError::Value { what: WHAT, field, found };
        let short = |want| FormatError::Length { what: WHAT, want, got: bytes.len() };
        let (head, _) = RawHeader::read_from_prefix(bytes).map_err(|_| short(HEADER))?;
        if head.magic != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        let (found, len) = (head.version.get(), head.len.get() as usize);
        if found != VERSION {
            return Err(FormatError::Version { what: WHAT, found, known: VERSION });
        }
        let mut rest = bytes.get(HEADER..len).ok_or_else(|| short(len))?;
        if crc32c_parts(&[&head.as_bytes()[..CRC_AT], rest]) != head.crc.get() {
            return Err(FormatError::Checksum(WHAT));
        }
        let count = head.rows.get() as usize;
        if count > MAX_ROWS {
            return Err(value("rows", count as u64));
        }
        let mut rows = Vec::with_capacity(count);
        for _ in 0..count {
            let (row, behind) = RawRow::read_from_prefix(rest).map_err(|_| short(len + ROW))?;
            let kind = PlaceKind::ALL.into_iter().find(|kind| kind.code() == row.kind);
            let kind = kind.ok_or_else(|| value("kind", row.kind.into()))?;
            let path_len = usize::from(row.path_len.get());
            if path_len > MAX_PATH {
                return Err(value("path length", path_len as u64));
            }
            let path = behind.get(..path_len).ok_or_else(|| short(len + path_len))?;
            rows.push(Place { kind, uuid: row.uuid, path: path.to_vec() });
            rest = &behind[path_len..];
        }
        if !rest.is_empty() {
            return Err(value("bytes behind the rows", rest.len() as u64));
        }
        Ok(Places { pool_uuid: head.pool_uuid, sequence: head.sequence.get(), rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(paths: &[&[u8]]) -> Places {
        let row = |(i, path): (usize, &&[u8])| Place {
            kind: PlaceKind::ALL[i % 3],
            uuid: [i as u8; 16],
            path: path.to_vec(),
        };
        Places {
            pool_uuid: [7; 16],
            sequence: 41,
            rows: paths.iter().enumerate().map(row).collect(),
        }
    }

    fn encoded(record: &Places) -> Vec<u8> {
        let mut bytes = vec![0xee; SLOT_BYTES];
        record.encode(&mut bytes);
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let long = [b'x'; MAX_PATH];
        for all in [record(&[]), record(&[b"/a \xff", &long, b""]), record(&[&long[..]; MAX_ROWS])]
        {
            assert_eq!(Places::decode(&encoded(&all)), Ok(all));
        }
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let long = [b'x'; MAX_PATH + 1];
        assert_eq!(Places::decode(&encoded(&record(&[b"/a", &long]))), Ok(record(&[b"/a"])));
        let many = Places::decode(&encoded(&record(&[&b"/a"[..]; MAX_ROWS + 3]))).expect("whole");
        assert_eq!(many.rows.len(), MAX_ROWS);
    }

    #[test]
    fn damage_is_found_wherever_it_is() {
        let whole = encoded(&record(&[b"/dev/a", b"/srv/b"]));
        let len = u32::from_le_bytes(whole[12..16].try_into().expect("four bytes")) as usize;
        for at in 0..len {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            assert!(Places::decode(&bytes).is_err(), "byte {at}");
            assert!(Places::decode(&whole[..at]).is_err(), "cut at {at}");
        }
        assert_eq!(Places::decode(&vec![0; SLOT_BYTES]), Err(FormatError::Magic(WHAT)));
    }
}
