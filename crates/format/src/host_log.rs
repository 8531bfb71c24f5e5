//! The host log: records in memory of the host, of what was answered and is not durable yet.
//!
//! ```text
//!    0  magic "FBHOSTLG"       8  version u32         12  incarnation u32
//!   16  owner uuid            32  crc32c of the 32 bytes before, u32
//!   64  head u64              72  tail u64            80  what counts u64
//!   88  durable u64
//! 4096  frames
//! ```
//!
//! A frame is a header and a payload, padded to 8 bytes:
//!
//! ```text
//!    0  crc32c u32             4  length of the payload u16     6  kind u8     7  0
//!    8  stamp u64             16  payload
//! ```
//!
//! Head and tail count bytes since the log was made; `tail..head` are the frames that count. A
//! frame stands at 4096 + (count modulo [`AREA`]), in one piece: a frame of the kind [`SKIP`], or
//! fewer than 16 bytes, stand for the rest of a lap. The crc32c covers the count at which the frame
//! begins, kind, stamp and payload, so what an earlier lap has left is not taken for a frame. The
//! head is stored behind the frame: a process that dies leaves whole frames.
//!
//! The field *what counts* is 0 for all frames; 1 for none, as something was lost; 2 for none, as
//! nothing is recorded, and head and tail are about to change.
//!
//! The *stamp* says what makes the record needless: the commit of the pool that has it, or the
//! entry of the cache's journal. *Durable* is the newest of these that the devices have. Where they
//! say less, they were put back to an older state, which the log does not go on from.

use base::HOST_MEMORY_MAX;
use base::checksum::crc32c_parts;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::FormatError;

/// The bytes before the frames.
pub const FRAMES_AT: usize = 4096;
/// Bytes of a lap.
pub const AREA: u64 = (HOST_MEMORY_MAX - FRAMES_AT) as u64;
/// The offset of the head.
pub const HEAD_AT: usize = 64;
/// The offset of the tail.
pub const TAIL_AT: usize = 72;
/// The offset of the field that says what counts: one of the next three.
pub const COUNTS_AT: usize = 80;
/// The offset of the newest stamp that is durable.
pub const DURABLE_AT: usize = 88;
/// All frames between tail and head.
pub const COUNTS_ALL: u64 = 0;
/// No frame: something is lost that may be among them.
pub const COUNTS_VOID: u64 = 1;
/// No frame: nothing is recorded.
pub const COUNTS_NOTHING: u64 = 2;
/// The kind of a frame that fills the rest of a lap.
pub const SKIP: u8 = 0;
/// Bytes of a frame before its payload.
pub const FRAME_HEAD: usize = size_of::<RawFrame>();

const MAGIC: [u8; 8] = *b"FBHOSTLG";
const VERSION: u32 = 3;
const WHAT: &str = "host log";
const COVERED: usize = 32;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    version: U32,
    incarnation: U32,
    owner: [u8; 16],
    crc: U32,
    zeros: [u8; 28],
    head: U64,
    tail: U64,
    counts: U64,
    durable: U64,
}

const _: () = assert!(
    size_of::<RawHeader>() == 96
        && std::mem::offset_of!(RawHeader, durable) == DURABLE_AT
        && std::mem::offset_of!(RawHeader, crc) == COVERED
        && std::mem::offset_of!(RawHeader, head) == HEAD_AT
        && std::mem::offset_of!(RawHeader, tail) == TAIL_AT
        && std::mem::offset_of!(RawHeader, counts) == COUNTS_AT
);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawFrame {
    crc: U32,
    len: U16,
    kind: u8,
    zero: u8,
    stamp: U64,
}

const _: () = assert!(size_of::<RawFrame>() == 16);

/// The header of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The owner of the log: a pool, or a cache.
    pub owner: [u8; 16],
    /// The incarnation of the owner that wrote it.
    pub incarnation: u32,
    /// The first byte of the frames that count, and the end of them.
    pub tail: u64,
    /// See [`Header::tail`].
    pub head: u64,
    /// Nothing counts.
    pub void: bool,
    /// The newest stamp that is durable.
    pub durable: u64,
}

impl Header {
    /// Bytes of a header.
    pub const BYTES: usize = size_of::<RawHeader>();

    /// The header of an empty log. What it goes on from is durable up to this stamp. `void`: it
    /// does not count yet.
    pub fn encode(
        owner: [u8; 16],
        incarnation: u32,
        (durable, void): (u64, bool),
    ) -> [u8; Header::BYTES] {
        let mut raw = RawHeader {
            magic: MAGIC,
            version: VERSION.into(),
            incarnation: incarnation.into(),
            owner,
            crc: 0.into(),
            zeros: [0; 28],
            head: 0.into(),
            tail: 0.into(),
            counts: if void { COUNTS_VOID } else { COUNTS_ALL }.into(),
            durable: durable.into(),
        };
        raw.crc = base::crc32c(&raw.as_bytes()[..COVERED]).into();
        let mut bytes = [0; Header::BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Decodes a header.
    pub fn decode(bytes: &[u8; Header::BYTES]) -> Result<Header, FormatError> {
        let raw = RawHeader::read_from_bytes(bytes.as_slice()).map_err(|_| {
            FormatError::Length { what: WHAT, want: Header::BYTES, got: bytes.len() }
        })?;
        if raw.magic != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        if base::crc32c(&bytes[..COVERED]) != raw.crc.get() {
            return Err(FormatError::Checksum(WHAT));
        }
        let value = |field, found: u64| FormatError::Value { what: WHAT, field, found };
        if raw.version.get() != VERSION {
            return Err(value("version", raw.version.get().into()));
        }
        let (mut head, tail) = (raw.head.get(), raw.tail.get());
        match raw.counts.get() {
            COUNTS_ALL if head < tail || head - tail > AREA => return Err(value("head", head)),
            COUNTS_ALL | COUNTS_VOID => {}
            COUNTS_NOTHING => head = tail,
            other => return Err(value("what counts", other)),
        }
        let (owner, incarnation, durable) = (raw.owner, raw.incarnation.get(), raw.durable.get());
        let void = raw.counts.get() == COUNTS_VOID;
        Ok(Header { owner, incarnation, tail, head, void, durable })
    }
}

/// A frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The kind of the payload.
    pub kind: u8,
    /// The stamp: what makes the frame needless.
    pub stamp: u64,
    /// The record.
    pub payload: Vec<u8>,
}

/// The largest payload.
pub const MAX_PAYLOAD: usize = u16::MAX as usize;

/// Bytes of a frame with a payload of so many bytes.
pub const fn frame_bytes(payload: usize) -> usize {
    (FRAME_HEAD + payload).next_multiple_of(8)
}

/// The bytes from count `at` to the end of its lap.
pub const fn left_of_lap(at: u64) -> u64 {
    AREA - at % AREA
}

/// The offset of the frame at count `at`.
pub const fn offset_of(at: u64) -> usize {
    FRAMES_AT + (at % AREA) as usize
}

/// Appends to `out` the frame that stands at count `at`. The payload has at most [`MAX_PAYLOAD`]
/// bytes.
pub fn encode_frame(at: u64, kind: u8, stamp: u64, payload: &[u8], out: &mut Vec<u8>) {
    assert!(payload.len() <= MAX_PAYLOAD, "a record of {} bytes", payload.len());
    let mut raw = RawFrame {
        crc: 0.into(),
        len: (payload.len() as u16).into(),
        kind,
        zero: 0,
        stamp: stamp.into(),
    };
    raw.crc = crc_of(at, &raw, payload).into();
    let from = out.len();
    out.extend_from_slice(raw.as_bytes());
    out.extend_from_slice(payload);
    out.resize(from + frame_bytes(payload.len()), 0);
}

fn crc_of(at: u64, raw: &RawFrame, payload: &[u8]) -> u32 {
    crc32c_parts(&[&at.to_le_bytes(), &raw.as_bytes()[4..], payload])
}

/// Decodes the frame at count `at`, which `bytes` begins with; they are at least [`FRAME_HEAD`].
pub fn decode_frame(at: u64, bytes: &[u8]) -> Result<Frame, FormatError> {
    let short = || FormatError::Length { what: WHAT, want: FRAME_HEAD, got: bytes.len() };
    let (raw, rest) = RawFrame::read_from_prefix(bytes).map_err(|_| short())?;
    let payload = rest.get(..usize::from(raw.len.get())).ok_or_else(short)?;
    if crc_of(at, &raw, payload) != raw.crc.get() {
        return Err(FormatError::Checksum(WHAT));
    }
    Ok(Frame { kind: raw.kind, stamp: raw.stamp.get(), payload: payload.to_vec() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_header_says_what_it_was_made_with() {
        let bytes = Header::encode([7; 16], 9, (4, false));
        let (owner, incarnation) = ([7; 16], 9);
        let header = Header { owner, incarnation, tail: 0, head: 0, void: false, durable: 4 };
        assert_eq!(Header::decode(&bytes).unwrap(), header);
        let mut none = bytes;
        none[0] = 0;
        assert!(matches!(Header::decode(&none), Err(FormatError::Magic(_))));
        let mut other = bytes;
        other[12] ^= 1;
        assert!(matches!(Header::decode(&other), Err(FormatError::Checksum(_))));
        let mut ahead = bytes;
        ahead[TAIL_AT] = 8;
        assert!(matches!(Header::decode(&ahead), Err(FormatError::Value { .. })));
        let mut void = bytes;
        void[COUNTS_AT] = 1;
        assert!(Header::decode(&void).unwrap().void);
        assert_eq!(void, Header::encode([7; 16], 9, (4, true)));
        let mut nothing = ahead;
        nothing[COUNTS_AT] = 2;
        let header = Header::decode(&nothing).unwrap();
        assert_eq!((header.tail, header.head), (8, 8));
    }

    proptest! {
        #[test]
        fn a_frame_is_found_at_its_count_only(
            at in 0..4 * AREA, kind in 1u8.., stamp: u64,
            payload in prop::collection::vec(any::<u8>(), 0..300), flip in 0usize..316,
        ) {
            let mut bytes = Vec::new();
            encode_frame(at, kind, stamp, &payload, &mut bytes);
            prop_assert_eq!(bytes.len(), frame_bytes(payload.len()));
            let len = FRAME_HEAD + payload.len();
            let frame = Frame { kind, stamp, payload };
            prop_assert_eq!(decode_frame(at, &bytes).unwrap(), frame);
            prop_assert!(decode_frame(at + AREA, &bytes).is_err());
            bytes[flip % len] ^= 0x10;
            prop_assert!(decode_frame(at, &bytes).is_err());
        }

        #[test]
        fn foreign_bytes_are_no_frame(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(decode_frame(0, &bytes).is_err());
        }
    }
}
